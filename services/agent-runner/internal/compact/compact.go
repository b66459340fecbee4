// Package compact decides which part of a conversation a summary may replace, and renders that
// part for the model that writes the summary.
//
// A summary stands for the first messages of the conversation. It ends where the rest can be sent
// without it: a tool call is never separated from its result, nor an answer from the part that
// continues it after the provider paused, nor a message from those that were sent with it.
package compact

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

const (
	bytesPerToken = 4
	// tokensOfFile is a guess for images and other files whose tokens do not follow from their size.
	tokensOfFile = 1_600
)

// TokensOf estimates the tokens of text.
func TokensOf(text string) int64 { return int64(len(text) / bytesPerToken) }

// Tokens estimates the tokens of a message's content.
func Tokens(content json.RawMessage) int64 {
	n := int64(len(content))
	parts, _ := modelmsg.Parse(content) // content that cannot be parsed has no files
	files := int64(0)
	for i := range parts {
		p := &parts[i]
		if p.Type != modelmsg.File {
			continue
		}
		n -= int64(len(p.Data))
		if strings.HasPrefix(p.MediaType, "text/") && !p.IsURL() {
			n += int64(len(p.Data) / 4 * 3) // base64
		} else {
			files += tokensOfFile
		}
	}
	return n/bytesPerToken + files
}

// Cut returns how many of the messages a summary may replace so that those after them are about
// keep tokens, or a few more where they cannot be separated. It returns 0 if that is not more than
// the first from messages, for which a summary stands already.
func Cut(messages []run.Message, from int, keep int64) int {
	best, tail := 0, int64(0)
	for i := len(messages) - 1; i > from; i-- {
		tail += Tokens(messages[i].Content)
		if best > 0 && tail > keep {
			break
		}
		if begins(messages, i) {
			best = i
		}
	}
	return best
}

// begins reports whether the conversation can be sent from message i on.
func begins(messages []run.Message, i int) bool {
	role, before := messages[i].Role, messages[i-1].Role
	return role != string(llm.Tool) && role != before
}

// The bounds of a transcript's entries, in bytes.
const (
	maxEntry = 16_000
	minEntry = 120
)

// Transcript renders messages as text of at most limit bytes. Long entries are shortened first; if
// that is not enough, the oldest are left out. earlier is the summary of what came before, or
// empty; it is kept.
func Transcript(earlier string, messages []run.Message, limit int) string {
	if earlier != "" {
		earlier = "[summary of what came before]\n" + plain(earlier) + "\n\n"
	}
	limit = max(limit-len(earlier), minEntry)
	var text string
	for entry := maxEntry; entry >= minEntry; entry /= 2 {
		if text = render(messages, entry); len(text) <= limit {
			return earlier + text
		}
	}
	const left = "[older messages are left out]\n"
	return earlier + left + strings.ToValidUTF8(text[len(text)-max(limit-len(left), 0):], "")
}

func render(messages []run.Message, entry int) string {
	var b strings.Builder
	for i := range messages {
		m := &messages[i]
		parts, err := modelmsg.Parse(m.Content)
		if err != nil {
			continue
		}
		for j := range parts {
			if head, text := describe(m.Role, &parts[j]); head != "" {
				b.WriteString("[" + head + "]\n" + plain(Shorten(text, entry)) + "\n\n")
			}
		}
	}
	return b.String()
}

// plain returns the text of an entry, which neither ends the transcript nor begins another entry:
// what a page says must not look like a message of the user.
func plain(text string) string {
	text = strings.ReplaceAll(text, "</transcript", "<\\/transcript")
	return strings.ReplaceAll("\n"+text, "\n[", "\n [")[1:]
}

// describe returns the heading and the text of a part. The model's reasoning is left out.
func describe(role string, p *modelmsg.Part) (head, text string) {
	switch p.Type {
	case modelmsg.Text:
		return role, p.Text
	case modelmsg.File:
		return role + " attached a file", strings.TrimSpace(p.Filename + " (" + p.MediaType + ")")
	case modelmsg.ToolCall:
		return "call of " + p.ToolName, string(p.Input)
	case modelmsg.ToolResult:
		return "result of " + p.ToolName, p.Output.String()
	}
	return "", ""
}

// Shorten returns text of at most about limit bytes: its beginning and, of longer text, its end.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	head, tail := limit*2/3, limit/3
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	at := len(text) - tail
	for at < len(text) && !utf8.RuneStart(text[at]) {
		at++
	}
	return text[:head] + " […] " + text[at:]
}

// LastRequest returns the text of the last user message.
func LastRequest(messages []run.Message) string {
	for _, m := range slices.Backward(messages) {
		if m.Role == string(llm.User) {
			return modelmsg.PlainText(m.Content)
		}
	}
	return ""
}
