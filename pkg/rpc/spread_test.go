package rpc_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/rpc"
)

// replica is a server that counts its calls. A call of /slow ends when the test says so.
type replica struct {
	addr  string
	calls atomic.Int64
	slow  chan struct{}
}

func startReplica(t *testing.T) *replica {
	t.Helper()
	r := &replica{slow: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.calls.Add(1)
		if req.URL.Path == "/slow" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.slow
		}
		_, _ = io.WriteString(w, "whole")
	}))
	s.Config.Protocols = protocols
	s.Start()
	t.Cleanup(s.Close)
	r.addr = s.Listener.Addr().String()
	return r
}

// balancer forwards each connection to the next target, as a Kubernetes Service does to a random one.
type balancer struct {
	url string

	mu      sync.Mutex // guards what follows
	targets []*replica
	turn    int
}

func startBalancer(t *testing.T, targets ...*replica) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{url: "http://" + l.Addr().String(), targets: targets}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go b.forward(c)
		}
	}()
	return b
}

func (b *balancer) forward(c net.Conn) {
	defer func() { _ = c.Close() }()
	b.mu.Lock()
	to := b.targets[b.turn%len(b.targets)].addr
	b.turn++
	b.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	go func() {
		_, _ = io.Copy(far, c)
		_ = far.Close()
	}()
	_, _ = io.Copy(c, far)
}

func (b *balancer) use(targets ...*replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = targets
}

func get(t *testing.T, c *http.Client, url string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || string(body) != "whole" {
		t.Fatalf("%s = %q, %v", url, body, err)
	}
}

// A client does not send all its calls to the replica that its first connection reached.
func TestCallsSpreadOverReplicas(t *testing.T) {
	t.Parallel()
	one, two := startReplica(t), startReplica(t)
	b := startBalancer(t, one, two)
	c := rpc.NewHTTPClient(nil)
	defer c.CloseIdleConnections()
	const calls = 400
	for range calls {
		get(t, c, b.url)
	}
	for name, r := range map[string]*replica{"first": one, "second": two} {
		if n := r.calls.Load(); n < calls/4 {
			t.Errorf("the %s replica got %d calls of %d", name, n, calls)
		}
	}
}

// A replica that is added later gets calls, and those in progress elsewhere are not cut.
func TestCallsReachNewReplicas(t *testing.T) {
	t.Parallel()
	before, added := startReplica(t), startReplica(t)
	release := sync.OnceFunc(func() { close(before.slow) })
	t.Cleanup(release) // a server is closed when its requests have ended
	b := startBalancer(t, before)
	c := rpc.NewHTTPClientOfLife(50 * time.Millisecond)
	defer c.CloseIdleConnections()
	slow, err := c.Get(b.url + "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Body.Close() }()
	b.use(added)
	var last int64
	for deadline := time.Now().Add(10 * time.Second); last < 100; last++ { // calls in a row to the new replica
		if time.Now().After(deadline) {
			t.Fatalf("calls still reach the former replica: it has had %d, and the added one %d", before.calls.Load(), added.calls.Load())
		}
		old := before.calls.Load()
		get(t, c, b.url)
		if before.calls.Load() > old {
			last = -1
			time.Sleep(time.Millisecond) //nolint:forbidigo // connections are replaced by the clock
		}
	}
	release()
	var body strings.Builder
	if _, err := io.Copy(&body, slow.Body); err != nil || body.String() != "whole" {
		t.Errorf("the call in progress returned %q, %v", body.String(), err)
	}
}
