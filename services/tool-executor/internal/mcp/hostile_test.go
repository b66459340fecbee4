package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/netguard"
	"signalbox.dev/services/tool-executor/internal/mcp"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// rpcRequest is what the client sends.
type rpcRequest struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Cursor string `json:"cursor"`
		Meta   struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	} `json:"params"`
}

// hostile answers initialize as a good server does, and everything else badly.
type hostile struct {
	list, call func(w http.ResponseWriter, r *http.Request, q rpcRequest)
	all        http.HandlerFunc // replaces everything
}

// ServeHTTP implements http.Handler.
func (h hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Without the whole body, net/http does not notice that the client leaves.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if h.all != nil {
		h.all(w, r)
		return
	}
	var q rpcRequest
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&q) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	switch q.Method {
	case "initialize":
		result(w, q, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
	case "tools/list":
		h.list(w, r, q)
	case "tools/call":
		h.call(w, r, q)
	case "server/discover":
		w.WriteHeader(http.StatusNotFound)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func result(w io.Writer, q rpcRequest, body string) {
	if h, ok := w.(http.ResponseWriter); ok {
		h.Header().Set("Content-Type", "application/json")
	}
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, body)
}

// says answers with a fixed result.
func says(body string) func(http.ResponseWriter, *http.Request, rpcRequest) {
	return func(w http.ResponseWriter, _ *http.Request, q rpcRequest) { result(w, q, body) }
}

// raw answers with fixed bytes.
func raw(kind, body string) func(http.ResponseWriter, *http.Request, rpcRequest) {
	return func(w http.ResponseWriter, _ *http.Request, _ rpcRequest) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

// endless repeats a text until the client leaves.
func endless(kind, first, text string) func(http.ResponseWriter, *http.Request, rpcRequest) {
	chunk := strings.Repeat(text, max(1, 32<<10/len(text)))
	return func(w http.ResponseWriter, _ *http.Request, _ rpcRequest) {
		w.Header().Set("Content-Type", kind)
		_, err := io.WriteString(w, first)
		for err == nil {
			_, err = io.WriteString(w, chunk)
		}
	}
}

func hang(_ http.ResponseWriter, r *http.Request, _ rpcRequest) { <-r.Context().Done() }

func status(code int) func(http.ResponseWriter, *http.Request, rpcRequest) {
	return func(w http.ResponseWriter, _ *http.Request, _ rpcRequest) { w.WriteHeader(code) }
}

func oneTool(schema string) string {
	return `{"tools":[{"name":"t","inputSchema":` + schema + `}]}`
}

const (
	sse   = "text/event-stream"
	plain = "application/json"
)

// behaviours of hostile servers, for tools/list and tools/call alike where they have a list
// function, and at each request where they have all.
func behaviours() map[string]hostile {
	all := map[string]hostile{}
	both := func(name string, f func(http.ResponseWriter, *http.Request, rpcRequest)) {
		all[name] = hostile{list: f, call: f}
	}
	// Huge and endless.
	both("huge string", raw(plain, `{"jsonrpc":"2.0","id":2,"result":{"x":"`+strings.Repeat("a", 8<<20)+`"}}`))
	both("endless string", endless(plain, `{"jsonrpc":"2.0","id":2,"result":{"x":"`, "a"))
	both("endless array", endless(plain, `[`, "[],"))
	both("endless objects", endless(plain, `{"a":[`, `{"a":1},`))
	both("endless keys", endless(plain, `{`, `"a":1,`))
	both("endless whitespace", endless(plain, ``, " "))
	both("endless digits", endless(plain, `{"jsonrpc":"2.0","id":`, "1"))
	both("endless event line", endless(sse, "data: ", "a"))
	both("endless events", endless(sse, "", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1,\"progress\":1}}\n\n"))
	both("endless comments", endless(sse, "", ": ping\n\n"))
	both("endless data lines", endless(sse, "", "data: 1\n"))
	both("endless ids", endless(sse, "", "id: 1\ndata:\n\n"))
	both("endless pings", endless(sse, "", "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n"))
	both("endless sampling", endless(sse, "", "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"sampling/createMessage\",\"params\":{\"messages\":[],\"maxTokens\":1}}\n\n"))
	both("endless elicitation", endless(sse, "", `data: {"jsonrpc":"2.0","id":8,"method":"elicitation/create","params":{"message":"key?","requestedSchema":{"$ref":"#"}}}`+"\n\n"))
	both("endless roots", endless(sse, "", "data: {\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"roots/list\"}\n\n"))
	both("endless answers to nothing", endless(sse, "", "data: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n"))
	both("retry at once", raw(sse, "id: 1\nretry: 0\ndata:\n\n"))
	both("gzip bomb", func(w http.ResponseWriter, _ *http.Request, _ rpcRequest) {
		w.Header().Set("Content-Type", plain)
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, gzipBomb)
	})
	// Deep and cyclic.
	both("deep arrays", raw(plain, strings.Repeat("[", 1<<20)))
	both("deep objects", raw(plain, strings.Repeat(`{"a":`, 1<<19)))
	both("deep event", raw(sse, "data: "+strings.Repeat("[", 1<<20)+"\n\n"))
	both("deep over many lines", raw(sse, strings.Repeat("data: [\n", 1<<16)+"\n"))
	both("deep behind a quote", raw(sse, "data: \"a\ndata: b\" "+strings.Repeat("[", 1<<20)+"\n\n"))
	both("deep behind a comment's quote", raw(sse, ": \"\ndata: "+strings.Repeat("[", 1<<20)+"\n\n"))
	// Slow.
	both("hangs", hang)
	both("hangs after the head", func(w http.ResponseWriter, r *http.Request, q rpcRequest) {
		w.Header().Set("Content-Type", plain)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		hang(w, r, q)
	})
	both("hangs in a stream", func(w http.ResponseWriter, r *http.Request, q rpcRequest) {
		w.Header().Set("Content-Type", sse)
		_, _ = io.WriteString(w, "data: {")
		_ = http.NewResponseController(w).Flush()
		hang(w, r, q)
	})
	// Redirecting.
	for _, code := range []int{301, 302, 303, 307, 308} {
		both(fmt.Sprintf("redirects to itself with %d", code), func(w http.ResponseWriter, r *http.Request, _ rpcRequest) { http.Redirect(w, r, "/", code) })
		both(fmt.Sprintf("redirects to the machine with %d", code), func(w http.ResponseWriter, r *http.Request, _ rpcRequest) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", code)
		})
	}
	// Lying and broken.
	for _, code := range []int{200, 202, 204, 400, 401, 403, 404, 405, 410, 418, 429, 500, 502, 503, 504, 599} {
		both(fmt.Sprintf("status %d", code), status(code))
	}
	for name, body := range map[string]string{
		"nothing": "", "null": "null", "a number": "1", "a string": `"x"`, "an array": "[]", "a batch": `[{"jsonrpc":"2.0","id":2,"result":{}}]`, "HTML": "<html>", "half an object": `{"jsonrpc":"2.0",`,
		"no version": `{"id":2,"result":{}}`, "another id": `{"jsonrpc":"2.0","id":77,"result":{}}`, "a request": `{"jsonrpc":"2.0","id":2,"method":"ping"}`, "a null result": `{"jsonrpc":"2.0","id":2,"result":null}`,
		"both": `{"jsonrpc":"2.0","id":2,"result":{},"error":{"code":1,"message":"x"}}`, "invalid UTF-8": "{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"x\":\"\xff\"}}", "repeated keys": `{"jsonrpc":"2.0","id":2,"id":3,"result":{},"result":[]}`,
		"a huge id": `{"jsonrpc":"2.0","id":1e999,"result":{}}`, "a case": `{"JSONRPC":"2.0","ID":2,"RESULT":{"TOOLS":[]}}`,
	} {
		both("answers with "+name, raw(plain, body))
		both("streams "+name, raw(sse, "data: "+body+"\n\n"))
	}
	both("an error with a huge message", func(w http.ResponseWriter, _ *http.Request, q rpcRequest) {
		w.Header().Set("Content-Type", plain)
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"%s"}}`, q.ID, strings.Repeat("a", 1<<20))
	})
	both("closes the connection", func(w http.ResponseWriter, _ *http.Request, _ rpcRequest) { panic(http.ErrAbortHandler) })
	both("changes the session", func(w http.ResponseWriter, _ *http.Request, q rpcRequest) {
		w.Header().Set("Mcp-Session-Id", string(q.ID)+"x")
		result(w, q, `{"tools":[]}`)
	})
	// Lists.
	list := func(name, body string) { all[name] = hostile{list: says(body), call: says(`{"content":[]}`)} }
	list("null tools", `{"tools":null}`)
	list("a null tool", `{"tools":[null]}`)
	list("a nameless tool", `{"tools":[{"inputSchema":{"type":"object"}}]}`)
	list("a tool without a schema", `{"tools":[{"name":"t"}]}`)
	list("a thousand tools", `{"tools":[`+strings.TrimSuffix(strings.Repeat(`{"name":"t","inputSchema":{"type":"object"}},`, 1000), ",")+`]}`)
	list("a huge name", `{"tools":[{"name":"`+strings.Repeat("n", 1<<20)+`","inputSchema":{"type":"object"}}]}`)
	list("a huge description", `{"tools":[{"name":"t","description":"`+strings.Repeat("d", 1<<20)+`","inputSchema":{"type":"object"}}]}`)
	list("the same cursor", `{"tools":[],"nextCursor":"again"}`)
	all["endless pages"] = hostile{list: func(w http.ResponseWriter, _ *http.Request, q rpcRequest) {
		result(w, q, `{"tools":[],"nextCursor":"`+q.Params.Cursor+`x"}`)
	}, call: says(`{"content":[]}`)}
	for name, schema := range map[string]string{
		"null": "null", "a string": `"x"`, "an array": "[]", "true": "true", "another type": `{"type":"string"}`, "a cycle": `{"type":"object","$ref":"#"}`, "mutual cycles": `{"type":"object","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
		"a dynamic cycle": `{"type":"object","$dynamicAnchor":"a","$dynamicRef":"#a"}`, "a remote reference": `{"type":"object","properties":{"a":{"$ref":"http://169.254.169.254/x"}}}`, "a file reference": `{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`,
		"a remote metaschema": `{"$schema":"http://169.254.169.254/x","type":"object"}`, "a bad pattern": `{"type":"object","properties":{"a":{"type":"string","pattern":"(("}}}`, "a costly pattern": `{"type":"object","properties":{"a":{"type":"string","pattern":"^(((a{1000}){1000}){1000})$"}}}`,
		"a bomb": bomb(30), "a large one": `{"type":"object","description":"` + strings.Repeat("a", 65<<10) + `"}`, "a deep one": strings.Repeat(`{"type":"object","properties":{"a":`, 30) + "{}" + strings.Repeat("}}", 30), "a wrong keyword": `{"type":"object","properties":5,"required":"x"}`,
		"a broken reference": `{"type":"object","properties":{"a":{"$ref":"#/nowhere"}}}`, "a recursive bomb": `{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}}}`,
	} {
		list("a schema that is "+name, oneTool(schema))
	}
	// Results.
	for name, body := range map[string]string{
		"null content": `{"content":null}`, "null parts": `{"content":[null]}`, "an unknown part": `{"content":[{"type":"hologram"}]}`, "a part without type": `{"content":[{}]}`, "a picture that is none": `{"content":[{"type":"image","data":"!!!","mimeType":"image/png"}]}`,
		"an empty resource": `{"content":[{"type":"resource"}]}`, "control characters": `{"content":[{"type":"text","text":"\u0000\u001b[2J\ud800"}]}`, "a structured string": `{"content":[],"structuredContent":"x"}`, "a structured null": `{"content":[],"structuredContent":null}`,
		"an error without text": `{"isError":true,"content":[]}`, "a large text": `{"content":[{"type":"text","text":"` + strings.Repeat("a", 1<<20) + `"}]}`, "many parts": `{"content":[` + strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"a"},`, 10_000), ",") + `]}`,
		"input required": `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"key?"}}}}`, "content of another type": `{"content":{"type":"text"}}`,
	} {
		all["a result with "+name] = hostile{list: says(`{"tools":[]}`), call: says(body)}
	}
	// At each request.
	all["hangs at once"] = hostile{all: func(w http.ResponseWriter, r *http.Request) { hang(w, r, rpcRequest{}) }}
	all["endless at once"] = hostile{all: func(w http.ResponseWriter, r *http.Request) { endless(plain, "[", "[],")(w, r, rpcRequest{}) }}
	all["another protocol"] = hostile{all: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") }}
	all["a version that nobody knows"] = hostile{all: func(w http.ResponseWriter, r *http.Request) {
		var q rpcRequest
		_ = json.NewDecoder(r.Body).Decode(&q)
		result(w, q, `{"protocolVersion":"9999-01-01","capabilities":{},"serverInfo":{"name":"x","version":"1"}}`)
	}}
	all["a null initialization"] = hostile{all: func(w http.ResponseWriter, r *http.Request) {
		var q rpcRequest
		_ = json.NewDecoder(r.Body).Decode(&q)
		result(w, q, `null`)
	}}
	return all
}

// bomb returns a schema that takes 2^n steps to validate against.
func bomb(n int) string {
	var defs []string
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1))
	}
	return fmt.Sprintf(`{"type":"object","$ref":"#/$defs/d0","$defs":{%s,"d%d":{}}}`, strings.Join(defs, ","), n)
}

// TestHostile lets servers misbehave in many ways, one after the other, while a good server is
// called all the time.
func TestHostile(t *testing.T) { //nolint:paralleltest // it measures the process's memory
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // so that the heap is what is held, not the neighbour's garbage
	allowed, err := netguard.ParseAllowed("127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	guard := netguard.New(netguard.Config{Allowed: allowed})
	c := mcp.NewClient(guard.Transport())
	neighbour := hostile{list: says(oneTool(`{"type":"object"}`)), call: says(`{"content":[{"type":"text","text":"fine"}]}`)}
	good := httptest.NewServer(neighbour)
	defer good.Close()
	defer guard.Client(0).CloseIdleConnections()

	stop, stopped := make(chan struct{}), make(chan struct{})
	var served atomic.Int64
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			r, err := c.Call(context.Background(), mcp.Server{Name: "good", URL: good.URL}, "t", map[string]any{})
			if err != nil || r.JSON() != `{"result":"fine"}` {
				t.Errorf("the neighbour's call = %s, %v", r.JSON(), err)
				return
			}
			served.Add(1)
		}
	}()
	defer func() {
		close(stop)
		<-stopped
		c.Wait()
		if served.Load() == 0 {
			t.Error("the neighbour was never served")
		}
	}()

	all := behaviours()
	if len(all) < 50 {
		t.Fatalf("there are only %d behaviours", len(all))
	}
	var peak atomic.Uint64
	for name, h := range all {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		misbehave(t, c, name, h)
		runtime.ReadMemStats(&after)
		if grown := after.HeapSys - before.HeapSys; after.HeapSys > before.HeapSys && grown > peak.Load() {
			peak.Store(grown)
			t.Logf("%s: the heap grew by %d KiB", name, grown>>10)
		}
	}
	if grown := peak.Load(); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB in one step", grown>>20)
	}
	t.Logf("%d behaviours; the neighbour was called %d times", len(all), served.Load())
}

// misbehave lists and calls the tools of a hostile server.
func misbehave(t *testing.T, c *mcp.Client, name string, h hostile) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	defer s.CloseClientConnections()
	// Hanging servers take until here.
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	server := mcp.Server{Name: "bad", URL: s.URL}
	tools, err := c.List(ctx, server)
	if err != nil && mcp.Why(err) == "" {
		t.Errorf("%s: list: %v has no explanation", name, err)
	}
	if len(tools) > 256 {
		t.Errorf("%s: %d tools are listed", name, len(tools))
	}
	server.Tools = tools
	for _, e := range mcp.Entries(c, server) {
		if !json.Valid(e.Spec.InputSchema) || len(e.Spec.Description) > 5000 {
			t.Errorf("%s: the tool %.70s has the schema %.100s and a description of %d bytes", name, e.Spec.Name, e.Spec.InputSchema, len(e.Spec.Description))
		}
		_, _ = e.Check(`{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":"aaaa"}}}}}}}}}}}`) // it ends
	}
	calling, cancelCall := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancelCall()
	r, err := c.Call(calling, server, "t", map[string]any{"a": 1})
	if err == nil && !json.Valid([]byte(r.JSON())) {
		t.Errorf("%s: call = %.100s, which is not JSON", name, r.JSON())
	}
	if err != nil && mcp.Why(err) == "" {
		t.Errorf("%s: call: %v has no explanation", name, err)
	}
	if err == nil && len(tool.OutputText(r.JSON())) > 5<<20 {
		t.Errorf("%s: a result of %d bytes", name, len(r.JSON()))
	}
}

// TestCancel cancels a call: the call and the server's request end.
func TestCancel(t *testing.T) {
	t.Parallel()
	allowed, err := netguard.ParseAllowed("127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	guard := netguard.New(netguard.Config{Allowed: allowed})
	c := mcp.NewClient(guard.Transport())
	began, ended := make(chan struct{}), make(chan struct{})
	h := hostile{call: func(_ http.ResponseWriter, r *http.Request, _ rpcRequest) {
		close(began)
		<-r.Context().Done()
		close(ended)
	}}
	s := httptest.NewServer(h)
	defer s.Close()
	defer guard.Client(0).CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, mcp.Server{Name: "slow", URL: s.URL}, "t", map[string]any{})
		result <- err
	}()
	<-began
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call = %v", err)
	}
	<-ended
	c.Wait()
}
