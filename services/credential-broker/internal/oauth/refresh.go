package oauth

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	keepTimeout = 10 * time.Minute // that storing what was issued is tried for,
	closeGrace  = 10 * time.Second // and while the process ends
	keepPause   = 100 * time.Millisecond
)

// renew sends one request to the token endpoint, if there is still a need when the
// grant, which was read before, is looked at under its lock, and stores what comes of it.
//
// What of this instance it needs is found out before it takes the lease: that the refresh
// token opens, and that what comes can be sealed. Where that is not so another instance may
// do better, and the row says nothing of it. It reports whether there are new tokens.
func (k *Keeper) renew(ctx context.Context, ref Ref, p *Provider, was *grant, rejected int64, by *Who) (stored bool, err error) {
	force := by != nil
	secret, err := k.cfg.Vault.Open(ctx, ref.place(refreshField), was.refresh())
	if err != nil {
		return false, k.cannot(ctx, ref, p, err)
	}
	sealer, err := k.cfg.Vault.Sealer(ctx, ref.Workspace)
	if err != nil {
		return false, k.cannot(ctx, ref, p, err)
	}
	_, a, ok, err := k.tables.open(ctx, ref, kindRefresh, func(g *grant) bool {
		return g.Version == was.Version && g.needs(rejected, force) == renewal && (force || g.pause() == 0)
	})
	if err != nil || !ok {
		return false, err
	}
	if a.by = k.itself(); by != nil {
		a.by = *by
	}
	// From here on it goes to its end, whoever waits for it and for however long.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.PostTimeout+keepTimeout)
	defer cancel()
	stop := k.keepLease(ctx, a)
	defer stop()
	t, err := k.refresh(ctx, a, p, secret)
	if err != nil {
		return false, k.failed(ctx, a, p, failureOf(err))
	}
	return k.store(ctx, a, p, sealer, t)
}

// itself is this process, for the audit of what nobody asked for.
func (k *Keeper) itself() Who { return Who{Service: subject.CredentialBroker, Address: k.cfg.Instance} }

// refresh posts a refresh token, if what comes of it could be recorded: the token may be
// good once. A process that was stopped since it took the lease, and does not know for how
// long, sends nothing. Its errors are failures.
func (k *Keeper) refresh(ctx context.Context, a attempt, p *Provider, secret vault.Secret) (issued, error) {
	if err := p.Ready(); err != nil {
		return issued{}, &failure{err: err}
	}
	if err := k.tables.canRecord(); err != nil {
		return issued{}, &failure{err: err}
	}
	params := parameters{"grant_type": "refresh_token", "refresh_token": secret.Reveal()}
	maps.Copy(params, p.TokenParams)
	if took := max(time.Since(a.taken), time.Since(a.taken.Round(0))); took > k.cfg.Lease/2 {
		return issued{}, &failure{err: fmt.Errorf("the lease is %s old already", took.Round(time.Millisecond))}
	}
	object, err := k.post(ctx, p, p.Token, params)
	if err != nil {
		return issued{}, err
	}
	return tokens(object)
}

// keepLease extends the lease while a slow server is asked. It returns what stops it.
func (k *Keeper) keepLease(ctx context.Context, a attempt) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		panics.Contain(ctx, k.cfg.Log, "lease of a token renewal", func() {
			for sleep(ctx, k.cfg.Lease/3) == nil {
				if ours, err := k.tables.extend(ctx, a); err == nil && !ours {
					return // another has taken over: only the version decides now
				}
			}
		})
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// store seals and commits what was issued, before anybody gets to see it. The tokens
// are in this memory alone until it is done, so that it is tried for long.
func (k *Keeper) store(ctx context.Context, a attempt, p *Provider, sealer vault.Sealer, t issued) (stored bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := func() { _ = sleep(ctx, closeGrace); cancel() }
	defer context.AfterFunc(k.closing, late)() //nolint:contextcheck // the Keeper's life, not the call's
	began := time.Now()
	for pause := keepPause; ; pause = min(2*pause, 5*time.Second) {
		sealed, err := k.seal(ctx, sealer, a.ref, p, t, time.Since(began))
		if err == nil {
			stored, err = k.tables.keep(ctx, a, p, sealed)
		}
		if err == nil {
			if stored {
				k.cfg.Log.InfoContext(ctx, "access token renewed", "account", a.ref.Account, "provider", p.Name)
			} else {
				k.cfg.Log.InfoContext(ctx, "new access token dropped: the account has changed meanwhile", "account", a.ref.Account, "provider", p.Name)
			}
			return stored, nil
		}
		k.cfg.Log.ErrorContext(ctx, "renewed tokens not stored yet", "account", a.ref.Account, "provider", p.Name, "error", err)
		if fault.KindOf(err) == fault.NotFound {
			return false, err // the account was removed
		}
		if sleep(ctx, pause) != nil {
			return false, err
		}
	}
}

// failed writes that an attempt brought nothing and returns the error for those who
// wait.
func (k *Keeper) failed(ctx context.Context, a attempt, p *Provider, f *failure) error {
	k.cfg.Log.WarnContext(ctx, "access token not renewed", "account", a.ref.Account, "provider", p.Name, "error", f)
	if written := k.tables.fail(ctx, a, p, f); written != nil {
		// The attempt stays open; when its lease is over somebody else goes on.
		return written
	}
	if _, over := verdict(p, f); over {
		return nil // the next look says why
	}
	return fault.Wrap(f, fault.Unavailable, fmt.Sprintf("the access token for %s could not be renewed (%s); it is tried again", p.Name, f))
}

// unableFor is how long the worker of an instance leaves a grant alone that it cannot
// renew: such grants are the oldest ones in time, and would take all of its looks.
const unableFor = 5 * time.Minute

// cannot is what comes of a renewal for which this instance lacks a key. It is logged once
// a minute: it is so for many grants, and each is tried again and again.
func (k *Keeper) cannot(ctx context.Context, ref Ref, p *Provider, err error) error {
	k.mu.Lock()
	news := k.keyless.isNews(err)
	if len(k.unable) >= maxHeld {
		clear(k.unable)
	}
	k.unable[ref] = time.Now().Add(unableFor)
	k.mu.Unlock()
	if news {
		k.cfg.Log.WarnContext(ctx, "access tokens not renewed here: they do not open, or new ones could not be sealed", "account", ref.Account, "provider", p.Name, "error", err)
	}
	return unopened(ref, err)
}

// unopened returns what callers are told of a token that does not open. It may at another
// instance, so that it is not said of the account.
func unopened(ref Ref, err error) error {
	if !vault.Lasting(err) {
		return err
	}
	f := fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the credential of account %s does not open here: %s; the operator puts the key back, or somebody signs in again", ref.Account, vault.Why(err)))
	f.Code = "ACCOUNT_UNUSABLE"
	return f
}
