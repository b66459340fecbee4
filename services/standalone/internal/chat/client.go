// Package chat is the terminal client. Like any front end, it uses only the public API.
//
// A message is sent with an idempotency key. If the connection breaks before the first
// event, the message is sent again with the same key, which follows the same run; if it
// breaks later, the session's events are read from the last received one. So nothing is
// shown twice or missed, whatever fails in between.
package chat

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/seal"
	"signalbox.dev/pkg/sse"
)

// Client calls one gateway as one member of one workspace.
type Client struct {
	URL       string
	Token     string
	Workspace string
	HTTP      *http.Client
	// Flags are what a suggested command needs to reach the same Signalbox, with a leading
	// space: " --data there".
	Flags string
	// Notice reports to the person, for example that a connection broke.
	Notice func(format string, args ...any)
}

const (
	maxEvent    = 4 << 20
	maxAnswer   = 64 << 20 // a document of 10 MiB, and a session, as JSON
	reconnect   = 500 * time.Millisecond
	giveUpAfter = 2 * time.Minute
)

// Event is one event of the stream, with its JSON.
type Event struct {
	Type string
	ID   string
	Data json.RawMessage
}

// Refusal is an error response.
type Refusal struct {
	Status  int
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// errFinal marks an error that a retry would not change.
type errFinal struct{ error }

func (e errFinal) Unwrap() error { return e.error }

// Send sends a message and calls got for each event until the run has ended.
func (c *Client) Send(ctx context.Context, session, text string, got func(Event) error) error {
	body, err := json.Marshal(map[string]any{"content": text, "idempotency_key": rand.Text()})
	if err != nil {
		return err
	}
	f := follower{Client: c, path: sessionPath(session) + "/messages", body: body, again: sessionPath(session) + "/events", got: got}
	return f.follow(ctx)
}

// Follow calls got for each event of a run, from the first until the run has ended.
func (c *Client) Follow(ctx context.Context, run string, got func(Event) error) error {
	path := "/api/runs/" + url.PathEscape(run) + "/events"
	f := follower{Client: c, path: path, again: path, got: got}
	return f.follow(ctx)
}

// follower reads one run to its end, over as many connections as that takes.
type follower struct {
	*Client
	path  string // of the first request
	body  []byte // of the first request, which is a POST if there is one
	again string // the path of later requests, for the events after last
	last  string // id of the last event
	got   func(Event) error
}

func (f *follower) follow(ctx context.Context) error {
	broken, told := time.Time{}, ""
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
			broken, told = time.Now(), ""
		}
		if time.Since(broken) > giveUpAfter {
			return fmt.Errorf("cannot reconnect: %w", err)
		}
		if u, ok := errors.AsType[*url.Error](err); ok { // without the address
			err = u.Err
		}
		if err.Error() != told { // each reason once
			told = err.Error()
			f.Notice("connection broken (%v), resuming", err)
		}
		select {
		case <-time.After(reconnect):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attempt reads one connection. ended reports whether the run has ended.
func (f *follower) attempt(ctx context.Context) (ended bool, err error) {
	path, method, body := f.path, http.MethodPost, f.body
	if f.last != "" {
		path, body = f.again, nil
	}
	if body == nil {
		method = http.MethodGet
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
		// A session's stream contains later runs too: ours has the ordinal of the first event.
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

// call makes one request; in and out may be nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
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

// failure reads an error response. It is final unless a retry may help.
func failure(res *http.Response) error {
	var said struct{ Error string }
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // a part is better than nothing
	if json.Unmarshal(b, &said) != nil || said.Error == "" {
		said.Error = res.Status
	}
	err := error(&Refusal{Status: res.StatusCode, Message: said.Error})
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return err
	}
	return errFinal{err}
}

// AddAccount stores a provider's key: fields are those of POST /api/accounts, and the secret
// is sealed so that only the credential broker can read it. It returns the account's id.
func (c *Client) AddAccount(ctx context.Context, fields map[string]any, secret conf.Secret) (string, error) {
	var key struct {
		Key struct {
			ID     string `json:"id"`
			Public []byte `json:"public_key"`
		} `json:"sealing_key"`
	}
	if err := c.call(ctx, http.MethodGet, "/api/accounts/sealing-key", nil, &key); err != nil {
		return "", fmt.Errorf("get the sealing key: %w", err)
	}
	provider, _ := fields["provider"].(string)
	base, _ := fields["base_url"].(string)
	sealed, err := seal.Seal(key.Key.Public, seal.Secret(c.Workspace, provider, base), []byte(secret.Reveal()))
	if err != nil {
		return "", err
	}
	fields = maps.Clone(fields)
	fields["sealed_secret"] = map[string]any{"key_id": key.Key.ID, "sealed": sealed}
	var out struct {
		Account struct{ ID string }
	}
	if err := c.call(ctx, http.MethodPost, "/api/accounts", fields, &out); err != nil {
		return "", fmt.Errorf("add the account: %w", err)
	}
	return out.Account.ID, nil
}
