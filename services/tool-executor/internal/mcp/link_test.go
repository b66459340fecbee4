package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/services/tool-executor/internal/mcp"
)

// counting is a server of the older protocol, with sessions: its tool returns how often the
// session has called it.
type counting struct {
	url     string
	silent  bool          // announces nothing
	refused chan struct{} // gets a value when a stream is refused

	mu        sync.Mutex // guards the fields below
	calls     map[string]int
	version   int
	ended     []string
	cancelled chan time.Time
	hang      chan struct{}            // gets a value when a call hangs
	streams   map[string]chan struct{} // announces a change for each value
}

func newCounting(t *testing.T) *counting {
	t.Helper()
	c := &counting{refused: make(chan struct{}, 16), calls: map[string]int{}, cancelled: make(chan time.Time, 1), hang: make(chan struct{}, 1), streams: map[string]chan struct{}{}}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session := r.Header.Get("Mcp-Session-Id")
	body, _ := io.ReadAll(r.Body)
	var q rpcRequest
	_ = json.Unmarshal(body, &q)
	c.mu.Lock()
	_, known := c.calls[session]
	switch {
	case q.Method == "initialize":
		session = fmt.Sprintf("session-%d", len(c.calls)+1)
		c.calls[session], c.streams[session] = 0, make(chan struct{}, 1)
		c.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", session)
		result(w, q, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}`)
		return
	case !known:
		c.mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		return
	}
	stream := c.streams[session]
	if q.Method == "tools/call" {
		c.calls[session]++
	}
	if r.Method == http.MethodDelete {
		c.ended = append(c.ended, session)
	}
	count, version := c.calls[session], c.version
	c.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && c.silent:
		w.WriteHeader(http.StatusMethodNotAllowed)
		c.refused <- struct{}{}
	case r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case <-stream:
				_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n\n")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case q.Method == "tools/list":
		result(w, q, fmt.Sprintf(`{"tools":[{"name":"count","description":"Counts. Version %d.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`, version))
	case q.Method == "tools/call" && strings.Contains(string(body), "hang"):
		c.hang <- struct{}{}
		<-r.Context().Done()
	case q.Method == "tools/call":
		result(w, q, fmt.Sprintf(`{"content":[{"type":"text","text":"%s: %d"}]}`, session, count))
	case q.Method == "notifications/cancelled":
		c.cancelled <- time.Now()
		fallthrough
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// forget makes the server forget its sessions, as if it had started again.
func (c *counting) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.calls {
		c.calls[s+"-forgotten"] = 0
		delete(c.calls, s)
	}
}

// inSession returns a context in which a run of a new session acts.
func inSession(t *testing.T) context.Context {
	t.Helper()
	return identity.With(t.Context(), identity.Actor{Session: id.New[id.Session]()})
}

func newClient(t *testing.T) *mcp.Client {
	t.Helper()
	allowed, err := netguard.ParseAllowed("127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	guard := netguard.New(netguard.Config{Allowed: allowed})
	c := mcp.NewClient(guard.Transport())
	t.Cleanup(guard.Client(0).CloseIdleConnections)
	return c
}

// TestSessions calls a server that remembers its sessions: one conversation has one session,
// others have others, and a new one begins when the server has forgotten it.
func TestSessions(t *testing.T) {
	t.Parallel()
	far, c := newCounting(t), newClient(t)
	t.Cleanup(c.Close) // before the server
	server := mcp.Server{Workspace: id.New[id.Workspace](), ID: mcp.ServerID{Operation: id.New[id.Operation]()}, Name: "counting", URL: far.url}
	one, two := inSession(t), inSession(t)
	var got []string
	call := func(ctx context.Context) {
		t.Helper()
		r, err := c.Call(ctx, server, "count", map[string]any{})
		if err != nil {
			t.Fatal(err)
		}
		var text struct{ Result string }
		if err := json.Unmarshal([]byte(r.JSON()), &text); err != nil {
			t.Fatal(err)
		}
		got = append(got, text.Result)
	}
	call(one)
	call(one)
	call(two)
	call(one)
	far.forget()
	call(one)
	call(one)
	call(t.Context()) // belongs to no conversation
	call(t.Context())
	want := []string{"session-1: 1", "session-1: 2", "session-2: 1", "session-1: 3", "session-3: 1", "session-3: 2", "session-4: 1", "session-5: 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	c.Close()
	far.mu.Lock()
	defer far.mu.Unlock()
	slices.Sort(far.ended)
	if diff := cmp.Diff([]string{"session-3", "session-4", "session-5"}, far.ended); diff != "" {
		t.Errorf("sessions that the client has ended (-want +got):\n%s", diff)
	}
}

// TestManySessions has more conversations than sessions that are kept.
func TestManySessions(t *testing.T) {
	t.Parallel()
	far, c := newCounting(t), newClient(t)
	t.Cleanup(c.Close) // before the server
	server := mcp.Server{Workspace: id.New[id.Workspace](), Name: "counting", URL: far.url}
	for range mcp.MaxWorkspaceLinks + 3 {
		if _, err := c.Call(inSession(t), server, "count", map[string]any{}); err != nil {
			t.Fatal(err)
		}
	}
	if open := c.Open(); open != mcp.MaxWorkspaceLinks {
		t.Errorf("%d sessions are kept, want %d", open, mcp.MaxWorkspaceLinks)
	}
}

// TestCancelInSession stops a call: the server is told, and the session goes on.
func TestCancelInSession(t *testing.T) {
	t.Parallel()
	far, c := newCounting(t), newClient(t)
	t.Cleanup(c.Close) // before the server
	far.silent = true
	server := mcp.Server{Workspace: id.New[id.Workspace](), Name: "counting", URL: far.url}
	session := inSession(t)
	ctx, cancel := context.WithCancel(session)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, server, "count", map[string]any{"hang": true})
		ended <- err
	}()
	<-far.hang
	<-far.refused // which does not end the session
	begin := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call = %v", err)
	}
	select {
	case at := <-far.cancelled:
		t.Logf("the server is told after %v", at.Sub(begin))
	case <-time.After(time.Minute):
		t.Error("the server is not told")
	}
	if r, err := c.Call(session, server, "count", map[string]any{}); err != nil || r.JSON() != `{"result":"session-1: 2"}` {
		t.Errorf("the next call = %s, %v, want the second one of the session", r.JSON(), err)
	}
}

// TestAnnouncedChange lets servers of both protocols change their tools in the middle of a
// conversation, and announce it.
func TestAnnouncedChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "")
	far, g := newCounting(t), newGoodServer(t)
	t.Cleanup(w.servers.Close) // before the servers
	older, newer := w.create(t, "older", far.url), w.create(t, "newer", g.url)
	ctx := identity.With(t.Context(), identity.Actor{Workspace: w.ws, Session: id.New[id.Session]()})
	callIn(ctx, t, w.tools(t)["mcp__older__count"], `{}`)
	callIn(ctx, t, w.tools(t)["mcp__newer__echo"], `{"text":"a"}`)
	w.age(t) // as if the servers had been checked long ago

	far.mu.Lock()
	far.version++
	for _, s := range far.streams {
		s <- struct{}{}
	}
	far.mu.Unlock()
	sdk.AddTool(g.sdk, &sdk.Tool{Name: "new", Description: "New."}, func(context.Context, *sdk.CallToolRequest, textArgs) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{}, nil, nil
	})
	deadline := time.After(20 * time.Second)
	for _, s := range []mcp.Server{older, newer} {
		for changed := false; !changed; {
			select {
			case <-deadline:
				t.Fatalf("the change of %s is not noticed", s.Name)
			case <-time.After(5 * time.Millisecond):
			}
			all, err := w.servers.List(t.Context(), w.ws)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range all {
				for _, l := range row.Listed() {
					changed = changed || row.ID == s.ID && l.Changed
				}
			}
		}
	}
}
