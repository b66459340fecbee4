package oauth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Revocation is how a sign-out went.
type Revocation struct {
	// AtProvider says that the provider revoked the grant too. If it did not, Why tells people
	// the reason: the tokens may be usable by others until they expire.
	AtProvider bool
	Why        string
}

// Revoke signs an account out: first here, so that nobody uses it, then at the provider
// (RFC 7009), then the tokens are erased. The account stays, and can be authorised again. A
// call after an interruption continues; a grant that is signed out already is no error.
func (k *Keeper) Revoke(ctx context.Context, by identity.Actor, ref Ref) (Revocation, error) {
	return k.RevokeWithin(ctx, by, ref, k.cfg.PostTimeout+2*k.cfg.Lease)
}

// RevokeWithin is Revoke that waits for others, and then for the provider, no longer than a
// limit. A provider that refuses or does not answer is no error; after an error, which is
// Unavailable if others took too long, the sign-out is to be repeated.
func (k *Keeper) RevokeWithin(ctx context.Context, by identity.Actor, ref Ref, limit time.Duration) (Revocation, error) {
	g, a, done, err := k.openRevocation(ctx, by, ref, limit)
	k.forget(ref)
	if err != nil {
		return Revocation{}, err
	}
	if done {
		return Revocation{Why: "it was already signed out"}, nil
	}
	// The caller may leave: half a sign-out is worse than none.
	ctx = context.WithoutCancel(ctx)
	stop := k.keepLease(ctx, a)
	defer stop()
	told, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, f := k.tellProvider(told, ref, &g)
	return r, k.erase(ctx, a, r, f)
}

// detail is the outcome in the audit's words.
func (r *Revocation) detail() string {
	if r.AtProvider {
		return "revoked at the provider"
	}
	return "not revoked at the provider: " + r.Why
}

// openRevocation marks the grant and takes its lease, once no renewal is under way any more:
// the token that one brings is the one to be revoked.
func (k *Keeper) openRevocation(ctx context.Context, by identity.Actor, ref Ref, limit time.Duration) (g grant, a attempt, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		g, a, ok, err := k.markRevoking(ctx, by, ref)
		if err != nil || ok || g.State == Revoked {
			return g, a, !ok, err
		}
		if err := sleep(ctx, poll); err != nil {
			return g, a, false, &fault.Error{
				Kind: fault.Unavailable, RetryAfter: k.cfg.Lease, Err: err,
				Message: "the account's token is being renewed or revoked: try again in a minute",
			}
		}
	}
}

// markRevoking opens the attempt and marks the grant in one transaction: the answer of a
// renewal that comes late is stored before, and is what is revoked, or not at all.
func (k *Keeper) markRevoking(ctx context.Context, by identity.Actor, ref Ref) (g grant, a attempt, ok bool, err error) {
	err = k.change(ctx, ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		g = k.newGrant(*row, time.Now())
		a, ok, err = k.takeLease(ctx, tx, ref, kindRevoke, row, &g, func(g *grant) bool { return g.State != Revoked })
		if err != nil || !ok && !g.stray {
			return err
		}
		marks := ok && row.State != Revoking
		if marks {
			row.State, row.ChangedAt, row.Reason = Revoking, row.Now, "it is being signed out"
		}
		if err := tx.UpdateGrant(ctx, ref.Account, row); err != nil || !marks {
			return err
		}
		return tx.Record(ctx, event(by, "changed", ref, row.AccountProvider, "signed out"))
	})
	a.by = by
	return g, a, ok && err == nil, err
}

// erase ends a sign-out.
func (k *Keeper) erase(ctx context.Context, a attempt, r Revocation, f *failure) error {
	outcome := outcomeDone
	if f != nil {
		outcome, _ = verdict(&Provider{}, f)
	}
	err := k.change(ctx, a.ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		if err := a.end(ctx, tx, outcome, f); err != nil || row.Version != a.base || row.State != Revoking {
			return err
		}
		row.Version++
		row.State, row.ChangedAt, row.Reason = Revoked, row.Now, "it was signed out"
		row.Access, row.Refresh, row.Client, row.RefreshAt, row.Attempt = nil, nil, nil, nil, nil
		if err := tx.UpdateGrant(ctx, a.ref.Account, row); err != nil {
			return err
		}
		return tx.Record(ctx, event(a.by, "changed", a.ref, row.AccountProvider, r.detail()))
	})
	if fault.KindOf(err) == fault.NotFound {
		err = nil // the account was removed meanwhile, with its tokens
	}
	if err == nil {
		k.cfg.Log.InfoContext(ctx, "signed out", "account", a.ref.Account, "outcome", outcome)
	}
	return err
}

// tellProvider sends the refresh token, which stands for the whole grant, else the
// access token.
func (k *Keeper) tellProvider(ctx context.Context, ref Ref, g *grant) (Revocation, *failure) {
	p, err := k.provider(g.Provider, g.Server)
	switch {
	case err != nil:
		return Revocation{Why: "the sign-in provider is no longer configured"}, &failure{err: err}
	case p.Revoke == "":
		return Revocation{Why: fmt.Sprintf("%s offers no revocation: remove the access in the account's settings there", p.Name)}, &failure{err: errors.New("no revocation endpoint")}
	}
	secret, hint, err := k.revocable(ctx, ref, &g.Grant)
	if err == nil {
		err = k.openClient(ctx, ref, p, g.Client)
	}
	if err != nil {
		return Revocation{Why: "the stored tokens could not be opened"}, &failure{err: err}
	}
	if _, err := k.post(ctx, p, p.Revoke, parameters{"token": secret.Reveal(), "token_type_hint": hint}); err != nil {
		f := failureOf(err)
		k.cfg.Log.WarnContext(ctx, "grant not revoked at the provider", "account", ref.Account, "provider", p.Name, "error", err)
		return Revocation{Why: f.Error()}, f
	}
	return Revocation{AtProvider: true}, nil
}

// revocable decrypts the token that stands for the grant.
func (k *Keeper) revocable(ctx context.Context, ref Ref, g *store.Grant) (secret vault.Secret, field string, err error) {
	sealed, field := g.Refresh, store.RefreshField
	if sealed == nil {
		sealed, field = g.Access, store.AccessField
	}
	if sealed == nil {
		return vault.Secret{}, field, nil
	}
	secret, err = k.cfg.Vault.Open(ctx, ref.place(field), *sealed)
	return secret, field, err
}

// CheckDecrypt returns why the token that a renewal or a sign-out would send does not
// decrypt; nil if it does, or there is none. It changes nothing and asks no provider.
func (k *Keeper) CheckDecrypt(ctx context.Context, ref Ref) error {
	g, err := k.read(ctx, ref)
	if err == nil {
		_, _, err = k.revocable(ctx, ref, &g.Grant)
	}
	return err
}
