package oauth

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Ref names a grant: it belongs to an account.
type Ref struct {
	Workspace id.Workspace // zero for the operator's shared accounts
	Account   id.Account
}

func (r Ref) place(field string) vault.Place {
	return vault.Place{Workspace: r.Workspace, Account: r.Account, Field: field}
}

// State says what a grant can be used for.
type State = store.GrantState

// The states.
const (
	Active      State = "active"
	Reauthorize State = "reauthorize" // somebody must sign in again
	Revoking    State = "revoking"    // signed out here; the provider may not know yet
	Revoked     State = "revoked"
)

// The outcomes of an attempt. An open one has none.
const (
	outcomeDone       = "done"
	outcomeSuperseded = "superseded" // the grant had changed when the answer came
	outcomeRefused    = "refused"    // the grant is over
	outcomeFailed     = "failed"     // the server refused the request, not the grant
	outcomeUnsent     = "unsent"     // the server was not reached
	outcomeUnknown    = "unknown"    // sent, without an answer that says what happened
	outcomeLost       = "lost"       // the instance that sent it is gone
)

// grant is a grant as it was read. Its times are on the store's clock, and only compared
// with Now.
type grant struct {
	store.Grant
	read time.Time // on this process's clock, before the store was asked
	// stray says that the lease is longer than any that is ever taken.
	stray bool
}

// maxLease is the lease that nobody takes. It is twice the usual one, so that a step of the
// clock by some tenths of a second does not make a stray one of a lease that was just taken.
func maxLease(lease time.Duration) time.Duration { return 2 * lease }

// newGrant bounds the times of a row that a clock which was ahead has left behind, so that
// no grant waits until the clock is there again. A small step makes no difference.
func (k *Keeper) newGrant(row store.Grant, read time.Time) grant {
	g := grant{Grant: row, read: read}
	if g.age() < -minTokenAge { // the age is unknown: the tokens are old enough, and due
		issued := g.Now.Add(-minTokenAge)
		if g.ExpiresAt != nil {
			g.ExpiresAt = new(g.ExpiresAt.Add(issued.Sub(g.IssuedAt)))
		}
		if g.RefreshAt != nil {
			g.RefreshAt = &g.Now
		}
		g.IssuedAt = issued
	}
	if g.RetryAt != nil && g.until(g.RetryAt) > maxWait {
		g.RetryAt = nil
	}
	g.stray = g.Attempt != nil && g.until(&g.Attempt.LeaseUntil) > maxLease(k.cfg.Lease)
	return g
}

func (g *grant) age() time.Duration                { return g.Now.Sub(g.IssuedAt) }
func (g *grant) until(at *time.Time) time.Duration { return at.Sub(g.Now) }

// margin is how long before its expiry an access token is no longer sent.
func (g *grant) margin() time.Duration { return min(30*time.Second, g.ExpiresAt.Sub(g.IssuedAt)/10) }

// alive reports whether the access token can still be sent.
func (g *grant) alive() bool {
	return g.Access != nil && (g.ExpiresAt == nil || g.until(g.ExpiresAt) > g.margin())
}

func (g *grant) due() bool { return g.RefreshAt != nil && g.until(g.RefreshAt) <= 0 }

func (g *grant) leased() bool { return g.Attempt != nil && g.lease() > 0 && !g.stray }

func (g *grant) lease() time.Duration { return g.until(&g.Attempt.LeaseUntil) }

// backoff returns how long no attempt is made after one that failed.
func (g *grant) backoff() time.Duration {
	if g.RetryAt == nil {
		return 0
	}
	return max(g.until(g.RetryAt), 0)
}

// The kinds of attempts.
const (
	kindRefresh = "refresh"
	kindRevoke  = "revoke"
)

// attempt is one that this instance has open.
type attempt struct {
	ref   Ref
	id    uuid.UUID
	base  int64          // the version of the grant that it began with
	taken time.Time      // on this process's clock, when it had read the time from which the lease counts
	by    identity.Actor // who it is made for
}

// read reads a grant without locking it.
func (k *Keeper) read(ctx context.Context, ref Ref) (grant, error) {
	began := time.Now()
	row, err := k.cfg.Store.Grant(ctx, ref.Workspace, ref.Account)
	return k.newGrant(row, began), err
}

// change runs fn on a grant that is locked.
func (k *Keeper) change(ctx context.Context, ref Ref, fn func(context.Context, store.Tx, *store.Grant) error) error {
	return k.cfg.Store.Update(ctx, ref.Workspace, func(ctx context.Context, tx store.Tx) error {
		row, err := tx.Grant(ctx, ref.Account)
		if err != nil {
			return err
		}
		return fn(ctx, tx, row)
	})
}

