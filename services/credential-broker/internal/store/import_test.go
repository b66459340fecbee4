package store_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// If an interrupted import has imported a refresh token twice, the first account stays the known
// one.
func TestImportedTwiceBefore(t *testing.T) {
	t.Parallel()
	before := schema()
	before.FS = upTo(t, schema().FS, "00006")
	database := pgtest.New(t, before)
	db := database.Open(t, before)
	mine, other := id.New[id.Workspace](), id.New[id.Workspace]()
	first, second, theirs, plain := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		for _, ws := range []id.Workspace{mine, other} {
			if _, err := tx.Exec(ctx, `INSERT INTO data_keys (workspace_id, version, kek, wrapped) VALUES ($1, 1, 'k', 'w')`, ws); err != nil {
				return err
			}
		}
		for i, a := range []struct {
			ws   id.Workspace
			id   uuid.UUID
			hash []byte
		}{{mine, first, []byte("h")}, {mine, second, []byte("h")}, {other, theirs, []byte("i")}, {mine, plain, nil}} {
			_, err := tx.Exec(ctx, `INSERT INTO accounts (workspace_id, id, provider, profile, key_version, sealed, created_at, imported)
				VALUES ($1, $2, 'anthropic', 'p', 1, '', $3, $4)`, a.ws, a.id, time.Now().Add(time.Duration(i)*time.Second), a.hash)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Migrate(t.Context(), database.AdminURL, slog.New(slog.DiscardHandler), schema()); err != nil {
		t.Fatal(err)
	}
	s := store.New(db)
	found, err := s.FindImported(t.Context())
	want := map[string]store.Imported{"h": {Workspace: mine, Account: id.Account{UUID: first}}, "i": {Workspace: other, Account: id.Account{UUID: theirs}}}
	if diff := cmp.Diff(want, found); diff != "" || err != nil {
		t.Errorf("FindImported: %v (-want +got):\n%s", err, diff)
	}
}

// What is known of an imported account is stored in the transaction that adds it, or not at
// all.
func TestImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	mine, other := id.New[id.Workspace](), id.New[id.Workspace]()
	w.add(mine, "anthropic", "with a data key")
	w.add(other, "anthropic", "with a data key")
	add := func(ws id.Workspace, i store.Import) (store.Account, error) {
		a := store.Account{WorkspaceID: ws, ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}
		return w.store.Import(ctx, a, store.Event{Action: "created", Account: a.ID, Provider: "openai", Origin: "workspace", Service: "gateway"}, i)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	limit := &store.Limit{At: now, Until: now.Add(time.Hour), Soon: now.Add(time.Hour), Reason: "RATE_LIMIT_EXCEEDED"}
	one, err := add(mine, store.Import{Hash: []byte("h"), Limit: limit, Current: true, Used: now})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := add(mine, store.Import{Hash: []byte("h"), Disabled: true}); !errors.Is(err, store.ErrImported) {
		t.Errorf("the same token again = %v, want %v", err, store.ErrImported)
	}
	if _, err := add(other, store.Import{Hash: []byte("h")}); !errors.Is(err, store.ErrImported) {
		t.Errorf("the same token for another workspace = %v, want %v", err, store.ErrImported)
	}
	two, err := add(mine, store.Import{Hash: []byte("i"), Disabled: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.store.Pool(ctx, mine, "openai")
	if err != nil || len(p.Accounts) != 1 || p.Accounts[0].LastUsedAt == nil || p.Current != one.ID || len(p.Limits) != 1 || p.Limits[0].Account != one.ID {
		t.Errorf("Pool = %+v, %v, want the first account alone, used, current and parked", p, err)
	}
	if a, err := w.store.Get(ctx, mine, two.ID); err != nil || a.Enabled {
		t.Errorf("Get = %+v, %v, want it disabled", a, err)
	}
	rows, err := w.store.Audit(ctx, mine, audit.Query{Limit: 10})
	if err != nil || len(rows) != 3 || rows[1].Detail != "imported, made the current one" || rows[0].Detail != "imported, disabled" {
		t.Errorf("Audit = %+v, %v, want what was imported", rows, err)
	}
}
