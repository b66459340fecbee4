package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// A workspace may use half of the open requests; the other half is for others. Requests that
// have ended no longer count.
func TestWorkspaceShare(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Limits.Requests = 4 })
	open, end := make(chan struct{}), make(chan struct{})
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/waits") {
			open <- struct{}{}
			<-end
		}
		answer(200, `{}`)(w, req)
	})
	one, other := r.actor.Workspace, id.New[id.Workspace]()
	var waiting [2]*http.Request
	done := make(chan result)
	for i := range waiting {
		waiting[i] = r.request(t.Context(), "/egress/anthropic/v1/waits", `{}`)
		go func() { done <- r.do(waiting[i]) }()
		<-open
	}
	if got := r.post("/egress/anthropic/v1/x", `{}`); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "workspace") || got.header.Get("Retry-After") != "1" {
		t.Errorf("the third request got %d %s", got.status, got.body)
	}
	r.actor.Workspace = other
	if got := r.post("/egress/anthropic/v1/x", `{}`); got.status != http.StatusOK {
		t.Errorf("another workspace's got %d %s", got.status, got.body)
	}
	close(end)
	for range waiting {
		if got := <-done; got.status != http.StatusOK {
			t.Errorf("one that waited got %d %s", got.status, got.body)
		}
	}
	r.proxy.Wait() // a request ends a moment after its caller has all of it
	r.actor.Workspace = one
	for range 4 {
		if got := r.post("/egress/anthropic/v1/x", `{}`); got.status != http.StatusOK {
			t.Errorf("afterwards: got %d %s", got.status, got.body)
		}
	}
}

// When all slots are taken, one that becomes free goes to the workspace that holds the fewest,
// not to the first caller.
func TestRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory{}, func(c *proxy.Config) { c.Limits.Requests = 4 })
		begun, end := make(chan string, 10), make(chan struct{})
		r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
			begun <- req.URL.Path
			<-end
			answer(200, `{}`)(w, req)
		})
		var calls sync.WaitGroup
		ask := func(ws id.Workspace, name string) {
			r.actor.Workspace = ws
			req := r.request(t.Context(), "/egress/anthropic/v1/"+name, `{}`)
			calls.Go(func() {
				if got := r.do(req); got.status != http.StatusOK {
					t.Errorf("%s got %d %s", name, got.status, got.body)
				}
			})
			synctest.Wait()
		}
		one, two, other := r.actor.Workspace, id.New[id.Workspace](), id.New[id.Workspace]()
		for range 2 {
			ask(one, "one")
			ask(two, "two")
		}
		for range 4 {
			<-begun
		}
		third := id.New[id.Workspace]()
		ask(third, "third")
		ask(third, "third")
		ask(other, "other")
		end <- struct{}{}
		end <- struct{}{}
		synctest.Wait()
		if a, b := <-begun, <-begun; a == b {
			t.Errorf("the next two are of %s, want one of each workspace that waits", a)
		}
		close(end)
		calls.Wait()
	})
}

// A body counts until it is written, even if its answer has begun. A request without room in
// its workspace's share waits for a while, and logs no warning.
func TestUnwrittenBodyCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory{}, func(c *proxy.Config) { c.Limits.Body, c.Limits.Bodies = 1<<20, 2<<20 })
		read, more, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/early") {
				_ = http.NewResponseController(w).EnableFullDuplex()
				stream(chatDelta)(w, req)
				<-read
				_, _ = io.Copy(io.Discard, req.Body)
				<-more
				stream(chatDelta)(w, req)
				<-end
			}
			stream(chatFinish, chatDone)(w, req)
		})
		body := `{"a":"` + strings.Repeat("x", 900<<10) + `"}`
		res, err := r.client.Do(r.request(t.Context(), "/egress/openai/v1/early", body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		began := time.Now()
		if got := r.post(chats, body); got.status != http.StatusServiceUnavailable || time.Since(began) != 10*time.Second {
			t.Errorf("while the first is written the second got %d %.100s after %v", got.status, got.body, time.Since(began))
		}
		if logs := r.logs.String(); strings.Contains(logs, "WARN") || !strings.Contains(logs, "over_share") {
			t.Errorf("the log has %s", logs)
		}
		one := r.actor.Workspace
		r.actor.Workspace = id.New[id.Workspace]()
		if got := r.post(chats, body); got.status != http.StatusOK {
			t.Errorf("another workspace's got %d %.100s", got.status, got.body)
		}
		r.actor.Workspace = one
		waits := make(chan result, 1)
		next := r.request(t.Context(), chats, body)
		go func() { waits <- r.do(next) }()
		close(read)
		synctest.Wait()
		if len(waits) > 0 {
			t.Error("the third does not wait")
		}
		close(more) // while the first goes on, it is seen that its body was written
		if got := <-waits; got.status != http.StatusOK {
			t.Errorf("the third got %d %.100s", got.status, got.body)
		}
		close(end)
	})
}

// An answer that is held to be translated does not count against the share.
func TestTranslatedBeyondShare(t *testing.T) {
	t.Parallel()
	r := newRig(t, &memory{}, func(c *proxy.Config) { c.Limits.Body, c.Limits.Bodies = 1<<20, 9<<20 })
	upstream := r.serve(then(flush, answer(200, `{"content":[{"type":"tool_use","name":"mcp_doc"}]}`)))
	r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", upstream, "k-"+canary)}
	if got := r.post(messages, `{"tools":[{"name":"doc"}]}`); got.status != http.StatusOK {
		t.Errorf("got %d %s", got.status, got.body)
	}
}
