// Package llm is how the runner speaks with model providers. Its types are neutral;
// the sub-packages anthropic and openai put a Request on the wire of their dialect
// and decode the answer, and catalogue knows models and context sizes.
//
// # Two forms of an answer
//
// An answer is kept twice. Content is what people, clients and other dialects read:
// AI SDK ModelMessage parts (package modelmsg). Raw is what the provider itself needs
// to read again, its own blocks exactly as they came: signatures, encrypted search
// results, block types that nobody here knows. The next request to the same dialect
// sends Raw again, byte for byte; a request to another dialect is converted from
// Content. Bytes are copied and spliced, never parsed and written again, so numbers
// beyond 2^53 and the spelling of strings survive. Two things are changed on the way
// in: bytes that are not UTF-8 become U+FFFD, and deltas are folded into their block.
// Raw may hold NUL and lone surrogates as escapes, which jsonb refuses: it belongs in
// a json or bytea column.
//
// # Streams
//
// A Stream belongs to one goroutine; nothing here starts another. It owns the HTTP
// response until Close, which every caller must call. Cancelling the context closes
// the connection at once; what had arrived by then is in Partial. If the process dies,
// the connection dies with it and nothing is left behind: the step is run again.
//
// A stream is complete only when the provider said so (message_stop, or a finish
// reason followed by [DONE] or a clean end). Everything else is an *Error, never a
// shorter answer.
//
// # Requests are always valid
//
// Histories hold calls whose run died before the result, empty texts, and answers of
// other providers. Building a request repairs them (see Turns), because a request
// that the provider refuses would block its session for ever. Only what a person can
// mend is an error: a file in the newest message that the model cannot read, and a
// request that is too large.
package llm
