package prosemirror

import (
	"slices"
	"strings"
)

// Fit returns the valid document nearest to doc, doc itself if it is valid. It creates
// missing nodes and attributes, wraps misplaced nodes or turns them into paragraphs with
// their text, and removes marks and attributes outside the schema. Text is never dropped.
// Table rows are filled up to the same width and the trailing node is added, since editors
// would repair both themselves.
func (s *Schema) Fit(doc *Node) *Node {
	f := &fitter{s: s}
	if doc.Type != s.spec.Top {
		doc = &Node{Type: s.spec.Top, Content: []*Node{doc}}
	}
	nodes := f.node(doc, 0)
	doc = nodes[0]
	if t := s.types[s.spec.Trailing]; t != nil {
		if n := len(doc.Content); n > 0 && doc.Content[n-1].Type != t.spec.Name {
			doc = &Node{Type: doc.Type, Attrs: doc.Attrs, Content: append(slices.Clip(doc.Content), f.make(t))}
		}
	}
	return doc
}

type fitter struct {
	s *Schema
}

// node returns what n becomes regardless of its context: nothing if nothing is left, several
// nodes if a block is inside text.
func (f *fitter) node(n *Node, depth int) []*Node {
	t := f.s.types[n.Type]
	if t == nil || depth > MaxDepth-8 && len(n.Content) > 0 && !t.inlines {
		return f.unwrap(n, depth)
	}
	if n.IsText() {
		if n.Text == "" {
			return nil
		}
		return []*Node{n} // the parent checks its marks
	}
	attrs, ok := fitAttrs(t.spec.Attrs, n.Attrs, false)
	if !ok {
		return f.unwrap(n, depth)
	}
	if t.leaf() {
		if len(n.Content) > 0 {
			return f.unwrap(n, depth)
		}
		return []*Node{with(n, attrs, n.Content)}
	}
	children := n.Content
	if t.inlines {
		return f.textblock(t, with(n, attrs, children), f.children(children, depth))
	}
	children = f.rectangle(t, f.place(t, f.children(children, depth), depth))
	return []*Node{with(n, attrs, children)}
}

// with returns n with other attributes and children, or n itself if they are equal.
func with(n *Node, attrs Attrs, children []*Node) *Node {
	if n.Text == "" && n.Marks == nil && slices.Equal(n.Content, children) && n.Attrs.Equal(attrs) {
		return n
	}
	return &Node{Type: n.Type, Attrs: attrs, Content: children}
}

func (f *fitter) children(nodes []*Node, depth int) []*Node {
	out := nodes
	for i, n := range nodes {
		fit := f.node(n, depth+1)
		if len(fit) == 1 && fit[0] == n && len(out) == len(nodes) && &out[0] == &nodes[0] {
			continue
		}
		if len(out) > 0 && &out[0] == &nodes[0] {
			out = slices.Clone(nodes[:i])
		}
		out = append(out, fit...)
	}
	return out
}

// unwrap returns what remains of n if n itself is impossible: its children, or its text.
func (f *fitter) unwrap(n *Node, depth int) []*Node {
	if depth > MaxDepth-8 {
		if text := f.leafText(n); text != "" {
			return []*Node{Text(text)}
		}
		return nil
	}
	if len(n.Content) > 0 {
		return f.children(n.Content, depth)
	}
	if text := f.leafText(n); text != "" {
		return []*Node{{Type: TextType, Text: text, Marks: n.Marks}}
	}
	return nil
}

// leafText returns the text that replaces n where n is impossible.
func (f *fitter) leafText(n *Node) string {
	str := func(name string) string {
		v, _ := n.Attrs[name].(string)
		return v
	}
	switch n.Type {
	case "hardBreak":
		return "\n"
	case "mention":
		return mentionText(n)
	case "image":
		if alt := str("alt"); alt != "" {
			return alt
		}
		return str("src")
	}
	return n.TextContent()
}

func mentionText(n *Node) string {
	char, _ := n.Attrs["mentionSuggestionChar"].(string)
	for _, name := range []string{"label", "id"} {
		if v, ok := n.Attrs[name].(string); ok {
			return char + v
		}
	}
	return char
}

