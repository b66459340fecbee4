// Package edit computes what an operation does to a document: a tree and Markdown in, a tree
// out, or the inverse of an earlier operation (Undo). It is pure. Its errors are faults whose
// messages address the editor, often a model that has to correct its call.
package edit

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/visible"
)

// Limits of a document.
const (
	MaxContent = 10 << 20                // bytes of its Markdown
	MaxText    = prosemirror.MaxMarkdown // bytes of text added by one call, and of one block
	MaxName    = 200                     // characters
)

// Codes of the faults that Replace returns.
const (
	CodeNotFoundText  = "NOT_FOUND_TEXT"
	CodeAmbiguousText = "AMBIGUOUS_TEXT"
)

// Name returns a document's name without invisible characters and the spaces around it, or an
// Invalid fault.
func Name(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", fault.New(fault.Invalid, "name: is not valid UTF-8")
	}
	s = strings.TrimSpace(s)
	for _, r := range s {
		// Unicode does not count line and paragraph separators as control characters.
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return "", fault.New(fault.Invalid, "name: holds the control character %U; use one line of plain text", r)
		}
	}
	s = strings.TrimSpace(visible.Text(s))
	switch n := utf8.RuneCountInString(s); {
	case n == 0:
		return "", fault.New(fault.Invalid, "name: is empty; give 1 to %d characters", MaxName)
	case n > MaxName:
		return "", fault.New(fault.Invalid, "name: has %d characters; at most %d are allowed", n, MaxName)
	}
	return s, nil
}

// Text validates text from outside, of at most MaxContent, and normalizes its line endings to
// \n, so that text copied from a document matches it again. field names it in faults.
func Text(field, s string) (string, error) {
	if len(s) > MaxContent {
		return "", fault.New(fault.TooLarge, "%s: has %d bytes; a document holds at most %d (10 MiB): split it", field, len(s), MaxContent)
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

// Editor edits documents of one schema. It is safe for concurrent use.
type Editor struct {
	schema *prosemirror.Schema
	large  chan struct{} // limits concurrent parsing of large documents
}

// New returns an editor for documents of a schema.
func New(schema *prosemirror.Schema) *Editor {
	return &Editor{schema: schema, large: make(chan struct{}, maxLarge)}
}

// Import parses Markdown, with a list of what the document does not store as written.
func (e *Editor) Import(markdown string) (*prosemirror.Node, []prosemirror.Loss, error) {
	if len(markdown) > MaxText {
		if err := checkLarge(markdown); err != nil {
			return nil, nil, err
		}
		e.large <- struct{}{}
		defer func() { <-e.large }()
	}
	doc, losses, err := e.schema.Import(markdown)
	return doc, losses, explain(err)
}

// ParseStored parses Markdown from the store, which is never refused.
func (e *Editor) ParseStored(markdown string) (*prosemirror.Node, error) {
	return e.schema.ParseLarge(markdown)
}

// Merge returns doc with the changes from base to next. Concurrent changes in doc stay.
func (e *Editor) Merge(doc, base, next *prosemirror.Node) (*prosemirror.Node, error) {
	merged, err := e.schema.Merge(doc, base, next)
	return merged, explain(err)
}

// Append returns doc with the blocks of markdown at its end.
func (e *Editor) Append(doc *prosemirror.Node, markdown string) (*prosemirror.Node, error) {
	if strings.TrimSpace(markdown) == "" {
		return nil, fault.New(fault.Invalid, "markdown: is empty; give the blocks to append")
	}
	if err := checkAdded("markdown", markdown, "append the rest in calls of its own"); err != nil {
		return nil, err
	}
	next, err := e.schema.Append(doc, markdown)
	return next, explain(err)
}

// Replace replaces old with new in the document's Markdown and returns the number of
// replacements. Unless all is set, old must occur exactly once; otherwise the fault has the
// number and the lines of its occurrences. Losses concern the blocks that were parsed again.
func (e *Editor) Replace(doc *prosemirror.Node, old, new string, all bool) (*prosemirror.Node, int, []prosemirror.Loss, error) {
	if old == "" {
		return nil, 0, nil, fault.New(fault.Invalid, "old_text: is empty; give the text to replace, or append instead")
	}
	if err := cmp.Or(checkAdded("old_text", old, "edit a part of it"), checkAdded("new_text", new, "append the rest in calls of its own")); err != nil {
		return nil, 0, nil, err
	}
	next, places, losses, err := e.schema.ImportEdit(doc, old, new, all)
	return next, places, losses, explain(err)
}

// checkAdded returns a TooLarge fault for more text than one call may contain.
func checkAdded(field, s, instead string) error {
	if len(s) > MaxText {
		return fault.New(fault.TooLarge, "%s: has %d bytes; one call takes at most %d (1 MiB): %s", field, len(s), MaxText, instead)
	}
	return nil
}

// explain converts an error of the schema to a fault.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if m, ok := errors.AsType[*prosemirror.MatchError](err); ok {
		if m.Count == 0 {
			return fault.Coded(fault.Conflict, CodeNotFoundText,
				"old_text was not found in the document (0 matches): read the document and use its exact text")
		}
		return fault.Coded(fault.Conflict, CodeAmbiguousText,
			"old_text was found %d times in the document (%s): give more of the surrounding text, or set replace_all", m.Count, lines(m))
	}
	if errors.Is(err, prosemirror.ErrTooLarge) {
		return fault.New(fault.TooLarge, "%v", err)
	}
	return err
}

// lines lists the lines on which the first matches begin.
func lines(m *prosemirror.MatchError) string {
	names := make([]string, 0, len(m.Lines)+1)
	for _, n := range m.Lines {
		names = append(names, fmt.Sprint(n))
	}
	if m.Count > len(m.Lines) {
		names = append(names, "…")
	}
	return "lines " + strings.Join(names, ", ")
}

// CheckSize returns a TooLarge fault for a document whose Markdown is over MaxContent.
func CheckSize(markdown string) error {
	if len(markdown) > MaxContent {
		return fault.New(fault.TooLarge, "the document would be %d bytes; a document holds at most %d (10 MiB): split it", len(markdown), MaxContent)
	}
	return nil
}
