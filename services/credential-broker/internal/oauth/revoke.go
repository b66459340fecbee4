package oauth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Revocation is how a sign-out went.
type Revocation struct {
	// AtProvider says that the provider took the grant back too. Where it did not, Why
	// says so to people: the tokens may be good for others until they expire.
	AtProvider bool
	Why        string
}

// Revoke signs an account out: first here, so that nobody uses it, then at the
// provider (RFC 7009), then the tokens are erased. The account stays, and can be
// authorised again. Called again it goes on where it was interrupted; a grant that is
// signed out already is no error.
func (k *Keeper) Revoke(ctx context.Context, who Who, ref Ref) (Revocation, error) {
	return k.RevokeWithin(ctx, who, ref, k.cfg.PostTimeout+2*k.cfg.Lease)
}

// RevokeWithin is Revoke that waits for others, and then for the provider, no longer than
// a limit. What the provider answers, or that it does not, is no error; after one, which is
// Unavailable where others took too long, the sign-out is to be repeated.
func (k *Keeper) RevokeWithin(ctx context.Context, who Who, ref Ref, limit time.Duration) (Revocation, error) {
	g, a, done, err := k.openRevocation(ctx, who, ref, limit)
	k.forget(ref)
	if err != nil {
		return Revocation{}, err
	}
	if done {
		return Revocation{Why: "it was signed out before"}, nil
	}
	a.by = who
	// Whoever asked may leave: half a sign-out is worse than none.
	ctx = context.WithoutCancel(ctx)
	stop := k.keepLease(ctx, a)
	defer stop()
	told, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, f := k.tellProvider(told, ref, &g)
	return r, k.tables.erase(ctx, a, r, f)
}

// detail says for the audit what came of it.
func (r *Revocation) detail() string {
	if r.AtProvider {
		return "taken back at the provider"
	}
	return "not taken back at the provider: " + r.Why
}

// revoked is the outcome of a sign-out's attempt.
func revoked(f *failure) string {
	if f == nil {
		return outcomeDone
	}
	outcome, _ := verdict(&Provider{}, f)
	return outcome
}

// openRevocation marks the grant and takes its lease, when no renewal is under way
// any more: the token that one brings is the one to be taken back.
func (k *Keeper) openRevocation(ctx context.Context, who Who, ref Ref, limit time.Duration) (g grant, a attempt, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for look := firstLook; ; look = min(2*look, lastLook) {
		g, a, ok, err := k.tables.openRevocation(ctx, who, ref)
		if err != nil || ok || g.State == Revoked {
			return g, a, !ok, err
		}
		if err := sleep(ctx, look); err != nil {
			return g, a, false, &fault.Error{
				Kind: fault.Unavailable, RetryAfter: k.cfg.Lease, Err: err,
				Message: "the account's token is being renewed or taken back at this moment: try again in a minute",
			}
		}
	}
}

// tellProvider sends the refresh token, which stands for the whole grant, else the
// access token.
func (k *Keeper) tellProvider(ctx context.Context, ref Ref, g *grant) (Revocation, *failure) {
	p, err := k.cfg.Providers.Get(g.Provider)
	switch {
	case err != nil:
		return Revocation{Why: "the sign-in provider is not configured any more"}, &failure{err: err}
	case p.Revoke == "":
		return Revocation{Why: fmt.Sprintf("%s has no way to be told: remove the access in the settings of the account there", p.Name)}, &failure{err: errors.New("no revocation endpoint")}
	}
	secret, hint, err := k.revocable(ctx, ref, g)
	if err != nil {
		return Revocation{Why: "the stored tokens could not be opened"}, &failure{err: err}
	}
	if _, err := k.post(ctx, p, p.Revoke, parameters{"token": secret.Reveal(), "token_type_hint": hint}); err != nil {
		f, ok := errors.AsType[*failure](err)
		if !ok {
			f = &failure{err: err}
		}
		k.cfg.Log.WarnContext(ctx, "grant not revoked at the provider", "account", ref.Account, "provider", p.Name, "error", err)
		return Revocation{Why: f.Error()}, f
	}
	return Revocation{AtProvider: true}, nil
}

func (k *Keeper) revocable(ctx context.Context, ref Ref, g *grant) (secret vault.Secret, hint string, err error) {
	if g.RefreshKeyVersion != nil {
		secret, err = k.cfg.Vault.Open(ctx, ref.place(refreshField), g.refresh())
		return secret, refreshField, err
	}
	secret, err = k.cfg.Vault.Open(ctx, ref.place(accessField), g.access())
	return secret, accessField, err
}
