// Package sse writes and reads server-sent events, the format of WHATWG's HTML
// standard, chapter 9.2. It knows nothing of HTTP: writers append to a byte
// slice, so that one frame can be encoded once and written to many viewers, and
// the Reader takes any io.Reader.
//
// Frames are written in the order event, data, id: with the id first, a
// connection that is cut between the lines makes one widespread client resume
// behind an event that it never delivered. A heartbeat is a comment line without
// a blank line after it, because a blank line makes some clients deliver an empty
// message.
//
// Nothing here starts a goroutine or takes a lock. A Reader belongs to one
// goroutine at a time.
package sse
