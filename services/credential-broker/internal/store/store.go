// Package store keeps accounts (manage.go changes them), what is known of their pools
// (pools.go), wrapped data keys and the audit (audit.go) in Postgres. It knows no
// plaintext: what it stores of a credential is sealed (package vault). A File (file.go)
// does the same for a single user in a file, without workspaces' own accounts and with one
// chain of the audit, beside it; a test does the same things to both and compares what they
// say.
//
// Every function is one transaction. What belongs to a workspace runs under that
// workspace's claim; the operator's shared accounts belong to the zero workspace
// and are reached as the system.
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
	"signalbox.dev/services/credential-broker/internal/vault"
)

// shared is the workspace of the operator's accounts, in SQL.
const shared = `'00000000-0000-0000-0000-000000000000'`

const (
	// maxPool bounds the accounts of one workspace for one provider.
	maxPool = 1000
	// maxAccounts bounds those of one workspace for all, whatever names of providers it
	// thinks of. A list of as many, each as large as it can be, is one message of package rpc.
	maxAccounts = 10 * maxPool
)

// Account is a stored account.
type Account struct {
	WorkspaceID id.Workspace
	ID          id.Account
	Provider    string
	Profile     string
	Label       string
	Hint        string
	BaseURL     string
	Enabled     bool
	FlatRate    bool // its use costs nothing
	KeyVersion  int
	Sealed      []byte
	CreatedAt   time.Time
	LastUsedAt  *time.Time
}

// Shared reports whether the account is the operator's.
func (a *Account) Shared() bool { return id.IsZero(a.WorkspaceID) }

// Place is where the account's secret is sealed to.
func (a *Account) Place() vault.Place {
	return vault.Place{Workspace: a.WorkspaceID, Account: a.ID, Field: "secret"}
}

// Event is a row of the audit. Its workspace is that of the transaction.
type Event struct {
	Action  string // created, changed, refreshed, removed, used
	Account id.Account
	// Provider and Origin say what was acted on, after the account is gone.
	Provider, Origin string
	// Member is zero for the operator's command line.
	Member id.Member
	// Key is set where an API key spoke for the member; the row's detail says so.
	Key     id.APIKey
	Service string
	Address string
	// Session is where the account was used; zero where that was in none.
	Session id.Session
	// Detail says what was changed.
	Detail string
}

// detail returns what the row says of the event.
func (e *Event) detail() string {
	if id.IsZero(e.Key) {
		return e.Detail
	}
	return strings.TrimPrefix(e.Detail+", by API key "+e.Key.String(), ", ")
}

// Store is the tables.
type Store struct{ db *pg.DB }

// New returns a Store over the service's database.
func New(db *pg.DB) *Store { return &Store{db} }

const columns = `workspace_id, id, provider, profile, label, hint, base_url, enabled, flat_rate, key_version, sealed, created_at, last_used_at`

// in runs fn under a workspace's claim. The operator's rows have no claim of
// their own and need the system's.
func (s *Store) in(ctx context.Context, ws id.Workspace, fn func(context.Context, pgx.Tx) error) error {
	if id.IsZero(ws) {
		return s.db.AsSystem(ctx, fn)
	}
	return s.db.InWorkspace(ctx, ws, fn)
}

// taken is the fault of an account whose id another one has. It may be anybody's, of whom
// nothing is told.
func taken(account id.Account) error {
	return fault.Coded(fault.Conflict, "ACCOUNT_ID_TAKEN", "the id %s cannot be had: use another one for a new account", account)
}

// Add stores an account and its audit row and returns it as stored. Where there is one with
// its id, whosever, the error is a Conflict fault.
func (s *Store) Add(ctx context.Context, a Account, ev Event) (Account, error) {
	return s.add(ctx, a, ev, nil)
}

// Bring is Add of an account that is brought along from elsewhere. Where there is one that
// came with the same credential the error is ErrBrought. Of ev, Detail is filled in.
func (s *Store) Bring(ctx context.Context, a Account, ev Event, b Brought) (Account, error) {
	ev.Detail = b.Detail()
	return s.add(ctx, a, ev, &b)
}

