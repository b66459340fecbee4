package proxy

import (
	"bytes"
	"strings"
)

// hidden stands where a credential was. What is overwritten keeps its length, so that
// neither the places of events in a buffer nor a Content-Length change; stars fill it up.
const hidden = "[redacted]"

// A shorter credential than minEcho cannot be told from other text. One of less than
// minInText is hidden in what is an error for sure, and nowhere else: people give model
// servers of their own keys such as "not-needed", which an answer may well say.
const (
	minEcho   = 8
	minInText = 20
)

// echoes finds the credential that a request was sent with in its answer: providers
// quote keys that they refuse, and gateways do so in places where nobody looks for an
// error. It looks for the bytes that were sent, also as JSON writes them; one that the
// provider has cut, masked, compressed or encoded otherwise is not found. The zero
// echoes find nothing.
type echoes struct {
	forms   []needle
	longest int  // form, in bytes
	inText  bool // it is long enough to be hidden wherever it is
}

// needle is one form, with the place of its rarest byte: looking for that one first
// costs a stream next to nothing.
type needle struct {
	text []byte
	rare int
}

func newEchoes(secret string) echoes {
	if len(secret) < minEcho {
		return echoes{}
	}
	e := echoes{inText: len(secret) >= minInText}
	e.add(secret)
	// A secret holds printable characters of ASCII. Of those JSON escapes two; servers in
	// PHP escape the slash, those in Go and .NET what means something in HTML.
	for _, escapes := range jsonEscapes {
		e.add(escapes.Replace(secret))
	}
	return e
}

var jsonEscapes = []*strings.Replacer{
	strings.NewReplacer(`"`, `\"`, `\`, `\\`),
	strings.NewReplacer(`"`, `\"`, `\`, `\\`, `/`, `\/`),
	strings.NewReplacer(`"`, `\"`, `\`, `\\`, `<`, `\u003c`, `>`, `\u003e`, `&`, `\u0026`),
	strings.NewReplacer(`"`, `\u0022`, `\`, `\\`, `<`, `\u003C`, `>`, `\u003E`, `&`, `\u0026`, `+`, `\u002B`, `'`, `\u0027`, "`", `\u0060`),
}

func (e *echoes) add(form string) {
	for _, n := range e.forms {
		if string(n.text) == form {
			return
		}
	}
	e.forms = append(e.forms, needle{text: []byte(form), rare: rarest(form)})
	e.longest = max(e.longest, len(form))
}

// common are bytes of JSON that holds text, the most common ones first.
const common = `"` + " etaoinshrdlcumfpgwybvk,:_-{}.0123456789xjqz/"

// rarest returns the index of the byte that events and texts have least of.
func rarest(s string) (at int) {
	best := -1
	for i := range len(s) {
		rank := strings.IndexByte(common, s[i])
		if rank < 0 { // capitals, above all
			return i
		}
		if rank > best {
			best, at = rank, i
		}
	}
	return at
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

// hideAll is hide for an error, where short credentials are looked for too.
func (e *echoes) hideAll(b []byte) {
	for i := range e.forms {
		n := &e.forms[i]
		for rest := b; ; {
			at := n.index(rest)
			if at < 0 {
				break
			}
			redact(rest[at : at+len(n.text)])
			rest = rest[at+len(n.text):]
		}
	}
}

func redact(b []byte) {
	for i := range b {
		b[i] = '*'
	}
	if len(b) >= len(hidden) {
		copy(b, hidden)
	}
}

// held returns how many bytes at the end of b may be the beginning of what hide would
// overwrite, whose rest has not come yet.
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
