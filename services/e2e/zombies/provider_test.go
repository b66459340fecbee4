package zombies_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// provider is a model provider with Anthropic's Messages API, whose answers the test streams
// call by call.
type provider struct {
	calls  chan *call
	closed chan struct{}
	close  func()
}

// call is one model call, whose answer the test writes.
type call struct {
	prompt string // the text of the last message
	pieces chan string
	gone   <-chan struct{} // closed when the caller has left
}

func newProvider() *provider {
	p := &provider{calls: make(chan *call, 64), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// ServeHTTP implements http.Handler.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/v1/messages") {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	var req struct {
		Messages []struct{ Content json.RawMessage }
	}
	if err := json.Unmarshal(body, &req); err != nil || len(req.Messages) == 0 {
		http.Error(w, "no messages", http.StatusBadRequest)
		return
	}
	c := &call{prompt: string(req.Messages[len(req.Messages)-1].Content), pieces: make(chan string), gone: r.Context().Done()}
	p.calls <- c
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		select {
		case piece, more := <-c.pieces:
			if !more {
				return
			}
			_, _ = io.WriteString(w, piece) // an error shows in gone
			_ = http.NewResponseController(w).Flush()
		case <-p.closed:
			panic(http.ErrAbortHandler)
		case <-c.gone:
			return
		}
	}
}

// next returns the next call of the model.
func (p *provider) next(t *testing.T) *call {
	t.Helper()
	select {
	case c := <-p.calls:
		return c
	case <-time.After(timeout):
		t.Fatal("the model was not called")
		return nil
	}
}

func event(kind, rest string) string {
	return fmt.Sprintf("event: %[1]s\ndata: {\"type\":\"%[1]s\"%[2]s}\n\n", kind, rest)
}

// write sends a piece of the stream, unless the caller has left.
func (c *call) write(piece string) {
	select {
	case c.pieces <- piece:
	case <-c.gone:
	}
}

const begin = `,"message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":10,"output_tokens":1}}`

// say begins an answer with text; more continues it.
func (c *call) say(text string) {
	c.write(event("message_start", begin) + event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`))
	c.more(text)
}

func (c *call) more(text string) {
	quoted, _ := json.Marshal(text) // a string always marshals
	c.write(event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":`+string(quoted)+`}`))
}

// end ends an answer of text.
func (c *call) end() {
	c.write(event("content_block_stop", `,"index":0`) +
		event("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}`) + event("message_stop", ""))
	close(c.pieces)
}

// use answers with a tool call.
func (c *call) use(tool string) {
	c.write(event("message_start", begin) +
		event("content_block_start", `,"index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"`+tool+`","input":{}}`) +
		event("content_block_delta", `,"index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}`) +
		event("content_block_stop", `,"index":0`) +
		event("message_delta", `,"delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":5}`) + event("message_stop", ""))
	close(c.pieces)
}
