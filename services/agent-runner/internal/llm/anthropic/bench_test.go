package anthropic_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
)

// BenchmarkTextDelta reads a stream of text deltas as a runner does, from bytes to
// events; one operation is one delta.
func BenchmarkTextDelta(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchDelta(b, ` and then some`) })
	b.Run("escaped", func(b *testing.B) { benchDelta(b, ` \"and\"\n\u00e9`) })
}

func benchDelta(b *testing.B, text string) {
	const head = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":\"m\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
	frame := fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"%s\"}    }\n\n", text)
	const perStream = 2000
	in := head + strings.Repeat(frame, perStream)
	limits := llm.Limits{}
	var s *llm.Stream
	left := 0
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 {
			left = perStream
			s = llm.NewStream(io.LimitReader(strings.NewReader(in), int64(len(in))), anthropic.NewDecoder("", limits), limits)
			s.Next() // usage
		}
		if !s.Next() || s.Event().Type != llm.TextDelta {
			b.Fatal(s.Err())
		}
		left--
	}
}
