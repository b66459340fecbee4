package proxy

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
)

// hidden replaces a credential. The length stays, so that neither the places of events in a
// buffer nor a Content-Length change; asterisks fill it up.
const hidden = "[redacted]"

// A credential shorter than minEcho cannot be told from other text. One shorter than minInText
// is hidden only in errors: people give their own model servers keys such as "not-needed",
// which an answer may well say.
const (
	minEcho   = 8
	minInText = 20
)

// echoes finds the credential of a request in its answer: providers quote keys that they
// refuse, and gateways do so where nobody looks for an error. It finds the bytes that were
// sent, also as JSON escapes them, but not a credential that the provider shortened, masked or
// encoded otherwise. The zero echoes find nothing.
type echoes struct {
	forms   []needle
	longest int  // form, in bytes
	inText  bool // it is long enough to be hidden everywhere
}

// needle is one form. Searching for a byte that is rare in text first costs a stream next to
// nothing.
type needle struct {
	text []byte
	rare int // its index
}

// jsonEscapes write a secret, which is printable ASCII, as servers do: most escape only what
// JSON requires; those in PHP escape the slash, those in Go and .NET what means something in
// HTML.
var jsonEscapes = []*strings.Replacer{
	strings.NewReplacer(),
	strings.NewReplacer(`"`, `\"`, `\`, `\\`),
	strings.NewReplacer(`"`, `\"`, `\`, `\\`, `/`, `\/`),
	strings.NewReplacer(`"`, `\"`, `\`, `\\`, `<`, `\u003c`, `>`, `\u003e`, `&`, `\u0026`),
	strings.NewReplacer(`"`, `\u0022`, `\`, `\\`, `<`, `\u003C`, `>`, `\u003E`, `&`, `\u0026`, `+`, `\u002B`, `'`, `\u0027`, "`", `\u0060`),
}

func newEchoes(secret string) echoes {
	if len(secret) < minEcho {
		return echoes{}
	}
	e := echoes{inText: len(secret) >= minInText}
	for _, escapes := range jsonEscapes {
		form := []byte(escapes.Replace(secret))
		if slices.ContainsFunc(e.forms, func(n needle) bool { return bytes.Equal(n.text, form) }) {
			continue
		}
		rare := bytes.IndexFunc(form, unicode.IsUpper)
		if rare < 0 {
			rare = len(form) - 1
		}
		e.forms = append(e.forms, needle{form, rare})
		e.longest = max(e.longest, len(form))
	}
	return e
}

// index returns where the needle is in b, or -1.
func (n *needle) index(b []byte) int {
	rare := n.text[n.rare]
	for at := n.rare; at < len(b); at++ {
		i := bytes.IndexByte(b[at:], rare)
		if i < 0 {
			return -1
		}
		at += i
		if bytes.HasPrefix(b[at-n.rare:], n.text) {
			return at - n.rare
		}
	}
	return -1
}

// hide overwrites the credential in a piece of an answer, if it is not too short.
func (e *echoes) hide(b []byte) {
	if e.inText {
		e.hideAll(b)
	}
}

// hideAll is hide for errors, in which short credentials are hidden too.
func (e *echoes) hideAll(b []byte) {
	for i := range e.forms {
		n := &e.forms[i]
		for rest := b; ; {
			at := n.index(rest)
			if at < 0 {
				break
			}
			found := rest[at : at+len(n.text)]
			copy(found, bytes.Repeat([]byte("*"), len(found)))
			if len(found) >= len(hidden) {
				copy(found, hidden)
			}
			rest = rest[at+len(found):]
		}
	}
}

// held returns how many bytes at the end of b may begin a credential whose rest has not
// arrived yet.
func (e *echoes) held(b []byte) (most int) {
	if !e.inText {
		return 0
	}
	for i := range e.forms {
		text := e.forms[i].text
		for n := min(len(text)-1, len(b)); n > most; n-- {
			if bytes.HasSuffix(b, text[:n]) {
				most = n
			}
		}
	}
	return most
}
