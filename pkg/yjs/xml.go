package yjs

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// XMLFragment is a sequence of XML nodes: elements, texts and hooks.
type XMLFragment branch

// XMLElement is a named node with attributes and children. Attributes may have any value.
type XMLElement branch

// XMLText is text within XML: a [Text] whose formats are rendered as elements.
type XMLText branch

// XMLHook is a named [Map] that applications render.
type XMLHook branch

// NewXMLFragment returns a fragment to be inserted into a type. It keeps edits made before.
func NewXMLFragment() *XMLFragment { return (*XMLFragment)(&branch{kind: refXMLFragment}) }

// NewXMLElement returns an element to be inserted into a type. It keeps edits made before.
func NewXMLElement(name string) *XMLElement {
	return (*XMLElement)(&branch{kind: refXMLElement, nodeName: validText(name)})
}

// NewXMLText returns a text to be inserted into a type. It keeps edits made before.
func NewXMLText(s string) *XMLText {
	t := (*XMLText)(&branch{kind: refXMLText})
	if s != "" {
		t.Text().Insert(0, s)
	}
	return t
}

// NewXMLHook returns a hook to be inserted into a type. It keeps edits made before.
func NewXMLHook(name string) *XMLHook {
	return (*XMLHook)(&branch{kind: refXMLHook, nodeName: validText(name)})
}

func (b *branch) node() string {
	if b.doc == nil {
		return b.nodeName
	}
	if b.item == 0 {
		return "UNDEFINED" // Yjs's name for an element that is a root type
	}
	return b.doc.keys[b.name]
}

// Len returns the number of children.
func (f *XMLFragment) Len() int { return int(f.length) }

// Insert inserts nodes at an index.
func (f *XMLFragment) Insert(index int, nodes ...any) error {
	return (*branch)(f).insertAt(index, nodes)
}

// Push appends nodes.
func (f *XMLFragment) Push(nodes ...any) error {
	return (*branch)(f).insertAt((*branch)(f).tail(), nodes)
}

// Delete deletes n children.
func (f *XMLFragment) Delete(index, n int) error { return (*branch)(f).deleteAt(index, n) }

// Get returns the child at an index; ok is false if there is none.
func (f *XMLFragment) Get(index int) (node any, ok bool) { return (*branch)(f).get(index) }

// Each calls fn for every child until fn returns false.
func (f *XMLFragment) Each(fn func(node any) bool) { (*branch)(f).each(fn) }

// Children returns all children.
func (f *XMLFragment) Children() []any { return (*branch)(f).values() }

// String returns the XML.
func (f *XMLFragment) String() string { return (*branch)(f).xmlString() }

// tail returns the index of the end, which is unlimited before insertion.
func (b *branch) tail() int {
	if b.doc == nil {
		return math.MaxInt
	}
	return int(b.length)
}

// Name returns the node name.
func (e *XMLElement) Name() string { return (*branch)(e).node() }

// Fragment returns the element as the sequence of its children.
func (e *XMLElement) Fragment() *XMLFragment { return (*XMLFragment)(e) }

// Len returns the number of children.
func (e *XMLElement) Len() int { return int(e.length) }

// Insert inserts nodes at an index.
func (e *XMLElement) Insert(index int, nodes ...any) error {
	return e.Fragment().Insert(index, nodes...)
}

// Push appends nodes.
func (e *XMLElement) Push(nodes ...any) error { return e.Fragment().Push(nodes...) }

// Delete deletes n children.
func (e *XMLElement) Delete(index, n int) error { return e.Fragment().Delete(index, n) }

// Get returns the child at an index; ok is false if there is none.
func (e *XMLElement) Get(index int) (node any, ok bool) { return e.Fragment().Get(index) }

// Each calls fn for every child until fn returns false.
func (e *XMLElement) Each(fn func(node any) bool) { e.Fragment().Each(fn) }

// Children returns all children.
func (e *XMLElement) Children() []any { return e.Fragment().Children() }

// Attribute returns the value of an attribute; ok is false if there is none.
func (e *XMLElement) Attribute(name string) (v any, ok bool) { return (*branch)(e).getKey(name) }

// SetAttribute sets an attribute.
func (e *XMLElement) SetAttribute(name string, v any) error { return (*branch)(e).setKey(name, v) }

// RemoveAttribute removes an attribute.
func (e *XMLElement) RemoveAttribute(name string) { (*branch)(e).deleteKey(name) }

// Attributes returns all attributes.
func (e *XMLElement) Attributes() Object { return (*branch)(e).attributes() }

func (b *branch) attributes() Object {
	var ms []Member
	b.eachKey(func(key string, v any) bool {
		ms = append(ms, Member{key, v})
		return true
	})
	return objectFrom(ms)
}

