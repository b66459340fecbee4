// Package openai simulates the OpenAI Chat Completions API and OpenRouter's dialect of it after
// their public documentation: it decodes and checks requests as the APIs do, and encodes
// answers, streamed or not, and errors.
package openai

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/field"
)

const maxMessages = 100_000

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// fields are the parameters of POST /v1/chat/completions. OpenRouter ignores unknown ones.
func fields() []string {
	return []string{
		"model", "messages", "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
		"max_completion_tokens", "max_tokens", "metadata", "modalities", "moderation", "n", "parallel_tool_calls", "prediction",
		"presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format",
		"safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "tools",
		"top_logprobs", "top_p", "user", "verbosity", "web_search_options",
	}
}

// Credential returns the token of a request, or a fault if it is missing or refused.
func Credential(h http.Header) (string, *chat.Fault) {
	token, ok := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	token = strings.TrimSpace(token)
	switch {
	case !ok || token == "":
		return "", &chat.Fault{Kind: chat.Unauthorized, Message: "No API key was given: send it as Authorization: Bearer YOUR_KEY."}
	case strings.HasPrefix(token, "bad-"):
		return "", &chat.Fault{Kind: chat.Unauthorized, Message: "Incorrect API key provided: bad-****.", Code: "invalid_api_key"}
	default:
		return token, nil
	}
}

// Decode decodes and checks the body of POST /v1/chat/completions.
func Decode(body []byte, dialect chat.Dialect) (*chat.Request, *chat.Fault) {
	d := decoder{req: &chat.Request{Dialect: dialect}}
	if f := d.decode(body); f != nil {
		return nil, f
	}
	return d.req, nil
}

type decoder struct {
	req *chat.Request
}

func invalid(param, code, message string) *chat.Fault {
	return &chat.Fault{Kind: chat.Invalid, Param: param, Code: code, Message: message}
}

// wrong converts a field error to a fault.
func wrong(err error) *chat.Fault {
	if err == nil {
		return nil
	}
	fe, ok := errors.AsType[*field.Error](err)
	if !ok {
		return invalid("", "", err.Error())
	}
	if fe.Path == "" {
		return invalid("", "", fe.Reason)
	}
	return invalid(fe.Path, "invalid_type", "Invalid value for '"+fe.Path+"': "+fe.Reason+".")
}

func missing(param string) *chat.Fault {
	return invalid(param, "missing_required_parameter", "The required parameter '"+param+"' is missing.")
}

func (d *decoder) decode(body []byte) *chat.Fault {
	o, err := field.Parse("", body)
	if err != nil {
		return wrong(err)
	}
	if extra := o.Extra(fields()); extra != "" && d.req.Dialect == chat.OpenAI {
		return invalid(extra, "unknown_parameter", "The parameter '"+extra+"' is not known.")
	}
	for _, name := range []string{"model", "messages"} {
		if !o.Has(name) {
			return missing(name)
		}
	}
	for _, read := range []func(field.Object) *chat.Fault{d.settings, d.tools, d.messages} {
		if f := read(o); f != nil {
			return f
		}
	}
	return nil
}

func (d *decoder) settings(o field.Object) *chat.Fault {
	r := d.req
	parallel, n := true, 1
	var limit, newLimit int
	var effort string
	for _, err := range []error{
		field.Read(o, "", "model", "a string", &r.Model),
		field.Read(o, "", "max_tokens", "a whole number", &limit),
		field.Read(o, "", "max_completion_tokens", "a whole number", &newLimit),
		field.Read(o, "", "stream", "a boolean", &r.Stream),
		field.Read(o, "", "parallel_tool_calls", "a boolean", &parallel),
		field.Read(o, "", "n", "a whole number", &n),
		field.Read(o, "", "reasoning_effort", "a string", &effort),
	} {
		if err != nil {
			return wrong(err)
		}
	}
	switch {
	case r.Model == "":
		return invalid("model", "", "A model must be given.")
	case n != 1:
		return invalid("n", "unsupported_value", "The simulated provider gives one choice: 'n' must be 1.")
	case o.Has("max_tokens") && limit < 1, o.Has("max_completion_tokens") && newLimit < 1:
		return invalid("max_tokens", "integer_below_min_value", "The limit of tokens must be at least 1.")
	}
	r.MaxTokens = max(limit, newLimit)
	r.SingleCall = !parallel
	r.Thinking = effort != "" && effort != "none" || o.Has("reasoning")
	if o.Has("web_search_options") || strings.Contains(string(o["plugins"]), `"web"`) || strings.HasSuffix(r.Model, ":online") {
		r.Tools = append(r.Tools, chat.ToolSpec{Name: "web_search", Server: true})
	}
	if f := d.stops(o); f != nil {
		return f
	}
	return d.streaming(o)
}

