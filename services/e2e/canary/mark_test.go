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

// mark is a kind of secret. Its text is in those that the test makes up; those that the
// world does are told to marks.add.
type mark struct {
	name, text string
	// may are patterns of the places where it may be, must some of those that it is in:
	// who does not find it there would not find it elsewhere.
	may, must []string

	mu    sync.Mutex // guards found
	found map[string]bool
}

// newMark returns a mark whose text nothing else in the world has: letters and digits
// alone, which neither URLs nor JSON write otherwise.
func newMark(name string) *mark {
	return &mark{name: name, text: name + strings.ReplaceAll(uuid.NewString(), "-", "")[:14], found: map[string]bool{}}
}

// forms are the encodings in which a text could hide.
func forms(text string) []string {
	inHex := hex.EncodeToString([]byte(text))
	all := []string{text, inHex, strings.ToUpper(inHex)}
	for shift := range 3 {
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			// What of the encoded text depends on it alone, wherever it begins.
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

// places returns where the mark was found, of those that begin so.
func (m *mark) places(prefix string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.found)), func(p string) bool { return !strings.HasPrefix(p, prefix) })
}

// check wants the mark where it must be, and nowhere else than where it may be.
func (m *mark) check(t *testing.T) {
	t.Helper()
	for _, place := range m.must {
		if len(m.places(place)) == 0 {
			t.Errorf("no %s is in: %s, where it must be: the search finds nothing there", m.name, place)
		}
	}
	for _, place := range m.places("") {
		if !slices.ContainsFunc(m.may, func(pattern string) bool { ok, err := path.Match(pattern, place); return ok && err == nil }) {
			t.Errorf("a %s is in: %s", m.name, place)
		}
	}
}

// marks are all that are looked for at once, however many texts they have.
type marks struct {
	mu  sync.Mutex // lets one add at a time
	now atomic.Pointer[index]
}

// index has the forms of texts by how they begin.
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

// add has more texts looked for from now on.
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

// look notes which marks are in what a place holds.
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

// stream looks at what is written to it, also where a mark is cut in two. It belongs
// to one goroutine.
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
