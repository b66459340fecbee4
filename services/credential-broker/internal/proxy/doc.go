// Package proxy is the egress: other services reach providers through it, with a
// signed context in place of a credential, and an unmodified SDK does not notice.
//
// # One request
//
//	admit     authenticate, check method and path, read the body once (request.go)
//	attempt   send with an account, wait for headers (attempt.go)
//	retry     decide what follows: another attempt, or the end (retry.go)
//	gate      hold the answer back until it means something (gate.go)
//	deliver   status and headers, then the body to its end (deliver.go, relay.go)
//
// An attempt whose answer is the account's own fault (classify, package pool) is
// thrown away while nothing of it was shown, and the next account is tried, each
// once; the pool hears of it before it chooses. What is not goes back as it came:
// status, headers, body, byte for byte. So does the answer of an account that is alone; a
// 429 that does not say when to come again then gets a Retry-After. Where a server cannot be
// reached and nothing was sent, an account at another server is tried.
// Where none of several is ready, the answer is our own: 429 or 503, with Retry-After
// for the first that comes back. Where an account may not do what is asked for
// (pool.Denied), others may: up to five are asked, and when two or more have said so and
// nobody is left, what the last one said goes back.
//
// # Streams
//
// A stream is read in events, cut at the blank line (frames.go), and forwarded in
// whole events only, the same bytes, all that is in the buffer with one write and
// one flush. So when it fails, there is room for one more event that says so, in
// the provider's shape; then the connection is broken off. A stream that ends
// without its terminal event (events.go) is broken off too: a reader never takes
// half an answer for a whole one. One whose last whole event reports an error, and that the
// provider ends cleanly after it, ends so here: clients show that error, and take a broken
// connection for another one. A chat may end without it when every choice that was
// asked for has finished (choices.go), and no event behind that is torn. An event larger than the buffer may be is
// forwarded as it comes, and what says what it means is kept meanwhile (scan.PathFilter); if the
// stream fails inside it, only the break tells. Of an answer
// whose end is the connection's and nothing else (as in HTTP/1.0), and that is no stream of
// known events, nobody can tell whether it was cut: it goes on as it came.
//
// What is a stream is not left to the content type alone: where a stream was asked for
// whose events are known, whatever does not say that it is JSON is one. One that comes
// compressed is an error, since nobody here could see where it ends.
//
// # What is changed
//
// Bodies go through as they are unless the account's request profile says otherwise
// (edit.go, package transform); another account's profile starts again from the
// caller's body. Where names of tools were prefixed, an event that begins a block is
// looked at and shortened in the buffer; of an overlong event as far as it was held.
// An answer that is not streamed is held whole for it, up to 8 MiB; one that cannot be
// translated (larger, compressed, no JSON) becomes an error, never an answer with wrong
// names. Tokens are read from the events that can count them, and from whole answers
// to POST, however large: only the members that count are kept (scan.PathFilter).
//
// No answer brings the credential back that its request was sent with (echo.go): in
// the bodies of answers it is overwritten, in errors and in text, wherever a read cuts
// it in two, and a header that holds it is left out. What of a body is shown before it
// is whole lacks its last bytes as long as they may be the beginning of one. A body may
// come compressed although that is declined: an error is unpacked for it, or becomes an
// error of ours with its status; others are not looked into.
//
// Where the headers Location, Content-Location and Link name places below the account's
// base URL, or the profile's, the caller is led to them through the proxy (links.go), and
// so by a redirect. Of other places headers say what they said; a redirect there is an
// error, since a caller that follows it takes its token along. Of URLs in bodies only those
// are led here that a route's profile names (urls), in JSON of up to 1 MiB.
//
// Everything else that a client can see arrives, but for trailers, in which no provider
// says anything: they are not forwarded.
//
// # Goroutines and time
//
// A request is served by its handler's goroutine alone. Two timers look in from
// outside: the watch, which cancels the upstream request with a cause (headers,
// first event, idle), and the gate's, which opens the gate when it has been shut
// too long; while the gate is shut, its mutex guards the response writer and the
// buffer's finished part. The caller's context is the parent of the upstream
// request's: when the caller goes, the upstream request goes at once. There is no
// other buffer than one per stream, so that a slow reader slows the provider down;
// a reader that takes nothing for longer than the write timeout is cut off.
//
// A caller's request is read as long as it arrives: up to a minute without a byte, ten in
// all, which is 32 MiB at half a megabit per second. Slower ones, also on purpose, end with
// 408; what they hold meanwhile is of their workspace's share.
//
// If the process dies here, every open stream breaks without a clean end, and
// nothing is sent twice: the caller decides.
package proxy
