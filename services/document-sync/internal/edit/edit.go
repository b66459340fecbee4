// Package edit says what an operation makes of a document's text. It is pure:
// content in, content out. Its errors are faults whose messages are written for
// the one who edits, often a model that must mend its call.
package edit

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
)

// The limits of a document.
const (
	MaxContent = 10 << 20 // bytes
	MaxName    = 200      // characters
)

// Codes of the faults that Replace returns.
const (
	CodeNotFoundText  = "NOT_FOUND_TEXT"
	CodeAmbiguousText = "AMBIGUOUS_TEXT"
)

// shownLines bounds how many places of an ambiguous text are named.
const shownLines = 5

// Name returns a document's name without the spaces around it, or an Invalid fault.
func Name(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", fault.New(fault.Invalid, "name: is not valid UTF-8")
	}
	s = strings.TrimSpace(s)
	switch n := utf8.RuneCountInString(s); {
	case n == 0:
		return "", fault.New(fault.Invalid, "name: is empty; give 1 to %d characters", MaxName)
	case n > MaxName:
		return "", fault.New(fault.Invalid, "name: has %d characters; at most %d are allowed", n, MaxName)
	}
	for _, r := range s {
		// Line and paragraph separators are no control characters to Unicode, but break a line all the same.
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return "", fault.New(fault.Invalid, "name: holds the control character %U; use one line of plain text", r)
		}
	}
	return s, nil
}

// Text returns text from outside with its line ends made \n, so that text which
// somebody copies out of a document is found in it again. field names it in faults.
func Text(field, s string) (string, error) {
	if len(s) > MaxContent {
		return "", tooLarge(field, len(s))
	}
	if !utf8.ValidString(s) {
		return "", fault.New(fault.Invalid, "%s: is not valid UTF-8", field)
	}
	if i := strings.IndexByte(s, 0); i >= 0 {
		return "", fault.New(fault.Invalid, "%s: holds a NUL character at byte %d; leave it out", field, i)
	}
	if strings.IndexByte(s, '\r') < 0 {
		return s, nil
	}
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n"), nil
}

// Replace puts new in the place of old and returns the number of places. There
// must be exactly one unless all is set; otherwise the fault says how many there
// are, and where.
func Replace(content, old, new string, all bool) (string, int, error) {
	if old == "" {
		return "", 0, fault.New(fault.Invalid, "old_text: is empty; give the text to replace, or append instead")
	}
	first := strings.Index(content, old)
	if first < 0 {
		return "", 0, fault.Coded(fault.Conflict, CodeNotFoundText,
			"old_text was not found in the document (0 matches): read the document and use its exact text")
	}
	n := 1
	switch {
	case all:
		n = strings.Count(content, old)
	case overlapsLater(content, old, first):
		// Two places that overlap are two to choose from, which Count sees as one.
		n = max(strings.Count(content, old), 2)
		return "", 0, fault.Coded(fault.Conflict, CodeAmbiguousText,
			"old_text was found %d times in the document (%s): give more of the surrounding text, or set replace_all", n, places(content, old))
	}
	if size := len(content) + n*(len(new)-len(old)); size > MaxContent {
		return "", 0, tooLarge("the document", size)
	}
	return strings.Replace(content, old, new, n), n, nil
}

func overlapsLater(content, old string, first int) bool {
	_, size := utf8.DecodeRuneInString(content[first:])
	return strings.Contains(content[first+size:], old)
}

// places names the lines that the first few matches begin on.
func places(content, old string) string {
	var lines []string
	for line, from := 1, 0; ; {
		i := strings.Index(content[from:], old)
		if i < 0 {
			break
		}
		if len(lines) == shownLines {
			lines = append(lines, "…")
			break
		}
		line += strings.Count(content[from:from+i], "\n")
		lines = append(lines, fmt.Sprint(line))
		_, size := utf8.DecodeRuneInString(content[from+i:])
		line += strings.Count(content[from+i:from+i+size], "\n")
		from += i + size
	}
	return "lines " + strings.Join(lines, ", ")
}

// Append puts markdown behind content as blocks of its own: one blank line in between.
func Append(content, markdown string) (string, error) {
	// Indentation counts in Markdown, so whole blank lines are trimmed and nothing else.
	markdown = trimLeadingBlankLines(markdown)
	if strings.TrimSpace(markdown) == "" {
		return "", fault.New(fault.Invalid, "markdown: is empty; give the blocks to append")
	}
	content = strings.TrimRightFunc(content, unicode.IsSpace)
	if content != "" {
		content += "\n\n"
	}
	if size := len(content) + len(markdown); size > MaxContent {
		return "", tooLarge("the document", size)
	}
	return content + markdown, nil
}

func trimLeadingBlankLines(s string) string {
	for {
		line, rest, found := strings.Cut(s, "\n")
		if !found || strings.TrimSpace(line) != "" {
			return s
		}
		s = rest
	}
}

func tooLarge(what string, size int) error {
	return fault.New(fault.TooLarge, "%s would be %d bytes; a document holds at most %d (10 MiB): split it", what, size, MaxContent)
}
