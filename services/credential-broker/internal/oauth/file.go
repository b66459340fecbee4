package oauth

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// inFile is the tables in the file of a single user, whose accounts are the operator's
// shared ones. It does what postgres does; times are of this machine's clock, which all
// who work on the file have. Of attempts there is only the one that is open: what became of
// the others is logged. What the audit has is logged too.
type inFile struct{ cfg *Config }

func noGrant(account id.Account) error {
	return fault.Coded(fault.NotFound, "ACCOUNT_NO_GRANT", "account %s is not one that somebody signed in to", account)
}

// find returns an account that has a grant.
func find(st *accountfile.State, ref Ref) (*accountfile.Account, error) {
	a := st.Account(ref.Account)
	if a == nil || a.Grant == nil || !id.IsZero(ref.Workspace) {
		return nil, noGrant(ref.Account)
	}
	return a, nil
}

// change changes a grant.
func (t inFile) change(ctx context.Context, ref Ref, fn func(a *accountfile.Account, now time.Time) error) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		a, err := find(st, ref)
		if err != nil {
			return err
		}
		return fn(a, time.Now().UTC())
	})
}

// happen is change of a grant about which there is to be a row of the audit, unless the
// event that fn returns has no action.
func (t inFile) happen(ctx context.Context, ref Ref, fn func(a *accountfile.Account, now time.Time) (Event, error)) error {
	var ev Event
	err := t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		a, err := find(st, ref)
		if err != nil {
			return err
		}
		if ev, err = fn(a, time.Now().UTC()); err != nil || ev.Action == "" {
			return err
		}
		ev.Ref, ev.Provider = ref, a.Provider
		record(st, ev)
		return nil
	})
	if err == nil && ev.Action != "" {
		t.tell(ctx, ev)
	}
	return err
}

func record(st *accountfile.State, ev Event) {
	store.RecordIn(st, store.Event{
		Action: string(ev.Action), Account: ev.Account, Provider: ev.Provider, Origin: "shared",
		Member: ev.Who.Member, Key: ev.Who.Key, Service: cmp.Or(ev.Who.Service, subject.CredentialBroker), Address: ev.Who.Address, Detail: ev.Detail,
	})
}

func (t inFile) canRecord() error { return t.cfg.File.CanRecord() }

func (t inFile) tell(ctx context.Context, ev Event) {
	service := cmp.Or(ev.Who.Service, subject.CredentialBroker) // by itself
	t.cfg.Log.InfoContext(ctx, "credential event", "action", ev.Action, "account", ev.Account, "provider", ev.Provider, "service", service, "address", ev.Who.Address, "detail", ev.Detail)
}

func (t inFile) read(ctx context.Context, ref Ref) (grant, error) {
	now := time.Now()
	st, err := t.cfg.File.View(ctx)
	if err != nil {
		return grant{}, err
	}
	a, err := find(st, ref)
	if err != nil {
		return grant{}, err
	}
	return t.grantAt(a.Grant, now), nil
}

// grantAt returns a grant with its times as what is left of them.
func (t inFile) grantAt(x *accountfile.Grant, now time.Time) grant {
	left := func(at *time.Time) *float64 {
		if at == nil {
			return nil
		}
		return new(at.Sub(now).Seconds())
	}
	g := grant{
		Provider: x.Provider, State: State(x.State), Reason: x.Reason, Version: x.Version, Doubtful: x.Doubtful, Failures: x.Failures,
		LastError: x.LastError, AgeS: now.Sub(x.IssuedAt).Seconds(), LeftS: left(x.ExpiresAt), DueS: left(x.RefreshAt), RetryS: left(x.RetryAt), read: now,
	}
	if x.Access != nil {
		g.AccessSealed, g.AccessKeyVersion = x.Access.Bytes, &x.Access.KeyVersion
	}
	if x.Refresh != nil {
		g.RefreshSealed, g.RefreshKeyVersion = x.Refresh.Bytes, &x.Refresh.KeyVersion
	}
	if x.Attempt != nil {
		g.AttemptID, g.LeaseS = &x.Attempt.ID, left(&x.Attempt.LeaseUntil)
	}
	g.bound(t.cfg.Lease)
	return g
}

