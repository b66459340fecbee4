// Package sse writes and reads server-sent events, the format of WHATWG's HTML standard,
// chapter 9.2. It is independent of HTTP: writers append to a byte slice, so that a frame is
// encoded once for many viewers, and the Reader takes any io.Reader.
//
// Frames have the order event, data, id: with the id first, a common client that loses its
// connection between the lines would resume after an event that it never delivered. A heartbeat
// is a comment line without a blank line, because a blank line makes some clients deliver an
// empty message.
//
// A Reader is not safe for concurrent use.
package sse
