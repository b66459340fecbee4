package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/services/e2e/world"
)

// TestMCP uses the gateways as MCP servers, with the official SDK's client and the rights of a
// member of the workspace, in both worlds.
func TestMCP(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]*sharedWorld{"standalone": standalone, "cluster": cluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := w.up(t)
			owner := w.person(t)
			viewer, err := w.newMember(owner.Workspace, "viewer")
			if err != nil {
				t.Fatal(err)
			}
			m := connectMCP(t, w.Gateways[0], owner.Member)
			other := connectMCP(t, w.Gateways[1], viewer)
			documentsOverMCP(t, m, other)
			runsOverMCP(t, m, other)
			strangersOverMCP(t, w)
		})
	}
}

// mcpClient is a connected client.
type mcpClient struct {
	t *testing.T
	*mcp.ClientSession
}

// as adds a member's headers to requests.
type as struct{ world.Member }

// RoundTrip implements http.RoundTripper.
func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+a.Token)
	r.Header.Set("X-Workspace-Id", a.Workspace)
	return http.DefaultTransport.RoundTrip(r)
}

func connectMCP(t *testing.T, gateway string, who world.Member) *mcpClient {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: gateway + "/mcp", HTTPClient: &http.Client{Transport: as{who}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return &mcpClient{t, session}
}

// call calls a tool and decodes its result into out. It returns the text of an error result.
func (c *mcpClient) call(tool string, args map[string]any, out any) (problem string) {
	c.t.Helper()
	res, err := c.CallTool(c.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		c.t.Fatalf("%s: %v", tool, err)
	}
	if res.IsError {
		return res.Content[0].(*mcp.TextContent).Text
	}
	b, err := json.Marshal(res.StructuredContent)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(b, out); err != nil {
		c.t.Fatalf("%s: %v in %s", tool, err, b)
	}
	return ""
}

func documentsOverMCP(t *testing.T, m, viewer *mcpClient) {
	t.Helper()
	var doc struct{ ID, Name, Content string }
	for range 2 { // the second is a repetition
		if problem := m.call("create_document", map[string]any{"name": "Minutes", "content": "# Minutes\n\nTea at four.", "idempotency_key": "minutes"}, &doc); problem != "" {
			t.Fatal(problem)
		}
	}
	if problem := m.call("create_document", map[string]any{"name": "Minutes", "idempotency_key": "schlüssel"}, &doc); !strings.Contains(problem, "idempotency_key") {
		t.Errorf("create_document with a key that is not ASCII: %q, want it refused", problem)
	}
	var edit struct{ Replacements int }
	if problem := m.call("edit_document", map[string]any{"id": doc.ID, "old_text": "four", "new_text": "five"}, &edit); problem != "" || edit.Replacements != 1 {
		t.Errorf("edit_document: %s, %+v, want one replacement", problem, edit)
	}
	for range 2 { // the second is a repetition
		if problem := m.call("append_to_document", map[string]any{"id": doc.ID, "content": "Coffee at six.", "idempotency_key": "coffee"}, &doc); problem != "" {
			t.Error(problem)
		}
	}
	const want = "# Minutes\n\nTea at five.\n\nCoffee at six.\n"
	if problem := viewer.call("read_document", map[string]any{"id": doc.ID}, &doc); problem != "" || doc.Content != want {
		t.Errorf("read_document: %s, %q, want %q", problem, doc.Content, want)
	}
	if problem := viewer.call("append_to_document", map[string]any{"id": doc.ID, "content": "No."}, &doc); problem == "" {
		t.Error("a viewer appended to a document, want it forbidden")
	}
	if problem := m.call("edit_document", map[string]any{"id": doc.ID, "old_text": "absent", "new_text": "x"}, &edit); problem == "" {
		t.Error("edit_document replaced a text that is not there, want an error")
	}
	list, err := viewer.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 1 || list.Resources[0].Name != "Minutes" {
		t.Fatalf("resources/list: %+v, %v, want the document", list, err)
	}
	read, err := viewer.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: list.Resources[0].URI})
	if err != nil || len(read.Contents) != 1 || read.Contents[0].Text != want {
		t.Fatalf("resources/read: %+v, %v, want %q", read, err, want)
	}
	if list.CacheScope != "private" || read.CacheScope != "private" {
		t.Errorf("caches may share the list %q and the document %q, want both private", list.CacheScope, read.CacheScope)
	}
	if _, err := viewer.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "signalbox://documents/0198a000-0000-7000-8000-000000000001"}); err == nil {
		t.Error("resources/read of no document succeeded, want not found")
	}
}

