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
// and how one is chosen is a Pool's; shared accounts are one pool for all
// workspaces.
//
//	Select   the pool as it is known (cache.go, load.go), choose (Pool.Pick), wait for a token
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
// 200 ms (share.go), as registers and counters that a Pool merges; that it was
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
//
// # The choice
//
// A Pool decides which of its accounts a request goes out under. It does
// no I/O and reads no clock: the time comes with each call, so that days pass in a
// test in no time. A Pool is safe for concurrent use, holds one mutex for a
// microsecond or, of a thousand accounts, a few, and is bounded in all that grows.
//
// # The states of an account
//
// A member of a pool is in one of these states, once for the account as a whole and once for
// each model family that the provider limits on its own (type limit):
//
//	state     begins                                   ends
//	ready     the account joins the pool               a failure parks it: cooling
//	cooling   RateLimited, AuthFailed, QuotaExhausted  its time is over: cooled
//	          or Overloaded with a wait parks it
//	cooled    its time is over                         the next request is its probe: probing
//	probing   one request finds out whether it is      OK: ready. The failure again: cooling.
//	          back, and others go elsewhere            No word within ProbeTime: cooled
//
// An order to heal makes it ready from any state. Two conditions stand beside the state and
// refuse nothing:
//
//	unhealthy its health is below MinUsable: hybrid chooses it last
//	avoided   other accounts go first, for a model or for all (type exclusion)
//
// An account that is disabled, or whose secret does not open, is not a member:
// whoever reads the accounts leaves it out.
//
// What an outcome does:
//
//	OK                        health +1; ends the probe, clears the limit and the ladder
//	RateLimited               health −10; parks the family, or the account: 30 s
//	AuthFailed                health −20; parks the account: 5 s
//	QuotaExhausted            health −20; parks the account: 1 min, 5 min, 30 min, 2 h
//	Overloaded                health −10; parks only as long as the provider asks for
//	Service, Unreachable      nothing: that is the provider's condition, or the network's
//	Caller, Cancelled         nothing: that is the request's
//	Denied                    nothing; see below
//	Later                     nothing; so long others go first
//
// What the provider asks for (Outcome.Wait) comes before these times, clamped for
// each reason: an account is not lost for days to one wrong header.
//
// Denied is a refusal that names permission: the account may not use that model, or the
// request asks for what no account may do. Which of the two it is another account decides:
// where one serves the same request (Request.Denied), those that refused it are passed over
// by requests for that model for 10 min. Where none does, the request is to blame, and
// nothing is remembered: one member's request shall not take a pool from everybody, nor send
// all of it to one account. An account that is passed over is used when there is no other.
// Later is the same for all models: the account has no token that could be sent now, or its
// server cannot be reached. Both end with the next good answer, and others are told of them
// as of limits (PassedOver), so that operators see them.
//
// A parking opens a window. Requests in flight that fail while it is open belong to
// it: they cost no health and climb no ladder, and only a longer wait that the
// provider asked for in so many words extends it. A request that went out before
// the window and fails after it parks the account again and does not climb either:
// a Ticket knows under which window it was handed out. So the ladder climbs once
// for each window, and only by a request that had been let through after it.
//
// A probe that finds the limit it was to look for parks the account again, and climbs,
// but costs no health: the limit was known. Else looking whether a quota is over would use
// up the health of who does not say when it is, and leave it for last when it is back. (A
// failed authentication is only known from trying, and has no ladder: that costs again.)
//
// An account comes back by one probe and not by a herd. A probe that does not
// answer for ProbeTime no longer keeps others away; one that ends without a word
// about the account (cancelled, never sent) leaves the next request to probe.
//
// The last usable account of a pool is not parked for longer than the provider asked
// for, else for Floor: when nobody is ready, the account that was parked last may be
// probed from then on. It is decided when somebody asks, and not when the account is
// parked, because only then is it known who else is there; its ladder goes on. An account
// whose key does not open is not the last usable one while there are others. That nobody is
// ready is believed for 100 ms at most, while nothing changes and nobody's time is over.
//
// # Strategies
//
// sticky stays on the current account while that is ready, else goes to the next
// that is, from the cursor on. round-robin takes the ready ones in turn. hybrid takes
// the highest score among those that are ready, healthy and have tokens:
//
//	health × 2 + tokens/MaxTokens × 500 + min(seconds since used, 3600) × 0.1
//
// the current account gets Stickiness on top, and another one has to be better by
// SwitchThreshold. When no account has tokens and health, those without tokens come
// next, then the unhealthy: a limit of our own making refuses nobody. Where a session
// was served before, its account is the current one for it (sticky and hybrid;
// taking turns leaves no room for that): the provider's prompt cache lives there.
//
// Some providers say with each answer when the quota ends that it was counted against
// (Outcome.Ends). Hybrid then looks for the highest score first among the accounts whose
// quota ends within the hour, then among those that do not say, then among those whose
// quota ends later, the next hour's first: what is left of a quota at its end is lost
// (lapse.go). A session does not leave its account for that. Where no account says so, that
// changes nothing.
//
// Families are sixteen at a time: one whose limits are all over makes room.
//
// Somebody may say which account is to be the current one (Use), and have one made as new
// (Heal). An order has a date: it is carried out once, however often it is told. Requests
// in flight when somebody switches do not bring their sessions back.
//
// Time is monotonic, so that a clock that is set back parks nobody for longer, and what
// is told of it is dated by the clock on the wall. When that jumps ahead, time has
// passed: a machine that slept until a limit was over finds it over. What was told by a
// clock that was ahead counts for 10 min longer at most; what was known here before it was
// set back, no longer than it did.
//
// The token bucket is on our side and spreads the load. A request takes a token, one
// that was never sent gives it back. A request tries each account once.
//
// # Several instances
//
// Each instance chooses for itself and tells the others what it learned: State, which
// Merge takes. Merging is commutative, associative and idempotent in what is shared:
//
//   - a limit (account, family) is a register: of two, the one whose window began
//     later wins, then the longer. A clearing is a value like any other. Who writes
//     one dates it after the one it replaces, whatever its clock says.
//   - counters (tokens taken and given back, health events) belong to the instance
//     that counts, and only grow: of two, the greater is the newer. Who hears of an
//     instance for the first time begins with what it had told before.
//
// Tokens and health are each instance's view: its own events and the growth of the
// others' counters, applied when heard, within the bounds. A lost message is made up
// for by the next. Views differ by what a bound cut off and by what is on its way, and
// meet again as buckets fill and health recovers. A probe is each instance's own.
package pool
