package prosemirror

import "unicode/utf16"

// An Op is a change to a document. Its path leads from the root over children as a shared
// document has them: elements, atoms, and runs of text, where adjacent texts are one run
// whatever their marks. A path refers to the document after the preceding Ops.
//
// The kinds are InsertNodes, DeleteNodes, SetAttr and EditText.
type Op interface{ path() []int }

// InsertNodes inserts children before child Index of the element at Path.
type InsertNodes struct {
	Path  []int
	Index int
	// Nodes are elements and texts; adjacent texts are one run.
	Nodes []*Node
}

// DeleteNodes deletes Count children from child Index.
type DeleteNodes struct {
	Path         []int
	Index, Count int
}

// SetAttr sets an attribute of the element at Path; nil removes it.
type SetAttr struct {
	Path  []int
	Name  string
	Value any
}

// EditText changes the run of text at Path.
type EditText struct {
	Path  []int
	Delta []Splice
}

func (o InsertNodes) path() []int { return o.Path }
func (o DeleteNodes) path() []int { return o.Path }
func (o SetAttr) path() []int     { return o.Path }
func (o EditText) path() []int    { return o.Path }

// Splice is a step through a run: one of Retain, Insert and Delete is set. Lengths are
// UTF-16 units, as in Yjs.
type Splice struct {
	// Retain keeps text. Format and Unformat change its marks.
	Retain int
	// Insert inserts text with exactly the marks in Format.
	Insert string
	// Delete deletes text.
	Delete   int
	Format   []Mark   // marks to set
	Unformat []string // types of marks to remove
}

// child is a child as an Op counts it: an element, or the texts of a run.
type child struct {
	node  *Node
	texts []*Node
}

// childrenOf groups nodes into elements and runs.
func childrenOf(nodes []*Node) []child {
	out := make([]child, 0, len(nodes))
	for i := 0; i < len(nodes); i++ {
		if !nodes[i].IsText() {
			out = append(out, child{node: nodes[i]})
			continue
		}
		j := i + 1
		for j < len(nodes) && nodes[j].IsText() {
			j++
		}
		out = append(out, child{texts: nodes[i:j]})
		i = j - 1
	}
	return out
}

// Len16 returns the length of s in UTF-16 units.
func Len16(s string) int {
	n := 0
	for _, r := range s {
		n += utf16.RuneLen(r)
	}
	return n
}
