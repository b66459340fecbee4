package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// DataKeys returns the wrapped data keys of a workspace, oldest first.
func (s *Store) DataKeys(ctx context.Context, ws id.Workspace) ([]vault.WrappedKey, error) {
	var keys []vault.WrappedKey
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT version, kek, wrapped FROM data_keys WHERE workspace_id = $1 ORDER BY version`, ws)
		if err != nil {
			return err
		}
		keys, err = pgx.CollectRows(rows, pgx.RowToStructByName[vault.WrappedKey])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read data keys: %w", err)
	}
	return keys, nil
}

// AddDataKey stores a data key unless its version is taken, and retires those before
// it.
func (s *Store) AddDataKey(ctx context.Context, ws id.Workspace, k vault.WrappedKey) error {
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO data_keys (workspace_id, version, kek, wrapped) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
			ws, k.Version, k.KEK, k.Wrapped)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE data_keys SET retired_at = now() WHERE workspace_id = $1 AND version < $2 AND retired_at IS NULL`, ws, k.Version)
		return err
	})
	if err != nil {
		return fmt.Errorf("store a data key: %w", err)
	}
	return nil
}

// Rewrap replaces a data key's wrapping, unless somebody else has. It reports whether
// it did.
func (s *Store) Rewrap(ctx context.Context, ws id.Workspace, old, k vault.WrappedKey) (done bool, err error) {
	err = s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE data_keys SET kek = @kek, wrapped = @wrapped
			WHERE workspace_id = @workspace AND version = @version AND kek = @old_kek AND wrapped = @old`, pg.Args{
			"workspace": ws, "version": k.Version, "kek": k.KEK, "wrapped": k.Wrapped, "old_kek": old.KEK, "old": old.Wrapped,
		})
		done = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("wrap data key %d anew: %w", k.Version, err)
	}
	return done, nil
}

// Keyed returns workspaces that have data keys, in order: up to n, from the beginning
// or behind one of them. With retired, only those of which a key is retired.
func (s *Store) Keyed(ctx context.Context, retired bool, after *id.Workspace, n int) (all []id.Workspace, err error) {
	args := pg.Args{"after": nil, "retired": retired, "n": n}
	if after != nil {
		args["after"] = *after
	}
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT workspace_id FROM data_keys
			WHERE (@after::uuid IS NULL OR workspace_id > @after) AND (NOT @retired OR retired_at IS NOT NULL)
			ORDER BY workspace_id LIMIT @n`, args)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowTo[id.Workspace])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read whose data keys there are: %w", err)
	}
	return all, nil
}
