package oauth

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	loginLife   = 15 * time.Minute
	keepLogins  = 15 * time.Minute // how long a login can be asked about after it would have expired
	maxPending  = 10               // logins of one member of a workspace that have begun
	maxOperator = 100              // those of the operator's command line
	maxEnded    = 20               // those of one member that have ended and can be asked about
)

// maxBegun returns how many logins an actor may have begun.
func maxBegun(by identity.Actor) int {
	if id.IsZero(by.Member) {
		return maxOperator
	}
	return maxPending
}

// loginPlace is where a login's secret is sealed to.
func loginPlace(by identity.Actor, l *store.Login) vault.Place {
	return vault.Place{Workspace: by.Workspace, Account: l.Account, Field: store.LoginField(l.ID)}
}

// sameRequest reports whether two logins were begun with the same request.
func sameRequest(a, b *store.Login) bool {
	return a.Provider == b.Provider && a.Kind == b.Kind && a.Purpose == b.Purpose && a.Label == b.Label &&
		a.Again == b.Again && (!a.Again || a.Account == b.Account)
}

// begin seals a login's secret and stores it. If one with the same id has begun, it returns
// that one and its secret; a device's login is begun anew.
func (k *Keeper) begin(ctx context.Context, by identity.Actor, l store.Login, secret vault.Secret, life time.Duration) (_ store.Login, _ vault.Secret, left time.Duration, err error) {
	if l.Sealed, err = k.cfg.Vault.Seal(ctx, loginPlace(by, &l), secret); err != nil {
		return l, secret, life, err
	}
	l.Member = by.Member
	existing, err := k.insertLogin(ctx, by, &l, life)
	switch {
	case err != nil || existing == nil:
		return l, secret, life, err
	case !sameRequest(existing, &l):
		return l, secret, life, errKeyReused
	case existing.EndedAt != nil:
		return l, secret, life, fault.Coded(fault.Conflict, "LOGIN_ENDED", "the sign-in begun with this key has been completed or has failed: use a new key for a new sign-in")
	}
	secret, err = k.cfg.Vault.Open(ctx, loginPlace(by, existing), existing.Sealed)
	return *existing, secret, existing.ExpiresAt.Sub(existing.Now), err
}

// insertLogin stores a login, unless its actor has one of the same id, which it returns then.
func (k *Keeper) insertLogin(ctx context.Context, by identity.Actor, l *store.Login, life time.Duration) (existing *store.Login, err error) {
	err = k.cfg.Store.Update(ctx, by.Workspace, func(ctx context.Context, tx store.Tx) error {
		existing = nil
		// One after the other, so that nobody has more than they may.
		if err := tx.Lock(ctx, fmt.Sprintf("logins of %s %s", by.Workspace, by.Member)); err != nil {
			return err
		}
		all, err := tx.Logins(ctx, by.Member)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(x store.Login) bool { return x.ID == l.ID }); i >= 0 {
			// Read again with the lock: it may be ending at this moment.
			locked, err := tx.Login(ctx, l.ID)
			if err != nil {
				return err
			}
			if all = slices.Delete(all, i, i+1); locked != nil {
				all = append(all, *locked)
			}
		}
		now, err := tx.Now(ctx)
		if err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b store.Login) int { return ended(&b).Compare(ended(&a)) })
		var pending []store.Login
		for i := range all {
			x := &all[i]
			expired := !x.ExpiresAt.After(now)
			replaced := x.ID == l.ID && x.EndedAt == nil && (expired || x.Kind == Device && sameRequest(x, l))
			switch {
			case replaced, now.Sub(x.ExpiresAt) > keepLogins, x.EndedAt != nil && i >= maxEnded:
				if err := tx.DeleteLogin(ctx, x.ID); err != nil {
					return err
				}
			case x.ID == l.ID:
				existing = x
			case x.EndedAt == nil && !expired:
				pending = append(pending, *x)
			}
		}
		if existing != nil {
			return nil
		}
		if len(pending) >= maxBegun(by) {
			first := slices.MinFunc(pending, func(a, b store.Login) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
			return tooMany(len(pending), first.ExpiresAt.Sub(now))
		}
		l.PollAt, l.ExpiresAt = now.Add(time.Duration(l.IntervalS)*time.Second), now.Add(life)
		inserted, err := tx.InsertLogin(ctx, l)
		if err == nil && !inserted {
			err = errKeyReused
		}
		return err
	})
	return existing, err
}

// ended returns when a login has ended; zero if it has not.
func ended(l *store.Login) time.Time {
	if l.EndedAt == nil {
		return time.Time{}
	}
	return *l.EndedAt
}

// errKeyReused tells nothing of the other login, which may be somebody else's.
var errKeyReused = fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this key was used for another sign-in: use a new key")

func tooMany(pending int, wait time.Duration) error {
	f := fault.New(fault.Limited, "you have begun %d sign-ins that are not completed: complete one, or wait %s until one expires", pending, wait.Round(time.Second))
	f.RetryAfter = wait
	return f
}

