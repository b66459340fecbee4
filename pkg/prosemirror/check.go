package prosemirror

import (
	"fmt"
	"slices"
	"strings"
)

// MaxDepth is the maximum nesting of nodes below the root.
const MaxDepth = 100

// InvalidError describes where and how a tree violates its schema.
type InvalidError struct {
	// Path leads from the root to the node, as an index per level.
	Path []int
	// Where is the path in readable form: doc > bulletList[2] > listItem[0].
	Where string
	// Problem describes the violation.
	Problem string
}

func (e *InvalidError) Error() string { return e.Where + ": " + e.Problem }

// Check returns nil if doc is a valid document of the schema, else an *InvalidError for the
// first invalid node: an unknown type, a missing, unknown or mistyped attribute, content
// that does not match, a mark that is unknown, not allowed, excluded or out of order, an
// empty text, or adjacent texts with the same marks.
func (s *Schema) Check(doc *Node) error {
	if doc.Type != s.spec.Top {
		return &InvalidError{Where: doc.Type, Problem: "the root must be a " + s.spec.Top}
	}
	c := &checker{s: s}
	if problem := c.node(doc); problem != "" {
		return c.fail(doc, problem)
	}
	return nil
}

// checker walks the tree; path leads to the current node.
type checker struct {
	s    *Schema
	path []int
}

func (c *checker) fail(doc *Node, problem string) error {
	var where strings.Builder
	where.WriteString(doc.Type)
	n := doc
	for _, i := range c.path {
		n = n.Content[i]
		fmt.Fprintf(&where, " > %s[%d]", n.Type, i)
	}
	return &InvalidError{Path: c.path, Where: where.String(), Problem: problem}
}

// node describes the first problem in n and leaves path there, or returns "".
func (c *checker) node(n *Node) string {
	t := c.s.types[n.Type]
	if t == nil {
		return "no such node in the schema"
	}
	if len(c.path) > MaxDepth {
		return fmt.Sprintf("more than %d levels", MaxDepth)
	}
	if p := checkAttrs(t.spec.Attrs, n.Attrs, false); p != "" {
		return p
	}
	if n.IsText() {
		if n.Text == "" || len(n.Content) > 0 {
			return "a text holds text and nothing else"
		}
		return ""
	}
	if n.Text != "" || len(n.Marks) > 0 {
		return "only texts have text and marks"
	}
	m := t.content
	for i, child := range n.Content {
		c.path = append(c.path, i)
		if p := c.child(t, n, i); p != "" {
			return p
		}
		ct := c.s.types[child.Type]
		if m = m.next(ct); m == nil {
			return fmt.Sprintf("does not fit here in %s, which holds %q", n.Type, t.spec.Content)
		}
		c.path = c.path[:len(c.path)-1]
	}
	if !m.end {
		return fmt.Sprintf("its content ends too early, it holds %q", t.spec.Content)
	}
	return ""
}

func (c *checker) child(t *nodeType, n *Node, i int) string {
	child := n.Content[i]
	if child.IsText() {
		if p := c.s.checkMarks(t, child.Marks); p != "" {
			return p
		}
		if i > 0 && n.Content[i-1].IsText() && EqualMarks(n.Content[i-1].Marks, child.Marks) {
			return "has the marks of the text before it"
		}
	}
	return c.node(child)
}

func (s *Schema) checkMarks(t *nodeType, marks []Mark) string {
	rank := -1
	for i, m := range marks {
		mt := s.markType(m)
		if mt == nil {
			return fmt.Sprintf("no mark %s in the schema", m.Type)
		}
		if !t.marks[mt] {
			return fmt.Sprintf("%s does not allow the mark %s", t.spec.Name, m.Type)
		}
		if p := checkAttrs(mt.spec.Attrs, m.Attrs, true); p != "" {
			return fmt.Sprintf("mark %s: %s", m.Type, p)
		}
		if mt.rank < rank {
			return fmt.Sprintf("the mark %s is out of order", m.Type)
		}
		rank = mt.rank
		for _, o := range marks[:i] {
			ot := s.markType(o)
			if o.Type == m.Type || ot.excludes[mt] || mt.excludes[ot] {
				return fmt.Sprintf("the marks %s and %s exclude each other", o.Type, m.Type)
			}
		}
	}
	return ""
}

func checkAttrs(specs []AttrSpec, attrs Attrs, mark bool) string {
	for _, a := range specs {
		v, there := attrs[a.Name]
		if p := a.check(v, there && mark); p != "" {
			return fmt.Sprintf("attribute %s %s", a.Name, p)
		}
	}
	for name, v := range attrs {
		if v != nil && !slices.ContainsFunc(specs, func(a AttrSpec) bool { return a.Name == name }) {
			return fmt.Sprintf("no attribute %s in the schema", name)
		}
	}
	return ""
}