// String returns the XML.
func (e *XMLElement) String() string { return (*branch)(e).xmlString() }

// Text returns the text as a [Text], with all its methods.
func (t *XMLText) Text() *Text { return (*Text)(t) }

// String returns the text with its formats as elements.
func (t *XMLText) String() string { return (*branch)(t).xmlString() }

// Name returns the name of the hook.
func (h *XMLHook) Name() string { return (*branch)(h).node() }

// Map returns the hook as a [Map], with all its methods.
func (h *XMLHook) Map() *Map { return (*Map)(h) }

func (b *branch) xmlString() string {
	out := b.xml(nil, 0)
	replaceSurrogates(out)
	return string(out)
}

// xml appends the result of toString in Yjs.
func (b *branch) xml(out []byte, depth int) []byte {
	if depth > maxNesting || b.doc == nil {
		return out
	}
	switch b.kind {
	case refXMLText:
		return b.xmlText(out, depth)
	case refXMLElement:
		name := strings.ToLower(b.node())
		out = append(append(out, '<'), name...)
		as := slices.Clone(b.attributes())
		slices.SortFunc(as, func(x, y Member) int { return compare16(x.Key, y.Key) })
		for _, a := range as {
			out = append(append(append(out, ' '), a.Key...), '=', '"')
			out = append(appendJS(out, a.Value, depth+1), '"')
		}
		out = append(out, '>')
		out = b.xmlChildren(out, depth)
		return append(append(append(out, '<', '/'), name...), '>')
	default:
		return b.xmlChildren(out, depth)
	}
}

func (b *branch) xmlChildren(out []byte, depth int) []byte {
	b.each(func(v any) bool {
		out = appendJS(out, v, depth+1)
		return true
	})
	return out
}

func (b *branch) xmlText(out []byte, depth int) []byte {
	for _, op := range b.delta(visible{}) {
		names := slices.Clone(op.Attributes)
		slices.SortStableFunc(names, func(x, y Member) int { return compare16(x.Key, y.Key) })
		for _, n := range names {
			out = append(append(out, '<'), n.Key...)
			for _, m := range enumerate(n.Value) {
				out = append(append(append(out, ' '), m.Key...), '=', '"')
				out = append(appendJS(out, m.Value, depth+1), '"')
			}
			out = append(out, '>')
		}
		out = appendJS(out, op.Insert, depth+1)
		for _, n := range slices.Backward(names) {
			out = append(append(append(out, '<', '/'), n.Key...), '>')
		}
	}
	return out
}

// enumerate returns the members that a for-in loop visits, sorted.
func enumerate(v any) []Member {
	var ms []Member
	switch v := v.(type) {
	case Object:
		ms = append(ms, v...)
	case []any:
		for i, x := range v {
			ms = append(ms, Member{strconv.Itoa(i), x})
		}
	case []byte:
		for i, x := range v {
			ms = append(ms, Member{strconv.Itoa(i), float64(x)})
		}
	case string:
		for i, u := range units16(v) {
			ms = append(ms, Member{strconv.Itoa(i), unitString(u)})
		}
	}
	slices.SortStableFunc(ms, func(x, y Member) int { return compare16(x.Key, y.Key) })
	return ms
}

// compare16 compares strings by UTF-16 units, like JavaScript.
func compare16(a, b string) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] != b[i] {
			if a[i] < 0x80 && b[i] < 0x80 {
				return cmp.Compare(a[i], b[i])
			}
			return slices.Compare(units16(a), units16(b))
		}
	}
	return cmp.Compare(len(a), len(b))
}

// appendJS appends a value converted to a string, like JavaScript.
func appendJS(out []byte, v any, depth int) []byte {
	if b, ok := branchValue(v); ok {
		switch b.kind {
		case refText:
			return append(out, (*Text)(b).String()...)
		case refXMLElement, refXMLFragment, refXMLText:
			return b.xml(out, depth)
		default:
			return append(out, "[object Object]"...)
		}
	}
	switch v := v.(type) {
	case nil:
		return append(out, "null"...)
	case UndefinedValue:
		return append(out, "undefined"...)
	case bool:
		return strconv.AppendBool(out, v)
	case float64:
		return appendNumberText(out, v)
	case BigInt:
		return strconv.AppendInt(out, int64(v), 10)
	case string:
		return append(out, v...)
	case []any:
		for i, x := range v {
			if i > 0 {
				out = append(out, ',')
			}
			if x != nil && x != Undefined && depth < maxNesting {
				out = appendJS(out, x, depth+1)
			}
		}
		return out
	case []byte:
		for i, x := range v {
			if i > 0 {
				out = append(out, ',')
			}
			out = strconv.AppendInt(out, int64(x), 10)
		}
		return out
	default:
		return append(out, "[object Object]"...)
	}
}
