package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// Stored is a stored message: a role and AI SDK ModelMessage content.
type Stored struct {
	ID        string
	Role      string // user, assistant, tool or system
	RunID     string
	Model     string
	Simulated bool // the simulator wrote it
	Content   json.RawMessage
	CreatedAt time.Time
	CreatedBy string // of a user message
	Siblings  []string
}

// UIMessage is a message in the form of the initial messages of the AI SDK's useChat (versions
// 5 to 7).
type UIMessage struct {
	ID       string      `json:"id"`
	Role     string      `json:"role" enum:"system,user,assistant"`
	Metadata *UIMetadata `json:"metadata,omitempty"`
	Parts    []UIPart    `json:"parts"`
}

// UIMetadata is the metadata of a UIMessage.
type UIMetadata struct {
	CreatedAt time.Time `json:"createdAt"`
	RunID     string    `json:"runId,omitempty"`
	Model     string    `json:"model,omitempty"`
	Simulated bool      `json:"simulated,omitempty" doc:"The simulator wrote the message, not a model."`
	CreatedBy string    `json:"createdBy,omitempty" format:"uuid" doc:"The member who sent a message of the role user."`

	MessageID string   `json:"messageId,omitempty" format:"uuid" doc:"Of an answer: its first message, among siblings."`
	Siblings  []string `json:"siblings,omitempty" doc:"Ids of messages: the versions of an edited message, or the first messages of all answers to one message, oldest first. Absent if there is only one. PUT /api/sessions/{id}/leaf switches to one of them."`

	FinishReason string `json:"finishReason,omitempty" doc:"Why the run ended, if it did so in another way than with a complete answer."`
	FinishDetail string `json:"finishDetail,omitempty" doc:"For people: details of the reason."`
	Error        string `json:"error,omitempty" doc:"What made the run fail."`
}

// UIPart is one part of a UIMessage. Which fields are set depends on Type: text,
// reasoning, file, source-url, step-start, steering-message, data-<name>, or tool-<name>.
type UIPart struct {
	Type             string          `json:"type"`
	ID               string          `json:"id,omitempty"`
	Data             json.RawMessage `json:"data,omitempty"`
	Parts            []UIPart        `json:"parts,omitempty"`
	Text             *string         `json:"text,omitempty"`
	State            string          `json:"state,omitempty"`
	MediaType        string          `json:"mediaType,omitempty"`
	Filename         string          `json:"filename,omitempty"`
	URL              string          `json:"url,omitempty"`
	SourceID         string          `json:"sourceId,omitempty"`
	Title            string          `json:"title,omitempty"`
	ToolCallID       string          `json:"toolCallId,omitempty"`
	Input            json.RawMessage `json:"input,omitempty"`
	Output           json.RawMessage `json:"output,omitempty"`
	ErrorText        string          `json:"errorText,omitempty"`
	ProviderExecuted bool            `json:"providerExecuted,omitempty"`
	ProviderMetadata json.RawMessage `json:"providerMetadata,omitempty"`
	CallMetadata     json.RawMessage `json:"callProviderMetadata,omitempty"`
	Approval         *UIApproval     `json:"approval,omitempty"`
}

// UIApproval is the question to a person about a tool call.
type UIApproval struct {
	ID            string          `json:"id"`
	Descriptor    json.RawMessage `json:"descriptor,omitempty" doc:"Of a question whether a call took effect: its choices."`
	RequestReason string          `json:"requestReason,omitempty"`
}

// Ask marks a tool call of the message as waiting for a person.
func (m *UIMessage) Ask(call, reason string, until *timestamppb.Timestamp, outcomeUnknown bool) {
	approval := &UIApproval{ID: approvalID(call, until, outcomeUnknown), RequestReason: reason}
	if outcomeUnknown {
		approval.Descriptor = json.RawMessage(outcomeDescriptor)
	}
	for i := range m.Parts {
		if p := &m.Parts[i]; p.ToolCallID == call && p.State == "input-available" {
			p.State, p.Approval = "approval-requested", approval
		}
	}
}

// AskClient says of a tool call of the message, which waits for a client, of which step it is.
func (m *UIMessage) AskClient(call string, step int32) {
	for i := range m.Parts {
		if p := &m.Parts[i]; p.ToolCallID == call && p.State == "input-available" {
			p.CallMetadata = CallMetadata(step)
		}
	}
}

