package llm

import (
	"encoding/json"
	"net/http"
)

// Role is the role of a stored message.
type Role string

// The roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
)

// Request is one model call in neutral form.
type Request struct {
	Model    string
	System   []SystemBlock
	Messages []Message // the conversation as stored, oldest first
	Tools    []ToolDef
	Choice   ToolChoice

	MaxOutputTokens int // 0: the client's default
	// Format is the JSON Schema of the answer, which the provider enforces as far as it can.
	// Empty: free text.
	Format      json.RawMessage
	Reasoning   Reasoning
	Temperature *float64 // nil: the provider's default

	// Continue is true if the last message is an answer that the provider paused
	// (Response.Paused) and must continue.
	Continue bool

	// NoCache leaves out the prompt-cache breakpoints.
	NoCache bool

	// Options are members of the body's top level, as a JSON object by dialect. They override
	// the members set here, except model, messages, stream, system and tools.
	Options map[string]json.RawMessage

	// Header is added to the HTTP request, after the client's own.
	Header http.Header

	Meta Meta
}

// Meta identifies the member and the session of a request.
type Meta struct {
	User    string // opaque id of the member; sent to providers that ask for one
	Session string // opaque; keeps a session's requests on one account and cache
	// IDSeed makes generated tool call ids unique in the conversation and reproducible, such
	// as by run and step.
	IDSeed string
}

// SessionHeader carries Meta.Session to the broker, which prefers the account that
// served the session last.
const SessionHeader = "X-Signalbox-Session"

// SystemBlock is one part of the system prompt.
type SystemBlock struct {
	Text string
	// Cache puts a prompt-cache breakpoint after this block. If no block has Cache set, the
	// breakpoint is after the last one.
	Cache bool
}

// Message is one stored message.
type Message struct {
	Role    Role
	Content json.RawMessage // ModelMessage content, see package modelmsg
	Raw     Raw             // assistant messages only; may be zero
}

// Raw is an assistant message as its provider sent it.
type Raw struct {
	Dialect string          `json:"dialect"` // whose blocks these are; empty for none
	Blocks  json.RawMessage `json:"blocks"`  // a JSON array
}

// ToolDef is a tool that the model may call.
type ToolDef struct {
	Name        string
	Description string
	Schema      json.RawMessage // JSON Schema of the arguments, an object

	// Provider is the dialect of a tool that the provider itself runs. Definition is then sent
	// unchanged and the other fields are not used. A request of another dialect leaves the
	// tool out.
	Provider   string
	Definition json.RawMessage
}

// ToolChoice says whether the model must call a tool. With the zero value it may choose.
type ToolChoice struct {
	Mode ChoiceMode
	Name string // with ChoiceTool
}

// ChoiceMode is the kind of a ToolChoice.
type ChoiceMode uint8

// The modes.
const (
	ChoiceAuto ChoiceMode = iota
	ChoiceNone
	ChoiceRequired // some tool
	ChoiceTool     // the named one
)

// Reasoning requests reasoning before the answer. The zero value requests none.
type Reasoning struct {
	Budget int    // tokens; for dialects that take an effort, one is derived
	Effort string // low, medium or high; for dialects that take tokens, a budget is derived
}

// Enabled reports whether reasoning is requested.
func (r Reasoning) Enabled() bool {
	return r.Budget > 0 || (r.Effort != "" && r.Effort != "none")
}

// Tokens returns the budget, derived from the effort if it is not set.
func (r Reasoning) Tokens() int {
	switch {
	case r.Budget > 0:
		return r.Budget
	case !r.Enabled():
		return 0
	case r.Effort == "minimal":
		return 1_024
	case r.Effort == "low":
		return 4_096
	case r.Effort == "medium":
		return 10_240
	}
	return 24_576
}

// Level returns the effort, derived from the budget if it is not set.
func (r Reasoning) Level() string {
	switch {
	case r.Effort != "":
		return r.Effort
	case r.Budget <= 0:
		return ""
	case r.Budget <= 4_096:
		return "low"
	case r.Budget <= 12_288:
		return "medium"
	}
	return "high"
}
