// Package execute runs tool calls from the bus. Each call takes effect at most once if the tool's
// effect allows it; otherwise its outcome is unknown rather than repeated.
//
// # The states of a call
//
//	admitted   the call has a slot of the process and of its workspace; without one it is redelivered later
//	claimed    this executor owns its row in the ledger, which holds the whole call; if the call is done, its outcome is announced again
//	decided    the tool is unknown, the arguments are wrong, it is too late, or the call is cancelled: the outcome needs no run
//	run        the tool runs under a deadline in its own goroutine
//	recorded   the outcome is final, provided that the claim is still the latest
//	announced  the outcome is sent on the bus, where it may be lost; runners also poll the ledger
//
// Handle's error is the delivery decision; nil acks. It is nil when the outcome is recorded,
// and also when another executor works on the call: once claimed, a call is in its row and
// does not depend on its message. Only Sweep takes calls over from other executors.
//
// # What happens on a crash
//
// Before the claim, the message is redelivered after subject.AckWait, or the runner sends the
// call again. After the claim, the row no longer changes. Other executors notice (Sweep) and
// take the call over: after Config.Quiet if the process is dead, after Config.Lease if it is
// only silent. Each executor uses its own clock and counts only time in which it could read
// the ledger, so that an outage of Postgres, during which no lease can be renewed, makes no
// executor look dead. The executor that takes a call over sees that an earlier one had begun
// (Claim.Attempt > 1) and acts according to the tool's effect:
//
//	pure     run it again
//	same_tx  run it again with the same key, which document-sync checks in the transaction of the change
//	keyed    run it again with the same key, which makes the remote side act once; an error now says nothing about the first run, so the outcome is unknown
//	verify   ask the tool whether it took effect; if found, that is the outcome; if not found (see below), run it; if the tool cannot tell, the outcome is unknown
//	unsafe   the outcome is unknown; never run it again
//
// After the record, nothing is taken over: for a redelivered message the outcome is read from the
// ledger, as the runner does.
//
// # Zombies
//
// An executor may be stopped for a while (SIGSTOP, a starved machine) and continue after its
// calls were taken over. It cannot record, because the attempt has increased. Before each run
// it makes sure that its claim was confirmed within Config.Quiet, or renews it. It can still
// be stopped after that check, or inside the tool, and send its request when it continues:
//
//	pure             no effect
//	same_tx, keyed   the remote side recognizes the key
//	unsafe           no other executor runs the call, so there is at most one effect
//	verify           "not found" would be wrong if the zombie sent its request afterwards
//
// For verify, "not found" therefore counts only when the processes of all executors that had
// begun with the call are gone (Presence) and Spec.Settle has passed since then, in which a
// last request of theirs arrives. While one of them is only silent, the tool is asked again
// and again until the call's time is over, and then the outcome is unknown. Two cases remain
// open: a process that is stopped in the middle of a request at the very time when its
// connection to Postgres breaks, and any stopped process behind a connection pooler, where
// presence says nothing.
//
// # Ownership
//
// Handle and Sweep own their calls and wait for the tools' goroutines. A tool that does not
// return after its context has ended is abandoned after a grace period: the call's outcome is
// that of the context, and its slot stays taken until the tool returns, so that hanging tools
// cannot pile up.
//
// A cancel is sent to all executors, which remember it for some minutes, because the call may
// arrive later or be taken over. An executor that starts afterwards does not know of it; the
// call's deadline bounds the damage.
package execute
