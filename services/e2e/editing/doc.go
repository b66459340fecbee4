// Package editing has many editors write in one document through both gateways of a
// cluster whose parts are killed meanwhile, and checks what live documents promise:
//
//   - What anybody else has seen of an update is never lost. Editors would heal a loss,
//     since they send again what the server lacks. So there are watchers, who may only
//     read, and blackouts: all editors are cut off, both instances of document-sync are
//     killed at once, sometimes Postgres with them, and whoever opens the document then
//     must find all that any watcher had seen.
//   - What an editor wrote while it was cut off comes in when it is back.
//   - An editor that goes for ever takes along only what it had not sent.
//   - In the end all replicas are equal to the byte: editors, watchers, and whoever
//     opens the document on either gateway.
//
// TestClients has npm's own clients, y-websocket and Hocuspocus' provider, do what their
// users do, on both gateways of a cluster that stays up.
//
// An editor is a yjs.Doc with a connection that is made anew whenever it breaks. It
// belongs to its mutex; two goroutines use it, one that reads from the connection and
// one that edits.
package editing