// textblock returns n, whose content is inline, with children. It is split around blocks.
func (f *fitter) textblock(t *nodeType, n *Node, children []*Node) []*Node {
	isBlock := func(k *Node) bool { return !f.s.types[k.Type].inlineNode() }
	if !slices.ContainsFunc(children, isBlock) {
		return []*Node{with(n, n.Attrs, f.inline(t, children))}
	}
	var out []*Node
	for len(children) > 0 {
		i := slices.IndexFunc(children, isBlock)
		if i == 0 {
			if t.spec.Code {
				children = slices.Concat([]*Node{Text(f.leafText(children[0]))}, children[1:])
				continue
			}
			out, children = append(out, children[0]), children[1:]
			continue
		}
		if i < 0 {
			i = len(children)
		}
		part := children[:i]
		if len(out) > 0 || i < len(children) { // whitespace next to the block separated words
			part = trim(part)
		}
		if part = f.inline(t, part); len(part) > 0 {
			out = append(out, &Node{Type: n.Type, Attrs: n.Attrs, Content: part})
		}
		children = children[i:]
	}
	return out
}

// trim removes whitespace at both ends of nodes.
func trim(nodes []*Node) []*Node {
	nodes = slices.Clone(nodes)
	for len(nodes) > 0 && nodes[0].IsText() {
		n := *nodes[0]
		if n.Text = strings.TrimLeft(n.Text, " \t\n"); n.Text != "" {
			nodes[0] = &n
			break
		}
		nodes = nodes[1:]
	}
	for len(nodes) > 0 && nodes[len(nodes)-1].IsText() {
		n := *nodes[len(nodes)-1]
		if n.Text = strings.TrimRight(n.Text, " \t\n"); n.Text != "" {
			nodes[len(nodes)-1] = &n
			break
		}
		nodes = nodes[:len(nodes)-1]
	}
	return nodes
}

// inline returns nodes as the content of t: with the marks that t allows, and with text in
// place of nodes that it does not.
func (f *fitter) inline(t *nodeType, nodes []*Node) []*Node {
	out := nodes
	set := func(i int, n *Node) {
		if n == nodes[i] {
			return
		}
		if &out[0] == &nodes[0] {
			out = slices.Clone(nodes)
		}
		out[i] = n
	}
	m := t.content
	for i, n := range nodes {
		if next := m.next(f.s.types[n.Type]); next != nil {
			m = next
		} else {
			n = &Node{Type: TextType, Text: f.leafText(n), Marks: n.Marks}
		}
		if n.IsText() {
			if marks := f.s.fitMarks(t, n.Marks); len(marks) != len(n.Marks) || len(marks) > 0 && &marks[0] != &n.Marks[0] {
				n = &Node{Type: TextType, Text: n.Text, Marks: marks}
			}
		}
		set(i, n)
	}
	return join(out)
}

// fitMarks returns the marks in order, without those that t does not allow. Of two that
// exclude each other a link wins, then code, then the first: a link's target cannot be seen
// from its text.
func (s *Schema) fitMarks(t *nodeType, marks []Mark) []Mark {
	if len(marks) == 0 || s.checkMarks(t, marks) == "" {
		return marks
	}
	var out []Mark
	for _, m := range marks {
		mt := s.markType(m)
		if mt == nil || !t.marks[mt] {
			continue
		}
		attrs, ok := fitAttrs(mt.spec.Attrs, m.Attrs, true)
		if !ok {
			continue
		}
		if !slices.ContainsFunc(out, func(o Mark) bool { return o.Type == m.Type }) {
			out = append(out, Mark{Type: m.Type, Attrs: attrs})
		}
	}
	prefer := func(m Mark) int {
		switch m.Name() {
		case "link":
			return 0
		case "code":
			return 1
		}
		return 2
	}
	byRank := func(a, b Mark) int { return s.markType(a).rank - s.markType(b).rank }
	slices.SortStableFunc(out, func(a, b Mark) int { return prefer(a) - prefer(b) })
	kept := out[:0]
	for _, m := range out {
		mt := s.markType(m)
		if !slices.ContainsFunc(kept, func(o Mark) bool {
			ot := s.markType(o)
			return ot.excludes[mt] || mt.excludes[ot]
		}) {
			kept = append(kept, m)
		}
	}
	slices.SortStableFunc(kept, byRank)
	return slices.Clip(kept)
}

