package openai_test

import (
	"fmt"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

// BenchmarkTextDelta reads a stream of text deltas as a runner does, from bytes to
// events; one operation is one delta.
func BenchmarkTextDelta(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchDelta(b, ` and then some`) })
	b.Run("escaped", func(b *testing.B) { benchDelta(b, ` \"and\"\n\u00e9`) })
}

func benchDelta(b *testing.B, text string) {
	frame := fmt.Sprintf("data: {\"id\":\"chatcmpl-CabcdefghijklmnopqrstuvwxyzAB\",\"object\":\"chat.completion.chunk\",\"created\":1763750000,\"model\":\"gpt-5.1-2025-11-13\",\"service_tier\":\"default\",\"system_fingerprint\":null,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null,\"obfuscation\":\"Xb9tA\"}\n\n", text)
	const perStream = 2000
	in := strings.Repeat(frame, perStream)
	limits := llm.Limits{}
	var s *llm.Stream
	left := 0
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 {
			left = perStream
			s = llm.NewStream(strings.NewReader(in), openai.NewDecoder(openai.OpenAI, "", limits), limits)
		}
		if !s.Next() || s.Event().Type != llm.TextDelta {
			b.Fatal(s.Err())
		}
		left--
	}
}
