package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// The provider takes its orders from the model's name, which passes through every
// gateway: bench-<chunks>-<microseconds between them>.
const (
	modelPrefix = "bench-"
	maxChunks   = 1_000_000
)

func model(chunks int, pace time.Duration) string {
	return fmt.Sprintf("%s%d-%d", modelPrefix, chunks, pace.Microseconds())
}

// Parts of an answer, as Anthropic's messages have them: text, and at its end a call of
// one of the tools that were offered. A chunk's text is mark, then the time at which it
// was written in nanoseconds, then some words.
const (
	mark   = `"text":"@`
	digits = 19
	opens  = "event: message_start\ndata: " + `{"type":"message_start","message":{"id":"msg_01XFDUDYJgAACzvnptvVoYEL","type":"message","role":"assistant","model":"claude-sonnet-4-20250514","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1000,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}` + "\n\n" +
		"event: content_block_start\ndata: " + `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n"
	beforeMark = "event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta",`
	afterMark  = ` and a few words"}}` + "\n\n"
	beforeTool = "event: content_block_stop\ndata: " + `{"type":"content_block_stop","index":0}` + "\n\n" +
		"event: content_block_start\ndata: " + `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_01T1x1fJ34qAmk2tNTrN7Up6","name":"`
	afterTool = `","input":{}}}` + "\n\n" +
		"event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"query\":\"fox\"}"}}` + "\n\n" +
		"event: content_block_stop\ndata: " + `{"type":"content_block_stop","index":1}` + "\n\n" +
		"event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":100}}` + "\n\n" + done
	done = "event: message_stop\ndata: " + `{"type":"message_stop"}` + "\n\n"
)

// tool is what callers name the tool that is called, and prefixed what it becomes where
// the egress translates names; the provider calls it as it was offered.
const (
	tool     = "tool_0"
	prefixed = "mcp_" + tool
)

// upstreamHandler is the provider. It answers at once: what begins a message and the
// first chunk in one write, then each chunk in a write of its own.
func upstreamHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 32<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		chunks, pace, err := orders(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.Header().Set("Request-Id", "req_5f2e")
		name := tool
		if bytes.Contains(body, []byte(`"`+prefixed+`"`)) {
			name = prefixed
		}
		answer(w, r, name, chunks, pace)
	})
}

// orders reads what the model's name asks for.
func orders(body []byte) (chunks int, pace time.Duration, err error) {
	_, rest, ok := bytes.Cut(body, []byte(modelPrefix))
	if !ok {
		return 0, 0, fmt.Errorf("the model's name must begin with %s", modelPrefix)
	}
	name, _, _ := bytes.Cut(rest, []byte(`"`))
	var micros int64
	if _, err := fmt.Sscanf(string(name), "%d-%d", &chunks, &micros); err != nil || chunks < 1 || chunks > maxChunks || micros < 0 {
		return 0, 0, fmt.Errorf("the model's name must be %s<chunks>-<microseconds>", modelPrefix)
	}
	return chunks, time.Duration(micros) * time.Microsecond, nil
}

// answer writes a stream that ends with a call of the tool. When the caller leaves, it
// ends.
func answer(w http.ResponseWriter, r *http.Request, tool string, chunks int, pace time.Duration) {
	rc := http.NewResponseController(w)
	timer := time.NewTimer(pace)
	defer timer.Stop()
	next := time.Now()
	b := append(make([]byte, 0, 4<<10), opens...)
	for i := range chunks {
		b = append(b, beforeMark...)
		b = append(b, mark...)
		b = strconv.AppendInt(b, time.Now().UnixNano(), 10)
		b = append(b, afterMark...)
		if i == chunks-1 {
			b = append(append(append(b, beforeTool...), tool...), afterTool...)
		}
		if _, err := w.Write(b); err != nil {
			return
		}
		if rc.Flush() != nil {
			return
		}
		b = b[:0]
		if pace <= 0 || i == chunks-1 {
			continue
		}
		// By the clock, so that a late chunk does not delay those behind it.
		next = next.Add(pace)
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
}