// UIMessages converts a conversation for a version of the AI SDK. The assistant's messages of one
// run become one message with the run's id, as useChat builds it from a UIStream: a step-start
// before each step, a tool's result in the part of its call, and messages that steered the run.
func UIMessages(stored []Stored, version int) ([]UIMessage, error) {
	c := converter{out: []UIMessage{}, version: version}
	for _, m := range stored {
		if err := c.add(m); err != nil {
			return nil, fmt.Errorf("message %s: %w", m.ID, err)
		}
	}
	return c.out, nil
}

// converter builds UIMessages one stored message at a time.
type converter struct {
	version int
	out     []UIMessage
	run     string         // the run of the last message of out, if it is the assistant's
	open    bool           // more steps are added to the last message of out
	calls   map[string]int // parts of the last message by their tool call id
	sources int            // of the last message
}

// modelPart is any part of ModelMessage content.
type modelPart struct {
	Type             string          `json:"type"`
	Text             string          `json:"text"`
	MediaType        string          `json:"mediaType"`
	Data             string          `json:"data"`
	Filename         string          `json:"filename"`
	URL              string          `json:"url"`
	Title            string          `json:"title"`
	ToolCallID       string          `json:"toolCallId"`
	ToolName         string          `json:"toolName"`
	Input            json.RawMessage `json:"input"`
	Output           *toolOutput     `json:"output"`
	ProviderExecuted bool            `json:"providerExecuted"`
	ProviderOptions  json.RawMessage `json:"providerOptions"`
}

type toolOutput struct {
	Type   string          `json:"type"`
	Value  json.RawMessage `json:"value"`
	Reason string          `json:"reason"`
}

func (c *converter) add(m Stored) error {
	parts, err := partsOf(m.Content)
	if err != nil {
		return err
	}
	switch m.Role {
	case "assistant":
		c.step(m, parts)
	case "tool":
		c.results(parts)
	default:
		if c.open && m.RunID != "" && m.RunID == c.run {
			msg := &c.out[len(c.out)-1]
			msg.Parts = append(msg.Parts, steeringPart(m.ID, m.Content, c.version))
			return nil
		}
		c.open = false
		out := UIMessage{ID: m.ID, Role: m.Role, Metadata: &UIMetadata{CreatedAt: m.CreatedAt, CreatedBy: m.CreatedBy, Siblings: m.Siblings}, Parts: []UIPart{}}
		for _, p := range parts {
			if q, ok := plainPart(p); ok {
				out.Parts = append(out.Parts, q)
			}
		}
		c.out = append(c.out, out)
	}
	return nil
}

// steeringMessage is the type of a part of version 7.
const steeringMessage = "steering-message"

// steeringPart converts a message that has steered a run.
func steeringPart(id string, content json.RawMessage, version int) UIPart {
	if version < 7 {
		data := jsonObject(appendString([]byte(`{"messageId":`), id)).json("content", string(content), `""`).end()
		return UIPart{Type: "data-steering-message", ID: id, Data: data}
	}
	out := UIPart{Type: steeringMessage, ID: id, Parts: []UIPart{}}
	parts, _ := partsOf(content) // none of what cannot be read
	for _, p := range parts {
		if q, ok := plainPart(p); ok {
			q.State = ""
			out.Parts = append(out.Parts, q)
		}
	}
	return out
}

// partsOf parses content. A string is one text part.
func partsOf(content json.RawMessage) ([]modelPart, error) {
	var text string
	if err := json.Unmarshal(content, &text); err == nil {
		return []modelPart{{Type: "text", Text: text}}, nil
	}
	var parts []modelPart
	if err := json.Unmarshal(content, &parts); err != nil {
		return nil, fmt.Errorf("read content: %w", err)
	}
	return parts, nil
}

