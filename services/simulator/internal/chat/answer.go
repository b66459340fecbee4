package chat

import (
	"encoding/json"
	"time"
)

// Stop says why an answer ended, in Anthropic's words.
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

// BlockKind says what a Block is.
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

// Source is something a search found.
type Source struct {
	URL     string
	Title   string
	Text    string
	PageAge string
}

// Raw is a block given as JSON, for kinds that do not exist yet.
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

// Event is one event written as it is.
type Event struct {
	Name string // "" for a frame without an event line
	Data string // one line
}

// Step is one thing that happens in an answer; exactly one field is set.
type Step struct {
	Block    *Block
	Together []*Block // streamed with their deltas taking turns
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

// Shape is how the bytes go out; it changes nothing in what they say.
type Shape struct {
	CRLF     bool              // lines end with CR LF
	Write    int               // bytes per write, each flushed; 0: whole events
	Every    time.Duration     // pause after each write
	Padding  bool              // fillers as real providers add against guessing by length
	Comments int               // a comment line after every n events
	Pings    int               // a ping after every n events (Anthropic)
	Headers  map[string]string // more response headers
}

// Answer is what is played to one request.
type Answer struct {
	Script       string
	Rule         string
	Steps        []Step
	Stop         Stop // empty: what the blocks imply
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

// Count fills Usage.Output, Thinking and Searches from the blocks, then lays the
// script's own figures over all of Usage.
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
