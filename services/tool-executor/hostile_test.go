package toolexecutor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	toolexecutor "signalbox.dev/services/tool-executor"
	"signalbox.dev/services/tool-executor/internal/brokertest"
)

// garbage is text that is hard to store, to encode or to bound.
var garbage = []string{
	"", "\x00", "a\x00\x1b[31m\x7f", "\u2028\u202e\ufeff", `\ud800`, `"}`, "😀", strings.Repeat("x", 40<<10), strings.Repeat("\\\"", 8_000), strings.Repeat("\u0800", 9_000), "../../x", "<script>",
}

// broken are arguments, and answers of far ends, that are not what they should be.
var broken = []string{
	"", "null", "[]", "{", `"x"`, `{"id":{"a":[1]}}`, `{"id":"\ud800\u0000"}`, `{"n":1e999}`, `{"id":"a","id":"b"}`, strings.Repeat(`{"a":[`, 20_000), strings.Repeat("[", 100_000), strings.Repeat(" ", 200<<10),
}

// hostileMCP answers every request of a client with one text in all its places.
func hostileMCP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Arguments struct {
				Text string `json:"text"`
			} `json:"arguments"`
		} `json:"params"`
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&q) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	text, _ := json.Marshal(q.Params.Arguments.Text) // strings always marshal
	result := map[string]string{
		"initialize": `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`,
		"tools/list": `{"tools":[{"name":"say","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"fail","inputSchema":{"type":"object"}},{"name":"give","inputSchema":{"type":"object"}}]}`,
		"tools/call": fmt.Sprintf(`{"content":[{"type":"text","text":%s}],"structuredContent":{%[1]s:[%[1]s]},"isError":%t}`, text, len(text)%2 == 0),
	}[q.Method]
	switch {
	case q.Method == "server/discover":
		w.WriteHeader(http.StatusNotFound)
		return
	case result == "":
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result)
}

// addServer adds an MCP server to the workspace.
func (i *instance) addServer(t *testing.T, name, url string) {
	t.Helper()
	options, err := rpc.Client{Signer: identity.NewSigner(subject.AgentRunner, i.w.runner), Audience: subject.ToolExecutor}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.NewHTTPClient(nil)
	t.Cleanup(h.CloseIdleConnections)
	owner := i.w.actor
	owner.Role = identity.Owner
	res, err := toolv1connect.NewMcpServiceClient(h, i.url, options...).CreateServer(identity.With(t.Context(), owner), &toolv1.CreateServerRequest{Id: id.New[id.Operation]().String(), Name: name, Url: url})
	if err != nil || res.GetServer().GetFailure() != "" {
		t.Fatalf("CreateServer = %v, %v", res, err)
	}
}

// TestHostileInputs has models and far ends say all kinds of garbage to an executor. Each call has
// an outcome, whose result is JSON within the output cap and was recorded, and the executor goes
// on.
func TestHostileInputs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mcp := httptest.NewServer(http.HandlerFunc(hostileMCP))
	t.Cleanup(mcp.Close)
	var answer atomic.Value
	answer.Store("{}")
	w.broker, w.brokerAt = brokertest.Start(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, answer.Load().(string)) // the client may have left
	}), w.key)
	i := w.start(t, toolexecutor.Config{AllowPrivate: strings.TrimPrefix(mcp.URL, "http://")})
	i.addServer(t, "bad", mcp.URL)
	client := i.client(t)
	listed, err := client.ListTools(identity.With(t.Context(), w.actor), &toolv1.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	told, states := map[string]string{}, map[toolv1.OutcomeState]int{}
	check := func(name, args string) {
		t.Helper()
		c := w.call(t, name, nil)
		c.ArgsJson, c.Deadline = args, timestamppb.New(time.Now().Add(300*time.Millisecond))
		w.publish(t, c, "")
		o := w.of(t, c)
		var fields map[string]any
		text := o.GetResultJson()
		if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil || !utf8.ValidString(text) || len(text) > 64<<10 || o.GetState() == toolv1.OutcomeState_OUTCOME_STATE_UNSPECIFIED {
			t.Errorf("%s(%.100q) = %v with %d bytes: %.200q, want an object within the cap: %v", name, args, o.GetState(), len(text), text, err)
		}
		keys, told[c.GetKey()] = append(keys, c.GetKey()), text
		states[o.GetState()]++
	}
	for _, tool := range listed.GetTools() {
		name := tool.GetName()
		for _, s := range garbage {
			check(name, filled(tool, s))
		}
		for _, s := range broken {
			check(name, s)
		}
		if tool.GetSource() == "bad" || strings.HasPrefix(name, "doc_") {
			continue // it has no such far end
		}
		answers := slices.Concat(broken, garbage)
		if tool.GetEffect() != toolv1.Effect_EFFECT_PURE {
			answers = answers[3:5] // such a call is tried again until its deadline
		}
		for _, s := range answers {
			answer.Store(s)
			check(name, filled(tool, "0123456789abcdef0123456789abcdef"))
		}
	}
	for chunk := range slices.Chunk(keys, 100) {
		got, err := client.GetOutcomes(identity.With(t.Context(), w.actor), &toolv1.GetOutcomesRequest{Keys: chunk})
		if err != nil || len(got.GetOutcomes()) != len(chunk) {
			t.Fatalf("GetOutcomes = %d of %d, %v", len(got.GetOutcomes()), len(chunk), err)
		}
		for _, o := range got.GetOutcomes() {
			if o.GetResultJson() != told[o.GetKey()] {
				t.Errorf("%s was told as %.200q and recorded as %.200q", o.GetToolName(), told[o.GetKey()], o.GetResultJson())
			}
		}
	}
	if t.Logf("outcomes: %v", states); states[ok] == 0 || states[failed] == 0 {
		t.Error("want that some calls succeed and some fail")
	}
	if o := w.do(t, "get_current_datetime", map[string]any{}); o.GetState() != ok {
		t.Errorf("after %d hostile calls, get_current_datetime = %v", len(keys), o)
	}
}

// filled returns arguments with a text in each field.
func filled(tool *toolv1.Tool, text string) string {
	var schema struct {
		Properties map[string]any `json:"properties"`
	}
	_ = json.Unmarshal([]byte(tool.GetInputSchemaJson()), &schema) // the catalogue has compiled it
	args := map[string]any{}
	if tool.GetSource() != "built-in" {
		args["text"] = text
	}
	for name, s := range schema.Properties {
		if s, _ := s.(map[string]any); s["type"] == "string" {
			args[name] = text
		}
	}
	b, _ := json.Marshal(args) // strings always marshal
	return string(bytes.ToValidUTF8(b, []byte("?")))
}
