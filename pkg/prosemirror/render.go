package prosemirror

import (
	"fmt"
	"slices"
	"strings"
)

// Markdown is a document as Markdown with a mapping back to its nodes.
type Markdown struct {
	Text string
	// Blocks holds the range in Text of each child of the document, empty for one that is
	// not shown.
	Blocks []Range
	// Spans holds the sources of the text, in order. Anything outside is syntax: markers,
	// escapes, separators.
	Spans []Span
}

// Range is a range of bytes.
type Range struct{ Start, End int }

// Span maps a range of the Markdown to a range of a node's text. If both have the same
// length, the text is the same.
type Span struct {
	Range
	// Path leads to the text, or to the leaf shown as text.
	Path []int
	// From and To are byte offsets in the text.
	From, To int
}

// Render returns the document as Markdown, which Parse reads as the same document if doc is
// valid. Marks and attributes without a Markdown form become HTML; a node or mark outside
// the schema is written as its text.
func (s *Schema) Render(doc *Node) string {
	w := &writer{s: s}
	w.document(doc)
	return string(w.buf)
}

// RenderMap is Render with the sources of blocks and text.
func (s *Schema) RenderMap(doc *Node) *Markdown {
	w := &writer{s: s, out: &Markdown{}}
	w.document(doc)
	w.out.Text = string(w.buf)
	return w.out
}

// writer writes the lines of nested blocks. Each line begins with prefix.
type writer struct {
	s      *Schema
	out    *Markdown // nil: sources are not recorded
	buf    []byte
	prefix []byte
	inLine bool // the prefix of this line is written
	items  int  // the number of enclosing list items
	path   []int
	runs   []run   // reusable capacity
	toks   []token // reusable capacity
}

func (w *writer) document(doc *Node) {
	nodes := doc.Content
	n := len(nodes)
	if n > 0 && w.s.hiddenEnd(nodes) {
		n--
	}
	if n == 1 && emptyBlock(nodes[0]) {
		n = 0
	}
	first := true
	for i, node := range nodes[:n] {
		start := len(w.buf)
		if !blank(node) {
			if !first {
				w.write("\n\n")
				start = len(w.buf)
			}
			first = false
			w.child(nodes, i, false)
		}
		w.block(start)
	}
	for range nodes[n:] {
		w.block(len(w.buf))
	}
	if len(w.buf) > 0 {
		w.write("\n")
	}
}

// hiddenEnd reports whether the last node is the trailing node that Fit adds.
func (s *Schema) hiddenEnd(nodes []*Node) bool {
	n := len(nodes)
	last := nodes[n-1]
	return s.spec.Trailing != "" && last.Type == s.spec.Trailing && len(last.Content) == 0 &&
		n > 1 && nodes[n-2].Type != s.spec.Trailing && !blank(nodes[n-2])
}

func (w *writer) block(start int) {
	if w.out != nil {
		w.out.Blocks = append(w.out.Blocks, Range{start, len(w.buf)})
	}
}

func emptyBlock(n *Node) bool { return n.Type == "paragraph" && len(n.Content) == 0 }

// blank reports whether n shows nothing: it is unknown and has no text.
func blank(n *Node) bool {
	switch n.Type {
	case "paragraph", "heading", "codeBlock", "horizontalRule", "image", "hardBreak", "mention",
		"blockquote", "bulletList", "orderedList", "taskList", "table":
		return false
	}
	return n.Text == "" && !slices.ContainsFunc(n.Content, func(c *Node) bool { return !blank(c) })
}

// write writes s, with the prefix at the start of each line.
func (w *writer) write(s string) {
	for s != "" {
		w.begin(s)
		if s[0] == '\n' {
			w.buf = append(w.buf, '\n')
			w.inLine, s = false, s[1:]
			continue
		}
		i := strings.IndexByte(s, '\n')
		if i < 0 {
			i = len(s)
		}
		w.buf = append(w.buf, s[:i]...)
		s = s[i:]
	}
}

// begin writes the prefix at the start of a line that continues with s.
func (w *writer) begin(s string) {
	switch {
	case w.inLine:
		return
	case s[0] == '\n':
		w.buf = append(w.buf, strings.TrimRight(string(w.prefix), " ")...)
	default:
		w.buf = append(w.buf, w.prefix...)
	}
	w.inLine = true
}

// nested runs f with more appended to the prefix.
func (w *writer) nested(more string, f func()) {
	n := len(w.prefix)
	w.prefix = append(w.prefix, more...)
	f()
	w.prefix = w.prefix[:n]
}