func (s *Store) add(ctx context.Context, a Account, ev Event, b *Brought) (Account, error) {
	account := a.ID
	err := s.in(ctx, a.WorkspaceID, func(ctx context.Context, tx pgx.Tx) error {
		if err := Room(ctx, tx, a.WorkspaceID, a.Provider); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			INSERT INTO accounts (workspace_id, id, provider, profile, label, hint, base_url, flat_rate, key_version, sealed)
			VALUES (@workspace, @id, @provider, @profile, @label, @hint, @base_url, @flat_rate, @key_version, @sealed)
			RETURNING `+columns, pg.Args{
			"workspace": a.WorkspaceID, "id": a.ID, "provider": a.Provider, "profile": a.Profile, "label": a.Label,
			"hint": a.Hint, "base_url": a.BaseURL, "flat_rate": a.FlatRate, "key_version": a.KeyVersion, "sealed": a.Sealed,
		})
		if err != nil {
			return fmt.Errorf("insert account: %w", err)
		}
		switch a, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Account]); {
		case pg.IsUniqueViolation(err, ""):
			return taken(account)
		case err != nil:
			return fmt.Errorf("insert account: %w", err)
		}
		if b != nil {
			if err := b.Write(ctx, tx, a.WorkspaceID, a.Provider, a.ID); err != nil {
				return err
			}
		}
		return record(ctx, tx, a.WorkspaceID, ev)
	})
	return a, err
}

// Room refuses one account more than a workspace can have for a provider, or for all, in a
// transaction that is about to insert it. Others who are wait until that is over: they
// would count one too few. It is called before the transaction takes any other lock.
func Room(ctx context.Context, tx pgx.Tx, ws id.Workspace, provider string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "accounts of "+ws.String()); err != nil {
		return fmt.Errorf("wait for others who add accounts: %w", err)
	}
	var all, pool int
	err := tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE provider = $2) FROM accounts WHERE workspace_id = $1`, ws, provider).Scan(&all, &pool)
	switch {
	case err != nil:
		return fmt.Errorf("count accounts: %w", err)
	case pool >= maxPool:
		return fault.New(fault.Conflict, "there are %d accounts for %s already, the most there can be for one provider: remove one first", pool, provider)
	case all >= maxAccounts:
		return fault.New(fault.Conflict, "there are %d accounts already, the most there can be for all providers together: remove one first", all)
	}
	return nil
}

// List returns a workspace's accounts and the shared ones after them, in the
// order in which they were added.
func (s *Store) List(ctx context.Context, ws id.Workspace) ([]Account, error) {
	return s.query(ctx, ws, `
		SELECT `+columns+` FROM accounts WHERE workspace_id IN (@workspace, `+shared+`)
		ORDER BY workspace_id = `+shared+`, created_at, id`, pg.Args{"workspace": ws})
}

// ListAll returns the accounts of all workspaces. It is for the operator's
// command line, which is why it needs the system's claim.
func (s *Store) ListAll(ctx context.Context) ([]Account, error) {
	return s.query(ctx, id.Workspace{}, `SELECT `+columns+` FROM accounts ORDER BY workspace_id, created_at, id`, pg.Args{})
}

func (s *Store) query(ctx context.Context, ws id.Workspace, sql string, args pg.Args) ([]Account, error) {
	var all []Account
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, args)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Account])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read accounts: %w", err)
	}
	return all, nil
}

// WorkspaceOf returns whose an account is. It is for the operator's command line,
// which knows accounts by their ids alone and therefore needs the system's claim.
func (s *Store) WorkspaceOf(ctx context.Context, account id.Account) (id.Workspace, error) {
	var ws id.Workspace
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT workspace_id FROM accounts WHERE id = $1`, account).Scan(&ws)
		if pg.NoRows(err) {
			return fault.New(fault.NotFound, "there is no account %s", account)
		}
		return err
	})
	return ws, err
}

// Remove deletes an account and records it. An account that the workspace does
// not have is a NotFound fault. Of ev, Account, Provider and Origin are filled in.
func (s *Store) Remove(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `DELETE FROM accounts WHERE workspace_id = $1 AND id = $2 RETURNING provider`, ws, account).Scan(&ev.Provider)
		if pg.NoRows(err) {
			return fault.New(fault.NotFound, "there is no account %s", account)
		}
		if err != nil {
			return fmt.Errorf("delete account: %w", err)
		}
		for _, table := range []string{"account_limits", "account_health", "account_stats"} {
			if _, err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE workspace_id = $1 AND account_id = $2`, ws, account); err != nil {
				return fmt.Errorf("delete what is known of the account: %w", err)
			}
		}
		ev.Account, ev.Action = account, "removed"
		return record(ctx, tx, ws, ev)
	})
}

func orNull[T id.Kind](v T) any {
	if id.IsZero(v) {
		return nil
	}
	return v
}
