// Package mux carries many sockets over few connections between two services.
//
// A [Pool] is the end that has the clients' sockets: a gateway. A [Server] is the end that
// serves them. On a connection between the two each socket is a stream with a number. A
// message for many sockets crosses once, with the list of their streams. This package does
// not look into messages.
//
// # On the wire
//
// A connection begins as an HTTP/1.1 request that is upgraded to [Protocol] (Upgrade,
// Hijack). Frames follow in both directions: four bytes of length, a byte for the kind, and
// fields (type frame). Stream numbers only grow, so that a late frame never reaches a newer
// stream. A malformed, oversized or unexpected frame ends its connection, and nothing else.
//
//	up    open(stream, path, context, expires)  data(stream, more, bytes)  close(stream, code, reason)  ping
//	down  deliver(streams, more, bytes)  close(stream, code, reason)  credit(stream, n)  goaway  pong
//
// # A stream's life
//
//	opened ──▶ open ──the first close from either end──▶ closed
//	                ──the connection breaks──▶ closed, with CodeLost
//
// Open is not answered, and frames may follow it at once. An end forgets a stream when it
// closes it or learns that it was closed; late frames for it are dropped. A Server that
// drains sends goaway, and gets no new streams on that connection.
//
// # Which connection
//
// A Pool has a few slots, each with at most one connection that takes new streams. A
// connection takes new streams for a limited time only (Config.MaxAge), so that the streams
// spread over the Servers behind an address again after some were restarted or added. If a
// Server closes a stream because it is full (CodeBusy), the next streams of that key use the
// next slot, for as long.
//
// # Up: windows
//
// Messages go up in parts of at most MaxPart bytes. At most Window bytes of a stream are in
// flight: they wait in its inbox at the Server, where a goroutine, which exists only while
// there is work, hands them to the Session one by one and returns the credit. A slow Session
// therefore stops its own stream only: its sender blocks, and stops reading its client.
//
// # Down: live and bulk
//
// Senders down never block. Frames up to MaxPiece bytes are live: all that wait leave in one
// write, and the same slice sent to several streams in a row becomes one frame with a list.
// Longer messages are bulk: they wait in a queue and leave in pieces, with all live frames
// between two pieces, so that a large state delays other streams by one piece at most.
// Whatever is sent to a stream with bulk queued waits behind it, which keeps the stream's
// order.
//
// A connection with more than maxLive bytes of live frames is aborted: its other end reads
// too slowly. Beyond maxBulk bytes, a stream's bulk is refused (ErrFull). To stay below that,
// work that produces bulk pauses while more than pauseBulk bytes wait: new streams, messages
// in several parts, and requests before which the Session calls ServerStream.AwaitRoom.
// Everything else goes on. A Sink must not block: it bounds its own queue.
//
// # If it dies here
//
// A connection that breaks closes its streams, at both ends (Sink.Broken, Session.Closed),
// and their clients connect again. The Pool pings, and aborts a connection that is silent; a
// Server aborts one without pings. The next stream opens a new connection.
package mux
