// Package pool chooses the account that a request goes out under, and hears how
// it went.
//
// A pool is the accounts that one workspace may use for one provider: its own,
// else the operator's shared ones, else the environment's, else (where one is
// configured) the simulated provider, which needs no credential. Ordered, the
// only strategy so far, tries them in the order in which they were added, each
// once per request. Strategies, health and cooldowns come behind the same two
// calls, Select and Report.
//
// Accounts are read from Postgres and opened by the vault, per workspace and
// provider, and believed for a second; a change made by another process therefore
// counts within a second, one made by this process (Forget) at once. Where requests
// keep coming they are read again ahead of time, and nobody waits. The first use of a
// stored or environment account in a session is written to the audit before the
// request goes out: no credential is used without a row.
package pool
