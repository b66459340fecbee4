package oauth

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// maxAccounts bounds one workspace's accounts: the largest pool there is.
const maxAccounts = 1000

// Action is what happened to a grant, for the audit.
type Action string

// The actions.
const (
	Created   Action = "created"
	Refreshed Action = "refreshed"
	Changed   Action = "changed" // signed in to again, signed out, or refused by the provider
)

// Event is something that happened to a grant, for the audit.
type Event struct {
	Ref
	Action   Action
	Provider string // of the account
	// Who is zero where nobody asked for it: the broker did it by itself.
	Who Who
}

// NewGrant is one that was obtained elsewhere.
type NewGrant struct {
	Provider, Label string
	// Access may be empty, and Life 0 where nobody knows how long it is good: the
	// first use renews it then.
	Access, Refresh vault.Secret
	Life            time.Duration
}

// Add stores tokens that were obtained elsewhere as a new account.
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
	row := loginRow{Account: id.New[id.Account](), Label: n.Label}
	return Ref{who.Workspace, row.Account}, k.admit(ctx, who, p, row, issued{Access: n.Access, Refresh: n.Refresh, Life: n.Life})
}

// admit stores what a login brought, as a new account or in the place of what an
// account had. A renewal that is under way meanwhile has its answer thrown away.
func (k *Keeper) admit(ctx context.Context, who Who, p *Provider, l loginRow, t issued) error {
	ref := Ref{who.Workspace, l.Account}
	s, err := k.seal(ctx, ref, p, t, 0)
	if err != nil {
		return err
	}
	err = k.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		ev := Event{Ref: ref, Action: Changed, Provider: p.Account, Who: who}
		if l.Again {
			if err := replace(ctx, tx, ref, p, &s); err != nil {
				return err
			}
		} else {
			ev.Action = Created
			if err := insert(ctx, tx, ref, p, l.Label, &s); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE workspace_id = $1 AND id = $2`, ref.Workspace, l.ID); err != nil {
			return fmt.Errorf("remove a login: %w", err)
		}
		return k.record(ctx, tx, ev)
	})
	k.forget(ref)
	return err
}

func (k *Keeper) record(ctx context.Context, tx pgx.Tx, ev Event) error {
	if k.cfg.Record == nil {
		return nil
	}
	return k.cfg.Record(ctx, tx, ev)
}

func insert(ctx context.Context, tx pgx.Tx, ref Ref, p *Provider, label string, s *sealedTokens) error {
	var n int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM accounts WHERE workspace_id = $1`, ref.Workspace).Scan(&n); err != nil {
		return fmt.Errorf("count accounts: %w", err)
	}
	if n >= maxAccounts {
		return fault.New(fault.Conflict, "there are %d accounts already, the most there can be: remove one first", n)
	}
	args := s.args(ref)
	args["provider"], args["profile"], args["label"] = p.Account, p.Profile, label
	args["key"] = args["access_key"]
	if s.access == nil {
		args["key"] = args["refresh_key"]
	}
	// Of the secret the account's row has nothing: it is the grant's.
	_, err := tx.Exec(ctx, `
		INSERT INTO accounts (workspace_id, id, provider, profile, label, key_version, sealed)
		VALUES (@workspace, @account, @provider, @profile, @label, @key, ''::bytea)`, args)
	if err != nil {
		return fmt.Errorf("insert account: %w", err)
	}
	args["provider"] = p.Name
	_, err = tx.Exec(ctx, `
		INSERT INTO grants (workspace_id, account_id, provider, access_sealed, access_key_version, refresh_sealed, refresh_key_version,
			scope, issued_at, expires_at, refresh_at)
		VALUES (@workspace, @account, @provider, @access, @access_key, @refresh, @refresh_key,
			@scope, clock_timestamp(), clock_timestamp() + @life::interval, clock_timestamp() + @due::interval)`, args)
	if err != nil {
		return fmt.Errorf("insert grant: %w", err)
	}
	return nil
}

func replace(ctx context.Context, tx pgx.Tx, ref Ref, p *Provider, s *sealedTokens) error {
	args := s.args(ref)
	args["rotated"] = true // the former refresh token belongs to the former sign-in
	args["provider"] = p.Name
	tag, err := tx.Exec(ctx, `UPDATE grants SET `+setTokens+`
		WHERE workspace_id = @workspace AND account_id = @account AND provider = @provider`, args)
	if err != nil {
		return fmt.Errorf("replace the tokens of account %s: %w", ref.Account, err)
	}
	if tag.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "account %s is not there any more", ref.Account)
	}
	return nil
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
}

// Statuses returns the grants of a workspace's own accounts, by account; with the
// zero workspace those of the operator's.
func (k *Keeper) Statuses(ctx context.Context, ws id.Workspace) (map[id.Account]Status, error) {
	all := map[id.Account]Status{}
	err := k.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT account_id, provider, state, reason, last_error, version, scope, issued_at, expires_at, refresh_at, refresh_sealed IS NOT NULL
			FROM grants WHERE workspace_id = $1`, ws)
		if err != nil {
			return err
		}
		var account id.Account
		var s Status
		_, err = pgx.ForEachRow(rows, []any{
			&account, &s.Provider, &s.State, &s.Reason, &s.LastError, &s.Version, &s.Scope, &s.IssuedAt, &s.ExpiresAt, &s.RefreshAt, &s.Renewable,
		}, func() error {
			all[account] = s
			s.ExpiresAt, s.RefreshAt = nil, nil
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read grants: %w", err)
	}
	return all, nil
}