// blocks writes nodes separated by blank lines.
func (w *writer) blocks(nodes []*Node, from int) {
	first := true
	for i := from; i < len(nodes); i++ {
		if blank(nodes[i]) {
			continue
		}
		if !first {
			w.write("\n\n")
		}
		w.child(nodes, i, first && from > 0)
		first = false
	}
}

// child writes nodes[i]. With start, it directly follows a list marker.
func (w *writer) child(nodes []*Node, i int, start bool) {
	w.path = append(w.path, i)
	defer func() { w.path = w.path[:len(w.path)-1] }()
	n := nodes[i]
	switch n.Type {
	case "heading":
		level, ok := n.Attrs["level"].(int)
		if !ok || level < 1 || level > 6 {
			level = 1
		}
		w.write(strings.Repeat("#", level))
		if len(n.Content) > 0 {
			w.write(" ")
			w.inline(n, inlineContext{heading: true})
		}
	case "codeBlock":
		w.codeBlock(n)
	case "horizontalRule":
		if start {
			w.write("___") // hyphens would join with the list marker
			return
		}
		w.write("---")
	case "image":
		w.write(w.s.imageText(n, false))
	case "blockquote":
		w.write(">")
		if len(n.Content) == 1 && emptyBlock(n.Content[0]) {
			return
		}
		w.write(" ")
		w.nested("> ", func() { w.blocks(n.Content, 0) })
	case "bulletList", "taskList", "orderedList":
		w.list(n, alternate(nodes, i))
	case "table":
		w.table(n)
	default:
		w.other(n)
	}
}

// other writes a paragraph, or a node without a form of its own.
func (w *writer) other(n *Node) {
	switch {
	case n.IsText():
		w.path = w.path[:len(w.path)-1]
		w.inline(&Node{Content: []*Node{n}}, inlineContext{})
		w.path = append(w.path, 0)
	case w.holdsInline(n):
		w.paragraph(n, inlineContext{})
	default:
		w.blocks(n.Content, 0)
	}
}

func (w *writer) holdsInline(n *Node) bool {
	if t := w.s.types[n.Type]; t != nil {
		return t.inlines
	}
	return slices.ContainsFunc(n.Content, (*Node).IsText)
}

func (w *writer) paragraph(n *Node, ctx inlineContext) {
	if len(n.Content) > 0 {
		w.inline(n, ctx)
	} else if !ctx.task {
		w.write(emptyParagraph)
	}
}

// codeBlock writes a fence longer than any in its content, or HTML if a fence would not
// preserve the text.
func (w *writer) codeBlock(n *Node) {
	text := n.TextContent()
	lang, _ := n.Attrs["language"].(string)
	if strings.Contains(text, "\r") || w.items > 0 && blankLine(text) {
		w.preCode(lang, text)
		return
	}
	fence := 3
	run := 0
	for i := range len(text) {
		if run++; text[i] != '`' {
			run = 0
		}
		fence = max(fence, run+1)
	}
	w.write(strings.Repeat("`", fence) + infoString(lang) + "\n")
	if text != "" {
		w.codeLines(text)
	}
	w.write(strings.Repeat("`", fence))
}

// blankLine reports whether a line consists of whitespace: lists strip it.
func blankLine(text string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && strings.Trim(line, " \t") == "" {
			return true
		}
	}
	return false
}

func (w *writer) preCode(lang, text string) {
	var b strings.Builder
	b.WriteString("<pre><code")
	if lang != "" {
		appendAttr(&b, "class", "language-"+lang)
	}
	b.WriteByte('>')
	escapeHTML(&b, text)
	b.WriteString("</code></pre>")
	w.span(0, len(text), b.String())
}

// codeLines writes source code line by line, since each line has a prefix.
func (w *writer) codeLines(text string) {
	at := 0
	for line := range strings.Lines(text) {
		w.span(at, at+len(line), line)
		at += len(line)
	}
	w.write("\n")
}

