package openai

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

const (
	maxToolName     = 64
	emptySchema     = `{"type":"object","properties":{}}`
	textBeforeFirst = "(The conversation begins here.)"
	textToGoOn      = "Go on."
)

// Build returns the body of a request. It is deterministic, which prompt caches rely on.
func Build(req *llm.Request, flavor Flavor) ([]byte, error) {
	turns, err := llm.Turns(req.Messages, llm.Wire{
		Dialect: flavor.Dialect(),
		Calls:   rawCalls,
		IDByte:  func(c byte) bool { return c > ' ' && c < 0x7f },
		MaxID:   40,
	})
	if err != nil {
		return nil, llm.Refuse(llm.KindInvalid, "The conversation cannot be sent: %v.", err)
	}
	b := builder{req: req, flavor: flavor, turns: turns, options: llm.ReadOptions(req.Options[flavor.Dialect()])}
	return b.build()
}

func rawCalls(raw json.RawMessage) (ids []string, ok bool) {
	r := jscan.NewReader(raw)
	if !r.Array() || !r.Elem() {
		return nil, false
	}
	message := r.Skip()
	if r.Elem() || !r.Done() || jscan.KindOf(message) != jscan.Object {
		return nil, false
	}
	calls := jscan.Member(message, "tool_calls")
	if jscan.KindOf(calls) != jscan.Array {
		return nil, true
	}
	c := jscan.NewReader(calls)
	c.Array()
	for c.Elem() {
		ids = append(ids, jscan.MemberString(c.Skip(), "id"))
	}
	return ids, true
}

type builder struct {
	req     *llm.Request
	flavor  Flavor
	turns   []llm.Turn
	options llm.Options
	out     []byte
	written int // messages
	last    llm.Role
}

func (b *builder) build() ([]byte, error) {
	b.out = append(b.out, `{"model":`...)
	b.out = jscan.AppendString(b.out, b.req.Model)
	b.out = append(b.out, `,"stream":true`...)
	if b.options.Free("stream_options") {
		b.out = append(b.out, `,"stream_options":{"include_usage":true}`...)
	}
	b.limits()
	b.format()
	b.reasoning()
	b.meta()
	b.tools()
	b.out = b.options.Append(b.out)
	b.out = append(b.out, `,"messages":[`...)
	if err := b.messages(); err != nil {
		return nil, err
	}
	return append(b.out, "]}"...), nil
}

func (b *builder) limits() {
	if n := b.req.MaxOutputTokens; n > 0 && b.options.Free("max_tokens") && b.options.Free("max_completion_tokens") {
		name := `,"max_tokens":`
		if b.flavor == OpenAI {
			name = `,"max_completion_tokens":`
		}
		b.out = append(b.out, name...)
		b.out = strconv.AppendInt(b.out, int64(n), 10)
	}
	// OpenAI's reasoning models accept no temperature.
	if t := b.req.Temperature; t != nil && b.options.Free("temperature") && (b.flavor != OpenAI || !b.req.Reasoning.Enabled()) {
		b.out = append(b.out, `,"temperature":`...)
		b.out = strconv.AppendFloat(b.out, min(max(*t, 0), 2), 'g', -1, 64)
	}
}

// format asks for an answer in JSON. OpenAI takes what it cannot enforce as a hint; other
// servers are not asked for that.
func (b *builder) format() {
	strict := llm.StrictOf(b.req.Format).OK
	if !b.options.Free("response_format") || !strict && (b.flavor != OpenAI || jscan.MemberString(b.req.Format, "type") != "object") {
		return
	}
	b.out = append(b.out, `,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":`...)
	b.out = strconv.AppendBool(b.out, strict)
	b.out = append(b.out, `,"schema":`...)
	b.out = jscan.AppendCompact(b.out, b.req.Format)
	b.out = append(b.out, "}}"...)
}

func (b *builder) reasoning() {
	r := b.req.Reasoning
	if !r.Enabled() || !b.options.Free("reasoning") || !b.options.Free("reasoning_effort") {
		return
	}
	switch {
	case b.flavor == OpenRouter && r.Budget > 0:
		b.out = append(b.out, `,"reasoning":{"max_tokens":`...)
		b.out = strconv.AppendInt(b.out, int64(r.Budget), 10)
		b.out = append(b.out, '}')
	case b.flavor == OpenRouter:
		b.out = append(b.out, `,"reasoning":{"effort":`...)
		b.out = jscan.AppendString(b.out, r.Level())
		b.out = append(b.out, '}')
	default:
		b.out = append(b.out, `,"reasoning_effort":`...)
		b.out = jscan.AppendString(b.out, r.Level())
	}
}

