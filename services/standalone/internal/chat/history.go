package chat

import (
	"encoding/json"
	"strings"
)

// part is a part of a message's content (AI SDK ModelMessage).
type part struct {
	Type, Text, ToolName, Filename, MediaType string

	Input  json.RawMessage
	Output struct {
		Type  string
		Value json.RawMessage
	}
}

// parts returns the parts of a message; a string is one text part.
func (m Message) parts() []part {
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		return []part{{Type: "text", Text: text}}
	}
	var all []part
	_ = json.Unmarshal(m.Content, &all) // of a later release: not shown
	return all
}

// Transcript formats messages, one below the other.
func (s Style) Transcript(messages []Message) string {
	var out []string
	inTools := false // the last block is about tools
	for _, m := range messages {
		for _, p := range m.parts() {
			text := ""
			switch {
			case p.Type == "text" && m.Role == "user":
				text = s.user(p.Text)
			case p.Type == "text":
				text = s.Markdown(p.Text)
			case p.Type == "file":
				text = s.user("[" + strings.TrimSpace(p.Filename+" "+p.MediaType) + "]")
			case p.Type == "tool-call":
				text = s.toolCall(p.ToolName, p.Input)
			case p.Type == "tool-result":
				text = s.toolResult(p.ToolName, plain(p.Output.Value), strings.HasPrefix(p.Output.Type, "error"))
			}
			switch last := len(out) - 1; {
			case text == "":
			case inTools && p.Type == "tool-result":
				out[last] += "\n" + text
			default:
				out = append(out, text)
			}
			inTools = p.Type == "tool-call" || p.Type == "tool-result"
		}
	}
	return strings.Join(out, "\n\n")
}

// userTexts returns what the person wrote, oldest first.
func userTexts(messages []Message) []string {
	var all []string
	for _, m := range messages {
		if m.Role != "user" {
			continue
		}
		for _, p := range m.parts() {
			if p.Type == "text" {
				all = append(all, p.Text)
			}
		}
	}
	return all
}
