package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"signalbox.dev/services/agent-runner/internal/llm"
)

// providers is the model of the model provider and the broker. The world's lock guards it.
type providers struct {
	away  bool // connections are refused
	calls int
}

// transport is the network between a process and the provider: an http.RoundTripper.
type transport struct {
	w *world
	p *process
}

// request is the decoded part of a request that the model uses.
type modelRequest struct {
	Tools    []json.RawMessage `json:"tools"`
	Messages []struct {
		Role    string `json:"role"`
		Content []struct {
			Type      string `json:"type"`
			ID        string `json:"id"`
			ToolUseID string `json:"tool_use_id"`
		} `json:"content"`
	} `json:"messages"`
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	session := r.Header.Get(llm.SessionHeader)
	name := fmt.Sprintf("%s model %s", t.p.name, session[len(session)-4:])
	var res *http.Response // not read once the caller has left
	err = t.w.request(r.Context(), t.p, request{name: name, lo: 5 * time.Millisecond, hi: 300 * time.Millisecond, do: func() error {
		if t.w.providers.away {
			t.w.note(name, "nobody there")
			return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
		}
		var asked modelRequest
		if err := json.Unmarshal(body, &asked); err != nil {
			t.w.violation("a model is asked %s: %v", body, err)
		}
		if err := asked.check(); err != nil {
			t.w.violation("session %s: the model refuses the conversation: %v: %s", session, err, body)
		}
		var err error
		res, err = t.answer(r, session, name, &asked) //nolint:bodyclose // whoever asked closes it
		return err
	}})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// check refuses requests that the real provider refuses.
func (m *modelRequest) check() error {
	open := map[string]bool{}
	for i, msg := range m.Messages {
		if want := [2]string{"user", "assistant"}[i%2]; msg.Role != want {
			return fmt.Errorf("message %d is by %s, want %s", i, msg.Role, want)
		}
		if len(msg.Content) == 0 {
			return fmt.Errorf("message %d is empty", i)
		}
		for _, part := range msg.Content {
			switch part.Type {
			case "tool_result":
				if !open[part.ToolUseID] {
					return fmt.Errorf("message %d has a result for %s, which was not called before", i, part.ToolUseID)
				}
				delete(open, part.ToolUseID)
			case "tool_use":
				open[part.ID] = true
			}
		}
		if msg.Role == "user" && len(open) > 0 {
			return fmt.Errorf("message %d lacks results", i)
		}
	}
	return nil
}

// chunk is a piece of an answer, which arrives some time after the previous one.
type chunk struct {
	wait time.Duration
	data string
	err  error // instead of data
}

// answer decides what the model does.
func (t transport) answer(r *http.Request, session, name string, asked *modelRequest) (*http.Response, error) {
	w := t.w
	w.checkWanted(t.p, session)
	w.providers.calls++
	call := w.providers.calls
	if !w.calm {
		switch {
		case w.chance(name, w.shape.modelRefuses):
			return t.refuse(r, name)
		case w.chance(name, w.shape.modelBreaks/4):
			w.note(name, "broken before it begins")
			return nil, errors.New("connection reset by peer")
		}
	}
	a := w.compose(name, call, asked)
	w.note(name, "answers", fmt.Sprint(call), a.what)
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"text/event-stream"}}, ContentLength: -1,
		Body: &answerBody{t: t, r: r, chunks: a.chunks, next: time.Now()},
	}, nil
}

func (t transport) refuse(r *http.Request, name string) (*http.Response, error) {
	status, body := 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`
	header := http.Header{"Content-Type": {"application/json"}}
	switch t.w.pick(name, 5) {
	case 4:
		status, body = http.StatusBadRequest, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 300 tokens > 200 maximum"}}`
	case 0:
		status, body = http.StatusTooManyRequests, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`
		header["Retry-After"] = []string{"2"}
	case 1:
		status, body = http.StatusTooManyRequests, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`
	case 2:
		status, body = http.StatusInternalServerError, `{"type":"error","error":{"type":"api_error","message":"oh"}}`
	}
	t.w.note(name, "refused", fmt.Sprint(status))
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: header, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// composed is a whole answer with its timing.
type composed struct {
	what   string
	chunks []chunk
}

