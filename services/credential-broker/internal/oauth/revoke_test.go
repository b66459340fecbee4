package oauth_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/simulator/authserver"
)

// A provider that does not answer holds a sign-out up for no longer than it may, and the
// account is signed out all the same.
func TestRevokeWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the caller goes
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	k := w.keeper(func(c *oauth.Config) {
		c.Providers = loadProviders(t, silent.URL, rotating)
	})
	ref := w.grant(k)
	r, err := k.RevokeWithin(t.Context(), w.who, ref, 2*time.Second)
	if err != nil || r.AtProvider || !strings.Contains(r.Why, "did not answer") {
		t.Errorf("RevokeWithin = %+v, %v, want that the provider did not answer", r, err)
	}
	if s := w.status(k, ref); s.State != oauth.Revoked || s.Renewable {
		t.Errorf("the grant is %+v, want it revoked", s)
	}
}
