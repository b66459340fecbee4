package prosemirror

import (
	"maps"
	"slices"
)

// maxCells bounds the tables that are repaired.
const maxCells = 100_000

// rectangle returns the rows of a table as editors would repair them: no cell reaches
// into another one or below the last row, all rows are equally wide, at least one cell,
// and the cells of a column agree about its width. The content of other nodes is
// returned as it is.
func (f *fitter) rectangle(t *nodeType, rows []*Node) []*Node {
	if t.spec.Name != "table" || len(rows) == 0 {
		return rows
	}
	g, ok := layOut(rows)
	if !ok {
		return rows
	}
	rows, ok = f.square(rows, g)
	if !ok {
		return rows
	}
	return levelWidths(rows)
}

// place is where a cell stands in a table.
type place struct{ column, width, height int }

// grid is a table laid out as a browser does.
type grid struct {
	places [][]place // by row and cell
	taken  []int     // by row: how many columns have a cell
	width  int
}

// layOut places the cells, made smaller where they would reach too far. It tells
// whether the table is small enough for that.
func layOut(rows []*Node) (grid, bool) {
	g := grid{places: make([][]place, len(rows)), taken: make([]int, len(rows))}
	var until []int // by column: the first row that no cell above reaches
	steps := 0
	for i, r := range rows {
		column := 0
		for _, c := range r.Content {
			for column < len(until) && until[column] > i {
				column++
			}
			p := place{column: column, height: min(span(c, "rowspan"), len(rows)-i)}
			for w := span(c, "colspan"); p.width < w; p.width++ {
				k := column + p.width
				if k == len(until) {
					until = append(until, 0)
				}
				if until[k] > i {
					break
				}
				until[k] = i + p.height
			}
			for j := range p.height {
				g.taken[i+j] += p.width
			}
			g.places[i] = append(g.places[i], p)
			column += p.width
			if steps += p.width + p.height + column; steps > 100*maxCells {
				return grid{}, false
			}
		}
	}
	g.width = max(1, len(until))
	return g, g.width*len(rows) <= maxCells
}

// square returns the rows with the cells as large as they were laid out, and with cells
// at their ends for what is missing.
func (f *fitter) square(rows []*Node, g grid) ([]*Node, bool) {
	out := rows
	for i, r := range rows {
		kids := r.Content
		for j, c := range r.Content {
			p := g.places[i][j]
			if p.width == span(c, "colspan") && p.height == span(c, "rowspan") {
				continue
			}
			attrs := cloned(c.Attrs)
			attrs["colspan"], attrs["rowspan"] = p.width, p.height
			if l, ok := attrs["colwidth"].([]any); ok && len(l) > p.width {
				attrs["colwidth"] = slices.Clone(l[:p.width])
			}
			kids = replaced(kids, r.Content, j, with(c, attrs, c.Content))
		}
		if missing := g.width - g.taken[i]; missing > 0 {
			t := f.s.types["tableCell"]
			if n := len(r.Content); n > 0 {
				t = f.s.types[r.Content[n-1].Type]
			}
			if t == nil {
				return rows, false
			}
			kids = slices.Clone(kids)
			for range missing {
				kids = append(kids, f.make(t))
			}
		}
		out = replaced(out, rows, i, with(r, r.Attrs, kids))
	}
	return out, true
}

// replaced returns nodes, a copy of it where it is still orig, with n at i.
func replaced(nodes, orig []*Node, i int, n *Node) []*Node {
	if nodes[i] == n {
		return nodes
	}
	if &nodes[0] == &orig[0] {
		nodes = slices.Clone(nodes)
	}
	nodes[i] = n
	return nodes
}

// levelWidths gives all cells of a column the width that one of them has.
func levelWidths(rows []*Node) []*Node {
	if !slices.ContainsFunc(rows, func(r *Node) bool {
		return slices.ContainsFunc(r.Content, func(c *Node) bool { return c.Attrs["colwidth"] != nil })
	}) {
		return rows
	}
	g, _ := layOut(rows)
	type column struct {
		width any
		rows  int // with that width
	}
	columns := make([]column, g.width)
	for i, r := range rows {
		for j, c := range r.Content {
			p := g.places[i][j]
			for k := range p.width {
				w, col := colWidth(c, k), &columns[p.column+k]
				switch {
				case w == nil:
				case col.width == w:
					col.rows += p.height
				case col.width == nil || col.rows == 1:
					*col = column{w, p.height}
				}
			}
		}
	}
	if !slices.ContainsFunc(columns, func(c column) bool { return c.width != nil && c.rows < len(rows) }) {
		return rows
	}
	out := rows
	for i, r := range rows {
		kids := r.Content
		for j, c := range r.Content {
			p := g.places[i][j]
			widths, _ := c.Attrs["colwidth"].([]any)
			same := true
			for k := range p.width {
				w := columns[p.column+k].width
				if w == nil || colWidth(c, k) == w {
					continue
				}
				if same {
					same, widths = false, slices.Clone(widths)
					for len(widths) < p.width {
						widths = append(widths, 0)
					}
				}
				widths[k] = w
			}
			if !same {
				attrs := cloned(c.Attrs)
				attrs["colwidth"] = widths
				kids = replaced(kids, r.Content, j, with(c, attrs, c.Content))
			}
		}
		out = replaced(out, rows, i, with(r, r.Attrs, kids))
	}
	return out
}

// colWidth returns the width that a cell says its column k has, nil for none.
func colWidth(c *Node, k int) any {
	widths, _ := c.Attrs["colwidth"].([]any)
	if k >= len(widths) || widths[k] == 0 {
		return nil
	}
	return widths[k]
}

func cloned(a Attrs) Attrs {
	out := make(Attrs, len(a)+1)
	maps.Copy(out, a)
	return out
}

func span(n *Node, name string) int {
	if v, ok := n.Attrs[name].(int); ok && v > 0 {
		return v
	}
	return 1
}
