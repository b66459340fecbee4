package admin

import (
	"context"
	"fmt"

	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

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
		a.Store = store.InFile(a.File, cfg.Log)
	} else {
		a.Store = store.New(cfg.DB)
	}
	a.Vault = vault.New(a.keys.KEK, a.Store, a.keys.Others...)
	a.rotation = rotation.New(a.Store, a.Vault)
}
