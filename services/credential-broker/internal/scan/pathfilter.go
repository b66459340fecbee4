package scan

import (
	"bytes"
	"encoding/json"
	"slices"
)

const (
	maxKept   = 32 << 10
	maxLevels = 16  // of what is entered; what is passed over may be as deep as it likes
	maxName   = 256 // a longer name is nobody's
)

// PathFilter reads one JSON text that comes in pieces and is too large to hold, and keeps the
// members of it that are wanted, in their places: of {"a":…,"b":{"c":1,"d":…}} and the path
// b.c it keeps {"b":{"c":1}}. Arrays on a path are entered, and keep all their elements. It
// goes by the structure alone, so that nothing in a string is taken for a member.
type PathFilter struct {
	kept   []byte
	lost   bool // it was too much
	levels []level
	state  state
	name   []byte     // of the member under way, as it is written
	wants  [][]string // below it
	keep   bool       // it is wanted itself

	text    bool // in a string
	escape  bool // behind its backslash
	depth   int  // in a value that is not entered
	started bool // something of it was read
}

// level is an object or an array that was entered.
type level struct {
	end   byte
	wants [][]string
	some  bool // something of it was kept
}

// state is what comes next.
type state uint8

const (
	atValue state = iota
	atFirstElement
	atFirstName
	atName
	inName
	atColon
	inValue
	behindValue
	atEnd
	bad
)

// NewPathFilter returns a PathFilter for members at these paths, which are the names of members from
// the outside to the inside.
func NewPathFilter(paths ...[]string) *PathFilter { return &PathFilter{wants: paths} }

// Write reads on.
func (s *PathFilter) Write(b []byte) {
	for i := 0; i < len(b) && !s.lost; {
		switch s.state {
		case inName:
			n, closed := s.inText(b[i:])
			s.take(b[i : i+n])
			i += n
			if closed {
				s.state = atColon
			}
		case inValue:
			n := s.pass(b[i:])
			if s.keep {
				s.put(b[i : i+n]...)
			}
			i += n
		case bad:
			return
		default:
			if isSpace(b[i]) || s.step(b[i]) {
				i++
			}
		}
	}
}

// Kept returns what was kept. It is false where the text is not whole so far, is no JSON, or
// holds more than a PathFilter does.
func (s *PathFilter) Kept() ([]byte, bool) {
	if s.state == inValue && len(s.levels) == 0 && s.depth == 0 && !s.text && s.started { // a number
		s.state = atEnd
	}
	if s.lost || s.state != atEnd || !json.Valid(s.kept) {
		return nil, false
	}
	return s.kept, true
}

// step reads one character of the structure, and is false where it begins a value that is
// not entered.
func (s *PathFilter) step(c byte) bool {
	switch s.state {
	case atFirstElement:
		if c == ']' {
			s.leave(c)
			return true
		}
		return s.value(c)
	case atValue:
		return s.value(c)
	case atFirstName, atName:
		switch {
		case c == '"':
			s.name, s.state = s.name[:0], inName
		case c == '}' && s.state == atFirstName:
			s.leave(c)
		default:
			s.state = bad
		}
	case atColon:
		if c != ':' {
			s.state = bad
			break
		}
		s.member()
	case behindValue:
		switch top := &s.levels[len(s.levels)-1]; {
		case c == top.end:
			s.leave(c)
		case c != ',':
			s.state = bad
		case top.end == '}':
			s.state = atName
		default:
			s.element(top)
		}
	default:
		s.state = bad
	}
	return true
}

// take notes a piece of a member's name.
func (s *PathFilter) take(b []byte) {
	if len(s.name)+len(b) <= maxName {
		s.name = append(s.name, b...)
	} else {
		s.name = append(s.name[:0], ' ')
	}
}