func (d *decoder) stops(o field.Object) *chat.Fault {
	if !o.Has("stop") {
		return nil
	}
	if field.IsString(o["stop"]) {
		d.req.Stops = []string{""}
		return wrong(field.Read(o, "", "stop", "a string or an array of strings", &d.req.Stops[0]))
	}
	if f := wrong(field.Read(o, "", "stop", "a string or an array of strings", &d.req.Stops)); f != nil {
		return f
	}
	if len(d.req.Stops) > 4 {
		return invalid("stop", "array_above_max_length", "At most 4 stop sequences are allowed.")
	}
	return nil
}

func (d *decoder) streaming(o field.Object) *chat.Fault {
	if o.Has("stream_options") {
		if !d.req.Stream {
			return invalid("stream_options", "", "'stream_options' is allowed only together with 'stream'.")
		}
		so, err := field.Parse("stream_options", o["stream_options"])
		if err != nil {
			return wrong(err)
		}
		if err := field.Read(so, "stream_options", "include_usage", "a boolean", &d.req.IncludeUsage); err != nil {
			return wrong(err)
		}
	}
	if d.req.Dialect == chat.OpenRouter && o.Has("usage") {
		u, err := field.Parse("usage", o["usage"])
		if err != nil {
			return wrong(err)
		}
		include := false
		if err := field.Read(u, "usage", "include", "a boolean", &include); err != nil {
			return wrong(err)
		}
		d.req.IncludeUsage = d.req.IncludeUsage || include
	}
	return nil
}

func (d *decoder) tools(o field.Object) *chat.Fault {
	list, err := o.List("", "tools")
	if err != nil {
		return wrong(err)
	}
	if o.Has("tools") && len(list) == 0 {
		return invalid("tools", "empty_array", "'tools' must not be an empty array.")
	}
	seen := map[string]bool{}
	for i, raw := range list {
		name, f := tool(field.At("tools", i), raw)
		if f != nil {
			return f
		}
		if seen[name] {
			return invalid(field.At("tools", i), "", "The name '"+name+"' is used by two tools.")
		}
		seen[name] = true
		d.req.Tools = append(d.req.Tools, chat.ToolSpec{Name: name})
		d.segment(raw, (len(raw)+3)/4)
	}
	if !o.Has("tool_choice") {
		return nil
	}
	if len(list) == 0 {
		return invalid("tool_choice", "", "'tool_choice' is allowed only together with 'tools'.")
	}
	if string(o["tool_choice"]) == `"none"` {
		d.req.Tools = nil
	}
	return nil
}

func tool(path string, raw json.RawMessage) (string, *chat.Fault) {
	t, err := field.Parse(path, raw)
	if err != nil {
		return "", wrong(err)
	}
	var kind, name string
	if err := field.Read(t, path, "type", "a string", &kind); err != nil {
		return "", wrong(err)
	}
	if kind != "function" {
		return "", invalid(field.At(path, "type"), "invalid_value", "'"+kind+"' is not a kind of tool that is supported: use 'function'.")
	}
	if !t.Has("function") {
		return "", missing(field.At(path, "function"))
	}
	path = field.At(path, "function")
	fn, err := field.Parse(path, t["function"])
	if err != nil {
		return "", wrong(err)
	}
	if err := field.Read(fn, path, "name", "a string", &name); err != nil {
		return "", wrong(err)
	}
	if !toolName.MatchString(name) {
		return "", invalid(field.At(path, "name"), "invalid_value", "'"+name+"' must consist of 1 to 64 letters, digits, '_' and '-'.")
	}
	if fn.Has("parameters") {
		if _, err := field.Parse(field.At(path, "parameters"), fn["parameters"]); err != nil {
			return "", wrong(err)
		}
	}
	return name, nil
}

func (d *decoder) segment(raw json.RawMessage, tokens int) {
	d.req.Prompt = append(d.req.Prompt, chat.Segment{Canonical: raw, Tokens: tokens})
}

