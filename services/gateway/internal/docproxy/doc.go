// Package docproxy lets clients reach document-sync: it takes their WebSockets,
// finds out who asks exactly as the REST API does, and passes messages on, over a few
// trunks (package trunk).
//
// # A socket's life
//
// Opening. The gateway answers the upgrade itself, at once: a browser sees why a
// socket was refused only by a close code, which there is none of before the
// upgrade. The token comes with the request or, from Hocuspocus' provider, with its
// first messages: these are read here, within bounds, and kept. Then the person is
// verified, the socket is counted (auth.Streams), and a stream is opened in the
// person's name. All this happens in the request's goroutine.
//
// Open. What was kept goes to document-sync, and the request's goroutine ends. The
// socket's own one reads its messages, and passes them up in parts; while the stream's
// window is full it does not read, so that the client's own TCP window is the queue.
// What comes down is whole WebSocket frames, encoded once for all whom they are for: the
// trunk's reader writes them to each. Neither holds a buffer while nothing comes.
//
// Ending. The first reason counts, whoever gives it; package editor sees to it that the
// client gets to read it, and the goroutine that reads cleans up.
//
// # Which trunk
//
// Sockets of one document share a trunk: then its updates cross once. At most four trunks to
// the one address of document-sync take new sockets, so that documents are spread over the
// instances behind it, and each does for a quarter of an hour, so that they are spread again
// when instances have come and gone. A document whose socket found no place (1013) goes to
// another trunk the next time. A trunk is opened by the first socket that needs it, in the
// gateway's own name; each stream on it proves in whose name it is (the signed identity
// in mux.OpenRequest), and document-sync verifies that one, too. A previous
// document-sync, which takes no trunks, is away as far as sockets go: 1013.
//
// # Who ends a socket
//
// The client by leaving. Document-sync by ending the stream: its code and reason pass
// unchanged. The door, when the token expires (4401) or the membership ends (4403),
// within the same bound as for streams of events. This package when the client is dead, or too
// slow (1013), when the trunk breaks or is silent (1013), and on shutdown (1012), spread
// over the drain window. Where a trunk breaks in the middle of a frame the connection is
// cut.
//
// # What is passed on
//
// Of the client's request nothing but the document's id: what document-sync hears is
// written anew, with the signed identity and the token's expiry, so that no header
// can be forged and no token of a URL or a header gets any further. Messages are passed
// as they are: the Auth messages of Hocuspocus, which hold a token, too. Document-sync
// has no use for it.
//
// If the gateway dies here, clients reconnect to another one; there is no state.
package docproxy
