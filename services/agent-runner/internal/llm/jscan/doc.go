// Package jscan reads and writes JSON text in place. The model codecs use it
// because what a provider sent has to go back byte for byte: unknown members,
// numbers beyond 2^53 and the spelling of strings survive only where nobody parses
// and writes them again. It also makes the cost of a streamed token small: reading
// an event allocates nothing.
//
// The Reader is a forward cursor over one text. It checks the grammar of what it
// passes (RFC 8259, depth limited) and, once it met an error, every call fails. It
// does not check UTF-8: callers that need it clean the text first (ValidUTF8).
//
// A string is handled in its raw form, the bytes between the quotes. Raw forms of
// fragments can be joined by appending, which keeps a surrogate pair whole that a
// provider split over two events.
package jscan
