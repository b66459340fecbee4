package mcp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/tool-executor/internal/mcp"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// TestProgress calls a server that says how far a call is, first once, and then more often than
// other messages may come. Reports that nobody has asked for are dropped.
func TestProgress(t *testing.T) {
	t.Parallel()
	heard := make(chan tool.Progress, 1)
	goOn := make(chan struct{})
	s := httptest.NewServer(hostile{list: says(`{"tools":[]}`), call: func(w http.ResponseWriter, r *http.Request, q rpcRequest) {
		w.Header().Set("Content-Type", "text/event-stream")
		report := func(token, more string) {
			_, _ = fmt.Fprintf(w, `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,%s}}`+"\n\n", token, more)
		}
		token := string(q.Params.Meta.ProgressToken)
		report(`"another"`, `"progress":1,"total":1`)
		report(`{"x":1}`, `"progress":1,"total":1`)
		report(token, `"progress":2,"total":8,"message":"r\u0000ed `+strings.Repeat("é", 600)+`"`)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		for i := range 3000 {
			report(token, fmt.Sprintf(`"progress":%d`, i))
		}
		_, _ = fmt.Fprintf(w, `data: {"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"ready"}]}}`+"\n\n", q.ID)
	}})
	t.Cleanup(s.Close)
	first := true
	c := newClient(t)
	r, err := c.CallWatched(t.Context(), mcp.Server{URL: s.URL}, "x", map[string]any{}, func(p tool.Progress) {
		if first {
			first = false
			heard <- p
			close(goOn)
		}
	})
	if err != nil || r.JSON() != `{"result":"ready"}` {
		t.Fatalf("Call = %s, %v", r.JSON(), err)
	}
	want := tool.Progress{Message: "red " + strings.Repeat("é", 496) + "…", Percent: 25}
	if diff := cmp.Diff(want, <-heard); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	c.Close()
	c.Wait()
}
