package prosemirror

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// Loss is something in Markdown that a document does not store as written.
type Loss struct {
	// Line is its line in the Markdown, from 1.
	Line int
	// What describes it, KeptAs what the document holds instead.
	What, KeptAs string
}

// maxLosses bounds the list of losses; a final Loss counts the rest.
const maxLosses = 100

// Import is ParseLarge with a list of what the document does not store as written.
func (s *Schema) Import(md string) (*Node, []Loss, error) {
	if len(md) > MaxLarge {
		return nil, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(md), MaxLarge)
	}
	losses := &losses{}
	doc := s.parseSections(cutMarkdown(clean(md), sectionSize), losses)
	return s.Fit(doc), losses.byLine(), nil
}

// losses collects the losses of one import.
type losses struct {
	all  []Loss
	more int
}

// byLine returns the losses by line.
func (l *losses) byLine() []Loss {
	slices.SortStableFunc(l.all, func(a, b Loss) int { return a.Line - b.Line }) // a block's losses come after its text's
	if l.more > 0 {
		l.all = append(l.all, Loss{l.all[len(l.all)-1].Line, fmt.Sprintf("%d more after this line", l.more), "those above"})
	}
	return l.all
}

// noteLoss records a loss at a byte of the source, once per line.
func (r *reader) noteLoss(at int, what, keptAs string) {
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

// shortHTML describes a piece of HTML by its beginning.
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

// begins returns the offset at which a node begins, -1 if unknown.
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

// noteImageLosses records images that cannot stay in their text.
func (r *reader) noteImageLosses(block ast.Node, nodes []*Node) {
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
		r.noteLoss(begins(block), "an image in a heading", "an image beside it")
	case others > 1:
		r.noteLoss(begins(block), "an image within a paragraph", "an image of its own between paragraphs")
	}
}

// noteTaskLosses records blocks that a task cannot hold.
func (r *reader) noteTaskLosses(item ast.Node, blocks []*Node) {
	for _, b := range blocks {
		if slices.ContainsFunc(b.Content, func(n *Node) bool { return n.Type == "image" }) {
			r.noteLoss(begins(item), "an image within a task", "a link")
		}
	}
	if t := r.s.types["taskItem"]; t == nil || t.content.accepts(r.s, blocks) {
		return
	}
	for _, b := range blocks {
		switch b.Type {
		case "paragraph":
		case "taskList":
			r.noteLoss(begins(item), "tasks within a task", "tasks after it, on its level")
		default:
			r.noteLoss(begins(item), "a "+b.Type+" within a task", "paragraphs of the task, as far as it is text")
		}
	}
}
