package yjs

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Encoding v1 contains embeds and formats as JSON text, which must match JavaScript to the
// byte: key order, number format, lone surrogates.

// AppendJSON appends v in the form of JSON.stringify. Undefined becomes null, and a bigint a
// number.
func AppendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case float64:
		return appendJSONNumber(b, v)
	case BigInt:
		return strconv.AppendInt(b, int64(v), 10)
	case string:
		return appendJSONString(b, v)
	case []byte: // an object with the indexes as keys
		b = append(b, '{')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '"')
			b = strconv.AppendInt(b, int64(i), 10)
			b = append(b, '"', ':')
			b = strconv.AppendInt(b, int64(x), 10)
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = AppendJSON(b, x)
		}
		return append(b, ']')
	case Object:
		b = append(b, '{')
		first := true
		for _, m := range v {
			if m.Value == Undefined {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendJSONString(b, m.Key)
			b = append(b, ':')
			b = AppendJSON(b, m.Value)
		}
		return append(b, '}')
	default:
		return append(b, "null"...)
	}
}

// appendJSONNumber writes a number like JSON.stringify.
func appendJSONNumber(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(b, "null"...)
	}
	return appendNumberText(b, f)
}

func appendNumberText(b []byte, f float64) []byte {
	switch {
	case f == 0:
		return append(b, '0')
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	at := len(b)
	b = strconv.AppendFloat(b, f, 'e', -1, 64)
	// Go writes at least two digits of the exponent, JavaScript only significant ones.
	for i := len(b) - 1; i > at; i-- {
		if b[i] == '+' || b[i] == '-' {
			if b[i+1] == '0' && i+2 < len(b) {
				b = append(b[:i+1], b[i+2:]...)
			}
			break
		}
	}
	return b
}

const hexDigits = "0123456789abcdef"

func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		x := s[i]
		if x >= 0x20 && x != '"' && x != '\\' && x != 0xed {
			i++
			continue
		}
		if x == 0xed {
			if i+2 >= len(s) || s[i+1] < 0xa0 {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			b = appendEscape(b, surrogate([]byte(s[i:i+3])))
			i += 3
			start = i
			continue
		}
		b = append(b, s[start:i]...)
		switch x {
		case '"', '\\':
			b = append(b, '\\', x)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = appendEscape(b, rune(x))
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscape(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// parseJSON accepts the input of JSON.parse. Every value decrements left.
func parseJSON(p []byte, left *int) (any, bool) {
	j := jsonParser{p: p, left: left}
	j.space()
	v := j.value(0)
	j.space()
	return v, !j.bad && j.i == len(p)
}

type jsonParser struct {
	p    []byte
	i    int
	bad  bool
	left *int
}

func (j *jsonParser) fail() any {
	j.bad = true
	return nil
}

func (j *jsonParser) peek() byte {
	if j.i < len(j.p) {
		return j.p[j.i]
	}
	return 0
}

func (j *jsonParser) space() {
	for j.i < len(j.p) {
		switch j.p[j.i] {
		case ' ', '\t', '\n', '\r':
			j.i++
		default:
			return
		}
	}
}

func (j *jsonParser) word(w string, v any) any {
	if len(j.p)-j.i < len(w) || string(j.p[j.i:j.i+len(w)]) != w {
		return j.fail()
	}
	j.i += len(w)
	return v
}

func (j *jsonParser) value(depth int) any {
	if *j.left--; *j.left < 0 || depth > maxAnyDepth {
		return j.fail()
	}
	switch x := j.peek(); {
	case x == '{':
		return j.object(depth)
	case x == '[':
		return j.array(depth)
	case x == '"':
		return string(j.str())
	case x == 't':
		return j.word("true", true)
	case x == 'f':
		return j.word("false", false)
	case x == 'n':
		return j.word("null", nil)
	case x == '-' || (x >= '0' && x <= '9'):
		return j.number()
	}
	return j.fail()
}

func (j *jsonParser) array(depth int) any {
	j.i++
	out := []any{}
	j.space()
	if j.peek() == ']' {
		j.i++
		return out
	}
	for !j.bad {
		j.space()
		out = append(out, j.value(depth+1))
		j.space()
		switch x := j.peek(); x {
		case ',':
			j.i++
		case ']':
			j.i++
			return out
		default:
			return j.fail()
		}
	}
	return nil
}

func (j *jsonParser) object(depth int) any {
	j.i++
	var ms []Member
	j.space()
	if j.peek() == '}' {
		j.i++
		return Object{}
	}
	for !j.bad {
		j.space()
		if j.peek() != '"' {
			return j.fail()
		}
		key := string(j.str())
		j.space()
		if j.peek() != ':' {
			return j.fail()
		}
		j.i++
		j.space()
		ms = append(ms, Member{key, j.value(depth + 1)})
		j.space()
		switch j.peek() {
		case ',':
			j.i++
		case '}':
			j.i++
			return objectFrom(ms)
		default:
			return j.fail()
		}
	}
	return nil
}

func (j *jsonParser) digits() int {
	n := 0
	for x := j.peek(); x >= '0' && x <= '9'; x = j.peek() {
		j.i++
		n++
	}
	return n
}

func (j *jsonParser) number() any {
	start := j.i
	if j.peek() == '-' {
		j.i++
	}
	if j.peek() == '0' {
		j.i++
	} else if j.digits() == 0 {
		return j.fail()
	}
	if j.peek() == '.' {
		j.i++
		if j.digits() == 0 {
			return j.fail()
		}
	}
	if x := j.peek(); x == 'e' || x == 'E' {
		j.i++
		if x := j.peek(); x == '+' || x == '-' {
			j.i++
		}
		if j.digits() == 0 {
			return j.fail()
		}
	}
	// JavaScript also reads numbers out of range as infinities.
	f, _ := strconv.ParseFloat(string(j.p[start:j.i]), 64)
	return f
}

func (j *jsonParser) str() []byte {
	j.i++
	start := j.i
	for j.i < len(j.p) { // fast path without escapes
		switch x := j.p[j.i]; {
		case x == '"':
			s := j.p[start:j.i]
			j.i++
			return s
		case x == '\\':
			return j.escaped(append([]byte(nil), j.p[start:j.i]...))
		case x < 0x20:
			j.fail()
			return nil
		}
		j.i++
	}
	j.fail()
	return nil
}

func (j *jsonParser) escaped(s []byte) []byte {
	for j.i < len(j.p) {
		x := j.p[j.i]
		j.i++
		switch {
		case x == '"':
			return s
		case x < 0x20:
			j.fail()
			return nil
		case x != '\\':
			s = append(s, x)
			continue
		}
		switch e := j.peek(); e {
		case '"', '\\', '/':
			s = append(s, e)
		case 'b':
			s = append(s, '\b')
		case 'f':
			s = append(s, '\f')
		case 'n':
			s = append(s, '\n')
		case 'r':
			s = append(s, '\r')
		case 't':
			s = append(s, '\t')
		case 'u':
			if len(j.p)-j.i < 5 {
				j.fail()
				return nil
			}
			n, err := strconv.ParseUint(string(j.p[j.i+1:j.i+5]), 16, 16)
			if err != nil {
				j.fail()
				return nil
			}
			j.i += 4
			if utf16.IsSurrogate(rune(n)) {
				s = joinWTF8(s, encodeSurrogate(rune(n)))
			} else {
				s = utf8.AppendRune(s, rune(n))
			}
		default:
			j.fail()
			return nil
		}
		j.i++
	}
	j.fail()
	return nil
}