func (t inFile) statuses(ctx context.Context, ws id.Workspace) (map[id.Account]Status, error) {
	all := map[id.Account]Status{}
	st, err := t.cfg.File.View(ctx)
	if err != nil || !id.IsZero(ws) {
		return all, err
	}
	for i := range st.Accounts {
		if g := st.Accounts[i].Grant; g != nil {
			all[st.Accounts[i].ID] = Status{
				Provider: g.Provider, State: State(g.State), Reason: g.Reason, LastError: g.LastError, Version: g.Version, Scope: g.Scope,
				IssuedAt: g.IssuedAt, ExpiresAt: g.ExpiresAt, RefreshAt: g.RefreshAt, Renewable: g.Refresh != nil,
				access: fromState(g.Access), refresh: fromState(g.Refresh),
			}
		}
	}
	return all, nil
}

func (t inFile) admit(ctx context.Context, who Who, p *Provider, l loginRow, s *sealedTokens) error {
	if !id.IsZero(who.Workspace) {
		return store.ErrOwn
	}
	ev := Event{Ref: Ref{Account: l.Account}, Action: Changed, Provider: p.Account, Who: who}
	err := t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		now := time.Now().UTC()
		if l.ID != uuid.Nil && !slices.ContainsFunc(st.Logins, func(x accountfile.Login) bool { return l.is(&x) }) {
			return errStrange
		}
		st.Logins = slices.DeleteFunc(st.Logins, func(x accountfile.Login) bool { return x.Account == l.Account })
		if l.Again {
			a := st.Account(l.Account)
			if a == nil || a.Grant == nil || a.Grant.Provider != p.Name {
				return fault.New(fault.NotFound, "account %s is not there any more", l.Account)
			}
			ev.Detail = signedInAgain
			a.Grant.Refresh, a.Grant.Scope = nil, "" // they belong to the former sign-in
			s.put(a.Grant, now)
			store.AsNewIn(st, a.Provider, a.ID)
			record(st, ev)
			return nil
		}
		ev.Action = Created
		if err := store.RoomIn(st); err != nil {
			return err
		}
		g := &accountfile.Grant{Provider: p.Name}
		s.put(g, now)
		st.Accounts = append(st.Accounts, accountfile.Account{
			ID: l.Account, Provider: p.Account, Profile: p.Profile, Label: l.Label, Enabled: true, Grant: g, CreatedAt: now,
		})
		if l.Brought != nil {
			ev.Detail = l.Brought.Detail()
			if err := l.Brought.WriteIn(st, l.Account); err != nil {
				return err
			}
		}
		record(st, ev)
		return nil
	})
	if err == nil {
		t.tell(ctx, ev)
	}
	return err
}

// put stores tokens in a grant.
func (s *sealedTokens) put(g *accountfile.Grant, now time.Time) {
	later := func(d *time.Duration) *time.Time {
		if d == nil {
			return nil
		}
		return new(now.Add(*d))
	}
	g.Version++
	g.State, g.Reason, g.ChangedAt = string(Active), "", now
	g.Access = inState(s.access)
	if s.refresh != nil {
		g.Refresh = inState(s.refresh)
	}
	if s.scope != "" {
		g.Scope = s.scope
	}
	g.IssuedAt, g.ExpiresAt, g.RefreshAt = now, later(s.life), later(s.due)
	g.Attempt, g.Doubtful, g.Failures, g.RetryAt, g.LastError = nil, false, 0, nil, ""
}

func inState(s *vault.Sealed) *accountfile.Sealed {
	if s == nil {
		return nil
	}
	return &accountfile.Sealed{KeyVersion: s.KeyVersion, Bytes: s.Bytes}
}

