// Package chat has the dialect-independent form of a model request and its answer. The
// dialects (packages anthropic and openai) decode into Request and encode from Answer; scripts
// match a Request and build an Answer; neither imports the other. Values are immutable once
// built and need no locks.
package chat

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Dialect is a wire protocol.
type Dialect string

// The dialects.
const (
	Anthropic  Dialect = "anthropic"
	OpenAI     Dialect = "openai"
	OpenRouter Dialect = "openrouter"
)

// Role is the author of a Message.
type Role string

// The roles. Tool results have their own role in every dialect.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// PartKind is the kind of a Part.
type PartKind uint8

// The kinds of parts.
const (
	OtherPart  PartKind = iota // ignored here
	TextPart                   // Text
	FilePart                   // Media, Bytes or URL
	CallPart                   // ID, Name, Args
	ResultPart                 // ID, Name, Text, Error
)

// Part is a part of a message. Which fields are set depends on Kind.
type Part struct {
	Kind  PartKind
	Text  string
	ID    string
	Name  string
	Args  json.RawMessage
	Error bool
	Media string // media type of a file
	Bytes int    // decoded size of a file that came inline
	URL   string // address of a file that did not
}

// Message is one message of the conversation.
type Message struct {
	Role  Role
	Parts []Part
}

// ToolSpec is a tool that the request offers.
type ToolSpec struct {
	Name   string
	Server bool // the provider runs it
}

// Segment is a piece of the prompt, for counting and caching.
type Segment struct {
	Canonical []byte // the same bytes for the same content, cache marks left out
	Tokens    int
	Mark      string // "", or "5m" or "1h" to cache the prompt up to here
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

// Offers reports whether the request offers a tool.
func (r *Request) Offers(tool string) bool {
	for _, t := range r.Tools {
		if t.Name == tool {
			return true
		}
	}
	return false
}

// Result is a tool result in the conversation.
type Result struct {
	ID    string
	Tool  string
	Text  string
	Error bool
	Args  json.RawMessage // arguments of the call, if the conversation has it
}

// Value returns the result's text as decoded JSON, or the text itself if it is not JSON.
// Numbers are json.Number.
func (r Result) Value() any {
	return DecodeJSON([]byte(r.Text), r.Text)
}

// Failed reports whether the tool failed: by the dialect's flag, or by an "error" in the
// result.
func (r Result) Failed() bool {
	if r.Error {
		return true
	}
	m, ok := r.Value().(map[string]any)
	_, failed := m["error"]
	return ok && failed
}

// DecodeJSON decodes b with numbers as json.Number. It returns otherwise if b is not exactly
// one JSON value.
func DecodeJSON(b []byte, otherwise any) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return otherwise
	}
	return v
}

// Exchange is the part of a conversation to be answered: the last user message and everything
// after it.
type Exchange struct {
	User      string   // its text
	Files     []Part   // its files
	Turn      int      // 1 for the first answer to it, one more for each answer since
	Results   []Result // the tool results since then, in order
	Latest    []Result // the results after the last answer
	Earlier   []Result // the tool results before the user message
	Continued bool     // the last message is the assistant's, to be continued
}

// Exchange returns the part of the conversation to be answered.
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

// Tokens estimates the tokens of a text of n bytes, at four bytes a token.
func Tokens(n int) int { return (n + 3) / 4 }

// FileTokens is the estimate for an image or document of any size.
const FileTokens = 1500