func (d *decoder) messages(o field.Object) *chat.Fault {
	list, err := o.List("", "messages")
	if err != nil {
		return wrong(err)
	}
	if len(list) == 0 {
		return invalid("messages", "empty_array", "'messages' must have at least one element.")
	}
	if len(list) > maxMessages {
		return invalid("messages", "array_above_max_length", "'messages' has too many elements.")
	}
	t := threads{}
	var system []string
	for i, raw := range list {
		path := field.At("messages", i)
		m, tokens, f := message(path, raw)
		if f != nil {
			return f
		}
		if f := t.follow(path, m); f != nil {
			return f
		}
		d.segment(raw, tokens)
		if m.Role == chat.System {
			for _, p := range m.Parts {
				system = append(system, p.Text)
			}
			continue
		}
		d.req.Messages = append(d.req.Messages, m)
	}
	d.req.System = strings.Join(system, "\n")
	return t.end()
}

func message(path string, raw json.RawMessage) (chat.Message, int, *chat.Fault) {
	var m chat.Message
	o, err := field.Parse(path, raw)
	if err != nil {
		return m, 0, wrong(err)
	}
	if !o.Has("role") {
		return m, 0, missing(field.At(path, "role"))
	}
	if err := field.Read(o, path, "role", "a string", &m.Role); err != nil {
		return m, 0, wrong(err)
	}
	if m.Role == "developer" {
		m.Role = chat.System
	}
	if !slices.Contains([]chat.Role{chat.System, chat.User, chat.Assistant, chat.Tool}, m.Role) {
		return m, 0, invalid(field.At(path, "role"), "invalid_value", "'"+string(m.Role)+"' is not one of system, developer, user, assistant, tool.")
	}
	if m.Role == chat.Tool {
		return toolMessage(path, o)
	}
	parts, tokens, f := content(path, o)
	if f != nil {
		return m, 0, f
	}
	m.Parts = parts
	if m.Role == chat.Assistant && o.Has("tool_calls") {
		calls, f := toolCalls(path, o)
		if f != nil {
			return m, 0, f
		}
		m.Parts = append(m.Parts, calls...)
		tokens += (len(o["tool_calls"]) + 3) / 4
	}
	if len(m.Parts) == 0 && m.Role != chat.Assistant {
		return m, 0, invalid(field.At(path, "content"), "invalid_type", "'"+field.At(path, "content")+"' must be a string or an array, not null.")
	}
	return m, tokens, nil
}

// content decodes a message's content: a string, or an array of parts.
func content(path string, o field.Object) ([]chat.Part, int, *chat.Fault) {
	if !o.Has("content") {
		return nil, 0, nil
	}
	at := field.At(path, "content")
	if field.IsString(o["content"]) {
		var s string
		if err := field.Read(o, path, "content", "a string", &s); err != nil {
			return nil, 0, wrong(err)
		}
		return []chat.Part{{Kind: chat.TextPart, Text: s}}, chat.Tokens(len(s)), nil
	}
	list, err := o.List(path, "content")
	if err != nil {
		return nil, 0, wrong(err)
	}
	var parts []chat.Part
	tokens := 0
	for i, raw := range list {
		p, n, f := part(field.At(at, i), raw)
		if f != nil {
			return nil, 0, f
		}
		parts, tokens = append(parts, p), tokens+n
	}
	return parts, tokens, nil
}

func part(path string, raw json.RawMessage) (chat.Part, int, *chat.Fault) {
	var p chat.Part
	o, err := field.Parse(path, raw)
	if err != nil {
		return p, 0, wrong(err)
	}
	var kind string
	if err := field.Read(o, path, "type", "a string", &kind); err != nil {
		return p, 0, wrong(err)
	}
	switch kind {
	case "text", "refusal":
		if err := field.Read(o, path, kind, "a string", &p.Text); err != nil {
			return p, 0, wrong(err)
		}
		p.Kind = chat.TextPart
		return p, chat.Tokens(len(p.Text)), nil
	case "image_url":
		return filePart(path, "image_url", "url", o)
	case "file":
		return filePart(path, "file", "file_data", o)
	case "input_audio":
		return chat.Part{Kind: chat.FilePart, Media: "audio"}, chat.FileTokens, nil
	default:
		return p, 0, invalid(field.At(path, "type"), "invalid_value", "'"+kind+"' is not one of text, image_url, input_audio, file, refusal.")
	}
}

