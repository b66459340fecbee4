package prosemirror

import (
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// Blocks of HTML that hold only tags of tables and lists are not code: the tags
// become items of their own between the Markdown blocks, and where they pair up
// to a table or to a list with attributes, that is what they are.

// item is a Markdown block, or a tag from a block of HTML.
type item struct {
	node  ast.Node // the block, or the block that the tag is from
	tag   *htmlTag
	match int // of an opening tag: the index of the tag that closes it, else -1
}

// maxHTMLDepth is how deep tables nest in HTML.
const maxHTMLDepth = 16

var containerTags = []string{"table", "thead", "tbody", "tr", "th", "td", "ol"}

func (r *reader) items(parent ast.Node) []item {
	items := make([]item, 0, parent.ChildCount())
	var open []int
	for c := parent.FirstChild(); c != nil; c = c.NextSibling() {
		tags := containers(r.rawHTML(c))
		if tags == nil {
			items = append(items, item{node: c})
			continue
		}
		for _, t := range tags {
			if (t.name == "thead" || t.name == "tbody") && len(t.attrs) == 0 {
				continue
			}
			if !t.end {
				open = append(open, len(items))
			} else if k := len(open) - 1; k >= 0 && items[open[k]].tag.name == t.name {
				items[open[k]].match = len(items)
				open = open[:k]
			}
			items = append(items, item{node: c, tag: &t, match: -1})
		}
	}
	return items
}

// rawHTML returns the source of a block of HTML, "" for other blocks.
func (r *reader) rawHTML(n ast.Node) string {
	h, ok := n.(*ast.HTMLBlock)
	if !ok {
		return ""
	}
	raw := string(h.Lines().Value(r.src))
	if h.HasClosure() {
		raw += string(h.ClosureLine.Value(r.src))
	}
	return raw
}

// containers returns the tags of raw if it holds nothing else, else nil.
func containers(raw string) []htmlTag {
	var tags []htmlTag
	for raw = strings.TrimSpace(raw); raw != ""; raw = strings.TrimSpace(raw) {
		tag, rest, ok := cutTag(raw)
		if !ok || !slices.Contains(containerTags, tag.name) {
			return nil
		}
		tags, raw = append(tags, tag), rest
	}
	return tags
}

// itemParser turns items into blocks.
type itemParser struct {
	r     *reader
	items []item
	pos   int
	depth int
	raw   ast.Node // the last block of HTML that was kept as code
}

// until returns the blocks up to the item at end.
func (p *itemParser) until(end int) []*Node {
	var out []*Node
	for p.pos < end {
		it := p.items[p.pos]
		if it.tag != nil {
			if n := p.container(); n != nil {
				out = append(out, n)
				continue
			}
		}
		p.pos++
		switch h, ok := it.node.(*ast.HTMLBlock); {
		case !ok:
			out = append(out, p.r.block(it.node, p.depth)...)
		case it.tag == nil || p.raw != it.node:
			p.raw = it.node
			out = append(out, p.r.htmlBlock(h))
		}
	}
	return out
}

// htmlBlock returns a block of HTML: one that we write, or source code.
func (r *reader) htmlBlock(h *ast.HTMLBlock) *Node {
	raw := strings.TrimSpace(r.rawHTML(h))
	if tag, rest, ok := cutTag(raw); ok {
		switch {
		case rest == "" && tag.name == "br" && len(tag.attrs) == 0:
			return Elem("paragraph", nil, Elem("hardBreak", nil))
		case rest == "" && tag.name == "img":
			if n := r.s.tagImage(tag); n != nil {
				return Elem("paragraph", nil, n)
			}
		case tag.name == "pre" && len(tag.attrs) == 0:
			if n := preCode(rest); n != nil {
				return n
			}
		}
	}
	r.lose(begins(h), shortHTML(raw), "a code block")
	return codeBlock("html", r.rawHTML(h))
}

// preCode reads source code in HTML behind its <pre>.
func preCode(s string) *Node {
	tag, s, ok := cutTag(s)
	body, end, found := strings.Cut(s, "</code></pre>")
	if !ok || tag.name != "code" || tag.end || !tag.only("class") || !found || end != "" || strings.Contains(body, "<") {
		return nil
	}
	class, _ := tag.attr("class")
	lang, ok := strings.CutPrefix(class, "language-")
	if class != "" && !ok {
		return nil
	}
	return codeBlock(lang, unescapeHTML(body)+"\n")
}

// container returns the table or the list that begins at pos, or nil.
func (p *itemParser) container() *Node {
	start, it := p.pos, p.items[p.pos]
	if it.tag.end || it.match < 0 || p.depth > maxHTMLDepth {
		return nil
	}
	var n *Node
	switch it.tag.name {
	case "table":
		n = p.table(it)
	case "ol":
		n = p.orderedList(it)
	}
	if n == nil {
		p.pos = start
		return nil
	}
	p.pos = it.match + 1
	return n
}

// orderedList reads <ol> around a list: the attributes are its.
func (p *itemParser) orderedList(it item) *Node {
	attrs, ok := p.r.s.tagAttrs("orderedList", it.tag)
	if !ok || it.match != p.pos+2 || p.items[p.pos+1].tag != nil {
		return nil
	}
	l, ok := p.items[p.pos+1].node.(*ast.List)
	if !ok || !l.IsOrdered() {
		return nil
	}
	n := p.r.list(l, p.depth)[0]
	if attrs["start"] == nil {
		attrs["start"] = n.Attrs["start"]
	}
	return Elem("orderedList", attrs, n.Content...)
}

// table reads a table if all between its tags are rows, and all between theirs cells.
func (p *itemParser) table(it item) *Node {
	s := p.r.s
	if len(it.tag.attrs) > 0 {
		return nil
	}
	type cell struct {
		from int
		typ  string
	}
	var rows [][]cell
	for i := p.pos + 1; i < it.match; i++ {
		tr := p.items[i]
		if tr.tag == nil || tr.tag.end || tr.tag.name != "tr" || tr.match < 0 || len(tr.tag.attrs) > 0 {
			return nil
		}
		var row []cell
		for i++; i < tr.match; i++ {
			td := p.items[i]
			if td.tag == nil || td.tag.end || td.match < 0 {
				return nil
			}
			typ := map[string]string{"td": "tableCell", "th": "tableHeader"}[td.tag.name]
			if _, ok := s.tagAttrs(typ, td.tag); !ok {
				return nil
			}
			row = append(row, cell{i, typ})
			i = td.match
		}
		rows = append(rows, row)
	}
	t := Elem("table", nil)
	for _, row := range rows {
		tr := Elem("tableRow", nil)
		for _, c := range row {
			attrs, _ := s.tagAttrs(c.typ, p.items[c.from].tag)
			p.pos = c.from + 1
			p.depth++
			tr.Content = append(tr.Content, Elem(c.typ, attrs, p.until(p.items[c.from].match)...))
			p.depth--
		}
		t.Content = append(t.Content, tr)
	}
	return t
}

// tagAttrs returns the attributes of a node of type typ that a tag has under
// their own names.
func (s *Schema) tagAttrs(typ string, tag *htmlTag) (Attrs, bool) {
	t := s.types[typ]
	if t == nil {
		return nil, false
	}
	attrs, used := Attrs{}, 0
	for _, a := range t.spec.Attrs {
		raw, ok := tag.attr(strings.ToLower(a.Name))
		if !ok {
			continue
		}
		used++
		v, ok := a.parse(raw)
		if !ok {
			return nil, false
		}
		attrs[a.Name] = v
	}
	return attrs, used == len(tag.attrs)
}

// tagImage returns the image of an <img>, nil if it has other attributes than ours.
func (s *Schema) tagImage(tag htmlTag) *Node {
	attrs, ok := s.tagAttrs("image", &tag)
	if !ok || tag.end {
		return nil
	}
	return Elem("image", attrs)
}
