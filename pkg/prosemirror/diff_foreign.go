package prosemirror

import (
	"slices"
	"strings"
)

// graft returns next with old's inline nodes outside the schema. The author of next, as
// Markdown, saw only their text or nothing: they stay where the text around them does.
func (d *differ) graft(old, next *Node) *Node {
	if !d.s.textblock(old.Type) || !slices.ContainsFunc(old.Content, d.s.foreign) {
		return next
	}
	kept := map[uint64][]*Node{} // by hash
	for _, n := range next.Content {
		if d.s.foreign(n) {
			kept[d.nodeHash(n)] = append(kept[d.nodeHash(n)], n)
		}
	}
	var a, b strings.Builder
	var lost []grafted
	for _, n := range old.Content {
		from := a.Len()
		a.WriteString(d.s.shownText(n))
		if d.s.foreign(n) && !slices.ContainsFunc(kept[d.nodeHash(n)], n.Equal) {
			lost = append(lost, grafted{n, from, a.Len()})
		}
	}
	for _, n := range next.Content {
		b.WriteString(d.s.shownText(n))
	}
	found := keptGrafts(lost, diffText(a.String(), b.String()), a.Len() == 0)
	if len(found) == 0 {
		return next
	}
	return with(next, next.Attrs, d.s.insertGrafts(next.Content, found))
}

// foreign reports whether a node is outside the schema.
func (s *Schema) foreign(n *Node) bool { return s.types[n.Type] == nil }

// shownText is the text that stands for a child of a text block; an atom is one character.
func (s *Schema) shownText(n *Node) string {
	if n.IsText() || s.foreign(n) {
		return n.TextContent()
	}
	return "\ufffc"
}

// grafted is a node with the byte range of a text that shows it.
type grafted struct {
	node     *Node
	from, to int
}

// keptGrafts returns the nodes whose text is kept, with their ranges in the new text.
func keptGrafts(nodes []grafted, chunks []chunk, empty bool) []grafted {
	var out []grafted
	i, j := 0, 0
	for _, c := range chunks {
		i, j = i+c.del, j+c.ins
		for len(nodes) > 0 && nodes[0].to <= i+c.keep && (c.keep > 0 || empty) {
			if g := nodes[0]; g.from >= i {
				out = append(out, grafted{g.node, g.from - i + j, g.to - i + j})
			}
			nodes = nodes[1:]
		}
		i, j = i+c.keep, j+c.keep
	}
	return out
}

// insertGrafts returns content with nodes in place of their ranges.
func (s *Schema) insertGrafts(content []*Node, nodes []grafted) []*Node {
	var out []*Node
	at := 0
	for _, n := range content {
		end := at + len(s.shownText(n))
		if !n.IsText() {
			for len(nodes) > 0 && nodes[0].from <= at {
				out, nodes = append(out, nodes[0].node), nodes[1:]
			}
			out, at = append(out, n), end
			continue
		}
		text := n.Text
		for len(nodes) > 0 && nodes[0].from < end {
			g := nodes[0]
			out = append(out, Text(text[:max(0, g.from-at)], n.Marks...), g.node)
			cut := min(g.to, end)
			text, at = text[max(0, cut-at):], max(at, cut)
			nodes = nodes[1:]
		}
		out, at = append(out, Text(text, n.Marks...)), end
	}
	for _, g := range nodes {
		out = append(out, g.node)
	}
	return join(out)
}
