package oauth_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/simulator/authserver"
)

// TestClockSetRight: the clock was two hours ahead when a row was written, and was corrected.
// Nothing in the row keeps a token from being renewed.
func TestClockSetRight(t *testing.T) {
	t.Parallel()
	t.Run("a rejected token is not young", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
		k := w.keeper()
		ref := w.grant(k)
		w.grants(`issued_at = now() + interval '2 hours', expires_at = now() + interval '3 hours', refresh_at = now() + interval '170 minutes'`,
			func(g *accountfile.Grant, now time.Time) {
				g.IssuedAt, g.ExpiresAt, g.RefreshAt = now.Add(2*time.Hour), new(now.Add(3*time.Hour)), new(now.Add(170*time.Minute))
			})
		k.Forget(ref)
		if got, err := k.Rejected(t.Context(), ref, 1); err != nil || got.Version != 2 {
			t.Errorf("Rejected() = version %d, %v, want another token", got.Version, err)
		}
		if got := w.token(k, ref); got.Version != 2 {
			t.Errorf("Token() has version %d, want 2", got.Version)
		}
		w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
	})
	for name, left := range map[string]func(w *world){
		"a pause": func(w *world) {
			w.grants(`retry_at = now() + interval '2 hours', failures = 1`, func(g *accountfile.Grant, now time.Time) { g.RetryAt, g.Failures = new(now.Add(2*time.Hour)), 1 })
		},
		"a lease": func(w *world) {
			w.grants(`attempt_id = gen_random_uuid(), lease_until = now() + interval '2 hours'`, func(g *accountfile.Grant, now time.Time) {
				g.Attempt = &accountfile.Attempt{ID: uuid.New(), Kind: "refresh", StartedAt: now, LeaseUntil: now.Add(2 * time.Hour)}
			})
		},
	} {
		quick := func(c *oauth.Config) { c.Every, c.Lease = 10*time.Millisecond, 500*time.Millisecond }
		t.Run(name+" of longer than there are, and somebody asks", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
			// A busy machine may take as long as a shorter lease, and nobody would try again.
			k := w.keeper(quick, func(c *oauth.Config) { c.Lease = 3 * time.Second })
			ref := w.grant(k)
			w.expire(ref, k)
			left(w)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if got, err := k.Token(ctx, ref); err != nil || got.Version != 2 {
				t.Errorf("Token() = version %d, %v, want a renewed one", got.Version, err)
			}
		})
		t.Run(name+" of longer than there are, and nobody asks", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
			k := w.keeper(quick)
			ref := w.grant(k)
			w.makeDue()
			left(w)
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error)
			go func() { over <- k.Run(ctx) }()
			eventually(t, "the renewal", func() bool { return w.status(ref).Version == 2 })
			cancel()
			if err := <-over; err != nil {
				t.Errorf("Run() = %v", err)
			}
		})
	}
}

// TestTokensOfTheFutureAreDueInFile: the worker renews them although nobody asks.
func TestTokensOfTheFutureAreDueInFile(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper(func(c *oauth.Config) { c.Every = 10 * time.Millisecond })
	ref := w.grant(k)
	w.grants("", func(g *accountfile.Grant, now time.Time) {
		g.IssuedAt, g.ExpiresAt, g.RefreshAt = now.Add(2*time.Hour), new(now.Add(3*time.Hour)), new(now.Add(170*time.Minute))
	})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- k.Run(ctx) }()
	eventually(t, "the renewal", func() bool { return w.status(ref).Version == 2 })
	cancel()
	if err := <-over; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

// TestStrayLeaseIsNotTakenAtOnce: the holder of a lease that the clock has made too long may
// be at work, and keeps it for the usual time.
func TestStrayLeaseIsNotTakenAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k, other := w.keeper(), w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	answer, arrived := make(chan struct{}), make(chan struct{})
	w.server.Fail(authserver.Fault{Wait: answer})
	w.server.Watch(func(stage string) {
		if stage == "arrived" {
			w.server.Watch(nil)
			close(arrived)
		}
	})
	renewed := make(chan error)
	go func() { _, err := k.Token(t.Context(), ref); renewed <- err }()
	receive(t, arrived)
	w.grants(`lease_until = lease_until + interval '2 hours'`, func(g *accountfile.Grant, now time.Time) { g.Attempt.LeaseUntil = now.Add(2 * time.Hour) })
	asked := make(chan error)
	go func() { _, err := other.Token(t.Context(), ref); asked <- err }()
	eventually(t, "the lease is as long as leases are", func() bool {
		if w.file != nil {
			st, err := w.file.View(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(st.Account(ref.Account).Grant.Attempt.LeaseUntil) < time.Minute
		}
		return len(w.rows(`SELECT account_id::text FROM credentials.grants WHERE lease_until < now() + interval '1 minute'`)) == 1
	})
	close(answer)
	for _, c := range []chan error{renewed, asked} {
		if err := <-c; err != nil {
			t.Errorf("Token() = %v", err)
		}
	}
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
}