func runsOverMCP(t *testing.T, m, viewer *mcpClient) {
	t.Helper()
	type run struct {
		RunID     string `json:"run_id"`
		SessionID string `json:"session_id"`
		State     string
		Ended     bool
		Answer    string
	}
	var first, again run
	if problem := m.call("start_run", map[string]any{"message": "hello", "idempotency_key": "greeting"}, &first); problem != "" || first.State != "done" || !strings.HasPrefix(first.Answer, "Hello!") {
		t.Fatalf("start_run: %s, %+v, want the simulator's answer", problem, first)
	}
	if problem := m.call("start_run", map[string]any{"message": "hello", "idempotency_key": "greeting"}, &again); problem != "" || again.RunID != first.RunID {
		t.Errorf("start_run with the same key: %s, %+v, want run %s", problem, again, first.RunID)
	}
	if problem := m.call("start_run", map[string]any{"message": "hello", "session_id": first.SessionID, "wait_seconds": 0}, &again); problem != "" || again.SessionID != first.SessionID {
		t.Fatalf("start_run in the session: %s, %+v", problem, again)
	}
	if problem := viewer.call("get_run", map[string]any{"run_id": again.RunID, "wait_seconds": 30}, &again); problem != "" || again.State != "done" || !again.Ended {
		t.Errorf("get_run: %s, %+v, want it done", problem, again)
	}
	if problem := viewer.call("start_run", map[string]any{"message": "hello"}, &again); problem == "" {
		t.Error("a viewer started a run, want it forbidden")
	}
	if problem := m.call("get_run", map[string]any{"run_id": again.RunID, "wait_seconds": 51}, &again); !strings.Contains(problem, "wait_seconds") {
		t.Errorf("get_run with a long wait: %q, want it refused", problem)
	}
	var read struct {
		Messages []struct{ Role, Text string }
		Earlier  int64
	}
	if problem := viewer.call("read_session", map[string]any{"id": first.SessionID, "limit": 2}, &read); problem != "" || len(read.Messages) != 2 || read.Earlier == 0 {
		t.Errorf("read_session with a limit: %s, %+v, want two messages of four", problem, read)
	}
	if problem := viewer.call("read_session", map[string]any{"id": first.SessionID, "limit": 2, "before": read.Earlier}, &read); problem != "" || len(read.Messages) != 2 {
		t.Errorf("read_session of earlier messages: %s, %+v, want two", problem, read)
	}
	if problem := viewer.call("read_session", map[string]any{"id": first.SessionID}, &read); problem != "" || len(read.Messages) != 4 {
		t.Fatalf("read_session: %s, %+v, want four messages", problem, read)
	}
	var roles []string
	for _, msg := range read.Messages {
		roles = append(roles, msg.Role)
	}
	if diff := cmp.Diff([]string{"user", "assistant", "user", "assistant"}, roles); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
}

// strangersOverMCP sees that a caller without a token is told how to authenticate, and one of another
// workspace sees nothing.
func strangersOverMCP(t *testing.T, w *sharedWorld) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Gateways[0]+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Bearer") {
		t.Errorf("without a token: %s %v, want 401 and WWW-Authenticate", res.Status, res.Header)
	}
	stranger := connectMCP(t, w.Gateways[0], w.person(t).Member)
	if list, err := stranger.ListResources(t.Context(), nil); err != nil || len(list.Resources) != 0 {
		t.Errorf("resources of another workspace: %+v, %v, want none", list, err)
	}
}
