// Package scan finds places in JSON text without decoding it: what is looked for is
// deep inside a large body, and everything around it has to stay as it is, byte for
// byte.
//
// A Scanner walks: into an object or an array, from member to member, over what is
// of no interest. It never looks back, needs no memory, and skips without recursion,
// however deep the text is nested. It is no validator: in text that is no JSON it
// either notices (Bad) or returns places that mean nothing, but always inside of the
// text. Text that was cut short is walked as far as it goes.
package scan

import (
	"bytes"
	"encoding/json"
)

// Span is the place of something: data[From:To].
type Span struct{ From, To int }

// Scanner walks through one JSON text. The zero Scanner is at the beginning of none.
type Scanner struct {
	data  []byte
	at    int
	first bool // nothing of what was entered last was read yet
	bad   bool
}

// New returns a Scanner before the value that data is.
func New(data []byte) Scanner { return Scanner{data: data} }

// Bad reports whether the text was found not to be JSON, or to end too early. All
// that was asked for since then was not there.
func (s *Scanner) Bad() bool { return s.bad }

// At returns the index of the next byte to be read.
func (s *Scanner) At() int { return s.at }

// Rest reports whether something other than white space is left.
func (s *Scanner) Rest() bool {
	s.space()
	return s.at < len(s.data)
}

// Bytes returns what is at a place.
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

// Object enters the next value if it is an object, and else stays before it.
func (s *Scanner) Object() bool { return s.enter('{') }

// Array enters the next value if it is an array, and else stays before it.
func (s *Scanner) Array() bool { return s.enter('[') }

func (s *Scanner) enter(open byte) bool {
	if s.Kind() != open {
		return false
	}
	s.at++
	s.first = true
	return true
}

// Member goes to the value of the next member of the object that was entered and
// returns where its name is, without the quotes. It is false when there are no more;
// the object was left then. The value has to be entered or skipped.
func (s *Scanner) Member() (Span, bool) {
	if !s.next('}') {
		return Span{}, false
	}
	name, ok := s.String()
	if !ok || s.Kind() != ':' {
		s.bad = true
		return Span{}, false
	}
	s.at++
	return name, true
}

// Element goes to the next element of the array that was entered. It is false when
// there are no more; the array was left then.
func (s *Scanner) Element() bool { return s.next(']') }

func (s *Scanner) next(end byte) bool {
	first := s.first
	s.first = false
	switch c := s.Kind(); {
	case c == 0:
		s.bad = true
		return false
	case c == end:
		s.at++
		return false
	case first:
		return true
	case c != ',':
		s.bad = true
		return false
	}
	s.at++
	if c := s.Kind(); c == 0 || c == end {
		s.bad = true
		return false
	}
	return true
}

// String reads the next value if it is a string, and returns where it is without its
// quotes; else it stays before the value.
func (s *Scanner) String() (Span, bool) {
	if s.Kind() != '"' {
		return Span{}, false
	}
	end := StringEnd(s.data, s.at)
	if end < 0 {
		s.bad = true
		return Span{}, false
	}
	p := Span{s.at + 1, end}
	s.at = end + 1
	return p, true
}

// Skip goes past the next value, whatever it is, and returns where it was.
func (s *Scanner) Skip() Span {
	s.space()
	from := s.at
	depth := 0
	for s.at < len(s.data) && !s.bad {
		switch s.data[s.at] {
		case '"':
			end := StringEnd(s.data, s.at)
			if end < 0 {
				s.bad = true
				return Span{from, from}
			}
			s.at = end + 1
		case '{', '[':
			depth++
			s.at++
		case '}', ']':
			depth--
			if depth < 0 {
				s.bad = true
				return Span{from, from}
			}
			s.at++
		default:
			if depth == 0 {
				return s.scalar()
			}
			s.at++
		}
		if depth == 0 {
			return Span{from, s.at}
		}
	}
	s.bad = true
	return Span{from, from}
}

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
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return
		}
	}
}

// Is reports whether the string at a place says want, however it is escaped.
func (s *Scanner) Is(p Span, want string) bool {
	raw := s.data[p.From:p.To]
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw) == want
	}
	return string(Text(raw)) == want
}

// Text returns what a string says that stands as raw between its quotes: raw itself
// where nothing is escaped.
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

// StringEnd returns the index of the quote that closes the string opened at i, or -1.
func StringEnd(data []byte, i int) int {
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
