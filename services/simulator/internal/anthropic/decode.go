// Package anthropic simulates the Anthropic Messages API after its public documentation: it
// decodes and checks requests as the API does, and encodes answers, streamed or not, and
// errors.
package anthropic

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/field"
)

const maxMessages = 100_000

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)

// fields are the parameters of POST /v1/messages.
func fields() []string {
	return []string{
		"model", "messages", "max_tokens", "system", "stream", "stop_sequences", "temperature", "top_p", "top_k", "tools",
		"tool_choice", "thinking", "metadata", "cache_control", "container", "context_management", "diagnostics",
		"inference_geo", "mcp_servers", "output_config", "output_format", "service_tier", "speed", "betas", "user_profile_id", "workspace_id",
	}
}

// Credential returns the key or token of a request, or a fault if it is missing or refused.
func Credential(h http.Header) (string, *chat.Fault) {
	key := h.Get("X-Api-Key")
	if token, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer "); ok && key == "" {
		key = strings.TrimSpace(token)
	}
	switch {
	case key == "":
		return "", &chat.Fault{Kind: chat.Unauthorized, Message: "no credential: send an x-api-key header"}
	case strings.HasPrefix(key, "bad-"):
		return "", &chat.Fault{Kind: chat.Unauthorized, Message: "invalid x-api-key"}
	default:
		return key, nil
	}
}

// Version returns a fault if the anthropic-version header is missing.
func Version(h http.Header) *chat.Fault {
	if h.Get("Anthropic-Version") == "" {
		return invalid("anthropic-version: the header is required")
	}
	return nil
}

func invalid(message string) *chat.Fault {
	return &chat.Fault{Kind: chat.Invalid, Message: message}
}

// Decode decodes and checks the body of POST /v1/messages or, with counting, of count_tokens,
// which needs no max_tokens.
func Decode(body []byte, counting bool) (*chat.Request, *chat.Fault) {
	d := decoder{req: &chat.Request{Dialect: chat.Anthropic}, counting: counting}
	if err := d.decode(body); err != nil {
		return nil, invalid(err.Error())
	}
	return d.req, nil
}

type decoder struct {
	req      *chat.Request
	counting bool
	marked   bool // the request has a cache_control
	marks    int
	budget   int // thinking
}

func (d *decoder) decode(body []byte) error {
	o, err := field.Parse("", body)
	if err != nil {
		return err
	}
	if extra := o.Extra(fields()); extra != "" {
		return field.Bad(extra, "unknown parameter")
	}
	d.marked = strings.Contains(string(body), `"cache_control"`)
	for _, name := range []string{"model", "messages", "max_tokens"} {
		if !o.Has(name) && (name != "max_tokens" || !d.counting) {
			return field.Bad(name, "required parameter is missing")
		}
	}
	if err := d.settings(o); err != nil {
		return err
	}
	if err := d.tools(o); err != nil {
		return err
	}
	if err := d.system(o); err != nil {
		return err
	}
	if err := d.messages(o); err != nil {
		return err
	}
	if o.Has("cache_control") && len(d.req.Prompt) > 0 {
		mark, err := d.mark("", o)
		if err != nil {
			return err
		}
		d.req.Prompt[len(d.req.Prompt)-1].Mark = mark
	}
	if d.marks > 4 {
		return field.Bad("", "at most 4 blocks may have cache_control, this request has %d", d.marks)
	}
	return nil
}

func (d *decoder) settings(o field.Object) error {
	r := d.req
	var temperature float64
	for _, err := range []error{
		field.Read(o, "", "model", "a string", &r.Model),
		field.Read(o, "", "max_tokens", "a whole number", &r.MaxTokens),
		field.Read(o, "", "stream", "a boolean", &r.Stream),
		field.Read(o, "", "stop_sequences", "an array of strings", &r.Stops),
		field.Read(o, "", "temperature", "a number", &temperature),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case r.Model == "":
		return field.Bad("model", "must not be empty")
	case r.MaxTokens < 1 && !d.counting:
		return field.Bad("max_tokens", "must be at least 1")
	case temperature < 0 || temperature > 1:
		return field.Bad("temperature", "must be between 0 and 1")
	}
	for i, s := range r.Stops {
		if strings.TrimSpace(s) == "" {
			return field.Bad(field.At("stop_sequences", i), "a stop sequence needs a character that is not a space")
		}
	}
	return d.thinking(o)
}

