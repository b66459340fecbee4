// Package feed brings the run log of sessions to the screens of those who watch.
//
// # The way of an event
//
// A runner writes an event to the session's subject; JetStream stores it and
// repeats it on the live subject, with its sequence and the sequence of the event
// before it on the same subject. A gateway that has a viewer of the session
// subscribes to that subject once, brings the events into their canonical order
// (package-internal type order), encodes each once, and puts it into the
// session's ring. Viewers read the ring at their own pace.
//
// # Who owns what
//
//   - A Feed has a few shards. A shard is one goroutine with one channel, into
//     which the subscriptions of all its sessions deliver, and owns its topics: a
//     topic is a session that is watched here. What only the worker touches needs
//     no lock. Work that waits (reading the log, asking Postgres) happens in
//     goroutines of its own that hand their result back to the worker.
//   - A topic's ring and its set of viewers are shared, under the topic's mutex:
//     the worker appends, viewers copy. The mutex is never held while something waits.
//   - A Viewer belongs to the goroutine that opened it, an HTTP handler. It holds
//     its place in the ring, so that a slow viewer costs nobody anything: it falls
//     behind, catches up from the ring or the log, and when it is too far behind it
//     gets a snapshot and is cut off.
//
// # A topic's life
//
//	opening    subscribed; the head of the log is being read; live events wait
//	flowing    each live event follows the one before it
//	repairing  an event is missing; the log is being read; live events wait
//	closed     nobody watches for a while, or the feed of this session was lost
//
// Sequences are compared as places: the sequence with, above it, a count of how
// often the stream began anew, because a JetStream that lost its disk counts from
// one again.
//
// # What can go missing
//
// A gap before an event shows through the event. A gap at the end shows through
// nothing that follows, so a run that is silent is compared with the log and, when
// that has nothing new, looked up in Postgres at a slow pace: if it has ended
// there, its end is made up here from the run's row. Where events are gone for
// good (a number is skipped within a run), the ring gets a hole, and each viewer
// that comes to it gets a snapshot of what the session holds, and after that what
// is not in the snapshot.
//
// # If it dies here
//
// Nothing is lost but the connections. They are cut, never ended cleanly, so that
// clients come back with their last event's id, to any gateway.
package feed
