package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"signalbox.dev/pkg/sse"
)

// maxAnswer bounds responses and events.
const maxAnswer = 32 << 20

// Client is a member's client of one gateway. It has no state and may be copied.
type Client struct {
	URL  string
	Who  Member
	HTTP *http.Client
}

// Client returns a client for the gateway with that index, from 0.
func (w *World) Client(gateway int, who Member) Client {
	return Client{w.Gateways[gateway], who, w.HTTP}
}

// Refused is an unsuccessful response.
type Refused struct {
	Status     int           `json:"-"`
	Message    string        `json:"error"`
	Code       string        `json:"code"`
	RetryAfter time.Duration `json:"-"`
}

// Error implements error.
func (r *Refused) Error() string { return fmt.Sprintf("%d %s %s", r.Status, r.Code, r.Message) }

// Temporary reports whether the same request may succeed later.
func (r *Refused) Temporary() bool {
	return r.Status == http.StatusTooManyRequests || r.Status >= http.StatusInternalServerError
}

// Request is a request; empty fields are omitted.
type Request struct {
	Method, Path string
	Header       http.Header
	Body         any // sent as JSON
}

// Do sends a request and returns a successful response, whose body the caller closes. The error
// for other responses is a *Refused.
func (c Client) Do(ctx context.Context, r Request) (*http.Response, error) {
	var body io.Reader
	if r.Body != nil {
		b, err := json.Marshal(r.Body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, c.URL+r.Path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Who.Token)
	req.Header.Set("X-Workspace-Id", c.Who.Workspace)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, r.Header)
	res, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, refusal(res)
	}
	return res, nil
}

func refusal(res *http.Response) *Refused {
	out := &Refused{Status: res.StatusCode}
	b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<16)) // the status is what matters
	if json.Unmarshal(b, out) != nil || out.Message == "" {
		out.Message = string(b)
	}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		out.RetryAfter = time.Duration(seconds) * time.Second
	}
	return out
}

// Call sends a request and decodes the JSON response into out, unless out is nil.
func (c Client) Call(ctx context.Context, r Request, out any) error {
	res, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// Run is a run in the API.
type Run struct {
	ID            string     `json:"id"`
	SessionID     string     `json:"session_id"`
	Ordinal       int64      `json:"ordinal"`
	State         string     `json:"state"` // queued, running, waiting, done, failed, cancelled
	UserMessageID string     `json:"user_message_id"`
	Steps         int        `json:"steps"`
	Text          string     `json:"text"` // of the last step
	FinishReason  *string    `json:"finish_reason"`
	LastEventID   *string    `json:"last_event_id"`
	StartedAt     *time.Time `json:"started_at"`
	EndedAt       *time.Time `json:"ended_at"`
	Error         *struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	} `json:"error"`
	ToolCalls []ToolCall `json:"-"` // of Client.Run only
}

// Ended reports whether nothing more will happen to the run.
func (r Run) Ended() bool { return r.State == "done" || r.State == "failed" || r.State == "cancelled" }

// ToolCall is a tool call of a run.
type ToolCall struct {
	StepIndex int             `json:"step_index"`
	ID        string          `json:"tool_call_id"`
	Tool      string          `json:"tool_name"`
	Args      json.RawMessage `json:"args"`
	Phase     string          `json:"phase"`
	State     *string         `json:"state"` // ok, error, unknown, cancelled
	Result    *string         `json:"result"`
	Approval  *Approval       `json:"approval"`
}

// Approval is a question to a person about a tool call, and the answer.
type Approval struct {
	RunID    string          `json:"run_id"`
	CallID   string          `json:"tool_call_id"`
	Tool     string          `json:"tool_name"`
	Args     json.RawMessage `json:"args"`
	Question string          `json:"question"` // approval, outcome
	AskedAt  string          `json:"asked_at"` // identifies the question
	// Decision is approved, refused, expired, happened, repeat, rule, or nil.
	Decision *string `json:"decision"`
}

// Message is a stored message.
type Message struct {
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	RunID     *string         `json:"run_id"`
	StepIndex *int            `json:"step_index"`
}

// Text returns the message's text: its string, or its text parts joined.
func (m Message) Text() string {
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		return text
	}
	var parts []struct{ Type, Text string }
	if json.Unmarshal(m.Content, &parts) != nil {
		return ""
	}
	for _, p := range parts {
		if p.Type == "text" {
			text += p.Text
		}
	}
	return text
}

// NewSession creates a session. model is for instance sim/<script>, or "" for the default.
func (c Client) NewSession(ctx context.Context, model string) (string, error) {
	body := map[string]any{}
	if model != "" {
		body["model"] = model
	}
	var made struct {
		Session struct {
			ID string `json:"id"`
		} `json:"session"`
	}
	err := c.Call(ctx, Request{Method: http.MethodPost, Path: "/api/sessions", Body: body}, &made)
	return made.Session.ID, err
}

// Sending is a message to send. Key is the Idempotency-Key.
type Sending struct {
	Content any    `json:"content"`
	Mode    string `json:"mode,omitempty"` // queue (the default), steer, reject
	Key     string `json:"idempotency_key,omitempty"`
}

func sendPath(session string) string { return "/api/sessions/" + session + "/messages" }

