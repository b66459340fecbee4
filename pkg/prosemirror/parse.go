package prosemirror

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"strings"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// MaxMarkdown is the maximum size in bytes of Markdown for Parse.
const MaxMarkdown = 1 << 20

// ErrTooLarge is returned by Parse for Markdown over MaxMarkdown.
var ErrTooLarge = errors.New("markdown is too large, split it into several documents")

// Parse reads Markdown as a valid document: CommonMark with tables, strikethrough, task lists
// and bare links, and the HTML that Render writes. Other inline HTML stays as text, a block
// of it as source code. A newline within a paragraph becomes a space. The only error is
// ErrTooLarge. Import also reports what is not stored as written.
func (s *Schema) Parse(md string) (*Node, error) {
	doc, err := s.parse(md, nil)
	if err != nil {
		return nil, err
	}
	return s.Fit(doc), nil
}

// parse returns the document before Fit and records losses.
func (s *Schema) parse(md string, losses *losses) (*Node, error) {
	if len(md) > MaxMarkdown {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(md), MaxMarkdown)
	}
	r := &reader{s: s, src: []byte(clean(md)), used: map[string]bool{}, defined: map[string]bool{}, line: 1, losses: losses}
	root := markdown().Parse(text.NewReader(r.src))
	r.findUsed(root)
	return Elem(s.spec.Top, nil, r.blocks(root, 0)...), nil
}

// clean normalizes line endings to \n and replaces invalid characters.
func clean(md string) string {
	md = strings.ToValidUTF8(md, "\ufffd")
	md = strings.ReplaceAll(md, "\r\n", "\n")
	md = strings.ReplaceAll(md, "\r", "\n")
	return strings.ReplaceAll(md, "\x00", "\ufffd")
}

// reader converts goldmark's tree to nodes, valid or not.
type reader struct {
	s    *Schema
	src  []byte
	used map[string]bool // the link definitions that links refer to
	// defined are the preceding link definitions: the first of a name wins.
	defined map[string]bool
	line    int     // the line of the first byte of src
	losses  *losses // nil: not recorded
}

// findUsed records the definitions in use: others are kept as text.
func (r *reader) findUsed(n ast.Node) {
	var ref *ast.ReferenceLink
	switch n := n.(type) {
	case *ast.Link:
		ref = n.Reference
	case *ast.Image:
		ref = n.Reference
	}
	if ref != nil {
		r.used[util.ToLinkReference(ref.Value)] = true
	}
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		r.findUsed(c)
	}
}

// blocks converts the children of parent.
func (r *reader) blocks(parent ast.Node, depth int) []*Node {
	p := &itemParser{r: r, items: r.items(parent), depth: depth}
	return p.until(len(p.items))
}

// block converts n, which is not HTML.
func (r *reader) block(n ast.Node, depth int) []*Node {
	switch n := n.(type) {
	case *ast.Heading:
		return []*Node{Elem("heading", Attrs{"level": n.Level}, r.inlines(n)...)}
	case *ast.Paragraph, *ast.TextBlock:
		if strings.TrimSpace(string(n.Lines().Value(r.src))) == emptyParagraph {
			return []*Node{Elem("paragraph", nil)}
		}
		return []*Node{Elem("paragraph", nil, r.inlines(n)...)}
	case *ast.Blockquote:
		return []*Node{Elem("blockquote", nil, r.blocks(n, depth+1)...)}
	case *ast.List:
		return r.list(n, depth)
	case *ast.FencedCodeBlock:
		lang := ""
		if n.Info != nil {
			lang = unescape(n.Info.Segment.Value(r.src))
		}
		return []*Node{codeBlock(lang, string(n.Lines().Value(r.src)))}
	case *ast.CodeBlock:
		return []*Node{codeBlock("", string(n.Lines().Value(r.src)))}
	case *ast.ThematicBreak:
		return []*Node{Elem("horizontalRule", nil)}
	case *extast.Table:
		return []*Node{r.table(n)}
	case *ast.LinkReferenceDefinition:
		label := util.ToLinkReference(n.Label)
		if !r.used[label] || r.defined[label] {
			r.noteLoss(begins(n), "a link definition that nothing refers to", "text")
			return []*Node{Elem("paragraph", nil, r.definition(n))}
		}
		r.defined[label] = true
		return nil
	}
	return []*Node{Elem("paragraph", nil, Text(string(n.Lines().Value(r.src))))}
}

// definition returns a link definition as text. Its Lines begin after the bracket.
func (r *reader) definition(n *ast.LinkReferenceDefinition) *Node {
	t := "[" + string(n.Label) + "]: " + string(n.Destination)
	if len(n.Title) > 0 {
		t += ` "` + string(n.Title) + `"`
	}
	return Text(strings.ReplaceAll(t, "\n", " "))
}

func codeBlock(lang, text string) *Node {
	n := Elem("codeBlock", nil)
	if lang != "" {
		n.Attrs = Attrs{"language": lang}
	}
	if text = strings.TrimSuffix(text, "\n"); text != "" {
		n.Content = []*Node{Text(text)}
	}
	return n
}

