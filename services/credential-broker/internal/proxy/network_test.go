package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/upstream"
)

// A request that was never sent is repeated once, on the same account.
func TestConnectRefused(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	refuse := 0
	transport := upstream.New(upstream.Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if n := dials.Add(1); int(n) <= refuse {
			addr = "127.0.0.1:1"
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	t.Cleanup(transport.CloseIdleConnections)
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open = transport })
	r.upstream("anthropic", stream(goodAnswer), "first-account", "second-account")
	refuse = 1
	if got := r.post(messages, asking); got.status != 200 || got.body != goodAnswer {
		t.Errorf("after one refused connection: %d %s", got.status, got.body)
	}
	r.proxy.Wait()
	r.pool.all = r.pool.all[:2]
	r.pool.all[0].Base.Host = "127.0.0.1:1" // nothing listens there
	dials.Store(0)
	refuse = 10
	got := r.post(messages, asking)
	if got.status != 502 || !strings.Contains(got.body, "could not connect to the provider anthropic at 127.0.0.1:1: nothing listens there (connection refused)") {
		t.Errorf("with nobody there: %d %s", got.status, got.body)
	}
	if n := dials.Load(); n != 2 {
		t.Errorf("%d connections were tried, want 2", n)
	}
	reports := r.pool.got()
	if last := reports[len(reports)-1]; len(reports) != 2 || last.Account != "first-account" || last.Reason != pool.Unreachable {
		t.Errorf("reports: %v", reports)
	}
}

// A request that the provider may have read is never repeated, not even with an idempotency
// key.
func TestNotSentTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	var calls atomic.Int32
	r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if calls.Add(1) > 1 { // the first warms a connection up
			cut()
		}
		answer(200, `{}`)(w, req)
	})
	for want := range 2 {
		req := r.request(t.Context(), chats, asking)
		req.Header.Set("Idempotency-Key", "k")
		if got := r.do(req); got.status != []int{200, 502}[want] {
			t.Errorf("request %d: %d %s", want, got.status, got.body)
		}
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("the provider was asked %d times for 2 requests", n)
	}
}

// Streams, broken ends and cancellation also work over TLS, with a connection for each stream,
// whatever else the provider offers.
func TestTLSUpstream(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor != 1 {
			t.Errorf("the provider was asked over %s", req.Proto)
		}
		_, _ = io.Copy(io.Discard, req.Body)
		switch req.Header.Get("X-Case") {
		case "cut":
			stream(msgBlock)(w, req)
			cut()
		case "cancel":
			stream(msgBlock)(w, req)
			<-req.Context().Done()
			close(gone)
		default:
			stream(strings.SplitAfter(goodAnswer, "e")...)(w, req)
		}
	}))
	up.EnableHTTP2 = true
	up.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	up.StartTLS()
	t.Cleanup(up.Close)
	roots := x509.NewCertPool()
	roots.AddCert(up.Certificate())
	transport := upstream.New(upstream.Config{TLS: &tls.Config{RootCAs: roots}})
	t.Cleanup(transport.CloseIdleConnections)
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open = transport })
	r.pool.all = []pool.Account{r.account("anthropic", up.URL, "sk-"+canary)}
	if got := r.post(messages, asking); got.err != nil || got.body != goodAnswer {
		t.Errorf("got %d %q, %v", got.status, got.body, got.err)
	}
	req := r.request(t.Context(), messages, asking)
	req.Header.Set("X-Case", "cut")
	if got := r.do(req); got.err == nil || !strings.HasPrefix(got.body, msgBlock+"event: error\n") {
		t.Errorf("a reset stream: got %q, %v", got.body, got.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req = r.request(ctx, messages, asking)
	req.Header.Set("X-Case", "cancel")
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-gone
	_ = res.Body.Close()
}

func TestTLSFailure(t *testing.T) {
	t.Parallel()
	up := httptest.NewUnstartedServer(stream(goodAnswer)) // with a certificate that nobody trusts
	up.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	up.StartTLS()
	t.Cleanup(up.Close)
	r := newRig(t, &loopback{}, nil)
	r.pool.all = []pool.Account{r.account("anthropic", up.URL, "sk-"+canary)}
	if got := r.post(messages, asking); got.status != 502 || !strings.Contains(got.body, "the connection to the provider anthropic at 127.0.0.1:") || !strings.Contains(got.body, " failed: its certificate is not trusted") {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// An account whose base URL a workspace chose cannot reach the operator's network, not even by
// a name that resolves there.
func TestGuardedAddress(t *testing.T) {
	t.Parallel()
	guarded := upstream.New(upstream.Config{Control: target.Policy{}.Control})
	t.Cleanup(guarded.CloseIdleConnections)
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Guarded = guarded })
	r.upstream("anthropic", stream(goodAnswer))
	if got := r.post(messages, asking); got.status != 200 {
		t.Errorf("the operator's own target: %d %s", got.status, got.body)
	}
	r.proxy.Wait()
	r.pool.all[0].Own = true
	for _, host := range []string{r.pool.all[0].Base.Host, strings.Replace(r.pool.all[0].Base.Host, "127.0.0.1", "localhost", 1)} {
		r.pool.all[0].Base.Host = host
		got := r.post(messages, asking)
		if got.status != 502 || !strings.Contains(got.body, "has not allowed") || got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %d %s", host, got.status, got.body)
		}
		r.proxy.Wait()
	}
}

