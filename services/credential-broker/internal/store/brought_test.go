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
	"signalbox.dev/services/credential-broker/internal/store"
)

// Of a refresh token that an interrupted import has brought along twice, the first
// account goes on being the one that is known.
func TestBroughtTwiceBefore(t *testing.T) {
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

// What is brought along is in one transaction with the account, or not at all.
func TestBrought(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	mine := id.New[id.Workspace]()
	one, two, theirs := w.add(mine, "openai", "one"), w.add(mine, "openai", "two"), w.add(id.New[id.Workspace](), "openai", "three")
	bring := func(a store.Account, b store.Brought) error {
		return w.db.InWorkspace(ctx, a.WorkspaceID, func(ctx context.Context, tx pgx.Tx) error {
			return b.Write(ctx, tx, a.WorkspaceID, a.Provider, a.ID)
		})
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	limit := &store.Limit{At: now, Until: now.Add(time.Hour), Soon: now.Add(time.Hour), Reason: "RATE_LIMIT_EXCEEDED"}
	if err := bring(one, store.Brought{Hash: []byte("h"), Limit: limit, Current: true}); err != nil {
		t.Fatal(err)
	}
	if err := bring(two, store.Brought{Hash: []byte("h"), Disabled: true}); !errors.Is(err, store.ErrBrought) {
		t.Errorf("the same token again = %v, want %v", err, store.ErrBrought)
	}
	if err := bring(theirs, store.Brought{Hash: []byte("h")}); !errors.Is(err, store.ErrBrought) {
		t.Errorf("the same token for another workspace = %v, want %v", err, store.ErrBrought)
	}
	p, err := w.store.Pool(ctx, mine, "openai")
	if err != nil || len(p.Accounts) != 2 || p.Current != one.ID || len(p.Limits) != 1 || p.Limits[0].Account != one.ID {
		t.Errorf("Pool = %+v, %v, want both accounts, the first one current and parked", p, err)
	}
	if err := bring(two, store.Brought{Hash: []byte("i"), Disabled: true}); err != nil {
		t.Fatal(err)
	}
	if a, err := w.store.Get(ctx, mine, two.ID); err != nil || a.Enabled {
		t.Errorf("Get = %+v, %v, want it disabled", a, err)
	}
}
