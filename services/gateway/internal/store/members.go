package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Member is one person's membership.
type Member struct {
	ID        id.Member
	Role      identity.Role
	CreatedAt time.Time
}

// Members returns a workspace's members, oldest first.
func (s *Store) Members(ctx context.Context, ws id.Workspace, p Page) ([]Member, error) {
	var out []Member
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			select member_id, role, created_at from members
			where workspace_id = @workspace and (created_at, member_id) > (@after, @id)
			order by created_at, member_id limit @limit`,
			pg.Args{"workspace": ws, "after": p.After, "id": p.ID, "limit": p.Limit})
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, scanMember)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	return out, nil
}

func scanMember(row pgx.CollectableRow) (m Member, err error) {
	var role string
	if err = row.Scan(&m.ID, &role, &m.CreatedAt); err == nil {
		m.Role, err = identity.ParseRole(role)
	}
	return m, err
}

// AddMember makes a person a member; one who is a member already is left with
// their role when it is the same, and is a Conflict when it is not.
func (s *Store) AddMember(ctx context.Context, ws id.Workspace, m id.Member, role identity.Role) (Member, error) {
	var out Member
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "member": m, "role": role.String()}
		if _, err := tx.Exec(ctx, `
			insert into members (workspace_id, member_id, role) values (@workspace, @member, @role) on conflict do nothing`, args); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			select member_id, role, created_at from members where workspace_id = @workspace and member_id = @member`, args)
		if err != nil {
			return err
		}
		if out, err = pgx.CollectExactlyOneRow(rows, scanMember); err == nil && out.Role != role {
			return fault.New(fault.Conflict, "this person is a member with the role %s already: change it with PATCH", out.Role)
		}
		return err
	})
	if err != nil {
		return Member{}, fmt.Errorf("add a member: %w", err)
	}
	return out, nil
}

// SetRole changes a member's role. The last owner keeps theirs.
func (s *Store) SetRole(ctx context.Context, ws id.Workspace, m id.Member, role identity.Role) (Member, error) {
	var out Member
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		if role != identity.Owner {
			if err := keepOwner(ctx, tx, ws, m); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, `
			update members set role = @role where workspace_id = @workspace and member_id = @member
			returning member_id, role, created_at`,
			pg.Args{"workspace": ws, "member": m, "role": role.String()})
		if err != nil {
			return err
		}
		out, err = pgx.CollectExactlyOneRow(rows, scanMember)
		if pg.NoRows(err) {
			return fault.New(fault.NotFound, "no such member")
		}
		return err
	})
	if err != nil {
		return Member{}, fmt.Errorf("change a member's role: %w", err)
	}
	return out, nil
}

// RemoveMember ends a membership, and with it the keys that the person made. The
// last owner stays.
func (s *Store) RemoveMember(ctx context.Context, ws id.Workspace, m id.Member) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		if err := keepOwner(ctx, tx, ws, m); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `delete from members where workspace_id = @workspace and member_id = @member`,
			pg.Args{"workspace": ws, "member": m})
		if err == nil && tag.RowsAffected() == 0 {
			return fault.New(fault.NotFound, "no such member")
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove a member: %w", err)
	}
	return nil
}

// keepOwner refuses to go on when m is the only owner. It holds the workspace's
// row, so that two owners cannot leave at the same time.
func keepOwner(ctx context.Context, tx pgx.Tx, ws id.Workspace, m id.Member) error {
	args := pg.Args{"workspace": ws, "member": m}
	if _, err := tx.Exec(ctx, `select from workspaces where workspace_id = @workspace for update`, args); err != nil {
		return err
	}
	var is, others bool
	err := tx.QueryRow(ctx, `
		select coalesce(bool_or(member_id = @member), false), coalesce(bool_or(member_id <> @member), false)
		from members where workspace_id = @workspace and role = 'owner'`, args).Scan(&is, &others)
	if err == nil && is && !others {
		return fault.Coded(fault.Conflict, "LAST_OWNER", "a workspace needs an owner: make somebody else one first")
	}
	return err
}
