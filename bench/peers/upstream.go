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

// Parts of an answer, as OpenAI's chat completions have them. A chunk's text is
// mark, then the time at which it was written in nanoseconds, then some words.
const (
	mark       = `"content":"@`
	digits     = 19
	beforeMark = `data: {"id":"chatcmpl-C5JgPGoMyJq3hVtIWpZ7jpVfDWhQh","object":"chat.completion.chunk","created":1758000000,"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_f33640a400","choices":[{"index":0,"delta":{`
	afterMark  = ` and a few words"},"logprobs":null,"finish_reason":null}],"obfuscation":"lQx2"}` + "\n\n"
	role       = beforeMark + `"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"obfuscation":"aZ4"}` + "\n\n"
	finish     = beforeMark + `},"logprobs":null,"finish_reason":"stop"}],"obfuscation":"p"}` + "\n\n"
	usage      = `data: {"id":"chatcmpl-C5JgPGoMyJq3hVtIWpZ7jpVfDWhQh","object":"chat.completion.chunk","created":1758000000,"model":"gpt-4o-2024-08-06","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}}` + "\n\n"
	done       = "data: [DONE]\n\n"
)

// upstreamHandler is the provider. It answers at once: the role and the first
// chunk in one write, then each chunk in a write of its own.
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
		w.Header().Set("X-Request-Id", "req_5f2e")
		answer(w, r, chunks, pace)
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

// answer writes a stream. When the caller leaves, it ends.
func answer(w http.ResponseWriter, r *http.Request, chunks int, pace time.Duration) {
	rc := http.NewResponseController(w)
	timer := time.NewTimer(pace)
	defer timer.Stop()
	next := time.Now()
	b := append(make([]byte, 0, 4<<10), role...)
	for i := range chunks {
		b = append(b, beforeMark...)
		b = append(b, mark...)
		b = strconv.AppendInt(b, time.Now().UnixNano(), 10)
		b = append(b, afterMark...)
		if i == chunks-1 {
			b = append(append(append(b, finish...), usage...), done...)
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
