package prosemirror

import (
	"maps"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
)

// emptyParagraph is how a paragraph without content is written, in TipTap's Markdown too. A
// paragraph that consists of this character is written with the character itself.
const emptyParagraph = "&nbsp;"

// piece is a part of a text block: a node, or a tag that is not matched yet.
type piece struct {
	node *Node
	tag  *htmlTag
	pair int // of a tag: the index of the matching tag, else -1
	at   int // of a tag or an image: its offset in the source
}

// inlineReader collects the pieces of one text block.
type inlineReader struct {
	r        *reader
	pieces   []piece
	reported map[string]bool // tags already reported as text
}

// inlines returns the content of a text block.
func (r *reader) inlines(block ast.Node) []*Node {
	in := &inlineReader{r: r}
	in.children(block, nil)
	nodes := in.resolve()
	r.noteImageLosses(block, nodes)
	return nodes
}

func (in *inlineReader) text(s string, marks []Mark) {
	if s != "" {
		in.pieces = append(in.pieces, piece{node: Text(s, marks...)})
	}
}

func (in *inlineReader) children(n ast.Node, marks []Mark) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		in.inline(c, marks)
	}
}

func (in *inlineReader) inline(n ast.Node, marks []Mark) {
	src := in.r.src
	switch n := n.(type) {
	case *ast.Text:
		in.text(unescape(n.Segment.Value(src)), marks)
		switch {
		case n.HardLineBreak():
			in.pieces = append(in.pieces, piece{node: Elem("hardBreak", nil)})
		case n.SoftLineBreak():
			in.text(" ", marks)
		}
	case *ast.CodeSpan:
		var b strings.Builder
		for c := n.FirstChild(); c != nil; c = c.NextSibling() {
			if t, ok := c.(*ast.Text); ok {
				b.Write(t.Segment.Value(src))
			}
		}
		in.text(strings.ReplaceAll(b.String(), "\n", " "), addMark(marks, Mark{Type: "code"}))
	case *ast.Emphasis:
		name := "italic"
		if n.Level == 2 {
			name = "bold"
		}
		in.children(n, addMark(marks, Mark{Type: name}))
	case *extast.Strikethrough:
		in.children(n, addMark(marks, Mark{Type: "strike"}))
	case *ast.Link:
		in.link(n, marks)
	case *ast.AutoLink:
		href, label := string(n.URL(src)), string(n.Label(src))
		if n.AutoLinkType == ast.AutoLinkEmail {
			href = "mailto:" + href
		}
		in.text(label, addMark(marks, in.r.link(href, nil)))
	case *ast.Image:
		attrs := Attrs{"src": unescape(n.Destination)}
		in.noteAltLosses(n)
		if alt := in.plain(n); alt != "" {
			attrs["alt"] = alt
		}
		if len(n.Title) > 0 {
			attrs["title"] = unescape(n.Title)
		}
		in.pieces = append(in.pieces, piece{node: in.linked(Elem("image", attrs), marks, begins(n)), at: begins(n)})
	case *ast.RawHTML:
		in.rawHTML(string(n.Segments.Value(src)), n.Segments.At(0).Start, marks)
	case *extast.TaskCheckBox:
		in.checkBox(n, marks)
	default:
		in.children(n, marks)
	}
}

// plain returns the text of n: the alt text of an image.
func (in *inlineReader) plain(n ast.Node) string {
	sub := &inlineReader{r: &reader{s: in.r.s, src: in.r.src}} // records no losses
	sub.children(n, nil)
	var b strings.Builder
	for _, p := range sub.resolve() {
		b.WriteString((&fitter{s: in.r.s}).leafText(p))
	}
	return b.String()
}

// link returns a link with the schema's defaults.
func (r *reader) link(href string, title []byte) Mark {
	attrs := Attrs{"href": href}
	if len(title) > 0 {
		attrs["title"] = unescape(title)
	}
	return Mark{Type: "link", Attrs: attrs}
}

// checkBox keeps the box of an item that is not a task as text.
func (in *inlineReader) checkBox(n *extast.TaskCheckBox, marks []Mark) {
	if l, ok := n.Parent().Parent().Parent().(*ast.List); ok && !l.IsOrdered() {
		return
	}
	in.r.noteLoss(begins(n.Parent()), "a task in a numbered list", "text")
	if n.IsChecked {
		in.text("[x] ", marks)
		return
	}
	in.text("[ ] ", marks)
}

// addMark returns marks with m, unless one of its type is there already.
func addMark(marks []Mark, m Mark) []Mark {
	if slices.ContainsFunc(marks, func(o Mark) bool { return o.Type == m.Type }) {
		return marks
	}
	return append(slices.Clip(marks), m)
}

func (in *inlineReader) rawHTML(raw string, at int, marks []Mark) {
	node := Text(strings.ReplaceAll(raw, "\n", " "), marks...)
	tag, rest, ok := cutTag(raw)
	if !ok || rest != "" {
		in.r.noteLoss(at, shortHTML(raw), "text")
		in.pieces = append(in.pieces, piece{node: node})
		return
	}
	switch {
	case tag.end:
	case tag.name == "br" && len(tag.attrs) == 0:
		in.pieces = append(in.pieces, piece{node: Elem("hardBreak", nil)})
		return
	case tag.name == "img":
		if img := in.r.s.tagImage(tag); img != nil {
			in.pieces = append(in.pieces, piece{node: in.linked(img, marks, at), at: at})
			return
		}
	case tag.name == "span":
	default:
		if _, ok := in.r.s.tagMark(tag); !ok {
			in.tell(&tag, node.Text, at)
			in.pieces = append(in.pieces, piece{node: node})
			return
		}
	}
	in.pieces = append(in.pieces, piece{node: node, tag: &tag, pair: -1, at: at})
}