func (b *builder) meta() {
	member := func(name, value string) {
		if value != "" && b.options.Free(name) {
			b.out = append(b.out, `,"`+name+`":`...)
			b.out = jscan.AppendString(b.out, value)
		}
	}
	switch b.flavor {
	case OpenAI:
		if !b.req.NoCache {
			member("prompt_cache_key", b.req.Meta.Session)
		}
		member("safety_identifier", b.req.Meta.User)
	case OpenRouter:
		member("user", b.req.Meta.User)
	}
}

func (b *builder) tools() {
	n := 0
	for i := range b.req.Tools {
		t := &b.req.Tools[i]
		if t.Provider != "" && (t.Provider != b.flavor.Dialect() || jscan.KindOf(t.Definition) != jscan.Object || !jscan.Valid(t.Definition)) {
			continue
		}
		if n++; n == 1 {
			b.out = append(b.out, `,"tools":[`...)
		} else {
			b.out = append(b.out, ',')
		}
		if t.Provider != "" {
			b.out = jscan.AppendCompact(b.out, t.Definition)
		} else {
			b.tool(t)
		}
	}
	if n == 0 {
		return
	}
	b.out = append(b.out, ']')
	if !b.options.Free("tool_choice") {
		return
	}
	switch b.req.Choice.Mode {
	case llm.ChoiceNone:
		b.out = append(b.out, `,"tool_choice":"none"`...)
	case llm.ChoiceRequired:
		b.out = append(b.out, `,"tool_choice":"required"`...)
	case llm.ChoiceTool:
		b.out = append(b.out, `,"tool_choice":{"type":"function","function":{"name":`...)
		b.out = jscan.AppendString(b.out, llm.ToolName(b.req.Choice.Name, maxToolName))
		b.out = append(b.out, "}}"...)
	}
}

func (b *builder) tool(t *llm.ToolDef) {
	b.out = append(b.out, `{"type":"function","function":{"name":`...)
	b.out = jscan.AppendString(b.out, llm.ToolName(t.Name, maxToolName))
	if t.Description != "" {
		b.out = append(b.out, `,"description":`...)
		b.out = jscan.AppendString(b.out, t.Description)
	}
	b.out = append(b.out, `,"parameters":`...)
	if jscan.KindOf(t.Schema) == jscan.Object && jscan.Valid(t.Schema) {
		b.out = jscan.AppendCompact(b.out, t.Schema)
	} else {
		b.out = append(b.out, emptySchema...)
	}
	b.out = append(b.out, "}}"...)
}

// message writes the beginning of a message, up to its content.
func (b *builder) message(role llm.Role) {
	if role == llm.Assistant && b.last == "" {
		b.text(llm.User, textBeforeFirst)
	}
	b.comma()
	if role != llm.System {
		b.last = role
	}
	b.out = append(b.out, `{"role":"`...)
	b.out = append(b.out, role...)
	b.out = append(b.out, '"')
}

func (b *builder) comma() {
	if b.written++; b.written > 1 {
		b.out = append(b.out, ',')
	}
}

func (b *builder) text(role llm.Role, text string) {
	b.message(role)
	b.out = append(b.out, `,"content":`...)
	b.out = jscan.AppendString(b.out, text)
	b.out = append(b.out, '}')
}

func (b *builder) messages() error {
	var system []string
	for _, s := range b.req.System {
		if strings.TrimSpace(s.Text) != "" {
			system = append(system, s.Text)
		}
	}
	if len(system) > 0 {
		b.text(llm.System, strings.Join(system, "\n\n"))
	}
	newest := -1
	for i := range b.turns {
		if b.turns[i].Role == llm.User {
			newest = i
		}
	}
	for i := range b.turns {
		t := &b.turns[i]
		switch t.Role {
		case llm.System:
			if s := joined(t.Parts); strings.TrimSpace(s) != "" {
				b.text(llm.System, s)
			}
		case llm.User:
			if err := b.user(t, i == newest); err != nil {
				return err
			}
		case llm.Assistant:
			b.answer(t, i > newest)
		}
	}
	switch b.last {
	case "":
		b.text(llm.User, textBeforeFirst)
	case llm.Assistant:
		b.text(llm.User, textToGoOn)
	}
	return nil
}

// joined returns the text of an answer. It concatenates adjacent texts, which the provider has
// split, and separates texts with another part between them.
func joined(parts []modelmsg.Part) string {
	var s strings.Builder
	apart := false
	for i := range parts {
		if parts[i].Type != modelmsg.Text {
			apart = s.Len() > 0
			continue
		}
		if apart && parts[i].Text != "" {
			s.WriteString("\n\n")
			apart = false
		}
		s.WriteString(parts[i].Text)
	}
	return s.String()
}

