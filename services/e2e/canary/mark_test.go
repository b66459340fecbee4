package canary_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
)

// mark is a text that is looked for, in the encodings in which it could hide.
type mark struct {
	text  string
	forms [][]byte
	long  int // the longest form

	mu    sync.Mutex // guards found
	found map[string]bool
}

func newMark(text string) *mark {
	m := &mark{text: text, found: map[string]bool{}}
	inHex := hex.EncodeToString([]byte(text))
	forms := []string{text, inHex, strings.ToUpper(inHex)}
	for shift := range 3 {
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// What of the encoded text depends on the mark alone, wherever it begins.
			encoded := e.EncodeToString(append(make([]byte, shift), text...))
			forms = append(forms, encoded[(shift*8+5)/6:(shift+len(text))*8/6])
		}
	}
	for _, f := range forms {
		m.forms = append(m.forms, []byte(f))
		m.long = max(m.long, len(f))
	}
	return m
}

// look notes whether the mark is in what a place holds.
func (m *mark) look(place string, b []byte) {
	for _, f := range m.forms {
		if bytes.Contains(b, f) {
			m.mu.Lock()
			m.found[place] = true
			m.mu.Unlock()
			return
		}
	}
}

// places returns where the mark was found, of those that begin so.
func (m *mark) places(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.found)), func(p string) bool { return !strings.HasPrefix(p, prefix) })
}

// marks are all that are looked for at once.
type marks []*mark

func (all marks) look(place string, b []byte) {
	for _, m := range all {
		m.look(place, b)
	}
}

// stream looks at what is written to it, also where a mark is cut in two. It belongs
// to one goroutine.
type stream struct {
	marks marks
	place string
	tail  []byte
}

func (s *stream) Write(b []byte) (int, error) {
	s.tail = append(s.tail, b...)
	s.marks.look(s.place, s.tail)
	keep := 0
	for _, m := range s.marks {
		keep = max(keep, m.long-1)
	}
	if over := len(s.tail) - keep; over > 0 {
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
	return len(b), nil
}
