package anthropic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
)

const streamsDir = "testdata/decode"

func newDecoder() llm.Decoder { return anthropic.NewDecoder("run-step", llm.Limits{}) }

// Every recorded stream gives the events and the response in its golden file.
func TestDecodeGolden(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := llmtest.Run(bytes.NewReader(stream), newDecoder(), llm.Limits{})
			llmtest.Golden(t, filepath.Join(streamsDir, name+".golden"), []byte(got))
		})
	}
}

func TestDecodeSplits(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			llmtest.Splits(t, stream, newDecoder)
		})
	}
}

// A stream that is cut before its stop reason is an error, and behind it an answer; what is
// kept of it is in order.
func TestDecodeCut(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		last := bytes.Index(stream, []byte("event: message_stop"))
		if last < 0 {
			continue // has no end to cut
		}
		reason := bytes.LastIndex(stream, []byte(`"stop_reason":"`))
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range last + len("event: message_stop\ndata: {\"type\":\"message_stop\"}\n") + 1 {
				s := llm.NewStream(bytes.NewReader(stream[:i]), newDecoder(), llm.Limits{})
				for s.Next() {
				}
				if told := reason >= 0 && i > reason && bytes.Contains(stream[reason:i], []byte("\n\n")); told != (s.Err() == nil) || told != (s.Response() != nil) {
					t.Fatalf("cut at %d: Err = %v, Response = %v, want an answer only behind the stop reason", i, s.Err(), s.Response())
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
	start := "data: {\"type\":\"message_start\",\"message\":{}}\n\n"
	tests := []struct {
		name   string
		limits llm.Limits
		stream string
		want   string
	}{
		{"blocks", llm.Limits{Blocks: 2}, start + "data: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"text\"}}\n\n", "more than 2 blocks"},
		{"huge index", llm.Limits{}, start + "data: {\"type\":\"content_block_start\",\"index\":99999999999,\"content_block\":{}}\n\n", "more than 4096 blocks"},
		{"negative index", llm.Limits{}, start + "data: {\"type\":\"content_block_start\",\"index\":-1,\"content_block\":{}}\n\n", "malformed_stream"},
		{"calls", llm.Limits{Calls: 1}, start + "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\"}}\n\n" +
			"data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\"}}\n\n", "more than 1 tool calls"},
		{"event", llm.Limits{Event: 100}, "data: " + strings.Repeat(" ", 200) + "{}\n\n", "an event is too long"},
		{"response", llm.Limits{Response: 1000}, strings.Repeat(": comment\n", 200), "it is too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := llmtest.Run(strings.NewReader(tt.stream), anthropic.NewDecoder("", tt.limits), tt.limits)
			if !strings.Contains(got, tt.want) {
				t.Errorf("a stream over the limit gives %s, want %q", got, tt.want)
			}
		})
	}
}

// Each citation is of a source that was reported before it.
func TestDecodeCitesSources(t *testing.T) {
	t.Parallel()
	results := make([]string, 512)
	for i := range results {
		results[i] = fmt.Sprintf(`{"url":"https://a/%d"}`, i)
	}
	stream := `data: {"type":"message_start","message":{}}` + "\n\n" +
		`data: {"type":"content_block_start","index":0,"content_block":{"type":"web_search_tool_result","tool_use_id":"s","content":[` + strings.Join(results, ",") + "]}}\n\n" +
		`data: {"type":"content_block_stop","index":0}` + "\n\n" +
		`data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":"a","citations":[{"url":"https://a/511"},{"url":"https://a/512"}]}}` + "\n\n" +
		`data: {"type":"content_block_stop","index":1}` + "\n\n"
	llmtest.Cites(t, llmtest.Run(strings.NewReader(stream), newDecoder(), llm.Limits{}), "https://a/511")
}

// No bytes make the decoder panic or give what cannot be stored, and single-byte reads
// change nothing.
func FuzzDecode(f *testing.F) {
	for _, stream := range llmtest.Streams(f, streamsDir) {
		f.Add(stream)
	}
	for seed := range uint64(20) {
		f.Add(llmtest.AnthropicStream(rand.New(rand.NewPCG(seed, 4))).Bytes)
	}
	limits := llm.Limits{Blocks: 64, Calls: 8}
	f.Fuzz(func(t *testing.T, stream []byte) {
		s := llm.NewStream(bytes.NewReader(stream), anthropic.NewDecoder("", limits), limits)
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
		llmtest.CheckBuild(t, req, anthropic.Build)
	})
}
