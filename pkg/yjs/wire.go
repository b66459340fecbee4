package yjs

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// maxSafe is the largest integer that JavaScript represents exactly.
const maxSafe = 1<<53 - 1

// cursor reads lib0's variable-length encoding. An overrun or oversized number sets bad, and
// every later read returns zero: callers check bad in loops and at the end.
type cursor struct {
	b   []byte
	pos int
	bad bool
}

func (c *cursor) fail() { c.bad, c.pos = true, len(c.b) }

func (c *cursor) more() bool { return c.pos < len(c.b) }

func (c *cursor) byte() byte {
	if c.pos >= len(c.b) {
		c.bad = true
		return 0
	}
	x := c.b[c.pos]
	c.pos++
	return x
}

func (c *cursor) uvarint() uint64 {
	if c.pos < len(c.b) {
		if x := c.b[c.pos]; x < 0x80 {
			c.pos++
			return uint64(x)
		}
	}
	return c.uvarintSlow()
}

func (c *cursor) uvarintSlow() uint64 {
	var n uint64
	for shift := uint(0); c.pos < len(c.b); shift += 7 {
		x := c.b[c.pos]
		c.pos++
		if shift > 49 {
			c.fail()
			return 0
		}
		n |= uint64(x&0x7f) << shift
		if x < 0x80 {
			if n > maxSafe {
				c.fail()
				return 0
			}
			return n
		}
	}
	c.fail()
	return 0
}

// varint returns magnitude and sign separately, since minus zero is significant.
func (c *cursor) varint() (n uint64, negative bool) {
	x := c.byte()
	n, negative = uint64(x&0x3f), x&0x40 != 0
	for shift := uint(6); x >= 0x80; shift += 7 {
		if x = c.byte(); c.bad || shift > 48 {
			c.fail()
			return 0, false
		}
		n |= uint64(x&0x7f) << shift
	}
	if n > maxSafe {
		c.fail()
		return 0, false
	}
	return n, negative
}

// clock reads a clock or a length, which have 32 bits in memory.
func (c *cursor) clock() uint32 {
	n := c.uvarint()
	if n > maxClock {
		c.fail()
		return 0
	}
	return uint32(n)
}

// take returns the next n bytes without copying.
func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)-c.pos) {
		c.fail()
		return nil
	}
	p := c.b[c.pos : c.pos+int(n) : c.pos+int(n)]
	c.pos += int(n)
	return p
}

func (c *cursor) bytes() []byte { return c.take(c.uvarint()) }

// str reads a string, which must be valid UTF-8.
func (c *cursor) str() []byte {
	p := c.bytes()
	if !utf8.Valid(p) {
		c.fail()
		return nil
	}
	return p
}

func (c *cursor) float32() float64 {
	p := c.take(4)
	if p == nil {
		return 0
	}
	return float64(math.Float32frombits(binary.BigEndian.Uint32(p)))
}

func (c *cursor) float64() float64 {
	p := c.take(8)
	if p == nil {
		return 0
	}
	return math.Float64frombits(binary.BigEndian.Uint64(p))
}

func appendVarint(b []byte, n uint64, negative bool) []byte {
	x := byte(n & 0x3f)
	if negative {
		x |= 0x40
	}
	n >>= 6
	if n > 0 {
		x |= 0x80
	}
	b = append(b, x)
	for n > 0 {
		x = byte(n & 0x7f)
		if n >>= 7; n > 0 {
			x |= 0x80
		}
		b = append(b, x)
	}
	return b
}

func appendBytes(b, p []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(p))), p...)
}

// appendString writes a string and replaces lone surrogates (see wtf8.go) with U+FFFD, like
// TextEncoder.
func appendString[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	at := len(b)
	b = append(b, s...)
	replaceSurrogates(b[at:])
	return b
}

// rleWriter writes runs of equal bytes as value, count-1, value, count-1 ... without the last
// count.
type rleWriter struct {
	b     []byte
	v     byte
	count uint64
}

func (w *rleWriter) write(v byte) {
	if w.count > 0 && w.v == v {
		w.count++
		return
	}
	if w.count > 0 {
		w.b = binary.AppendUvarint(w.b, w.count-1)
	}
	w.b = append(w.b, v)
	w.v, w.count = v, 1
}

type rleReader struct {
	cursor
	v       byte
	count   uint64
	forever bool
}

func (r *rleReader) read() byte {
	if r.forever {
		return r.v
	}
	if r.count == 0 {
		r.v = r.byte()
		if !r.more() {
			r.forever = true
			return r.v
		}
		r.count = r.uvarint() + 1
	}
	r.count--
	return r.v
}

// uintRLEWriter is lib0's UintOptRle: a single value is positive, a repeated one negative and
// followed by count-2.
type uintRLEWriter struct {
	b     []byte
	v     uint64
	count uint64
}

