package pool_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// TestFileIsWrittenOnceASecond has one account answer a hundred requests a second: what is learned
// is written once a second, and all of it at the end.
func TestFileIsWrittenOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
		f, err := accountfile.Open(t.Context(), filepath.Join(dir, "accounts.json"), log)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		key, err := vault.OpenFile(filepath.Join(dir, "key"))
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := profile.Load("1", profile.Shipped())
		if err != nil {
			t.Fatal(err)
		}
		s := store.InFile(f, log)
		v := vault.New(key, s)
		a := store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai"}
		sealed, err := v.Seal(t.Context(), a.Place(), vault.NewSecret("k"))
		if err != nil {
			t.Fatal(err)
		}
		a.Sealed = sealed
		if _, err := s.Add(t.Context(), a, store.Event{Action: "created"}); err != nil {
			t.Fatal(err)
		}
		set, err := pool.New(pool.Config{Store: s, Vault: v, Profiles: profiles, CheckBase: target.Policy{}.CheckBase, Log: log, WriteEvery: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- set.Run(ctx) }()

		stat := func() os.FileInfo {
			info, err := os.Stat(f.Path())
			if err != nil {
				t.Fatal(err)
			}
			return info
		}
		// All in one workspace and session: a first use is recorded once.
		actor := identity.Actor{Workspace: id.New[id.Workspace](), Session: id.New[id.Session](), Service: "agent-runner"}
		const seconds, each = 10, 100
		written, last := 0, stat()
		for range seconds * each {
			chosen, err := set.Select(ctx, pool.Request{Actor: actor, Provider: "openai"})
			if err != nil {
				t.Fatal(err)
			}
			set.Report(ctx, chosen, pool.Outcome{Reason: pool.OK})
			<-time.After(time.Second / each) // of the bubble
			// A file may get the inode of the one before the last.
			if now := stat(); !os.SameFile(last, now) || !now.ModTime().Equal(last.ModTime()) {
				written, last = written+1, now
			}
		}
		if written < seconds-1 || written > seconds+2 { // the use, and one for each second
			t.Errorf("the file was written %d times in %d s", written, seconds)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
		set.Wait()
		stats, err := s.Stats(t.Context(), id.Workspace{})
		if err != nil || len(stats) != 1 || stats[0].Requests != seconds*each {
			t.Errorf("statistics at the end: %+v, %v, want %d requests", stats, err, seconds*each)
		}
		// Without changes nothing is written.
		last = stat()
		if err := s.Learn(t.Context(), store.Learned{}); err != nil || !os.SameFile(last, stat()) {
			t.Errorf("the file was written for nothing (%v)", err)
		}
	})
}