func (c *converter) step(m Stored, parts []modelPart) {
	if !c.open || c.run != m.RunID {
		c.out = append(c.out, UIMessage{ID: cmp.Or(m.RunID, m.ID), Role: "assistant", Metadata: &UIMetadata{
			CreatedAt: m.CreatedAt, RunID: m.RunID, Model: m.Model, Simulated: m.Simulated, MessageID: m.ID, Siblings: m.Siblings,
		}})
		c.open, c.run, c.calls, c.sources = true, m.RunID, map[string]int{}, 0
	}
	msg := &c.out[len(c.out)-1]
	msg.Parts = append(msg.Parts, UIPart{Type: "step-start"})
	found := sources{}
	for _, p := range parts {
		switch p.Type {
		case "tool-call":
			c.calls[p.ToolCallID] = len(msg.Parts)
			if p.Input == nil {
				p.Input = json.RawMessage("{}")
			}
			msg.Parts = append(msg.Parts, UIPart{
				Type: "tool-" + p.ToolName, ToolCallID: p.ToolCallID, State: "input-available",
				Input: p.Input, ProviderExecuted: p.ProviderExecuted,
			})
		case "tool-result":
			c.result(p)
		default:
			if q, ok := plainPart(p); ok {
				q.ProviderMetadata = p.ProviderOptions
				c.addPart(msg, q)
			}
		}
		for _, s := range found.of(p) {
			c.addPart(msg, UIPart{Type: "source-url", URL: s.GetUrl(), Title: s.GetTitle()})
		}
	}
}

// addPart adds a part to the last message. A source gets its id.
func (c *converter) addPart(msg *UIMessage, p UIPart) {
	if p.Type == "source-url" {
		p.SourceID = sourceID(c.sources)
		c.sources++
	}
	msg.Parts = append(msg.Parts, p)
}

func (c *converter) results(parts []modelPart) {
	for _, p := range parts {
		if p.Type == "tool-result" {
			c.result(p)
		}
	}
}

// result adds a tool's result to the part of its call. A result without a call is dropped,
// because clients reject it.
func (c *converter) result(p modelPart) {
	i, ok := c.calls[p.ToolCallID]
	if !ok || !c.open || p.Output == nil {
		return
	}
	part := &c.out[len(c.out)-1].Parts[i]
	switch p.Output.Type {
	case "error-text", "error-json":
		part.State, part.ErrorText = "output-error", errorText(p.Output.Value)
	case "execution-denied":
		part.State, part.ErrorText = "output-error", "denied: "+p.Output.Reason
	case "content":
		part.State, part.Output = "output-available", withImage(p.Output.Value)
	default:
		part.State, part.Output = "output-available", uiOutput(p.Output.Value)
	}
}

// uiOutput returns a tool's output: a result envelope that has only an output, such as that of a
// client's tool, is left out.
func uiOutput(v json.RawMessage) json.RawMessage {
	var envelope map[string]json.RawMessage
	if json.Unmarshal(v, &envelope) == nil && len(envelope) == 1 && envelope["output"] != nil {
		return envelope["output"]
	}
	return v
}

// withImage returns a content output as it was streamed: an object whose member image is a file
// part. Other content, which an imported history may have, is returned unchanged.
func withImage(content json.RawMessage) json.RawMessage {
	var items []modelPart
	var object map[string]any
	if json.Unmarshal(content, &items) != nil || len(items) != 2 || items[1].Type != "file-data" || json.Unmarshal([]byte(items[0].Text), &object) != nil || object == nil {
		return content
	}
	object["image"] = map[string]string{"type": "file", "mediaType": items[1].MediaType, "data": items[1].Data}
	out, err := json.Marshal(object)
	if err != nil {
		return content
	}
	return out
}

// errorText returns the text of a tool's error: a string, or the error of a result envelope. Other
// JSON is returned unchanged.
func errorText(v json.RawMessage) string {
	var envelope struct{ Error *string }
	var s string
	switch {
	case json.Unmarshal(v, &s) == nil:
		return s
	case json.Unmarshal(v, &envelope) == nil && envelope.Error != nil:
		return *envelope.Error
	}
	return string(v)
}

// plainPart converts a part other than a tool call or result. It returns false if a UIMessage
// has no such part.
func plainPart(p modelPart) (UIPart, bool) {
	switch p.Type {
	case "text", "reasoning":
		return UIPart{Type: p.Type, Text: &p.Text, State: "done"}, true
	case "file":
		return UIPart{Type: "file", MediaType: p.MediaType, Filename: p.Filename, URL: fileURL(p)}, true
	case "source":
		return UIPart{Type: "source-url", URL: p.URL, Title: p.Title}, p.URL != ""
	}
	return UIPart{}, false
}

// fileURL returns the URL of a file, whose stored data is a URL or base64.
func fileURL(p modelPart) string {
	for _, scheme := range [...]string{"https://", "http://", "data:"} {
		if strings.HasPrefix(p.Data, scheme) {
			return p.Data
		}
	}
	return "data:" + p.MediaType + ";base64," + p.Data
}