func (d *decoder) thinking(o field.Object) error {
	if !o.Has("thinking") {
		return nil
	}
	t, err := field.Parse("thinking", o["thinking"])
	if err != nil {
		return err
	}
	var kind string
	if err := field.Read(t, "thinking", "type", "a string", &kind); err != nil {
		return err
	}
	if err := field.Read(t, "thinking", "budget_tokens", "a whole number", &d.budget); err != nil {
		return err
	}
	switch kind {
	case "disabled":
		return nil
	case "adaptive", "between_tools":
		d.req.Thinking = true
		return nil
	case "enabled":
	default:
		return field.Bad("thinking.type", "%q is not one of enabled, disabled, adaptive", kind)
	}
	d.req.Thinking = true
	if d.budget < 1024 {
		return field.Bad("thinking.budget_tokens", "must be at least 1024")
	}
	if d.req.MaxTokens > 0 && d.budget >= d.req.MaxTokens {
		return field.Bad("", "max_tokens must be greater than thinking.budget_tokens")
	}
	return nil
}

func (d *decoder) tools(o field.Object) error {
	list, err := o.List("", "tools")
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, raw := range list {
		path := field.At("tools", i)
		t, err := field.Parse(path, raw)
		if err != nil {
			return err
		}
		spec, err := d.tool(path, t)
		if err != nil {
			return err
		}
		if seen[spec.Name] {
			return field.Bad("tools", "names must be unique, %q is there twice", spec.Name)
		}
		seen[spec.Name] = true
		d.req.Tools = append(d.req.Tools, spec)
		if err := d.segment(path, t, raw, (len(raw)+3)/4); err != nil {
			return err
		}
	}
	return d.toolChoice(o, seen)
}

func (d *decoder) tool(path string, t field.Object) (chat.ToolSpec, error) {
	var spec chat.ToolSpec
	var kind string
	if err := field.Read(t, path, "type", "a string", &kind); err != nil {
		return spec, err
	}
	if err := field.Read(t, path, "name", "a string", &spec.Name); err != nil {
		return spec, err
	}
	spec.Server = strings.HasPrefix(kind, "web_search_") || strings.HasPrefix(kind, "web_fetch_") || strings.HasPrefix(kind, "code_execution_")
	switch {
	case spec.Name == "" && kind != "" && kind != "custom":
		return spec, nil // a toolset has no name
	case !toolName.MatchString(spec.Name):
		return spec, field.Bad(field.At(path, "name"), "%q must consist of 1 to 128 letters, digits, '_' and '-'", spec.Name)
	case kind != "" && kind != "custom":
		return spec, nil
	}
	if !t.Has("input_schema") {
		return spec, field.Bad(field.At(path, "input_schema"), "required parameter is missing")
	}
	schema, err := field.Parse(field.At(path, "input_schema"), t["input_schema"])
	if err != nil {
		return spec, err
	}
	var of string
	if err := field.Read(schema, field.At(path, "input_schema"), "type", "a string", &of); err != nil || of != "object" {
		return spec, field.Bad(field.At(path, "input_schema.type"), "must be \"object\"")
	}
	return spec, nil
}

