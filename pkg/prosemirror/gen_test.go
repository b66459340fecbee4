package prosemirror_test

import (
	"math/rand/v2"
	"strings"

	pm "signalbox.dev/pkg/prosemirror"
)

// generator makes random valid documents, rich in content that is hard for Markdown.
type generator struct {
	*rand.Rand
	s      *pm.Schema
	nested bool // task items hold other blocks
	inline bool // images are inline
}

func newGenerator(s *pm.Schema, seed uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 7)), s: s}
	for _, n := range s.Spec().Nodes {
		g.nested = g.nested || n.Name == "taskItem" && n.Content != "paragraph+"
		g.inline = g.inline || n.Name == "image" && n.Inline
	}
	return g
}

// words are joined at random.
var words = []string{
	"a", "b", "word", "two words", "Zürich", "日本", "😀", "é", "snake_case", "3", "12", "1.", "1)", "42. ", "#", "##", "# ",
	"*", "**", "***", "* ", " *", "_", "__", "_a_", "~", "~~", "~~~", "`", "``", "```", "\\", "\\\\", "\\*", "[", "]", "[x]", "[ ] ", "[x] ",
	"](", "](u)", "[a](b)", "![", "!", "(", ")", "<", ">", "> ", "<b>", "</b>", "<br>", "<div>", "<!--", "-->", "<a href=\"x\">", "&", "&amp;", "&#35;", "&nbsp;", "&lt",
	"|", "|-|", "| a | b |", ":-:", "---", "--", "-", "- ", "+ ", "===", "=", ":", ": ", "http://example.com", "https://x.y/z?a=b&c=d", "www.example.com", "ftp://f.co", "me@example.com", "@", "@x.y",
	"\n", "\n\n", "\r", "\t", " ", "  ", "    ", "\u00a0", "\u2003", "\u200b", "\u2028", "\"", "'", "“", "”", "…", "«", "$", "%", "^", "{", "}", ";", ",", ".", "?", "/", "[a]: b", "]:", "\ufeff", "\x01", "\x7f", "\u0301",
}

