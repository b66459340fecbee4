// Package editing lets many editors write in one document through both gateways of a cluster
// while its parts are killed, and checks the guarantees of live documents:
//
//   - An update that anybody else has seen is never lost. Editors would repair a loss, because
//     they send again what the server lacks. So there are read-only watchers, and blackouts: all
//     editors are cut off, both instances of document-sync are killed at once, sometimes with
//     Postgres, and a new client must then find everything that any watcher has seen.
//   - What an editor wrote while it was cut off arrives when it reconnects.
//   - An editor that never returns loses only what it had not sent.
//   - In the end all replicas are equal, byte by byte: editors, watchers, and new clients of
//     either gateway.
//
// TestClients uses the npm clients, y-websocket and Hocuspocus' provider, on both gateways of a
// cluster that stays up.
//
// An editor is a yjs.Doc with a connection that reconnects whenever it breaks. Its mutex guards
// it against its two goroutines, one that reads from the connection and one that edits.
package editing
