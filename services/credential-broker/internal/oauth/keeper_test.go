package oauth_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

func TestTokenIsCached(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	first := w.token(k, ref)
	// What is held is given out without a look: the row may as well be gone.
	w.change(`DELETE FROM credentials.accounts`)
	if again := w.token(k, ref); again.Version != first.Version {
		t.Errorf("Token() again has version %d, want %d", again.Version, first.Version)
	}
	k.Forget(ref)
	_, err := k.Token(t.Context(), ref)
	wantFault(t, "Token() of a removed account", err, fault.NotFound, "ACCOUNT_NO_GRANT")
	w.calls(authserver.Calls{})
}

func TestForgetOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	mine := w.grant(k)
	w.who.Workspace = id.New[id.Workspace]()
	theirs := w.grant(k)
	w.token(k, mine)
	w.token(k, theirs)
	w.change(`DELETE FROM credentials.accounts`)
	k.ForgetOf(mine.Workspace)
	_, err := k.Token(t.Context(), mine)
	wantFault(t, "Token() of a removed account", err, fault.NotFound, "ACCOUNT_NO_GRANT")
	w.token(k, theirs) // is held still
}

func TestOneRefreshForAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true, EndsAccess: true}, "tokens: {rotate: true, refresh_ends_access: true}")
	keepers := []*oauth.Keeper{w.keeper(), w.keeper(), w.keeper(), w.keeper()}
	ref := w.grant(keepers[0])
	const rounds, waiters = 3, 50
	for range rounds {
		w.expire(ref, keepers...)
		var wg sync.WaitGroup
		for _, k := range keepers {
			for range waiters {
				wg.Go(func() {
					if got, err := k.Token(t.Context(), ref); err != nil || !w.server.Good(got.Secret.Reveal()) {
						t.Errorf("Token() = version %d, %v, want one that is taken", got.Version, err)
					}
				})
			}
		}
		wg.Wait()
	}
	w.calls(authserver.Calls{Refresh: rounds, Refreshed: rounds})
	w.attempts(ref, "done", "done", "done")
}

func TestWaitersLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	arrived, answer := make(chan struct{}), make(chan struct{})
	w.server.Watch(func(stage string) {
		if stage == "arrived" {
			close(arrived)
		}
	})
	w.server.Fail(authserver.Fault{Wait: answer})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := k.Token(ctx, ref)
		left <- err
	}()
	receive(t, arrived)
	cancel()
	if err := receive(t, left); !errors.Is(err, context.Canceled) {
		t.Errorf("Token() of a caller who left = %v, want %v", err, context.Canceled)
	}
	close(answer)
	w.token(k, ref)
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
}

func TestRejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true, EndsAccess: true}, rotating)
	k, other := w.keeper(), w.keeper()
	ref := w.grant(k)
	old := w.token(other, ref)

	// The other instance holds a token that a rotation has ended.
	if err := k.Refresh(t.Context(), w.who, ref); err != nil {
		t.Fatal(err)
	}
	fresh, err := other.Rejected(t.Context(), ref, old.Version)
	if err != nil || fresh.Version != old.Version+1 || !w.server.Good(fresh.Secret.Reveal()) {
		t.Errorf("Rejected(%d) = version %d, %v, want the next one, which is good", old.Version, fresh.Version, err)
	}
	if again, err := other.Rejected(t.Context(), ref, old.Version); err != nil || again.Version != fresh.Version {
		t.Errorf("Rejected(%d) again = version %d, %v", old.Version, again.Version, err)
	}
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})

	// A new token that is rejected is not renewed again and again.
	if _, err := other.Rejected(t.Context(), ref, fresh.Version); !errors.Is(err, oauth.ErrCurrent) {
		t.Errorf("Rejected() of a new token = %v, want %v", err, oauth.ErrCurrent)
	}
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})

	// One that has been good for a while is, once for all who were rejected.
	w.age()
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if got, err := other.Rejected(t.Context(), ref, fresh.Version); err != nil || got.Version != fresh.Version+1 {
				t.Errorf("Rejected(%d) = version %d, %v", fresh.Version, got.Version, err)
			}
		})
	}
	wg.Wait()
	w.calls(authserver.Calls{Refresh: 2, Refreshed: 2})

	// And not again soon, where that one is rejected too.
	w.age()
	if _, err := other.Rejected(t.Context(), ref, fresh.Version+1); !errors.Is(err, oauth.ErrCurrent) {
		t.Errorf("Rejected() after a renewal that did not help = %v, want %v", err, oauth.ErrCurrent)
	}
	w.calls(authserver.Calls{Refresh: 2, Refreshed: 2})
}

func TestOthersChangesAreFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	other := w.keeper(func(c *oauth.Config) { c.Follow = 10 * time.Millisecond })
	ref := w.grant(k)
	old := w.token(other, ref)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = other.Run(ctx) })
	if err := k.Refresh(t.Context(), w.who, ref); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := other.Token(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if got.Version == old.Version+1 {
			break
		}
	}
	if _, err := k.Revoke(t.Context(), w.who, ref); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := other.Token(t.Context(), ref); err != nil {
			wantFault(t, "Token() after it was signed out elsewhere", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")
			break
		}
	}
	cancel()
	wg.Wait()
}

func TestWithoutRefreshToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{NoRefresh: true}, "")
	k := w.keeper()
	ref := w.grant(k)
	got := w.token(k, ref)
	w.age()
	if _, err := k.Rejected(t.Context(), ref, got.Version); !errors.Is(err, oauth.ErrCurrent) {
		t.Errorf("Rejected() = %v, want %v", err, oauth.ErrCurrent)
	}
	err := k.Refresh(t.Context(), w.who, ref)
	wantFault(t, "Refresh()", err, fault.Conflict, "ACCOUNT_NO_REFRESH_TOKEN")
	if s := w.status(ref); s.State != oauth.Active {
		t.Errorf("status after it = %+v, want %s", s, oauth.Active)
	}
	w.expire(ref, k)
	_, err = k.Token(t.Context(), ref)
	wantFault(t, "Token() of an expired one", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")
	if s := w.status(ref); s.State != oauth.Reauthorize || s.Reason == "" {
		t.Errorf("status = %+v, want %s with a reason", s, oauth.Reauthorize)
	}
}

func TestImportedWithRefreshTokenOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	_, r := w.server.Grant()
	ref, err := k.Add(t.Context(), w.who, oauth.NewGrant{Provider: "sim", Refresh: vault.NewSecret(r)})
	if err != nil {
		t.Fatal(err)
	}
	w.token(k, ref)
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
}

func TestSharedAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	w.who = identity.Actor{Service: "signalbox accounts"}
	k := w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	w.token(k, ref)
}

func TestWorkerRenewsAheadOfExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k, other := w.keeper(fast), w.keeper(fast)
	var refs []oauth.Ref
	for range 20 {
		refs = append(refs, w.grant(k))
	}
	// Due, and good for a while: whoever asks gets the old token without waiting.
	w.makeDue()
	all := make(chan struct{}, 2*len(refs))
	w.server.Watch(func(stage string) {
		if stage == "answered" {
			all <- struct{}{}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, k := range []*oauth.Keeper{k, other} {
		wg.Go(func() {
			if err := k.Run(ctx); err != nil {
				t.Errorf("Run() = %v", err)
			}
		})
	}
	for range refs {
		receive(t, all)
	}
	cancel()
	wg.Wait()
	k.Close()
	other.Close()
	k = w.keeper()
	for _, ref := range refs {
		if got := w.token(k, ref); got.Version != 2 {
			t.Errorf("after the worker the version is %d, want 2", got.Version)
		}
	}
	w.calls(authserver.Calls{Refresh: len(refs), Refreshed: len(refs)})
}

// fast makes an instance that searches often.
func fast(c *oauth.Config) { c.Every = 10 * time.Millisecond }

func TestDueIsRenewedInBackground(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.token(k, ref)
	w.makeDue()
	k.Forget(ref)
	answer := make(chan struct{})
	w.server.Fail(authserver.Fault{Status: 503}) // cannot be renewed, and need not be
	close(answer)
	if got := w.token(k, ref); got.Version != 1 {
		t.Errorf("Token() has version %d, want the old one, which is good", got.Version)
	}
	if s := w.status(ref); s.State != oauth.Active || s.LastError == "" {
		t.Errorf("status = %+v, want %s with an error", s, oauth.Active)
	}
	w.attempts(ref, "unknown")
}
