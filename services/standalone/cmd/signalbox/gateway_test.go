package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

const (
	sessionID  = "01a20000-0000-7000-8000-000000000001"
	documentID = "01a20000-0000-7000-8000-0000000000d1"
)

// gateway is a fake gateway with a session and a document.
type gateway struct {
	*httptest.Server
	mu       sync.Mutex // guards what follows
	model    string
	made     string // what the last new session was asked for: provider and model
	content  string
	sequence int64
	stopped  chan struct{} // closed by a cancel
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{model: "model-1", content: "# Tea\n\nIt is *hot*.\n", sequence: 7, stopped: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/sessions", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Provider, Model string }
		_ = json.NewDecoder(r.Body).Decode(&body) // the test checks the effect
		g.mu.Lock()
		g.made = body.Provider + " " + body.Model
		g.mu.Unlock()
		g.answer(w, map[string]any{"session": g.session()})
	})
	mux.HandleFunc("GET /api/sessions", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"sessions": []any{g.session()}, "next_cursor": nil})
	})
	mux.HandleFunc("GET /api/sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != sessionID {
			w.WriteHeader(http.StatusNotFound)
			g.answer(w, map[string]any{"error": "there is no such session"})
			return
		}
		g.answer(w, map[string]any{"session": g.session(), "active_run": nil, "messages": []any{
			map[string]any{"role": "user", "content": "an earlier question"},
			map[string]any{"role": "assistant", "content": []any{map[string]any{"type": "text", "text": "an **earlier** answer"}}},
		}})
	})
	mux.HandleFunc("PATCH /api/sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&body) // the test checks the effect
		g.mu.Lock()
		g.model = body.Model
		g.mu.Unlock()
		g.answer(w, map[string]any{"session": g.session()})
	})
	mux.HandleFunc("POST /api/sessions/{id}/cancel", func(w http.ResponseWriter, _ *http.Request) {
		close(g.stopped)
		g.answer(w, map[string]any{"success": true})
	})
	mux.HandleFunc("POST /api/sessions/{id}/messages", g.run)
	mux.HandleFunc("GET /api/tools", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"tools": []any{map[string]any{"name": "doc_list", "description": "Lists documents.", "available": true, "always": true}}})
	})
	mux.HandleFunc("GET /api/models", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"models": []any{map[string]any{
			"id": "other", "provider": "sim", "name": "Other", "context": 1000, "prices": map[string]any{"input": 0.5, "output": 3},
			"abilities": map[string]any{"tools": true}, "simulated": true, "default": true,
		}, map[string]any{"id": "sim/whole", "provider": "router"}}, "problems": []any{map[string]any{"provider": "away", "reason": "does not answer"}}})
	})
	mux.HandleFunc("GET /api/audit", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"audit": []any{map[string]any{
			"at": "2026-11-23T14:53:21.1Z", "member_id": nil, "action": "call-expired", "subject": "c1", "tool": "doc_delete", "session_id": sessionID, "detail": nil,
		}}, "next_cursor": nil})
	})
	mux.HandleFunc("GET /api/mcp-servers/audit", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"audit": []any{map[string]any{
			"at": "2026-11-23T14:53:21.1Z", "member_id": "m1", "action": "server-added", "server_id": "s1", "server_name": "wiki", "detail": "https://wiki.example",
		}}, "next_cursor": nil})
	})
	mux.HandleFunc("GET /api/documents", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"documents": []any{g.document(false)}, "next_cursor": nil})
	})
	mux.HandleFunc("GET /api/documents/{id}", func(w http.ResponseWriter, _ *http.Request) {
		g.answer(w, map[string]any{"document": g.document(true)})
	})
	mux.HandleFunc("PATCH /api/documents/{id}", g.patch)
	g.Server = httptest.NewServer(mux)
	t.Cleanup(g.Close)
	return g
}

// environ configures the command line for the gateway.
func (g *gateway) environ() []string {
	return []string{"SIGNALBOX_URL=" + g.URL, "SIGNALBOX_TOKEN=t", "SIGNALBOX_WORKSPACE=01a20000-0000-7000-8000-0000000000aa"}
}

func (g *gateway) answer(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) } // the client went away

func (g *gateway) session() map[string]any {
	g.mu.Lock()
	defer g.mu.Unlock()
	return map[string]any{"id": sessionID, "title": "About tea", "provider": "sim", "model": g.model, "tools": nil, "updated_at": "2026-11-23T14:53:21.1Z"}
}

func (g *gateway) document(whole bool) map[string]any {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := map[string]any{"id": documentID, "name": "Tea", "updated_at": "2026-11-23T14:53:21.1Z", "sequence": g.sequence}
	if whole {
		d["content"] = g.content
	}
	return d
}

func (g *gateway) lastMade() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.made
}

func (g *gateway) patch(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Content string
		Base    int64
	}
	_ = json.NewDecoder(r.Body).Decode(&body) // the test checks the effect
	g.mu.Lock()
	base := body.Base == g.sequence
	if base {
		g.content = body.Content
		g.sequence++
	}
	g.mu.Unlock()
	if !base {
		w.WriteHeader(http.StatusConflict)
		g.answer(w, map[string]any{"error": "the base is gone"})
		return
	}
	out := map[string]any{"document": g.document(false)}
	if strings.Contains(body.Content, "<kbd>") {
		out["warnings"] = []any{map[string]any{"line": 3, "what": "the HTML <kbd>", "kept_as": "text"}}
	}
	g.answer(w, out)
}

// run answers a message: "wait" until it is cancelled, "fail" with an error.
func (g *gateway) run(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != sessionID {
		w.WriteHeader(http.StatusNotFound)
		g.answer(w, map[string]any{"error": "there is no such session"})
		return
	}
	var body struct{ Content string }
	_ = json.NewDecoder(r.Body).Decode(&body) // the test checks the effect
	n := 0
	event := func(kind, data string) {
		n++
		fmt.Fprintf(w, "event: %s\ndata: %s\nid: 1-%d\n\n", kind, data, n)
		_ = http.NewResponseController(w).Flush() // the client went away
	}
	switch body.Content {
	case "wait":
		event("text-delta", `{"delta":"one two\n\nthree"}`)
		select {
		case <-g.stopped:
			event("done", `{"finishReason":"cancelled","steps":1,"totalTokensIn":1,"totalTokensOut":2}`)
		case <-r.Context().Done():
		}
	case "fail":
		event("error", `{"error":"The provider is on fire."}`)
	default:
		event("tool-call-complete", `{"toolName":"doc_list","args":{"query":"tea"}}`)
		event("tool-result", `{"toolName":"doc_list","result":"{\"documents\":1}"}`)
		event("text-delta", `{"delta":"# Found\n\nThere is **one** about "}`)
		event("text-delta", `{"delta":"tea."}`)
		event("done", `{"finishReason":"stop","steps":2,"totalTokensIn":3,"totalTokensOut":4}`)
	}
}