func (w *uintRLEWriter) write(v uint64) {
	if w.v == v {
		w.count++
		return
	}
	w.flush()
	w.v, w.count = v, 1
}

func (w *uintRLEWriter) flush() {
	if w.count == 0 {
		return
	}
	w.b = appendVarint(w.b, w.v, w.count > 1)
	if w.count > 1 {
		w.b = binary.AppendUvarint(w.b, w.count-2)
	}
	w.count = 0
}

type uintRLEReader struct {
	cursor
	v     uint64
	count uint64
}

func (r *uintRLEReader) read() uint64 {
	if r.count == 0 {
		n, negative := r.varint()
		r.v, r.count = n, 1
		if negative {
			r.count = r.uvarint() + 2
		}
	}
	r.count--
	return r.v
}

// diffRLEWriter is lib0's IntDiffOptRle: doubled differences whose low bit says whether a
// count follows.
type diffRLEWriter struct {
	b     []byte
	v     int64
	diff  int64
	count uint64
}

func (w *diffRLEWriter) write(n uint64) {
	v := int64(n)
	if w.diff == v-w.v {
		w.v = v
		w.count++
		return
	}
	w.flush()
	w.count, w.diff, w.v = 1, v-w.v, v
}

func (w *diffRLEWriter) flush() {
	if w.count == 0 {
		return
	}
	n := w.diff * 2
	if w.count > 1 {
		n++
	}
	if n < 0 {
		w.b = appendVarint(w.b, uint64(-n), true)
	} else {
		w.b = appendVarint(w.b, uint64(n), false)
	}
	if w.count > 1 {
		w.b = binary.AppendUvarint(w.b, w.count-2)
	}
	w.count = 0
}

type diffRLEReader struct {
	cursor
	v     int64
	diff  int64
	count uint64
}

func (r *diffRLEReader) read() uint64 {
	if r.count == 0 {
		m, negative := r.varint()
		n := int64(m)
		if negative {
			n = -n
		}
		r.diff, r.count = n>>1, 1
		if n&1 != 0 {
			r.count = r.uvarint() + 2
		}
	}
	r.v += r.diff
	r.count--
	if r.v < 0 || r.v > maxSafe {
		r.fail()
		r.v = 0
	}
	return uint64(r.v)
}

// stringWriter concatenates all strings and writes their UTF-16 lengths separately.
type stringWriter struct {
	s    []byte
	lens uintRLEWriter
}

func (w *stringWriter) write(s []byte, len16 uint64) {
	w.s = joinWTF8(w.s, s)
	w.lens.write(len16)
}

func (w *stringWriter) append(b []byte) []byte {
	w.lens.flush()
	n := len(w.s)
	b = binary.AppendUvarint(b, uint64(uvarintLen(uint64(n))+n+len(w.lens.b)))
	b = appendString(b, w.s)
	return append(b, w.lens.b...)
}

func uvarintLen(n uint64) int {
	l := 1
	for ; n >= 0x80; n >>= 7 {
		l++
	}
	return l
}

type stringReader struct {
	lens  uintRLEReader
	s     []byte
	ascii bool
	half  bool // the last string ended between the halves of a surrogate pair
}

func (r *stringReader) init(p []byte) bool {
	c := cursor{b: p}
	r.s = c.str()
	r.ascii = isASCII(r.s)
	r.lens = uintRLEReader{cursor: cursor{b: p, pos: c.pos}}
	return !c.bad
}

// read returns the next string. Like a slice of a JavaScript string, it may end inside a
// surrogate pair. At the end of the table it is short.
func (r *stringReader) read() (s []byte, len16 uint32) {
	n := r.lens.read()
	if r.ascii {
		n = min(n, uint64(len(r.s)))
		s, r.s = r.s[:n:n], r.s[n:]
		return s, uint32(n)
	}
	return r.readWide(n)
}

func (r *stringReader) readWide(n uint64) (s []byte, len16 uint32) {
	if n == 0 || len(r.s) == 0 {
		return nil, 0
	}
	var head []byte
	left := n
	if r.half {
		_, lo := splitPair(r.s)
		r.s, r.half = r.s[4:], false
		head, left = lo, left-1
	}
	at, rest := wtf8Offset(r.s, left)
	if rest == 0 || at == len(r.s) {
		body := r.s[:at:at]
		r.s = r.s[at:]
		if head == nil {
			return body, uint32(n - rest)
		}
		return joinWTF8(head, body), uint32(n - rest)
	}
	hi, _ := splitPair(r.s[at:])
	s = append(append(head, r.s[:at]...), hi...)
	r.s, r.half = r.s[at:], true
	return s, uint32(n)
}
