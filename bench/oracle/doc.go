// Package oracle compares the runner's model codec (services/agent-runner/internal/llm)
// with the official Go SDKs of Anthropic and OpenAI: the same bytes go into both, and
// what they add up to has to be the same. It has tests and benchmarks only, in a module
// of its own outside of the workspace, so that the SDKs never choose the product's
// versions and never get into its binaries. The module's path lies below the runner's
// because Go lets nobody else import the codec.
//
// Compared are the message as it goes back to the provider (every member, numbers as
// they are spelled), the parts that people read, what was streamed, id, model, finish
// reason and tokens. The streams are the codec's own recordings, those of the simulated
// provider, and generated ones (package llmtest): blocks of every type, some unknown,
// open at the same time; calls in fragments mixed by index; deltas and members that
// nobody knows; escapes, white space, the order of members, CRLF, comments and pings,
// in pieces from one byte up.
//
// So is how a request asks for an answer in JSON of a schema (format_test.go).
//
//	go test .                                 # 50,000 generated events of each dialect
//	go test . -args -events 1000000           # a million
//	go test -run Generated . -args -seed 17   # one stream again
//
// Command call makes single calls with the SDKs, for the end-to-end tests of the egress
// (services/e2e/egress).
//
// What an SDK decodes but does not add up (deltas of a type it does not know, reasoning
// and other members that OpenAI's own API does not have) is added up here from the
// events that it decoded, in the plainest way.
//
// # Where they differ
//
// Each row is a test in differences_test.go. "Bug" is the SDK's; "choice" is ours.
//
//	Both
//	 a stream that ends before a stop reason     bug: the SDKs give what came as whole; ours is an error
//	 a surrogate pair over two deltas           bug: two U+FFFD instead of the character
//	 NUL in a text                              choice: U+FFFD, because Postgres cannot hold it (raw blocks keep it)
//	 bytes that are not UTF-8                   choice: one U+FFFD for each run of them
//	 arguments that are no JSON object          Anthropic's empties them, OpenAI's passes them on; ours marks the call invalid and quotes them
//	 a call without an id, an id twice          choice: an id is made, or results could not be told apart
//	 lines that end with CR, a byte order mark  bug: the standard has them; the SDKs lose events
//	Anthropic
//	 an input that is not exactly {} at first   bug: deltas are put behind it, and the arguments become {}
//	 text in a delta of an unknown type         choice: it is text
//	 compaction in several deltas               beta: the last delta counts; ours joins them
//	 another model takes over in the middle     beta: it becomes the message's; never asked for by us, and ours keeps the first
//	 block indexes with a gap                   choice: taken
//	 a delta for a closed block, a second start choice: an error; the SDK goes on with what it has
//	 a stop reason that becomes null            choice: the one that came stays
//	 usage without output_tokens                bug: 0 instead of what was counted before
//	 events without an event line               choice: the data says its type
//	OpenAI
//	 calls that are all numbered 0, or not      servers do so; the SDK makes one broken call of them
//	 id and name again in each fragment         servers do so; the SDK repeats the name
//	 calls that begin out of order, with a gap  choice: in the order they began, and no empty calls in between
//	 content as a list of parts                 Mistral does so; the SDK takes the JSON as text
//	 two kinds of reasoning that differ         choice: the first that speaks is shown, both go back
//	 usage with every chunk                     the SDK adds them up; ours takes the last
//	 a chunk with another id, or none           choice: taken; the SDK refuses it
//	 "event: error" without an error member     choice: an error; the SDK takes it as a chunk
//	 "error": null                              bug: taken as an error
//	 a finish reason that becomes null          bug: it is lost
package oracle
