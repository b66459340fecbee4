// Package clienttool has the tools that clients of the API declare and run themselves, such as
// a page that knows where its user is.
//
// The model calls them like any other tool. The platform checks the arguments, parks the run,
// and takes the result from a member who may write in the session. Nothing is known of what a
// client does, so results count as private text by strangers, and calls as ones that act outside
// (package loop, taint).
package clienttool

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/structured"
)

// Bounds of a declaration, and of a result.
const (
	maxTools       = 64
	maxName        = 64
	maxDescription = 4000 // characters
	maxTotal       = 256 << 10
	maxResult      = 64 << 10
	maxDepth       = 64
)

// source is the source of client tools among all tools.
const source = "client"

// reserved begins the names of the tools of MCP servers.
const reserved = "mcp__"

// Tool is a tool that a client runs.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// Declared returns the tools of a request, or nil if it has none. They are checked, except for
// names of other tools.
func Declared(in *agentv1.ClientTools) ([]Tool, error) {
	if in == nil {
		return nil, nil
	}
	if n := len(in.GetTools()); n > maxTools {
		return nil, fault.New(fault.Invalid, "client_tools has %d tools; at most %d are allowed", n, maxTools)
	}
	tools := []Tool{}
	total := 0
	for i, t := range in.GetTools() {
		total += len(t.GetName()) + len(t.GetDescription()) + len(t.GetInputSchemaJson())
		if total > maxTotal {
			return nil, fault.New(fault.Invalid, "client_tools has more than %d KiB: declare fewer tools, or shorter schemas", maxTotal>>10)
		}
		if slices.ContainsFunc(tools, func(o Tool) bool { return o.Name == t.GetName() }) {
			return nil, fault.New(fault.Invalid, "client_tools[%d].name: there is another tool %q", i, t.GetName())
		}
		tool := Tool{Name: t.GetName(), Description: t.GetDescription(), InputSchema: json.RawMessage(t.GetInputSchemaJson())}
		if problem := tool.check(); problem != "" {
			return nil, fault.New(fault.Invalid, "client_tools[%d].%s", i, problem)
		}
		if _, err := tool.Schema(); err != nil {
			return nil, fault.New(fault.Invalid, "client_tools[%d].%s", i, fault.From(err).Message)
		}
		tool.InputSchema = jscan.AppendCompact(nil, tool.InputSchema)
		tools = append(tools, tool)
	}
	return tools, nil
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// check returns what is wrong with a tool's name, description or schema's type, or "".
func (t *Tool) check() string {
	switch {
	case t.Name == "" || len(t.Name) > maxName || strings.Trim(t.Name, letters) != "":
		return "name: want 1 to 64 letters, digits, _ and -"
	case strings.HasPrefix(t.Name, reserved):
		return "name: names that begin with " + reserved + " are for the tools of MCP servers"
	case utf8.RuneCountInString(t.Description) > maxDescription:
		return "description: at most 4000 characters are allowed"
	case strings.ContainsRune(t.Description, 0):
		return "description must not contain control characters"
	case jscan.KindOf(t.InputSchema) != jscan.Object || jscan.MemberString(t.InputSchema, "type") != "object":
		return `input_schema: want a JSON Schema with "type": "object"`
	}
	return ""
}

// Schema returns the compiled schema of the tool's arguments.
func (t *Tool) Schema() (*structured.Schema, error) {
	return structured.Compile("input_schema", t.InputSchema)
}

// Proto returns the tool as the model is told of it.
func (t *Tool) Proto() *toolv1.Tool {
	return &toolv1.Tool{
		Name: t.Name, Description: t.Description, InputSchemaJson: string(t.InputSchema), Source: source, Available: true,
		Effect: toolv1.Effect_EFFECT_UNSAFE, ReadsUntrusted: true, ReadsPrivate: true, ActsOutside: true,
	}
}

// Is reports whether a tool is a client's.
func Is(t *toolv1.Tool) bool { return t.GetSource() == source }

// failed begins the envelope of a client's error, which the platform's own errors do not begin
// with.
const failed = "the client reports: "

// Result returns the envelope of a call's result. A result with a message is an error; one that a
// client has from a viewer's events has the beginning already.
func Result(output json.RawMessage, message string) (envelope json.RawMessage, isError bool, err error) {
	if message != "" {
		envelope, err = json.Marshal(map[string]string{"error": failed + strings.TrimPrefix(message, failed)})
		if err != nil {
			return nil, false, err
		}
		return envelope, true, checkSize(envelope)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(output))
	d.UseNumber() // any number will do
	if !jscan.Valid(output) || d.Decode(&v) != nil || structured.Deeper(v, maxDepth) {
		return nil, false, fault.New(fault.Invalid, "output: want one JSON value, nested at most %d levels deep", maxDepth)
	}
	envelope = append(envelope, `{"output":`...)
	envelope = jscan.AppendCompact(envelope, jscan.ValidUTF8(output))
	envelope = append(envelope, '}')
	return envelope, false, checkSize(envelope)
}

func checkSize(result []byte) error {
	if len(result) > maxResult {
		return fault.Coded(fault.TooLarge, "RESULT_TOO_LARGE", "the result has more than %d KiB: send a part of it, or a summary", maxResult>>10)
	}
	return nil
}

// IsError reports whether the text of an error result came from a client.
func IsError(envelope json.RawMessage) bool {
	return strings.HasPrefix(jscan.MemberString(envelope, "error"), failed)
}