func (d *decoder) toolChoice(o field.Object, tools map[string]bool) error {
	if !o.Has("tool_choice") {
		return nil
	}
	c, err := field.Parse("tool_choice", o["tool_choice"])
	if err != nil {
		return err
	}
	var kind, name string
	for _, err := range []error{
		field.Read(c, "tool_choice", "type", "a string", &kind),
		field.Read(c, "tool_choice", "name", "a string", &name),
		field.Read(c, "tool_choice", "disable_parallel_tool_use", "a boolean", &d.req.SingleCall),
	} {
		if err != nil {
			return err
		}
	}
	if len(tools) == 0 {
		return field.Bad("tool_choice", "may only be given together with tools")
	}
	switch kind {
	case "auto":
	case "none":
		d.req.Tools = nil
	case "tool", "any":
		if d.req.Thinking {
			return field.Bad("tool_choice", "a forced tool cannot be combined with thinking")
		}
		if kind == "tool" && !tools[name] {
			return field.Bad("tool_choice.name", "there is no tool %q", name)
		}
	default:
		return field.Bad("tool_choice.type", "%q is not one of auto, any, tool, none", kind)
	}
	return nil
}

func (d *decoder) system(o field.Object) error {
	if !o.Has("system") {
		return nil
	}
	blocks, err := blockList("system", o["system"])
	if err != nil {
		return err
	}
	var texts []string
	for i, raw := range blocks {
		path := field.At("system", i)
		b, err := field.Parse(path, raw)
		if err != nil {
			return err
		}
		var kind, text string
		if err := field.Read(b, path, "type", "a string", &kind); err != nil {
			return err
		}
		if kind != "text" {
			return field.Bad(field.At(path, "type"), "the system prompt consists of text blocks")
		}
		if err := field.Read(b, path, "text", "a string", &text); err != nil {
			return err
		}
		if text == "" && !field.IsString(o["system"]) {
			return field.Bad(path, "text blocks must not be empty")
		}
		texts = append(texts, text)
		if err := d.segment(path, b, raw, chat.Tokens(len(text))); err != nil {
			return err
		}
	}
	d.req.System = strings.Join(texts, "\n")
	return nil
}

// blockList decodes content: an array of blocks, or a string for one text block.
func blockList(path string, raw json.RawMessage) ([]json.RawMessage, error) {
	if field.IsString(raw) {
		block := make(json.RawMessage, 0, len(raw)+24)
		block = append(append(append(block, `{"type":"text","text":`...), raw...), '}')
		return []json.RawMessage{block}, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, field.Bad(path, "expected a string or an array of blocks")
	}
	return list, nil
}

// segment adds a segment of the prompt. Its canonical form is only set if the request marks
// something to be cached.
func (d *decoder) segment(path string, o field.Object, raw json.RawMessage, tokens int) error {
	seg := chat.Segment{Canonical: raw, Tokens: tokens}
	if d.marked {
		mark, err := d.mark(path, o)
		if err != nil {
			return err
		}
		seg.Mark = mark
		rest := make(map[string]json.RawMessage, len(o))
		for k, v := range o {
			if k != "cache_control" {
				rest[k] = v
			}
		}
		if b, err := json.Marshal(rest); err == nil {
			seg.Canonical = b
		}
	}
	d.req.Prompt = append(d.req.Prompt, seg)
	return nil
}

func (d *decoder) mark(path string, o field.Object) (string, error) {
	if !o.Has("cache_control") {
		return "", nil
	}
	at := field.At(path, "cache_control")
	c, err := field.Parse(at, o["cache_control"])
	if err != nil {
		return "", err
	}
	kind, ttl := "", "5m"
	if err := field.Read(c, at, "type", "a string", &kind); err != nil {
		return "", err
	}
	if err := field.Read(c, at, "ttl", "a string", &ttl); err != nil {
		return "", err
	}
	if kind != "ephemeral" {
		return "", field.Bad(field.At(at, "type"), "must be \"ephemeral\"")
	}
	if ttl != "5m" && ttl != "1h" {
		return "", field.Bad(field.At(at, "ttl"), "%q is not one of 5m, 1h", ttl)
	}
	d.marks++
	return ttl, nil
}
