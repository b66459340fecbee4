// Package jscan reads and writes JSON text in place. The model codecs use it because a
// provider's data must go back byte for byte: unknown members, numbers beyond 2^53 and the
// spelling of strings survive only if they are not decoded and encoded again. It also makes
// streamed tokens cheap: reading an event does not allocate.
//
// The Reader is a forward cursor over one text. It checks the grammar of what it reads (RFC
// 8259, limited depth). After an error every call fails. It does not check UTF-8; callers that
// need valid UTF-8 clean the text first (ValidUTF8).
//
// A string is handled in its raw form, the bytes between the quotes. Raw forms of fragments
// can be concatenated, which preserves a surrogate pair that a provider split over two events.
package jscan
