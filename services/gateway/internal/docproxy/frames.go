package docproxy

import (
	"encoding/binary"
	"unicode/utf8"
)

// frames follows the frames of a WebSocket server (RFC 6455, section 5.2) through
// the bytes that go by, in whatever pieces they come. It belongs to one goroutine.
type frames struct {
	left uint64 // bytes of the payload under way that are still to come
	head [14]byte
	n    int // bytes of head that are here; 0 when no header is under way

	closed bool // a close frame has begun
	code   uint16
	seen   int // bytes of the close frame's payload that went by
}

const opClose = 8

// follow takes notice of p.
func (f *frames) follow(p []byte) {
	for len(p) > 0 {
		if f.left > 0 {
			n := min(f.left, uint64(len(p)))
			if f.closed {
				f.readCode(p[:n])
			}
			f.left -= n
			p = p[n:]
			continue
		}
		f.head[f.n] = p[0]
		f.n++
		p = p[1:]
		if f.n == headSize(f.head[:f.n]) {
			f.begin()
		}
	}
}

// headSize returns how long the header is that begins with h, as far as h tells.
func headSize(h []byte) int {
	if len(h) < 2 {
		return 2
	}
	size := 2
	switch h[1] & 0x7f {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if h[1]&0x80 != 0 {
		size += 4 // a mask, which servers do not use
	}
	return size
}

// begin begins the frame whose header is in head.
func (f *frames) begin() {
	switch n := f.head[1] & 0x7f; n {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
	default:
		f.left = uint64(n)
	}
	f.n = 0
	if f.head[0]&0x0f == opClose && !f.closed {
		f.closed = true
		if f.left == 0 {
			f.code = codeNone
		}
	}
}

func (f *frames) readCode(p []byte) {
	for _, b := range p[:min(len(p), max(2-f.seen, 0))] {
		f.code = f.code<<8 | uint16(b)
		f.seen++
	}
}

// between reports whether what went by ended with a frame.
func (f *frames) between() bool { return f.left == 0 && f.n == 0 }

// maxReason is how long the reason of a close frame may be.
const maxReason = 123

// appendClose appends a server's close frame.
func appendClose(b []byte, code uint16, reason string) []byte {
	reason = clip(reason, maxReason)
	b = append(b, 0x80|opClose, byte(2+len(reason)))
	b = binary.BigEndian.AppendUint16(b, code)
	return append(b, reason...)
}

// clip returns the first n bytes of s, or fewer where these would end in the middle
// of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
