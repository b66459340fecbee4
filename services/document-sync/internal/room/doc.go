// Package room has the documents that are open on this instance, and who is in them.
//
// A Hub has one room for each open document. A room has the document's state as a
// yjs.Doc, a Seat for each connection, and a presence.Table. Everything that happens to a
// document on this instance goes through its room: updates of people (Seat.Update), of
// other instances (the bus), and operations of agents and of REST (Hub.Do).
//
// # What anybody sees is committed
//
// The doc has what is committed in Postgres, plus at most one batch of updates or one
// operation on its way there. While that is so the room is busy, and nobody looks at the
// doc: answers to Seat.Sync, Hub.Read, updates from the bus and the greeting of a new
// peer wait until it is clean again. So whatever anybody was shown survives every crash,
// and a client that was not told "stored" still has its update and sends it again.
//
// # The states of a room, and who owns what
//
//	loading   in the hub's map, so that loading happens once; the doc is being made
//	clean     the doc has what is committed up to a sequence, perhaps with later ones
//	busy      somebody has the turn
//	lost      the doc had what will never be committed and was thrown away; the room
//	          holds its peers and loads it again
//	over      deleted, unloaded or the end of the instance: not in the map any more
//
// The turn is what makes a room busy: it is had by the loader, by the worker with a
// batch, by one operation, one reader, one snapshot that is being encoded; others
// queue for it. The doc belongs to who has the turn, or, when nobody does, to who holds
// room.mu. All else in a room is guarded by room.mu, which is held for computing
// only, never while Postgres or the bus is waited for. Hub.mu guards the map, the pins
// (seats and calls at work in a room) and the list of rooms that have none; it is taken
// before room.mu, never after. Peers are called with room.mu held: they queue, return
// at once and do not call back.
//
// Updates wait in the room's inbox, which is bounded in bytes, as is what waits in all rooms
// of a workspace and of the hub: over a bound a sender
// blocks, its socket backs up, and the client keeps the rest. A worker, a goroutine that
// is there only while the inbox has something, takes it all at most every few
// milliseconds, applies it in one transaction, commits what was new in it as one update
// (Store.Append commits for many rooms at once), and then sends one Message to all peers
// and the bus. If something in the doc waits for updates that have not arrived, what is
// committed is the updates as they came, so that the part that waits survives too.
// An update that is malformed or asks for too much is refused to its sender alone, with all
// that the sender sent behind it, which may build on it; if it
// may have left a part of itself in the doc, the doc is thrown away first. A batch that is
// too large for the store is committed sender by sender, and who is too large alone is
// refused. Who is refused is closed with CloseRefused (CloseMalformed for what cannot be
// read), and editors that heed it do not come again. From those that do, with the same
// structs, the update is taken a second later, then two, up to eight: what their
// page says is refused once in that time, and nobody else is held up by it.
//
// An operation first catches up with the head in Postgres, edits within one
// transaction, and is committed by its caller's function, in a transaction of its own.
// If that fails, or says that the key was answered before, the doc is thrown away: it
// has what was never committed. One that cannot be computed, or has no place, may have been
// committed before all the same; its caller is asked.
//
// # What it may take
//
// A document that takes Config.DocumentBytes of memory is full: updates that add to it
// are refused, and so are operations that make it larger. Deletions are taken, unless they
// divide what is there until it takes twice as much. It is loaded, read, exported and
// deleted like any other. A state that is too large for the store's snapshots makes a
// document full, too: else its updates would pile up.
//
// All rooms together have Config.MemoryBytes. The last quarter of it is for workspaces that
// have less than a quarter, so that none takes the place of all others, and one that is
// alone has three. When that is
// used up, rooms that nobody is in are unloaded as soon as they are saved, then opening
// others is Unavailable; when editors use an eighth more, who adds something is closed with
// CloseBusy and finds a place on another instance (the gateway takes the document there), or
// here when there is one. What waits to be committed has an eighth of Config.MemoryBytes
// besides, of which one workspace takes three quarters at most. Nothing that was taken is let go of for want of memory before it is committed and
// saved.
//
// An answer to Seat.Sync goes through all of the document. Each connection has a share in
// bytes a second, and who has used it up waits. The first answer in each document may
// overdraw it, by a minute's worth: people open many documents at once, and nobody opens
// them again and again. Where a crowd asks the same of the same state it gets the same
// message, encoded once.
//
// # Sequences
//
// Each committed update has the document's next sequence. A room knows up to where it
// has all of them, and which later ones. When there is a hole, because messages overtook
// each other or one was lost, it waits a moment and reads what is missing from Postgres.
// A lost last message shows in the heads, which are read for all rooms together, those that
// nobody is in too, every few seconds and when the bus was away. A retried commit may be there twice, which
// changes nothing: updates can be applied twice.
//
// # Snapshots
//
// Who committed, or loaded updates that no snapshot has, saves a snapshot two seconds
// after the last edit, or ten after the first when editing goes on; one at a time for
// a room and a few for all, so that a slow Postgres piles up nothing. It is encoded with
// the turn and saved without. If that fails it is tried again, later each time; nothing
// depends on it but how long loading takes, search, and what readers of the old tables see.
//
// # What happens when
//
//   - The process dies. In the inbox, or applied and not committed: nobody saw it, the
//     clients have it and send it again (the greeting is sync step 1). Committed and not
//     broadcast: other instances see a hole, or the head. Committed and not in a
//     snapshot: the rows are there, and the next loader saves one. Presence: other
//     instances remove it after 30 seconds.
//   - Postgres stalls or fails. Commits are tried again for ever with growing pauses;
//     inboxes fill up and senders block; presence goes on. Rooms that are not busy
//     still answer Sync. Loads and operations fail to their callers and are not
//     remembered. Nothing is lost, and nothing grows.
//   - A message on the bus is lost, late or comes twice: see Sequences. The bus is down:
//     other instances are up to a few seconds behind; what is to be published is dropped
//     when its queue is full. When it is back, each instance asks for what it missed and
//     tells who is with it.
//   - The doc panics, which is a bug of ours. The room loads it again from Postgres. When that
//     was for a batch, its updates are then applied one by one, and one that panics again is
//     put into quarantine: its sender is closed, it is not tried any more, and the store
//     keeps it with the state and the updates it was applied to. A batch that panics though
//     none of its updates does is refused and kept as a whole. When somebody only
//     looked at the doc, or it could not be loaded, the same is done with what is committed
//     since the snapshot: an update that panics twice, applied or looked at, is left out, and
//     so is not in the next snapshot. If nothing is to blame, the peers are sent away.
//   - Anything else panics. While a document is loaded, a snapshot saved or a hole read, that
//     is a failure like others. In a commit, or while the doc is loaded again, the room is
//     over and its peers are closed with CloseBusy: they connect again and send what is not
//     committed.
//   - The document is deleted. Told by the bus, by the heads, by a commit, a load or a
//     snapshot that finds no row, whichever is first: the room is over, its peers are
//     closed with 4404, waiting calls get NotFound. What was in flight is refused by the
//     store's transaction.
//   - The instance drains. Peers are closed with 1012, what is in inboxes is committed and
//     rooms with unsaved updates are saved, within a bound; then what still hangs is let
//     go of, as if the process had died.
//   - Nobody is in a room. It stays for half a minute, and longer while its snapshot
//     is not saved or an agent is shown in it. When there are too many rooms, or they take
//     too much memory, those that were left first go first; when all are in use, opening
//     another one is Unavailable.
//
// # Costs
//
// An idle room is its doc and a few hundred bytes: no goroutine, no channel, and a timer
// only while an edit, a hole, a renewal of presence or an agent's cursor waits for
// something.
package room
