package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// A workspace has half of what may be open at most; the other half is for others. What
// has ended is counted no more.
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
	r.actor.Workspace = one
	for range 4 {
		if got := r.post("/egress/anthropic/v1/x", `{}`); got.status != http.StatusOK {
			t.Errorf("afterwards: got %d %s", got.status, got.body)
		}
	}
}

// A body counts as long as it is written, also when its answer has begun.
func TestUnreadBodyCounts(t *testing.T) {
	t.Parallel()
	const size = 900 << 10
	r := newRig(t, &memory{}, func(c *proxy.Config) { c.Limits.Body, c.Limits.Bodies = 1<<20, 2<<20 })
	end := make(chan struct{})
	r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/early") {
			_ = http.NewResponseController(w).EnableFullDuplex()
			stream(chatDelta)(w, req)
			<-end
		}
		stream(chatFinish, chatDone)(w, req)
	})
	body := `{"a":"` + strings.Repeat("x", size) + `"}`
	res, err := r.client.Do(r.request(t.Context(), "/egress/openai/v1/early", body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := r.post(chats, body); got.status != http.StatusServiceUnavailable {
		t.Errorf("while the first is written the second got %d %.100s", got.status, got.body)
	}
	r.actor.Workspace = id.New[id.Workspace]()
	if got := r.post(chats, body); got.status != http.StatusOK {
		t.Errorf("another workspace's got %d %.100s", got.status, got.body)
	}
	close(end)
}
