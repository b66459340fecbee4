// Package chat is the neutral form of one model request and of the answer that is
// played to it. The dialects (anthropic, openai) decode into Request and encode
// from Answer; scripts match a Request and make an Answer; neither knows the
// other. Values are built once and only read afterwards, so they need no lock.
package chat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Dialect is a wire protocol and its flavour.
type Dialect string

// The dialects that are spoken.
const (
	Anthropic  Dialect = "anthropic"
	OpenAI     Dialect = "openai"
	OpenRouter Dialect = "openrouter"
)

// Role says who speaks in a Message.
type Role string

// The roles. Tool results are in messages of their own role, whatever the dialect calls it.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// PartKind says what a Part is.
type PartKind uint8

// The kinds of parts.
const (
	OtherPart  PartKind = iota // something this program has no use for
	TextPart                   // Text
	FilePart                   // Media, Bytes or URL
	CallPart                   // ID, Name, Args
	ResultPart                 // ID, Name, Text, Error
)

// Part is a piece of a message; which fields are set depends on Kind.
type Part struct {
	Kind  PartKind
	Text  string
	ID    string
	Name  string
	Args  json.RawMessage
	Error bool
	Media string // media type of a file
	Bytes int    // decoded size of a file that came inline
	URL   string // where a file is that did not
}

// Message is one message of the conversation.
type Message struct {
	Role  Role
	Parts []Part
}

// ToolSpec is a tool that the request offers.
type ToolSpec struct {
	Name   string
	Server bool // run by the provider
}

// Segment is a stretch of the prompt, in prompt order, for counting and caching.
type Segment struct {
	Canonical []byte // the same bytes for the same content, cache marks left out
	Tokens    int
	Mark      string // "", "5m" or "1h": the prompt up to here is to be cached
}

// Request is one decoded and validated model request.
type Request struct {
	Dialect      Dialect
	Model        string
	Key          string // the credential as it came
	System       string
	Messages     []Message
	Tools        []ToolSpec
	MaxTokens    int // 0: no limit
	Stops        []string
	Stream       bool
	IncludeUsage bool // OpenAI: the last chunk carries usage
	Thinking     bool // the client asked for reasoning
	SingleCall   bool // the client forbids parallel tool calls
	Prompt       []Segment
}

// Offers reports whether the request offers a tool of that name.
func (r *Request) Offers(tool string) bool {
	for _, t := range r.Tools {
		if t.Name == tool {
			return true
		}
	}
	return false
}

// Result is a tool result of the conversation.
type Result struct {
	ID    string
	Tool  string
	Text  string
	Error bool
	Args  json.RawMessage // what the tool was called with, if the call is there
}

// Value returns the result's text as decoded JSON, or the text itself where it
// is not JSON. Numbers are json.Number.
func (r Result) Value() any {
	return DecodeJSON([]byte(r.Text), r.Text)
}

// Failed reports whether the tool said that it failed: by the flag, or, where
// the dialect has none, by an envelope with an "error".
func (r Result) Failed() bool {
	if r.Error {
		return true
	}
	m, ok := r.Value().(map[string]any)
	_, failed := m["error"]
	return ok && failed
}

// DecodeJSON decodes b with numbers as json.Number; what is not one JSON value gives otherwise.
func DecodeJSON(b []byte, otherwise any) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return otherwise
	}
	return v
}

// Exchange is the part of a conversation that is being answered: the last
// message a person wrote, and what happened since.
type Exchange struct {
	User      string   // its text
	Files     []Part   // its files
	Turn      int      // 1 for the first answer to it, one more for each answer since
	Results   []Result // the tool results since then, in order
	Latest    []Result // those after the last answer: what this answer reacts to
	Earlier   []Result // the tool results before it
	Continued bool     // the last message is the assistant's own: go on with it
}

// Exchange returns what the request wants answered.
func (r *Request) Exchange() Exchange {
	e := Exchange{Turn: 1}
	start := 0
	for i, m := range slices.Backward(r.Messages) {
		if m.Role == User {
			start = i
			break
		}
	}
	calls := map[string]Part{}
	for i, m := range r.Messages {
		switch {
		case m.Role == Assistant:
			if i > start {
				e.Turn++
				e.Latest = nil
			}
			for _, p := range m.Parts {
				if p.Kind == CallPart {
					calls[p.ID] = p
				}
			}
		case i == start && m.Role == User:
			e.User, e.Files = userParts(m)
		}
		for _, p := range m.Parts {
			if p.Kind != ResultPart {
				continue
			}
			res := Result{ID: p.ID, Tool: p.Name, Text: p.Text, Error: p.Error, Args: calls[p.ID].Args}
			if c, ok := calls[p.ID]; ok {
				res.Tool = c.Name
			}
			if i < start {
				e.Earlier = append(e.Earlier, res)
				continue
			}
			e.Results = append(e.Results, res)
			e.Latest = append(e.Latest, res)
		}
	}
	e.Continued = len(r.Messages) > 0 && r.Messages[len(r.Messages)-1].Role == Assistant
	return e
}

func userParts(m Message) (string, []Part) {
	var texts []string
	var files []Part
	for _, p := range m.Parts {
		switch p.Kind {
		case TextPart:
			texts = append(texts, p.Text)
		case FilePart:
			files = append(files, p)
		default:
		}
	}
	return strings.Join(texts, "\n"), files
}

// Tokens is the estimate of this program for a text of n bytes: four bytes a token.
func Tokens(n int) int { return (n + 3) / 4 }

// FileTokens is what an image or document counts, whatever its size.
const FileTokens = 1500
