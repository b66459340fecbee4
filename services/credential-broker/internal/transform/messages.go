package transform

import (
	"bytes"
	"encoding/json"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// Rules are what is changed. The zero Rules change nothing.
type Rules struct {
	// ToolPrefix is put before the names of custom tools: letters, digits, - and _.
	ToolPrefix string
	// System are texts that become the first blocks of the system prompt. Those that the
	// caller's own begins with are not put there again.
	System []string
	// Words are replaced in the caller's own system prompt.
	Words []Word
}

// Messages edits bodies of Anthropic's Messages API.
type Messages struct {
	prefix []byte
	texts  []string
	system []byte // text blocks of them, with commas between them
	words  []word
}

// NewMessages returns what the rules make, nil if they change nothing.
func NewMessages(r Rules) *Messages {
	if r.ToolPrefix == "" && len(r.System) == 0 && len(r.Words) == 0 {
		return nil
	}
	m := &Messages{prefix: []byte(r.ToolPrefix), texts: r.System, system: blocks(r.System)}
	for _, w := range r.Words {
		m.words = append(m.words, newWord(w))
	}
	return m
}

// blocks returns text blocks with commas between them.
func blocks(texts []string) []byte {
	var out []byte
	for i, text := range texts {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, `{"type":"text","text":`...), quote(text)...), '}')
	}
	return out
}

// quote returns a text as a JSON string.
func quote(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string always encodes
	return bytes.TrimRight(b.Bytes(), "\n")
}

// Request returns the edits that a request needs, and the Answers that go with it. The
// only error is ErrTooMany.
func (m *Messages) Request(body []byte) (Edits, *Answers, error) {
	w := walk{m: m, s: scan.New(body), body: body}
	if err := w.request(); err != nil {
		return nil, nil, err
	}
	if len(m.prefix) == 0 {
		return w.edits, nil, nil
	}
	return w.edits, &Answers{prefix: m.prefix, keep: w.keep}, nil
}

// names is a set of tools' names, nil for none.
type names map[string]struct{}

// add adds a name as it stands between its quotes.
func (n *names) add(raw []byte) {
	if *n == nil {
		*n = names{}
	}
	(*n)[string(scan.Text(raw))] = struct{}{}
}

func (n names) has(raw []byte) bool {
	if len(n) == 0 {
		return false
	}
	_, ok := n[string(scan.Text(raw))]
	return ok
}

// walk goes once through a request. What is to be done about a name of the history
// depends on the tools, which may stand behind it, so that names are only noted.
type walk struct {
	m    *Messages
	s    scan.Scanner
	body []byte

	edits Edits
	own   []scan.Span // names of custom tools
	used  []scan.Span // names in the history and in tool_choice
	keep  names       // of the provider's tools
	last  []scan.Span // names of the object that was read last
	err   error
}

func (w *walk) request() error {
	if !w.s.Object() {
		return nil
	}
	start := w.s.At()
	system := false
	for name, ok := w.s.Member(); ok && w.err == nil; name, ok = w.s.Member() {
		switch {
		case len(w.m.prefix) > 0 && w.s.Is(name, "tools"):
			w.tools()
		case len(w.m.prefix) > 0 && w.s.Is(name, "messages"):
			w.messages()
		case len(w.m.prefix) > 0 && w.s.Is(name, "tool_choice"):
			if w.named("tool") {
				w.used = append(w.used, w.last...)
			}
		case w.s.Is(name, "system"):
			system = true
			w.system()
		default:
			w.s.Skip()
		}
	}
	if w.err != nil {
		return w.err
	}
	if w.s.Bad() || w.s.Rest() {
		w.edits, w.keep = nil, nil
		return nil
	}
	if !system && len(w.m.system) > 0 {
		w.insertSystem(start)
	}
	w.prefix(w.own, false)
	w.prefix(w.used, true)
	if len(w.edits) > maxEdits {
		return ErrTooMany
	}
	w.edits.sort()
	return nil
}

// prefix notes an edit for each name, but for the provider's tools where they can be
// among them.
func (w *walk) prefix(places []scan.Span, mixed bool) {
	for _, name := range places {
		if mixed && w.keep.has(w.s.Bytes(name)) {
			continue
		}
		w.edits = append(w.edits, Edit{At: name.From, Insert: w.m.prefix})
	}
}

// full stops the walk when more was noted than can be done.
func (w *walk) full() bool {
	if w.err == nil && len(w.edits)+len(w.own)+len(w.used)+len(w.keep) > maxEdits {
		w.err = ErrTooMany
	}
	return w.err != nil
}

func (w *walk) tools() {
	if !w.s.Array() {
		w.s.Skip()
		return
	}
	for w.s.Element() && !w.full() {
		if w.named("custom") {
			w.own = append(w.own, w.last...)
			continue
		}
		for _, name := range w.last {
			w.keep.add(w.s.Bytes(name))
		}
	}
}

func (w *walk) messages() {
	if !w.s.Array() {
		w.s.Skip()
		return
	}
	for w.s.Element() && !w.full() {
		if !w.s.Object() {
			w.s.Skip()
			continue
		}
		for name, ok := w.s.Member(); ok; name, ok = w.s.Member() {
			if !w.s.Is(name, "content") || !w.s.Array() {
				w.s.Skip()
				continue
			}
			for w.s.Element() && !w.full() {
				if w.named("tool_use") {
					w.used = append(w.used, w.last...)
				}
			}
		}
	}
}

// named reads a value, notes in w.last where the strings of its members "name" are,
// and reports whether it is an object of that type. A tool without a type is custom.
func (w *walk) named(typ string) bool {
	var kind bool
	w.last, kind = named(&w.s, typ, w.last[:0])
	return kind
}

// named is shared by requests and answers. What a parser makes of a member that is
// there twice is nobody's promise: of types the last one counts, and of names all.
func named(s *scan.Scanner, typ string, places []scan.Span) ([]scan.Span, bool) {
	if !s.Object() {
		s.Skip()
		return places, false
	}
	is := typ == "custom"
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch {
		case s.Is(name, "type"):
			if p, ok := s.String(); ok {
				is = s.Is(p, typ)
				continue
			}
		case s.Is(name, "name"):
			if p, ok := s.String(); ok {
				places = append(places, p)
				continue
			}
		}
		s.Skip()
	}
	return places, is
}