func (g *generator) text(n int) string {
	var b strings.Builder
	for b.Len() == 0 || g.IntN(n) > 0 {
		b.WriteString(words[g.IntN(len(words))])
		if g.IntN(3) == 0 {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func (g *generator) marks() []pm.Mark {
	var out []pm.Mark
	if g.IntN(8) == 0 {
		out = append(out, g.link())
	}
	for _, name := range []string{"bold", "italic", "strike", "underline", "code", "highlight", "superscript", "subscript"} {
		p := 4
		if len(name) > 6 {
			p = 12
		}
		if g.IntN(p) == 0 {
			out = append(out, pm.Mark{Type: name})
		}
	}
	return out
}

func (g *generator) link() pm.Mark {
	attrs := pm.Attrs{"href": "https://example.com/" + g.pick("", "a_b*c", "x(y)", "a)b"), "target": "_blank", "rel": "noopener noreferrer nofollow"}
	switch g.IntN(6) {
	case 0:
		attrs["href"] = g.text(3)
	case 1:
		attrs["title"] = g.text(3)
	case 2:
		attrs["target"] = nil
	case 3:
		attrs["class"] = g.text(2)
	case 4:
		attrs["href"] = g.pick("", "#x", "mailto:me@example.com", "http://example.com")
	}
	return pm.Mark{Type: "link", Attrs: attrs}
}

func (g *generator) pick(s ...string) string { return s[g.IntN(len(s))] }

func (g *generator) inlines() []*pm.Node {
	var out []*pm.Node
	for g.IntN(4) > 0 {
		switch k := g.IntN(12); {
		case k == 0:
			out = append(out, pm.Elem("hardBreak", nil))
		case k == 1:
			attrs := pm.Attrs{"mentionSuggestionChar": g.pick("@", "@", "#")}
			if g.IntN(4) > 0 {
				attrs["id"] = g.text(2)
			}
			if g.IntN(2) > 0 {
				attrs["label"] = g.text(2)
			}
			out = append(out, pm.Elem("mention", attrs))
		case k == 2 && g.inline:
			out = append(out, g.image())
		default:
			marks := g.marks()
			if n := len(out); n > 0 && out[n-1].IsText() && pm.EqualMarks(out[n-1].Marks, marks) {
				continue
			}
			if len(marks) == 1 && marks[0].Type == "link" && g.IntN(2) == 0 {
				out = append(out, pm.Text(strings.TrimPrefix(marks[0].Attrs["href"].(string)+g.pick("", "", "x"), "mailto:")+g.pick("", "y"), marks...))
				if out[len(out)-1].Text == "" {
					out = out[:len(out)-1]
				}
				continue
			}
			out = append(out, pm.Text(g.text(3), marks...))
		}
	}
	return out
}

func (g *generator) image() *pm.Node {
	attrs := pm.Attrs{}
	if g.IntN(8) > 0 {
		attrs["src"] = g.pick("a.png", "https://x.y/i.png?a=1&b=2", "", g.text(3))
	}
	if g.IntN(2) == 0 {
		attrs["alt"] = g.text(3)
	}
	if g.IntN(4) == 0 {
		attrs["title"] = g.text(2)
	}
	if g.IntN(6) == 0 {
		attrs["width"] = g.IntN(500)
		attrs["height"] = 0.5
	}
	if g.IntN(4) == 0 {
		attrs["href"] = g.pick("https://example.com/x", "", "a)b", "#x y", g.text(2))
	}
	return pm.Elem("image", attrs)
}

func (g *generator) paragraph() *pm.Node {
	if g.IntN(8) == 0 {
		return pm.Elem("paragraph", nil)
	}
	return pm.Elem("paragraph", nil, g.inlines()...)
}

func (g *generator) blocks(depth, least int) []*pm.Node {
	var out []*pm.Node
	for len(out) < least || g.IntN(5) > 1 && len(out) < 8 {
		out = append(out, g.block(depth))
	}
	return out
}

func (g *generator) block(depth int) *pm.Node {
	k := g.IntN(14)
	if depth > 3 {
		k = g.IntN(7)
	}
	switch k {
	case 0:
		return pm.Elem("heading", pm.Attrs{"level": 1 + g.IntN(6)}, g.inlines()...)
	case 1:
		n := pm.Elem("codeBlock", nil)
		if g.IntN(2) == 0 {
			n.Attrs = pm.Attrs{"language": g.pick("go", "html", "c++", "a b", "`x`", "&amp;", "\\*", g.text(2))}
		}
		if g.IntN(6) > 0 {
			n.Content = []*pm.Node{pm.Text(g.text(6))}
		}
		return n
	case 2:
		return pm.Elem("horizontalRule", nil)
	case 3:
		if !g.inline {
			return g.image()
		}
	case 7:
		return pm.Elem("blockquote", nil, g.blocks(depth+1, 1)...)
	case 8, 9:
		return pm.Elem("bulletList", nil, g.items("listItem", depth)...)
	case 10:
		n := pm.Elem("orderedList", pm.Attrs{"start": []int{1, 1, 1, 0, 7, 99, -3, 999999999, 1 << 30}[g.IntN(9)]}, g.items("listItem", depth)...)
		if g.IntN(6) == 0 {
			n.Attrs["type"] = g.pick("a", "I", "\"")
		}
		return n
	case 11:
		return pm.Elem("taskList", nil, g.items("taskItem", depth)...)
	case 12, 13:
		return g.table(depth)
	}
	return g.paragraph()
}

func (g *generator) items(typ string, depth int) []*pm.Node {
	var out []*pm.Node
	for len(out) == 0 || g.IntN(3) > 0 {
		n := pm.Elem(typ, nil, g.paragraph())
		if typ == "taskItem" {
			n.Attrs = pm.Attrs{"checked": g.IntN(2) == 0}
		}
		if g.IntN(2) == 0 {
			if typ == "taskItem" && !g.nested {
				n.Content = append(n.Content, g.paragraph())
			} else {
				n.Content = append(n.Content, g.blocks(depth+1, 0)...)
			}
		}
		out = append(out, n)
	}
	return out
}

func (g *generator) table(depth int) *pm.Node {
	t := pm.Elem("table", nil)
	columns, rows, easy := 1+g.IntN(3), 1+g.IntN(3), g.IntN(3) > 0
	wide := g.IntN(12)
	aligns := make([]any, columns)
	for i := range aligns {
		aligns[i] = []any{nil, "left", "right", "center"}[g.IntN(4)]
	}
	for i := range rows {
		row := pm.Elem("tableRow", nil)
		for j := range columns {
			c := pm.Elem("tableCell", pm.Attrs{"colspan": 1, "rowspan": 1})
			if i == 0 && easy || !easy && g.IntN(3) == 0 {
				c.Type = "tableHeader"
			}
			if aligns[j] != nil && (easy || g.IntN(2) == 0) {
				c.Attrs["align"] = aligns[j]
			}
			if !easy && rows == 1 {
				c.Attrs["colspan"] = 1 + g.IntN(2)
			}
			if !easy && j == wide { // equal for all cells of a column
				c.Attrs["colwidth"] = []any{100, nil}
				if c.Attrs["colspan"] == 1 {
					c.Attrs["colwidth"] = []any{100}
				}
			}
			c.Content = []*pm.Node{g.paragraph()}
			if !easy {
				c.Content = g.blocks(depth+1, 1)
			}
			row.Content = append(row.Content, c)
		}
		t.Content = append(t.Content, row)
	}
	return t
}

func (g *generator) doc() *pm.Node {
	nodes := g.blocks(0, 1)
	if trailing := g.s.Spec().Trailing; trailing != "" && nodes[len(nodes)-1].Type != trailing {
		nodes = append(nodes, pm.Elem(trailing, nil))
	}
	return pm.Elem("doc", nil, nodes...)
}
