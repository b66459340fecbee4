// Package proxy is the egress: other services reach providers through it, with a signed
// context in place of a credential, and an unmodified SDK does not notice.
//
// # One request
//
//	admit     authenticate, check method and path, read the body once (request.go, body.go)
//	attempt   send with an account, wait for headers (attempt.go)
//	retry     decide what follows: another attempt, or the end (retry.go)
//	gate      hold the answer back until it is meaningful (gate.go)
//	deliver   status and headers, then the body to its end (deliver.go, relay.go)
//
// An answer that is the account's own fault (pool.Classify) is discarded while nothing of it
// was shown, the pool is told, and the next account is tried, each once. Any other answer goes
// back as it came, byte for byte, and so does the answer of a pool's only account. If the
// accounts of a pool are all waiting, the answer is our own: 429 or 503 with Retry-After.
//
// # Streams
//
// A stream is framed into events (frames.go) and forwarded in whole events, the same bytes,
// everything in the buffer with one write and one flush. So if it fails, there is room for an
// event that says so in the provider's shape; then the connection is broken off. A stream that
// ends without its terminal event (events.go) is broken off as well: a reader never takes half
// an answer for a whole one. If its last whole event reports an error and the provider ends it
// cleanly, it ends cleanly here: clients show that error, and would take a broken connection
// for another. A chat may end without [DONE] if its only choice has finished. JSON in place of
// a stream is delivered as it is, unless its content type says that it is a stream.
//
// An event that is larger than the buffer may grow is forwarded as it comes, while a
// scan.PathFilter keeps the members that say what it means. If the stream fails inside it, the
// broken connection is the only sign.
//
// # What is changed
//
// Request bodies are edited as the account's profile asks (edit.go, package transform); the
// next account's profile starts again from the caller's body. If tool names were prefixed, the
// prefix is removed in answers: in streams inside the buffer; other answers are held whole up
// to 8 MiB, and one that cannot be translated becomes an error.
//
// The credential of a request is overwritten wherever its answer repeats it (echo.go). URLs
// below the account's base URL in Location, Content-Location and Link, and in members that a
// profile names, lead through the proxy (links.go); a redirect elsewhere is an error, since a
// client that follows it takes its token along. Trailers are not forwarded.
//
// # Goroutines and time
//
// The handler's goroutine serves a request. Two timers act from outside: the watch cancels the
// upstream request with a cause (watch.go), and the gate's timer opens the gate; while the gate
// is shut, its mutex guards the response writer and the buffer. The upstream request ends when
// the caller leaves. There is one buffer per stream, so that a slow reader slows the provider
// down; a reader that takes nothing for longer than the write timeout is cut off.
//
// If the process dies here, every open stream breaks without a clean end, and nothing is sent
// twice: the caller decides.
package proxy
