package prosemirror

import (
	"fmt"
	"maps"
	"slices"

	"signalbox.dev/pkg/yjs"
)

// Written is the result of Write.
type Written struct {
	// Changed reports whether anything was written.
	Changed bool
	// Caret is the end of the last change in the document, for the author's cursor: both
	// anchor and head in the awareness state of editors.
	Caret yjs.RelativePosition
}

// Write changes a fragment to equal next, in the caller's transaction, and touches only what
// differs: see Diff. Anything in next that is outside the schema and new is made to fit
// first, since editors would delete it.
//
// After an error the fragment may contain part of the change: discard the document.
func (s *Schema) Write(txn *yjs.Txn, f *yjs.XMLFragment, next *Node) (Written, error) {
	root := s.sharedNode(f)
	ops := s.Diff(root.tree, s.fitNew(root.tree, next))
	w := &sharedWriter{s: s, doc: txn.Doc(), ops: ops}
	if err := w.cut(txn, root); err != nil {
		return Written{}, fmt.Errorf("prepare %d changes: %w", len(ops), err)
	}
	for i, op := range ops {
		w.rest = ops[i+1:]
		if err := w.apply(root, op); err != nil {
			return Written{}, fmt.Errorf("write change %d, %T at %v: %w", i, op, op.path(), err)
		}
	}
	return Written{Changed: len(ops) > 0, Caret: w.caret}, nil
}

// fitNew returns next with its invalid blocks made to fit, except those that cur has too.
func (s *Schema) fitNew(cur, next *Node) *Node {
	if s.Fit(next) == next {
		return next
	}
	d := newDiffer(s)
	old := map[uint64][]*Node{}
	for _, n := range cur.Content {
		if !n.IsText() { // editors cannot show a text at the root: it does not stay
			old[d.nodeHash(n)] = append(old[d.nodeHash(n)], n)
		}
	}
	content := slices.Clone(next.Content)
	for i, n := range content {
		same := old[d.nodeHash(n)]
		if k := slices.IndexFunc(same, n.Equal); k >= 0 {
			content[i] = same[k]
		}
	}
	return s.compose(cur, content)
}

// sharedWriter applies changes to a fragment.
type sharedWriter struct {
	s         *Schema
	doc       *yjs.Doc
	ops, rest []Op // all, and those after the current one
	caret     yjs.RelativePosition
	// hasCaret means that caret is set, inText that it is in a text.
	hasCaret, inText bool
}

func (w *sharedWriter) apply(root *sharedNode, op Op) error {
	t, err := root.at(op.path())
	if err != nil {
		return err
	}
	if _, text := op.(EditText); text != (t.fragment == nil) {
		return fmt.Errorf("a text is not an element")
	}
	switch op := op.(type) {
	case InsertNodes:
		return w.insert(t, op.Index, op.Nodes)
	case DeleteNodes:
		return w.delete(t, op)
	case SetAttr:
		return w.setAttr(t, op)
	case EditText:
		return w.edit(t, op.Delta)
	}
	return fmt.Errorf("no such change")
}

// at returns the node at path.
func (t *sharedNode) at(path []int) (*sharedNode, error) {
	for _, i := range path {
		if i < 0 || i >= len(t.nodes) {
			return nil, fmt.Errorf("the path leads nowhere")
		}
		t = t.nodes[i]
	}
	return t, nil
}

func (w *sharedWriter) setAttr(t *sharedNode, op SetAttr) error {
	switch {
	case t.element == nil: // the root has no attributes
		return nil
	case op.Value == nil:
		t.element.RemoveAttribute(op.Name)
	default:
		if err := t.element.SetAttribute(op.Name, op.Value); err != nil {
			return fmt.Errorf("set attribute %s: %w", op.Name, err)
		}
	}
	if w.wantsCaret(false) {
		w.putCaret(t.fragment, 0)
	}
	return nil
}

// insert inserts nodes before child i.
func (w *sharedWriter) insert(t *sharedNode, i int, nodes []*Node) error {
	previous, err := t.previous(i)
	if err != nil {
		return err
	}
	groups := childrenOf(nodes)
	// TipTap leaves the text of an emptied paragraph in place, and others may be typing in it:
	// reuse it for the first or the last text.
	reuse, empty := -1, t.emptyText(previous)
	if last := len(groups) - 1; empty == nil {
	} else if groups[0].node == nil {
		reuse = 0
	} else if groups[last].node == nil {
		reuse = last
	}
	made := make([]*sharedNode, 0, len(groups))
	add := make([]any, 0, len(groups))
	for i, g := range groups {
		if i == reuse {
			if err := empty.ApplyDelta(w.s.delta(g.texts)); err != nil {
				return err
			}
			made = append(made, &sharedNode{run: []segment{{text: empty}}})
			continue
		}
		child, m, err := w.s.shared(g)
		if err != nil {
			return err
		}
		made, add = append(made, m), append(add, child)
	}
	if reuse == 0 {
		previous = empty
	}
	if err := t.fragment.InsertAfter(previous, add...); err != nil {
		return err
	}
	t.more += len(t.nodes) - i
	t.nodes = append(t.nodes[:i], made...)
	w.caretAfter(t, made)
	return nil
}

