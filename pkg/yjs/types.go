package yjs

// Array is a sequence of values and shared types.
type Array branch

// NewArray returns an array to be inserted into a type. It keeps edits made before.
func NewArray() *Array { return (*Array)(&branch{kind: refArray}) }

// Len returns the number of values.
func (a *Array) Len() int { return int(a.length) }

// Insert inserts values at an index.
func (a *Array) Insert(index int, vs ...any) error { return (*branch)(a).insertAt(index, vs) }

// Push appends values.
func (a *Array) Push(vs ...any) error { return (*branch)(a).push(vs) }

// Delete deletes n values.
func (a *Array) Delete(index, n int) error { return (*branch)(a).deleteAt(index, n) }

// Get returns the value at an index; ok is false if there is none.
func (a *Array) Get(index int) (v any, ok bool) { return (*branch)(a).get(index) }

// Each calls f for every value until f returns false.
func (a *Array) Each(f func(v any) bool) { (*branch)(a).each(f) }

// Values returns all values.
func (a *Array) Values() []any { return (*branch)(a).values() }

func (b *branch) values() []any {
	out := make([]any, 0, b.length)
	b.each(func(v any) bool {
		out = append(out, v)
		return true
	})
	return out
}

// Map is a set of named values and shared types.
type Map branch

// NewMap returns a map to be inserted into a type. It keeps edits made before.
func NewMap() *Map { return (*Map)(&branch{kind: refMap}) }

// Len returns the number of keys.
func (m *Map) Len() int {
	n := 0
	m.Each(func(string, any) bool {
		n++
		return true
	})
	return n
}

// Set sets a key.
func (m *Map) Set(key string, v any) error { return (*branch)(m).setKey(key, v) }

// Delete deletes a key.
func (m *Map) Delete(key string) { (*branch)(m).deleteKey(key) }

// Get returns the value of a key; ok is false if there is none.
func (m *Map) Get(key string) (v any, ok bool) { return (*branch)(m).getKey(key) }

// Each calls f for every key, in the order in which they were first set, until f returns
// false.
func (m *Map) Each(f func(key string, v any) bool) { (*branch)(m).eachKey(f) }

// branchValue returns the branch of an exported type.
func branchValue(v any) (b *branch, ok bool) {
	switch v := v.(type) {
	case *Array:
		return (*branch)(v), true
	case *Map:
		return (*branch)(v), true
	case *Text:
		return (*branch)(v), true
	case *XMLElement:
		return (*branch)(v), true
	case *XMLFragment:
		return (*branch)(v), true
	case *XMLHook:
		return (*branch)(v), true
	case *XMLText:
		return (*branch)(v), true
	}
	return nil, false
}

// public returns the branch as its exported type.
func (b *branch) public() any {
	switch b.kind {
	case refArray:
		return (*Array)(b)
	case refMap:
		return (*Map)(b)
	case refText:
		return (*Text)(b)
	case refXMLElement:
		return (*XMLElement)(b)
	case refXMLHook:
		return (*XMLHook)(b)
	case refXMLText:
		return (*XMLText)(b)
	default:
		return (*XMLFragment)(b)
	}
}

// ToJSON converts a shared type to plain values, like toJSON in Yjs: texts and XML become
// strings, arrays []any, maps Object. It returns other values unchanged and omits types
// nested deeper than 10,000 levels.
func ToJSON(v any) any { return toJSON(v, 0) }

const maxNesting = 10_000

func toJSON(v any, depth int) any {
	b, ok := branchValue(v)
	if !ok {
		return v
	}
	if depth > maxNesting {
		return nil
	}
	switch b.kind {
	case refArray:
		out := make([]any, 0, b.length)
		b.each(func(v any) bool {
			out = append(out, toJSON(v, depth+1))
			return true
		})
		return out
	case refMap, refXMLHook:
		var ms []Member
		b.eachKey(func(key string, v any) bool {
			ms = append(ms, Member{key, toJSON(v, depth+1)})
			return true
		})
		return objectFrom(ms)
	case refText:
		return (*Text)(b).String()
	default:
		return b.xmlString()
	}
}
