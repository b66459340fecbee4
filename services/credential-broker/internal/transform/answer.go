package transform

import "signalbox.dev/services/credential-broker/internal/scan"

// Answers takes the prefix off the names of tools in the answers to one request.
type Answers struct {
	prefix []byte
	keep   names // of the provider's own tools
}

// ToolStart is the name of the events that begin a block, the only ones in which a
// tool's name stands.
const ToolStart = "content_block_start"

// Event adds to cuts what is to be taken out of the data of an event, in the order of
// the places: nothing, most of the time. It does not allocate where cuts has room. Data
// that was cut short is edited as far as it goes.
func (a *Answers) Event(data []byte, cuts []scan.Span) []scan.Span {
	s := scan.New(data)
	if !s.Object() {
		return cuts
	}
	before := len(cuts)
	starts, tool := false, false
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		switch {
		case s.Is(name, "type"):
			if p, ok := s.String(); ok {
				starts = s.Is(p, ToolStart)
				continue
			}
			s.Skip()
		case s.Is(name, "content_block"):
			cuts, tool = named(&s, "tool_use", cuts[:before])
		default:
			s.Skip()
		}
	}
	if !starts || !tool {
		return cuts[:before]
	}
	return a.prefixes(data, cuts, before)
}

// Whole does the same for the body of an answer that is not streamed.
func (a *Answers) Whole(body []byte) Edits {
	s := scan.New(body)
	if !s.Object() {
		return nil
	}
	var cuts []scan.Span
	for name, ok := s.Member(); ok; name, ok = s.Member() {
		if !s.Is(name, "content") || !s.Array() {
			s.Skip()
			continue
		}
		for s.Element() {
			before := len(cuts)
			var tool bool
			if cuts, tool = named(&s, "tool_use", cuts); !tool {
				cuts = cuts[:before]
			}
		}
	}
	if s.Bad() {
		return nil
	}
	var edits Edits
	for _, cut := range a.prefixes(body, cuts, 0) {
		edits = append(edits, Edit{At: cut.From, Remove: cut.To - cut.From})
	}
	return edits
}

// prefixes makes of the names in cuts[from:] the places of their prefixes. Names
// without one are left out.
func (a *Answers) prefixes(data []byte, cuts []scan.Span, from int) []scan.Span {
	out := cuts[:from]
	for _, name := range cuts[from:] {
		raw := data[name.From:name.To]
		n := a.length(raw)
		if n == 0 || a.keep.has(raw) {
			continue
		}
		out = append(out, scan.Span{From: name.From, To: name.From + n})
	}
	return out
}

// length returns how many bytes of a raw name the prefix takes, 0 where the name does
// not begin with it.
func (a *Answers) length(raw []byte) int {
	i := 0
	for _, c := range a.prefix {
		switch {
		case i < len(raw) && raw[i] == c:
			i++
		case i < len(raw) && raw[i] == '\\':
			r, size := unescape(raw[i:])
			if r != rune(c) {
				return 0
			}
			i += size
		default:
			return 0
		}
	}
	return i
}
