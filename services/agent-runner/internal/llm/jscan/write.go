package jscan

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	hexDigits   = "0123456789abcdef"
	replacement = utf8.RuneError
)

// AppendString appends s as a JSON string with its quotes. Bytes that are not
// UTF-8 and NUL, which Postgres cannot hold in text, become U+FFFD.
func AppendString[T ~string | ~[]byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	dst = AppendEscaped(dst, s)
	return append(dst, '"')
}

// AppendEscaped is like AppendString without the quotes.
func AppendEscaped[T ~string | ~[]byte](dst []byte, s T) []byte {
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := decodeRune(s, i)
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
		}
		dst = append(dst, s[start:i]...)
		dst = appendSpecial(dst, c)
		i++
		start = i
	}
	return append(dst, s[start:]...)
}

func decodeRune[T ~string | ~[]byte](s T, i int) (rune, int) {
	return utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
}

func appendSpecial(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	}
	if c == 0 || c >= utf8.RuneSelf {
		return utf8.AppendRune(dst, replacement)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// AppendUnescaped appends the decoded text of a raw string. A lone surrogate and NUL become
// U+FFFD.
func AppendUnescaped(dst, raw []byte) []byte {
	var d Decoder
	dst = d.Append(dst, raw)
	return d.Finish(dst)
}

// Decoder decodes a string that arrives in raw fragments. It holds back the first half of a
// surrogate pair at the end of a fragment until the next fragment.
type Decoder struct {
	high rune // the held first half, or 0
}

// Append appends the decoded text of the next raw fragment to dst.
func (d *Decoder) Append(dst, raw []byte) []byte {
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i != 0 {
			if i < 0 {
				i = len(raw)
			}
			dst = d.Finish(dst)
			dst = append(dst, raw[:i]...)
			raw = raw[i:]
			continue
		}
		if len(raw) < 2 {
			return dst
		}
		if raw[1] != 'u' {
			dst = d.Finish(dst)
			dst = append(dst, simpleEscape(raw[1]))
			raw = raw[2:]
			continue
		}
		r, ok := hex4(raw, 2)
		if !ok {
			return dst
		}
		dst = d.unit(dst, r)
		raw = raw[6:]
	}
	return dst
}

// Finish appends U+FFFD if half a surrogate pair is held back at the end of the string.
func (d *Decoder) Finish(dst []byte) []byte {
	if d.high != 0 {
		d.high = 0
		dst = utf8.AppendRune(dst, replacement)
	}
	return dst
}

// Held reports whether half a surrogate pair is held back.
func (d *Decoder) Held() bool { return d.high != 0 }

// unit decodes one UTF-16 code unit.
func (d *Decoder) unit(dst []byte, u rune) []byte {
	if d.high != 0 {
		if pair := utf16.DecodeRune(d.high, u); pair != replacement {
			d.high = 0
			return utf8.AppendRune(dst, pair)
		}
		dst = d.Finish(dst)
	}
	switch {
	case u >= 0xd800 && u < 0xdc00:
		d.high = u
		return dst
	case u >= 0xdc00 && u < 0xe000, u == 0:
		u = replacement
	}
	return utf8.AppendRune(dst, u)
}

func simpleEscape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	}
	return c
}

// AppendCompact appends a valid JSON text without the white space between its tokens.
// Everything else, such as the spelling of numbers, stays byte for byte, except that a lone
// surrogate or NUL in a string becomes \ufffd.
func AppendCompact(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		switch c := text[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			end, escaped := scanString(text, i+1)
			if end < 0 {
				return append(dst, text[i:]...)
			}
			if escaped {
				dst = append(dst, '"')
				dst = AppendClean(dst, text[i+1:end])
				dst = append(dst, '"')
			} else {
				dst = append(dst, text[i:end+1]...)
			}
			i = end + 1
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}

// AppendClean appends the raw string raw byte for byte, except that a lone
// surrogate or NUL becomes \ufffd.
func AppendClean(dst, raw []byte) []byte {
	for len(raw) > 0 {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		n := 2
		if raw[1] == 'u' {
			n = unicodeEscape(raw)
		}
		if n == 0 {
			dst = append(dst, `\ufffd`...)
			n = min(6, len(raw))
		} else {
			dst = append(dst, raw[:n]...)
		}
		raw = raw[n:]
	}
	return dst
}

// unicodeEscape returns the length of the character at the start of raw, which begins with \u:
// 6, 12 for a surrogate pair, or 0 if it is not a character.
func unicodeEscape(raw []byte) int {
	u, ok := hex4(raw, 2)
	switch {
	case !ok || u == 0:
		return 0
	case !utf16.IsSurrogate(u):
		return 6
	}
	if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
		if low, ok := hex4(raw, 8); ok && utf16.DecodeRune(u, low) != replacement {
			return 12
		}
	}
	return 0
}

// ValidUTF8 returns text if it is valid UTF-8, otherwise a copy in which U+FFFD replaces each
// run of invalid bytes.
func ValidUTF8(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	return bytes.ToValidUTF8(text, []byte("\ufffd"))
}
