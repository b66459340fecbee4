// Package pool chooses the account that a request goes out under, and hears how it
// went.
//
// A pool is the accounts that one workspace may use for one provider: its own, else the
// operator's shared ones, else the environment's. Whoever has accounts of which none can be
// used, because they are disabled or do not open, gets an error that says so and not the
// next one's answer: somebody else would pay for it. The simulated provider, where one is
// configured, is a provider of its own (SimulatorName), which needs no credential and knows
// no limits. It never answers for another one.
// A Set is all pools of this instance. What is known of accounts (health, tokens, limits)
// and how one is chosen is package choice's; shared accounts are one pool for all
// workspaces.
//
//	Select   the pool as it is known (cache.go, load.go), choose (choice), wait for a token
//	         (select.go, tokens.go), note the first use for the audit (use.go)
//	Began    the account has begun to answer well: others may follow a probe
//	Report   how it ended, once for each Select
//
// # Accounts
//
// Accounts, settings and what is stored of limits are read from Postgres, for each owner
// once, and secrets opened by the vault; an account that does not open is left out, and
// told of in the log. Two times a second one query asks which of the pools have changed
// that were asked for in the last minutes (Marks), and those are read again, so that a
// change made by another process counts within a second, one made by this process
// (Forget) at once, and a request waits for Postgres only where nothing is known. (An
// account that somebody else's reading has just brought is passed over for a second; who
// finds no other one reads the pool, for 2 s at most.) While
// Postgres is away, what was read last is believed for up to 15 minutes. Where nobody has
// looked for 5 s, because the process or the machine was stopped, requests do not believe
// what is known: they wait until it was read again.
//
// A pool whose accounts have changed may have lost one, and a sign-out elsewhere changes no
// pool: whoever holds access tokens is told when other accounts are found, and of each
// change that is heard of (Config.Forget), before anything is read, so that the token of an
// account that is gone is not sent however long the reading takes.
//
// Somebody's orders, to switch to an account or to make one healthy, are dated rows that
// are read with the accounts; each instance carries out the newest of each once.
//
// # Tokens and permissions
//
// An account whose access token takes longer than half a second goes behind the others
// for half a minute; when there is no other, it is waited for. All of that takes 20 s at
// most for a request, however many accounts wait for a server that hangs. A refusal that
// names permission has others go first for that model, and parks nothing (Denied): one
// member's wrong setting takes no account from anybody.
//
// # The audit of uses
//
// The first use of a stored or environment account in a session is a row of the audit. It
// is noted in memory before the request goes out, and written at once, while the provider
// answers: no request waits for a row. Of a good answer nothing is shown before the row is
// there (Began), so that no answer that anybody has seen is without one if the process
// dies here. That holds nobody up for longer than 250 ms: where the database is slow or
// away uses are written when it is well again, or when the Set is told to stop, and nobody
// waits meanwhile; what waits then is lost with the process. It is bounded: while 10,000
// uses do, first uses are refused, for no credential is used that nobody can tell of. The
// row's time is when it was written, which is what the chain of hashes is about; where
// that was more than two seconds later, it says when the use was. (In a file uses are
// written once a second, with the rest.)
//
// # Several instances
//
// Instances are equal. What one learns it tells the others on the bus, at most every
// 200 ms (share.go), as registers and counters that package choice merges; that it was
// told to Forget something, at once, and they look. Selection waits for none of this. Where
// the bus was away for one, all tell all they know again: limits are caught up with at
// once, and health from what an instance told before; one that was never heard is caught
// up with by its rows.
// Each also writes what it learned or heard behind to Postgres, every half a second and
// when it is told to stop (behind.go), cooldowns at once (or with the next write, where
// one is under way), and reads it back with the accounts: without a bus the instances meet there, a second later. Of an account that is
// not stored (any more) nothing is written. If an instance dies here: of its last half
// second, statistics are lost, and a cooldown of its last moment. Without Postgres
// statistics wait in memory, one row for each account and reason. The file of a single user
// (store.File) takes the place of Postgres where there is none, and is written once a second.
package pool