// previous returns the fragment's child before child i, nil for the first.
func (t *sharedNode) previous(i int) (any, error) {
	if i < 0 || i > len(t.nodes) {
		return nil, fmt.Errorf("no place %d among %d children", i, len(t.nodes))
	}
	if i == 0 {
		return nil, nil //nolint:nilnil // the first child has no predecessor
	}
	children := t.nodes[i-1].children()
	return children[len(children)-1], nil
}

// children returns the fragment's children that show t: an element, or the texts of a run.
func (t *sharedNode) children() []any {
	if t.element != nil {
		return []any{t.element}
	}
	var out []any
	for i, seg := range t.run {
		if i == 0 || seg.text != t.run[i-1].text {
			out = append(out, seg.text)
		}
	}
	return out
}

// indexAfter returns the fragment's index after child, 0 for nil. It is slow: use it for the
// caret only.
func (t *sharedNode) indexAfter(child any) int {
	index, n := 0, 0
	if child != nil {
		t.fragment.Each(func(c any) bool {
			n++
			if text, ok := c.(*yjs.XMLText); ok {
				c = text.Text()
			}
			if c == child {
				index = n
			}
			return index == 0
		})
	}
	return index
}

// emptyText returns the text after a child if it is empty.
func (t *sharedNode) emptyText(previous any) *yjs.Text {
	if t.plain {
		return nil // every child is shown
	}
	child, _ := t.fragment.Next(previous)
	if text, ok := child.(*yjs.XMLText); ok && text.Text().Len() == 0 {
		return text.Text()
	}
	return nil
}

func (w *sharedWriter) delete(t *sharedNode, op DeleteNodes) error {
	i, n := op.Index, op.Count
	if i < 0 || n <= 0 || n > len(t.nodes)-i {
		return fmt.Errorf("no %d children at %d", n, i)
	}
	gone := t.nodes[i : i+n]
	if t.element != nil && len(t.nodes)+t.more == 1 && gone[0].element == nil && !w.nextInserts(op) {
		// The text stays for others to write in, as TipTap does it.
		for _, seg := range gone[0].run {
			seg.text.Delete(0, seg.text.Len())
		}
		t.plain = false
	} else {
		// Hidden children between them stay.
		all := make([]any, 0, n)
		for _, k := range gone {
			all = append(all, k.children()...)
		}
		if err := t.fragment.Remove(all...); err != nil {
			return err
		}
	}
	t.more += len(t.nodes) - i - n
	t.nodes = t.nodes[:i]
	if w.wantsCaret(false) {
		previous, err := t.previous(i)
		if err != nil {
			return err
		}
		w.putCaret(t.fragment, t.indexAfter(previous))
	}
	return nil
}

// nextInserts reports whether the next change inserts children where op deletes them.
func (w *sharedWriter) nextInserts(op DeleteNodes) bool {
	if len(w.rest) == 0 {
		return false
	}
	in, ok := w.rest[0].(InsertNodes)
	return ok && slices.Equal(in.Path, op.Path)
}

// shared returns a new child of a fragment for k, with its sharedNode.
func (s *Schema) shared(k child) (any, *sharedNode, error) {
	if k.node == nil {
		text := yjs.NewXMLText("")
		return text, &sharedNode{run: []segment{{text: text.Text()}}}, text.Text().ApplyDelta(s.delta(k.texts))
	}
	e := yjs.NewXMLElement(k.node.Type)
	t := &sharedNode{tree: k.node, element: e, fragment: e.Fragment(), plain: true}
	for _, m := range s.stored(k.node.Type, false, k.node.Attrs) {
		if m.Value == nil {
			continue // a null attribute is absent
		}
		if err := e.SetAttribute(m.Key, m.Value); err != nil {
			return nil, nil, fmt.Errorf("set attribute %s: %w", m.Key, err)
		}
	}
	children := childrenOf(k.node.Content)
	if len(children) == 0 {
		return e, t, nil
	}
	add := make([]any, len(children))
	for i, c := range children {
		child, made, err := s.shared(c)
		if err != nil {
			return nil, nil, err
		}
		add[i], t.nodes = child, append(t.nodes, made)
	}
	return e, t, e.Push(add...)
}

// stored returns the attributes of a node or mark as editors have them: those of the schema in
// its order with defaults, then the others. An explicit null differs from the default only in
// a mark.
func (s *Schema) stored(name string, mark bool, attrs Attrs) yjs.Object {
	out := yjs.Object{}
	specs := s.attrSpecs(name, mark)
	for _, a := range specs {
		v, ok := attrs[a.Name]
		if !ok || v == nil && !mark {
			v = a.Default
		}
		out = append(out, yjs.Member{Key: a.Name, Value: v})
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		if (mark || attrs[name] != nil) && !slices.ContainsFunc(specs, func(a AttrSpec) bool { return a.Name == name }) {
			out = append(out, yjs.Member{Key: name, Value: attrs[name]})
		}
	}
	return out
}

// format returns marks as they are stored.
func (s *Schema) format(marks []Mark) yjs.Object {
	var out yjs.Object
	for _, m := range marks {
		out = out.Set(m.Type, s.stored(m.Name(), true, m.Attrs))
	}
	return out
}

// delta returns texts as a delta for an empty text.
func (s *Schema) delta(texts []*Node) []yjs.Op {
	out := make([]yjs.Op, len(texts))
	for i, t := range texts {
		out[i] = yjs.Op{Insert: t.Text, Attributes: s.format(t.Marks)}
	}
	return out
}
