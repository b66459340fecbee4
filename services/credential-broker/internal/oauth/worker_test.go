package oauth_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

// TestErrorIsLoggedOnceAMinute does not fill the log while the store is unavailable, and logs the
// next failure at once.
func TestErrorIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "accounts.json")
		damage := func() {
			if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		damage()
		file, err := accountfile.Open(t.Context(), path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		providers, err := oauth.Load(nil, oauth.Shipped())
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer // of one goroutine at a time: slog's handlers lock
		k := oauth.New(oauth.Config{Store: store.InFile(file, slog.New(slog.DiscardHandler)), Providers: providers, Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
		<-time.After(3*time.Minute + 30*time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "cannot search for tokens to renew"); n != 4 {
			t.Errorf("in three minutes and a half it was told %d times, want 4", n)
		}
		if err := os.WriteFile(path, []byte(`{"version": 1, "accounts": []}`), 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(8 * time.Second) // at the latest, it has searched by then
		damage()
		<-time.After(16 * time.Second) // and again, after a longer pause
		synctest.Wait()
		if n := strings.Count(log.String(), "cannot search for tokens to renew"); n != 5 {
			t.Errorf("after it was well for a moment it was told %d times, want 5", n)
		}
		cancel()
		wg.Wait()
		k.Close()
	})
}

// TestHangingProviderHoldsUpItself has more grants due than one search returns, for longer than
// those of another provider, at a provider that does not answer.
func TestHangingProviderHoldsUpItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	var asked atomic.Int32
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the caller goes
		<-r.Context().Done()
	}))
	t.Cleanup(hanging.Close)
	client := oauth.Client{ID: "us", Secret: vault.NewSecret("hush")}
	providers, err := oauth.Load(map[string]oauth.Client{"sim": client, "slow": client}, fstest.MapFS{
		"sim.yaml":  {Data: []byte(providerYAML(w.url, rotating))},
		"slow.yaml": {Data: []byte(strings.Replace(providerYAML(hanging.URL, rotating), "name: sim", "name: slow", 1))},
	})
	if err != nil {
		t.Fatal(err)
	}
	k := w.keeper(fast, func(c *oauth.Config) { c.Providers = providers })
	ref := w.grant(k)
	for n := range 210 {
		_, err := k.Add(t.Context(), w.who, oauth.NewGrant{Provider: "slow", Refresh: vault.NewSecret(fmt.Sprintf("refresh-of-%d", n))})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.change(`UPDATE credentials.grants SET refresh_at = now() - CASE provider WHEN 'slow' THEN interval '1 day' ELSE interval '1 second' END`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error)
	go func() { over <- k.Run(ctx) }()
	eventually(t, "the renewal with the other provider", func() bool { return w.status(ref).Version == 2 })
	if n := asked.Load(); n > 8 {
		t.Errorf("%d renewals are under way with the provider that hangs, want 8 at most", n)
	}
	cancel()
	if err := <-over; err != nil {
		t.Errorf("Run() = %v", err)
	}
	hanging.CloseClientConnections()
}

// Grants that an instance cannot renew, because it lacks the key, have been due the longest. They
// do not keep its worker from the others.
func TestWorkerSkipsUnrenewable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper(fast)
	ref := w.grant(k)
	for n := range 210 {
		_, err := k.Add(t.Context(), w.who, oauth.NewGrant{Provider: "sim", Refresh: vault.NewSecret(fmt.Sprintf("refresh-of-%d", n))})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.change(`UPDATE credentials.grants SET refresh_at = now() - interval '1 second'`)
	w.change(`UPDATE credentials.grants SET refresh_sealed = '\x00', refresh_at = now() - interval '1 day' WHERE account_id <> $1`, ref.Account)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- k.Run(ctx) }()
	eventually(t, "the renewal of the one that opens", func() bool { return w.status(ref).Version == 2 })
	cancel()
	if err := <-over; err != nil {
		t.Errorf("Run() = %v", err)
	}
}