// infoString escapes a language for the first line of a fence.
func infoString(lang string) string {
	var b strings.Builder
	for i, c := range []byte(lang) {
		switch {
		case c == '`' || c < ' ' || (c == ' ') && (i == 0 || i == len(lang)-1):
			fmt.Fprintf(&b, "&#%d;", c)
		case c == '\\' || c == '&':
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// span writes s and records it as the text [from, to) of the current node's only child.
func (w *writer) span(from, to int, s string) {
	if w.out == nil || from == to {
		w.write(s)
		return
	}
	w.begin(s)
	start := len(w.buf)
	w.write(s)
	path := append(slices.Clone(w.path), 0)
	w.out.Spans = append(w.out.Spans, Span{Range: Range{start, len(w.buf)}, Path: path, From: from, To: to})
}

// alternate reports whether a list directly follows one that it would merge with, so that it
// needs the other marker.
func alternate(nodes []*Node, i int) bool {
	alt := false
	for i--; i >= 0 && isList(nodes[i]) && (nodes[i].Type == "orderedList") == (nodes[i+1].Type == "orderedList"); i-- {
		alt = !alt
	}
	return alt
}

func isList(n *Node) bool {
	return n.Type == "bulletList" || n.Type == "taskList" || n.Type == "orderedList"
}

func (w *writer) list(n *Node, alt bool) {
	marker, number := "-", 0
	if alt {
		marker = "*"
	}
	wrapped := false
	if n.Type == "orderedList" {
		marker = "."
		if alt {
			marker = ")"
		}
		number = 1
		if start, ok := n.Attrs["start"].(int); ok {
			number = start
		}
		if wrapped = wrapList(n, number); wrapped {
			number = w.openList(n, number)
		}
	}
	for i, it := range n.Content {
		if i > 0 {
			w.write("\n")
		}
		m := marker
		if n.Type == "orderedList" {
			m = fmt.Sprint(number+i) + marker
		}
		w.path = append(w.path, i)
		w.items++
		w.item(n, it, m, i == len(n.Content)-1)
		w.items--
		w.path = w.path[:len(w.path)-1]
	}
	if wrapped {
		w.write("\n\n</ol>")
	}
}

// maxNumber is the largest number that CommonMark allows in a list.
const maxNumber = 999_999_999

// wrapList reports whether a list needs HTML around it for its attributes.
func wrapList(n *Node, number int) bool {
	return number < 0 || number+len(n.Content) > maxNumber || n.Attrs["type"] != nil
}

func (w *writer) openList(n *Node, number int) int {
	var b strings.Builder
	b.WriteString("<ol")
	if number < 0 || number+len(n.Content) > maxNumber {
		appendAttr(&b, "start", number)
		number = 1
	}
	if typ := n.Attrs["type"]; typ != nil {
		appendAttr(&b, "type", typ)
	}
	w.write(b.String() + ">\n\n")
	return number
}

// item writes a list item after its marker.
func (w *writer) item(list, it *Node, marker string, last bool) {
	ctx := inlineContext{item: true}
	w.write(marker)
	indent := strings.Repeat(" ", len(marker)+1)
	if list.Type == "taskList" {
		box := " [ ]"
		if it.Attrs["checked"] == true {
			box = " [x]"
		}
		w.write(box)
		ctx = inlineContext{task: true}
	}
	nodes := it.Content
	if !slices.ContainsFunc(nodes, func(n *Node) bool { return !blank(n) }) {
		nodes = []*Node{{Type: "paragraph"}}
	}
	if bare := len(nodes) == 1 && emptyBlock(nodes[0]); bare && (ctx.task || !last || w.items == 1) {
		return
	}
	if !ctx.task || !emptyBlock(nodes[0]) {
		w.write(" ")
	}
	w.nested(indent, func() {
		if emptyBlock(nodes[0]) && !ctx.task && len(nodes) > 1 && nodes[1].Type != "paragraph" && !isList(nodes[1]) && !blank(nodes[1]) {
			w.blocks(nodes, 1)
			return
		}
		prev := -1
		for i, n := range nodes {
			if blank(n) {
				continue
			}
			if prev >= 0 {
				w.write(separator(nodes[prev], n))
			}
			if prev < 0 && n.Type == "paragraph" {
				w.path = append(w.path, i)
				w.paragraph(n, ctx)
				w.path = w.path[:len(w.path)-1]
			} else {
				w.child(nodes, i, prev < 0)
			}
			prev = i
		}
	})
}

// separator returns what separates two blocks of a list item: a list whose first line can end
// a paragraph may follow one on the next line.
func separator(prev, n *Node) string {
	if prev.Type != "paragraph" || !isList(n) || len(n.Content) == 0 {
		return "\n\n"
	}
	if len(prev.Content) == 1 && !prev.Content[0].IsText() { // a tag by itself may begin an HTML block
		return "\n\n"
	}
	first := n.Content[0].Content
	if n.Type != "taskList" && (len(first) == 0 || len(first) == 1 && emptyBlock(first[0])) {
		return "\n\n"
	}
	if start, ok := n.Attrs["start"].(int); n.Type == "orderedList" && (ok && start != 1 || wrapList(n, 1)) {
		return "\n\n"
	}
	return "\n"
}