// openAttempt begins a renewal: needed decides, with the grant locked, whether there is
// still a need. The attempt is committed when it returns, before anything is sent. ok is
// false if another attempt is open, or there is no need.
func (k *Keeper) openAttempt(ctx context.Context, ref Ref, needed func(*grant) bool) (a attempt, ok bool, err error) {
	err = k.change(ctx, ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		g := k.newGrant(*row, time.Now())
		if a, ok, err = k.takeLease(ctx, tx, ref, kindRefresh, row, &g, needed); err != nil || !ok && !g.stray {
			return err
		}
		return tx.UpdateGrant(ctx, ref.Account, row)
	})
	return a, ok && err == nil, err
}

// takeLease opens an attempt on a row, which the caller stores.
func (k *Keeper) takeLease(ctx context.Context, tx store.Tx, ref Ref, kind string, row *store.Grant, g *grant, needed func(*grant) bool) (a attempt, ok bool, err error) {
	lease := row.Now.Add(k.cfg.Lease)
	if g.stray { // its holder may be at work, and extends the lease in that case
		row.Attempt.LeaseUntil = lease
		return a, false, nil
	}
	if g.leased() || !needed(g) {
		return a, false, nil
	}
	if row.Attempt != nil {
		// Its instance is gone, and what it sent may have had its effect.
		p, err := k.provider(row.Provider, row.Server)
		row.Doubtful = row.Doubtful || err != nil || p.Rotates
		if err := tx.EndAttempt(ctx, ref.Account, row.Attempt.ID, outcomeLost, 0, ""); err != nil {
			return a, false, err
		}
	}
	a = attempt{ref: ref, id: uuid.Must(uuid.NewV7()), base: row.Version, taken: time.Now()}
	row.Attempt = &store.Attempt{ID: a.id, Kind: kind, Instance: k.cfg.Instance, StartedAt: row.Now, LeaseUntil: lease}
	return a, true, tx.InsertAttempt(ctx, ref.Account, row.Version, row.Attempt)
}

// holds reports whether an attempt is the one that is open.
func (a *attempt) holds(row *store.Grant) bool { return row.Attempt != nil && row.Attempt.ID == a.id }

// end writes what became of an attempt; f is nil if it did not fail.
func (a *attempt) end(ctx context.Context, tx store.Tx, outcome string, f *failure) error {
	if f == nil {
		f = &failure{}
	}
	return tx.EndAttempt(ctx, a.ref.Account, a.id, outcome, f.Status, f.Code)
}

// extendLease keeps others away from an attempt that takes long. It reports whether the
// attempt still has the lease.
func (k *Keeper) extendLease(ctx context.Context, a attempt) (ours bool, err error) {
	err = k.change(ctx, a.ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		if ours = a.holds(row); !ours {
			return nil
		}
		row.Attempt.LeaseUntil = row.Now.Add(k.cfg.Lease)
		return tx.UpdateGrant(ctx, a.ref.Account, row)
	})
	return ours, err
}

// keepTokens stores what an attempt brought, unless the grant has changed, or was removed,
// since the attempt began. An attempt that lost its lease may still store: it has the tokens that the server
// issued last.
func (k *Keeper) keepTokens(ctx context.Context, a attempt, s sealedTokens) (stored bool, err error) {
	err = k.change(ctx, a.ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		stored = row.Version == a.base && (row.State == Active || row.State == Reauthorize)
		if !stored {
			return a.end(ctx, tx, outcomeSuperseded, nil)
		}
		s.put(row, row.Now)
		if err := tx.UpdateGrant(ctx, a.ref.Account, row); err != nil {
			return err
		}
		if err := a.end(ctx, tx, outcomeDone, nil); err != nil {
			return err
		}
		return tx.Record(ctx, event(a.by, "refreshed", a.ref, row.AccountProvider, ""))
	})
	if fault.KindOf(err) == fault.NotFound {
		return false, nil // the account was removed meanwhile
	}
	return stored && err == nil, err
}

// failAttempt ends an attempt that brought nothing. The grant is over only if the server
// said so of the very tokens that the row still holds.
func (k *Keeper) failAttempt(ctx context.Context, a attempt, p *Provider, f *failure) error {
	outcome, over := verdict(p, f)
	return k.change(ctx, a.ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		if err := a.end(ctx, tx, outcome, f); err != nil || row.Version != a.base || !a.holds(row) {
			return err // if another attempt has taken over, that one counts
		}
		row.Attempt, row.LastError = nil, f.Error()
		if over {
			return reauthorize(ctx, tx, a.ref, row, overBecause(p, row))
		}
		row.Doubtful = row.Doubtful || p.Rotates && outcome == outcomeUnknown
		row.RetryAt = new(row.Now.Add(max(backoff(row.Failures, k.cfg.Rand()), f.After)))
		row.Failures++
		return tx.UpdateGrant(ctx, a.ref.Account, row)
	})
}

