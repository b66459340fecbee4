package anthropic

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/field"
)

// messages decodes the conversation and checks rules across messages: the first role, unique
// ids, and that the next message answers each tool call.
func (d *decoder) messages(o field.Object) error {
	list, err := o.List("", "messages")
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return field.Bad("messages", "at least one message is required")
	}
	if len(list) > maxMessages {
		return field.Bad("messages", "at most %d messages are allowed", maxMessages)
	}
	t := threads{seen: map[string]bool{}}
	for i, raw := range list {
		path := field.At("messages", i)
		m, err := d.message(path, raw, i == len(list)-1)
		if err != nil {
			return err
		}
		if i == 0 && m.Role != chat.User {
			return field.Bad("messages", "the first message must have the role \"user\"")
		}
		if err := t.follow(path, m); err != nil {
			return err
		}
		if m.Role == chat.User && !slices.ContainsFunc(m.Parts, func(p chat.Part) bool { return p.Kind != chat.ResultPart }) {
			m.Role = chat.Tool // it has only tool results
		}
		d.req.Messages = append(d.req.Messages, m)
	}
	return t.end()
}

func (d *decoder) message(path string, raw json.RawMessage, last bool) (chat.Message, error) {
	var m chat.Message
	o, err := field.Parse(path, raw)
	if err != nil {
		return m, err
	}
	if extra := o.Extra([]string{"role", "content"}); extra != "" {
		return m, field.Bad(field.At(path, extra), "unknown parameter")
	}
	if err := field.Read(o, path, "role", "a string", &m.Role); err != nil {
		return m, err
	}
	if m.Role != chat.User && m.Role != chat.Assistant {
		return m, field.Bad(field.At(path, "role"), "%q is not one of user, assistant (the system prompt is a parameter of its own)", m.Role)
	}
	if !o.Has("content") {
		return m, field.Bad(field.At(path, "content"), "required parameter is missing")
	}
	at := field.At(path, "content")
	blocks, err := blockList(at, o["content"])
	if err != nil {
		return m, err
	}
	if len(blocks) == 0 || string(o["content"]) == `""` {
		if last && m.Role == chat.Assistant {
			return m, nil
		}
		return m, field.Bad(path, "the content must not be empty, except in a final assistant message")
	}
	for i, raw := range blocks {
		p, err := d.block(field.At(at, i), m.Role, raw)
		if err != nil {
			return m, err
		}
		m.Parts = append(m.Parts, p)
	}
	if p := m.Parts[len(m.Parts)-1]; last && m.Role == chat.Assistant && p.Kind == chat.TextPart && strings.TrimRight(p.Text, " \n\t") != p.Text {
		return m, field.Bad("messages", "a final assistant message must not end with white space")
	}
	return m, nil
}

// block decodes one content block. An unknown kind is refused from users and accepted from the
// assistant, because scripts invent kinds.
func (d *decoder) block(path string, role chat.Role, raw json.RawMessage) (chat.Part, error) {
	var p chat.Part
	o, err := field.Parse(path, raw)
	if err != nil {
		return p, err
	}
	var kind string
	if err := field.Read(o, path, "type", "a string", &kind); err != nil {
		return p, err
	}
	tokens := (len(raw) + 3) / 4
	switch kind {
	case "text":
		err = field.Read(o, path, "text", "a string", &p.Text)
		p.Kind, tokens = chat.TextPart, chat.Tokens(len(p.Text))
		if err == nil && p.Text == "" {
			err = field.Bad(path, "text blocks must not be empty")
		}
	case "image", "document":
		p, err = file(path, kind, o)
		tokens = chat.FileTokens
	case "tool_use":
		p, err = call(path, role, o)
	case "tool_result":
		p, err = d.result(path, role, o)
	case "thinking":
		err = thought(path, role, o)
	case "redacted_thinking":
		err = required(path, o, "data")
	case "server_tool_use", "web_search_tool_result":
		if role != chat.Assistant {
			err = field.Bad(path, "%s blocks belong to the assistant", kind)
		}
	case "":
		err = field.Bad(field.At(path, "type"), "required parameter is missing")
	default:
		if role != chat.Assistant {
			err = field.Bad(path, "%q is not a known type of content block", kind)
		}
	}
	if err != nil {
		return p, err
	}
	return p, d.segment(path, o, raw, tokens)
}

func required(path string, o field.Object, name string) error {
	var s string
	if err := field.Read(o, path, name, "a string", &s); err != nil {
		return err
	}
	if s == "" {
		return field.Bad(field.At(path, name), "required parameter is missing")
	}
	return nil
}

func file(path, kind string, o field.Object) (chat.Part, error) {
	p := chat.Part{Kind: chat.FilePart}
	at := field.At(path, "source")
	src, err := field.Parse(at, o["source"])
	if err != nil {
		return p, field.Bad(at, "expected an object")
	}
	var from, data string
	for _, err := range []error{
		field.Read(src, at, "type", "a string", &from),
		field.Read(src, at, "media_type", "a string", &p.Media),
		field.Read(src, at, "data", "a string", &data),
		field.Read(src, at, "url", "a string", &p.URL),
	} {
		if err != nil {
			return p, err
		}
	}
	switch from {
	case "base64":
		known := []string{"image/jpeg", "image/png", "image/gif", "image/webp"}
		if kind == "document" {
			known = []string{"application/pdf"}
		}
		if !slices.Contains(known, p.Media) {
			return p, field.Bad(field.At(at, "media_type"), "%q is not one of %s", p.Media, strings.Join(known, ", "))
		}
		b, err := base64.StdEncoding.DecodeString(data)
		if err != nil || len(b) == 0 {
			return p, field.Bad(field.At(at, "data"), "not valid base64")
		}
		p.Bytes = len(b)
	case "url":
		if p.URL == "" {
			return p, field.Bad(field.At(at, "url"), "required parameter is missing")
		}
		if p.Media == "" {
			p.Media = kind
		}
	case "text":
		p.Bytes = len(data)
	case "content", "file":
	default:
		return p, field.Bad(field.At(at, "type"), "%q is not a known kind of source", from)
	}
	return p, nil
}

