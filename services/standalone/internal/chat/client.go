// Package chat is the terminal client: it speaks the public API and nothing else,
// as any front end does.
//
// A message is sent under an idempotency key. When the connection breaks before an
// event came, the same message is sent again under the same key, which follows the
// same run; when it breaks later, the session's events are read from the last one
// that came. So nothing is shown twice and nothing is missed, whatever dies between.
package chat

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/sse"
)

// Client speaks with one gateway as one member of one workspace.
type Client struct {
	URL       string
	Token     string
	Workspace string
	HTTP      *http.Client
	// Notice is told what the person may want to know: that a connection broke.
	Notice func(format string, args ...any)
}

const (
	maxEvent    = 4 << 20
	maxAnswer   = 1 << 20
	reconnect   = 500 * time.Millisecond
	giveUpAfter = 2 * time.Minute
)

// Event is one event of the stream; Data is its JSON.
type Event struct {
	Type string
	ID   string
	Data json.RawMessage
}

// errFinal marks an answer that a second try would not change.
type errFinal struct{ error }

// CreateSession makes a session and returns its id.
func (c *Client) CreateSession(ctx context.Context, fields map[string]any) (string, error) {
	var out struct {
		Session struct{ ID string }
	}
	if err := c.call(ctx, http.MethodPost, "/api/sessions", fields, &out); err != nil {
		return "", fmt.Errorf("create a session: %w", err)
	}
	return out.Session.ID, nil
}

// Cancel stops the session's runs.
func (c *Client) Cancel(ctx context.Context, session string) error {
	if err := c.call(ctx, http.MethodPost, "/api/sessions/"+url.PathEscape(session)+"/cancel", map[string]any{}, nil); err != nil {
		return fmt.Errorf("stop the run: %w", err)
	}
	return nil
}

// Send sends a message and calls got for each event until the run has ended.
func (c *Client) Send(ctx context.Context, session, text string, got func(Event) error) error {
	f := follower{Client: c, session: session, got: got}
	f.body, f.err = json.Marshal(map[string]any{"content": text, "idempotency_key": rand.Text()})
	if f.err != nil {
		return f.err
	}
	broken := time.Time{}
	for {
		before := f.last
		ended, err := f.attempt(ctx)
		if ended || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if final, ok := errors.AsType[errFinal](err); ok {
			return final.error
		}
		if f.last != before || broken.IsZero() {
			broken = time.Now()
		}
		if time.Since(broken) > giveUpAfter {
			return fmt.Errorf("the connection does not come back: %w", err)
		}
		c.Notice("connection broken (%v), resuming", err)
		select {
		case <-time.After(reconnect):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follower is one message's way to its end, over as many connections as it takes.
type follower struct {
	*Client
	session string
	body    []byte
	err     error
	last    string // id of the last event
	got     func(Event) error
}

// attempt reads one connection. ended means that the run has.
func (f *follower) attempt(ctx context.Context) (ended bool, err error) {
	path, method, body := "/api/sessions/"+url.PathEscape(f.session)+"/messages", http.MethodPost, f.body
	if f.last != "" {
		path, method, body = "/api/sessions/"+url.PathEscape(f.session)+"/events", http.MethodGet, nil
	}
	req, err := f.request(ctx, method, path, body)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if f.last != "" {
		req.Header.Set("Last-Event-ID", f.last)
	}
	res, err := f.HTTP.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return false, failure(res)
	}
	return f.read(sse.NewReader(res.Body, maxEvent))
}

func (f *follower) read(r *sse.Reader) (ended bool, err error) {
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return false, errors.New("the stream ended early")
		}
		if err != nil {
			return false, err
		}
		// A session's stream carries later runs too: ours has the ordinal that the
		// first event had.
		run, _, _ := strings.Cut(string(ev.ID), "-")
		mine, _, _ := strings.Cut(f.last, "-")
		if f.last != "" && run != mine {
			continue
		}
		f.last = string(ev.ID)
		out := Event{Type: ev.Type, ID: f.last, Data: bytes.Clone(ev.Data)}
		if err := f.got(out); err != nil {
			return true, err
		}
		if out.Type == "done" || out.Type == "error" {
			return true, nil
		}
	}
}

func (c *Client) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, errFinal{fmt.Errorf("address of Signalbox: %w", err)}
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("X-Workspace-Id", c.Workspace)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return failure(res)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(out)
}

// failure reads an answer that is none. What a second try may mend is not final.
func failure(res *http.Response) error {
	var said struct{ Error string }
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // what came of it is better than nothing
	if json.Unmarshal(b, &said) != nil || said.Error == "" {
		said.Error = res.Status
	}
	err := errors.New(said.Error)
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return err
	}
	return errFinal{err}
}