// list converts a list. A list in which only some items have boxes becomes several.
func (r *reader) list(l *ast.List, depth int) []*Node {
	if l.IsOrdered() {
		n := Elem("orderedList", Attrs{"start": l.Start})
		for c := l.FirstChild(); c != nil; c = c.NextSibling() {
			n.Content = append(n.Content, Elem("listItem", nil, r.blocks(c, depth+1)...))
		}
		return []*Node{n}
	}
	var out []*Node
	for c := l.FirstChild(); c != nil; c = c.NextSibling() {
		items, list := []*Node{Elem("listItem", nil, r.blocks(c, depth+1)...)}, "bulletList"
		if box := checkBox(c); box != nil {
			r.noteTaskLosses(c, items[0].Content)
			items, list = r.task(box.IsChecked, items[0].Content), "taskList"
		}
		if k := len(out) - 1; k >= 0 && out[k].Type == list {
			out[k].Content = append(out[k].Content, items...)
		} else {
			out = append(out, Elem(list, nil, items...))
		}
	}
	return out
}

// checkBox returns the box of a list item, nil if it has none.
func checkBox(item ast.Node) *extast.TaskCheckBox {
	if p := item.FirstChild(); p != nil {
		box, _ := p.FirstChild().(*extast.TaskCheckBox)
		return box
	}
	return nil
}

// task returns a task with its blocks. If a task cannot hold task lists, their items follow
// it in the same list.
func (r *reader) task(checked bool, blocks []*Node) []*Node {
	item := Elem("taskItem", Attrs{"checked": checked})
	out := []*Node{item}
	t, list := r.s.types["taskItem"], r.s.types["taskList"]
	nested := t != nil && list != nil && t.content.reaches(list)
	for _, b := range blocks {
		if b.Type == "taskList" && !nested {
			out = append(out, b.Content...)
			continue
		}
		item.Content = append(item.Content, b)
	}
	return out
}

// reaches reports whether t may occur anywhere in the content.
func (m *match) reaches(t *nodeType) bool {
	seen := map[*match]bool{}
	var visit func(*match) bool
	visit = func(m *match) bool {
		if seen[m] {
			return false
		}
		seen[m] = true
		for _, e := range m.edges {
			if e.typ == t || visit(e.next) {
				return true
			}
		}
		return false
	}
	return visit(m)
}

func (r *reader) table(t *extast.Table) *Node {
	n := Elem("table", nil)
	for row := t.FirstChild(); row != nil; row = row.NextSibling() {
		typ := "tableCell"
		if row.Kind() == extast.KindTableHeader {
			typ = "tableHeader"
		}
		tr := Elem("tableRow", nil)
		for c := row.FirstChild(); c != nil; c = c.NextSibling() {
			p := Elem("paragraph", nil, r.inlines(c)...)
			if c.NextSibling() == nil {
				p.Content = append(p.Content, r.excess(c)...)
			}
			cell := Elem(typ, nil, p)
			if i := len(tr.Content); i < len(t.Alignments) && t.Alignments[i] != extast.AlignNone {
				cell.Attrs = Attrs{"align": t.Alignments[i].String()}
			}
			tr.Content = append(tr.Content, cell)
		}
		n.Content = append(n.Content, tr)
	}
	return n
}

// excess returns, as text, the cells of a row after the last column, which GitHub's tables
// drop.
func (r *reader) excess(last ast.Node) []*Node {
	if last.Lines().Len() == 0 {
		return nil
	}
	rest := r.src[last.Lines().At(0).Stop:]
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i]
	}
	text := strings.TrimSpace(string(rest))
	if text = strings.TrimSpace(strings.TrimSuffix(text, "|")); text == "" {
		return nil
	}
	r.noteLoss(last.Lines().At(0).Start, "a cell after the last column of its table", "text in the last column")
	return []*Node{Text(" " + text)}
}

// unescape returns text with backslash escapes and references resolved.
func unescape(src []byte) string {
	if !strings.ContainsAny(util.BytesToReadOnlyString(src), `\&`) {
		return string(src)
	}
	var b strings.Builder
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case c == '\\' && i+1 < len(src) && util.IsPunct(src[i+1]):
			i++
			b.WriteByte(src[i])
		case c == '&':
			ref := reference(src[i:])
			b.WriteString(html.UnescapeString(string(src[i : i+max(ref, 1)])))
			i += max(ref, 1) - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// reference returns the length of the character reference at the start of src, 0 if there is none.
func reference[T string | []byte](src T) int {
	i, digit := 1, isAlnum
	if len(src) > 2 && src[1] == '#' {
		i, digit = 2, isDigit
		if src[2] == 'x' || src[2] == 'X' {
			i, digit = 3, isHex
		}
	}
	start := i
	for i < len(src) && digit(src[i]) && i-start < 32 {
		i++
	}
	if i == start || i >= len(src) || src[i] != ';' {
		return 0
	}
	ref := string(src[:i+1])
	if s := html.UnescapeString(ref); s == ref || len(s) > 1 && strings.HasSuffix(s, ";") {
		return 0 // unknown, or only a prefix is a reference
	}
	return i + 1
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }
