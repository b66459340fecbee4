package transform

import (
	"fmt"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// system edits the system prompt, which is the next value: a string, an array of blocks, or
// null.
func (w *walk) system() {
	first := w.m.system
	switch w.s.Kind() {
	case '"':
		p, ok := w.s.String()
		switch {
		case !ok:
		case len(first) == 0:
			w.replaceWords(p)
		case p.From == p.To || w.s.Is(p, w.m.texts[0]): // the API refuses empty blocks, and one copy is enough
			w.edit(p.From-1, p.To-p.From+2, fmt.Appendf(nil, "[%s]", first))
		default:
			w.edit(p.From-1, 0, fmt.Appendf(nil, `[%s,{"type":"text","text":`, first))
			w.replaceWords(p)
			w.edit(p.To+1, 0, []byte("}]"))
		}
	case '[':
		at, n, same := w.s.At()+1, 0, 0
		for range w.s.Elements() {
			if w.full() {
				return
			}
			if n == same && same < len(w.m.texts) && w.isBlock(w.m.texts[same]) {
				same++
				w.s.Skip()
				at = w.s.At()
			} else {
				w.block()
			}
			n++
		}
		switch first := blocks(w.m.texts[same:]); {
		case len(first) == 0:
		case same > 0:
			w.edit(at, 0, append([]byte(","), first...))
		case n == 0:
			w.edit(at, 0, first)
		default:
			w.edit(at, 0, append(first, ','))
		}
	case 'n':
		p := w.s.Skip()
		if len(first) > 0 && string(w.s.Bytes(p)) == "null" {
			w.edit(p.From, p.To-p.From, fmt.Appendf(nil, "[%s]", first))
		}
	}
}

// insertSystem adds a system prompt to a request without one; start is behind the request's
// opening brace.
func (w *walk) insertSystem(start int) {
	comma := ","
	if s := scan.New(w.body[start:]); s.Kind() == '}' {
		comma = ""
	}
	w.edit(start, 0, fmt.Appendf(nil, `"system":[%s]%s`, w.m.system, comma))
}

// isBlock reports whether the next value is a block of this text.
func (w *walk) isBlock(text string) bool {
	s, found := w.s, false
	for name := range s.Members() {
		if s.Is(name, "text") {
			p, ok := s.String()
			found = ok && s.Is(p, text)
		}
	}
	return found
}

// block replaces words in the text of a block.
func (w *walk) block() {
	for name := range w.s.Members() {
		if w.s.Is(name, "text") {
			if p, ok := w.s.String(); ok {
				w.replaceWords(p)
			}
		}
	}
}

func (w *walk) edit(at, remove int, insert []byte) {
	w.edits = append(w.edits, Edit{at, remove, insert})
}
