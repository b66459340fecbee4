package prosemirror

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Apply returns doc after ops. An error names the first op that does not apply. The ops must
// not leave two adjacent runs of text.
func Apply(doc *Node, ops []Op) (*Node, error) {
	root := grow(doc)
	for i, op := range ops {
		if err := root.apply(op); err != nil {
			return nil, fmt.Errorf("change %d, %T at %v: %w", i, op, op.path(), err)
		}
	}
	return root.tree()
}

// branch is a mutable element or run of text.
type branch struct {
	node     *Node // the element; its content is in children
	children []*branch
	texts    []*Node
}

func grow(n *Node) *branch {
	return &branch{node: n, children: growAll(n.Content)}
}

func growAll(nodes []*Node) []*branch {
	var out []*branch
	for _, k := range childrenOf(nodes) {
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
	for i, k := range b.children {
		if k.node == nil {
			if i > 0 && b.children[i-1].node == nil {
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
		if i < 0 || i >= len(b.children) {
			return nil, fmt.Errorf("nothing is there")
		}
		b = b.children[i]
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
		if op.Index < 0 || op.Index > len(b.children) {
			return fmt.Errorf("no place %d in %s", op.Index, b.node.Type)
		}
		b.children = slices.Insert(b.children, op.Index, growAll(op.Nodes)...)
	case DeleteNodes:
		if op.Index < 0 || op.Count < 0 || op.Index+op.Count > len(b.children) {
			return fmt.Errorf("no %d children at %d in %s", op.Count, op.Index, b.node.Type)
		}
		b.children = slices.Delete(b.children, op.Index, op.Index+op.Count)
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

// cut16 splits s after n UTF-16 units, or at its end.
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
