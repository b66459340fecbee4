package llmtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Stream is an answer as a provider might send it, whole and without a fault.
type Stream struct {
	Bytes  []byte
	Events int // server-sent events, comments not counted
}

// Chunks returns a reader of b that gives it in pieces of random sizes, often of a
// single byte.
func Chunks(r *rand.Rand, b []byte) io.Reader { return &chunks{r: r, left: b, wide: r.IntN(4) > 0} }

type chunks struct {
	r    *rand.Rand
	left []byte
	wide bool
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := 1 + c.r.IntN(7)
	if c.wide && c.r.IntN(3) > 0 {
		n = 1 + c.r.IntN(2000)
	}
	n = copy(p[:min(n, len(p))], c.left)
	c.left = c.left[n:]
	return n, nil
}

// writer writes a stream in a spelling of its own: line ends, white space, escapes,
// the order of members. Every spelling means the same.
type writer struct {
	r      *rand.Rand
	b      []byte
	events int

	eol      string
	colon    string // behind a field's name
	space    int    // how much white space JSON gets: 0 none, 1 as Python writes it, 2 any
	escapes  int    // one in so many characters is escaped though it need not be; 0 none
	shuffle  bool   // members of events come in any order
	comments int    // one event in so many has a comment before it; 0 none
	unknown  bool   // unknown members are added
}

func newWriter(r *rand.Rand) *writer {
	w := &writer{r: r, eol: "\n", colon: ": "}
	if r.IntN(4) == 0 {
		w.eol = "\r\n"
	}
	if r.IntN(4) == 0 {
		w.colon = ":"
	}
	if r.IntN(2) == 0 {
		w.space = r.IntN(3)
	}
	if r.IntN(2) == 0 {
		w.escapes = 1 + r.IntN(8)
	}
	if r.IntN(4) == 0 {
		w.comments = 1 + r.IntN(6)
	}
	w.shuffle, w.unknown = r.IntN(4) == 0, r.IntN(3) == 0
	return w
}

// event writes one event; an empty name is left out.
func (w *writer) event(name, data string) {
	if w.comments > 0 && w.r.IntN(w.comments) == 0 {
		w.b = append(w.b, ": OPENROUTER PROCESSING"...)
		w.b = append(w.b, w.eol...)
		if w.r.IntN(2) == 0 {
			w.b = append(w.b, w.eol...)
		}
	}
	if name != "" {
		w.field("event", name)
	}
	w.field("data", data)
	w.b = append(w.b, w.eol...)
	w.events++
}

func (w *writer) field(name, value string) {
	w.b = append(append(append(append(w.b, name...), w.colon...), value...), w.eol...)
}

func (w *writer) stream() Stream { return Stream{Bytes: w.b, Events: w.events} }

// one reports true once in n.
func (w *writer) one(n int) bool { return w.r.IntN(n) == 0 }

// member is a member of an object, its value as JSON.
type member struct{ name, value string }

// event members may be shuffled; what a model wrote is in the order it was written.
func (w *writer) message(members ...member) string {
	if w.unknown && w.one(4) {
		members = append(members, member{"x_" + strconv.Itoa(w.r.IntN(3)), w.value(2)})
	}
	if w.shuffle {
		w.r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	}
	return w.object(members...)
}

func (w *writer) object(members ...member) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteString("," + w.gap(true))
		}
		b.WriteString(w.gap(false) + w.quote(m.name) + w.gap(false) + ":" + w.gap(true) + m.value)
	}
	if len(members) > 0 {
		b.WriteString(w.gap(false))
	}
	return b.String() + "}"
}

func (w *writer) array(values ...string) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, v := range values {
		if i > 0 {
			b.WriteString("," + w.gap(true))
		}
		b.WriteString(v)
	}
	return b.String() + "]"
}

// gap returns white space between two tokens; usual reports whether Python writes a space there.
func (w *writer) gap(usual bool) string {
	switch {
	case w.space == 1 && usual:
		return " "
	case w.space == 2 && w.one(3):
		return strings.Repeat(" ", w.r.IntN(3)) + strings.Repeat("\t", w.r.IntN(2))
	}
	return ""
}

// quote spells s as a JSON string: each character raw, or escaped in one of the ways
// there are.
func (w *writer) quote(s string) string {
	b := []byte{'"'}
	for _, c := range s {
		force := c == '"' || c == '\\' || c < ' '
		if !force && (w.escapes == 0 || !w.one(w.escapes)) {
			b = utf8.AppendRune(b, c)
			continue
		}
		b = w.escape(b, c)
	}
	return string(append(b, '"'))
}

func (w *writer) escape(b []byte, c rune) []byte {
	if i := strings.IndexRune("\"\\/\b\f\n\r\t", c); i >= 0 && !w.one(4) {
		return append(b, '\\', `"\/bfnrt`[i])
	}
	format := `\u%04x`
	if w.one(2) {
		format = `\u%04X`
	}
	if c > 0xffff {
		c -= 0x10000
		b = fmt.Appendf(b, format, 0xd800+c>>10)
		c = 0xdc00 + c&0x3ff
	}
	return fmt.Appendf(b, format, c)
}

// words is text of a few characters or, now and then, of many; it may be empty.
func (w *writer) words() string {
	pieces := [...]string{
		"a", " word", "\n", "\r", "\b", "\f", `"`, `\`, "/", "é", "世界", "😀", "👩‍👩‍👧", "\t", "\u2028", "<b>&amp;</b>", "\x01", "\x7f", "\ufffd", "\uffff", "0123456789", "$", "{", "}", "[DONE]", "data: ", `\u00e9`,
	}
	n := w.r.IntN(6)
	if w.one(200) {
		n = 2000
	}
	var b strings.Builder
	for range n {
		b.WriteString(pieces[w.r.IntN(len(pieces))])
	}
	return b.String()
}

// value is any JSON value, at most so deep.
func (w *writer) value(depth int) string {
	numbers := [...]string{"0", "-0", "1", "-17", "1.50", "1e3", "2.5E-7", "9007199254740993", "12345678901234567890", "0.1000"}
	switch k := w.r.IntN(8); {
	case k < 2:
		return w.quote(w.words())
	case k < 4:
		return numbers[w.r.IntN(len(numbers))]
	case k == 4:
		return [...]string{"true", "false", "null"}[w.r.IntN(3)]
	case k == 5 && depth > 0:
		values := make([]string, w.r.IntN(4))
		for i := range values {
			values[i] = w.value(depth - 1)
		}
		return w.array(values...)
	case depth > 0:
		return w.anyObject(depth - 1)
	}
	return "{}"
}

// anyObject is an object whose members have different names.
func (w *writer) anyObject(depth int) string {
	names := [...]string{"a", "b.c", "type", "text", "input", "ü", "", "q\"uote", "0", "id", "a b", "content"}
	members := make([]member, 0, 4)
	for _, i := range w.r.Perm(len(names))[:w.r.IntN(5)] {
		members = append(members, member{names[i], w.value(depth)})
	}
	return w.object(members...)
}

// cut cuts s into pieces, between any two characters, some of them empty.
func (w *writer) cut(s string) []string {
	var out []string
	most := 1 + w.r.IntN(24)
	for len(s) > 0 {
		if len(out) > 40 {
			return append(out, s)
		}
		end := 0
		for range w.r.IntN(most) + w.r.IntN(2) {
			_, n := utf8.DecodeRuneInString(s[end:])
			end += n
		}
		out = append(out, s[:end])
		s = s[end:]
	}
	return out
}
