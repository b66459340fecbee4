// Package feed delivers the run log of sessions to viewers.
//
// # The path of an event
//
// A runner publishes an event on its session's subject. JetStream stores it and
// republishes it on the live subject, together with its sequence and the sequence of the
// previous event on that subject. A gateway with viewers of the session subscribes to the
// live subject once, puts the events into canonical order (package runorder), encodes each
// once and appends it to the session's ring. Viewers read the ring at their own pace.
//
// # Ownership
//
//   - A Feed has a few shards. A shard is one worker goroutine with one channel, into which
//     the subscriptions of its topics deliver. A topic is a session that has viewers here.
//     Fields that only the worker uses need no lock. Work that blocks (reading the log,
//     querying Postgres) runs in goroutines that post their result to the worker.
//   - A topic's ring and lists of viewers are guarded by the topic's mutex: the worker
//     appends, others copy. The mutex is never held across a blocking call.
//   - A Viewer belongs to the goroutine that opened it until Attach. It keeps its position
//     in the ring, so a slow viewer delays no other: it falls behind, catches up from the
//     log, and if it is too far behind it gets a snapshot and is disconnected.
//
// # States of a topic
//
//	state      live events are                next state, and when
//	opening    held                           flowing when the head of the log was read
//	flowing    appended to the ring           repairing when an event does not follow the head, or shows a hole
//	repairing  held                           flowing when the log was read up to that event
//	closed     dropped                        none: viewers are cut; a new viewer opens a new topic
//
// Every state goes to closed when no viewer has been there for Linger, when the log can't
// be read, after a panic, and when the feed ends. At most 4,096 events, or 8 MiB, are held;
// events beyond that are dropped and found again as a gap.
//
// # States of an attached viewer
//
//	state     owner                next state, and when
//	idle      none                 writing when its group's turn comes; gone when it is cut
//	writing   the worker           idle when it has everything; catching up when something blocks
//	catching  one goroutine        idle when it has everything
//	gone      none                 none: the connection is closed and ended was called
//
// writing and catching up go to gone when the followed run has ended, when the client has
// left or is too slow, and when the viewer was cut meanwhile. Viewer.owned marks the owner,
// under the topic's mutex. Nobody waits for the owner: it checks for new frames and for a
// cut before it lets go.
//
// # Folds
//
// A viewer whose dialect is a fold (package dialect) has a Reader, which encodes each event
// from the state after the events before, unless another reader has done so: frames keep the
// encodings. Its position is always in the run's events, so it can begin at any chunk. It is
// cut where others get a snapshot, and package api rebuilds the stream from the rows.
//
// # Writing
//
// Attach takes a viewer together with its connection, hijacked from net/http. It then needs
// no goroutine, no buffer and no timer, only a few hundred bytes. The attached viewers of a
// topic form groups of bounded size, spread over the workers. When a topic has new frames,
// its groups queue with their workers, and a worker serves one group after the other: for
// each viewer it appends what is pending to one buffer and writes it with one non-blocking
// system call. Between two groups the worker receives what has arrived. An idle system thus
// writes at once, a busy one batches, and a session with thousands of viewers delays the
// others by no more than one group.
//
// After a write a group rests, the longer the more viewers it has, up to maxRest; frames
// that arrive meanwhile go out in one write per viewer. The number of writes per second is
// bounded however fast the events come. Workers write themselves, because handing a write
// to another goroutine costs as much as the system call.
//
// About once a second a worker checks each of its connections: whether a heartbeat is due
// and, with one non-blocking read, whether the client has left. A poller would notice
// sooner, but we would need one per operating system; the reads cost half a percent of a
// core for 10,000 streams.
//
// Serve is the alternative for connections that can't be hijacked, with TLS or HTTP/2 in
// the process: it stays on the caller's goroutine and writes to a Sink. Both produce the
// same stream, byte for byte within the transfer encoding.
//
// # Sequences
//
// JetStream counts from one again if it has lost its disk, so sequences are compared as
// places: a sequence together with the number of times that the stream was recreated. The head
// of a topic is a sequence and a timestamp; every comparison with the log first looks the
// head up there. The log is compared when a live event does not follow the head, after a
// reconnect, when a run is silent, and now and then.
//
// # Joining and resuming
//
// Join puts a viewer after the events that its topic has, without blocking; Ready waits until the
// head is known. A client that sends a message joins and sends at the same time, so the
// head may already belong to the answer: Overtook reports that, and the run is then read
// from its beginning, as for a client that resumes.
//
// A resuming client names its last event. If the ring has that event, the rest comes
// from the ring. Otherwise a tail is read, by one goroutine per topic and a few per
// gateway: from Postgres what is recorded, which is all but the last moment, and the
// remainder from JetStream, which has no index by session. The tail goes into the ring if
// there is room, so that clients which resume together cause one read. A workspace may have
// four reads in progress. A viewer keeps as much of a tail as it may be behind, and less
// when the backlogs of this gateway are large; when it has sent that, it resumes again.
//
// # Loss
//
// A gap before an event is seen from the event's sequence. A gap at the end is not, so the
// log is compared while a run is silent; if that shows nothing new, the run is looked up in
// Postgres, and if it has ended, its end event is synthesized from the row. Where events
// are gone for good (a number is missing within a run, or the previous run has no end), a
// hole is appended to the ring. A viewer that reaches a hole gets a snapshot of the session
// and then the events which the snapshot does not contain.
//
// # Branches
//
// When another branch of a session's messages becomes the current one, what viewers show is no
// longer the conversation. The event that says so is a frame of its own, and viewers of the session
// get a snapshot in its place, as at a hole. Viewers of one run pass over it, and so do those with
// a Reader, whose chunks are each run's own.
//
// # Failure
//
// If the gateway dies, connections are lost and nothing else. Connections are cut, never
// ended cleanly, so that clients resume with the last event's id at any gateway. A feed
// that drains cuts its connections spread over a few seconds and reports when none is left,
// since the HTTP server no longer knows of them.
package feed