// tell records that a tag stays text; of a pair, only the first.
func (in *inlineReader) tell(tag *htmlTag, raw string, at int) {
	if tag.end && in.reported[tag.name] {
		return
	}
	if in.reported == nil {
		in.reported = map[string]bool{}
	}
	in.reported[tag.name] = true
	in.r.noteLoss(at, shortHTML(raw), "text")
}

// link reads a link. A link without text shows its URL.
func (in *inlineReader) link(n *ast.Link, marks []Mark) {
	href := unescape(n.Destination)
	marks = addMark(marks, in.r.link(href, n.Title))
	if n.FirstChild() == nil {
		in.r.noteLoss(begins(n), "a link without text", "its address")
		in.text(href, marks)
		return
	}
	in.children(n, marks)
}

// linked returns an image inside marks: a link becomes its href attribute.
func (in *inlineReader) linked(image *Node, marks []Mark, at int) *Node {
	i := slices.IndexFunc(marks, func(m Mark) bool { return m.Type == "link" })
	if i < 0 {
		return image
	}
	if !slices.ContainsFunc(in.r.s.attrSpecs("image", false), func(a AttrSpec) bool { return a.Name == "href" }) {
		in.r.noteLoss(at, "a link around an image", "the image")
		return image
	}
	link := marks[i]
	for _, a := range in.r.s.attrSpecs("link", true) {
		if v, there := link.Attrs[a.Name]; there && a.Name != "href" && !equalValue(v, a.Default) {
			in.r.noteLoss(at, "the "+a.Name+" of a link around an image", "the link without it")
		}
	}
	attrs := maps.Clone(image.Attrs)
	if attrs == nil {
		attrs = Attrs{}
	}
	attrs["href"] = link.Attrs["href"]
	return Elem("image", attrs)
}

// noteAltLosses records what alt text cannot express.
func (in *inlineReader) noteAltLosses(n ast.Node) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c.Kind() {
		case ast.KindLink, ast.KindAutoLink, ast.KindImage, ast.KindRawHTML:
			in.r.noteLoss(begins(n), "a link, an image or HTML in the text of an image", "text")
			return
		}
		in.noteAltLosses(c)
	}
}

// resolve matches the tags and returns the nodes between them with their marks. An unmatched
// tag is text.
func (in *inlineReader) resolve() []*Node {
	in.pairTags()
	s := in.r.s
	var marks []Mark
	var ends []int // where each mark ends
	closers := map[int]bool{}
	var out []*Node
	for i := 0; i < len(in.pieces); i++ {
		p := in.pieces[i]
		for k, end := range slices.Backward(ends) {
			if end <= i {
				marks, ends = slices.Delete(slices.Clone(marks), k, k+1), slices.Delete(ends, k, k+1)
			}
		}
		if closers[i] {
			continue
		}
		if p.tag != nil && !p.tag.end && (p.pair > i+1 || p.pair > i && p.tag.name == "span") {
			if p.tag.name == "span" {
				if n := s.tagMention(*p.tag); n != nil {
					out = append(out, n)
					i = p.pair
					continue
				}
			} else if m, ok := s.tagMark(*p.tag); ok {
				closers[p.pair] = true
				if !slices.ContainsFunc(marks, func(o Mark) bool { return o.Type == m.Type }) {
					marks, ends = append(slices.Clip(marks), m), append(ends, p.pair)
				}
				continue
			}
		}
		n := p.node
		if p.tag != nil {
			in.tell(p.tag, n.Text, p.at)
		}
		if n.Type == "image" && len(marks) > 0 {
			n = in.linked(n, marks, p.at)
		}
		if n.IsText() && len(marks) > 0 {
			all := n.Marks
			for _, m := range marks {
				all = addMark(all, m)
			}
			n = Text(n.Text, all...)
		}
		out = append(out, n)
	}
	return join(out)
}

// pairTags matches opening and closing tags. A closing tag matches the last open tag of its
// name; tags opened in between stay open.
func (in *inlineReader) pairTags() {
	open := map[string][]int{}
	for i, p := range in.pieces {
		if p.tag == nil {
			continue
		}
		stack := open[p.tag.name]
		if !p.tag.end {
			open[p.tag.name] = append(stack, i)
		} else if k := len(stack) - 1; k >= 0 && len(p.tag.attrs) == 0 {
			in.pieces[stack[k]].pair, in.pieces[i].pair = i, stack[k]
			open[p.tag.name] = stack[:k]
		}
	}
}

// tagMention returns the mention that a <span> opens, or nil.
func (s *Schema) tagMention(tag htmlTag) *Node {
	t := s.types["mention"]
	if typ, _ := tag.attr("data-type"); typ != "mention" || t == nil {
		return nil
	}
	tag.attrs = slices.DeleteFunc(slices.Clone(tag.attrs), func(a htmlAttr) bool { return a.name == "data-type" })
	attrs, ok := tag.read(t.spec.Attrs, false, func(name string) string { return "data-" + kebab(name) })
	if !ok {
		return nil
	}
	return Elem("mention", attrs)
}

// kebab converts camelCase to kebab-case.
func kebab(s string) string {
	var b strings.Builder
	for _, c := range s {
		if c >= 'A' && c <= 'Z' {
			b.WriteByte('-')
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}
