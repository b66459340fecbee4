package jscan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"strconv"
)

// ErrSyntax means that a text is not JSON.
var ErrSyntax = errors.New("not valid JSON")

const maxDepth = 512

// Kind is the kind of a JSON value.
type Kind uint8

// The kinds of values. Invalid is the kind of text that cannot begin a value.
const (
	Invalid Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// Str is a JSON string in its raw form, without quotes.
type Str struct {
	Raw     []byte
	Escaped bool // Raw has at least one backslash
}

// Is reports whether the decoded string is v.
func (s Str) Is(v string) bool { return string(s.Bytes()) == v }

// Bytes returns the decoded string. It points into the Reader's text if nothing is escaped.
func (s Str) Bytes() []byte {
	if !s.Escaped {
		return s.Raw
	}
	return AppendUnescaped(nil, s.Raw)
}

// String returns the decoded string.
func (s Str) String() string { return string(s.Bytes()) }

// Reader reads one JSON text. The methods for a kind of value always consume the value; their
// second result is false if it is of another kind. The zero Reader is at the end of an empty
// text.
type Reader struct {
	buf   []byte
	pos   int
	depth int
	first bool // right after the opening bracket of the current container
	bad   bool
}

// NewReader returns a Reader at the start of text. Its results point into text.
func NewReader(text []byte) Reader { return Reader{buf: text} }

// Inside returns a Reader at pos, which is the value of a member of the outermost object of
// text. text[:pos] must have been read successfully before.
func Inside(text []byte, pos int) Reader { return Reader{buf: text, pos: pos, depth: 1} }

// Mark returns the position of the next token, for Since.
func (r *Reader) Mark() int {
	r.space()
	return r.pos
}

// Since returns the text from a mark to the current position.
func (r *Reader) Since(mark int) []byte { return r.buf[mark:r.pos] }

// Done reports whether the whole text was read without an error.
func (r *Reader) Done() bool {
	r.space()
	return !r.bad && r.pos == len(r.buf)
}

// Err returns ErrSyntax if there was an error.
func (r *Reader) Err() error {
	if r.bad {
		return ErrSyntax
	}
	return nil
}

func (r *Reader) fail() {
	r.bad = true
	r.pos = len(r.buf)
}

// space skips white space. Providers write none or one space.
func (r *Reader) space() {
	if r.pos < len(r.buf) && r.buf[r.pos] <= ' ' {
		r.spaces()
	}
}

func (r *Reader) spaces() {
	for r.pos < len(r.buf) {
		switch r.buf[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// Kind returns the kind of the next value without consuming it.
func (r *Reader) Kind() Kind {
	r.space()
	if r.pos >= len(r.buf) {
		return Invalid
	}
	switch r.buf[r.pos] {
	case '"':
		return String
	case '{':
		return Object
	case '[':
		return Array
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return Number
	}
	return Invalid
}

// Object enters an object, whose members are then read with Key. It skips a value of another
// kind.
func (r *Reader) Object() bool { return r.enter(Object) }

// Array enters an array, whose elements are then read after Elem. It skips a value of another
// kind.
func (r *Reader) Array() bool { return r.enter(Array) }

func (r *Reader) enter(k Kind) bool {
	if r.Kind() != k {
		r.Skip()
		return false
	}
	if r.depth++; r.depth > maxDepth {
		r.fail()
		return false
	}
	r.pos++
	r.first = true
	return true
}

// Key moves to the next member of the entered object and returns its name. The caller consumes
// the value before the next call. Key returns false after the last member and leaves the
// object.
func (r *Reader) Key() ([]byte, bool) {
	if !r.next('}') {
		return nil, false
	}
	if r.pos >= len(r.buf) || r.buf[r.pos] != '"' {
		r.fail()
		return nil, false
	}
	s, ok := r.str()
	if !ok {
		return nil, false
	}
	r.space()
	if r.pos >= len(r.buf) || r.buf[r.pos] != ':' {
		r.fail()
		return nil, false
	}
	r.pos++
	if s.Escaped {
		return AppendUnescaped(nil, s.Raw), true
	}
	return s.Raw, true
}

// Elem moves to the next element of the entered array. The caller consumes the value before the
// next call. Elem returns false after the last element and leaves the array.
func (r *Reader) Elem() bool {
	return r.next(']')
}

// next skips a comma before the next item, or the closing bracket.
func (r *Reader) next(closing byte) bool {
	r.space()
	if r.bad || r.pos >= len(r.buf) {
		r.fail()
		return false
	}
	c := r.buf[r.pos]
	if c == closing {
		r.pos++
		r.depth--
		r.first = false
		return false
	}
	if r.first {
		r.first = false
		return true
	}
	if c != ',' {
		r.fail()
		return false
	}
	r.pos++
	r.space()
	if r.pos >= len(r.buf) || r.buf[r.pos] == closing {
		r.fail()
		return false
	}
	return true
}

// Str consumes the next value and returns it if it is a string.
func (r *Reader) Str() (Str, bool) {
	if r.Kind() != String {
		r.Skip()
		return Str{}, false
	}
	return r.str()
}

// str reads a string; r.pos is at its opening quote.
func (r *Reader) str() (Str, bool) {
	start := r.pos + 1
	end, escaped := scanString(r.buf, start)
	if end < 0 {
		r.fail()
		return Str{}, false
	}
	r.pos = end + 1
	return Str{Raw: r.buf[start:end], Escaped: escaped}, true
}

// Int consumes the next value and returns it if it is a number, truncated to an integer.
func (r *Reader) Int() (int64, bool) {
	if r.Kind() != Number {
		r.Skip()
		return 0, false
	}
	raw := r.Skip()
	if len(raw) <= 18 {
		n, neg := int64(0), false
		for i, c := range raw {
			if i == 0 && c == '-' {
				neg = true
				continue
			}
			if c < '0' || c > '9' {
				return cutFloat(raw)
			}
			n = n*10 + int64(c-'0')
		}
		if neg {
			n = -n
		}
		return n, len(raw) > 0
	}
	return cutFloat(raw)
}

func cutFloat(raw []byte) (int64, bool) {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f >= 1<<62 || f <= -1<<62 {
		return 0, false
	}
	return int64(f), true
}

// Bool consumes the next value and returns it if it is true or false.
func (r *Reader) Bool() (value, ok bool) {
	if r.Kind() != Bool {
		r.Skip()
		return false, false
	}
	raw := r.Skip()
	return len(raw) == 4, len(raw) > 0
}

// Skip consumes the next value, of any kind, and returns its text.
func (r *Reader) Skip() []byte {
	kind := r.Kind()
	start := r.pos
	r.skip(kind)
	if r.bad {
		return nil
	}
	return r.buf[start:r.pos]
}

func (r *Reader) skip(kind Kind) {
	switch kind {
	case String:
		r.str()
	case Object:
		r.Object()
		for _, ok := r.Key(); ok; _, ok = r.Key() {
			r.skip(r.Kind())
		}
	case Array:
		r.Array()
		for r.Elem() {
			r.skip(r.Kind())
		}
	case Number:
		r.number()
	case Bool:
		if r.buf[r.pos] == 't' {
			r.literal("true")
		} else {
			r.literal("false")
		}
	case Null:
		r.literal("null")
	default:
		r.fail()
	}
}

func (r *Reader) literal(s string) {
	if len(r.buf)-r.pos < len(s) || string(r.buf[r.pos:r.pos+len(s)]) != s {
		r.fail()
		return
	}
	r.pos += len(s)
}

func (r *Reader) number() {
	b := r.buf
	i := r.pos
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	default:
		n := digits(b, i)
		if n == i {
			r.fail()
			return
		}
		i = n
	}
	if i < len(b) && b[i] == '.' {
		n := digits(b, i+1)
		if n == i+1 {
			r.fail()
			return
		}
		i = n
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		n := digits(b, i)
		if n == i {
			r.fail()
			return
		}
		i = n
	}
	r.pos = i
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

// scanString returns the index of the closing quote of the string whose first byte is b[i], or
// -1 if the string does not end, has a control character or a bad escape.
func scanString(b []byte, i int) (end int, escaped bool) {
	for {
		i = plain(b, i)
		if i >= len(b) || b[i] < 0x20 {
			return -1, false
		}
		if b[i] == '"' {
			return i, escaped
		}
		n := escapeLen(b, i)
		if n == 0 {
			return -1, false
		}
		i += n
		escaped = true
	}
}

// plain returns the index, from i on, of the first quote, backslash or control character. It
// tests eight bytes at a time.
func plain(b []byte, i int) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote := x ^ (ones * '"')
		slash := x ^ (ones * '\\')
		found := ((quote - ones) &^ quote) | ((slash - ones) &^ slash) | ((x - ones*0x20) &^ x)
		if found &= highs; found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < 0x20 {
			return i
		}
	}
	return i
}

// escapeLen returns the length of the escape at b[i], or 0 if it is bad.
func escapeLen(b []byte, i int) int {
	if i+1 >= len(b) {
		return 0
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b, i+2); ok {
			return 6
		}
	}
	return 0
}

func hex4(b []byte, i int) (rune, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	var v rune
	for _, c := range b[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			v = v<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// Valid reports whether text is one JSON value.
func Valid(text []byte) bool {
	r := NewReader(text)
	r.Skip()
	return r.Done()
}

// KindOf returns the kind of the value at the start of text, without checking the value.
func KindOf(text []byte) Kind {
	r := NewReader(text)
	return r.Kind()
}

// Member returns the text of the first member called name of the object in text. It returns nil
// if text is not an object or has no such member.
func Member(text []byte, name string) []byte {
	r := NewReader(text)
	if !r.Object() {
		return nil
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		value := r.Skip()
		if string(key) == name {
			return value
		}
	}
	return nil
}

// MemberString returns the decoded member called name of the object in text, or "" if it is not
// a string.
func MemberString(text []byte, name string) string {
	raw := Member(text, name)
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	raw = raw[1 : len(raw)-1]
	return Str{Raw: raw, Escaped: bytes.IndexByte(raw, '\\') >= 0}.String()
}
