package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

const seeds = 2000

// Any history becomes a request that the API takes, in every flavor.
func TestBuildRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		flavor := openai.Flavor(seed % 3)
		body, err := openai.Build(llmtest.RandomHistory(rand.New(rand.NewPCG(seed, 1))), flavor)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		checkRules(t, body)
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, body)
		}
	}
}

// Random streams, with the fragments of parallel calls mixed, add up to what was cut.
func TestDecodeRandomStreams(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		stream, text, calls := randomStream(r)
		s := llm.NewStream(iotest.HalfReader(strings.NewReader(stream)), openai.NewDecoder(openai.OpenAI, "", llm.Limits{}), llm.Limits{})
		var said strings.Builder
		for s.Next() {
			if ev := s.Event(); ev.Type == llm.TextDelta {
				said.Write(ev.Text)
			}
		}
		if s.Err() != nil {
			t.Fatalf("seed %d: %v over %s", seed, s.Err(), stream)
		}
		var raw []struct {
			Content   *string `json:"content"`
			ToolCalls []struct {
				Function struct{ Arguments string }
			} `json:"tool_calls"`
		}
		if err := json.Unmarshal(s.Response().Raw.Blocks, &raw); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var got []string
		for _, c := range raw[0].ToolCalls {
			got = append(got, c.Function.Arguments)
		}
		if diff := cmp.Diff(calls, got); diff != "" {
			t.Fatalf("seed %d: arguments (-want +got):\n%s\nof %s", seed, diff, stream)
		}
		if said.String() != text || s.Response().Text() != text || (raw[0].Content != nil && *raw[0].Content != text) {
			t.Fatalf("seed %d: text deltas %q, content %q, want %q", seed, said.String(), s.Response().Text(), text)
		}
	}
}

func randomStream(r *rand.Rand) (stream, text string, calls []string) {
	var b strings.Builder
	chunk := func(delta, finish string) {
		fmt.Fprintf(&b, `data: {"id":"c%d","model":"m","choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}`+"\n\n", r.IntN(20)/19, delta, finish)
	}
	for range r.IntN(6) {
		w := llmtest.Words(r)
		var s string
		if err := json.Unmarshal([]byte(`"`+w+`"`), &s); err != nil {
			panic(err)
		}
		text += s
		chunk(`"content":"`+w+`"`, "null")
	}
	var left [][]string
	for i := range r.IntN(4) {
		object := llmtest.Object(r)
		calls = append(calls, object)
		left = append(left, llmtest.Fragments(r, object))
		chunk(fmt.Sprintf(`"tool_calls":[{"index":%d,"id":"call_%d","type":"function","function":{"name":"n","arguments":""}}]`, i, i), "null")
	}
	for {
		var open []int
		for i := range left {
			if len(left[i]) > 0 {
				open = append(open, i)
			}
		}
		if len(open) == 0 {
			break
		}
		i := open[r.IntN(len(open))]
		chunk(fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"arguments":%s}}]`, i, llmtest.Quote(left[i][0])), "null")
		left[i] = left[i][1:]
	}
	chunk("", `"stop"`)
	b.WriteString("data: [DONE]\n\n")
	return b.String(), text, calls
}

// A generated stream that is cut anywhere is an error, or the answer is whole but for
// its usage: the finish reason had come.
func TestDecodeRandomCuts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(seeds / 8) {
		r := rand.New(rand.NewPCG(seed, 3))
		stream := llmtest.OpenAIStream(r).Bytes
		whole, err := readAll(bytes.NewReader(stream))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		cut := r.IntN(len(stream))
		got, err := readAll(llmtest.Chunks(r, stream[:cut]))
		if err == nil && !bytes.Equal(got.Content, whole.Content) {
			t.Fatalf("seed %d cut at %d: the answer is %s, want an error or %s", seed, cut, got.Content, whole.Content)
		}
		if err := llmtest.Check(got); err != nil {
			t.Fatalf("seed %d cut at %d: partial %v", seed, cut, err)
		}
	}
}

// readAll returns the answer or, with an error, the part that arrived.
func readAll(body io.Reader) (*llm.Response, error) {
	s := llm.NewStream(body, openai.NewDecoder(openai.Compatible, "", llm.Limits{}), llm.Limits{})
	for s.Next() {
	}
	if err := s.Err(); err != nil {
		return s.Partial(), err
	}
	return s.Response(), nil
}
