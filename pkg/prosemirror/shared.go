package prosemirror

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"signalbox.dev/pkg/yjs"
)

// Field is the root type in which TipTap keeps a document unless it is told otherwise.
const Field = "default"

// maxSharedDepth is how deep a shared document is read: what nests deeper, which no
// schema allows, is not shown and stays as it is.
const maxSharedDepth = 4 * MaxDepth

// Read returns the document in a fragment as TipTap shows it. What TipTap would delete
// when it sees it, nodes, attributes and marks outside the schema, is there all the
// same; values that no document has (maps, arrays, hooks and embedded objects) are not.
func (s *Schema) Read(f *yjs.XMLFragment) *Node { return s.twin(f).tree }

// twin is an element, or a run of text, of a shared document with what it shows.
type twin struct {
	tree     *Node // the element as it shows
	fragment *yjs.XMLFragment
	element  *yjs.XMLElement // nil for the root
	// kids are the children up to the last change: changes come from the end on, and need
	// none behind. There are so many more.
	kids []*twin
	more int
	run  []segment // of a run of text
	// plain means that each of kids is one child in the fragment, and there are no others.
	plain bool
}

// segment is text of one format in a run.
type segment struct {
	text *yjs.Text
	at   int // where it begins in text
	n    int // its length, in units
	node *Node
	raw  yjs.Object // its format as it is stored
}

// twin reads a fragment.
func (s *Schema) twin(f *yjs.XMLFragment) *twin {
	r := &sharedReader{s: s}
	t := &twin{fragment: f}
	r.children(t, 0)
	t.tree = &Node{Type: s.spec.Top, Content: t.content()}
	return t
}

type sharedReader struct{ s *Schema }

func (r *sharedReader) children(t *twin, depth int) {
	n, seen := t.fragment.Len(), 0
	if t.plain = n == 0; t.plain || depth > maxSharedDepth {
		return
	}
	t.kids = make([]*twin, 0, n)
	inRun := false // the child before is text
	t.fragment.Each(func(child any) bool {
		seen++
		switch c := child.(type) {
		case *yjs.XMLElement:
			t.kids = append(t.kids, r.element(c, depth+1))
			inRun = false
		case *yjs.XMLText:
			inRun = r.text(t, c.Text(), inRun)
		case *yjs.Text:
			inRun = r.text(t, c, inRun)
		}
		return true
	})
	t.plain = len(t.kids) == seen
}

func (r *sharedReader) element(e *yjs.XMLElement, depth int) *twin {
	t := &twin{element: e, fragment: e.Fragment()}
	r.children(t, depth)
	name := e.Name()
	if name == TextType || name == "" {
		name = "xml:" + name // an element is no text
	}
	t.tree = &Node{Type: name, Attrs: readAttrs(e.Attributes(), false), Content: t.content()}
	return t
}

// text adds what text shows, to the run before it if there is one, and tells whether
// there is one now.
func (r *sharedReader) text(t *twin, text *yjs.Text, inRun bool) bool {
	at := 0
	delta := text.Delta()
	for _, op := range delta {
		str, ok := op.Insert.(string)
		if !ok || str == "" {
			at++ // an embedded object
			continue
		}
		if str = validText(str); !inRun {
			t.kids = append(t.kids, &twin{run: make([]segment, 0, len(delta))})
			inRun = true
		}
		k, n := t.kids[len(t.kids)-1], Len16(str)
		k.run = append(k.run, segment{text: text, at: at, n: n, node: Text(str, r.marks(op.Attributes)...), raw: op.Attributes})
		at += n
	}
	return inRun
}

// content returns the nodes that the children show.
func (t *twin) content() []*Node {
	if len(t.kids) == 0 {
		return nil
	}
	out := make([]*Node, 0, len(t.kids))
	for _, k := range t.kids {
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

// marks returns the marks of a format, in the schema's order, foreign ones last.
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

// sortMarks puts marks into the order of the schema, and those outside it behind them.
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

// readAttrs returns attributes. A null is kept in those of a mark, where it is not the
// same as a default, and is absent in those of a node.
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

// readValue returns a stored value as attributes have it, and whether they can.
func readValue(v any) (any, bool) {
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

// validText returns s with each half of a torn character as U+FFFD, which is one unit
// as the half was.
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
