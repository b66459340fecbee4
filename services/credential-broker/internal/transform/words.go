package transform

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// Case says how a word's case matters, for finding and for replacing it.
type Case string

// The cases.
const (
	Exact Case = "exact" // found as written, replaced by what is written
	Any   Case = "any"   // found in any case, replaced by what is written
	Keep  Case = "keep"  // found in any case; all lower or all upper case stays so
)

// Word is one substitution. From begins and ends with a letter or a digit and may have
// anything in between. Only whole words are replaced: with no letter, digit or underscore
// beside them, and not inside a path or a dotted name (/etc/name-x, name.json,
// https://name.dev).
type Word struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
	Case Case   `yaml:"case"`
}

type word struct {
	Word
	to, toLower, toUpper []byte // as written between the quotes of a JSON string
}

func newWord(w Word) word {
	return word{w, scan.Quote(w.To), scan.Quote(strings.ToLower(w.To)), scan.Quote(strings.ToUpper(w.To))}
}

// replaceWords adds an edit for each word to replace in the string at p. At each place the
// first rule that matches counts, and its replacement is not searched again.
func (w *walk) replaceWords(p scan.Span) {
	if len(w.m.words) == 0 {
		return
	}
	text, at := decode(w.s.Bytes(p))
	inside := false // the character before i belongs to a word
	for i := 0; i < len(text) && !w.full(); {
		r, size := utf8.DecodeRune(text[i:])
		if !inside && isWord(r) {
			if rule, to := w.m.match(text, i); rule != nil {
				end := i + len(rule.From)
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

// match returns the first rule that applies at i, and the replacement.
func (m *Messages) match(text []byte, i int) (*word, []byte) {
	for n := range m.words {
		rule := &m.words[n]
		end := i + len(rule.From)
		if end > len(text) {
			continue
		}
		found := text[i:end]
		if string(found) != rule.From && (rule.Case == Exact || !strings.EqualFold(string(found), rule.From)) {
			continue
		}
		if r, _ := utf8.DecodeRune(text[end:]); end < len(text) && isWord(r) || isPath(text, i, end) {
			continue
		}
		switch {
		case rule.Case != Keep:
		case bytes.Equal(found, bytes.ToLower(found)):
			return rule, rule.toLower
		case len(found) > 1 && bytes.Equal(found, bytes.ToUpper(found)):
			return rule, rule.toUpper
		}
		return rule, rule.to
	}
	return nil, nil
}

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// maxPath bounds how far around a word a path is looked for.
const maxPath = 512

// isPath reports whether text[i:end] is part of a path, an address or a dotted name.
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
	if bytes.HasSuffix(before, []byte(".")) {
		return true
	}
	rest, dotted := bytes.CutPrefix(after, []byte("."))
	next, _ := utf8.DecodeRune(rest)
	return dotted && isWord(next)
}

// breaks end a path.
const breaks = " \t\r\n\"'`()[]{}<>,;|*"

// offsets maps each byte of a decoded string to its place in the raw one; nil if they are
// the same.
type offsets []int

func (o offsets) of(i int) int {
	if o == nil {
		return i
	}
	return o[i]
}

// decode returns what a raw string says, and where each byte of it, and its end, is in raw.
func decode(raw []byte) ([]byte, offsets) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw, nil
	}
	text := make([]byte, 0, len(raw))
	at := make(offsets, 0, len(raw)+1)
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

// unescape returns the character of the escape that raw begins with, and the length of the
// escape. An invalid escape is U+FFFD.
func unescape(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return utf8.RuneError, len(raw)
	}
	if i := strings.IndexByte(`ntrbf"\/`, raw[1]); i >= 0 {
		return rune("\n\t\r\b\f\"\\/"[i]), 2
	}
	r, ok := unescapeHex(raw)
	if !ok {
		return utf8.RuneError, 2
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if low, ok := unescapeHex(raw[6:]); ok {
		if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
			return full, 12
		}
	}
	return utf8.RuneError, 6
}

// unescapeHex reads \uXXXX.
func unescapeHex(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(raw[2:6]), 16, 32)
	return rune(r), err == nil
}
