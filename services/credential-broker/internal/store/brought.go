package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// Brought is what is known of an account that is brought along from elsewhere. It is
// written in the transaction that makes the account, so that there is never an account
// without it.
type Brought struct {
	// Hash is of the credential that it comes with. There is one account for each. That of
	// a refresh token is the same in all workspaces: two that renew it would end each
	// other's sign-in. That of a key has the workspace in it, for several may have the key.
	Hash     []byte
	Disabled bool
	// Limit is one that is known already; nil for none.
	Limit *Limit
	// Current makes it the one in use.
	Current bool
	// Used is when it was used last; zero where nobody knows.
	Used time.Time
}

// ErrBrought says that there is an account that came with the same credential.
var ErrBrought = fault.Coded(fault.Conflict, "ACCOUNT_IMPORTED", "it is here already")

// Detail says for the audit what is written.
func (b *Brought) Detail() string {
	words := []string{"imported"}
	if b.Disabled {
		words = append(words, "disabled")
	}
	if b.Current {
		words = append(words, "made the current one")
	}
	return strings.Join(words, ", ")
}

// used returns when it was used last, nil where nobody knows.
func (b *Brought) used() *time.Time {
	if b.Used.IsZero() {
		return nil
	}
	if now := time.Now().UTC(); b.Used.After(now) {
		return &now
	}
	return new(b.Used.UTC())
}

// Write writes it in a transaction that has inserted the account.
func (b *Brought) Write(ctx context.Context, tx pgx.Tx, ws id.Workspace, provider string, account id.Account) error {
	args := pg.Args{"workspace": ws, "provider": provider, "account": account, "hash": b.Hash, "enabled": !b.Disabled, "used": b.used()}
	_, err := tx.Exec(ctx, `UPDATE accounts SET imported = @hash, enabled = @enabled, last_used_at = @used WHERE workspace_id = @workspace AND id = @account`, args)
	if pg.IsUniqueViolation(err, "accounts_imported") {
		return ErrBrought
	}
	if err != nil {
		return fmt.Errorf("note where account %s came from: %w", account, err)
	}
	if l := b.Limit; l != nil {
		args["at"], args["until"], args["soon"], args["reason"] = l.At, l.Until, l.Soon, string(l.Reason)
		_, err := tx.Exec(ctx, `
			INSERT INTO account_limits (workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw)
			VALUES (@workspace, @provider, @account, '', @at, @until, @soon, 0, @reason, 0, '')`, args)
		if err != nil {
			return fmt.Errorf("write a limit of account %s: %w", account, err)
		}
	}
	if !b.Current {
		return nil
	}
	return makeCurrent(ctx, tx, ws, provider, account)
}

// makeCurrent orders that an account is the current one of its pool.
func makeCurrent(ctx context.Context, tx pgx.Tx, ws id.Workspace, provider string, account id.Account) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO pools (workspace_id, provider, current_account, current_at) VALUES (@workspace, @provider, @account, clock_timestamp())
		ON CONFLICT (workspace_id, provider) DO UPDATE SET current_account = EXCLUDED.current_account, current_at = EXCLUDED.current_at`,
		pg.Args{"workspace": ws, "provider": provider, "account": account})
	if err != nil {
		return fmt.Errorf("make account %s the current one: %w", account, err)
	}
	return nil
}

// WriteIn does what Write does in a file.
func (b *Brought) WriteIn(st *accountfile.State, account id.Account) error {
	for i := range st.Accounts {
		if a := &st.Accounts[i]; a.ID != account && len(b.Hash) > 0 && string(a.Imported) == string(b.Hash) {
			return ErrBrought
		}
	}
	a := st.Account(account)
	a.Imported, a.Enabled, a.LastUsedAt = b.Hash, !b.Disabled, b.used()
	if b.Limit != nil {
		l := *b.Limit
		l.Provider, l.Account = a.Provider, account
		setLimit(st, l)
	}
	if b.Current {
		p := poolOf(st, a.Provider)
		p.Current, p.CurrentAt = &a.ID, new(time.Now().UTC())
	}
	return nil
}
