package yjs

import (
	"unicode/utf16"
	"unicode/utf8"
)

// JavaScript strings are UTF-16 and may contain half of a surrogate pair. The engine keeps
// strings as UTF-8 and such a half as the three bytes of its generalized UTF-8 form (WTF-8).
// Adjacent halves join into one character; halves become U+FFFD, also three bytes, in output.

const replacement = "\uFFFD"

func isASCII(p []byte) bool {
	for len(p) >= 8 {
		if (uint64(p[0])|uint64(p[1])|uint64(p[2])|uint64(p[3])|uint64(p[4])|uint64(p[5])|uint64(p[6])|uint64(p[7]))&0x80 != 0 {
			return false
		}
		p = p[8:]
	}
	for _, x := range p {
		if x >= 0x80 {
			return false
		}
	}
	return true
}

// len16 counts UTF-16 units.
func len16(p []byte) (n uint32, ascii bool) {
	if isASCII(p) {
		return uint32(len(p)), true
	}
	for _, x := range p {
		if x < 0x80 || x >= 0xc0 {
			n++
		}
		if x >= 0xf0 {
			n++
		}
	}
	return n, false
}

// step returns the bytes and UTF-16 units of the first character.
func step(p []byte) (size, units int) {
	switch x := p[0]; {
	case x < 0x80:
		return 1, 1
	case x < 0xe0:
		return min(2, len(p)), 1
	case x < 0xf0:
		return min(3, len(p)), 1
	default:
		return min(4, len(p)), 2
	}
}

// wtf8Offset returns the byte offset of UTF-16 offset n. rest is 1 if n is inside the pair at
// that offset, or the number of missing units if p is too short.
func wtf8Offset(p []byte, n uint64) (at int, rest uint64) {
	for n > 0 && at < len(p) {
		size, units := step(p[at:])
		if uint64(units) > n {
			return at, n
		}
		at += size
		n -= uint64(units)
	}
	return at, n
}

// encodeSurrogate returns the WTF-8 form of a surrogate.
func encodeSurrogate(r rune) []byte {
	return []byte{0xe0 | byte(r>>12), 0x80 | byte(r>>6)&0x3f, 0x80 | byte(r)&0x3f}
}

// splitPair returns both halves of the four-byte character at the start of p.
func splitPair(p []byte) (hi, lo []byte) {
	r, _ := utf8.DecodeRune(p)
	a, b := utf16.EncodeRune(r)
	return encodeSurrogate(a), encodeSurrogate(b)
}

func endsHigh(p []byte) bool {
	n := len(p)
	return n >= 3 && p[n-3] == 0xed && p[n-2] >= 0xa0 && p[n-2] < 0xb0
}

func startsLow(p []byte) bool {
	return len(p) >= 3 && p[0] == 0xed && p[1] >= 0xb0
}

func surrogate(p []byte) rune {
	return rune(p[0]&0xf)<<12 | rune(p[1]&0x3f)<<6 | rune(p[2]&0x3f)
}

// joinWTF8 appends b to a and joins a split pair between them.
func joinWTF8(a, b []byte) []byte {
	if endsHigh(a) && startsLow(b) {
		n := len(a) - 3
		r := utf16.DecodeRune(surrogate(a[n:]), surrogate(b))
		return append(utf8.AppendRune(a[:n], r), b[3:]...)
	}
	return append(a, b...)
}

// replaceSurrogates overwrites lone halves with U+FFFD.
func replaceSurrogates(p []byte) {
	for i := 0; i+2 < len(p); i++ {
		if p[i] == 0xed && p[i+1] >= 0xa0 {
			copy(p[i:], replacement)
		}
	}
}

// validText replaces invalid UTF-8 in s.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// units16 returns s in UTF-16. JavaScript sorts strings by these units.
func units16(s string) []uint16 {
	out := make([]uint16, 0, len(s))
	p := []byte(s)
	for len(p) > 0 {
		size, units := step(p)
		switch {
		case units == 2:
			r, _ := utf8.DecodeRune(p)
			a, b := utf16.EncodeRune(r)
			out = append(out, uint16(a), uint16(b))
		case size == 3:
			out = append(out, uint16(surrogate(p)))
		default:
			r, _ := utf8.DecodeRune(p)
			out = append(out, uint16(r))
		}
		p = p[size:]
	}
	return out
}

// unitString returns one UTF-16 unit as a string.
func unitString(u uint16) string {
	if utf16.IsSurrogate(rune(u)) {
		return string(encodeSurrogate(rune(u)))
	}
	return string(rune(u))
}
