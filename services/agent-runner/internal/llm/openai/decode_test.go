package openai_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

const streamsDir = "testdata/decode"

// newDecoder returns a decoder for the recorded stream called name.
func newDecoder(name string) llm.Decoder {
	return openai.NewDecoder(flavor(name), "run-step", llm.Limits{})
}

func flavor(name string) openai.Flavor {
	switch {
	case strings.Contains(name, "openrouter"), strings.Contains(name, "details"):
		return openai.OpenRouter
	case name == "text", name == "parallel", name == "refusal":
		return openai.OpenAI
	}
	return openai.Compatible
}

// Every recorded stream gives the events and the response in its golden file.
func TestDecodeGolden(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := llmtest.Run(bytes.NewReader(stream), newDecoder(name), llm.Limits{})
			llmtest.Golden(t, filepath.Join(streamsDir, name+".golden"), []byte(got))
		})
	}
}

func TestDecodeSplits(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			llmtest.Splits(t, stream, func() llm.Decoder { return newDecoder(name) })
		})
	}
}

// A stream that is cut is an error, unless the cut is behind the event with the finish
// reason.
func TestDecodeCut(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := llmtest.Run(bytes.NewReader(stream), newDecoder(name), llm.Limits{})
			finish := bytes.LastIndex(stream, []byte(`"finish_reason":"`))
			for i := range len(stream) {
				s := llm.NewStream(bytes.NewReader(stream[:i]), newDecoder(name), llm.Limits{})
				for s.Next() {
				}
				if s.Err() == nil && (i < finish || !bytes.Contains(stream[max(finish, 0):i], []byte("\n\n"))) {
					t.Fatalf("cut at %d (%q) of %s gives success", i, stream[max(0, i-40):i], whole)
				}
				if err := llmtest.Check(s.Partial()); err != nil {
					t.Fatalf("cut at %d: partial %v", i, err)
				}
			}
		})
	}
}

func TestDecodeLimits(t *testing.T) {
	t.Parallel()
	one := `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x"}}]}}]}` + "\n\n"
	tests := []struct {
		name   string
		limits llm.Limits
		stream string
		want   string
	}{
		{"calls", llm.Limits{Calls: 1}, one + strings.ReplaceAll(one, `"a"`, `"b"`), "more than 1 tool calls"},
		{"members", llm.Limits{}, `data: {"choices":[{"delta":{` + manyMembers(100) + `}}]}` + "\n\n", "too many different members"},
		{"details", llm.Limits{Blocks: 1}, `data: {"choices":[{"delta":{"reasoning_details":[{"index":0},{"index":1}]}}]}` + "\n\n", "more than 1 reasoning details"},
		{"huge index", llm.Limits{}, strings.ReplaceAll(one, `"index":0`, `"index":99999999999999999999`), "truncated"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := llmtest.Run(strings.NewReader(tt.stream), openai.NewDecoder(openai.OpenAI, "", tt.limits), tt.limits)
			if !strings.Contains(got, tt.want) {
				t.Errorf("a stream over the limit gives %s, want %q", got, tt.want)
			}
		})
	}
}

// Each citation is of a source that was reported before it.
func TestDecodeCitesSources(t *testing.T) {
	t.Parallel()
	var found strings.Builder
	for i := range 512 {
		fmt.Fprintf(&found, `{"url_citation":{"url":"https://a/%d"}},`, i)
	}
	stream := `data: {"choices":[{"delta":{"annotations":[` + found.String() +
		`{"url_citation":{"url":"https://a/511","end_index":1}},{"url_citation":{"url":"https://a/512","end_index":2}}]}}]}` + "\n\n"
	got := llmtest.Run(strings.NewReader(stream), newDecoder("text"), llm.Limits{})
	llmtest.Cites(t, got, "https://a/511")
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"m` + strings.Repeat("x", i) + `":1`)
	}
	return b.String()
}

// No bytes make the decoder panic or give what cannot be stored or sent back.
func FuzzDecode(f *testing.F) {
	for _, stream := range llmtest.Streams(f, streamsDir) {
		f.Add(stream, false)
		f.Add(stream, true)
	}
	for seed := range uint64(20) {
		f.Add(llmtest.OpenAIStream(rand.New(rand.NewPCG(seed, 4))).Bytes, false)
	}
	limits := llm.Limits{Blocks: 64, Calls: 8}
	f.Fuzz(func(t *testing.T, stream []byte, router bool) {
		flavor := openai.Compatible
		if router {
			flavor = openai.OpenRouter
		}
		s := llm.NewStream(bytes.NewReader(stream), openai.NewDecoder(flavor, "", limits), limits)
		for s.Next() {
			if err := llmtest.CheckEvent(s.Event()); err != nil {
				t.Fatal(err)
			}
		}
		resp := s.Response()
		if s.Err() != nil {
			resp = s.Partial()
		}
		if err := llmtest.Check(resp); err != nil {
			t.Fatal(err)
		}
		req := &llm.Request{Model: "m", Messages: []llm.Message{
			{Role: llm.User, Content: []byte(`"hi"`)}, {Role: llm.Assistant, Content: resp.Content, Raw: resp.Raw},
		}}
		llmtest.CheckBuild(t, req, func(r *llm.Request) ([]byte, error) { return openai.Build(r, flavor) })
	})
}
