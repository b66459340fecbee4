package prosemirror

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// TextType is the node type of text.
const TextType = "text"

// Node is an element with children, a leaf, or text. Nodes are immutable: a change creates
// new ones, and trees share what they have in common.
type Node struct {
	// Type is the name of the node type in the schema.
	Type  string `json:"type"`
	Attrs Attrs  `json:"attrs,omitempty"`
	// Content holds the children. Adjacent texts never have the same marks.
	Content []*Node `json:"content,omitempty"`
	// Marks are the formats of a text, in the schema's order.
	Marks []Mark `json:"marks,omitempty"`
	// Text is the content of a text node, where it is never empty. It is empty in all others.
	Text string `json:"text,omitempty"`
}

// Mark is a format on text. Editors store marks that may overlap with others of their type
// as the type, two hyphens and eight base64 characters; Type keeps that form.
type Mark struct {
	Type  string `json:"type"`
	Attrs Attrs  `json:"attrs,omitempty"`
}

// Attrs are the attributes of a node or a mark: strings, booleans, int for whole numbers,
// float64 for others, and []any and map[string]any of these. In a valid tree null equals
// absent; before validation, an absent attribute gets its default. Attrs are immutable.
type Attrs map[string]any

// Elem returns an element or a leaf.
func Elem(typ string, attrs Attrs, content ...*Node) *Node {
	return &Node{Type: typ, Attrs: attrs, Content: content}
}

// Text returns text with marks.
func Text(text string, marks ...Mark) *Node {
	return &Node{Type: TextType, Text: text, Marks: marks}
}

// IsText reports whether n is text.
func (n *Node) IsText() bool { return n.Type == TextType }

// TextContent returns all text below n, concatenated.
func (n *Node) TextContent() string {
	if n.IsText() {
		return n.Text
	}
	var b strings.Builder
	n.appendText(&b)
	return b.String()
}

func (n *Node) appendText(b *strings.Builder) {
	b.WriteString(n.Text)
	for _, c := range n.Content {
		c.appendText(b)
	}
}

// Equal reports whether both trees are the same.
func (n *Node) Equal(o *Node) bool {
	if n == o {
		return true
	}
	return n != nil && o != nil && n.Type == o.Type && n.Text == o.Text &&
		n.Attrs.Equal(o.Attrs) && EqualMarks(n.Marks, o.Marks) &&
		slices.EqualFunc(n.Content, o.Content, (*Node).Equal)
}

// EqualMarks reports whether both lists hold the same marks in the same order.
func EqualMarks(a, b []Mark) bool { return slices.EqualFunc(a, b, Mark.Equal) }

// Equal reports whether both marks have the same type and attributes.
func (m Mark) Equal(o Mark) bool { return m.Type == o.Type && m.Attrs.Equal(o.Attrs) }

// Name returns the mark's name in the schema: its type without the suffix of overlapping
// marks.
func (m Mark) Name() string {
	i := len(m.Type) - 10
	if i < 0 || m.Type[i:i+2] != "--" {
		return m.Type
	}
	for _, c := range []byte(m.Type[i+2:]) {
		if !isAlnum(c) && c != '+' && c != '/' && c != '=' {
			return m.Type
		}
	}
	return m.Type[:i]
}

// Equal reports whether both hold the same values. Null equals absent.
func (a Attrs) Equal(b Attrs) bool {
	n := 0
	for k, v := range a {
		if v == nil {
			continue
		}
		n++
		if !equalValue(v, b[k]) {
			return false
		}
	}
	for _, v := range b {
		if v != nil {
			n--
		}
	}
	return n == 0
}

func equalValue(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalValue)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, equalValue)
	}
	switch b.(type) {
	case []any, map[string]any:
		return false
	}
	return a == b
}

// UnmarshalJSON reads the JSON of a document as TipTap's getJSON and
// ProseMirror's toJSON write it. The tree is not checked against any schema.
func (n *Node) UnmarshalJSON(data []byte) error {
	type plain Node // without this method
	var p plain
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("read document node: %w", err)
	}
	*n = Node(p)
	if n.Type == "" {
		return fmt.Errorf("read document node: it has no type")
	}
	if slices.Contains(n.Content, nil) {
		return fmt.Errorf("read document node %s: null in its content", n.Type)
	}
	return nil
}

// UnmarshalJSON reads attributes, including nulls.
func (a *Attrs) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return fmt.Errorf("read attributes: %w", err)
	}
	*a = nil
	for k, v := range m {
		if *a == nil {
			*a = Attrs{}
		}
		(*a)[k] = fromJSON(v)
	}
	return nil
}

func fromJSON(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil && i > -1<<53 && i < 1<<53 {
			return int(i)
		}
		f, _ := v.Float64()
		return number(f)
	case []any:
		for i := range v {
			v[i] = fromJSON(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = fromJSON(v[k])
		}
	}
	return v
}

// number returns f as an int if it is whole.
func number(f float64) any {
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return int(f)
	}
	return f
}

// join merges adjacent texts with equal marks and drops empty texts.
func join(nodes []*Node) []*Node {
	same := func(i int) bool {
		return nodes[i].IsText() && (nodes[i].Text == "" || i > 0 && nodes[i-1].IsText() && EqualMarks(nodes[i-1].Marks, nodes[i].Marks))
	}
	i := 0
	for i < len(nodes) && !same(i) {
		i++
	}
	if i == len(nodes) {
		return nodes
	}
	out := make([]*Node, 0, len(nodes))
	for i := 0; i < len(nodes); i++ {
		n := nodes[i]
		if !n.IsText() {
			out = append(out, n)
			continue
		}
		j, size := i, 0
		for j < len(nodes) && nodes[j].IsText() && (nodes[j].Text == "" || EqualMarks(nodes[j].Marks, n.Marks)) {
			size += len(nodes[j].Text)
			j++
		}
		if n.Text == "" { // its marks do not matter
			continue
		}
		if size > len(n.Text) {
			var b strings.Builder
			b.Grow(size)
			for _, m := range nodes[i:j] {
				b.WriteString(m.Text)
			}
			n = &Node{Type: TextType, Text: b.String(), Marks: n.Marks}
		}
		out = append(out, n)
		i = j - 1
	}
	return out
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
