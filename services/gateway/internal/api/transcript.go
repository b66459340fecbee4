package api

import (
	"encoding/json"
	"mime"
	"path"
	"strings"

	"signalbox.dev/pkg/fault"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
)

// transcript is a conversation that a client sends along, as OpenAI's clients do. It ends with a
// user's message, or with the results of the calls of client tools.
type transcript struct {
	instructions []string // messages of the system or the developer
	turns        []turn
	names        map[string]string // of the tools, by the ids of the calls
}

// turn is one message: of the user, which has content, or of the assistant or tools, which have
// parts.
type turn struct {
	role    string
	content Content
	parts   []any
}

type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type filePart struct {
	Type      string `json:"type"`
	MediaType string `json:"mediaType"`
	Data      string `json:"data"`
	Filename  string `json:"filename,omitempty"`
}

type callPart struct {
	Type       string          `json:"type"`
	ToolCallID string          `json:"toolCallId"`
	ToolName   string          `json:"toolName"`
	Input      json.RawMessage `json:"input"`
}

type resultPart struct {
	Type       string     `json:"type"`
	ToolCallID string     `json:"toolCallId"`
	ToolName   string     `json:"toolName"`
	Output     textResult `json:"output"`

	given string // the call's id as the client has it
}

type textResult struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// add adds a part to a message of a role, which may have begun.
func (t *transcript) add(role string, part any) {
	if n := len(t.turns); n > 0 && t.turns[n-1].role == role {
		t.turns[n-1].parts = append(t.turns[n-1].parts, part)
		return
	}
	t.turns = append(t.turns, turn{role: role, parts: []any{part}})
}

// ask adds a message of the user.
func (t *transcript) ask(where string, parts []any) error {
	var (
		raw []byte
		err error
	)
	if text, ok := onlyText(parts); ok {
		raw, err = marshal(text)
	} else {
		raw, err = marshal(parts)
	}
	if err != nil {
		return invalid("%s: %s", where, clip(err.Error()))
	}
	t.turns = append(t.turns, turn{role: "user", content: Content{raw}})
	if err := t.turns[len(t.turns)-1].content.check(); err != nil {
		return invalid("%s: %s", where, fault.From(err).Message)
	}
	return nil
}

func onlyText(parts []any) (string, bool) {
	if len(parts) != 1 {
		return "", false
	}
	text, ok := parts[0].(textPart)
	return text.Text, ok
}

// call adds a call of a tool.
func (t *transcript) call(where, callID, name, arguments string) error {
	var object map[string]json.RawMessage
	if callID == "" || name == "" || json.Unmarshal([]byte(arguments), &object) != nil || object == nil {
		return invalid("%s: a tool call has an id, a name, and arguments that are a JSON object", where)
	}
	if t.names == nil {
		t.names = map[string]string{}
	}
	t.names[callID] = name
	t.add("assistant", callPart{"tool-call", ownCall(callID), name, json.RawMessage(arguments)})
	return nil
}

// result adds the result of a call.
func (t *transcript) result(callID, output string) {
	t.add("tool", resultPart{Type: "tool-result", ToolCallID: ownCall(callID), ToolName: t.names[callID], Output: textResult{"text", output}, given: callID})
}

// ownCall returns the id that the model gave a call.
func ownCall(callID string) string {
	if ref, ok := dialect.ParseCallRef(callID); ok {
		return ref.Call
	}
	return callID
}

// history returns what was said before the last message.
func (t *transcript) history() ([]*agentv1.EarlierMessage, error) {
	var out []*agentv1.EarlierMessage
	for _, turn := range t.turns[:len(t.turns)-1] {
		raw := []byte(turn.content.RawMessage)
		if turn.role != "user" {
			var err error
			if raw, err = marshal(turn.parts); err != nil {
				return nil, invalid("messages: %s", clip(err.Error()))
			}
		}
		out = append(out, &agentv1.EarlierMessage{Role: turn.role, ContentJson: string(raw)})
	}
	return out, nil
}

// results returns the results at the end and the part of a run that follows them, or none if the
// user has the last word.
func (t *transcript) results() (results []*agentv1.SendToolResultRequest, of dialect.CallRef, err error) {
	if len(t.turns) == 0 {
		return nil, of, invalid("the conversation is empty: its last message is to be answered")
	}
	last := t.turns[len(t.turns)-1]
	if last.role == "assistant" {
		return nil, of, invalid("the last message is the assistant's: want one of the user, or the results of tool calls")
	}
	for _, part := range last.parts {
		p, _ := part.(resultPart)
		ref, ok := dialect.ParseCallRef(p.given)
		switch {
		case !ok:
			return nil, of, invalid("the tool call %q is not one that this server has made: send the results with the ids of the calls", clip(p.given))
		case of.Run != "" && (of.Run != ref.Run || of.Part != ref.Part):
			return nil, of, invalid("the last tool calls are of several answers: send the results of one")
		case len(results) == maxParts:
			return nil, of, invalid("more than %d results", maxParts)
		}
		of = ref
		output, err := marshal(p.Output.Value)
		if err != nil {
			return nil, of, invalid("a tool's result: %s", clip(err.Error()))
		}
		r := &agentv1.SendToolResultRequest{ToolCallId: ref.Call, RunId: ref.Run, Result: &agentv1.SendToolResultRequest_OutputJson{OutputJson: string(output)}}
		if ref.Step >= 0 {
			r.StepIndex = &ref.Step
		}
		results = append(results, r)
	}
	return results, of, nil
}

// fileOf converts a URL, which may have the data itself.
func fileOf(where, kind, url, name string) (filePart, error) {
	p := filePart{Type: "file", Data: url, Filename: name}
	if rest, ok := strings.CutPrefix(url, "data:"); ok {
		p.MediaType, _, _ = strings.Cut(rest, ",")
		p.MediaType, _, _ = strings.Cut(p.MediaType, ";")
		return p, nil
	}
	if !strings.HasPrefix(url, "https://") {
		return p, invalid("%s: want a data: URL or an https URL", where)
	}
	address, _, _ := strings.Cut(url, "?")
	p.MediaType, _, _ = mime.ParseMediaType(mime.TypeByExtension(path.Ext(address)))
	if !strings.HasPrefix(p.MediaType, kind+"/") {
		p.MediaType = map[string]string{"image": "image/jpeg", "application": "application/pdf"}[kind] // the provider looks at the file
	}
	return p, nil
}
