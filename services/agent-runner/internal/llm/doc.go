// Package llm calls model providers. Its types are independent of the provider. The packages
// anthropic and openai encode requests and decode answers in their dialects, and catalogue
// has the limits of models.
//
// # Two forms of an answer
//
// An answer is kept in two forms. Content is for people, clients and other dialects: AI SDK
// ModelMessage parts (package modelmsg). Raw is for the provider: its own blocks exactly as
// they came, with signatures, encrypted search results and unknown block types. The next
// request to the same dialect sends Raw again, byte for byte; a request to another dialect is
// converted from Content. Bytes are copied and spliced, never decoded and encoded again, so
// that numbers beyond 2^53 and the spelling of strings survive. Two things are changed when
// an answer is decoded: bytes that are not UTF-8 become U+FFFD, and deltas are folded into
// their block. Raw may contain NUL and lone surrogates as escapes, which jsonb refuses, so it
// needs a json or bytea column.
//
// # Streams
//
// A Stream belongs to one goroutine and starts no other. It owns the HTTP response until
// Close, which every caller must call. Cancelling the context closes the connection at once;
// Partial returns what has arrived by then. If the process dies, the connection closes and
// the step is run again.
//
// A stream is complete only when the provider said so (message_stop, or a finish
// reason followed by [DONE] or a clean end). Everything else is an *Error, never a
// shorter answer.
//
// # Requests are always valid
//
// Histories contain calls without results, empty texts, and answers of other providers.
// Building a request repairs them (see Turns), because a request that the provider refuses
// would block its session for ever. There are two errors, which a person can fix: a file in
// the newest message that the model cannot read, and a request that is too large.
package llm
