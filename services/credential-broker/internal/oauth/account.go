package oauth

import (
	"context"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Action is what happened to a grant, for the audit.
type Action string

// The actions.
const (
	Created   Action = "created"
	Refreshed Action = "refreshed"
	Changed   Action = "changed" // signed in to again, signed out, or refused by the provider
)

// Details of events.
const (
	signedInAgain = "signed in again"
	signedOut     = "signed out"
)

// refusal is the detail of a grant that is over, for a reason.
func refusal(reason string) string { return "somebody must sign in again: " + reason }

// Event is something that happened to a grant, for the audit.
type Event struct {
	Ref
	Action   Action
	Provider string // of the account
	// Who is zero where nobody asked for it: the broker did it by itself.
	Who Who
	// Detail says more than the action.
	Detail string
}

// NewGrant is one that was obtained elsewhere.
type NewGrant struct {
	Provider, Label string
	// Access may be empty, and Life 0 where nobody knows how long it is good: the
	// first use renews it then.
	Access, Refresh vault.Secret
	Life            time.Duration
	// Brought is what else is known of it.
	Brought store.Brought
}

// Add stores tokens that were obtained elsewhere as a new account. Where there is one that
// came with the same refresh token the error is store.ErrBrought.
func (k *Keeper) Add(ctx context.Context, who Who, n NewGrant) (Ref, error) {
	p, err := k.cfg.Providers.Get(n.Provider)
	if err != nil {
		return Ref{}, err
	}
	for _, secret := range []vault.Secret{n.Access, n.Refresh} {
		if err := sendable(secret.Reveal()); err != nil {
			return Ref{}, fault.New(fault.Invalid, "token: it is %v, as no token is: was it copied whole, and alone?", err)
		}
	}
	if n.Access.IsZero() && n.Refresh.IsZero() {
		return Ref{}, fault.New(fault.Invalid, "token: there is neither an access token nor a refresh token")
	}
	if len(n.Label) > maxLabel {
		return Ref{}, fault.New(fault.Invalid, "label: it is longer than %d bytes", maxLabel)
	}
	sealer, err := k.cfg.Vault.Sealer(ctx, who.Workspace)
	if err != nil {
		return Ref{}, err
	}
	row := loginRow{Account: id.New[id.Account](), Label: n.Label, Brought: &n.Brought}
	return Ref{who.Workspace, row.Account}, k.admit(ctx, who, p, row, sealer, issued{Access: n.Access, Refresh: n.Refresh, Life: n.Life})
}

// admit stores what a login brought, as a new account or in the place of what an
// account had. A renewal that is under way meanwhile has its answer thrown away.
func (k *Keeper) admit(ctx context.Context, who Who, p *Provider, l loginRow, sealer vault.Sealer, t issued) error {
	ref := Ref{who.Workspace, l.Account}
	s, err := k.seal(ctx, sealer, ref, p, t, 0)
	if err != nil {
		return err
	}
	err = k.tables.admit(ctx, who, p, l, &s)
	k.forget(ref)
	return err
}

// Status is what people are told of a grant.
type Status struct {
	Provider string
	State    State
	// Reason says why it is not active; LastError what went wrong last while it is.
	Reason, LastError string
	Version           int64
	Scope             string
	IssuedAt          time.Time
	// ExpiresAt and RefreshAt are nil for never.
	ExpiresAt, RefreshAt *time.Time
	// Renewable says that there is a refresh token.
	Renewable bool

	access, refresh vault.Sealed // empty where there is none
}

// Lost is a Look's Lost for the tokens of a grant, any of which is needed: without the
// refresh token it ends with the access token.
func (s *Status) Lost(ctx context.Context, look *vault.Look, ref Ref) error {
	if len(s.access.Bytes) > 0 {
		if err := look.Lost(ctx, ref.place(accessField), s.access); err != nil {
			return err
		}
	}
	if len(s.refresh.Bytes) > 0 {
		return look.Lost(ctx, ref.place(refreshField), s.refresh)
	}
	return nil
}

// Statuses returns the grants of a workspace's own accounts, by account; with the
// zero workspace those of the operator's.
func (k *Keeper) Statuses(ctx context.Context, ws id.Workspace) (map[id.Account]Status, error) {
	return k.tables.statuses(ctx, ws)
}
