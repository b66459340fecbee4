// Package trunk carries many sockets over few connections between two services.
//
// At one end (Pool) is who has the sockets' clients: a gateway. At the other one
// (Server) is who talks with them. A trunk is a connection between the two; on it
// each socket is a stream, which is a number. A message for many sockets crosses
// once, with the list of those whom it is for. What the messages say is none of
// this package's business.
//
// # On the wire
//
// A trunk begins as an HTTP/1.1 request with the upgrade Protocol (Upgrade, Take).
// After it come frames in both directions: four bytes of length, a byte that says
// what it is, and fields (type frame). Numbers of streams only go up, so that
// nothing that is late is taken for something else's. What is malformed, too long or
// not allowed ends that trunk, and nothing else.
//
//	up    open(stream, path, context, expires)  data(stream, more, bytes)  leave(stream, code, reason)  ping
//	down  deliver(streams, more, bytes)  end(stream, code, reason)  credit(stream, n)  away  pong
//
// # A stream's life
//
//	opened ──▶ open ──end or leave, whichever is first──▶ over
//	                ──the trunk breaks──▶ over, with CodeLost
//
// Nobody waits for an answer to open: what follows it is handled when it is. Each end
// forgets a stream when it ends it or hears of its end; what still comes for it is
// dropped. A Server that drains says away, and gets no new streams on that trunk.
//
// # Which trunk
//
// A Pool has a few slots, and at most one trunk that takes new streams in each: what an
// address leads to when the trunk is opened, one of several Servers perhaps, its streams get.
// So that no Server has them all for good after others were away, and a new one gets some,
// a trunk takes new streams for a while only (Config.MaxAge). Where a Server ends a stream
// because it has no place (CodeBusy), the next ones of that key go to the next slot's
// trunk, for as long.
//
// # Up: windows
//
// Messages go up in parts of at most MaxPart bytes. Window bytes of a stream may be under
// way: they wait in its inbox at the Server, where a goroutine, which is there only while
// there is something to do, hands them to its Session one by one. Credit comes
// back as they are done with. So a Session may wait for as long as it has to: its own
// stream stops, and no other one; who sends blocks, and stops reading its client.
//
// # Down: live and bulk
//
// Whoever sends down only queues. Frames up to MaxPiece bytes are live: all that have
// gathered go out in one write, and equal ones that follow each other (the same slice) become one, with
// a list. Longer ones are bulk: they queue behind each other, in pieces, and between
// two pieces goes all that is live: a large state delays other streams by a piece at most. What
// is sent to a stream that has bulk waiting queues behind it, so that each stream
// keeps its order.
//
// Live frames are bounded by maxLive: who takes them too slowly is starved, and the
// trunk is cut. Bulk is bounded by maxBulk: a stream that wants more is refused
// (ErrFull). So that what people ask for does not come to that, what makes bulk waits while
// there is more than slowBulk of it: streams that begin, messages that come up in several
// parts, and questions, before which the Session waits (Stream.AwaitRoom). All else goes
// on. A Sink may never wait: what is behind it has to bound its own queue.
//
// # If it dies here
//
// A trunk that breaks, at either end, ends its streams: Sink.Broken here, Session.Closed
// there, and their clients connect again. The Pool pings, and cuts a trunk that is
// silent; a Server cuts one that brings no ping. The next stream opens a new trunk.
package mux
