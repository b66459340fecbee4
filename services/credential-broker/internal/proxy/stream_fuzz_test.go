package proxy_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// onePool is a pool of one account without memory.
type onePool struct{ account pool.Account }

func (o *onePool) Select(_ context.Context, r pool.Request) (pool.Account, error) {
	if len(r.Tried) > 0 {
		return pool.Account{}, pool.ErrExhausted
	}
	return o.account, nil
}
func (*onePool) Began(pool.Account)                                 {}
func (*onePool) Report(context.Context, pool.Account, pool.Outcome) {}

// anyToken accepts every token, without a signature to compute.
type anyToken struct{ actor identity.Actor }

func (a anyToken) Verify(string) (identity.Actor, error) { return a.actor, nil }

// page is a caller that keeps its answer.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (p *page) Header() http.Header              { return p.header }
func (p *page) WriteHeader(status int)           { p.status = status }
func (p *page) Flush()                           {}
func (p *page) SetReadDeadline(time.Time) error  { return nil }
func (p *page) SetWriteDeadline(time.Time) error { return nil }
func (p *page) Write(b []byte) (int, error)      { return p.body.Write(b) }

// For any bytes in any pieces, a clean end has them all; a broken one has a prefix of them and
// at most an error event, or the blank line that the provider's own error lacks. There are no
// sockets, signatures or logs, whose goroutines and numbers would look new to the fuzzer in
// every input.
func FuzzStream(f *testing.F) {
	for i, s := range []string{goodAnswer, goodChat, msgStart + msgPing + msgError, msgStart + msgPing + strings.TrimSpace(msgError), msgStart + msgBlock + msgDelta[:20], chatDelta + "data: [DONE]", strings.ReplaceAll(goodAnswer, "\n", "\r\n"), "\r\r\n\n"} {
		f.Add([]byte(s), uint8(i), uint8(i))
	}
	profiles, err := profile.Load("1.2.3", profile.Shipped())
	if err != nil {
		f.Fatal(err)
	}
	var accounts []pool.Account
	paths := [...]string{messages, chats, "/egress/anthropic/v1/other", "/egress/openai/v1/responses"}
	for _, provider := range []string{"anthropic", "openai", "anthropic", "openai"} {
		p, ok := profiles.For(provider)
		if !ok {
			f.Fatalf("no profile for %s", provider)
		}
		base := &url.URL{Scheme: "http", Host: "up.test"}
		if len(p.Mounts) > 0 {
			base.Path = p.Mounts[0]
		}
		accounts = append(accounts, pool.Account{ID: id.New[id.Account](), Provider: provider, Origin: pool.Workspace, Profile: p, Base: base, Secret: vault.NewSecret(long)})
	}
	source, chosen := &canned{}, &onePool{}
	p, err := proxy.New(proxy.Config{
		Pool: chosen, Profiles: profiles, Verifier: anyToken{identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor, Service: "agent-runner"}},
		Open: source, Guarded: source, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in []byte, step, route uint8) {
		n := int(route) % len(paths)
		chosen.account = accounts[n]
		source.body = func() io.Reader { return &steps{in, int(step) + 1} }
		req := &http.Request{
			Method: http.MethodPost, URL: &url.URL{Path: paths[n]}, RequestURI: paths[n], Header: http.Header{"X-Api-Key": {"token"}},
			Body: io.NopCloser(strings.NewReader(asking)), ContentLength: int64(len(asking)), Host: "broker.test", RemoteAddr: "192.0.2.1:1",
		}
		w := &page{header: http.Header{}}
		clean := direct(p, w, req)
		got := w.body.Bytes()
		switch {
		case w.status == http.StatusBadGateway:
			if !clean || bytes.Contains(in, []byte("message_stop")) && n == 0 && step == 255 && !bytes.Contains(in, []byte("\r")) && strings.Contains(string(in), msgStop) {
				t.Fatalf("%s: %q is taken for nothing", paths[n], in)
			}
		case clean:
			if !bytes.Equal(got, in) {
				t.Fatalf("%s: %q comes out as %q", paths[n], in, got)
			}
		default:
			i := bytes.LastIndex(got, []byte(`closed the connection before the answer ended`))
			if i >= 0 && !bytes.HasPrefix(in, got) {
				got = got[:max(bytes.LastIndex(got, []byte("event: error\ndata: ")), bytes.LastIndex(got, []byte("data: {\"error\"")), 0)]
			}
			if whole, mended := bytes.CutSuffix(got, []byte("\n\n")); mended && bytes.Equal(whole, in) {
				return // the provider's own error, whose blank line was missing
			}
			if !bytes.HasPrefix(in, got) {
				t.Fatalf("%s: %q comes out, broken, as %q", paths[n], in, w.body.String())
			}
		}
	})
}
