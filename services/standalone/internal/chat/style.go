package chat

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// Style formats text. The zero Style is plain text of any width.
type Style struct {
	// Width is the number of columns; 0 wraps nothing.
	Width int
	// Colours are for terminals; without them Markdown stays as it is.
	Colours bool
}

// Longer lines are hard to read, even if the terminal is wider.
const maxWidth = 100

func (s Style) width() int { return min(cmp.Or(s.Width, maxWidth), maxWidth) }

func (s Style) paint(e effect, text string) string {
	if !s.Colours || text == "" {
		return text
	}
	// Each line separately: lines are printed one by one.
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = e.apply(l)
	}
	return strings.Join(lines, "\n")
}

func (s Style) dim(text string) string  { return s.paint(faint, text) }
func (s Style) bold(text string) string { return s.paint(bold, text) }
func (s Style) red(text string) string  { return s.paint(effect{"31", "39"}, text) }

// wrap breaks lines at the width, without Markdown.
func (s Style) wrap(text string) string { return ansi.Wrap(clean(text), s.width(), "") }

// clean removes characters that control the terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

// oneLine returns text in one line of at most n columns.
func oneLine(text string, n int) string {
	return ansi.Truncate(strings.Join(strings.Fields(clean(text)), " "), n, "…")
}

// user formats a person's message.
func (s Style) user(text string) string {
	return s.bold("> " + strings.ReplaceAll(ansi.Wrap(clean(text), s.width()-2, ""), "\n", "\n  "))
}

// toolCall formats a call in one line.
func (s Style) toolCall(name string, args json.RawMessage) string {
	return s.toolLine("→ ", name, fields(args))
}

// toolResult formats the outcome of a call in one line.
func (s Style) toolResult(name, result string, failed bool) string {
	what := fields(json.RawMessage(result))
	if failed {
		return s.red("✗ ") + s.toolLine("", name, what)
	}
	return s.toolLine("✓ ", name, what)
}

func (s Style) toolLine(mark, name, what string) string {
	name = clean(name)
	return s.dim(mark) + name + "  " + s.dim(oneLine(what, max(s.width()-ansi.StringWidth(name)-4, 10)))
}

// fields returns a JSON object as name: value pairs in their order, and any other JSON
// unchanged.
func fields(object json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return plain(object)
	}
	var out []string
	for d.More() {
		var value json.RawMessage
		name, err := d.Token()
		if err != nil || d.Decode(&value) != nil {
			return string(object)
		}
		out = append(out, fmt.Sprintf("%v: %s", name, oneLine(plain(value), 60)))
	}
	return strings.Join(out, " · ")
}

// plain returns a JSON string without quotes, and any other JSON unchanged.
func plain(value json.RawMessage) string {
	var s string
	if json.Unmarshal(value, &s) == nil {
		return s
	}
	return string(value)
}
