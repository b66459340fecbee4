package oauth

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// event returns what the audit is to say; by is zero for the broker itself.
func event(by identity.Actor, action string, ref Ref, provider, detail string) store.Event {
	ev := store.Event{
		Action: action, Account: ref.Account, Provider: provider, Origin: "workspace", Member: by.Member, Key: by.Key,
		Service: cmp.Or(by.Service, subject.CredentialBroker), Address: by.Address, Detail: detail,
	}
	if id.IsZero(ref.Workspace) {
		ev.Origin = "shared"
	}
	return ev
}

// NewGrant is one that was obtained elsewhere.
type NewGrant struct {
	Provider, Label string
	// Access may be empty, and Life 0 if it is unknown how long it is good: the first use
	// renews it then.
	Access, Refresh vault.Secret
	Life            time.Duration
	// Import is what else is known of it.
	Import store.Import
}

// Add stores tokens that were obtained elsewhere as a new account. If an account was imported
// with the same refresh token the error is store.ErrImported.
func (k *Keeper) Add(ctx context.Context, by identity.Actor, n NewGrant) (Ref, error) {
	p, err := k.cfg.Providers.Get(n.Provider)
	if err != nil {
		return Ref{}, err
	}
	for _, secret := range []vault.Secret{n.Access, n.Refresh} {
		if err := sendable(secret.Reveal()); err != nil {
			return Ref{}, fault.New(fault.Invalid, "token: it is %v, which no token is: copy the whole token and nothing else", err)
		}
	}
	if n.Access.IsZero() && n.Refresh.IsZero() {
		return Ref{}, fault.New(fault.Invalid, "token: give an access token or a refresh token")
	}
	if len(n.Label) > maxLabel {
		return Ref{}, fault.New(fault.Invalid, "label: it is longer than %d bytes", maxLabel)
	}
	sealer, err := k.cfg.Vault.Sealer(ctx, by.Workspace)
	if err != nil {
		return Ref{}, err
	}
	login := store.Login{Account: id.New[id.Account](), Label: n.Label}
	return Ref{by.Workspace, login.Account}, k.admit(ctx, by, p, login, &n.Import, sealer, issued{Access: n.Access, Refresh: n.Refresh, Life: n.Life})
}

// admit stores what a login or an import brought, as a new account or in the place of what
// an account had, and ends the login. A renewal that is under way meanwhile has its answer
// thrown away.
func (k *Keeper) admit(ctx context.Context, by identity.Actor, p *Provider, l store.Login, imported *store.Import, sealer vault.Sealer, t issued) error {
	ref := Ref{by.Workspace, l.Account}
	s, err := k.seal(ctx, sealer, ref, p, t, 0)
	if err != nil {
		return err
	}
	err = k.cfg.Store.Update(ctx, ref.Workspace, func(ctx context.Context, tx store.Tx) error {
		put, ev := insertTokens, event(by, "created", ref, p.Account, "")
		switch {
		case l.Again:
			put, ev.Action, ev.Detail = replaceTokens, "changed", "signed in again"
		case imported != nil:
			ev.Detail = imported.Detail()
		}
		if err := put(ctx, tx, p, &l, imported, &s); err != nil {
			return err
		}
		if l.ID != uuid.Nil {
			if err := finishLogin(ctx, tx, by, p, &l); err != nil {
				return err
			}
		}
		return tx.Record(ctx, ev)
	})
	k.forget(ref)
	return err
}

func insertTokens(ctx context.Context, tx store.Tx, p *Provider, l *store.Login, imported *store.Import, s *sealedTokens) error {
	if p.server != nil {
		if err := checkFirst(ctx, tx, p); err != nil {
			return err
		}
	}
	now, err := tx.Now(ctx)
	if err != nil {
		return err
	}
	g := &store.Grant{Provider: p.Name, Server: s.server, Client: s.client}
	s.put(g, now)
	a := &store.Account{ID: l.Account, Provider: p.Account, Profile: p.Profile, BaseURL: p.base(), Label: l.Label, Grant: g}
	a.KeyVersion = cmp.Or(s.access, s.refresh).KeyVersion // the secret itself is the grant's
	return cmp.Or(imported, &store.Import{}).Insert(ctx, tx, a)
}

func replaceTokens(ctx context.Context, tx store.Tx, p *Provider, l *store.Login, _ *store.Import, s *sealedTokens) error {
	g, err := tx.Grant(ctx, l.Account)
	if fault.KindOf(err) == fault.NotFound || err == nil && g.Provider != p.Name {
		return fault.New(fault.NotFound, "account %s no longer exists", l.Account)
	}
	if err != nil {
		return err
	}
	g.Refresh, g.Scope, g.Server, g.Client = nil, "", s.server, s.client // they belong to the former sign-in
	s.put(g, g.Now)
	if err := tx.UpdateGrant(ctx, l.Account, g); err != nil {
		return err
	}
	// What kept the account from being used was about the former sign-in.
	return tx.ResetHealth(ctx, p.Account, l.Account)
}

// LostTokens returns the Lasting error of a Look for a grant's tokens, both of which are needed:
// without the refresh token the grant ends with the access token.
func LostTokens(ctx context.Context, look *vault.Look, ref Ref, g *store.Grant) error {
	if g.Access != nil {
		if err := look.Lost(ctx, ref.place(store.AccessField), *g.Access); err != nil {
			return err
		}
	}
	if g.Refresh != nil {
		return look.Lost(ctx, ref.place(store.RefreshField), *g.Refresh)
	}
	return nil
}
