// Package stops measures how soon a stop reaches the far end of a running tool. Its far ends take
// a request and never answer; what is measured is the time from the request to stop the run until
// the far end's connection is closed.
//
// The operator's MCP server is the program that uses this package: it calls Serve first.
//
// There is a row of kinds for each way in which a tool reaches outside of its executor. A tool
// that reaches it in a new way gets a row. Tools that the caller runs (client-side) have no far
// end.
package stops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/sse"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// Kind is a way in which a tool reaches outside.
type Kind struct {
	Name string
	tool string // that the model calls
	args string
}

// Kinds are all of them.
var Kinds = []Kind{
	{"a document (document-sync)", "doc_read", `{"id":"0198a000-0000-7000-8000-000000000001"}`},
	{"a change of a document (document-sync)", "doc_append", `{"id":"0198a000-0000-7000-8000-000000000001","content":"x"}`},
	{"a service that is read (REST through the broker)", "calendar_list_events", `{}`},
	{"a service that is changed (REST through the broker)", "calendar_create_event", `{"title":"x","start":"2031-02-03"}`},
	{"the research repository (REST through the broker)", "read_research", `{"path":"README.md"}`},
	{"an MCP server (streamable HTTP)", "mcp__slow__wait", `{}`},
	{"an operator's MCP server (standard input)", "mcp__own__wait", `{}`},
	{"a web page (Chromium)", "browser_open", `{"url":"http://OUTSIDE/page"}`},
	{"a search of the web (the provider's stream)", "web_search", ""},
}

// Rig is a cluster whose model and far ends belong to the caller.
type Rig struct {
	world   *world.World
	client  world.Client
	address string // of the far ends
	dir     string
	missing map[string]string // why a tool cannot be used, by name
	outside []*http.Server
	held    chan held
}

// held is a request that a far end does not answer.
type held struct{ closed <-chan time.Time }

// Start starts a rig. start is world.Start, or a function that completes the options for it. The
// caller closes the rig.
func Start(ctx context.Context, o world.Options, start func(context.Context, world.Options) (*world.World, error)) (r *Rig, err error) {
	r = &Rig{held: make(chan held, 16)}
	defer func() { //nolint:contextcheck // it has to end whatever became of ctx
		if err != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()
	mux := http.NewServeMux()
	mux.HandleFunc("/", r.model)
	mux.HandleFunc("/google/", r.hold)
	mux.HandleFunc("/github/", r.hold)
	mux.HandleFunc("/mcp", r.mcp)
	mux.HandleFunc("/wait", r.hold)
	mux.HandleFunc("/page", r.hold)
	outside, err := r.serve(ctx, mux)
	if err != nil {
		return r, err
	}
	r.address = outside
	if r.dir, err = os.MkdirTemp("", "signalbox-stops-"); err != nil {
		return r, err
	}
	own, err := ownServer(r.dir, outside)
	if err != nil {
		return r, err
	}
	documents, err := r.serve(ctx, http.HandlerFunc(r.hold))
	if err != nil {
		return r, err
	}
	o.Via = func(l world.Link) (string, error) {
		switch {
		case l.To == world.SimulatorName:
			return outside, nil
		case strings.HasPrefix(l.From, subject.ToolExecutor) && strings.HasPrefix(l.To, subject.DocumentSync):
			return documents, nil
		}
		return l.Address, nil
	}
	more := o.Env
	o.Env = func(service string, replica int) []string {
		env := []string{
			"TOOL_EXECUTOR_ALLOW_PRIVATE=" + outside, "TOOL_EXECUTOR_MCP_SERVERS=" + own,
			"TOOL_EXECUTOR_BROWSER=local", "BROWSER_ALLOW_PRIVATE=" + outside, "CHROMIUM=" + os.Getenv("CHROMIUM"),
		}
		if more != nil {
			env = append(env, more(service, replica)...)
		}
		return env
	}
	if r.world, err = start(ctx, o); err != nil {
		return r, err
	}
	owner, err := r.world.NewMember(ctx, "", "owner")
	if err != nil {
		return r, err
	}
	r.client = r.world.Client(len(r.world.Gateways)-1, owner)
	if err := r.post(ctx, "/api/mcp-servers", map[string]any{"name": "slow", "url": "http://" + outside + "/mcp"}, nil); err != nil {
		return r, err
	}
	if err := r.post(ctx, "/api/approval-rules", map[string]any{"tool": "calendar_create_event", "effect": "allow"}, nil); err != nil {
		return r, err
	}
	return r, r.look(ctx)
}

// look finds out which tools there are, once the operator's server has been asked for its own.
func (r *Rig) look(ctx context.Context) error {
	var servers struct {
		Servers []struct{ ID string } `json:"mcp_servers"`
	}
	if err := r.get(ctx, "/api/mcp-servers", &servers); err != nil {
		return err
	}
	for _, s := range servers.Servers {
		if err := r.post(ctx, "/api/mcp-servers/"+s.ID+"/test", struct{}{}, nil); err != nil {
			return err
		}
	}
	var list struct {
		Tools []struct {
			Name      string
			Available bool
			Reason    string `json:"unavailable_reason"`
		}
	}
	if err := r.get(ctx, "/api/tools", &list); err != nil {
		return err
	}
	r.missing = map[string]string{}
	for _, t := range list.Tools {
		if !t.Available {
			r.missing[t.Name] = t.Reason
		}
	}
	return nil
}

// Missing returns why a kind cannot be measured on this machine, or "". Only Chromium may be
// missing.
func (r *Rig) Missing(k Kind) string {
	if !strings.HasPrefix(k.tool, "browser_") {
		return ""
	}
	return r.missing[k.tool]
}

func (r *Rig) serve(ctx context.Context, h http.Handler) (addr string, err error) {
	l, err := httpserver.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	r.outside = append(r.outside, s)
	go func() { _ = s.Serve(l) }() // until Close
	return l.Addr().String(), nil
}

// Close ends the rig.
func (r *Rig) Close() (err error) {
	if r.world != nil {
		err = r.world.Close()
	}
	for _, s := range r.outside {
		err = errors.Join(err, s.Close())
	}
	if r.dir != "" {
		err = errors.Join(err, os.RemoveAll(r.dir))
	}
	return err
}

func (r *Rig) get(ctx context.Context, path string, out any) error {
	return r.client.Call(ctx, world.Request{Method: http.MethodGet, Path: path}, out)
}

func (r *Rig) post(ctx context.Context, path string, body, out any) error {
	return r.client.Call(ctx, world.Request{Method: http.MethodPost, Path: path, Body: body}, out)
}

// Stop stops a run while its tool runs, and returns how long the far end's connection stayed
// open. It waits until the run has ended. Calls of Stop must not overlap.
func (r *Rig) Stop(ctx context.Context, k Kind) (took time.Duration, err error) {
	var made struct{ Session struct{ ID string } }
	if err := r.post(ctx, "/api/sessions", map[string]any{"model": "sim/stops", "tools": []string{k.tool}}, &made); err != nil {
		return 0, err
	}
	run, err := r.client.Submit(ctx, made.Session.ID, world.Sending{Content: "use " + k.tool})
	if err != nil {
		return 0, err
	}
	var far held
	select {
	case far = <-r.held:
	case <-ctx.Done():
		return 0, fmt.Errorf("no request of %s has reached its far end: %w", k.tool, context.Cause(ctx))
	}
	begun := time.Now()
	if err := r.client.Cancel(ctx, made.Session.ID); err != nil {
		return 0, err
	}
	select {
	case at := <-far.closed:
		took = at.Sub(begun)
	case <-ctx.Done():
		return 0, fmt.Errorf("the request of %s stays open after the stop: %w", k.tool, context.Cause(ctx))
	}
	reason := ""
	next := func() world.Client { return r.client }
	err = world.Follow(ctx, next, world.RunEvents(run.ID), "", func(ev sse.Event) bool {
		if ev.Type == "done" || ev.Type == "error" {
			reason = ev.Type + " " + string(ev.Data)
		}
		return reason == ""
	})
	if err == nil && !strings.Contains(reason, `"cancelled"`) {
		err = fmt.Errorf("the run ends with %s, want it cancelled", reason)
	}
	return took, err
}

// hold never answers a request. It tells when the client closes it.
func (r *Rig) hold(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, io.LimitReader(req.Body, 1<<20)) // else the server does not notice that the client leaves
	closed := make(chan time.Time, 1)
	r.held <- held{closed}
	<-req.Context().Done()
	closed <- time.Now()
	panic(http.ErrAbortHandler)
}

