package prosemirror

import (
	"slices"
	"strings"
)

// table writes a table with pipes if possible, else as HTML with Markdown in its cells.
func (w *writer) table(n *Node) {
	if !w.s.pipeTable(n) {
		w.htmlTable(n)
		return
	}
	for i, row := range n.Content {
		if i > 0 {
			w.write("\n")
		}
		w.path = append(w.path, i)
		w.write("|")
		for j, cell := range row.Content {
			w.write(" ")
			w.path = append(w.path, j)
			w.pipeCell(cell)
			w.path = w.path[:len(w.path)-1]
			w.write(" |")
		}
		w.path = w.path[:len(w.path)-1]
		if i == 0 {
			w.write("\n" + delimiterRow(row))
		}
	}
}

func (w *writer) pipeCell(cell *Node) {
	n := cell.Content[0]
	w.path = append(w.path, 0)
	if n.Type == "image" {
		w.write(w.s.imageText(n, true))
	} else if len(n.Content) > 0 {
		w.inline(n, inlineContext{cell: true})
	}
	w.path = w.path[:len(w.path)-1]
}

func delimiterRow(row *Node) string {
	var b strings.Builder
	b.WriteByte('|')
	for _, c := range row.Content {
		switch c.Attrs["align"] {
		case "left":
			b.WriteString(" :--- |")
		case "right":
			b.WriteString(" ---: |")
		case "center":
			b.WriteString(" :---: |")
		default:
			b.WriteString(" --- |")
		}
	}
	return b.String()
}

// pipeTable reports whether a table with pipes can express n: a header row, then rows with as
// many cells, aligned like their header, without spans, each with one paragraph or image.
func (s *Schema) pipeTable(n *Node) bool {
	if len(n.Content) == 0 {
		return false
	}
	head := n.Content[0].Content
	if len(head) == 0 || len(head)+2 > maxColumns || (len(head)+2)*(len(n.Content)+1) > maxTableCells {
		return false
	}
	for i, row := range n.Content {
		if len(row.Content) != len(head) {
			return false
		}
		for j, c := range row.Content {
			if (c.Type == "tableHeader") != (i == 0) || !equalValue(c.Attrs["align"], head[j].Attrs["align"]) ||
				span(c, "colspan") != 1 || span(c, "rowspan") != 1 || c.Attrs["colwidth"] != nil || !pipeContent(c) {
				return false
			}
		}
	}
	return true
}

func pipeContent(c *Node) bool {
	return len(c.Content) == 1 && (c.Content[0].Type == "paragraph" || c.Content[0].Type == "image")
}

func (w *writer) htmlTable(n *Node) {
	w.write("<table>")
	for i, row := range n.Content {
		w.path = append(w.path, i)
		w.write("\n<tr>")
		for j, cell := range row.Content {
			w.path = append(w.path, j)
			w.htmlCell(cell)
			w.path = w.path[:len(w.path)-1]
		}
		w.write("\n</tr>")
		w.path = w.path[:len(w.path)-1]
	}
	w.write("\n</table>")
}

func (w *writer) htmlCell(cell *Node) {
	name := "td"
	if cell.Type == "tableHeader" {
		name = "th"
	}
	w.write("\n" + w.s.nodeTag(name, cell))
	if len(cell.Content) == 1 && emptyBlock(cell.Content[0]) || !slices.ContainsFunc(cell.Content, func(n *Node) bool { return !blank(n) }) {
		w.write("\n</" + name + ">")
		return
	}
	w.write("\n\n")
	w.blocks(cell.Content, 0)
	w.write("\n\n</" + name + ">")
}

// nodeTag returns the tag of a node with the attributes that differ from their defaults.
func (s *Schema) nodeTag(name string, n *Node) string {
	var b strings.Builder
	b.WriteString("<" + name)
	for _, a := range s.attrSpecs(n.Type, false) {
		if v := n.Attrs[a.Name]; v != nil && !equalValue(v, a.Default) {
			appendAttr(&b, strings.ToLower(a.Name), v)
		}
	}
	b.WriteByte('>')
	return b.String()
}
