package gateway_test

import (
	"context"
	"crypto/hpke"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/seal"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

func (f *fakeBroker) GetSealingKey(ctx context.Context, _ *credentialv1.GetSealingKeyRequest) (*credentialv1.GetSealingKeyResponse, error) {
	if _, err := may(ctx, identity.Owner); err != nil {
		return nil, err
	}
	return &credentialv1.GetSealingKeyResponse{KeyId: "1-fake", PublicKey: f.sealing.PublicKey().Bytes()}, nil
}

func (f *fakeBroker) AddAccount(ctx context.Context, req *credentialv1.AddAccountRequest) (*credentialv1.AddAccountResponse, error) {
	a, err := may(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.added = append(f.added, req)
	if body := req.GetBody(); body != nil {
		text, err := hpke.Open(f.sealing, hpke.HKDFSHA256(), hpke.AES256GCM(), seal.Body(a.Workspace.String()), body.GetSealed())
		if err != nil {
			return nil, fault.New(fault.Invalid, "body: %v", err)
		}
		f.bodies = append(f.bodies, string(text))
	}
	return &credentialv1.AddAccountResponse{Account: &credentialv1.Account{Id: "0198a000-0000-7000-8000-000000000001", Provider: "openai"}}, nil
}

// A body that may contain a secret is sealed unchanged, valid or not, and forwarded to the broker.
// The connection is then closed.
func TestAccountBodyIsSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for _, body := range []string{`{"provider":"openai","secret":"sk-2"}`, `no JSON at all`, `{"provider":"openai","sealed_secret":{"key_id":"1-fake","sealed":"AAAA"}}`} {
		res := in.send(t, in.request(t, w.owner, "POST", "/api/accounts", body, nil))
		if res.status != http.StatusCreated || !res.closed {
			t.Errorf("%s: %d %s, connection closed: %v", body, res.status, res.body, res.closed)
		}
		if got := w.broker.bodies[len(w.broker.bodies)-1]; got != body {
			t.Errorf("the broker got %q, want %q", got, body)
		}
	}
	for _, got := range w.broker.added {
		if got.GetSecret()+got.GetProvider() != "" || strings.Contains(got.String(), "sk-2") {
			t.Errorf("the broker got %v, want it sealed", got)
		}
	}
	if got := in.send(t, in.request(t, w.owner, "POST", "/api/accounts", strings.Repeat("x", 70<<10), nil)); got.status != http.StatusRequestEntityTooLarge || !strings.Contains(got.body, "65536") {
		t.Errorf("a large body: %d %s", got.status, got.body)
	}
	if got := in.send(t, in.request(t, w.owner, "POST", "/api/accounts", "", nil)); got.status != http.StatusBadRequest {
		t.Errorf("no body: %d %s", got.status, got.body)
	}
	shown := call[struct {
		Key struct{ ID, KEM string } `json:"sealing_key"`
	}](t, in, w.owner, "GET", "/api/accounts/sealing-key", "", http.StatusOK)
	if shown.Key.ID != "1-fake" || shown.Key.KEM != seal.KEM {
		t.Errorf("the sealing key is shown as %+v", shown)
	}
}

// A body over HTTP/2 would pass through buffers that the gateway cannot clear.
func TestNoHTTP2(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(in.request(t, w.owner, "GET", "/health", "", nil))
	if err == nil {
		res.Body.Close()
		t.Errorf("GET /health over HTTP/2 without TLS = %s, want a broken connection", res.Status)
	}
}
