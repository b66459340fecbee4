package transform

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// Case says in which cases a word is found and what becomes of its case.
type Case string

// The cases.
const (
	Exact Case = "exact" // found as it is written, and replaced by what is written
	Any   Case = "any"   // found in any case, replaced by what is written
	Keep  Case = "keep"  // found in any case; all lower or all upper case stays so
)

// Word is one substitution. From begins and ends with a letter or a digit and may have
// anything in between. It is found as a whole word only: beside it stands no letter,
// digit or underscore. As part of a path or of a dotted name (/etc/name-x, name.json,
// https://name.dev) it is left as it is.
type Word struct {
	From, To string
	Case     Case
}

type word struct {
	from               string
	to, toLower, upper []byte // as they stand between the quotes of a JSON string
	kind               Case
}

func newWord(w Word) word {
	inner := func(s string) []byte { b := quote(s); return b[1 : len(b)-1] }
	return word{w.From, inner(w.To), inner(strings.ToLower(w.To)), inner(strings.ToUpper(w.To)), w.Case}
}

// replaceWords notes an edit for each word that is to be replaced in the string at a
// place. At each place the first rule that fits counts, and what it put there is not
// looked at again.
func (w *walk) replaceWords(p scan.Span) {
	if len(w.m.words) == 0 {
		return
	}
	text, at := plain(w.s.Bytes(p))
	inside := false // the character before i is a part of a word
	for i := 0; i < len(text) && !w.full(); {
		r, size := utf8.DecodeRune(text[i:])
		if !inside && isWord(r) {
			if rule, to := w.m.match(text, i); rule != nil {
				end := i + len(rule.from)
				from, stop := p.From+at.of(i), p.From+at.of(end)
				w.edit(from, stop-from, to)
				i = end
				inside = true // whatever it was replaced by
				continue
			}
		}
		inside = isWord(r)
		i += size
	}
}

// match returns the first rule that replaces what begins at i, and by what.
func (m *Messages) match(text []byte, i int) (*word, []byte) {
	for n := range m.words {
		rule := &m.words[n]
		end := i + len(rule.from)
		if end > len(text) {
			continue
		}
		found := text[i:end]
		if string(found) != rule.from && (rule.kind == Exact || !strings.EqualFold(string(found), rule.from)) {
			continue
		}
		if r, _ := utf8.DecodeRune(text[end:]); end < len(text) && isWord(r) || isPath(text, i, end) {
			continue
		}
		switch {
		case rule.kind != Keep:
		case bytes.Equal(found, bytes.ToLower(found)):
			return rule, rule.toLower
		case len(found) > 1 && bytes.Equal(found, bytes.ToUpper(found)):
			return rule, rule.upper
		}
		return rule, rule.to
	}
	return nil, nil
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// maxPath bounds how far around a word a path is looked for.
const maxPath = 512

// isPath reports whether text[i:end] is a part of a path, an address or a dotted name.
func isPath(text []byte, i, end int) bool {
	from, to := max(0, i-maxPath), min(len(text), end+maxPath)
	if n := bytes.LastIndexAny(text[from:i], breaks); n >= 0 {
		from += n + 1
	}
	if n := bytes.IndexAny(text[end:to], breaks); n >= 0 {
		to = end + n
	}
	before, after := text[from:i], text[end:to]
	if bytes.ContainsAny(before, `/\@`) || bytes.ContainsAny(after, `/\@`) {
		return true
	}
	if len(before) > 0 && before[len(before)-1] == '.' {
		return true
	}
	next := rune(0)
	if len(after) > 1 {
		next, _ = utf8.DecodeRune(after[1:])
	}
	return len(after) > 0 && after[0] == '.' && isWord(next)
}

// breaks end a path.
const breaks = " \t\r\n\"'`()[]{}<>,;|*"

// places says where in a raw string each byte of what it says comes from; nil where
// nothing is escaped, and every byte comes from its own place.
type places []int

func (p places) of(i int) int {
	if p == nil {
		return i
	}
	return p[i]
}

// plain returns what a string says and where each byte of it, and its end, is in raw.
func plain(raw []byte) ([]byte, places) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw, nil
	}
	text := make([]byte, 0, len(raw))
	at := make(places, 0, len(raw)+1)
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			text, at = append(text, raw[i]), append(at, i)
			i++
			continue
		}
		r, size := unescape(raw[i:])
		n := len(text)
		text = utf8.AppendRune(text, r)
		for range len(text) - n {
			at = append(at, i)
		}
		i += size
	}
	return text, append(at, len(raw))
}

// unescape returns the character of the escape that raw begins with, and how long the
// escape is. What is no escape is U+FFFD.
func unescape(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return utf8.RuneError, len(raw)
	}
	switch raw[1] {
	case 'n':
		return '\n', 2
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case '"', '\\', '/':
		return rune(raw[1]), 2
	case 'u':
		r, ok := hex(raw)
		if !ok {
			return utf8.RuneError, 2
		}
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if low, ok := hex(raw[6:]); ok {
			if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
				return full, 12
			}
		}
		return utf8.RuneError, 6
	}
	return utf8.RuneError, 2
}

// hex reads \uXXXX.
func hex(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range raw[2:6] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}