// answer writes an assistant's turn and the results of its calls.
func (b *builder) answer(t *llm.Turn, current bool) {
	if !b.rawAnswer(t, current) {
		text := joined(t.Parts)
		if strings.TrimSpace(text) == "" && len(t.Calls) == 0 {
			return
		}
		b.message(llm.Assistant)
		if text == "" {
			b.out = append(b.out, `,"content":null`...)
		} else {
			b.out = append(b.out, `,"content":`...)
			b.out = jscan.AppendString(b.out, text)
		}
		b.toolCalls(t.Calls)
		b.out = append(b.out, '}')
	}
	for i := range t.Calls {
		c := &t.Calls[i]
		b.message(llm.Tool)
		b.out = append(b.out, `,"tool_call_id":`...)
		b.out = jscan.AppendString(b.out, c.ID)
		b.out = append(b.out, `,"content":`...)
		b.out = jscan.AppendString(b.out, resultText(&c.Output))
		b.out = append(b.out, '}')
	}
	b.pictures(t.Calls)
}

// pictures writes the images of tools' results as a user's message, because the protocol takes
// none in a tool's.
func (b *builder) pictures(calls []llm.Call) {
	var parts []byte
	for i := range calls {
		for _, p := range resultFiles(&calls[i].Output) {
			part, problem := b.file(&p)
			if problem != "" || !strings.HasPrefix(p.MediaType, "image/") {
				continue
			}
			parts = append(append(append(parts, ','), textPart("[The picture that "+llm.ToolName(calls[i].Name, maxToolName)+" returned:]")...), ',')
			parts = append(parts, part...)
		}
	}
	if parts == nil {
		return
	}
	b.message(llm.User)
	b.out = append(append(b.out, `,"content":[`...), parts[1:]...)
	b.out = append(b.out, "]}"...)
}

// resultFiles returns the files of a content output.
func resultFiles(o *modelmsg.Output) (files []modelmsg.Part) {
	if o.Type != modelmsg.OutputContent || jscan.KindOf(o.Value) != jscan.Array {
		return nil
	}
	r := jscan.NewReader(o.Value)
	r.Array()
	for r.Elem() {
		if item := r.Skip(); jscan.MemberString(item, "type") != "text" {
			files = append(files, llm.RichFile(item))
		}
	}
	return files
}

func (b *builder) toolCalls(calls []llm.Call) {
	if len(calls) == 0 {
		return
	}
	b.out = append(b.out, `,"tool_calls":[`...)
	for i := range calls {
		c := &calls[i]
		if i > 0 {
			b.out = append(b.out, ',')
		}
		b.out = append(b.out, `{"id":`...)
		b.out = jscan.AppendString(b.out, c.ID)
		b.out = append(b.out, `,"type":"function","function":{"name":`...)
		b.out = jscan.AppendString(b.out, llm.ToolName(c.Name, maxToolName))
		b.out = append(b.out, `,"arguments":`...)
		args, _ := llm.Arguments(c.Input)
		b.out = jscan.AppendString(b.out, args)
		b.out = append(b.out, "}}"...)
	}
	b.out = append(b.out, ']')
}

// rawAnswer writes the message as the provider sent it, without the members that the provider
// does not accept. It returns false if there is no such message or it is empty.
func (b *builder) rawAnswer(t *llm.Turn, current bool) bool {
	if t.Raw == nil {
		return false
	}
	r := jscan.NewReader(t.Raw)
	r.Array()
	r.Elem()
	message := r.Skip()
	if len(t.Calls) == 0 && strings.TrimSpace(jscan.MemberString(message, "content")) == "" && jscan.MemberString(message, "refusal") == "" {
		return false
	}
	b.message(llm.Assistant)
	m := jscan.NewReader(message)
	m.Object()
	for key, ok := m.Key(); ok; key, ok = m.Key() {
		name, value := string(key), m.Skip()
		if name == "role" || !b.maySendBack(name, current) {
			continue
		}
		b.out = append(b.out, ',')
		b.out = jscan.AppendString(b.out, name)
		b.out = append(b.out, ':')
		b.out = append(b.out, value...)
	}
	b.out = append(b.out, '}')
	return true
}

// maySendBack reports whether a member of an answer may be sent back. OpenAI refuses unknown
// members and OpenRouter wants all of them. Some compatible servers want their reasoning back
// during the tool calls of the same question and refuse it later.
func (b *builder) maySendBack(name string, current bool) bool {
	switch name {
	case "content", "tool_calls":
		return true
	case "refusal":
		return b.flavor != Compatible
	}
	switch b.flavor {
	case OpenRouter:
		return true
	case Compatible:
		return current && name != "annotations"
	}
	return false
}