// member is between the name of a member and its value.
func (s *PathFilter) member() {
	s.state = atValue
	s.wants, s.keep = nil, false
	name := string(Text(bytes.TrimSuffix(s.name, []byte(`"`))))
	top := &s.levels[len(s.levels)-1]
	for _, path := range top.wants {
		if path[0] != name {
			continue
		}
		s.wants = append(s.wants, path[1:])
		s.keep = s.keep || len(path) == 1
	}
	if len(s.wants) == 0 {
		return
	}
	s.comma(top)
	s.put('"')
	s.put(s.name...)
	s.put(':')
}

// element is before an element of an array.
func (s *PathFilter) element(array *level) {
	s.state = atValue
	s.wants, s.keep = array.wants, false
}

// value begins a value; it is false where the value is not entered.
func (s *PathFilter) value(c byte) bool {
	if n := len(s.levels); n > 0 && s.levels[n-1].end == ']' {
		s.comma(&s.levels[n-1])
	}
	if s.keep || len(s.wants) == 0 || c != '{' && c != '[' {
		s.keep = s.keep || len(s.wants) > 0
		s.state, s.depth, s.started = inValue, 0, false
		return false
	}
	if len(s.levels) == maxLevels {
		s.state = bad
		return true
	}
	s.put(c)
	s.levels = append(s.levels, level{end: c + 2, wants: s.wants}) // as ASCII has them
	if s.state = atFirstElement; c == '{' {
		s.state = atFirstName
	}
	s.keep = false
	return true
}

// leave leaves the object or array that was entered last.
func (s *PathFilter) leave(end byte) {
	s.put(end)
	s.levels = slices.Delete(s.levels, len(s.levels)-1, len(s.levels))
	s.left()
}

// left is behind a value.
func (s *PathFilter) left() {
	if s.state = behindValue; len(s.levels) == 0 {
		s.state = atEnd
	}
}

// pass goes over a value that is not entered, as far as it is there, and returns how much
// of b it is.
func (s *PathFilter) pass(b []byte) int {
	for i := 0; i < len(b) && s.state != bad; {
		if s.text {
			n, closed := s.inText(b[i:])
			i += n
			if s.text = !closed; closed && s.depth == 0 {
				s.left()
				return i
			}
			continue
		}
		switch c := b[i]; c {
		case '"', '{', '[':
			if s.depth == 0 && s.started {
				s.state = bad
				return i
			}
			if s.text = c == '"'; !s.text {
				s.depth++
			}
			s.started = true
		case '}', ']':
			if s.depth == 0 {
				return s.scalar(i)
			}
			if s.depth--; s.depth == 0 {
				s.left()
				return i + 1
			}
		case ',', ':', ' ', '\t', '\r', '\n':
			if s.depth == 0 {
				return s.scalar(i)
			}
		default:
			s.started = true
		}
		i++
	}
	return len(b)
}

// scalar ends a number, true, false or null, behind which another character came.
func (s *PathFilter) scalar(i int) int {
	if !s.started {
		s.state = bad
		return i
	}
	s.left()
	return i
}

// window bounds how far a string is searched at once for what may not come.
const window = 1 << 10

// inText goes on in a string, up to and with the quote that closes it. The end of a line is
// in none.
func (s *PathFilter) inText(b []byte) (n int, closed bool) {
	for n < len(b) && s.state != bad {
		if s.escape {
			s.escape = false
			n++
			continue
		}
		piece := b[n:min(n+window, len(b))]
		quote := bytes.IndexByte(piece, '"')
		if quote >= 0 {
			piece = piece[:quote]
		}
		if back := bytes.IndexByte(piece, '\\'); back >= 0 {
			piece, quote = piece[:back], -1
			s.escape = true
		}
		if bytes.IndexByte(piece, '\n') >= 0 {
			s.state = bad
			return n, false
		}
		n += len(piece)
		if quote >= 0 {
			return n + 1, true
		}
		if s.escape {
			n++
		}
	}
	return n, false
}

// comma separates what is kept of one level.
func (s *PathFilter) comma(l *level) {
	if l.some {
		s.put(',')
	}
	l.some = true
}

func (s *PathFilter) put(b ...byte) {
	if len(s.kept)+len(b) > maxKept {
		s.lost = true
		return
	}
	s.kept = append(s.kept, b...)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
