// Package docproxy connects clients to document-sync. It accepts their WebSockets,
// authenticates and authorizes them like the REST API, and relays messages over a few
// multiplexed connections (package mux).
//
// # States of a socket
//
//	state     who works on it                  next state, and when
//	opening   the request's goroutine          open when the caller is authorized and a stream was opened
//	open      a goroutine that reads; the mux  ending at the first reason, whoever gives it
//	ending    the goroutine that reads         closed after the closing handshake, or after a second
//
// Opening: the gateway answers the upgrade at once, because a browser learns why a socket
// was refused only from a close code. The token comes with the request or, from Hocuspocus'
// provider, with its first messages, which are read within bounds and kept. Then the caller
// is authenticated, the socket is counted (auth.Streams), and a stream is opened in the
// caller's name.
//
// Open: the kept messages go to document-sync and the request's goroutine ends. The
// socket's own goroutine reads messages and sends them in parts. While the stream's window
// is full it does not read, so that the client's TCP window is the queue. In the other
// direction come whole WebSocket frames, encoded once for all their receivers, which the
// reader of the mux writes to each. Neither direction holds a buffer while it is idle.
//
// # Connections to document-sync
//
// Sockets of one document share a connection, so that each update crosses it once. At most
// four connections accept new sockets, so that documents are spread over the instances
// behind the one address of document-sync, and each for a quarter of an hour, so that they
// spread again when instances come and go. A document whose socket was refused with 1013
// uses another connection the next time. A connection is opened by the first socket that
// needs it, in the gateway's own name; each stream on it carries its caller's signed
// identity, which document-sync verifies. If document-sync is unavailable, or does not speak
// the protocol, sockets end with 1013.
//
// # Who ends a socket
//
//   - The client, by closing it.
//   - Document-sync, by ending the stream; its code and reason are passed on unchanged.
//   - Package auth, when the token expires (4401) or the membership ends (4403).
//   - This package, when the client is dead or too slow (1013), when the connection to
//     document-sync breaks or is silent (1013), and on shutdown (1012), spread over the drain
//     window. A connection that breaks in the middle of a frame is cut.
//
// # What is passed on
//
// Of the client's request only the document's id is passed on. The rest is generated,
// with the signed identity and the token's expiry, so that headers cannot be forged and no
// token from a URL or a header goes further. Messages are passed on unchanged, including
// Hocuspocus' Auth messages with a token, which document-sync ignores.
//
// If the gateway dies, clients reconnect to another one. There is no other state.
package docproxy
