package oracle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// answer is what a stream adds up to, in a form that both sides have.
type answer struct {
	ID, Model, Finish string
	Usage             llm.Usage
	Raw               []any  // what goes back to the provider: its blocks, or its message
	Parts             []part // what people and other dialects read
	Spoken            []part // the same as it streamed
}

// part is a piece of the answer in plain words.
type part struct {
	Kind     string // text, reasoning, redacted, call, server-call, result
	Text     string // of a text or reasoning; redacted data
	Proof    string // the signature of reasoning
	ID, Name string
	Input    any
}

// spoken keeps of the parts what is streamed piece by piece, by kind.
func spoken(parts []part) []part {
	var out []part
	for _, p := range parts {
		if p.Text != "" && (p.Kind == "text" || p.Kind == "reasoning") {
			out = append(out, part{Kind: p.Kind, Text: p.Text})
		}
		if p.Kind == "call" || p.Kind == "server-call" {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b part) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

// decode reads JSON exactly: numbers stay as they are spelled.
func decode(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w in %.200q", err, text)
	}
	if dec.More() {
		return nil, fmt.Errorf("more than one value in %.200q", text)
	}
	return v, nil
}

// join folds more of a member that arrives in pieces and that nobody knows: strings
// and arrays grow, anything else is replaced, and null says nothing.
func join(have, more any) any {
	switch m := more.(type) {
	case nil:
		return have
	case string:
		if h, ok := have.(string); ok {
			return h + m
		}
	case []any:
		if h, ok := have.([]any); ok {
			return append(append([]any{}, h...), m...)
		}
	}
	return more
}

// ours reads a stream with the runner's codec.
func ours(body io.Reader, dec llm.Decoder) (*answer, error) {
	s := llm.NewStream(body, dec, llm.Limits{})
	defer s.Close()
	said := newSaid()
	for s.Next() {
		if err := said.add(s.Event()); err != nil {
			return nil, err
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return fromResponse(s.Response(), said)
}

func fromResponse(resp *llm.Response, said *said) (*answer, error) {
	if err := llmtest.Check(resp); err != nil {
		return nil, err
	}
	a := &answer{ID: resp.ID, Model: resp.Model, Finish: resp.RawFinish, Usage: resp.Usage}
	raw, err := decode(resp.Raw.Blocks)
	if err != nil {
		return nil, err
	}
	a.Raw = raw.([]any)
	parts, err := modelmsg.Parse(resp.Content)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		p, err := fromPart(&parts[i])
		if err != nil {
			return nil, err
		}
		a.Parts = append(a.Parts, p)
	}
	a.Spoken = said.sorted()
	if u := said.usage; u != nil && *u != resp.Usage {
		return nil, fmt.Errorf("the last usage event says %+v, the response %+v", *u, resp.Usage)
	}
	return a, nil
}

func fromPart(p *modelmsg.Part) (part, error) {
	out := part{Kind: p.Type, Text: p.Text, ID: p.ToolCallID, Name: p.ToolName}
	switch p.Type {
	case modelmsg.Reasoning:
		var options struct {
			Anthropic struct{ Signature, RedactedData *string }
		}
		if p.ProviderOptions != nil {
			if err := json.Unmarshal(p.ProviderOptions, &options); err != nil {
				return out, err
			}
		}
		if s := options.Anthropic.Signature; s != nil {
			out.Proof = *s
		}
		if s := options.Anthropic.RedactedData; s != nil {
			out.Kind, out.Text = "redacted", *s
		}
	case modelmsg.ToolCall:
		out.Kind = "call"
		if p.ProviderExecuted {
			out.Kind = "server-call"
		}
		var err error
		out.Input, err = decode(p.Input)
		return out, err
	case modelmsg.ToolResult:
		out.Kind = "result"
	}
	return out, nil
}

// said is what a stream's events add up to.
type said struct {
	parts map[place]*part
	args  map[int][]byte // of calls, as they stream
	usage *llm.Usage
}

type place struct {
	kind  string
	index int
}

func newSaid() *said { return &said{parts: make(map[place]*part), args: make(map[int][]byte)} }

// sorted returns the parts by kind and index.
func (s *said) sorted() []part {
	places := slices.SortedFunc(maps.Keys(s.parts), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.index, b.index))
	})
	var out []part
	for _, p := range places {
		out = append(out, *s.parts[p])
	}
	return out
}

func (s *said) add(ev *llm.Event) error {
	if err := llmtest.CheckEvent(ev); err != nil {
		return err
	}
	switch ev.Type {
	case llm.TextDelta:
		s.part("text", ev.Index).Text += string(ev.Text)
	case llm.ReasoningDelta:
		s.part("reasoning", ev.Index).Text += string(ev.Text)
	case llm.ToolCallStart:
		s.part("call", ev.Index)
	case llm.ToolCallDelta:
		s.args[ev.Index] = append(s.args[ev.Index], ev.Text...)
	case llm.ToolCallComplete:
		return s.call("call", ev)
	case llm.ServerToolCall:
		return s.call("server-call", ev)
	case llm.UsageUpdate:
		u := *ev.Usage
		s.usage = &u
	default:
	}
	return nil
}

func (s *said) call(kind string, ev *llm.Event) error {
	input, err := decode(ev.Args)
	if err != nil {
		return err
	}
	*s.part(kind, ev.Index) = part{Kind: kind, ID: ev.ID, Name: ev.Name, Input: input}
	streamed := bytes.TrimSpace(s.args[ev.Index])
	if len(streamed) == 0 || string(streamed) == "null" || ev.Invalid {
		return nil // no arguments, or none that are an object
	}
	if v, err := decode(streamed); err != nil || !equal(v, input) {
		return fmt.Errorf("call %s streamed %q and was completed with %s", ev.ID, streamed, ev.Args)
	}
	return nil
}

func (s *said) part(kind string, index int) *part {
	p := place{kind, index}
	if s.parts[p] == nil {
		s.parts[p] = &part{Kind: kind}
	}
	return s.parts[p]
}

// httpResponse is what an SDK's stream decoder asks for.
func httpResponse(body io.Reader) http.Response {
	return http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: io.NopCloser(body),
	}
}

var errRefused = errors.New("the SDK does not take this chunk")

// equal reports whether two decoded JSON values are the same.
func equal(a, b any) bool { return reflect.DeepEqual(a, b) }
