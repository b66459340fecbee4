package chat

import (
	"encoding/json"
	"time"
)

// Stop is the reason why an answer ended, in Anthropic's terms.
type Stop string

// The reasons to stop.
const (
	EndTurn      Stop = "end_turn"
	MaxTokens    Stop = "max_tokens"
	StopSequence Stop = "stop_sequence"
	ToolUse      Stop = "tool_use"
	PauseTurn    Stop = "pause_turn"
	Refusal      Stop = "refusal"
)

// BlockKind is the kind of a Block.
type BlockKind uint8

// The kinds of blocks.
const (
	Text         BlockKind = iota + 1 // Pieces, Cites
	Thinking                          // Pieces, Signature
	Redacted                          // Data
	Call                              // ID, Name, Pieces of the arguments
	Search                            // server tool call: ID, Name, Pieces
	SearchResult                      // its result: ID, Sources or SearchError
	RawBlock                          // Raw
)

// Source is a search result.
type Source struct {
	URL     string
	Title   string
	Text    string
	PageAge string
}

// Raw is a block given as JSON, such as one of an unknown kind.
type Raw struct {
	Start  json.RawMessage   // the block as content_block_start has it
	Deltas []json.RawMessage // the delta objects
	Final  json.RawMessage   // the block of an answer that is not streamed
}

// Block is one content block. Which fields are set depends on Kind.
type Block struct {
	Kind        BlockKind
	Pieces      []string      // what is streamed, delta by delta
	Delay       time.Duration // before each piece
	Signature   string
	Data        string
	ID          string // as scripted; empty: the dialect makes one
	Name        string
	Sources     []Source
	SearchError string
	Cites       []Source
	Raw         *Raw
	Number      int // of the call or search within the answer; a search and its result share it
}

// Event is an event to be written verbatim.
type Event struct {
	Name string // "" for a frame without an event line
	Data string // one line
}

// Step is a step of an answer. Exactly one field is set.
type Step struct {
	Block    *Block
	Together []*Block // streamed with interleaved deltas
	Wait     time.Duration
	Fault    *Fault
	Event    *Event
}

// Usage counts tokens.
type Usage struct {
	Input        int // neither read from nor written to the cache
	CacheRead    int
	CacheWrite5m int
	CacheWrite1h int
	Output       int // including Thinking
	Thinking     int
	Searches     int
}

// Shape determines how the bytes are sent, but not their meaning.
type Shape struct {
	CRLF     bool              // lines end with CR LF
	Write    int               // bytes per write, each flushed; 0: whole events
	Every    time.Duration     // pause after each write
	Padding  bool              // padding as real providers add it to hide lengths
	Comments int               // a comment line after every n events
	Pings    int               // a ping after every n events (Anthropic)
	Headers  map[string]string // more response headers
}

// Answer is the answer to one request.
type Answer struct {
	Script       string
	Rule         string
	Steps        []Step
	Stop         Stop // empty: derived from the blocks
	StopSequence string
	Override     map[string]int // usage fields that the script sets
	Usage        Usage
	Shape        Shape
	Reasoning    string // OpenAI: the delta field of thinking; "" for none
}

// Blocks returns the blocks that are played, in the order of their indexes. It
// stops at a fault that ends the answer.
func (a *Answer) Blocks() []*Block {
	var out []*Block
	for _, s := range a.Steps {
		switch {
		case s.Block != nil:
			out = append(out, s.Block)
		case s.Together != nil:
			out = append(out, s.Together...)
		case s.Fault != nil && s.Fault.Ends():
			return out
		}
	}
	return out
}

// Count sets Usage.Output, Thinking and Searches from the blocks, then overrides Usage with
// the script's own figures.
func (a *Answer) Count() {
	out, thinking := 0, 0
	for _, b := range a.Blocks() {
		n := len(b.Data)
		for _, p := range b.Pieces {
			n += len(p)
		}
		out += n
		switch b.Kind {
		case Thinking, Redacted:
			thinking += n
		case Search:
			a.Usage.Searches++
		default:
		}
	}
	a.Usage.Output, a.Usage.Thinking = max(1, Tokens(out)), Tokens(thinking)
	for field, n := range a.Override {
		switch field {
		case "input":
			a.Usage.Input = n
		case "cache_read":
			a.Usage.CacheRead = n
		case "cache_write":
			a.Usage.CacheWrite5m, a.Usage.CacheWrite1h = n, 0
		case "output":
			a.Usage.Output = n
		case "thinking":
			a.Usage.Thinking = n
		case "searches":
			a.Usage.Searches = n
		}
	}
}
