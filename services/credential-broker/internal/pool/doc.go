// Package pool chooses the account that a request goes out under, and learns from how the
// request went.
//
// A pool is the accounts that one workspace may use for one provider: its own, else the
// operator's shared ones, else the environment's. If accounts exist and none can be used,
// that is an error: the next tier would make somebody else pay. The simulator is a provider
// of its own, without a pool.
//
//	Set   all pools of this instance: reads them, gets tokens, writes, talks to other instances
//	Pool  the decision: no I/O and no clock; the time comes with each call
//
// A request calls Select, Began when the answer begins well, and Report once at the end.
//
// # The states of an account
//
// An account has a limit as a whole, and one for each model family that the provider limits
// separately. Each limit is in one of these states:
//
//	state     begins                                  ends
//	ready     the account joins the pool              a failure parks it: cooling
//	cooling   RateLimited, AuthFailed, QuotaExhausted its window is over: cooled
//	          or Overloaded with a wait
//	cooled    its window is over                      the next request is its probe: probing
//	probing   one request goes through, others go     OK: ready. The same failure: cooling.
//	          elsewhere                               No outcome within ProbeTime: cooled
//
// Switch makes an account current, Reset makes it ready from any state. Two more conditions
// refuse no request: an account is unhealthy (hybrid chooses it last) if its health is below
// MinUsable, and passed over (others go first, for one model or for all) if it may not use
// the model, has no token, or its server cannot be reached. The next good answer ends that.
//
//	outcome               health  parks
//	OK                    +1      nothing; ends the probe and clears the limit
//	RateLimited           −10     the family, or else the account: 30 s
//	AuthFailed            −20     the account: 5 s
//	QuotaExhausted        −20     the account: 1 min, 5 min, 30 min, 2 h
//	Overloaded            −10     the account, if the provider says for how long
//	all others            0       nothing: not the account's condition
//
// A wait that the provider asks for takes precedence, clamped by reason. A request that fails
// within a window belongs to it: it costs nothing more, and extends the window only if the
// provider asks for longer. A request sent before the window that fails after it parks the
// account without climbing the ladder. A probe that finds the limit it looked for climbs, but
// costs no health. If no account is ready, the one that was parked last may be probed after
// FloorSeconds, or after the wait that the provider asked for.
//
// A permission failure (Outcome.Denied) alone teaches nothing: the request may ask for what no
// account may do. If another account then serves the request, those that denied it are passed
// over for its model.
//
// # Instances
//
// Instances are equal, and none waits for another. Each announces what it learns, and Merge is
// commutative, associative and idempotent: of two versions of a limit the one that began later
// wins, then the longer one (a cleared limit is a version, too), and counters belong to the
// instance that counts and only grow. Lost announcements are made up for by later ones; after
// a lost connection all instances announce everything. Probes and the ends of quotas are each
// instance's own.
//
// Time is monotonic plus the time that the machine slept. A wall clock that is set back makes
// no window longer; limits of a clock that is more than 10 min ahead are ignored.
//
// # Storage
//
// A pool is read when it is first asked for. A poll every half second compares marks and has
// changed pools read again; Forget does so at once. While the database is away, what was read
// is used for up to 15 minutes; if no poll has run for 5 s, requests wait for the database.
// Statistics and health are written behind, within a second; cooldowns at once. If the process
// dies, it loses its last half second of statistics, and a cooldown of the last moment.
//
// The first use of an account in a session is recorded in the audit: noted before the request
// goes out, written while the provider answers, and waited for by Began, at most 250 ms and not
// while the database is away. At most 10,000 uses wait; further first uses are refused, for no
// account is used that the audit could not tell of. A process that dies loses those that wait.
package pool
