package transform

import "signalbox.dev/services/credential-broker/internal/scan"

// Answers removes the prefix from tool names in the answers to one request.
type Answers struct {
	prefix []byte
	keep   map[string]bool // names of the provider's own tools
}

// ToolStart is the name of the events that begin a block: no other event names a tool.
const ToolStart = "content_block_start"

// Event appends to cuts the places to remove from the data of an event, in order: mostly
// none. It does not allocate if cuts has room. Truncated data is edited as far as it goes.
func (a *Answers) Event(data []byte, cuts []scan.Span) []scan.Span {
	s := scan.New(data)
	before := len(cuts)
	starts, tool := false, false
	for name := range s.Members() {
		switch {
		case s.Is(name, "type"):
			p, _ := s.String()
			starts = s.Is(p, ToolStart)
		case s.Is(name, "content_block"):
			cuts, tool = toolNames(&s, "tool_use", cuts[:before])
		}
	}
	if !starts || !tool {
		return cuts[:before]
	}
	return a.prefixes(data, cuts, before)
}

// Whole returns the edits for the body of an answer that is not streamed.
func (a *Answers) Whole(body []byte) Edits {
	s := scan.New(body)
	var cuts []scan.Span
	for name := range s.Members() {
		if !s.Is(name, "content") {
			continue
		}
		for range s.Elements() {
			if found, tool := toolNames(&s, "tool_use", cuts); tool {
				cuts = found
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

// prefixes replaces the names in cuts[from:] by the places of their prefixes, and drops
// names that have none.
func (a *Answers) prefixes(data []byte, cuts []scan.Span, from int) []scan.Span {
	out := cuts[:from]
	for _, name := range cuts[from:] {
		raw := data[name.From:name.To]
		if n := a.prefixLen(raw); n > 0 && !a.keep[string(scan.Text(raw))] {
			out = append(out, scan.Span{From: name.From, To: name.From + n})
		}
	}
	return out
}

// prefixLen returns how many bytes of a raw name the prefix takes, 0 if the name does not
// begin with it. Each of its characters may be written as \uXXXX.
func (a *Answers) prefixLen(raw []byte) int {
	i := 0
	for _, c := range a.prefix {
		switch {
		case i < len(raw) && raw[i] == c:
			i++
		case i+6 <= len(raw) && string(scan.Text(raw[i:i+6])) == string(rune(c)):
			i += 6
		default:
			return 0
		}
	}
	return i
}
