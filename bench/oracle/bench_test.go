package oracle

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	claudesdk "github.com/anthropics/anthropic-sdk-go"
	claudesse "github.com/anthropics/anthropic-sdk-go/packages/ssestream"
	gptsdk "github.com/openai/openai-go/v3"
	gptsse "github.com/openai/openai-go/v3/packages/ssestream"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

// contest is one stream, read to its whole message by both sides.
type contest struct {
	name   string
	stream []byte
	events int
	ours   func([]byte) error
	sdk    func([]byte) error
}

func contests() []contest {
	claude, claudeEvents := longClaude()
	gpt, gptEvents := longGPT()
	return []contest{
		{"anthropic", claude, claudeEvents, func(b []byte) error { return drain(b, anthropic.NewDecoder("", llm.Limits{})) }, drainClaudeSDK},
		{"openai", gpt, gptEvents, func(b []byte) error { return drain(b, openai.NewDecoder(openai.OpenAI, "", llm.Limits{})) }, drainGPTSDK},
	}
}

// BenchmarkAnswer reads a long answer, from bytes to the whole message, with our codec
// and with the official SDK; the figures are per server-sent event. On a busy machine the
// CPU time is the one to read.
func BenchmarkAnswer(b *testing.B) {
	for _, c := range contests() {
		for _, side := range []struct {
			name string
			read func([]byte) error
		}{{"ours", c.ours}, {"sdk", c.sdk}} {
			b.Run(c.name+"/"+side.name, func(b *testing.B) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				used := cpuTime(b)
				for b.Loop() {
					if err := side.read(c.stream); err != nil {
						b.Fatal(err)
					}
				}
				used = cpuTime(b) - used
				runtime.ReadMemStats(&after)
				n := float64(b.N) * float64(c.events)
				b.ReportMetric(0, "ns/op") // an operation is a stream: its time says nothing
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/event")
				b.ReportMetric(float64(used.Nanoseconds())/n, "cpu-ns/event")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "allocs/event")
				b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "B/event")
			})
		}
	}
}

// cpuTime is what this process has used so far; other programs do not change it.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Reading an answer allocates almost nothing.
//
//nolint:paralleltest // it counts the allocations of the whole process
func TestAllocations(t *testing.T) {
	for _, c := range contests() {
		n := testing.AllocsPerRun(5, func() {
			if err := c.ours(c.stream); err != nil {
				t.Fatal(err)
			}
		})
		if per := n / float64(c.events); per > 0.1 {
			t.Errorf("%s: %.2f allocations per event, want at most 0.1", c.name, per)
		}
	}
}

func drain(stream []byte, dec llm.Decoder) error {
	s := llm.NewStream(bytes.NewReader(stream), dec, llm.Limits{})
	defer s.Close()
	for s.Next() {
	}
	if s.Err() == nil && s.Response() == nil {
		return io.ErrUnexpectedEOF
	}
	return s.Err()
}

func drainClaudeSDK(stream []byte) error {
	resp := httpResponse(bytes.NewReader(stream))
	s := claudesse.NewStream[claudesdk.MessageStreamEventUnion](claudesse.NewDecoder(&resp), nil)
	var msg claudesdk.Message
	for s.Next() {
		if err := msg.Accumulate(s.Current()); err != nil {
			return err
		}
	}
	return s.Err()
}

func drainGPTSDK(stream []byte) error {
	resp := httpResponse(bytes.NewReader(stream))
	s := gptsse.NewStream[gptsdk.ChatCompletionChunk](gptsse.NewDecoder(&resp), nil)
	var acc gptsdk.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			return errRefused
		}
	}
	return s.Err()
}

const (
	thoughts = 400
	words    = 1200
	pieces   = 400
)

// token is the nth delta of a text, as the inside of a JSON string: a few characters,
// one in eight with an escape.
func token(n int) string {
	tokens := [...]string{" and", " so it", " goes on", ",", " naïve and", ` \"then`, " the 世界", " and then some more"}
	return tokens[n%len(tokens)]
}

// longClaude is reasoning, a text and a call, as long answers are, and the number of
// its events.
func longClaude() (stream []byte, events int) {
	all := []string{`{"type":"message_start","message":{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":2500,"cache_creation_input_tokens":0,"cache_read_input_tokens":2048,"output_tokens":1}}}`}
	block := func(index int, start string, deltas []string) {
		all = append(all, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, start))
		for i, d := range deltas {
			all = append(all, fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s%s}`, index, d, strings.Repeat(" ", i%12)))
		}
		all = append(all, fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index))
	}
	block(0, `{"type":"thinking","thinking":"","signature":""}`,
		append(repeat(thoughts, `{"type":"thinking_delta","thinking":"%s"}`), `{"type":"signature_delta","signature":"EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"}`))
	block(1, `{"type":"text","text":""}`, repeat(words, `{"type":"text_delta","text":"%s"}`))
	args := append([]string{`{"type":"input_json_delta","partial_json":"{\"text\":\""}`}, repeat(pieces, `{"type":"input_json_delta","partial_json":"some more of it "}`)...)
	block(2, `{"type":"tool_use","id":"toolu_01","name":"doc_create","input":{}}`, append(args, `{"type":"input_json_delta","partial_json":"\"}"}`))
	all = append(all, `{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":1500}}`, `{"type":"message_stop"}`)
	return []byte(claudeEvents(all...)), len(all)
}

// longGPT is the same without the reasoning.
func longGPT() (stream []byte, events int) {
	var b strings.Builder
	chunk := func(delta, finish string) {
		fmt.Fprintf(&b, `data: {"id":"chatcmpl-CabcdefghijklmnopqrstuvwxyzAB","object":"chat.completion.chunk","created":1763750000,"model":"gpt-5.1","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}],"usage":null,"obfuscation":"Xb9tA"}`+"\n\n", delta, finish)
		events++
	}
	chunk(`{"role":"assistant","content":"","refusal":null}`, "null")
	for i := range words {
		chunk(`{"content":"`+token(i)+`"}`, "null")
	}
	chunk(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"doc_create","arguments":""}}]}`, "null")
	chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"text\":\""}}]}`, "null")
	for range pieces {
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"some more of it "}}]}`, "null")
	}
	chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"\"}"}}]}`, "null")
	chunk(`{}`, `"tool_calls"`)
	b.WriteString(`data: {"id":"chatcmpl-CabcdefghijklmnopqrstuvwxyzAB","object":"chat.completion.chunk","created":1763750000,"model":"gpt-5.1","choices":[],"usage":{"prompt_tokens":2500,"completion_tokens":1500,"total_tokens":4000}}` + "\n\ndata: [DONE]\n\n")
	return []byte(b.String()), events + 2
}

// repeat returns n times s, with the tokens of a text for its %s.
func repeat(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strings.ReplaceAll(s, "%s", token(i))
	}
	return out
}