func (c *composed) event(wait time.Duration, kind, data string) {
	c.chunks = append(c.chunks, chunk{wait: wait, data: "event: " + kind + "\ndata: " + data + "\n\n"})
}

// compose returns a unique answer, whose words name the call.
func (w *world) compose(name string, call int, asked *modelRequest) composed {
	var c composed
	pace := w.between(name, time.Millisecond, 400*time.Millisecond)
	if w.chance(name, 0.1) {
		pace = w.between(name, time.Second, 3*time.Second)
	}
	wait := func() time.Duration { return w.between(name, 0, pace) }
	c.event(wait(), "message_start", fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_%d","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":%d,"output_tokens":1}}}`, call, 10*len(asked.Messages)))
	block := 0
	words := w.pick(name, 7)
	for range min(words, 1+w.pick(name, 2)) {
		c.event(wait(), "content_block_start", fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"text","text":""}}`, block))
		for i := range words {
			c.event(wait(), "content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"%d.%d.%d "}}`, block, call, block, i))
		}
		c.event(wait(), "content_block_stop", fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, block))
		block++
	}
	tools := 0
	if len(asked.Tools) > 0 && len(asked.Messages) < 40 && w.chance(name, 0.5) {
		tools = 1 + w.pick(name, 3)
	}
	for i := range tools {
		tool := toolNames[w.pick(name, len(toolNames))]
		if w.shape.asks && w.pick(name, 6) == 0 {
			tool = clientTool
		}
		c.event(wait(), "content_block_start", fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"toolu_%d_%d","name":"%s","input":{}}}`, block, call, i, tool))
		c.event(wait(), "content_block_delta", fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":"{\"n\":%d}"}}`, block, i))
		c.event(wait(), "content_block_stop", fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, block))
		block++
	}
	reason := "end_turn"
	switch {
	case tools > 0:
		reason = "tool_use"
	case block > 0 && w.chance(name, 0.05):
		reason = "max_tokens"
	case block > 0 && w.chance(name, 0.03):
		reason = "pause_turn"
	}
	c.event(wait(), "message_delta", fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"%s"},"usage":{"output_tokens":%d}}`, reason, 7+call))
	c.event(wait(), "message_stop", `{"type":"message_stop"}`)
	c.what = fmt.Sprintf("%d words, %d tools, %s", words, tools, reason)
	if !w.calm && w.chance(name, w.shape.modelBreaks) {
		w.breakOff(name, &c)
	}
	return c
}

// breakOff makes an answer end early.
func (w *world) breakOff(name string, c *composed) {
	c.chunks = c.chunks[:1+w.pick(name, len(c.chunks)-1)]
	last := chunk{wait: 10 * time.Millisecond}
	switch w.pick(name, 4) {
	case 0:
		last.err, c.what = errors.New("connection reset by peer"), c.what+", reset"
	case 1:
		last.err, c.what = io.EOF, c.what+", cut"
	case 2:
		last.wait, last.err, c.what = time.Hour, io.EOF, c.what+", stall"
	case 3:
		last.data = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"
		c.what += ", error"
	}
	c.chunks = append(c.chunks, last)
}

// answerBody is the body of an answer that is being sent.
type answerBody struct {
	t      transport
	r      *http.Request
	chunks []chunk
	next   time.Time // when the one before was due
	rest   string
}

// Read implements io.Reader.
func (b *answerBody) Read(buf []byte) (int, error) {
	ctx := b.r.Context()
	if b.rest == "" {
		if len(b.chunks) == 0 {
			return 0, io.EOF
		}
		c := b.chunks[0]
		b.chunks = b.chunks[1:]
		var wait time.Duration
		b.t.w.locked(func() { wait = b.t.w.moment(time.Until(b.next.Add(c.wait))) })
		b.next = b.next.Add(c.wait)
		if err := sleep(ctx, wait); err != nil {
			return 0, err
		}
		if err := b.t.p.enter(ctx, b.t.p.name+" reads"); err != nil {
			return 0, err
		}
		if c.err != nil {
			b.chunks = []chunk{c}
			return 0, c.err
		}
		b.rest = c.data
	}
	n := copy(buf, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (*answerBody) Close() error { return nil }
