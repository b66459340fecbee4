package anthropic_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
)

const seeds = 3000

// Any history becomes a request that the API takes.
func TestBuildRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		req := llmtest.RandomHistory(rand.New(rand.NewPCG(seed, 1)))
		body, err := anthropic.Build(req)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		checkRules(t, body)
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, body)
		}
	}
}

// Random streams add up to what adding them up with encoding/json gives.
func TestDecodeRandomStreams(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		stream, want, text := randomStream(r)
		s := llm.NewStream(iotest.HalfReader(strings.NewReader(stream)), newDecoder(), llm.Limits{})
		var said strings.Builder
		for s.Next() {
			if ev := s.Event(); ev.Type == llm.TextDelta {
				said.Write(ev.Text)
			}
		}
		if s.Err() != nil {
			t.Fatalf("seed %d: %v over %s", seed, s.Err(), stream)
		}
		var got []any
		if err := json.Unmarshal(s.Response().Raw.Blocks, &got); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: raw blocks (-want +got):\n%s\nof %s", seed, diff, stream)
		}
		if said.String() != text || s.Response().Text() != text {
			t.Fatalf("seed %d: text deltas %q, content %q, want %q", seed, said.String(), s.Response().Text(), text)
		}
	}
}

// randomStream returns a stream, the blocks it stands for, and its text.
func randomStream(r *rand.Rand) (stream string, blocks []any, text string) {
	var b strings.Builder
	event := func(data string) { fmt.Fprintf(&b, "event: x\ndata: %s\n\n", data) }
	unquote := func(raw string) string {
		var s string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &s); err != nil {
			panic(err)
		}
		return s
	}
	event(`{"type":"message_start","message":{"id":"m","usage":{"input_tokens":1}}}`)
	for i := range r.IntN(5) {
		delta := func(body string) {
			event(fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":{%s}%s}`, i, body, strings.Repeat(" ", r.IntN(4))))
		}
		start := func(block string) {
			event(fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, block))
		}
		switch r.IntN(4) {
		case 0:
			start(`{"type":"text","text":""}`)
			whole := ""
			for range r.IntN(5) {
				w := llmtest.Words(r)
				whole += unquote(w)
				delta(`"type":"text_delta","text":"` + w + `"`)
			}
			text += whole
			blocks = append(blocks, map[string]any{"type": "text", "text": whole})
		case 1:
			start(`{"type":"thinking","thinking":"","signature":""}`)
			whole := ""
			for range r.IntN(5) {
				w := llmtest.Words(r)
				whole += unquote(w)
				delta(`"type":"thinking_delta","thinking":"` + w + `"`)
			}
			delta(`"type":"signature_delta","signature":"S+="`)
			blocks = append(blocks, map[string]any{"type": "thinking", "thinking": whole, "signature": "S+="})
		case 2:
			id := fmt.Sprintf("t%d", i)
			start(fmt.Sprintf(`{"type":"tool_use","id":%q,"name":"n","input":{}}`, id))
			object := llmtest.Object(r)
			for _, f := range llmtest.Fragments(r, object) {
				delta(`"type":"input_json_delta","partial_json":` + llmtest.Quote(f))
			}
			var input any
			_ = json.Unmarshal([]byte(object), &input)
			blocks = append(blocks, map[string]any{"type": "tool_use", "id": id, "name": "n", "input": input})
		default:
			object := llmtest.Object(r)
			start(fmt.Sprintf(`{"type":"novel","value":%s}`, object))
			var value any
			_ = json.Unmarshal([]byte(object), &value)
			blocks = append(blocks, map[string]any{"type": "novel", "value": value})
		}
		event(fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i))
	}
	event(`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}`)
	event(`{"type":"message_stop"}`)
	if blocks == nil {
		blocks = []any{}
	}
	return b.String(), blocks, text
}

// A generated stream that is cut before its stop reason is an error, and what is kept of a
// cut one is in order.
func TestDecodeRandomCuts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds / 8) {
		r := rand.New(rand.NewPCG(seed, 3))
		stream := llmtest.AnthropicStream(r).Bytes
		cut := r.IntN(bytes.LastIndex(stream, []byte("event:")))
		s := llm.NewStream(llmtest.Chunks(r, stream[:cut]), newDecoder(), llm.Limits{})
		for s.Next() {
		}
		told := bytes.Contains(stream[:cut], []byte(`"stop_reason":"`))
		if !told && (s.Err() == nil || s.Response() != nil) {
			t.Fatalf("seed %d cut at %d: Err = %v, Response = %v, want an error and no response", seed, cut, s.Err(), s.Response())
		}
		if err := llmtest.Check(s.Partial()); err != nil {
			t.Fatalf("seed %d cut at %d: partial %v", seed, cut, err)
		}
	}
}
