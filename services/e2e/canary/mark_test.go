package canary_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
)

// mark is a kind of secret. Secrets of the test contain its text; secrets that the world generates
// are passed to marks.add.
type mark struct {
	name, text string
	// may has patterns of the places where it may be, must those of places where it must be, which
	// shows that the search works.
	may, must []string

	mu    sync.Mutex // guards found
	found map[string]bool
}

// newMark returns a mark with a unique text of letters and digits, which URLs and JSON do not escape.
func newMark(name string) *mark {
	return &mark{name: name, text: name + strings.ReplaceAll(uuid.NewString(), "-", "")[:14], found: map[string]bool{}}
}

// forms are the encodings in which a text could hide.
func forms(text string) []string {
	inHex := hex.EncodeToString([]byte(text))
	all := []string{text, inHex, strings.ToUpper(inHex)}
	for shift := range 3 {
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// The part of the encoding that depends only on the text, at each offset.
			encoded := e.EncodeToString(append(make([]byte, shift), text...))
			all = append(all, encoded[(shift*8+5)/6:(shift+len(text))*8/6])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (m *mark) note(place string) {
	m.mu.Lock()
	m.found[place] = true
	m.mu.Unlock()
}

// places returns the places with a prefix where the mark was found.
func (m *mark) places(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.found)), func(p string) bool { return !strings.HasPrefix(p, prefix) })
}

// check expects the mark where it must be, and only where it may be.
func (m *mark) check(t *testing.T) {
	t.Helper()
	for _, place := range m.must {
		if len(m.places(place)) == 0 {
			t.Errorf("%s was not found in %s, where it must be: the search does not work there", m.name, place)
		}
	}
	for _, place := range m.places("") {
		if !slices.ContainsFunc(m.may, func(pattern string) bool { ok, err := path.Match(pattern, place); return ok && err == nil }) {
			t.Errorf("%s was found in %s", m.name, place)
		}
	}
}

// marks has all marks, which are searched for at once.
type marks struct {
	mu  sync.Mutex // serializes add
	now atomic.Pointer[index]
}

// index has the forms of texts by their beginnings.
type index struct {
	begins [1 << 16]bool // by hash
	forms  map[uint32][]form
	long   int // the longest form
}

type form struct {
	mark *mark
	text string
}

func newMarks(all ...*mark) *marks {
	m := &marks{}
	m.now.Store(&index{forms: map[uint32][]form{}})
	for _, k := range all {
		m.add(k, k.text)
	}
	return m
}

// add adds texts to the search.
func (all *marks) add(m *mark, texts ...string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	old := all.now.Load()
	x := &index{begins: old.begins, forms: maps.Clone(old.forms), long: old.long}
	for _, text := range texts {
		for _, f := range forms(text) {
			key := binary.LittleEndian.Uint32([]byte(f))
			x.begins[hash(key)] = true
			x.forms[key] = append(slices.Clone(x.forms[key]), form{m, f})
			x.long = max(x.long, len(f))
		}
	}
	all.now.Store(x)
}

func hash(key uint32) uint32 { return key * 0x9E3779B1 >> 16 }

// look records the marks that the content of a place has.
func (all *marks) look(place string, b []byte) {
	x := all.now.Load()
	for i := range max(len(b)-3, 0) {
		key := binary.LittleEndian.Uint32(b[i:])
		if !x.begins[hash(key)] {
			continue
		}
		for _, f := range x.forms[key] {
			if bytes.HasPrefix(b[i:], []byte(f.text)) {
				f.mark.note(place)
			}
		}
	}
}

// stream searches what is written to it, including marks across two writes. It belongs to one
// goroutine.
type stream struct {
	marks *marks
	place string
	tail  []byte
}

func (s *stream) Write(b []byte) (int, error) {
	s.tail = append(s.tail, b...)
	s.marks.look(s.place, s.tail)
	if over := len(s.tail) - (s.marks.now.Load().long - 1); over > 0 {
		s.tail = append(s.tail[:0], s.tail[over:]...)
	}
	return len(b), nil
}