func resultText(o *modelmsg.Output) string {
	if o.Type != modelmsg.OutputContent || jscan.KindOf(o.Value) != jscan.Array {
		return o.String()
	}
	var texts []string
	r := jscan.NewReader(o.Value)
	r.Array()
	for r.Elem() {
		item := r.Skip()
		if jscan.MemberString(item, "type") == "text" {
			texts = append(texts, jscan.MemberString(item, "text"))
			continue
		}
		p := llm.RichFile(item)
		if strings.HasPrefix(p.MediaType, "image/") {
			continue // see pictures
		}
		texts = append(texts, llm.FileRemark(&p))
	}
	return strings.Join(texts, "\n")
}

// user writes a user message. A file that the model cannot read is an error in the newest
// message and becomes a remark in an older one.
func (b *builder) user(t *llm.Turn, newest bool) error {
	if len(t.Parts) == 1 && t.Parts[0].Type == modelmsg.Text {
		text := t.Parts[0].Text
		if strings.TrimSpace(text) == "" {
			text = "(empty message)"
		}
		b.text(llm.User, text)
		return nil
	}
	b.message(llm.User)
	b.out = append(b.out, `,"content":[`...)
	n := 0
	for i := range t.Parts {
		p := &t.Parts[i]
		part := textPart(p.Text)
		if p.Type == modelmsg.File {
			var problem string
			part, problem = b.file(p)
			if problem != "" && newest {
				return llm.Refuse(llm.KindInvalid, "The file %s cannot be sent to this model: %s.", llm.FileLabel(p), problem)
			}
			if problem != "" {
				part = textPart(llm.FileRemark(p))
			}
		} else if p.Type != modelmsg.Text || strings.TrimSpace(p.Text) == "" {
			continue
		}
		if n++; n > 1 {
			b.out = append(b.out, ',')
		}
		b.out = append(b.out, part...)
	}
	if n == 0 {
		b.out = append(b.out, textPart("(empty message)")...)
	}
	b.out = append(b.out, "]}"...)
	return nil
}

func textPart(text string) []byte {
	return append(jscan.AppendString([]byte(`{"type":"text","text":`), text), '}')
}

// file converts a file part, or returns the reason why it cannot.
func (b *builder) file(p *modelmsg.Part) (part []byte, problem string) {
	switch {
	case strings.HasPrefix(p.MediaType, "image/"):
		if p.MediaType == "image/svg+xml" {
			return nil, "SVG images are not accepted; send PNG or JPEG"
		}
		return append(appendURL([]byte(`{"type":"image_url","image_url":{"url":`), p), "}}"...), ""
	case llm.IsText(p.MediaType) && p.IsURL():
		return nil, "text files have to be attached, not linked"
	case llm.IsText(p.MediaType):
		text, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil || !utf8.Valid(text) {
			return nil, "it is not UTF-8 text"
		}
		name := p.Filename
		if name == "" {
			name = "unnamed"
		}
		return textPart("<file name=" + strconv.Quote(name) + ">\n" + string(text) + "\n</file>"), ""
	case b.flavor == Compatible:
		return nil, "it reads images and text, not " + p.MediaType
	case p.MediaType == "application/pdf":
		if p.IsURL() && b.flavor == OpenAI {
			return nil, "PDF files have to be attached, not linked"
		}
		name := p.Filename
		if name == "" {
			name = "file.pdf"
		}
		part = jscan.AppendString([]byte(`{"type":"file","file":{"filename":`), name)
		return append(appendURL(append(part, `,"file_data":`...), p), "}}"...), ""
	}
	if format := audioFormat(p.MediaType); format != "" && !p.IsURL() {
		part = jscan.AppendString([]byte(`{"type":"input_audio","input_audio":{"data":`), p.Data)
		return append(part, `,"format":"`+format+`"}}`...), ""
	}
	return nil, "it reads images, PDF, text and audio (WAV, MP3), not " + p.MediaType
}

func audioFormat(media string) string {
	switch media {
	case "audio/wav", "audio/x-wav", "audio/wave":
		return "wav"
	case "audio/mpeg", "audio/mp3":
		return "mp3"
	}
	return ""
}

// appendURL appends the URL of a file as a JSON string. An attached file becomes a data: URL.
func appendURL(dst []byte, p *modelmsg.Part) []byte {
	if p.IsURL() {
		return jscan.AppendString(dst, p.Data)
	}
	dst = append(dst, '"')
	dst = append(dst, "data:"...)
	dst = jscan.AppendEscaped(dst, p.MediaType)
	dst = append(dst, ";base64,"...)
	dst = jscan.AppendEscaped(dst, p.Data)
	return append(dst, '"')
}