// reauthorize says that somebody must sign in again.
func reauthorize(ctx context.Context, tx store.Tx, ref Ref, row *store.Grant, reason string) error {
	row.State, row.ChangedAt, row.Reason = Reauthorize, row.Now, reason
	if err := tx.UpdateGrant(ctx, ref.Account, row); err != nil {
		return err
	}
	return tx.Record(ctx, event(identity.Actor{}, "changed", ref, row.AccountProvider, "somebody must sign in again: "+reason))
}

// giveUp ends a grant that cannot be renewed, unless it has changed.
func (k *Keeper) giveUp(ctx context.Context, ref Ref, version int64, reason string) error {
	return k.change(ctx, ref, func(ctx context.Context, tx store.Tx, row *store.Grant) error {
		if row.Version != version || row.State != Active {
			return nil
		}
		return reauthorize(ctx, tx, ref, row, reason)
	})
}

// sealedTokens are tokens as they are stored.
type sealedTokens struct {
	access  *vault.Sealed // nil if only a refresh token is known
	refresh *vault.Sealed // nil to keep the one that is stored
	// How long from now the access token lives, and when it is renewed; nil for ever.
	life, due *time.Duration
	scope     string // empty to keep the one that is stored
	// A new sign-in's, if its server was discovered.
	server *store.Server
	client *vault.Sealed
}

// put makes tokens those of a grant.
func (s *sealedTokens) put(g *store.Grant, now time.Time) {
	after := func(d *time.Duration) *time.Time {
		if d == nil {
			return nil
		}
		return new(now.Add(*d))
	}
	g.Version++
	g.State, g.Reason, g.ChangedAt = Active, "", now
	g.Access = s.access
	if s.refresh != nil {
		g.Refresh = s.refresh
	}
	if s.scope != "" {
		g.Scope = s.scope
	}
	g.IssuedAt, g.ExpiresAt, g.RefreshAt = now, after(s.life), after(s.due)
	g.Attempt, g.Doubtful, g.Failures, g.RetryAt, g.LastError = nil, false, 0, nil, ""
}

// seal seals tokens; taken is how long ago they were issued.
func (k *Keeper) seal(ctx context.Context, sealer vault.Sealer, ref Ref, p *Provider, t issued, taken time.Duration) (s sealedTokens, err error) {
	one := func(field string, secret vault.Secret) (*vault.Sealed, error) {
		if secret.IsZero() {
			return nil, nil
		}
		sealed, err := sealer.Seal(ctx, ref.place(field), secret)
		return &sealed, err
	}
	if s.access, err = one(store.AccessField, t.Access); err != nil {
		return s, err
	}
	if s.refresh, err = one(store.RefreshField, t.Refresh); err != nil {
		return s, err
	}
	if p.server != nil {
		s.server = p.server
		if s.client, err = one(store.ClientField, p.Client.Secret); err != nil {
			return s, err
		}
	}
	s.scope = t.Scope
	s.life, s.due = k.schedule(p, t, taken)
	return s, nil
}

// schedule returns how long tokens live from now on, some time after they were issued, and
// when they are renewed: somewhat before, each grant at a moment of its own, and long before
// a refresh token expires for not being used.
func (k *Keeper) schedule(p *Provider, t issued, taken time.Duration) (life, due *time.Duration) {
	soonest := func(d time.Duration) {
		if due == nil || d < *due {
			due = &d
		}
	}
	jitter := func(d time.Duration) time.Duration { return time.Duration(k.cfg.Rand() * float64(d)) }
	if t.Access.IsZero() {
		soonest(0)
	}
	if t.Life > 0 {
		left := max(t.Life-taken, 0)
		life = &left
		ahead := min(p.Ahead, t.Life/3)
		soonest(max(left-ahead-jitter(ahead/2), 0))
	}
	if t.Unclear { // it may be good for ever, and there may be no refresh token
		soonest(unclearLife)
	}
	idle := t.RefreshLife
	if p.Idle > 0 && (idle == 0 || p.Idle < idle) {
		idle = p.Idle
	}
	if idle > 0 {
		soonest(idle/2 - jitter(idle/10))
	}
	return life, due
}

// verdict says what a failure means for the attempt, and whether the grant is over.
func verdict(p *Provider, f *failure) (outcome string, over bool) {
	switch {
	case f.Answered && p.void(f.Code):
		return outcomeRefused, true
	case f.Answered:
		return outcomeFailed, false
	case f.Sent:
		return outcomeUnknown, false
	}
	return outcomeUnsent, false
}

func overBecause(p *Provider, g *store.Grant) string {
	if g.Doubtful {
		return fmt.Sprintf("the answer to an earlier renewal was lost, and %s no longer accepts the previous token", p.Name)
	}
	return fmt.Sprintf("%s no longer accepts the sign-in: it was revoked or has expired", p.Name)
}

const (
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
)

// backoff returns how long to wait after the nth failure in a row: between half of a
// doubling time and all of it.
func backoff(n int, random float64) time.Duration {
	d := min(minBackoff<<min(n, 20), maxBackoff)
	return d/2 + time.Duration(random*float64(d/2))
}
