package oauth_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
)

// TestTroubleIsToldOnceInAWhile does not fill the log while what is stored cannot be
// looked at, and tells of the next time at once.
func TestTroubleIsToldOnceInAWhile(t *testing.T) {
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
		k := oauth.New(oauth.Config{File: file, Providers: providers, Log: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		})
		<-time.After(3*time.Minute + 30*time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "no look for grants"); n != 4 {
			t.Errorf("in three minutes and a half it was told %d times, want 4", n)
		}
		if err := os.WriteFile(path, []byte(`{"version": 1, "accounts": []}`), 0o600); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		damage()
		<-time.After(2 * time.Second)
		synctest.Wait()
		if n := strings.Count(log.String(), "no look for grants"); n != 5 {
			t.Errorf("after it was well for a moment it was told %d times, want 5", n)
		}
		cancel()
		wg.Wait()
		k.Close()
	})
}
