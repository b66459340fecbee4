package rotation_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// TestInFile replaces the keys of a file while others add to it: everything opens at any time,
// and the former keys are removed when nobody can need them any more.
func TestInFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, dir, log := t.Context(), t.TempDir(), slog.New(slog.DiscardHandler)
		path, keys := filepath.Join(dir, "accounts.json"), [2]*vault.FileKey{}
		for i := range keys {
			k, err := vault.OpenFile(filepath.Join(dir, fmt.Sprint("key", i)))
			if err != nil {
				t.Fatal(err)
			}
			keys[i] = k
		}
		open := func(kek vault.KEK, others ...vault.KEK) (*store.Store, *vault.Vault) {
			f, err := accountfile.Open(ctx, path, log)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.Close)
			s := store.InFile(f, log)
			return s, vault.New(kek, s, others...)
		}
		s, v := open(keys[0], keys[1])
		add := func(n int) {
			a := store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Label: fmt.Sprint("secret", n)}
			sealed, err := v.Seal(ctx, a.Place(), vault.NewSecret(a.Label))
			if err != nil {
				t.Errorf("Seal = %v", err)
				return
			}
			a.Sealed = sealed
			if _, err := s.Add(ctx, a, store.Event{Action: "created"}); err != nil {
				t.Errorf("Add = %v", err)
			}
		}
		all := func(want int) {
			t.Helper()
			rows, err := s.ListAll(ctx)
			if err != nil || len(rows) != want {
				t.Errorf("%d accounts, %v, want %d", len(rows), err, want)
			}
			for _, a := range rows {
				got, err := v.Open(ctx, a.Place(), a.Sealed)
				if err != nil || got.Reveal() != a.Label {
					t.Errorf("account %s: %v", a.Label, err)
				}
			}
		}
		for n := range 5 {
			add(n)
		}
		// The command line has the new key in the first place.
		theirs, other := open(keys[1], keys[0])
		r := rotation.New(theirs, other)
		var adding sync.WaitGroup
		adding.Go(func() {
			for n := range 5 {
				add(5 + n)
			}
		})
		report, err := r.Run(context.WithoutCancel(ctx), false, nil)
		if err != nil || report.Wrapped != 1 || report.Made != 1 || report.Sealed < 5 || report.Failed != 0 {
			t.Errorf("Run = %+v, %v, want one key wrapped, one made, and what was there sealed anew", report, err)
		}
		adding.Wait()
		all(10)
		<-time.After(2 * time.Minute) // of the bubble
		swept, err := r.Sweep(ctx)
		if err != nil || swept.Removed != 1 {
			t.Errorf("Sweep = %+v, %v, want the former key removed", swept, err)
		}
		all(10)
		if left, err := s.DataKeys(ctx, id.Workspace{}); err != nil || len(left) != 1 || left[0].KEK != keys[1].ID() {
			t.Errorf("data keys = %+v, %v, want the new one, wrapped by the new key", left, err)
		}
	})
}
