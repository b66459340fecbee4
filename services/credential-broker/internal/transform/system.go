package transform

import "signalbox.dev/services/credential-broker/internal/scan"

// system edits the system prompt, which comes next: a string, an array of blocks, or
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
		case p.From == p.To || string(scan.Text(w.s.Bytes(p))) == w.m.texts[0]: // the API takes no empty block, and one is enough
			w.edit(p.From-1, p.To-p.From+2, list(first))
		default:
			w.edit(p.From-1, 0, join("[", first, `,{"type":"text","text":`))
			w.replaceWords(p)
			w.edit(p.To+1, 0, []byte("}]"))
		}
	case '[':
		w.s.Array()
		at, n, same := w.s.At(), 0, 0
		for ; w.s.Element() && !w.full(); n++ {
			if n == same && same < len(w.m.texts) && w.says(w.m.texts[same]) {
				same++
				w.s.Skip()
				at = w.s.At()
				continue
			}
			w.block()
		}
		switch first := blocks(w.m.texts[same:]); {
		case len(first) == 0:
		case same > 0:
			w.edit(at, 0, join(",", first, ""))
		case n == 0:
			w.edit(at, 0, first)
		default:
			w.edit(at, 0, join("", first, ","))
		}
	case 'n':
		p := w.s.Skip()
		if len(first) > 0 && string(w.s.Bytes(p)) == "null" {
			w.edit(p.From, p.To-p.From, list(first))
		}
	default:
		w.s.Skip()
	}
}

// insertSystem gives a request its system prompt that has none; start is behind the
// request's opening brace.
func (w *walk) insertSystem(start int) {
	comma := ","
	if s := scan.New(w.body[start:]); s.Kind() == '}' {
		comma = ""
	}
	w.edit(start, 0, join(`"system":[`, w.m.system, "]"+comma))
}

// says reports whether the block that comes next is one of this text.
func (w *walk) says(text string) bool {
	s, found := w.s, false
	if !s.Object() {
		return false
	}
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		if s.Is(name, "text") {
			p, isString := s.String()
			if found = isString && s.Is(p, text); isString {
				continue
			}
		}
		s.Skip()
	}
	return found
}

// block replaces words in the text of a block.
func (w *walk) block() {
	if !w.s.Object() {
		w.s.Skip()
		return
	}
	for name, ok := w.s.Member(); ok; name, ok = w.s.Member() {
		if w.s.Is(name, "text") {
			if p, ok := w.s.String(); ok {
				w.replaceWords(p)
				continue
			}
		}
		w.s.Skip()
	}
}

func (w *walk) edit(at, remove int, insert []byte) {
	w.edits = append(w.edits, Edit{at, remove, insert})
}

func list(blocks []byte) []byte { return join("[", blocks, "]") }

func join(before string, blocks []byte, after string) []byte {
	return append(append([]byte(before), blocks...), after...)
}
