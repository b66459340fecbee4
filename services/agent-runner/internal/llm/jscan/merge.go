package jscan

// Edit is a new value, as JSON, for a member of an object.
type Edit struct {
	Name  string
	Value []byte
}

// AppendSpliced appends the object with edits applied: existing members are replaced and new
// ones added at the end. All other bytes stay as they are. Of several edits with one name the
// first counts. Text that is not an object is appended unchanged.
func AppendSpliced(dst, object []byte, edits ...Edit) []byte {
	r := NewReader(object)
	if len(edits) == 0 || !r.Object() {
		return append(dst, object...)
	}
	done := make([]bool, len(edits))
	copied, members := 0, 0
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		members++
		value := r.Skip()
		if i := take(edits, done, string(key)); i >= 0 {
			dst = append(dst, object[copied:r.pos-len(value)]...)
			dst = append(dst, edits[i].Value...)
			copied = r.pos
		}
	}
	if r.bad {
		return append(dst, object[copied:]...)
	}
	dst = append(dst, object[copied:r.pos-1]...)
	for i, e := range edits {
		if done[i] {
			continue
		}
		take(edits, done, e.Name)
		if members++; members > 1 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, e.Name)
		dst = append(dst, ':')
		dst = append(dst, e.Value...)
	}
	return append(dst, object[r.pos-1:]...)
}

// take marks all edits called name and returns the first that was not marked, or -1.
func take(edits []Edit, done []bool, name string) int {
	first := -1
	for i := range edits {
		if edits[i].Name == name && !done[i] {
			done[i] = true
			if first < 0 {
				first = i
			}
		}
	}
	return first
}

// Merged merges members of delta objects whose meaning is unknown: strings and arrays are
// concatenated, null changes nothing, and any other value replaces the previous one. The zero
// value is ready to use.
type Merged struct {
	members []merged
}

type merged struct {
	name  string
	kind  Kind
	value []byte // a string without quotes, an array without brackets, or another value
}

const maxMerged = 64

// Add merges one member. It returns false and drops the member if there are more different
// names than any known provider sends.
func (m *Merged) Add(name string, value []byte) bool {
	kind := KindOf(value)
	if kind == Null || kind == Invalid {
		return true
	}
	body := value
	if kind == String || kind == Array {
		body = value[1 : len(value)-1]
	}
	for i := range m.members {
		if e := &m.members[i]; e.name == name {
			e.add(kind, body)
			return true
		}
	}
	if len(m.members) >= maxMerged {
		return false
	}
	m.members = append(m.members, merged{name: name, kind: kind, value: append([]byte(nil), body...)})
	return true
}

// Has reports whether a member called name was added.
func (m *Merged) Has(name string) bool {
	for i := range m.members {
		if m.members[i].name == name {
			return true
		}
	}
	return false
}

func (e *merged) add(kind Kind, body []byte) {
	switch {
	case kind != e.kind || (kind != String && kind != Array):
		e.kind = kind
		e.value = append(e.value[:0], body...)
	case kind == String:
		e.value = append(e.value, body...)
	default:
		r := NewReader(body)
		if r.Kind() == Invalid {
			return // an empty array
		}
		rest := NewReader(e.value)
		if rest.Kind() != Invalid {
			e.value = append(e.value, ',')
		}
		e.value = append(e.value, body...)
	}
}

// Edits returns the members as edits for AppendSpliced.
func (m *Merged) Edits() []Edit {
	if len(m.members) == 0 {
		return nil
	}
	edits := make([]Edit, 0, len(m.members))
	for _, e := range m.members {
		edits = append(edits, Edit{Name: e.name, Value: e.json()})
	}
	return edits
}

func (e *merged) json() []byte {
	switch e.kind {
	case String:
		return wrap('"', e.value, '"')
	case Array:
		return wrap('[', e.value, ']')
	}
	return e.value
}

func wrap(left byte, body []byte, right byte) []byte {
	out := make([]byte, 0, len(body)+2)
	out = append(out, left)
	out = append(out, body...)
	return append(out, right)
}

// Quoted returns a raw string with its quotes.
func Quoted(raw []byte) []byte { return wrap('"', raw, '"') }

// Bracketed returns elements, joined with commas, as an array.
func Bracketed(elements []byte) []byte { return wrap('[', elements, ']') }
