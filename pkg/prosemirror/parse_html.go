package prosemirror

import (
	"html"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// HTML blocks that contain nothing but table and list tags are not code: the tags become
// items between the Markdown blocks, and matching ones become a table or a list with
// attributes.

// item is a Markdown block, or a tag from an HTML block.
type item struct {
	node  ast.Node // the block, or the block that contains the tag
	tag   *htmlTag
	match int // of an opening tag: the index of its closing tag, else -1
}

// maxHTMLDepth is the maximum nesting of HTML tables.
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

// rawHTML returns the source of an HTML block, "" for other blocks.
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

// containers returns the tags of raw if it contains nothing else, else nil.
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

// itemParser converts items to blocks.
type itemParser struct {
	r     *reader
	items []item
	pos   int
	depth int
	raw   ast.Node // the last HTML block that was kept as code
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

// htmlBlock returns an HTML block: one that Render writes, or source code.
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
	r.noteLoss(begins(h), shortHTML(raw), "a code block")
	return codeBlock("html", r.rawHTML(h))
}

// preCode reads source code in HTML after its <pre>.
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
	return codeBlock(lang, html.UnescapeString(body)+"\n")
}

// container returns the table or list that begins at pos, or nil.
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

// orderedList reads a list inside <ol>, which holds its attributes.
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

// table reads a table if it contains only rows, and these only cells.
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

// tagImage returns the image of an <img>, nil if it has unknown attributes.
func (s *Schema) tagImage(tag htmlTag) *Node {
	attrs, ok := s.tagAttrs("image", &tag)
	if !ok || tag.end {
		return nil
	}
	return Elem("image", attrs)
}
