package scan

import (
	"bytes"
	"encoding/json"
)

const (
	maxKept   = 32 << 10
	maxLevels = 16  // that are entered; skipped values may be nested more deeply
	maxName   = 256 // of a member that can be wanted
)

// PathFilter reads one JSON text that arrives in pieces and is too large to hold, and keeps a
// small text in its place: members that nobody wants become "":0. Of {"a":…,"b":{"c":1,"d":…}}
// and the path b.c it keeps {"":0,"b":{"c":1,"":0}}. Arrays on a path keep all their elements.
// What is kept is JSON only if the structure around it is, and nothing inside a string is taken
// for a member. A nil PathFilter keeps nothing.
type PathFilter struct {
	kept   []byte
	failed bool    // the text holds too much, or cannot be JSON
	levels []level // objects and arrays that were entered
	wants  [][]string
	keep   bool // the next value is wanted whole

	text   bool // inside a string
	escape bool // behind its backslash
	name   []byte
	isName bool // the string is a member's name
	scalar bool // inside a number, true, false or null
	depth  int  // inside a value that is not entered
}

// level is an object or array that was entered.
type level struct {
	object bool
	names  bool // the next string is a member's name
	wants  [][]string
}

// NewPathFilter returns a PathFilter for the members at these paths, each a list of names from
// the outermost to the innermost.
func NewPathFilter(paths ...[]string) *PathFilter { return &PathFilter{wants: paths} }

// Write reads a piece of the text.
func (s *PathFilter) Write(b []byte) {
	for s != nil && len(b) > 0 && !s.failed {
		n := 1
		switch {
		case s.text:
			n = s.readText(b)
		case s.depth > 0:
			s.skip(b[0])
		default:
			s.step(b[0])
		}
		b = b[n:]
	}
}

// Kept returns what was kept; false if the text is not whole so far, is not JSON, or holds too
// much.
func (s *PathFilter) Kept() ([]byte, bool) {
	if s == nil || s.failed || s.text || s.depth > 0 || !json.Valid(s.kept) {
		return nil, false
	}
	return s.kept, true
}

// step reads one character of the structure.
func (s *PathFilter) step(c byte) {
	if s.scalar && !isPunctuation(c) {
		if s.keep {
			s.put(c)
		}
		return
	}
	s.scalar = false
	var top *level
	if n := len(s.levels); n > 0 {
		top = &s.levels[n-1]
	}
	switch c {
	case ' ', '\t', '\r', '\n':
		if !bytes.HasSuffix(s.kept, []byte(" ")) {
			s.put(' ')
		}
	case '"':
		s.text = true
		if s.isName = top != nil && top.names; s.isName {
			s.name = s.name[:0]
		} else {
			s.begin(c)
		}
	case '{', '[':
		if s.keep || len(s.wants) == 0 {
			s.depth = 1
			s.begin(c)
			return
		}
		s.put(c)
		s.levels = append(s.levels, level{object: c == '{', names: c == '{', wants: s.wants})
		s.failed = s.failed || len(s.levels) > maxLevels
	case '}', ']':
		s.put(c)
		if top == nil {
			s.failed = true
			return
		}
		s.levels = s.levels[:len(s.levels)-1]
	case ',', ':':
		s.put(c)
		if c == ',' && top != nil {
			s.wants, s.keep, top.names = top.wants, false, top.object
		}
	default:
		s.scalar = true
		s.begin(c)
	}
}

// begin begins a value that is not entered: it is kept, or becomes 0.
func (s *PathFilter) begin(c byte) {
	s.keep = s.keep || len(s.wants) > 0
	if !s.keep {
		c = '0'
	}
	s.put(c)
}

// skip reads one character of an object or array that is not entered.
func (s *PathFilter) skip(c byte) {
	switch c {
	case '"':
		s.text, s.isName = true, false
	case '{', '[':
		s.depth++
	case '}', ']':
		s.depth--
	}
	if s.keep {
		s.put(c)
	}
}

// window limits how far a string is searched for a character that may not be there.
const window = 1 << 10

// readText reads a piece of a string, to its closing quote at most, and returns the length.
func (s *PathFilter) readText(b []byte) int {
	n := 0
	for n < len(b) && s.text {
		if s.escape {
			s.escape = false
			n++
			continue
		}
		piece := b[n:min(n+window, len(b))]
		if i := bytes.IndexByte(piece, '"'); i >= 0 {
			piece, s.text = piece[:i+1], false
		}
		if i := bytes.IndexByte(piece, '\\'); i >= 0 {
			piece, s.text, s.escape = piece[:i+1], true, true
		}
		s.failed = s.failed || bytes.IndexByte(piece, '\n') >= 0 // a string holds no line end
		n += len(piece)
	}
	s.take(b[:n])
	if !s.text && s.isName {
		s.endName()
	}
	return n
}

// take keeps a piece of a string, or of a name as far as one can be wanted.
func (s *PathFilter) take(piece []byte) {
	switch {
	case !s.isName:
		if s.keep {
			s.put(piece...)
		}
	case len(s.name) <= maxName:
		s.name = append(s.name, piece...)
	}
}

// endName finds out whether the member of that name is wanted, or something below it.
func (s *PathFilter) endName() {
	top := &s.levels[len(s.levels)-1]
	top.names = false
	s.wants, s.keep = nil, false
	name := string(Text(bytes.TrimSuffix(s.name, []byte(`"`))))
	for _, path := range top.wants {
		if path[0] == name {
			s.wants = append(s.wants, path[1:])
			s.keep = s.keep || len(path) == 1
		}
	}
	s.put('"')
	if len(s.wants) == 0 {
		s.name = append(s.name[:0], '"')
	}
	s.put(s.name...)
}

func (s *PathFilter) put(b ...byte) {
	if len(s.kept)+len(b) > maxKept {
		s.failed = true
		return
	}
	s.kept = append(s.kept, b...)
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func isPunctuation(c byte) bool {
	return isSpace(c) || c == ',' || c == ':' || c == '"' || c == '{' || c == '}' || c == '[' || c == ']'
}
