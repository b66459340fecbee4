package oauth

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	storeTimeout = 10 * time.Minute // for storing what was issued,
	closeGrace   = 10 * time.Second // and while the process ends
	storePause   = 100 * time.Millisecond
)

// renew sends one request to the token endpoint, if there is still a need when the grant is
// read again under its lock, and stores what comes of it. It reports whether there are new
// tokens.
//
// Before it takes the lease it makes sure that this instance can decrypt the refresh token
// and seal new ones. If not, another instance may be able to, and the row says nothing of it.
func (k *Keeper) renew(ctx context.Context, ref Ref, p *Provider, was *grant, rejected int64, by *identity.Actor) (stored bool, err error) {
	force := by != nil
	secret, err := k.cfg.Vault.Open(ctx, ref.place(store.RefreshField), *was.Refresh)
	if err != nil {
		return false, k.skip(ctx, ref, p, err)
	}
	if err := k.openClient(ctx, ref, p, was.Client); err != nil {
		return false, k.skip(ctx, ref, p, err)
	}
	sealer, err := k.cfg.Vault.Sealer(ctx, ref.Workspace)
	if err != nil {
		return false, k.skip(ctx, ref, p, err)
	}
	a, ok, err := k.openAttempt(ctx, ref, func(g *grant) bool {
		return g.Version == was.Version && g.needs(rejected, force) == renewToken && (force || g.backoff() == 0)
	})
	if err != nil || !ok {
		return false, err
	}
	if a.by = k.itself(); by != nil {
		a.by = *by
	}
	// From here on it goes to its end, whether or not anybody waits for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.PostTimeout+storeTimeout)
	defer cancel()
	stop := k.keepLease(ctx, a)
	defer stop()
	t, err := k.refresh(ctx, a, p, secret)
	if err != nil {
		return false, k.failed(ctx, a, p, failureOf(err))
	}
	return k.store(ctx, a, p, sealer, t)
}

// itself is this process, as the actor of what nobody asked for.
func (k *Keeper) itself() identity.Actor {
	return identity.Actor{Service: subject.CredentialBroker, Address: k.cfg.Instance}
}

// refresh posts a refresh token, if what comes of it could be recorded: the token may be good
// only once. A process that was stopped for long since it took the lease sends nothing. Its
// errors are failures.
func (k *Keeper) refresh(ctx context.Context, a attempt, p *Provider, secret vault.Secret) (issued, error) {
	if err := p.Ready(); err != nil {
		return issued{}, &failure{err: err}
	}
	if err := k.cfg.Store.CanRecord(); err != nil {
		return issued{}, &failure{err: err}
	}
	params := parameters{"grant_type": "refresh_token", "refresh_token": secret.Reveal()}
	maps.Copy(params, p.TokenParams)
	if took := max(time.Since(a.taken), time.Since(a.taken.Round(0))); took > k.cfg.Lease/2 {
		return issued{}, &failure{err: fmt.Errorf("the lease is already %s old", took.Round(time.Millisecond))}
	}
	object, err := k.post(ctx, p, p.Token, params)
	if err != nil {
		return issued{}, err
	}
	return tokens(object)
}

// keepLease extends the lease while a slow server is asked, until stop is called.
func (k *Keeper) keepLease(ctx context.Context, a attempt) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		panics.Contain(ctx, k.cfg.Log, "lease of a token renewal", func() {
			for sleep(ctx, k.cfg.Lease/3) == nil {
				if ours, err := k.extendLease(ctx, a); err == nil && !ours {
					return // another attempt has taken over: only the version decides now
				}
			}
		})
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// store seals and commits what was issued, before anybody uses it. Until then the tokens are
// in this process's memory alone, so it is tried for long.
func (k *Keeper) store(ctx context.Context, a attempt, p *Provider, sealer vault.Sealer, t issued) (stored bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := func() { _ = sleep(ctx, closeGrace); cancel() }
	defer context.AfterFunc(k.closing, late)() //nolint:contextcheck // the Keeper's life, not the call's
	began := time.Now()
	for pause := storePause; ; pause = min(2*pause, 5*time.Second) {
		sealed, err := k.seal(ctx, sealer, a.ref, p, t, time.Since(began))
		if err == nil {
			stored, err = k.keepTokens(ctx, a, sealed)
		}
		if err == nil {
			if stored {
				k.cfg.Log.InfoContext(ctx, "access token renewed", "account", a.ref.Account, "provider", p.Name)
			} else {
				k.cfg.Log.InfoContext(ctx, "new access token dropped: the account has changed in the meantime", "account", a.ref.Account, "provider", p.Name)
			}
			return stored, nil
		}
		k.cfg.Log.ErrorContext(ctx, "renewed tokens not stored yet", "account", a.ref.Account, "provider", p.Name, "error", err)
		if sleep(ctx, pause) != nil {
			return false, err
		}
	}
}

// failed writes that an attempt brought nothing and returns the error for the callers.
func (k *Keeper) failed(ctx context.Context, a attempt, p *Provider, f *failure) error {
	k.cfg.Log.WarnContext(ctx, "access token not renewed", "account", a.ref.Account, "provider", p.Name, "error", f)
	if err := k.failAttempt(ctx, a, p, f); err != nil {
		return err // the attempt stays open until its lease is over
	}
	if _, over := verdict(p, f); over {
		return nil // reading the grant again tells why
	}
	return fault.Wrap(f, fault.Unavailable, fmt.Sprintf("the access token for %s could not be renewed (%s); the broker will try again", p.Name, f))
}

// skipFor is how long an instance's worker skips a grant that it cannot renew: such grants
// have been due the longest, and would fill every search.
const skipFor = 5 * time.Minute

// skip notes that this instance lacks a key for a renewal. It logs that once a minute: many
// grants have the same cause, and each is tried again and again.
func (k *Keeper) skip(ctx context.Context, ref Ref, p *Provider, err error) error {
	k.mu.Lock()
	report := k.noKey.report(err)
	if len(k.skipped) >= maxCached {
		clear(k.skipped)
	}
	k.skipped[ref] = time.Now().Add(skipFor)
	k.mu.Unlock()
	if report {
		k.cfg.Log.WarnContext(ctx, "access tokens not renewed here: they cannot be decrypted, or new ones cannot be sealed", "account", ref.Account, "provider", p.Name, "error", err)
	}
	return undecryptable(ref, err)
}

// undecryptable returns what callers are told of a token that does not decrypt here. Another
// instance may be able to, so it is not said of the account.
func undecryptable(ref Ref, err error) error {
	if !vault.Lasting(err) {
		return err
	}
	f := fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the credential of account %s cannot be decrypted here: %s; the operator has to restore the key, or somebody has to sign in again", ref.Account, vault.Why(err)))
	f.Code = "ACCOUNT_UNUSABLE"
	return f
}
