package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/gateway"
)

// A call of the MCP server that waits for a run is one of its member's open streams until it ends,
// also because its client has left.
func TestMCPWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.MemberStreams = 1 })
	session := in.newSession(t, w.owner)
	sent := call[struct{ Run struct{ ID string } }](t, in, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, http.StatusAccepted, prefer)
	id := sent.Run.ID
	ask := func(wait string) *http.Request {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_run","arguments":{"run_id":"` + id + `","wait_seconds":` + wait + `}}}`
		return in.request(t, w.owner, "POST", "/mcp", body, func(r *http.Request) {
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
		})
	}
	refused := func(wait string) bool {
		got := in.send(t, ask(wait))
		return strings.Contains(got.body, "too many open streams")
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil { // refused while the other call waits
			if res, err := in.http.Do(ask("50").WithContext(ctx)); err == nil {
				_ = res.Body.Close()
			}
		}
	}()
	eventually(t, "the wait counts", func() bool { return refused("1") })
	if refused("0") {
		t.Error("a call that does not wait is refused")
	}
	leave()
	<-ended
	left := time.Now()
	eventually(t, "the wait ends", func() bool { return !refused("1") })
	if took := time.Since(left); took > 40*time.Second {
		t.Errorf("the wait ended %s after its client left, as if that had stayed", took)
	}
}
