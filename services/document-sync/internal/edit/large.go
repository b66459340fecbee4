package edit

import (
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
)

const (
	// maxLarge is the number of documents over MaxText that are parsed concurrently: each
	// takes a second of CPU time and many times its size in memory.
	maxLarge = 2
	// maxPieces is the approximate maximum number of blocks and formatted texts in such a
	// document. More would not fit into memory.
	maxPieces = 400_000
)

// Keep returns next with each block that renders the same in doc taken from there, with
// everything that Markdown does not show.
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

// checkLarge returns a TooLarge fault for Markdown with a block over MaxText, which would be
// split, or with too many pieces. It only scans lines, so that it fails fast.
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
			return fault.New(fault.TooLarge, "markdown: the block at line %d has more than %d bytes (1 MiB): split it into several blocks",
				1+strings.Count(markdown[:begin+1], "\n"), MaxText)
		}
	}
	if pieces > maxPieces {
		return fault.New(fault.TooLarge, "markdown: has about %d blocks and pieces of formatted text; a document holds about %d: split it", pieces, maxPieces)
	}
	return nil
}

// beginsItem reports whether a line begins an item of a top-level list.
func beginsItem(line string) bool {
	rest := strings.TrimLeft(line, "0123456789")
	if rest == line {
		return strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "* ") || strings.HasPrefix(line, "+ ")
	}
	return strings.HasPrefix(rest, ". ") || strings.HasPrefix(rest, ") ")
}

// countMarkup counts the characters that may begin or end formatted text.
func countMarkup(line string) (n int) {
	for i := range len(line) {
		switch line[i] {
		case '*', '_', '`', '~', '[', ']', '<', '>', '|', '!', '&', '@', ':':
			n++
		}
	}
	return n
}

// blocks renders each block as Markdown.
func (e *Editor) blocks(doc *prosemirror.Node) []string {
	out := make([]string, len(doc.Content))
	for i, n := range doc.Content {
		out[i] = e.schema.Render(&prosemirror.Node{Type: doc.Type, Content: []*prosemirror.Node{n}})
	}
	return out
}
