package llm

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"

	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// Turn is a message of the conversation prepared for encoding: calls have their results, and
// missing results are synthesized.
type Turn struct {
	Role    Role // user, assistant or system
	Message int  // its index in Request.Messages

	// Parts are the parts of the message. Tool calls of an assistant's turn are in Calls.
	Parts []modelmsg.Part
	// Raw is the answer in the provider's own form, to be sent unchanged. It is nil if the
	// answer came from elsewhere, so that Parts and Calls must be converted.
	Raw json.RawMessage
	// Calls are the answer's tool calls, each with its Result.
	Calls []Call
}

// Call is a tool call with what came of it.
type Call struct {
	ID     string // as it goes on the wire
	Name   string
	Input  json.RawMessage
	Output modelmsg.Output
}

// Wire is what Turns needs to know of a dialect.
type Wire struct {
	Dialect string
	// Calls returns the ids of the calls in raw blocks, in order, and whether the blocks can be
	// decoded.
	Calls func(raw json.RawMessage) (ids []string, ok bool)
	// IDByte reports whether a byte may be in a tool call id; MaxID bounds its length.
	IDByte func(byte) bool
	MaxID  int
}

const unfinished = `{"error":"This call has no result: the run was stopped or interrupted before it was done. Whether it had an effect is not known."}`

// Turns prepares stored messages for a dialect. Each call of an assistant's turn gets the
// result that is stored between it and the next answer. A call without a result gets an error
// that says so; a result without a call is left out. Raw is kept only if the dialect is the
// same and its calls match the content's. Converted call ids are valid in the dialect and
// unique.
func Turns(msgs []Message, wire Wire) ([]Turn, error) {
	p := planner{msgs: msgs, wire: wire, used: make(map[string]bool)}
	p.parts = make([][]modelmsg.Part, len(msgs))
	for i, m := range msgs {
		parts, err := modelmsg.Parse(m.Content)
		if err != nil {
			return nil, fmt.Errorf("read message %d of the conversation: %w", i, err)
		}
		p.parts[i] = parts
	}
	p.reserve()
	turns := make([]Turn, 0, len(msgs))
	for i, m := range msgs {
		switch m.Role {
		case User, System:
			turns = append(turns, Turn{Role: m.Role, Message: i, Parts: p.parts[i]})
		case Assistant:
			turns = append(turns, p.answer(i))
		case Tool: // handled with the answer before it
		default:
			return nil, fmt.Errorf("message %d of the conversation has the unknown role %q", i, m.Role)
		}
	}
	return turns, nil
}

type planner struct {
	msgs  []Message
	parts [][]modelmsg.Part
	wire  Wire
	raw   []bool          // by message: whether Raw is used
	used  map[string]bool // ids on the wire
}

// reserve decides which raw blocks are used and reserves the ids of their calls.
func (p *planner) reserve() {
	p.raw = make([]bool, len(p.msgs))
	for i, m := range p.msgs {
		if m.Role != Assistant || m.Raw.Dialect != p.wire.Dialect || len(m.Raw.Blocks) == 0 {
			continue
		}
		ids, ok := p.wire.Calls(m.Raw.Blocks)
		if !ok || !p.sameCalls(ids, p.parts[i]) {
			continue
		}
		p.raw[i] = true
		for _, id := range ids {
			p.used[id] = true
		}
	}
}

func (p *planner) sameCalls(ids []string, parts []modelmsg.Part) bool {
	n := 0
	for i := range parts {
		if !isCall(&parts[i]) {
			continue
		}
		if n >= len(ids) || ids[n] != parts[i].ToolCallID || p.used[ids[n]] {
			return false
		}
		n++
	}
	return n == len(ids)
}

func isCall(part *modelmsg.Part) bool {
	return part.Type == modelmsg.ToolCall && !part.ProviderExecuted
}

// answer returns the turn of the assistant's message i.
func (p *planner) answer(i int) Turn {
	t := Turn{Role: Assistant, Message: i}
	if p.raw[i] {
		t.Raw = p.msgs[i].Raw.Blocks
	}
	results := p.results(i)
	for _, part := range p.parts[i] {
		if !isCall(&part) {
			t.Parts = append(t.Parts, part)
			continue
		}
		c := Call{ID: part.ToolCallID, Name: part.ToolName, Input: part.Input}
		c.Output = modelmsg.Output{Type: modelmsg.OutputErrorJSON, Value: json.RawMessage(unfinished)}
		if found := results[part.ToolCallID]; len(found) > 0 {
			c.Output, results[part.ToolCallID] = found[0], found[1:]
		}
		if !p.raw[i] {
			c.ID = p.wireID(c.ID)
		}
		t.Calls = append(t.Calls, c)
	}
	return t
}

// results collects the tool results between answer i and the next one, by call id.
func (p *planner) results(i int) map[string][]modelmsg.Output {
	var found map[string][]modelmsg.Output
	for j := i + 1; j < len(p.msgs) && p.msgs[j].Role != Assistant; j++ {
		if p.msgs[j].Role != Tool {
			continue
		}
		for _, part := range p.parts[j] {
			if part.Type != modelmsg.ToolResult {
				continue
			}
			if found == nil {
				found = make(map[string][]modelmsg.Output)
			}
			found[part.ToolCallID] = append(found[part.ToolCallID], part.Output)
		}
	}
	return found
}

// wireID returns id if it is valid in the dialect and unused, otherwise one derived from it.
func (p *planner) wireID(id string) string {
	wire := []byte(id)
	same := len(wire) > 0 && len(wire) <= p.wire.MaxID
	for i, c := range wire {
		if !p.wire.IDByte(c) {
			wire[i] = '_'
			same = false
		}
	}
	if !same || p.used[string(wire)] {
		base := wire[:min(len(wire), max(p.wire.MaxID-17, 0))]
		for n := 0; ; n++ {
			wire = fmt.Appendf(slices.Clip(base), "_%016x", hash(id, fmt.Sprint(n)))
			if !p.used[string(wire)] {
				break
			}
		}
	}
	p.used[string(wire)] = true
	return string(wire)
}

func hash(parts ...string) uint64 {
	h := fnv.New64a()
	for _, s := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return h.Sum64()
}

// CallID returns an id for a call that came without one, derived from the seed, the response
// and the call's number.
func CallID(seed, response string, n int) string {
	return fmt.Sprintf("call_%016x", hash(seed, response, fmt.Sprint(n)))
}
