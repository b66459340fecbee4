// Package docproxy lets clients reach document-sync: it takes their WebSockets,
// finds out who asks exactly as the REST API does, and passes the bytes on.
//
// # A socket's life
//
// Opening. The gateway answers the upgrade itself, at once: a browser sees why a
// socket was refused only by a close code, which there is none of before the
// upgrade. The token comes with the request or, from Hocuspocus' provider, with its
// first messages: these are read here, within bounds, and kept. Then the person is
// verified, the socket is counted (door.Streams), and document-sync is asked for a
// socket of its own in the person's name. All this happens in the request's
// goroutine.
//
// Open. What was kept goes to document-sync, and the request's goroutine ends. Two
// pumps, one for each direction, pass raw bytes. While nothing comes they hold no
// buffer. Nothing is parsed on the way up; on the way down the headers of frames are
// followed (package-private type frames), since a close frame of ours may only stand
// between two frames.
//
// Ending. The pump that writes to the client owns the end. It says why, with a close
// frame, where document-sync has not said so already; where document-sync died in the
// middle of a frame the connection is cut. The client gets a moment to read it. Both
// connections are closed when both pumps are out; whichever is the last one closes
// them.
//
// # Who ends a socket
//
// The client by leaving. Document-sync by closing: its code passes unchanged. The
// door, when the token expires (4401) or the membership ends (4403), within the same
// bound as for streams of events. This package when document-sync is away or silent
// (1013: it pings every 30 seconds) and on shutdown (1012), spread over the drain
// window. A dead client is found out by document-sync, which misses its pongs.
//
// # What is passed on
//
// Of the client's request nothing but the document's id: the request to document-sync
// is written anew, with the signed identity and the token's expiry, so that no header
// can be forged and no token of a URL or a header gets any further. Messages are passed
// as they are: the Auth messages of Hocuspocus, which hold a token, too. Document-sync
// has no use for it.
//
// If the gateway dies here, clients reconnect to another one; there is no state.
package docproxy