// Submit sends a message and returns its run.
func (c Client) Submit(ctx context.Context, session string, s Sending) (Run, error) {
	var out struct {
		Run Run `json:"run"`
	}
	err := c.Call(ctx, Request{
		Method: http.MethodPost, Path: sendPath(session), Header: http.Header{"Prefer": {"respond-async"}}, Body: s,
	}, &out)
	return out.Run, err
}

// Send sends a message and streams the run's events until its end.
func (c Client) Send(ctx context.Context, session string, s Sending) (*Stream, error) {
	return c.stream(ctx, Request{Method: http.MethodPost, Path: sendPath(session), Header: http.Header{}, Body: s})
}

// Cancel stops the session's runs.
func (c Client) Cancel(ctx context.Context, session string) error {
	return c.Call(ctx, Request{Method: http.MethodPost, Path: "/api/sessions/" + session + "/cancel", Body: map[string]any{"all": true}}, nil)
}

// Run reads a run.
func (c Client) Run(ctx context.Context, run string) (Run, error) {
	var out struct {
		Run       Run        `json:"run"`
		ToolCalls []ToolCall `json:"tool_calls"`
	}
	err := c.Call(ctx, Request{Method: http.MethodGet, Path: "/api/runs/" + run}, &out)
	out.Run.ToolCalls = out.ToolCalls
	return out.Run, err
}

// Messages reads a session's messages in order.
func (c Client) Messages(ctx context.Context, session string) ([]Message, error) {
	var out struct {
		Messages []Message `json:"messages"`
	}
	err := c.Call(ctx, Request{Method: http.MethodGet, Path: "/api/sessions/" + session}, &out)
	return out.Messages, err
}

// Approvals lists a session's calls that wait for a person.
func (c Client) Approvals(ctx context.Context, session string) ([]Approval, error) {
	var out struct {
		Approvals []Approval `json:"approvals"`
	}
	err := c.Call(ctx, Request{Method: http.MethodGet, Path: "/api/approvals?session_id=" + session}, &out)
	return out.Approvals, err
}

// Decide answers for a call that waits, with a body such as {"approved":true}.
func (c Client) Decide(ctx context.Context, session, call string, body any) (Approval, error) {
	var out struct {
		Approval Approval `json:"approval"`
	}
	err := c.Call(ctx, Request{Method: http.MethodPost, Path: "/api/sessions/" + session + "/approvals/" + call, Body: body}, &out)
	return out.Approval, err
}

// SessionEvents is the path of a session's events, RunEvents of a run's.
func SessionEvents(session string) string { return "/api/sessions/" + session + "/events" }

// RunEvents is the path of a run's events.
func RunEvents(run string) string { return "/api/runs/" + run + "/events" }

// ErrNothingMore means that a stream has ended already: there are no events after the given one.
var ErrNothingMore = errors.New("no events follow this one")

// Watch streams the events of a path after the event with the id after. With "", a session
// starts now and a run at its beginning. The error may be ErrNothingMore.
func (c Client) Watch(ctx context.Context, path, after string) (*Stream, error) {
	r := Request{Method: http.MethodGet, Path: path, Header: http.Header{}}
	if after != "" {
		r.Header.Set("Last-Event-ID", after)
	}
	return c.stream(ctx, r)
}

func (c Client) stream(ctx context.Context, r Request) (*Stream, error) {
	r.Header.Set("Accept", "text/event-stream")
	res, err := c.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusNoContent {
		_ = res.Body.Close()
		return nil, ErrNothingMore
	}
	return &Stream{Run: res.Header.Get("X-Run-Id"), body: res.Body, reader: sse.NewReader(res.Body, maxAnswer)}, nil
}

// Stream is an open stream of events. It belongs to one goroutine, but any may call Close.
type Stream struct {
	Run    string // the id of the run that answers a sent message, or that is watched
	body   io.ReadCloser
	reader *sse.Reader
}

// Next returns the next event, which is valid until the next call. io.EOF means a clean end; any
// other error means that the stream was cut.
func (s *Stream) Next() (sse.Event, error) { return s.reader.Next() }

// Close ends the stream.
func (s *Stream) Close() error { return s.body.Close() }

// Follow passes the events of a path to take until take returns false, the stream ends cleanly
// or ctx is done. When the stream breaks, it resumes after the last event with the client that
// next returns, a tenth of a second later.
func Follow(ctx context.Context, next func() Client, path, after string, take func(sse.Event) bool) error {
	for {
		s, err := next().Watch(ctx, path, after)
		if errors.Is(err, ErrNothingMore) {
			return nil
		}
		if r, ok := errors.AsType[*Refused](err); ok && !r.Temporary() {
			return err
		}
		for err == nil {
			var ev sse.Event
			if ev, err = s.Next(); err != nil {
				break
			}
			after = string(ev.ID)
			if !take(ev) {
				return s.Close()
			}
		}
		if s != nil {
			_ = s.Close()
			if errors.Is(err, io.EOF) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// PutScript gives the simulated provider a script (YAML) for the model sim/<name>. A restarted
// simulator has lost it.
func (w *World) PutScript(ctx context.Context, name, script string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, w.Simulator+"/simulator/scripts/"+url.PathEscape(name), bytes.NewBufferString(script))
	if err != nil {
		return err
	}
	res, err := w.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("script %s: %w", name, refusal(res))
	}
	return nil
}