// place returns the content of t built from nodes.
func (f *fitter) place(t *nodeType, nodes []*Node, depth int) []*Node {
	if t.content.accepts(f.s, nodes) {
		return nodes
	}
	p := &placer{f: f, m: t.content, depth: depth}
	nodes = slices.Clone(nodes)
	for len(nodes) > 0 {
		n := nodes[0]
		nodes = nodes[1:]
		if n.IsText() || f.s.types[n.Type].inlineNode() {
			// Adjacent inline nodes share a wrapper.
			i := 0
			for i < len(nodes) && f.s.types[nodes[i].Type].inlineNode() {
				i++
			}
			n = &Node{Content: append([]*Node{n}, nodes[:i]...)}
			nodes = nodes[i:]
		}
		p.put(n)
	}
	return p.finish()
}

func (m *match) accepts(s *Schema, nodes []*Node) bool {
	for _, n := range nodes {
		if m = m.next(s.types[n.Type]); m == nil {
			return false
		}
	}
	return m.end
}

type placer struct {
	f     *fitter
	m     *match
	out   []*Node
	depth int
}

// put places n. A node without a type is a run of inline nodes.
func (p *placer) put(n *Node) {
	if n.Type == "" {
		p.putInline(n.Content)
		return
	}
	t := p.f.s.types[n.Type]
	switch {
	case p.direct(t, n) || p.wrap(t, n):
	case t.inlines:
		if t.spec.Code {
			p.putLines(n)
			return
		}
		p.putInline(n.Content)
	case t.leaf():
		p.putLeaf(n)
	default:
		for _, c := range n.Content {
			p.put(c)
		}
	}
}

// direct places n here, after any nodes that must precede it.
func (p *placer) direct(t *nodeType, n *Node) bool {
	fill, next := p.f.fill(p.m, func(m *match) *match { return m.next(t) })
	if next == nil {
		return false
	}
	p.out = append(append(p.out, fill...), n)
	p.m = next
	return true
}

// wrap places n inside a new node that is allowed here.
func (p *placer) wrap(t *nodeType, n *Node) bool {
	for _, e := range p.m.edges {
		if e.typ.leaf() || e.typ.inlines || e.typ.required() {
			continue
		}
		fill, next := p.f.fill(e.typ.content, func(m *match) *match { return m.next(t) })
		if next == nil || len(fill) > 0 && !t.inlines {
			continue
		}
		// A wrapper of the same kind before it may hold n too.
		if k := len(p.out) - 1; k >= 0 && p.out[k].Type == e.typ.spec.Name {
			children := append(slices.Clone(p.out[k].Content), n)
			if e.typ.content.accepts(p.f.s, children) {
				p.out[k] = &Node{Type: p.out[k].Type, Attrs: p.out[k].Attrs, Content: p.f.rectangle(e.typ, children)}
				return true
			}
		}
		children := p.f.rectangle(e.typ, p.f.end(next, append(fill, n)))
		attrs, _ := fitAttrs(e.typ.spec.Attrs, nil, false)
		p.out = append(p.out, &Node{Type: e.typ.spec.Name, Attrs: attrs, Content: children})
		p.m = e.next
		return true
	}
	return false
}

// putInline places inline nodes in a text block.
func (p *placer) putInline(nodes []*Node) {
	if len(nodes) == 0 {
		return
	}
	block := p.block(p.m, 0)
	if block == nil {
		return
	}
	children := p.f.inline(block.leafType, nodes)
	if len(children) == 0 {
		return
	}
	n := &Node{Type: block.leafType.spec.Name, Content: children}
	n.Attrs, _ = fitAttrs(block.leafType.spec.Attrs, nil, false)
	if p.direct(block.leafType, n) || p.wrap(block.leafType, n) {
		return
	}
	for _, t := range slices.Backward(block.wrappers) {
		attrs, _ := fitAttrs(t.spec.Attrs, nil, false)
		fill, next := p.f.fill(t.content, func(m *match) *match { return m.next(p.f.s.types[n.Type]) })
		if next == nil {
			return
		}
		n = &Node{Type: t.spec.Name, Attrs: attrs, Content: p.f.end(next, append(fill, n))}
	}
	p.direct(p.f.s.types[n.Type], n)
}

