package prosemirror

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"signalbox.dev/pkg/yjs"
)

// Field is the root type in which TipTap keeps a document by default.
const Field = "default"

// maxSharedDepth bounds how deep a shared document is read. Deeper nodes, which no schema
// allows, are ignored and left unchanged.
const maxSharedDepth = 4 * MaxDepth

// Read returns the document in a fragment as TipTap shows it. Unlike TipTap, it keeps nodes,
// attributes and marks outside the schema. Values that no document has (maps, arrays, hooks
// and embedded objects) are ignored.
func (s *Schema) Read(f *yjs.XMLFragment) *Node { return s.sharedNode(f).tree }

// sharedNode is an element, or a run of text, of a shared document with the tree it shows.
type sharedNode struct {
	tree     *Node // nil for a run of text
	fragment *yjs.XMLFragment
	element  *yjs.XMLElement // nil for the root
	// nodes holds the children before the last change: changes are applied from the end, and
	// need none after it. more counts the others.
	nodes []*sharedNode
	more  int
	run   []segment // the segments of a run of text
	// plain means that nodes and the children of the fragment correspond one to one.
	plain bool
}

// segment is a stretch of a run with one format.
type segment struct {
	text *yjs.Text
	at   int // its start in text
	n    int // its length in UTF-16 units
	node *Node
	raw  yjs.Object // the stored format
}

// sharedNode reads a fragment.
func (s *Schema) sharedNode(f *yjs.XMLFragment) *sharedNode {
	r := &sharedReader{s: s}
	t := &sharedNode{fragment: f}
	r.children(t, 0)
	t.tree = &Node{Type: s.spec.Top, Content: t.content()}
	return t
}

type sharedReader struct{ s *Schema }

func (r *sharedReader) children(t *sharedNode, depth int) {
	n, seen := t.fragment.Len(), 0
	if t.plain = n == 0; t.plain || depth > maxSharedDepth {
		return
	}
	t.nodes = make([]*sharedNode, 0, n)
	inRun := false // the previous child is text
	t.fragment.Each(func(child any) bool {
		seen++
		switch c := child.(type) {
		case *yjs.XMLElement:
			t.nodes = append(t.nodes, r.element(c, depth+1))
			inRun = false
		case *yjs.XMLText:
			inRun = r.text(t, c.Text(), inRun)
		case *yjs.Text:
			inRun = r.text(t, c, inRun)
		}
		return true
	})
	t.plain = len(t.nodes) == seen
}

func (r *sharedReader) element(e *yjs.XMLElement, depth int) *sharedNode {
	t := &sharedNode{element: e, fragment: e.Fragment()}
	r.children(t, depth)
	name := e.Name()
	if name == TextType || name == "" {
		name = "xml:" + name // an element must not look like text
	}
	t.tree = &Node{Type: name, Attrs: readAttrs(e.Attributes(), false), Content: t.content()}
	return t
}

// text appends the content of a text to the current run, or to a new one, and reports whether
// a run is open now.
func (r *sharedReader) text(t *sharedNode, text *yjs.Text, inRun bool) bool {
	at := 0
	delta := text.Delta()
	for _, op := range delta {
		str, ok := op.Insert.(string)
		if !ok || str == "" {
			at++ // an embedded object
			continue
		}
		if str = validText(str); !inRun {
			t.nodes = append(t.nodes, &sharedNode{run: make([]segment, 0, len(delta))})
			inRun = true
		}
		k, n := t.nodes[len(t.nodes)-1], Len16(str)
		k.run = append(k.run, segment{text: text, at: at, n: n, node: Text(str, r.marks(op.Attributes)...), raw: op.Attributes})
		at += n
	}
	return inRun
}

// content returns the nodes that the children show.
func (t *sharedNode) content() []*Node {
	if len(t.nodes) == 0 {
		return nil
	}
	out := make([]*Node, 0, len(t.nodes))
	for _, k := range t.nodes {
		if k.tree != nil {
			out = append(out, k.tree)
			continue
		}
		for _, seg := range k.run {
			out = append(out, seg.node)
		}
	}
	return join(out)
}

// marks returns the marks of a format in the schema's order, unknown ones last.
func (r *sharedReader) marks(format yjs.Object) []Mark {
	if len(format) == 0 {
		return nil
	}
	out := make([]Mark, 0, len(format))
	for _, m := range format {
		attrs, _ := m.Value.(yjs.Object)
		out = append(out, Mark{Type: m.Key, Attrs: readAttrs(attrs, true)})
	}
	r.s.sortMarks(out)
	return out
}

// sortMarks sorts marks into the schema's order, unknown ones last.
func (s *Schema) sortMarks(marks []Mark) {
	if len(marks) < 2 {
		return
	}
	rank := func(m Mark) int {
		if t := s.markType(m); t != nil {
			return t.rank
		}
		return len(s.marks)
	}
	slices.SortFunc(marks, func(a, b Mark) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Type, b.Type))
	})
}

// readAttrs converts stored attributes. Marks keep nulls, which can differ from the default;
// nodes drop them.
func readAttrs(o yjs.Object, mark bool) Attrs {
	if len(o) == 0 {
		return nil
	}
	attrs := make(Attrs, len(o))
	for _, m := range o {
		if v, ok := readValue(m.Value); ok && (v != nil || mark) {
			attrs[m.Key] = v
		}
	}
	if len(attrs) == 0 {
		return nil
	}
	return attrs
}

// readValue converts a stored value; ok is false if no attribute can hold it.
func readValue(v any) (value any, ok bool) {
	switch v := v.(type) {
	case nil, bool:
		return v, true
	case string:
		return validText(v), true
	case float64:
		return number(v), !math.IsNaN(v) && !math.IsInf(v, 0)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if x, ok := readValue(v[i]); ok {
				out[i] = x
			}
		}
		return out, true
	case yjs.Object:
		out := make(map[string]any, len(v))
		for _, m := range v {
			if x, ok := readValue(m.Value); ok {
				out[m.Key] = x
			}
		}
		return out, true
	}
	return nil, false
}

// validText replaces each half of a split surrogate pair with U+FFFD, which is one unit too.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && size == 1 && len(s) >= 3 && s[0] == 0xed && s[1] >= 0xa0 {
			size = 3
		}
		b.WriteRune(r)
		s = s[size:]
	}
	return b.String()
}
