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

// word is a Word with its replacements as they are written between the quotes of a JSON
// string. All edits share them.
type word struct {
	Word
	to, lower, upper []byte
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
	raw := w.s.Bytes(p)
	text := decode(raw)
	at := place{raw: raw}
	inside := false // the character before i belongs to a word
	for i := 0; i < len(text) && !w.full(); {
		r, size := utf8.DecodeRune(text[i:])
		if !inside && isWord(r) {
			if rule := w.m.match(text, i); rule != nil {
				end := i + len(rule.From)
				from, to := at.of(i), at.of(end)
				w.edit(p.From+from, to-from, rule.replacement(text[i:end]))
				i = end
				inside = true // whatever it was replaced by
				continue
			}
		}
		inside = isWord(r)
		i += size
	}
}

// match returns the first rule that applies at i.
func (m *Messages) match(text []byte, i int) *word {
	for n := range m.words {
		rule := &m.words[n]
		end := i + len(rule.From)
		if end > len(text) {
			continue
		}
		found := string(text[i:end])
		if found != rule.From && (rule.Case == Exact || !strings.EqualFold(found, rule.From)) {
			continue
		}
		if next, _ := utf8.DecodeRune(text[end:]); !isWord(next) && !isPath(text, i, end) {
			return rule
		}
	}
	return nil
}

func (w *word) replacement(found []byte) []byte {
	switch {
	case w.Case != Keep:
	case bytes.Equal(found, bytes.ToLower(found)):
		return w.lower
	case len(found) > 1 && bytes.Equal(found, bytes.ToUpper(found)):
		return w.upper
	}
	return w.to
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
	if bytes.ContainsAny(before, `/\@`) || bytes.ContainsAny(after, `/\@`) || bytes.HasSuffix(before, []byte(".")) {
		return true
	}
	rest, dotted := bytes.CutPrefix(after, []byte("."))
	next, _ := utf8.DecodeRune(rest)
	return dotted && isWord(next)
}

// breaks end a path.
const breaks = " \t\r\n\"'`()[]{}<>,;|*"

// decode returns what a string says that is written as raw between its quotes: raw itself
// if nothing is escaped.
func decode(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	text := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			text = append(text, raw[i])
			i++
			continue
		}
		r, size := unescape(raw[i:])
		text = utf8.AppendRune(text, r)
		i += size
	}
	return text
}

// place finds places of decoded text in raw. It only goes forward.
type place struct {
	raw      []byte
	at, text int // the same place in raw and in the text
}

// of returns where in raw the byte i of the text comes from.
func (p *place) of(i int) int {
	for p.text < i {
		if p.raw[p.at] != '\\' {
			p.at++
			p.text++
			continue
		}
		r, size := unescape(p.raw[p.at:])
		p.at += size
		p.text += utf8.RuneLen(r)
	}
	return p.at
}

// unescape returns the character of the escape that raw begins with, and the length of the
// escape. The character is U+FFFD if there is none.
func unescape(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return utf8.RuneError, len(raw)
	}
	if i := strings.IndexByte(`"\/bfnrt`, raw[1]); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), 2
	}
	r, ok := unhex(raw)
	if !ok {
		return utf8.RuneError, 2
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, _ := unhex(raw[6:])
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return r, 6
	}
	return r, 12
}

// unhex reads \uXXXX.
func unhex(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[2:6]), 16, 32)
	return rune(n), err == nil
}
