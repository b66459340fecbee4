package admin

import (
	"context"
	"fmt"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Store is the database (store.Store) or the file of a single user (store.File), whose
// methods these are.
type Store interface {
	pool.Store
	vault.Keys
	rotation.Keys

	Add(ctx context.Context, a store.Account, ev store.Event) (store.Account, error)
	Bring(ctx context.Context, a store.Account, ev store.Event, b store.Brought) (store.Account, error)
	Get(ctx context.Context, ws id.Workspace, account id.Account) (store.Account, error)
	ListAll(ctx context.Context) ([]store.Account, error)
	WorkspaceOf(ctx context.Context, account id.Account) (id.Workspace, error)
	SetEnabled(ctx context.Context, ws id.Workspace, account id.Account, enabled bool, ev store.Event) error
	SetFlatRate(ctx context.Context, ws id.Workspace, account id.Account, flat bool, ev store.Event) error
	Reset(ctx context.Context, ws id.Workspace, account id.Account, ev store.Event) error
	Switch(ctx context.Context, ws id.Workspace, account id.Account, ev store.Event) error
	Remove(ctx context.Context, ws id.Workspace, account id.Account, ev store.Event) error
	FindImported(ctx context.Context) (map[string]store.Imported, error)

	Settings(ctx context.Context, ws id.Workspace) ([]store.Settings, error)
	ChangeSettings(ctx context.Context, ws id.Workspace, provider string, ev store.Event, change func(now []byte) (next []byte, detail string, err error)) error
	Known(ctx context.Context, ws id.Workspace) (store.Known, error)
	Stats(ctx context.Context, ws id.Workspace) ([]store.Stat, error)
	ResetStats(ctx context.Context, ws id.Workspace, account id.Account, ev store.Event) error

	Connections(ctx context.Context, ws id.Workspace) (map[string]store.Connection, error)
	NameConnection(ctx context.Context, ws id.Workspace, c store.Connection) error

	Audit(ctx context.Context, ws id.Workspace, before int64, limit int) ([]audit.Row, error)
	AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error)
	VerifyAudit(ctx context.Context, ws id.Workspace, c *audit.Chain) ([]audit.Problem, *audit.Head, error)
	AuditChains(ctx context.Context) ([]id.Workspace, error)
	Record(ctx context.Context, ev store.Event) error
}

// openFile opens the file that cfg names; nil if it names none.
//
//nolint:contextcheck // opening belongs to no call, and takes no longer than the wait for the lock
func openFile(cfg *Config) (*accountfile.File, error) {
	if cfg.File == "" {
		return nil, nil
	}
	file, err := accountfile.Open(context.Background(), cfg.File, cfg.Log, cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("open the accounts: %w", err)
	}
	return file, nil
}

func (a *Accounts) openStore(cfg *Config) {
	if a.File != nil {
		s := store.InFile(a.File, cfg.Log)
		a.Store, a.Vault = s, vault.New(a.keys.KEK, s, a.keys.Others...)
		a.rotation = rotation.InFile(a.File, s, a.Vault)
		return
	}
	s := store.New(cfg.DB)
	a.Store, a.Vault = s, vault.New(a.keys.KEK, s, a.keys.Others...)
	a.rotation = rotation.New(cfg.DB, s, a.Vault)
}
