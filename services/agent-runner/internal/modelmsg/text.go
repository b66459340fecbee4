package modelmsg

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/pkg/visible"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

const (
	titleRunes      = 80
	modelTitleRunes = 60
	untitled        = "Untitled"
)

// PlainText returns the concatenated text parts of content; providers split one answer into
// several parts. It returns an empty string for content that cannot be parsed.
func PlainText(content json.RawMessage) string {
	parts, err := Parse(content)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for i := range parts {
		if parts[i].Type == Text {
			b.WriteString(parts[i].Text)
		}
	}
	return b.String()
}

// PlainTexts returns the texts of messages, with a blank line between them. Messages
// without text are left out.
func PlainTexts(contents []json.RawMessage) string {
	var texts []string
	for _, c := range contents {
		if text := PlainText(c); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n\n")
}

// Title returns a title for a user message: the first line that is not blank, cut between
// words to at most 80 runes, or the name of the first file, or "Untitled".
func Title(content json.RawMessage) string {
	parts, err := Parse(content)
	if err != nil {
		return untitled
	}
	for i := range parts {
		if parts[i].Type != Text {
			continue
		}
		for line := range strings.Lines(parts[i].Text) {
			if t := titleLine(line, titleRunes); t != "" {
				return t
			}
		}
	}
	for i := range parts {
		if parts[i].Type == File {
			if t := titleLine(parts[i].Filename, titleRunes); t != "" {
				return t
			}
		}
	}
	return untitled
}

// ModelTitle returns a title from what a model wrote when asked for one: the first line that is not
// blank, without quotation marks around it, cut to at most 60 runes. It is empty if there is none.
func ModelTitle(text string) string {
	for line := range strings.Lines(text) {
		line = strings.Trim(strings.TrimSpace(line), "\"'`*“”„‟«»「」")
		if t := titleLine(strings.TrimRight(line, ". "), modelTitleRunes); t != "" {
			return t
		}
	}
	return ""
}

// titleLine returns one line as a title of at most limit runes, or "" if it has no printable
// character.
func titleLine(line string, limit int) string {
	line = visible.Text(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError:
			return -1
		}
		return r
	}, line))
	line = strings.Join(strings.Fields(strings.TrimLeft(line, "#>*- ")), " ")
	if !strings.ContainsFunc(line, func(r rune) bool { return unicode.IsPrint(r) && r != ' ' }) {
		return ""
	}
	if utf8.RuneCountInString(line) <= limit {
		return line
	}
	runes := []rune(line)[:limit] // one more than is kept, because a space there ends a word
	cut := strings.LastIndexByte(string(runes), ' ')
	if short := string(runes[:limit-1]); cut < len(short)/2 {
		return short + "…"
	}
	return strings.TrimRight(string(runes)[:cut], " ,;:.-") + "…"
}

// MarkCancelled marks assistant content as cut short: it adds
// `"signalbox":{"cancelled":true}` to the provider options of the last text part, or of a
// new empty one. It returns content that is already marked, or cannot be parsed, unchanged.
func MarkCancelled(content json.RawMessage) json.RawMessage {
	parts, err := Parse(content)
	if err != nil || jscan.KindOf(content) != jscan.Array || Cancelled(content) {
		return content
	}
	last := len(parts) - 1
	for last >= 0 && parts[last].Type != Text {
		last--
	}
	out := []byte{'['}
	for i := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		if i == last {
			out = appendMarked(out, parts[i].Text, parts[i].ProviderOptions)
		} else {
			out = append(out, parts[i].Raw...)
		}
	}
	if last < 0 {
		if len(parts) > 0 {
			out = append(out, ',')
		}
		out = appendMarked(out, "", nil)
	}
	return append(out, ']')
}

func appendMarked(dst []byte, text string, options json.RawMessage) []byte {
	dst = append(dst, `{"type":"text","text":`...)
	dst = jscan.AppendString(dst, text)
	dst = append(dst, `,"providerOptions":{"signalbox":{"cancelled":true}`...)
	r := jscan.NewReader(options)
	if len(options) > 0 && r.Object() {
		for key, ok := r.Key(); ok; key, ok = r.Key() {
			value := r.Skip()
			if string(key) == "signalbox" || value == nil {
				continue
			}
			dst = append(dst, ',')
			dst = jscan.AppendString(dst, key)
			dst = append(dst, ':')
			dst = append(dst, value...)
		}
	}
	return append(dst, "}}"...)
}

// Cancelled reports whether content has the mark of MarkCancelled.
func Cancelled(content json.RawMessage) bool {
	parts, err := Parse(content)
	if err != nil {
		return false
	}
	for i := range parts {
		mark := jscan.Member(parts[i].ProviderOptions, "signalbox")
		if string(jscan.Member(mark, "cancelled")) == "true" {
			return true
		}
	}
	return false
}
