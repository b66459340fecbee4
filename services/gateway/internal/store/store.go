// Package store keeps what the gateway knows itself: workspaces, who is a member
// of them, and their API keys. Everything else belongs to other services.
//
// A Store holds nothing but the database handle; it may be used from any goroutine.
package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Store reads and writes the gateway's tables.
type Store struct {
	db    *pg.DB
	roles *roles
}

// New returns a store over db, which stays the caller's.
func New(db *pg.DB) *Store { return &Store{db: db, roles: newRoles()} }

// Workspace is a tenant as one of its members sees it.
type Workspace struct {
	ID        id.Workspace
	Name      string
	Role      identity.Role
	CreatedAt time.Time
}

// Page asks for items after the given one. The zero Page is the first.
type Page struct {
	After time.Time // the last item's time and
	ID    uuid.UUID // id
	Limit int
}

// Workspaces returns a member's workspaces, oldest first: all or, unless only is
// zero, that one.
func (s *Store) Workspaces(ctx context.Context, m id.Member, only id.Workspace, p Page) ([]Workspace, error) {
	var out []Workspace
	err := s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			select w.workspace_id, w.name, m.role, w.created_at
			from members m join workspaces w using (workspace_id)
			where m.member_id = @member and (@all or w.workspace_id = @only) and (w.created_at, w.workspace_id) > (@after, @id)
			order by w.created_at, w.workspace_id limit @limit`,
			pg.Args{"member": m, "all": id.IsZero(only), "only": only, "after": p.After, "id": p.ID, "limit": p.Limit})
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w Workspace, err error) {
			var role string
			if err = row.Scan(&w.ID, &w.Name, &role, &w.CreatedAt); err == nil {
				w.Role, err = identity.ParseRole(role)
			}
			return w, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	return out, nil
}

// CreateWorkspace makes a workspace with its first owner. One that has the id
// already is left as it is and returned, if the owner is one of it: a second
// attempt with the same id is harmless.
func (s *Store) CreateWorkspace(ctx context.Context, ws id.Workspace, name string, owner id.Member) (Workspace, error) {
	w := Workspace{ID: ws, Role: identity.Owner}
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `insert into workspaces (workspace_id, name) values (@workspace, @name) on conflict do nothing`,
			pg.Args{"workspace": ws, "name": name})
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 1 {
			_, err = tx.Exec(ctx, `insert into members (workspace_id, member_id, role) values (@workspace, @member, 'owner')`,
				pg.Args{"workspace": ws, "member": owner})
			if err != nil {
				return err
			}
		}
		var role string
		err = tx.QueryRow(ctx, `
			select w.name, w.created_at, m.role from workspaces w join members m using (workspace_id)
			where w.workspace_id = @workspace and m.member_id = @member`,
			pg.Args{"workspace": ws, "member": owner}).Scan(&w.Name, &w.CreatedAt, &role)
		if pg.NoRows(err) {
			return fault.New(fault.Conflict, "this Idempotency-Key made a workspace that you are no longer a member of: use another one")
		}
		if err == nil {
			w.Role, err = identity.ParseRole(role)
		}
		return err
	})
	if err != nil {
		return Workspace{}, fmt.Errorf("create a workspace: %w", err)
	}
	return w, nil
}

// Ensure makes workspace and member exist, the member with that role.
func (s *Store) Ensure(ctx context.Context, ws id.Workspace, name string, m id.Member, role identity.Role) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "name": name, "member": m, "role": role.String()}
		if _, err := tx.Exec(ctx, `insert into workspaces (workspace_id, name) values (@workspace, @name) on conflict do nothing`, args); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			insert into members (workspace_id, member_id, role) values (@workspace, @member, @role)
			on conflict (workspace_id, member_id) do update set role = excluded.role where members.role <> excluded.role`, args)
		return err
	})
	if err != nil {
		return fmt.Errorf("ensure member %s of workspace %s: %w", m, ws, err)
	}
	return nil
}
