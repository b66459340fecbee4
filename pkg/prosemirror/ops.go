package prosemirror

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// An Op is one change to a document. Its path leads from the root over children
// as a shared document has them: elements, atoms, and runs of text, where texts
// next to each other are one run whatever their marks. The paths of an Op hold
// in the document that the ones before it have left.
//
// The kinds are InsertNodes, DeleteNodes, SetAttr and EditText.
type Op interface{ path() []int }

// InsertNodes inserts children before child Index of the element at Path.
type InsertNodes struct {
	Path  []int
	Index int
	// Nodes are elements and texts; texts next to each other are one run.
	Nodes []*Node
}

// DeleteNodes deletes Count children from child Index on.
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

// Splice is a step through a run: one of Retain, Insert and Delete is set.
// Lengths are UTF-16 units, as in Yjs.
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

// kid is a child as an Op counts it: an element, or texts that are one run.
type kid struct {
	node  *Node
	texts []*Node
}

// kids groups children.
func kids(nodes []*Node) []kid {
	out := make([]kid, 0, len(nodes))
	for i := 0; i < len(nodes); i++ {
		if !nodes[i].IsText() {
			out = append(out, kid{node: nodes[i]})
			continue
		}
		j := i + 1
		for j < len(nodes) && nodes[j].IsText() {
			j++
		}
		out = append(out, kid{texts: nodes[i:j]})
		i = j - 1
	}
	return out
}

// Apply returns doc after ops. An error names the first that does not fit. Two
// runs of text must not be left next to each other.
func Apply(doc *Node, ops []Op) (*Node, error) {
	root := grow(doc)
	for i, op := range ops {
		if err := root.apply(op); err != nil {
			return nil, fmt.Errorf("change %d, %T at %v: %w", i, op, op.path(), err)
		}
	}
	return root.tree()
}

// branch is an element, or a run of text, that changes.
type branch struct {
	node  *Node // the element; its content is in kids
	kids  []*branch
	texts []*Node
}

func grow(n *Node) *branch {
	return &branch{node: n, kids: growAll(n.Content)}
}

func growAll(nodes []*Node) []*branch {
	var out []*branch
	for _, k := range kids(nodes) {
		if k.node == nil {
			out = append(out, &branch{texts: k.texts})
			continue
		}
		out = append(out, grow(k.node))
	}
	return out
}

func (b *branch) tree() (*Node, error) {
	var content []*Node
	for i, k := range b.kids {
		if k.node == nil {
			if i > 0 && b.kids[i-1].node == nil {
				return nil, fmt.Errorf("two runs of text next to each other in %s", b.node.Type)
			}
			if len(k.texts) == 0 {
				return nil, fmt.Errorf("a run without text in %s", b.node.Type)
			}
			content = append(content, k.texts...)
			continue
		}
		n, err := k.tree()
		if err != nil {
			return nil, err
		}
		content = append(content, n)
	}
	return with(b.node, b.node.Attrs, content), nil
}

func (b *branch) at(path []int) (*branch, error) {
	for _, i := range path {
		if i < 0 || i >= len(b.kids) {
			return nil, fmt.Errorf("nothing is there")
		}
		b = b.kids[i]
	}
	return b, nil
}

func (b *branch) apply(op Op) error {
	b, err := b.at(op.path())
	if err != nil {
		return err
	}
	if _, text := op.(EditText); text != (b.node == nil) {
		return fmt.Errorf("a text is not an element")
	}
	switch op := op.(type) {
	case InsertNodes:
		if op.Index < 0 || op.Index > len(b.kids) {
			return fmt.Errorf("no place %d in %s", op.Index, b.node.Type)
		}
		b.kids = slices.Insert(b.kids, op.Index, growAll(op.Nodes)...)
	case DeleteNodes:
		if op.Index < 0 || op.Count < 0 || op.Index+op.Count > len(b.kids) {
			return fmt.Errorf("no %d children at %d in %s", op.Count, op.Index, b.node.Type)
		}
		b.kids = slices.Delete(b.kids, op.Index, op.Index+op.Count)
	case SetAttr:
		attrs := maps.Clone(b.node.Attrs)
		if attrs == nil {
			attrs = Attrs{}
		}
		attrs[op.Name] = op.Value
		if op.Value == nil {
			delete(attrs, op.Name)
		}
		b.node = &Node{Type: b.node.Type, Attrs: attrs, Content: b.node.Content}
	case EditText:
		b.texts, err = splice(b.texts, op.Delta)
	}
	return err
}

func splice(texts []*Node, delta []Splice) ([]*Node, error) {
	var out []*Node
	rest := slices.Clone(texts)
	take := func(n int, each func(*Node)) error {
		for n > 0 {
			if len(rest) == 0 {
				return fmt.Errorf("the text ends %d units too early", n)
			}
			head, tail := cut16(rest[0].Text, n)
			if head == "" {
				return fmt.Errorf("a change within a character")
			}
			each(Text(head, rest[0].Marks...))
			n -= Len16(head)
			if tail == "" {
				rest = rest[1:]
				continue
			}
			rest[0] = Text(tail, rest[0].Marks...)
		}
		return nil
	}
	for _, s := range delta {
		if s.Insert != "" {
			out = append(out, Text(s.Insert, s.Format...))
		}
		if err := take(s.Delete, func(*Node) {}); err != nil {
			return nil, err
		}
		if err := take(s.Retain, func(n *Node) { out = append(out, reformat(n, s)) }); err != nil {
			return nil, err
		}
	}
	return join(append(out, rest...)), nil
}

func reformat(n *Node, s Splice) *Node {
	if len(s.Format) == 0 && len(s.Unformat) == 0 {
		return n
	}
	var marks []Mark
	for _, m := range n.Marks {
		if !slices.Contains(s.Unformat, m.Type) && !hasType(s.Format, m.Type) {
			marks = append(marks, m)
		}
	}
	return Text(n.Text, append(marks, s.Format...)...)
}

// Len16 returns the length of s in UTF-16 units.
func Len16(s string) int {
	n := 0
	for _, r := range s {
		n += utf16.RuneLen(r)
	}
	return n
}

// cut16 cuts s behind n units, or at its end.
func cut16(s string, n int) (head, tail string) {
	i := 0
	for i < len(s) && n > 0 {
		r, size := utf8.DecodeRuneInString(s[i:])
		if n -= utf16.RuneLen(r); n < 0 {
			break
		}
		i += size
	}
	return s[:i], s[i:]
}
