// Package pool chooses the account that a request goes out under, and hears how it
// went.
//
// A pool is the accounts that one workspace may use for one provider: its own, else the
// operator's shared ones, else the environment's, else (where one is configured) the
// simulated provider, which needs no credential and knows no limits. A Set is all pools
// of this instance. What is known of accounts (health, tokens, limits) and how one is
// chosen is package choice's; shared accounts are one pool for all workspaces.
//
//	Select   read the pool (load.go), choose (choice), renew a token (tokens.go), put the
//	         first use on record (use.go)
//	Began    the account has begun to answer well: others may follow a probe
//	Report   how it ended, once for each Select
//
// # Accounts
//
// Accounts, settings and what is stored of limits are read from Postgres, secrets opened
// by the vault, per workspace and provider, and believed for a second; a change made by
// another process therefore counts within a second, one made by this process (Forget)
// at once. Where requests keep coming they are read again ahead of time, and nobody
// waits. While Postgres is away, what was read last is believed for up to 15 minutes.
// Somebody's orders, to switch to an account or to make one healthy, are dated rows that
// are read with the accounts; each instance carries out the newest of each once.
// The first use of a stored or environment account in a session is written to the audit
// before the request goes out: no credential is used without a row, also then.
//
// # Several instances
//
// Instances are equal. What one learns it tells the others on the bus, at most every
// 200 ms (share.go), as registers and counters that package choice merges; that it was
// told to Forget something, at once. Selection waits for none of this. Each also writes
// what it learned or heard behind to Postgres, every half a second and when it is told
// to stop (behind.go), and reads it back with the accounts: without a bus the instances
// meet there, a second later. If one dies here: of its last half second, statistics are
// lost, and a cooldown only that no other instance had heard of. Without Postgres
// statistics wait in memory, one row for each account and reason.
package pool