// loginQuery says which of an actor's logins is meant.
type loginQuery struct {
	login    uuid.UUID // zero for any with the state
	state    string    // empty for any with the id
	device   bool
	provider string // empty for any
	purpose  Purpose
}

// fits reports whether a login is the one, and can still be asked about.
func (q *loginQuery) fits(by identity.Actor, l *store.Login) bool {
	return l.Member == by.Member && (l.Kind == Device) == q.device && (q.state == "" || bytes.Equal(l.StateHash, hash(q.state))) &&
		(q.login == uuid.Nil || l.ID == q.login) && (q.provider == "" || l.Provider == q.provider) &&
		(l.Purpose == "" || l.Purpose == string(q.purpose)) && (l.EndedAt != nil || l.ExpiresAt.After(l.Now))
}

// claimLogin returns a login if it has ended, or if it is time to ask the provider: then the
// caller holds a claim on it until updateLogin, or for claimTime. Otherwise it returns for
// how long to wait.
func (k *Keeper) claimLogin(ctx context.Context, by identity.Actor, q loginQuery) (l store.Login, wait time.Duration, err error) {
	err = k.cfg.Store.Update(ctx, by.Workspace, func(ctx context.Context, tx store.Tx) error {
		all, err := tx.Logins(ctx, by.Member)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(l store.Login) bool { return q.fits(by, &l) })
		if i < 0 {
			return errUnknownLogin
		}
		locked, err := tx.Login(ctx, all[i].ID)
		if err != nil {
			return err
		}
		if locked == nil || !q.fits(by, locked) {
			return errUnknownLogin
		}
		l = *locked
		wait = l.PollAt.Sub(l.Now)
		if l.EndedAt != nil || wait > 0 {
			return nil
		}
		locked.PollAt = l.Now.Add(k.claimTime())
		return tx.UpdateLogin(ctx, locked)
	})
	if err == nil && l.Reason == "" && (l.Again || l.EndedAt != nil) { // its account exists, unless it was removed
		_, err = k.read(ctx, Ref{by.Workspace, l.Account})
		switch {
		case fault.KindOf(err) == fault.NotFound:
			err = errUnknownLogin
		case err != nil && l.EndedAt == nil && wait <= 0: // the claim is committed, and the caller does not use it
			k.recordFailure(context.WithoutCancel(ctx), by, &l, err)
		}
	}
	if l.EndedAt != nil {
		wait = 0
	}
	return l, max(wait, 0), err
}

// claimTime is how long a login is claimed: an instance that has not written the outcome by
// then is gone.
func (k *Keeper) claimTime() time.Duration { return k.cfg.PostTimeout + k.cfg.Lease }

// updateLogin changes a login, unless it has ended, or was begun anew since it was claimed.
func (k *Keeper) updateLogin(ctx context.Context, by identity.Actor, claimed *store.Login, fn func(*store.Login)) error {
	return k.cfg.Store.Update(ctx, by.Workspace, func(ctx context.Context, tx store.Tx) error {
		l, err := tx.Login(ctx, claimed.ID)
		if err != nil || !isOpen(l, claimed) {
			return err
		}
		fn(l)
		return tx.UpdateLogin(ctx, l)
	})
}

// isOpen reports whether a login is the one that was claimed, and has not ended.
func isOpen(l, claimed *store.Login) bool {
	return l != nil && l.EndedAt == nil && bytes.Equal(l.StateHash, claimed.StateHash)
}

// postpone sets when the provider may be asked next.
func (k *Keeper) postpone(ctx context.Context, by identity.Actor, l *store.Login, interval int, wait time.Duration) error {
	return k.updateLogin(ctx, by, l, func(l *store.Login) { l.IntervalS, l.PollAt = interval, l.Now.Add(wait) })
}

// failLogin ends a login that brought nothing, and erases its secret.
func (k *Keeper) failLogin(ctx context.Context, by identity.Actor, l *store.Login, f *fault.Error) error {
	return k.updateLogin(ctx, by, l, func(l *store.Login) { l.EndedAt, l.Code, l.Reason = &l.Now, f.Code, f.Message })
}

// finishLogin ends a login that brought tokens, and all other logins of its account: they
// were begun, or completed, before these tokens were there.
func finishLogin(ctx context.Context, tx store.Tx, by identity.Actor, p *Provider, claimed *store.Login) error {
	l, err := tx.Login(ctx, claimed.ID)
	switch {
	case err != nil:
		return err
	case !isOpen(l, claimed):
		return errUnknownLogin
	}
	l.EndedAt = &l.Now
	if err := tx.UpdateLogin(ctx, l); err != nil {
		return err
	}
	if err := tx.DeleteOtherLogins(ctx, l.Account, l.ID); err != nil {
		return err
	}
	if claimed.Purpose != string(ForConnection) {
		return tx.Disconnect(ctx, l.Account) // the one who connected it is not the one who has signed in now
	}
	other, ok, err := tx.Connect(ctx, store.Connection{Provider: p.Name, Account: l.Account, Member: by.Member})
	if err == nil && !ok {
		err = ConnectedMeanwhile(p, other == by.Member)
	}
	return err
}