func fromState(s *accountfile.Sealed) vault.Sealed {
	if s == nil {
		return vault.Sealed{}
	}
	return vault.Sealed{KeyVersion: s.KeyVersion, Bytes: s.Bytes}
}

func (t inFile) due(ctx context.Context, providers []string, except []id.Account) ([]dueGrant, error) {
	st, err := t.cfg.File.View(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var all []dueGrant
	for i := range st.Accounts {
		x := st.Accounts[i].Grant
		if x == nil || x.Refresh == nil || !slices.Contains(providers, x.Provider) || slices.Contains(except, st.Accounts[i].ID) {
			continue
		}
		if g := t.grantAt(x, now); g.State == Active && g.due() && !g.leased() && g.pause() == 0 {
			all = append(all, dueGrant{Provider: g.Provider, Ref: Ref{Account: st.Accounts[i].ID}})
		}
	}
	return all, nil
}

func (t inFile) interrupted(ctx context.Context, providers []string) ([]Ref, error) {
	st, err := t.cfg.File.View(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var all []Ref
	for i := range st.Accounts {
		if x := st.Accounts[i].Grant; x != nil && State(x.State) == Revoking && slices.Contains(providers, x.Provider) && len(all) < resumeMost {
			if g := t.grantAt(x, now); !g.leased() {
				all = append(all, Ref{Account: st.Accounts[i].ID})
			}
		}
	}
	return all, nil
}

func (t inFile) changed(ctx context.Context) (grants []change, all bool, err error) {
	st, err := t.cfg.File.View(ctx)
	if err != nil {
		return nil, false, err
	}
	for i := range st.Accounts {
		if g := st.Accounts[i].Grant; g != nil {
			grants = append(grants, change{Account: st.Accounts[i].ID, Version: g.Version, State: State(g.State)})
		}
	}
	return grants, true, nil
}

func (t inFile) open(ctx context.Context, ref Ref, kind string, look func(*grant) bool) (g grant, a attempt, ok bool, err error) {
	err = t.change(ctx, ref, func(x *accountfile.Account, now time.Time) error {
		g, a, ok = t.openIn(ctx, x, now, kind, look)
		return nil
	})
	return g, a, ok && err == nil, err
}

func (t inFile) openIn(ctx context.Context, x *accountfile.Account, now time.Time, kind string, look func(*grant) bool) (g grant, a attempt, ok bool) {
	a = attempt{ref: Ref{Account: x.ID}, id: uuid.Must(uuid.NewV7())}
	g = t.grantAt(x.Grant, now)
	if g.stray { // who has it may be at work, and extends it then
		x.Grant.Attempt.LeaseUntil = now.Add(t.cfg.Lease)
		return g, a, false
	}
	if g.leased() || !look(&g) {
		return g, a, false
	}
	a.base, a.taken = g.Version, time.Now()
	if left := x.Grant.Attempt; left != nil {
		// Whoever opened it is gone, and what they sent may have had its effect.
		p, err := t.cfg.Providers.Get(g.Provider)
		g.Doubtful = g.Doubtful || err != nil || p.Rotates
		t.cfg.Log.WarnContext(ctx, "an attempt has no outcome: its process is gone", "account", x.ID, "kind", left.Kind, "instance", left.Instance, "began", left.StartedAt)
	}
	x.Grant.Attempt = &accountfile.Attempt{ID: a.id, Kind: kind, Instance: t.cfg.Instance, StartedAt: now, LeaseUntil: now.Add(t.cfg.Lease)}
	x.Grant.Doubtful = g.Doubtful
	return g, a, true
}

func (t inFile) openRevocation(ctx context.Context, who Who, ref Ref) (g grant, a attempt, ok bool, err error) {
	err = t.happen(ctx, ref, func(x *accountfile.Account, now time.Time) (ev Event, err error) {
		if g, a, ok = t.openIn(ctx, x, now, kindRevoke, unrevoked); ok && g.State != Revoking {
			x.Grant.State, x.Grant.ChangedAt, x.Grant.Reason = string(Revoking), now, "it is being signed out"
			ev = Event{Action: Changed, Who: who, Detail: signedOut}
		}
		return ev, nil
	})
	return g, a, ok && err == nil, err
}

// holds reports whether an attempt is the one that is open.
func holds(g *accountfile.Grant, a attempt) bool { return g.Attempt != nil && g.Attempt.ID == a.id }

func (t inFile) extend(ctx context.Context, a attempt) (mine bool, err error) {
	err = t.change(ctx, a.ref, func(x *accountfile.Account, now time.Time) error {
		if mine = holds(x.Grant, a); mine {
			x.Grant.Attempt.LeaseUntil = now.Add(t.cfg.Lease)
		}
		return nil
	})
	return mine, err
}

func (t inFile) keep(ctx context.Context, a attempt, _ *Provider, s sealedTokens) (stored bool, err error) {
	err = t.happen(ctx, a.ref, func(x *accountfile.Account, now time.Time) (ev Event, err error) {
		state := State(x.Grant.State)
		if stored = x.Grant.Version == a.base && (state == Active || state == Reauthorize); stored {
			s.put(x.Grant, now)
			ev.Action, ev.Who = Refreshed, a.by
		} else if holds(x.Grant, a) {
			x.Grant.Attempt = nil
		}
		return ev, nil
	})
	return stored && err == nil, err
}

func (t inFile) fail(ctx context.Context, a attempt, p *Provider, f *failure) error {
	outcome, over := verdict(p, f)
	return t.happen(ctx, a.ref, func(x *accountfile.Account, now time.Time) (ev Event, err error) {
		g := x.Grant
		switch {
		case g.Version != a.base || !holds(g, a):
			return ev, nil // somebody else has taken over; theirs is what counts
		case over:
			was := t.grantAt(g, now)
			g.State, g.ChangedAt, g.Reason, g.LastError = string(Reauthorize), now, overBecause(p, &was), f.Error()
			ev.Action, ev.Detail = Changed, refusal(g.Reason)
		default:
			g.Doubtful = g.Doubtful || p.Rotates && outcome == outcomeUnknown
			g.RetryAt = new(now.Add(max(backoff(g.Failures, t.cfg.Rand()), f.After)))
			g.Failures++
			g.LastError = f.Error()
		}
		g.Attempt = nil
		return ev, nil
	})
}

func (t inFile) giveUp(ctx context.Context, ref Ref, version int64, reason string) error {
	err := t.happen(ctx, ref, func(x *accountfile.Account, now time.Time) (ev Event, err error) {
		if x.Grant.Version == version && x.Grant.State == string(Active) {
			x.Grant.State, x.Grant.ChangedAt, x.Grant.Reason = string(Reauthorize), now, reason
			ev.Action, ev.Detail = Changed, refusal(reason)
		}
		return ev, nil
	})
	if err != nil {
		return fmt.Errorf("mark account %s for signing in again: %w", ref.Account, err)
	}
	return nil
}

func (t inFile) erase(ctx context.Context, a attempt, r Revocation, f *failure) error {
	err := t.happen(ctx, a.ref, func(x *accountfile.Account, now time.Time) (ev Event, err error) {
		g := x.Grant
		if g.Version == a.base && g.State == string(Revoking) {
			g.Version++
			g.State, g.ChangedAt, g.Reason = string(Revoked), now, "it was signed out"
			g.Access, g.Refresh, g.RefreshAt, g.Attempt = nil, nil, nil, nil
			ev = Event{Action: Changed, Who: a.by, Detail: r.detail()}
		}
		return ev, nil
	})
	if err != nil {
		return fmt.Errorf("erase the tokens of account %s: %w", a.ref.Account, err)
	}
	t.cfg.Log.InfoContext(ctx, "signed out", "account", a.ref.Account, "outcome", revoked(f))
	return nil
}
