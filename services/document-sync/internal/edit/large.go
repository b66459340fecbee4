package edit

import (
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
)

const (
	// maxLarge is how many documents of more than MaxText are read at a time: each takes a
	// processor for a second, and memory many times its size.
	maxLarge = 2
	// maxPieces is how many blocks and pieces of formatted text such a document may have,
	// about: more are no document that fits into memory.
	maxPieces = 400_000
)

// Keep returns next with the blocks that read the same in doc taken from there, with what
// Markdown does not show.
func (e *Editor) Keep(doc, next *prosemirror.Node) *prosemirror.Node {
	had := map[string][]*prosemirror.Node{}
	for i, text := range e.blocks(doc) {
		had[text] = append(had[text], doc.Content[i])
	}
	out := &prosemirror.Node{Type: doc.Type, Attrs: doc.Attrs, Content: slices.Clone(next.Content)}
	for i, text := range e.blocks(next) {
		if same := had[text]; len(same) > 0 {
			out.Content[i], had[text] = same[0], same[1:]
		}
	}
	return out
}

// checkLarge returns a TooLarge fault for Markdown that has a block of more than MaxText,
// which would be cut in two, or too many pieces. It looks at lines only: whoever has that
// much to say must not be made to wait for a no.
func checkLarge(markdown string) error {
	begin, fence, pieces, n := 0, "", 0, 0
	for at := 0; at < len(markdown); n++ {
		line, _, _ := strings.Cut(markdown[at:], "\n")
		body := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(body, fence) && strings.Trim(body, fence[:1]) == "" {
				fence = ""
			}
		case body == "":
			begin = at
		case strings.HasPrefix(body, "```"), strings.HasPrefix(body, "~~~"):
			fence = body[:len(body)-len(strings.TrimLeft(body, body[:1]))]
			pieces++
		default:
			if beginsItem(line) {
				begin = at
			}
			pieces += 1 + countMarkup(body)
		}
		at = min(at+len(line)+1, len(markdown))
		if at-begin > MaxText {
			return fault.New(fault.TooLarge, "markdown: the block at line %d has more than %d bytes (1 MiB): make several blocks of it",
				1+strings.Count(markdown[:begin+1], "\n"), MaxText)
		}
	}
	if pieces > maxPieces {
		return fault.New(fault.TooLarge, "markdown: has some %d blocks and pieces of formatted text; a document has place for about %d: split it", pieces, maxPieces)
	}
	return nil
}

// beginsItem says whether a line begins an item of a list that is in nothing else.
func beginsItem(line string) bool {
	rest := strings.TrimLeft(line, "0123456789")
	if rest == line {
		return strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "* ") || strings.HasPrefix(line, "+ ")
	}
	return strings.HasPrefix(rest, ". ") || strings.HasPrefix(rest, ") ")
}

// countMarkup counts what may begin or end a piece of text.
func countMarkup(line string) (n int) {
	for i := range len(line) {
		switch line[i] {
		case '*', '_', '`', '~', '[', ']', '<', '>', '|', '!', '&', '@', ':':
			n++
		}
	}
	return n
}

// blocks returns each block as Markdown.
func (e *Editor) blocks(doc *prosemirror.Node) []string {
	out := make([]string, len(doc.Content))
	for i, n := range doc.Content {
		out[i] = e.schema.Render(&prosemirror.Node{Type: doc.Type, Content: []*prosemirror.Node{n}})
	}
	return out
}
