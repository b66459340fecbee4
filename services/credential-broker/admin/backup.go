package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// KeyNames returns the names of the keys that seal a database's credentials. Its tables are in the
// schema credentials, and tx sees all rows.
func KeyNames(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, "SELECT DISTINCT kek FROM credentials.data_keys ORDER BY kek")
	if err != nil {
		return nil, fmt.Errorf("list the keys of credentials: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the keys of credentials: %w", err)
	}
	return names, nil
}

// OpensAll returns an error unless these keys open every data key of a database. They are the key
// file, which is not made, and k. Its tables are in the schema credentials, and tx sees all rows.
func (k *Keys) OpensAll(ctx context.Context, tx pgx.Tx, file string) error {
	names, err := KeyNames(ctx, tx)
	if err != nil || len(names) == 0 {
		return err
	}
	if err := k.Check(file); err != nil {
		return fmt.Errorf("stored credentials are sealed with the key %s: %w", strings.Join(names, ", "), err)
	}
	if _, err := os.Stat(file); k.URL == "" && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stored credentials are sealed with the key %s, and there is no key file %s: put your copy of the key there, mode 0600", strings.Join(names, ", "), file)
	}
	ring, err := k.open(file, true)
	if err != nil {
		return err
	}
	defer func() { _ = ring.Close() }() // it was only read
	rows, err := tx.Query(ctx, "SELECT workspace_id, version, kek, wrapped FROM credentials.data_keys ORDER BY workspace_id, version")
	if err != nil {
		return fmt.Errorf("read the keys of credentials: %w", err)
	}
	type dataKey struct {
		WorkspaceID id.Workspace
		vault.WrappedKey
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[dataKey])
	if err != nil {
		return fmt.Errorf("read the keys of credentials: %w", err)
	}
	v := vault.New(ring.KEK, nil, ring.Others...)
	for _, d := range all {
		if !v.Knows(d.KEK) {
			return fmt.Errorf("stored credentials are sealed with the key %s, and you gave %s: set CREDENTIAL_BROKER_KEY_FILE or CREDENTIAL_BROKER_KEY_URL, and CREDENTIAL_BROKER_OTHER_KEYS, to the keys of the installation that was backed up",
				strings.Join(names, ", "), ring.KEK.ID())
		}
		if err := v.Opens(ctx, d.WorkspaceID, d.WrappedKey); err != nil {
			return fmt.Errorf("workspace %s: %w", d.WorkspaceID, err)
		}
	}
	return nil
}
