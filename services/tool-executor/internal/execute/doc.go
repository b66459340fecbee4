// Package execute runs tool calls that come from the bus, each of them once as far
// as anybody can tell.
//
// # A call's way
//
//	admitted   there is a free slot, for the process and for its workspace; otherwise it comes again later
//	claimed    its row in the ledger is ours and holds the whole call (package ledger); one that is done is announced again and that is all
//	decided    unknown tool, wrong arguments, too late, cancelled: the outcome is there without a run
//	run        under a deadline, in a goroutine of its own
//	recorded   the outcome, once and for ever, if the claim is still ours
//	announced  on the bus, where it may be lost; whoever waits also asks the ledger
//
// Handle's error is the delivery decision; nil acks. It is nil when the outcome is
// recorded, and also when another executor has the call in hand: from the claim on a
// call is in its row, whole, and does not depend on a message. Who takes calls over
// from others is decided in one place, Sweep.
//
// # If it dies here
//
// Before the claim, the message comes again when nobody gives a sign of life
// (subject.AckWait), or the runner sends it once more. After it, the row stops
// changing, and the other executors see that (Sweep): after Config.Quiet when the
// process is gone, after Config.Lease when it is only silent. Each goes by its own
// clock and counts only time in which it could read the ledger, so that an outage of
// Postgres, during which nobody can renew anything, makes nobody look dead. Whoever
// takes a call over sees that somebody had begun (Claim.Attempt > 1) and does what
// the tool's effect allows:
//
//	pure     run again
//	same_tx  run again under the same key: document-sync looks the key up in the transaction of the change
//	keyed    run again under the same key: the far end does it once. What then goes wrong says nothing about the first time, so that the outcome is unknown
//	verify   look it up; found is the outcome. Not found is believed late, see below; then run. Cannot tell: unknown
//	unsafe   unknown, never run again
//
// After the record there is nothing to take over: the outcome is read from the
// ledger, by the message that comes again or by the runner.
//
// # Zombies
//
// An executor may be stopped for a while (SIGSTOP, a starved machine) and go on
// after somebody has taken its calls over. It cannot record (the claim counts up),
// and before each run it makes sure that its claim was confirmed within
// Config.Quiet, or asks the ledger. It can still be stopped in between, or inside of
// the tool, and send its request when it wakes up:
//
//	pure               nothing happens
//	same_tx, keyed     the far end knows the key
//	unsafe             the call was given up as unknown and is not run by anybody else: at most one effect
//	verify             "not found" would be wrong if the zombie sent its request afterwards
//
// For verify therefore "not found" counts only when every executor that had begun
// with the call is gone, as a process (Presence), and Spec.Settle has passed since,
// for the request that it may have sent with its last breath. It started its run
// before it was taken over, so that the run's own limits count from there. While one
// of them is only silent, the call is looked up again and again until its time is
// over, and then it is unknown. What remains open is a process that is stopped in
// the middle of a request at the very time when its connection to Postgres breaks,
// or any stopped process behind a connection pooler, where presence means nothing.
//
// # Who owns what
//
// Handle and Sweep own their calls and wait for the tools' goroutines. A tool that
// holds on after its context has ended is left behind after a grace period: its
// outcome is that of the context, and its slot stays taken until it returns, so that
// tools which hang cannot pile up.
//
// A cancel is a nudge to all executors, which remember it for some minutes: the call
// may come later, or be taken over. An executor that starts afterwards does not know
// of it; a call's deadline bounds what that can cost.
package execute