// textPath is a path to a text block: the nodes around it, and its type.
type textPath struct {
	wrappers []*nodeType
	leafType *nodeType
}

// block finds the shortest path from m to a text block.
func (p *placer) block(m *match, depth int) *textPath {
	for _, e := range m.edges {
		if e.typ.inlines && !e.typ.required() {
			return &textPath{leafType: e.typ}
		}
	}
	if depth > 4 {
		return nil
	}
	for _, e := range m.edges {
		if e.typ.leaf() || e.typ.inlines || e.typ.required() {
			continue
		}
		if b := p.block(e.typ.content, depth+1); b != nil {
			return &textPath{wrappers: append([]*nodeType{e.typ}, b.wrappers...), leafType: b.leafType}
		}
	}
	return nil
}

// putLines replaces source code where no code block is allowed: a text block per line.
func (p *placer) putLines(n *Node) {
	for line := range strings.SplitSeq(n.TextContent(), "\n") {
		if line != "" {
			p.putInline([]*Node{Text(line, Mark{Type: "code"})})
		}
	}
}

// putLeaf places the text that replaces n. An image becomes a link, to its href or itself.
func (p *placer) putLeaf(n *Node) {
	text := p.f.leafText(n)
	if text == "" {
		return
	}
	node := Text(text)
	for _, name := range []string{"href", "src"} {
		if to, ok := n.Attrs[name].(string); ok {
			node.Marks = []Mark{{Type: "link", Attrs: Attrs{"href": to}}}
			break
		}
	}
	p.putInline([]*Node{node})
}

func (p *placer) finish() []*Node { return p.f.end(p.m, p.out) }

// end returns children with the nodes that must follow them.
func (f *fitter) end(m *match, children []*Node) []*Node {
	fill, _ := f.fill(m, atEnd)
	return append(children, fill...)
}

func atEnd(m *match) *match {
	if m.end {
		return m
	}
	return nil
}

// fill creates the shortest sequence of nodes after which done returns a state.
func (f *fitter) fill(m *match, done func(*match) *match) ([]*Node, *match) {
	types, next := f.missing(m, done)
	var nodes []*Node
	for _, t := range types {
		nodes = append(nodes, f.make(t))
	}
	return nodes, next
}

// missing returns the types of that sequence.
func (f *fitter) missing(m *match, done func(*match) *match) ([]*nodeType, *match) {
	if next := done(m); next != nil {
		return nil, next
	}
	type step struct {
		m    *match
		prev *step
		typ  *nodeType
	}
	seen := map[*match]bool{m: true}
	queue := []*step{{m: m}}
	for len(queue) > 0 {
		st := queue[0]
		queue = queue[1:]
		if next := done(st.m); next != nil {
			var types []*nodeType
			for ; st.typ != nil; st = st.prev {
				types = append(types, st.typ)
			}
			slices.Reverse(types)
			return types, next
		}
		for _, e := range st.m.edges {
			if !seen[e.next] && e.typ.spec.Name != TextType && !e.typ.required() {
				seen[e.next] = true
				queue = append(queue, &step{e.next, st, e.typ})
			}
		}
	}
	return nil, nil
}

func (t *nodeType) required() bool {
	return slices.ContainsFunc(t.spec.Attrs, func(a AttrSpec) bool { return a.Required })
}

// make creates a node of type t with the minimal content.
func (f *fitter) make(t *nodeType) *Node {
	attrs, _ := fitAttrs(t.spec.Attrs, nil, false)
	return &Node{Type: t.spec.Name, Attrs: attrs, Content: f.end(t.content, nil)}
}
