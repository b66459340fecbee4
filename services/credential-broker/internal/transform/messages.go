package transform

import (
	"fmt"

	"signalbox.dev/services/credential-broker/internal/scan"
)

// Rules say what to change. The zero Rules change nothing.
type Rules struct {
	// ToolPrefix is put before the names of custom tools: letters, digits, - and _.
	ToolPrefix string
	// System are texts that become the first blocks of the system prompt. Those that the
	// caller's own begins with are not added again.
	System []string
	// Words are replaced in the caller's own system prompt.
	Words []Word
}

// Messages edits bodies of Anthropic's Messages API.
type Messages struct {
	prefix []byte
	texts  []string
	system []byte // the texts as comma-separated text blocks
	words  []word
}

// NewMessages returns nil if the rules change nothing.
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

// blocks returns comma-separated text blocks.
func blocks(texts []string) []byte {
	var out []byte
	for i, text := range texts {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, `{"type":"text","text":"%s"}`, scan.Quote(text))
	}
	return out
}

// Request returns the edits that a request needs, and the Answers that go with it; nil if
// answers stay as they are. The only error is ErrTooMany.
func (m *Messages) Request(body []byte) (Edits, *Answers, error) {
	w := walk{m: m, s: scan.New(body), body: body, keep: map[string]bool{}}
	if err := w.request(); err != nil {
		return nil, nil, err
	}
	if len(m.prefix) == 0 {
		return w.edits, nil, nil
	}
	return w.edits, &Answers{prefix: m.prefix, keep: w.keep}, nil
}

// walk goes through a request once. Whether a name in the history is prefixed depends on
// the tools, which may follow it, so that names are only collected.
type walk struct {
	m    *Messages
	s    scan.Scanner
	body []byte

	edits Edits
	own   []scan.Span     // names of custom tools
	used  []scan.Span     // names in the history and in tool_choice
	keep  map[string]bool // names of the provider's tools
	err   error
}

func (w *walk) request() error {
	if w.s.Kind() != '{' {
		return nil
	}
	start := w.s.At() + 1
	system := false
	for name := range w.s.Members() {
		switch {
		case w.s.Is(name, "system"):
			system = true
			w.system()
		case len(w.m.prefix) == 0:
		case w.s.Is(name, "tools"):
			w.tools()
		case w.s.Is(name, "messages"):
			w.messages()
		case w.s.Is(name, "tool_choice"):
			w.use("tool")
		}
		if w.err != nil {
			return w.err
		}
	}
	if w.s.Bad() || w.s.Rest() {
		w.edits, w.keep = nil, nil
		return nil
	}
	if !system && len(w.m.system) > 0 {
		w.insertSystem(start)
	}
	for _, name := range w.own {
		w.edit(name.From, 0, w.m.prefix)
	}
	for _, name := range w.used {
		if !w.keep[string(scan.Text(w.s.Bytes(name)))] {
			w.edit(name.From, 0, w.m.prefix)
		}
	}
	if len(w.edits) > maxEdits {
		return ErrTooMany
	}
	w.edits.sort()
	return nil
}

// full stops the walk when more was collected than can be edited.
func (w *walk) full() bool {
	if w.err == nil && len(w.edits)+len(w.own)+len(w.used)+len(w.keep) > maxEdits {
		w.err = ErrTooMany
	}
	return w.err != nil
}

func (w *walk) tools() {
	for range w.s.Elements() {
		if w.full() {
			return
		}
		found, custom := toolNames(&w.s, "custom", nil)
		if custom {
			w.own = append(w.own, found...)
			continue
		}
		for _, name := range found {
			w.keep[string(scan.Text(w.s.Bytes(name)))] = true
		}
	}
}

func (w *walk) messages() {
	for range w.s.Elements() {
		for name := range w.s.Members() {
			if !w.s.Is(name, "content") {
				continue
			}
			for range w.s.Elements() {
				if w.full() {
					return
				}
				w.use("tool_use")
			}
		}
		if w.full() {
			return
		}
	}
}

// use collects the names in the next value if it is an object of that type.
func (w *walk) use(typ string) {
	if found, is := toolNames(&w.s, typ, w.used); is {
		w.used = found
	}
}

// toolNames reads the next value, appends the places of its members "name" that are
// strings, and reports whether it is an object of that type. A tool without a type is
// custom. If a member is there twice, parsers differ: the last type counts, and all names.
func toolNames(s *scan.Scanner, typ string, places []scan.Span) ([]scan.Span, bool) {
	is := typ == "custom" && s.Kind() == '{'
	for name := range s.Members() {
		switch {
		case s.Kind() != '"':
		case s.Is(name, "type"):
			p, _ := s.String()
			is = s.Is(p, typ)
		case s.Is(name, "name"):
			if p, ok := s.String(); ok {
				places = append(places, p)
			}
		}
	}
	return places, is
}