// mcp is an MCP server whose tool never answers.
func (r *Rig) mcp(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	var q struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if err != nil || req.Method != http.MethodPost || json.Unmarshal(body, &q) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	switch q.Method {
	case "tools/call":
		req.Body = io.NopCloser(bytes.NewReader(nil))
		r.hold(w, req)
	case "initialize":
		reply(w, q.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"slow","version":"1"}}`)
	case "tools/list":
		reply(w, q.ID, `{"tools":[{"name":"wait","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}]}`)
	case "server/discover":
		w.WriteHeader(http.StatusNotFound)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func reply(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

// model is a provider whose model calls the tool that the person names, and which itself searches
// the web for ever.
func (r *Rig) model(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 4<<20))
	if err != nil || !strings.HasSuffix(req.URL.Path, "/v1/messages") {
		http.NotFound(w, req)
		return
	}
	var k Kind
	for _, k = range Kinds {
		if bytes.Contains(body, []byte(`"use `+k.tool+`"`)) {
			break
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event(w, "message_start", `"message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}`)
	if k.tool == "web_search" {
		event(w, "content_block_start", `"index":0,"content_block":{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}`)
		_ = http.NewResponseController(w).Flush() // the client may have left
		r.hold(w, req)
	}
	event(w, "content_block_start", `"index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"`+k.tool+`","input":{}}`)
	args, _ := json.Marshal(strings.ReplaceAll(k.args, "OUTSIDE", r.address)) // a string always marshals
	event(w, "content_block_delta", `"index":0,"delta":{"type":"input_json_delta","partial_json":`+string(args)+`}`)
	event(w, "content_block_stop", `"index":0`)
	event(w, "message_delta", `"delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":5}`)
	event(w, "message_stop", `"x":0`)
}

func event(w io.Writer, name, fields string) {
	_, _ = fmt.Fprintf(w, "event: %[1]s\ndata: {\"type\":\"%[1]s\",%s}\n\n", name, fields) // the client may have left
}