// filePart decodes a file given by a URL, a data: URL, or an id.
func filePart(path, name, dataField string, o field.Object) (chat.Part, int, *chat.Fault) {
	p := chat.Part{Kind: chat.FilePart, Media: "image"}
	if name == "file" {
		p.Media = "file"
	}
	at := field.At(path, name)
	if !o.Has(name) {
		return p, 0, missing(at)
	}
	f, err := field.Parse(at, o[name])
	if err != nil {
		return p, 0, wrong(err)
	}
	var url string
	if err := field.Read(f, at, dataField, "a string", &url); err != nil {
		return p, 0, wrong(err)
	}
	if url == "" && !f.Has("file_id") {
		return p, 0, missing(field.At(at, dataField))
	}
	rest, inline := strings.CutPrefix(url, "data:")
	if !inline {
		p.URL = url
		return p, chat.FileTokens, nil
	}
	media, data, ok := strings.Cut(rest, ";base64,")
	b, err := base64.StdEncoding.DecodeString(data)
	if !ok || err != nil || len(b) == 0 {
		return p, 0, invalid(field.At(at, dataField), "invalid_value", "'"+field.At(at, dataField)+"' is not a data URL with base64.")
	}
	p.Media, p.Bytes = media, len(b)
	return p, chat.FileTokens, nil
}

func toolCalls(path string, o field.Object) ([]chat.Part, *chat.Fault) {
	list, err := o.List(path, "tool_calls")
	if err != nil {
		return nil, wrong(err)
	}
	if len(list) == 0 {
		return nil, invalid(field.At(path, "tool_calls"), "empty_array", "'tool_calls' must not be an empty array.")
	}
	var parts []chat.Part
	for i, raw := range list {
		at := field.At(field.At(path, "tool_calls"), i)
		c, err := field.Parse(at, raw)
		if err != nil {
			return nil, wrong(err)
		}
		p := chat.Part{Kind: chat.CallPart}
		var kind, args string
		if err := field.Read(c, at, "id", "a string", &p.ID); err != nil {
			return nil, wrong(err)
		}
		if err := field.Read(c, at, "type", "a string", &kind); err != nil {
			return nil, wrong(err)
		}
		if p.ID == "" || kind != "function" || !c.Has("function") {
			return nil, invalid(at, "", "A tool call needs 'id', 'type' (\"function\") and 'function'.")
		}
		at = field.At(at, "function")
		fn, err := field.Parse(at, c["function"])
		if err != nil {
			return nil, wrong(err)
		}
		if err := field.Read(fn, at, "name", "a string", &p.Name); err != nil {
			return nil, wrong(err)
		}
		if err := field.Read(fn, at, "arguments", "a string", &args); err != nil {
			return nil, wrong(err)
		}
		if p.Name == "" || !fn.Has("arguments") {
			return nil, missing(field.At(at, "name"))
		}
		p.Args = json.RawMessage(args)
		parts = append(parts, p)
	}
	return parts, nil
}

func toolMessage(path string, o field.Object) (chat.Message, int, *chat.Fault) {
	m := chat.Message{Role: chat.Tool}
	p := chat.Part{Kind: chat.ResultPart}
	if !o.Has("tool_call_id") {
		return m, 0, missing(field.At(path, "tool_call_id"))
	}
	if err := field.Read(o, path, "tool_call_id", "a string", &p.ID); err != nil {
		return m, 0, wrong(err)
	}
	parts, tokens, f := content(path, o)
	if f != nil {
		return m, 0, f
	}
	if parts == nil {
		return m, 0, missing(field.At(path, "content"))
	}
	p.Text = texts(parts)
	m.Parts = []chat.Part{p}
	return m, tokens, nil
}

func texts(parts []chat.Part) string {
	var out []string
	for _, p := range parts {
		if p.Kind == chat.TextPart {
			out = append(out, p.Text)
		}
	}
	return strings.Join(out, "\n")
}

// threads checks that tool messages answer all calls of a message before any other message.
type threads struct {
	open []string
	path string
}

func (t *threads) follow(path string, m chat.Message) *chat.Fault {
	if m.Role == chat.Tool {
		n := slices.Index(t.open, m.Parts[0].ID)
		if n < 0 {
			return invalid(field.At(path, "role"), "", "A message with role 'tool' must answer a call of the message before with 'tool_calls'.")
		}
		t.open = slices.Delete(t.open, n, n+1)
		return nil
	}
	if f := t.end(); f != nil {
		return f
	}
	for _, p := range m.Parts {
		if p.Kind != chat.CallPart {
			continue
		}
		if slices.Contains(t.open, p.ID) {
			return invalid(field.At(path, "tool_calls"), "", "The tool call id '"+p.ID+"' is used twice.")
		}
		t.open, t.path = append(t.open, p.ID), path
	}
	return nil
}

func (t *threads) end() *chat.Fault {
	if len(t.open) == 0 {
		return nil
	}
	return invalid(t.path, "", "An assistant message with 'tool_calls' must be followed by a tool message for each call. No answer for: "+strings.Join(t.open, ", "))
}
