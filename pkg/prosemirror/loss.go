package prosemirror

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// Loss is something in Markdown that a document does not hold as it was written. Nothing
// is dropped without one.
type Loss struct {
	// Line is where it is in the Markdown, from 1.
	Line int
	// What it is, and what is there in its place.
	What, KeptAs string
}

// maxLosses bounds what Import tells one by one; a last Loss counts the others.
const maxLosses = 100

// Import is ParseLarge, and tells what the document does not hold as it was written.
func (s *Schema) Import(md string) (*Node, []Loss, error) {
	if len(md) > MaxLarge {
		return nil, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(md), MaxLarge)
	}
	losses := &losses{}
	doc := s.parseSections(cutMarkdown(clean(md), sectionSize), losses)
	return s.Fit(doc), losses.told(), nil
}

// losses collects what one Markdown loses.
type losses struct {
	all  []Loss
	more int
}

// told returns them in the order of lines.
func (l *losses) told() []Loss {
	slices.SortStableFunc(l.all, func(a, b Loss) int { return a.Line - b.Line }) // a block's is noted behind its text's
	if l.more > 0 {
		l.all = append(l.all, Loss{l.all[len(l.all)-1].Line, fmt.Sprintf("%d more behind this line", l.more), "those above"})
	}
	return l.all
}

// lose notes a loss at a byte of the source. The same on one line is told once.
func (r *reader) lose(at int, what, keptAs string) {
	l := r.losses
	if l == nil {
		return
	}
	if len(l.all) == maxLosses {
		l.more++
		return
	}
	loss := Loss{r.line + bytes.Count(r.src[:min(max(at, 0), len(r.src))], []byte("\n")), what, keptAs}
	if !slices.Contains(l.all, loss) {
		l.all = append(l.all, loss)
	}
}

// shortHTML returns the beginning of HTML, to be told.
func shortHTML(raw string) string {
	raw = strings.Join(strings.Fields(raw), " ")
	if i := strings.IndexByte(raw, '>'); i >= 0 {
		raw = raw[:i+1]
	}
	if len(raw) > 60 {
		raw = strings.ToValidUTF8(raw[:60], "") + "…"
	}
	return "the HTML " + raw
}

// begins returns where a node begins.
func begins(n ast.Node) int {
	if at := n.Pos(); at >= 0 {
		return at
	}
	if n.Type() != ast.TypeInline && n.Lines().Len() > 0 {
		return n.Lines().At(0).Start
	}
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if at := begins(c); at >= 0 {
			return at
		}
	}
	return -1
}

// loseImages tells of images that cannot stay within the text they are in.
func (r *reader) loseImages(block ast.Node, nodes []*Node) {
	t := r.s.types["image"]
	if t == nil || t.inlineNode() || !slices.ContainsFunc(nodes, func(n *Node) bool { return n.Type == "image" }) {
		return
	}
	others := 0
	for _, n := range nodes {
		if !n.IsText() || strings.TrimSpace(n.Text) != "" {
			others++
		}
	}
	switch {
	case block.Kind() == ast.KindHeading:
		r.lose(begins(block), "an image in a heading", "an image beside it")
	case others > 1:
		r.lose(begins(block), "an image within a paragraph", "an image of its own between paragraphs")
	}
}

// loseInTask tells of blocks that a task cannot hold.
func (r *reader) loseInTask(item ast.Node, blocks []*Node) {
	for _, b := range blocks {
		if slices.ContainsFunc(b.Content, func(n *Node) bool { return n.Type == "image" }) {
			r.lose(begins(item), "an image within a task", "a link")
		}
	}
	if t := r.s.types["taskItem"]; t == nil || t.content.accepts(r.s, blocks) {
		return
	}
	for _, b := range blocks {
		switch b.Type {
		case "paragraph":
		case "taskList":
			r.lose(begins(item), "tasks within a task", "tasks behind it, on its level")
		default:
			r.lose(begins(item), "a "+b.Type+" within a task", "paragraphs of the task, as far as it is text")
		}
	}
}
