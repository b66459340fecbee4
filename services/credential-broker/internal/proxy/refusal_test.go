package proxy_test

import (
	"net/http"
	"testing"
)

// Callers tell errors of the proxy's own from a server's by a header.
func TestOwnErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	send := func() result {
		req := r.request(t.Context(), "/egress/github/user", "{}")
		req.Header.Set("X-Signalbox-Server", "https://mcp.example")
		return r.do(req)
	}
	if got := send(); got.status != http.StatusUnauthorized || got.header.Get("X-Signalbox-Error") != "no_credential" {
		t.Errorf("without an account: %d %v, want 401 and the code in a header", got.status, got.header)
	}
	r.upstream("github", func(w http.ResponseWriter, req *http.Request) {
		if got := req.Header.Get("X-Signalbox-Server"); got != "" {
			t.Errorf("the server was sent %q", got)
		}
		w.Header().Set("X-Signalbox-Error", "no_credential")
		w.WriteHeader(http.StatusForbidden)
	}, "s")
	if got := send(); got.status != http.StatusForbidden || got.header.Get("X-Signalbox-Error") != "" {
		t.Errorf("an error of the server's: %d %v, want it without our header", got.status, got.header)
	}
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if got := r.pool.server; got != "https://mcp.example" {
		t.Errorf("the pool was asked for an account at %q", got)
	}
}
