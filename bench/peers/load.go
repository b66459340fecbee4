package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// request returns a request as an agent sends it: a system prompt, turns and tools, with
// about size bytes of text.
func request(model string, size int) []byte {
	const words = "The quick brown fox jumps over the lazy dog, and nobody knows why it does. "
	text := func(n int) string { return strings.Repeat(words, n/len(words)+1)[:n] }
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":%q,"max_tokens":1000,"stream":true,"system":%q,"messages":[`, model, text(size/2))
	for range 3 {
		fmt.Fprintf(&b, `{"role":"user","content":%q},{"role":"assistant","content":%q},`, text(size/16), text(size/12))
	}
	fmt.Fprintf(&b, `{"role":"user","content":%q}],"tools":[`, text(size/16))
	for i := range 4 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"tool_%d","description":%q,"input_schema":{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer"}},"required":["query"]}}`, i, text(80))
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// caller reads streams and keeps what it measures. It belongs to one goroutine.
type caller struct {
	buf    []byte
	delays []time.Duration // of every chunk, from its writing by the provider to its arrival here
	firsts []time.Duration // of every stream, from asking to the first chunk
}

func newCaller(chunks int) *caller {
	return &caller{buf: make([]byte, 64<<10), delays: make([]time.Duration, 0, chunks)}
}

// stream asks once and reads to the end. Its error says what is wrong with the
// answer. The clock runs from when the request is made: signing a context is the
// caller's own work, and done by then.
func (c *caller) stream(ctx context.Context, w *way, k call, body []byte, want int) error {
	h, err := w.headers(k)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = h
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	asked := time.Now()
	res, err := w.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("%s answers %s: %s", w.name, res.Status, b)
	}
	got, whole, err := c.read(res.Body, asked)
	if err != nil {
		return fmt.Errorf("%s: after %d chunks: %w", w.name, got, err)
	}
	if got != want || !whole {
		return fmt.Errorf("%s: %d chunks of %d came, the end: %v", w.name, got, want, whole)
	}
	return nil
}

// read reads a stream to its end and reports how many chunks came, and whether the call
// of the tool and the provider's last event did.
func (c *caller) read(src io.Reader, asked time.Time) (chunks int, whole bool, err error) {
	n, called := 0, false
	for {
		m, err := src.Read(c.buf[n:])
		now := time.Now()
		n += m
		rest := c.buf[:n]
		for {
			i := bytes.Index(rest, []byte("\n\n"))
			if i < 0 {
				break
			}
			event := rest[:i]
			rest = rest[i+2:]
			if at, ok := stamp(event); ok {
				if chunks == 0 {
					c.firsts = append(c.firsts, now.Sub(asked))
				}
				chunks++
				c.delays = append(c.delays, time.Duration(now.UnixNano()-at))
			}
			if bytes.Contains(event, []byte(`"type":"tool_use"`)) {
				called = called || bytes.Contains(event, []byte(`"name":"`+tool+`"`))
			}
			whole = whole || called && bytes.Contains(event, []byte(`"type":"message_stop"`))
		}
		n = copy(c.buf, rest)
		if err == io.EOF {
			return chunks, whole, nil
		}
		if err != nil {
			return chunks, whole, err
		}
	}
}

// stamp returns when the provider wrote a chunk.
func stamp(event []byte) (int64, bool) {
	i := bytes.Index(event, []byte(mark))
	if i < 0 || len(event) < i+len(mark)+digits {
		return 0, false
	}
	var at int64
	for _, d := range event[i+len(mark):][:digits] {
		if d < '0' || d > '9' {
			return 0, false
		}
		at = at*10 + int64(d-'0')
	}
	return at, true
}