func call(path string, role chat.Role, o field.Object) (chat.Part, error) {
	p := chat.Part{Kind: chat.CallPart}
	if role != chat.Assistant {
		return p, field.Bad(path, "tool_use blocks belong to the assistant")
	}
	for _, name := range []string{"id", "name"} {
		if err := required(path, o, name); err != nil {
			return p, err
		}
	}
	if _, err := field.Parse(field.At(path, "input"), o["input"]); err != nil {
		return p, field.Bad(field.At(path, "input"), "expected an object")
	}
	p.Args = o["input"]
	if err := field.Read(o, path, "name", "a string", &p.Name); err != nil {
		return p, err
	}
	err := field.Read(o, path, "id", "a string", &p.ID)
	if err == nil && !toolName.MatchString(p.ID) {
		err = field.Bad(field.At(path, "id"), "%q must consist of letters, digits, '_' and '-'", p.ID)
	}
	return p, err
}

func (d *decoder) result(path string, role chat.Role, o field.Object) (chat.Part, error) {
	p := chat.Part{Kind: chat.ResultPart}
	if role != chat.User {
		return p, field.Bad(path, "tool_result blocks belong to the user")
	}
	if err := required(path, o, "tool_use_id"); err != nil {
		return p, err
	}
	if err := field.Read(o, path, "tool_use_id", "a string", &p.ID); err != nil {
		return p, err
	}
	if err := field.Read(o, path, "is_error", "a boolean", &p.Error); err != nil {
		return p, err
	}
	if !o.Has("content") {
		return p, nil
	}
	at := field.At(path, "content")
	blocks, err := blockList(at, o["content"])
	if err != nil {
		return p, err
	}
	var texts []string
	for i, raw := range blocks {
		b, err := field.Parse(field.At(at, i), raw)
		if err != nil {
			return p, err
		}
		var kind, text string
		if err := field.Read(b, field.At(at, i), "type", "a string", &kind); err != nil {
			return p, err
		}
		if err := field.Read(b, field.At(at, i), "text", "a string", &text); err != nil {
			return p, err
		}
		if !slices.Contains([]string{"text", "image", "document", "search_result", "tool_reference"}, kind) {
			return p, field.Bad(field.At(at, i), "%q is not a kind of block that a tool result may have", kind)
		}
		if kind == "text" {
			texts = append(texts, text)
		}
	}
	p.Text = strings.Join(texts, "\n")
	return p, nil
}

// thought checks a thinking block of an earlier answer: a signature of this simulator must
// match the text.
func thought(path string, role chat.Role, o field.Object) error {
	if role != chat.Assistant {
		return field.Bad(path, "thinking blocks belong to the assistant")
	}
	var text, signature string
	if err := field.Read(o, path, "thinking", "a string", &text); err != nil {
		return err
	}
	if err := required(path, o, "signature"); err != nil {
		return err
	}
	if err := field.Read(o, path, "signature", "a string", &signature); err != nil {
		return err
	}
	if strings.HasPrefix(signature, signed) && signature != Sign(text) {
		return field.Bad(path, "the signature does not fit the thinking: hand thinking blocks back unchanged")
	}
	return nil
}

const signed = "EqSim"

// Sign returns the simulator's signature of a thinking text.
func Sign(text string) string {
	sum := sha256.Sum256([]byte("signalbox simulator\x00" + text))
	return signed + base64.StdEncoding.EncodeToString(append(sum[:], sum[:16]...))
}

// threads checks tool calls and their results across messages.
type threads struct {
	seen map[string]bool
	open []string // ids that the next message must answer
	path string   // of the message that called
}

func (t *threads) follow(path string, m chat.Message) error {
	open := slices.Clone(t.open)
	t.open = nil
	others := false
	for i, p := range m.Parts {
		at := field.At(field.At(path, "content"), i)
		switch p.Kind {
		case chat.CallPart:
			if t.seen[p.ID] {
				return field.Bad(at, "the id %s of this tool_use was used before; ids must be unique", p.ID)
			}
			t.seen[p.ID] = true
			t.open, t.path = append(t.open, p.ID), path
		case chat.ResultPart:
			n := slices.Index(open, p.ID)
			if n < 0 {
				return field.Bad(at, "this tool_result answers %s, but the message before has no tool_use with that id (or it is answered twice)", p.ID)
			}
			if others {
				return field.Bad(at, "tool_result blocks come first in their message")
			}
			open = slices.Delete(open, n, n+1)
		default:
			others = true
		}
	}
	if len(open) > 0 {
		return field.Bad(path, "tool_use without a tool_result in the next message: %s", strings.Join(open, ", "))
	}
	return nil
}

func (t *threads) end() error {
	if len(t.open) > 0 {
		return field.Bad(t.path, "tool_use without a tool_result in the next message: %s", strings.Join(t.open, ", "))
	}
	return nil
}
