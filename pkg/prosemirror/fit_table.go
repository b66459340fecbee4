package prosemirror

import (
	"maps"
	"slices"
)

// maxCells bounds the size of tables that are repaired.
const maxCells = 100_000

// rectangle returns the rows of a table as editors would repair them: cells do not overlap or
// extend below the last row, all rows are equally wide and at least one cell wide, and the
// cells of a column agree on its width. It returns the content of other nodes unchanged.
func (f *fitter) rectangle(t *nodeType, rows []*Node) []*Node {
	if t.spec.Name != "table" || len(rows) == 0 {
		return rows
	}
	g, ok := layOut(rows)
	if !ok {
		return rows
	}
	rows, ok = f.fillRows(rows, g)
	if !ok {
		return rows
	}
	return alignWidths(rows)
}

// place is the position and size of a cell.
type place struct{ column, width, height int }

// grid is a table laid out as a browser does it.
type grid struct {
	places [][]place // by row and cell
	taken  []int     // by row: the number of columns that cells cover
	width  int
}

// layOut positions the cells and shrinks those that extend too far. ok is false if the table
// is too large to repair.
func layOut(rows []*Node) (g grid, ok bool) {
	g = grid{places: make([][]place, len(rows)), taken: make([]int, len(rows))}
	var until []int // by column: the first row not covered by the cells above
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

// fillRows returns the rows with the cells at their laid-out sizes, and with new cells at the
// end of rows that are too short.
func (f *fitter) fillRows(rows []*Node, g grid) ([]*Node, bool) {
	out := rows
	for i, r := range rows {
		children := r.Content
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
			children = replaced(children, r.Content, j, with(c, attrs, c.Content))
		}
		if missing := g.width - g.taken[i]; missing > 0 {
			t := f.s.types["tableCell"]
			if n := len(r.Content); n > 0 {
				t = f.s.types[r.Content[n-1].Type]
			}
			if t == nil {
				return rows, false
			}
			children = slices.Clone(children)
			for range missing {
				children = append(children, f.make(t))
			}
		}
		out = replaced(out, rows, i, with(r, r.Attrs, children))
	}
	return out, true
}

// replaced returns nodes with n at index i. It clones nodes first if it is still orig.
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

// alignWidths gives all cells of a column the same width.
func alignWidths(rows []*Node) []*Node {
	if !slices.ContainsFunc(rows, func(r *Node) bool {
		return slices.ContainsFunc(r.Content, func(c *Node) bool { return c.Attrs["colwidth"] != nil })
	}) {
		return rows
	}
	g, _ := layOut(rows)
	type column struct {
		width any
		rows  int // rows with that width
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
		children := r.Content
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
				children = replaced(children, r.Content, j, with(c, attrs, c.Content))
			}
		}
		out = replaced(out, rows, i, with(r, r.Attrs, children))
	}
	return out
}

// colWidth returns the width that a cell sets for its k-th column, nil for none.
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
