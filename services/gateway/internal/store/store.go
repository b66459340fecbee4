// Package store keeps the gateway's own data: workspaces, their members, API keys, share links,
// and sign-ins that are in progress. Everything else belongs to other services.
//
// A Store is safe for concurrent use. It holds the database handle and the membership
// queries that are in progress.
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

// New returns a store on db, which the caller closes.
func New(db *pg.DB) *Store { return &Store{db: db, roles: newRoles()} }

// Position is the place of an item in a list, which is ordered by creation.
type Position struct {
	CreatedAt time.Time
	ID        uuid.UUID
}

// Page requests up to Limit items after a position. The zero Page begins at the first item.
type Page struct {
	After Position
	Limit int
}

func (p Page) args(more pg.Args) pg.Args {
	more["after"], more["id"], more["limit"] = p.After.CreatedAt, p.After.ID, p.Limit
	return more
}

// scanRole scans a role's name.
type scanRole struct{ into *identity.Role }

// Scan implements sql.Scanner.
func (s scanRole) Scan(v any) (err error) {
	name, _ := v.(string)
	*s.into, err = identity.ParseRole(name)
	return err
}

// collect returns the rows of a query.
func collect[T any](ctx context.Context, tx pgx.Tx, scan pgx.RowToFunc[T], query string, args pg.Args) ([]T, error) {
	rows, err := tx.Query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// collectOne returns the only row of a query.
func collectOne[T any](ctx context.Context, tx pgx.Tx, scan pgx.RowToFunc[T], query string, args pg.Args) (T, error) {
	rows, err := tx.Query(ctx, query, args)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, scan)
}

// deleteOne runs a DELETE, which must find a row.
func deleteOne(ctx context.Context, tx pgx.Tx, what, query string, args pg.Args) error {
	tag, err := tx.Exec(ctx, query, args)
	if err == nil && tag.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "no such %s", what)
	}
	return err
}

// wrap says what was being done.
func wrap(err error, doing string) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Workspace is a tenant as one of its members sees it.
type Workspace struct {
	ID        id.Workspace
	Name      string
	Role      identity.Role
	CreatedAt time.Time
}

// Position returns the workspace's place in a list.
func (w Workspace) Position() Position { return Position{w.CreatedAt, w.ID.UUID} }

func scanWorkspace(row pgx.CollectableRow) (w Workspace, err error) {
	err = row.Scan(&w.ID, &w.Name, scanRole{&w.Role}, &w.CreatedAt)
	return w, err
}

// Workspaces returns a member's workspaces, oldest first. If only is not zero, it returns
// that workspace alone.
func (s *Store) Workspaces(ctx context.Context, m id.Member, only id.Workspace, p Page) (out []Workspace, err error) {
	err = s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		out, err = collect(ctx, tx, scanWorkspace, `
			SELECT w.workspace_id, w.name, m.role, w.created_at
			FROM members m JOIN workspaces w USING (workspace_id)
			WHERE m.member_id = @member AND (@all OR w.workspace_id = @only) AND (w.created_at, w.workspace_id) > (@after, @id)
			ORDER BY w.created_at, w.workspace_id LIMIT @limit`,
			p.args(pg.Args{"member": m, "all": id.IsZero(only), "only": only}))
		return err
	})
	return out, wrap(err, "list workspaces")
}

// CreateWorkspace creates a workspace with its first owner. If the id exists and the owner
// is a member, it returns the existing workspace, so that the call can be repeated.
func (s *Store) CreateWorkspace(ctx context.Context, ws id.Workspace, name string, owner id.Member) (w Workspace, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "name": name, "member": owner}
		tag, err := tx.Exec(ctx, `INSERT INTO workspaces (workspace_id, name) VALUES (@workspace, @name) ON CONFLICT DO NOTHING`, args)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 1 {
			if _, err := tx.Exec(ctx, `INSERT INTO members (workspace_id, member_id, role) VALUES (@workspace, @member, 'owner')`, args); err != nil {
				return err
			}
		}
		w, err = collectOne(ctx, tx, scanWorkspace, `
			SELECT w.workspace_id, w.name, m.role, w.created_at FROM workspaces w JOIN members m USING (workspace_id)
			WHERE w.workspace_id = @workspace AND m.member_id = @member`, args)
		if pg.NoRows(err) {
			return fault.New(fault.Conflict, "this Idempotency-Key created a workspace that you are no longer a member of: use another key")
		}
		return err
	})
	return w, wrap(err, "create a workspace")
}

// Ensure makes a workspace and its member exist, and gives the member the role. An existing
// workspace keeps its name.
func (s *Store) Ensure(ctx context.Context, ws id.Workspace, name string, m id.Member, role identity.Role) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "name": name, "member": m, "role": role.String()}
		if _, err := tx.Exec(ctx, `INSERT INTO workspaces (workspace_id, name) VALUES (@workspace, @name) ON CONFLICT DO NOTHING`, args); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO members (workspace_id, member_id, role) VALUES (@workspace, @member, @role)
			ON CONFLICT (workspace_id, member_id) DO UPDATE SET role = excluded.role WHERE members.role <> excluded.role`, args)
		return err
	})
	return wrap(err, fmt.Sprintf("ensure member %s of workspace %s", m, ws))
}
