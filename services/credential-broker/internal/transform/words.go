package transform

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"
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

// replaceWords edits the string at p if a word in it is replaced. A string that is not valid
// JSON is left alone.
func (w *walk) replaceWords(p scan.Span) {
	var text string
	if len(w.m.words) == 0 || json.Unmarshal(w.body[p.From-1:p.To+1], &text) != nil {
		return
	}
	if out, changed := w.m.replace([]byte(text)); changed {
		w.edit(p.From, p.To-p.From, scan.Quote(out))
	}
}

// replace replaces words. At each place the first rule that matches counts, and its
// replacement is not searched again.
func (m *Messages) replace(text []byte) (out string, changed bool) {
	var b strings.Builder
	done := 0       // of text
	inside := false // the character before i belongs to a word
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if !inside && isWord(r) {
			if rule := m.match(text, i); rule != nil {
				end := i + len(rule.From)
				b.Write(text[done:i])
				b.WriteString(rule.replacement(text[i:end]))
				i, done = end, end
				inside = true // whatever it was replaced by
				continue
			}
		}
		inside = isWord(r)
		i += size
	}
	b.Write(text[done:])
	return b.String(), done > 0
}

// match returns the first rule that applies at i.
func (m *Messages) match(text []byte, i int) *Word {
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

func (w *Word) replacement(found []byte) string {
	switch {
	case w.Case != Keep:
	case bytes.Equal(found, bytes.ToLower(found)):
		return strings.ToLower(w.To)
	case len(found) > 1 && bytes.Equal(found, bytes.ToUpper(found)):
		return strings.ToUpper(w.To)
	}
	return w.To
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
