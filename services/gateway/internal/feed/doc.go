// Package feed brings the run log of sessions to the screens of those who watch.
//
// # The way of an event
//
// A runner writes an event to the session's subject; JetStream stores it and
// repeats it on the live subject, with its sequence and the sequence of the event
// before it on the same subject. A gateway that has a viewer of the session
// subscribes to that subject once, brings the events into their canonical order
// (package runorder), encodes each once, and puts it into the session's ring.
// Viewers read the ring at their own pace.
//
// # Who owns what
//
//   - A Feed has a few shards. A shard is one goroutine, a worker, with one channel,
//     into which the subscriptions of all its sessions deliver, and owns its topics: a
//     topic is a session that is watched here. What only the worker touches needs
//     no lock. Work that waits (reading the log, asking Postgres) happens in
//     goroutines of its own that hand their result back to the worker.
//   - A topic's ring and its lists of viewers are shared, under the topic's mutex:
//     the worker appends, others copy. The mutex is never held while something waits.
//   - A Viewer belongs to the goroutine that opened it, an HTTP handler, until that
//     hands it over. It holds its place in the ring, so that a slow viewer costs
//     nobody anything: it falls behind, catches up from behind the ring, and when it
//     is too far behind it gets a snapshot and is cut off.
//
// # Two ways to a socket
//
// Hand gives a viewer to the feed together with its connection, taken over from
// net/http (Hijack). It then has no goroutine, no buffer and no timer, only some
// hundred bytes. Viewers of a topic with connections are in groups of bounded size,
// which are spread over the workers. When a topic has new frames its groups queue
// with their workers, and a worker gives one group after the other its turn: it
// appends what is pending for a viewer into one buffer and writes that with one
// system call that does not wait. Between two groups it takes in what has arrived.
// So an idle system writes at once, a busy one batches by itself, and a session that
// thousands watch holds up nobody for longer than one group takes.
//
// A group that was written to rests, the longer the more viewers it has, up to
// maxRest; what comes meanwhile gathers and goes out with one write to each. What
// comes after a pause is written at once. So few viewers wait for nothing that can be
// felt, and a crowd costs a bounded number of writes a second however fast its
// session's events come.
//
// The worker writes and no goroutine beside it, because on the way of an event each
// handing over costs as much as a system call, and the write is the work.
//
// A viewer with a connection has at most one owner at a time, marked under the
// topic's mutex: a worker for a turn; a goroutine (pursue) for as long as something
// has to be waited for, which is a full socket, a hole, a place behind the ring or a
// snapshot; whoever ends it (Cut). Nobody waits for the owner: what comes meanwhile
// is seen by it before it lets go.
//
// About once a second each worker looks after each of its connections: is a
// heartbeat due, and has the client left? The latter takes one read that does not
// wait. Being told by the kernel would be sooner and cheaper with very many idle
// streams, but takes a poller of our own for each system; this is half a percent of
// a core for 10,000 streams, and works wherever Go does.
//
// Serve is the other way: it stays on the caller's goroutine and writes to a Sink.
// It serves where a connection cannot be taken over, with TLS or HTTP/2 in the
// process. Both ways gather the same frames with the same code, and their streams
// are the same, byte for byte, within the transfer encoding.
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
// one again, and may have passed the old head before anybody looks. So a head is a
// sequence and a time, and each comparison begins with finding it in the log: what
// stands elsewhere is another stream's, or the stream has lost its end. A live event
// that does not name the head as the one before it has the log compared first, and
// so has the first one after a reconnect.
//
// # Joining
//
// Join puts a viewer behind what its topic has and does not wait; Ready waits until
// the head is known. Who sends a message does both at once, joining and sending, so
// the head may be of the answer already, or behind it: Overtook tells, and then the
// run's beginning is read as for who comes back.
//
// # Coming back
//
// A viewer comes with the id of the last event that it has. When the ring has that
// event, the rest comes from there. Otherwise a tail is read, by one goroutine per
// topic and a few per gateway: from Postgres what is recorded, which is all but the
// last moment, up to what the ring has or else to its end; then from JetStream, which
// has no index by session and scans, only what comes after. The tail goes into the
// ring where there is room, so that of those who come back together one reads.
// A workspace has four tails read at a time, so that those who come back with ids
// that never were hold up nobody else; live streams have their own reads.
//
// Of a tail a viewer keeps as much as it may be behind, and little when the viewers
// of this gateway keep much together. It stands then before the ring, wherever that
// is, and when it gets there it comes back as if from afar.
//
// # What can go missing
//
// A gap before an event shows through the event. A gap at the end shows through
// nothing that follows, so a run that is silent is compared with the log, as all are
// after a reconnect to the bus, and, when that has nothing new, looked up in Postgres
// at a slow pace: if it has ended there, its end is made up here from the run's row.
// Where events are gone for good (a number is skipped within a run, a run begins and
// the one before it has no end, or is missing), the ring gets a hole, and each viewer
// that comes to it gets a snapshot of what the session holds, and after that what is
// not in the snapshot.
//
// # If it dies here
//
// Nothing is lost but the connections. They are cut, never ended cleanly, so that
// clients come back with their last event's id, to any gateway. A feed that drains
// cuts them one after the other, and says when it has none any more: the HTTP server
// does not know of those that were taken over.
package feed
