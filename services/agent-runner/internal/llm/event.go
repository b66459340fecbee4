package llm

import (
	"encoding/json"

	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// EventType is the type of an Event.
type EventType uint8

// The events of a stream, with the fields that are set in brackets.
const (
	TextDelta        EventType = iota + 1 // more text [Index, Text]
	ReasoningDelta                        // more reasoning [Index, Text]
	ToolCallStart                         // a call begins [Index, ID, Name]
	ToolCallDelta                         // more of its arguments' text [Index, ID, Name, Text]
	ToolCallComplete                      // a call is complete [Index, ID, Name, Args, Invalid, Text]
	ServerToolCall                        // the provider runs a tool of its own [Index, ID, Name, Args]
	ServerToolResult                      // the result of such a tool [Index, ID, Name, Args, IsError]
	Source                                // a page the answer relies on, once per URL [URL, Title]
	Citation                              // text before it relies on a Source [Index, URL, Text, End]
	UsageUpdate                           // tokens so far [Usage]
)

var eventNames = [...]string{
	TextDelta: "text-delta", ReasoningDelta: "reasoning-delta", ToolCallStart: "tool-call-start",
	ToolCallDelta: "tool-call-delta", ToolCallComplete: "tool-call-complete", ServerToolCall: "server-tool-call",
	ServerToolResult: "server-tool-result", Source: "source", Citation: "citation", UsageUpdate: "usage",
}

// String returns the type in kebab case.
func (t EventType) String() string {
	if int(t) < len(eventNames) && eventNames[t] != "" {
		return eventNames[t]
	}
	return "unknown"
}

// Event is an event of a stream. It and the bytes it points to are valid until the next call
// of Next; strings may be kept.
type Event struct {
	Type  EventType
	Index int // the block or call it belongs to

	// Text is valid UTF-8 without NUL. In an Invalid ToolCallComplete it is what the model
	// wrote instead of JSON, and in a Citation what the source says.
	Text []byte

	ID   string
	Name string
	// Args is valid JSON on one line: a call's arguments, which are always an object ({} if the
	// model sent none), or a server tool's result.
	Args    json.RawMessage
	Invalid bool // the arguments are not a JSON object
	IsError bool

	URL   string
	Title string
	// End is how many characters of the answer's text come before the end of the text that relies
	// on a source. 0 means all that have come so far.
	End int

	Usage *Usage
}

// FinishReason is why the model stopped, in the AI SDK's terms.
type FinishReason string

// The finish reasons.
const (
	FinishStop          FinishReason = "stop"
	FinishLength        FinishReason = "length"
	FinishToolCalls     FinishReason = "tool-calls"
	FinishContentFilter FinishReason = "content-filter"
	FinishError         FinishReason = "error"
	FinishOther         FinishReason = "other"
)

// Usage counts the tokens of one model call.
type Usage struct {
	InputTokens  int64 `json:"inputTokens"`  // all of the prompt, cached or not
	CacheRead    int64 `json:"cacheRead"`    // of these, read from the prompt cache
	CacheWrite   int64 `json:"cacheWrite"`   // of these, written to it
	OutputTokens int64 `json:"outputTokens"` // all that was generated
	Reasoning    int64 `json:"reasoning"`    // of these, reasoning, if the provider reports it
}

// ToolCall is a call that the model requests.
type ToolCall struct {
	ID   string
	Name string
	// Args is a JSON object on one line. For an Invalid call it is an object that quotes
	// RawArgs and can be sent back.
	Args    json.RawMessage
	Invalid bool
	RawArgs string // what the model wrote, set for an Invalid call
}

// Response is a complete answer or, from Partial, the part that has arrived.
type Response struct {
	ID    string // the provider's
	Model string // as the provider reports it

	Raw       Raw
	Content   json.RawMessage // ModelMessage content, an array
	ToolCalls []ToolCall      // calls to run, in order; its length counts, not Finish

	Finish    FinishReason
	RawFinish string // the provider's own word
	// Paused is true if the provider stopped in the middle of its own tools (pause_turn).
	// Store the message and send the conversation again with Request.Continue.
	Paused bool

	Usage Usage
	// Estimated is true if Usage is not the provider's final count, which comes at the end of
	// an answer, if at all. Stream.Estimate completes it.
	Estimated bool
	RawUsage  json.RawMessage // the provider's last usage object; nil if there was none
}

// Text returns the answer's text.
func (r *Response) Text() string { return modelmsg.PlainText(r.Content) }