// Of many concurrent streams each gets its own bytes, and all of them.
func TestConcurrentStreams(t *testing.T) {
	t.Parallel()
	const streams, events = 200, 60
	r := newRig(t, &loopback{}, nil)
	piece := func(id string, i int) string {
		return fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"text\":\"%s/%d %s\"}\n\n", id, i, strings.Repeat("ä", i))
	}
	var full sync.WaitGroup // all are open at the same time
	full.Add(streams)
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		full.Done()
		full.Wait()
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			text := piece(string(body), i)
			_, _ = io.WriteString(w, text[:i])
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, text[i:])
		}
		if strings.HasSuffix(string(body), "7") {
			cut()
		}
		_, _ = io.WriteString(w, msgStop)
	})
	var wg sync.WaitGroup
	for n := range streams {
		wg.Go(func() {
			id := fmt.Sprint(n)
			var want strings.Builder
			for i := range events {
				want.WriteString(piece(id, i))
			}
			got := r.post(messages, id)
			if strings.HasSuffix(id, "7") {
				whole, _, found := strings.Cut(got.body, "event: error\n")
				if got.err == nil || !found || !strings.HasPrefix(want.String(), whole) || !strings.HasSuffix(whole, "\n\n") {
					t.Errorf("stream %s: ends with %v and %q", id, got.err, got.body[max(0, len(got.body)-200):])
				}
				return
			}
			if got.err != nil || got.body != want.String()+msgStop {
				t.Errorf("stream %s: %d bytes, %v, want %d", id, len(got.body), got.err, want.Len()+len(msgStop))
			}
		})
	}
	wg.Wait()
	r.proxy.Wait()
	want := map[string]float64{"requests ok": streams - streams/10, "requests broken": streams / 10, "requests exhausted": 0, "requests no_account": 0, "open ": 0, "gate ": streams, "added ": streams}
	if diff := cmp.Diff(want, r.metricValues()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// metricValues returns the rig's metrics by short names and outcomes.
func (r *rig) metricValues() map[string]float64 {
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		name, _, _ := strings.Cut(strings.TrimPrefix(f.GetName(), "signalbox_broker_"), "_")
		for _, m := range f.GetMetric() {
			outcome := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" || l.GetName() == "reason" {
					outcome = l.GetValue()
				}
			}
			out[name+" "+outcome] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// The error for an unreachable provider names it, with the reason and, unless only the operator
// may know it, its address.
func TestWhyUnreachable(t *testing.T) {
	t.Parallel()
	var refused error
	transport := upstream.New(upstream.Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, refused }})
	t.Cleanup(transport.CloseIdleConnections)
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open, c.Guarded = transport, transport })
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		base string
		own  bool
		err  error
		want string
	}{
		{"https://typo.example", true, dial(&net.DNSError{Name: "typo.example", IsNotFound: true}), "could not connect to the provider anthropic at typo.example: there is no host with this name"},
		{"https://api.anthropic.com", false, dial(&net.DNSError{Name: "x", IsTimeout: true}), "could not connect to the provider anthropic at api.anthropic.com: its name could not be looked up"},
		{"http://10.1.2.3:8000", false, dial(syscall.ECONNREFUSED), "could not connect to the provider anthropic: nothing listens there (connection refused)"},
		{"http://localhost:11434", false, dial(syscall.ECONNREFUSED), "could not connect to the provider anthropic at localhost:11434: nothing listens there (connection refused)"},
		{"https://far.example", true, dial(syscall.ENETUNREACH), "at far.example: there is no route to it"},
		{"https://slow.example", true, dial(os.ErrDeadlineExceeded), "at slow.example: the connection took too long"},
	} {
		account := r.account("anthropic", tt.base, "sk-"+canary)
		account.Own = tt.own
		r.pool.all = []pool.Account{account}
		refused = tt.err
		if got := r.post(messages, asking); got.status != 502 || !strings.Contains(got.body, tt.want) {
			t.Errorf("%s, %v: %d %s, want %q", tt.base, tt.err, got.status, got.body, tt.want)
		}
	}
}
