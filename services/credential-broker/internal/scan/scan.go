// Package scan finds values in JSON text without decoding it. Callers look for a few
// members deep inside a large body, and everything around them has to stay as it is, byte
// for byte.
//
// A Scanner walks forward through one text: over the members of an object or the elements
// of an array, skipping the values that nobody asks for. It does not allocate, and skips
// without recursion, however deeply the text is nested. It is not a validator: given text
// that is not JSON it either notices (Bad) or returns meaningless places, but always places
// inside the text. Truncated text is walked as far as it goes.
//
// A PathFilter reads text that arrives in pieces and is too large to hold.
package scan

import (
	"bytes"
	"encoding/json"
	"iter"
)

// Span is the place of something: data[From:To].
type Span struct{ From, To int }

// Scanner walks through one JSON text. The zero Scanner has no text.
type Scanner struct {
	data []byte
	at   int
	bad  bool
}

// New returns a Scanner positioned before the value in data.
func New(data []byte) Scanner { return Scanner{data: data} }

// Bad reports whether the text turned out not to be JSON, or to end too early. From then
// on nothing more is found.
func (s *Scanner) Bad() bool { return s.bad }

// At returns the index of the next byte to be read.
func (s *Scanner) At() int { return s.at }

// Rest reports whether anything but white space is left.
func (s *Scanner) Rest() bool {
	s.space()
	return s.at < len(s.data)
}

// Bytes returns the text at a place.
func (s *Scanner) Bytes(p Span) []byte { return s.data[p.From:p.To] }

// Kind returns the first byte of the next value: one of { [ " - t f n or a digit; 0 at
// the end.
func (s *Scanner) Kind() byte {
	s.space()
	if s.bad || s.at >= len(s.data) {
		return 0
	}
	return s.data[s.at]
}

// Members iterates over the members of the next value if it is an object, and otherwise
// skips the value. It yields the place of a member's name, without the quotes. The loop's
// body may read the member's value; a value that it leaves is skipped.
func (s *Scanner) Members() iter.Seq[Span] {
	return func(yield func(Span) bool) {
		if !s.enter('{') {
			return
		}
		for first := true; s.next('}', first); first = false {
			name, ok := s.String()
			if !ok || s.Kind() != ':' {
				s.bad = true
				return
			}
			s.at++
			s.space()
			value := s.at
			if !yield(name) {
				return
			}
			if s.at == value {
				s.Skip()
			}
		}
	}
}

// Elements iterates over the elements of the next value if it is an array, and otherwise
// skips the value. It yields the index of an element, which the loop's body may read.
func (s *Scanner) Elements() iter.Seq[int] {
	return func(yield func(int) bool) {
		if !s.enter('[') {
			return
		}
		for i := 0; s.next(']', i == 0); i++ {
			s.space()
			value := s.at
			if !yield(i) {
				return
			}
			if s.at == value {
				s.Skip()
			}
		}
	}
}

// enter goes inside the next value, or past it if it begins otherwise.
func (s *Scanner) enter(open byte) bool {
	if s.Kind() != open {
		s.Skip()
		return false
	}
	s.at++
	return true
}

// next goes to the next entry of the object or array that was entered. It is false at the
// end, which it goes past.
func (s *Scanner) next(end byte, first bool) bool {
	c := s.Kind()
	if c == end {
		s.at++
		return false
	}
	if !first {
		s.bad = s.bad || c != ','
		s.at++
		c = s.Kind()
	}
	s.bad = s.bad || c == 0 || c == end
	return !s.bad
}

// String reads the next value if it is a string and returns its place without the quotes;
// otherwise it stays before the value.
func (s *Scanner) String() (Span, bool) {
	if s.Kind() != '"' {
		return Span{}, false
	}
	end := stringEnd(s.data, s.at)
	if end < 0 {
		s.bad = true
		return Span{}, false
	}
	p := Span{s.at + 1, end}
	s.at = end + 1
	return p, true
}

// Skip goes past the next value and returns its place, which is empty in bad text.
func (s *Scanner) Skip() Span {
	s.space()
	from := s.at
	for depth := 0; s.at < len(s.data) && !s.bad; {
		switch s.data[s.at] {
		case '"':
			s.String()
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			s.at++
			s.bad = s.bad || depth < 0
		default:
			if depth == 0 {
				return s.scalar()
			}
			s.at++
		}
		if depth == 0 && !s.bad {
			return Span{from, s.at}
		}
	}
	s.bad = true
	return Span{from, from}
}

// Value is Skip for callers that want the value itself.
func (s *Scanner) Value() []byte { return s.Bytes(s.Skip()) }

// scalar goes past a number, true, false or null.
func (s *Scanner) scalar() Span {
	from := s.at
	if n := bytes.IndexAny(s.data[from:], ",]}: \t\r\n\""); n >= 0 {
		s.at += n
	} else {
		s.at = len(s.data)
	}
	s.bad = s.bad || s.at == from
	return Span{from, s.at}
}

func (s *Scanner) space() {
	for s.at < len(s.data) && isSpace(s.data[s.at]) {
		s.at++
	}
}

// Find returns the value at a path of member names, or nil. If a member is there twice, the
// last one counts.
func Find(data []byte, path ...string) []byte {
	for _, want := range path {
		s := New(data)
		data = nil
		for name := range s.Members() {
			if s.Is(name, want) {
				data = s.Value()
			}
		}
		if s.Bad() {
			return nil
		}
	}
	return data
}

// TopString returns the string that a member of the outermost object has, as it is written
// between its quotes, or nil. It reads no further than needed, so that text may be cut short
// behind it.
func TopString(data []byte, member string) []byte {
	s := New(data)
	for name := range s.Members() {
		if s.Is(name, member) {
			p, _ := s.String()
			return s.Bytes(p)
		}
	}
	return nil
}

// Is reports whether the string at a place reads want once its escapes are decoded.
func (s *Scanner) Is(p Span, want string) bool {
	return string(Text(s.Bytes(p))) == want
}

// Text decodes the escapes of a string that is written as raw between its quotes. It
// returns raw itself if there are none.
func Text(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(append(append(quoted, '"'), raw...), '"')
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return raw
	}
	return []byte(text)
}

// Quote returns a text as it is written between the quotes of a JSON string.
func Quote(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string always encodes
	return b.Bytes()[1 : b.Len()-len("\"\n")]
}

// stringEnd returns the index of the quote that closes the string opened at i, or -1.
func stringEnd(data []byte, i int) int {
	for from := i + 1; from < len(data); {
		n := bytes.IndexByte(data[from:], '"')
		if n < 0 {
			return -1
		}
		quote := from + n
		escapes := 0
		for quote-escapes > i+1 && data[quote-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return quote
		}
		from = quote + 1
	}
	return -1
}
