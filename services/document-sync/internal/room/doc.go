// Package room holds the documents that are open on this instance.
//
// A Hub has a room per open document. A room has the document as a yjs.Doc, a Seat per
// connection, and a presence.Table. Everything that happens to a document on this instance
// goes through its room: updates of people (Seat.Update), of other instances (Bus), and
// operations of agents and REST (Hub.Do).
//
// # Only committed changes are visible
//
// The doc contains what Postgres has committed, plus at most one batch or operation that is
// being committed. Meanwhile the room is busy, and everything that reads the doc waits. So
// whatever anybody has seen survives a crash, and a client that was not told "stored" resends
// its update. The states of a room:
//
//	loading   in the hub's map, so that it is loaded once
//	clean     the doc contains what is committed up to a sequence, perhaps with later updates
//	busy      somebody holds the turn
//	discarded the doc contained uncommitted changes; it is being reloaded
//	over      deleted, unloaded or drained, and no longer in the map
//
// The turn is the room's exclusive lock, with a queue. The loader, the worker with a batch, an
// operation, a reader and the encoding of a snapshot hold it in turn. Its holder owns the doc, or
// else the holder of room.mu, which guards the rest of the room and is held for computation
// only. Hub.mu guards the map and the pins, and is taken before room.mu. Peers are called with
// room.mu held: they only queue.
//
// # Updates and operations
//
// Updates wait in the room's inbox. When it, or the limit of the workspace or the hub, is
// exhausted, senders block and their clients keep the rest. A worker applies the inbox in one
// transaction, commits the result as one update, and broadcasts it. Malformed and too expensive
// updates are refused, with all later ones of their sender, which may build on them; the sender
// is closed, and resent updates are tried with backoff. A batch that is too large for the store
// is committed sender by sender. If the doc may contain part of a refused update, it is reloaded.
//
// An operation catches up with Postgres, edits in one transaction and is committed by its
// caller. If that fails, the doc is reloaded.
//
// Each committed update has the document's next sequence. After a gap, because messages were
// lost or out of order, a room reads Postgres. The heads of all rooms are read every few
// seconds, which also reveals the loss of the last message. Snapshots are saved 2 seconds after
// the last edit, or 10 seconds after the first; only loading time and search depend on them.
//
// # Limits
//
// A document over Config.DocumentBytes, or too large for a snapshot, accepts deletions only.
// When Config.MemoryBytes is exhausted, unused rooms are unloaded, then opening is Unavailable,
// and an eighth beyond that additions are refused with CloseBusy. A workspace gets at most three
// quarters. Each connection has a rate limit for answers, which scan the whole document.
//
// # Failures
//
//   - The process dies. Uncommitted updates were seen by nobody and are resent. Committed ones
//     that were not broadcast appear as a gap or a head elsewhere. Other instances remove its
//     presence after 30 seconds.
//   - Postgres fails. Commits are retried, senders block, presence and answers go on; loads and
//     operations fail. The bus fails: other instances are a few seconds behind.
//   - The doc panics. It is reloaded, the updates of the batch are tried one by one, and one that
//     panics again is quarantined. If reading panics, committed updates are tried likewise.
//   - Anything else panics during a commit or reload. The room ends with CloseBusy.
//   - The document is deleted. The room ends with CloseGone, waiting calls return NotFound.
//
// An idle room needs no goroutine. It is unloaded after half a minute, once it is saved.
package room
