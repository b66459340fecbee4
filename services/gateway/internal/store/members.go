package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Member is a person's membership in a workspace.
type Member struct {
	ID        id.Member
	Name      string // of Person; may be empty
	Email     string // of Person; may be empty
	Role      identity.Role
	CreatedAt time.Time
}

// Position returns the member's place in a list.
func (m Member) Position() Position { return Position{m.CreatedAt, m.ID.UUID} }

const memberColumns = `member_id,
	coalesce((SELECT p.name FROM people p WHERE p.member_id = members.member_id), ''),
	coalesce((SELECT p.email FROM people p WHERE p.member_id = members.member_id), ''), role, created_at`

func scanMember(row pgx.CollectableRow) (m Member, err error) {
	err = row.Scan(&m.ID, &m.Name, &m.Email, scanRole{&m.Role}, &m.CreatedAt)
	return m, err
}

// Members returns a workspace's members, oldest first.
func (s *Store) Members(ctx context.Context, ws id.Workspace, p Page) (out []Member, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		out, err = collect(ctx, tx, scanMember, `
			SELECT `+memberColumns+` FROM members
			WHERE workspace_id = @workspace AND (created_at, member_id) > (@after, @id)
			ORDER BY created_at, member_id LIMIT @limit`, p.args(pg.Args{"workspace": ws}))
		return err
	})
	return out, wrap(err, "list members")
}

// AddMember makes a person a member. Adding a member again with the same role changes
// nothing; with another role it is a Conflict.
func (s *Store) AddMember(ctx context.Context, ws id.Workspace, m id.Member, role identity.Role) (out Member, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "member": m, "role": role.String()}
		tag, err := tx.Exec(ctx, `
			INSERT INTO members (workspace_id, member_id, role) VALUES (@workspace, @member, @role) ON CONFLICT DO NOTHING`, args)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 1 {
			if err := record(ctx, tx, ws, Change{Member: actor(ctx), Action: MemberAdded, Subject: m.String(), Detail: role.String()}); err != nil {
				return err
			}
		}
		out, err = collectOne(ctx, tx, scanMember, `
			SELECT `+memberColumns+` FROM members WHERE workspace_id = @workspace AND member_id = @member`, args)
		if err == nil && out.Role != role {
			return fault.New(fault.Conflict, "this person is already a member with the role %s: change it with PATCH", out.Role)
		}
		return err
	})
	return out, wrap(err, "add a member")
}

// SetRole changes a member's role. The role of the last owner cannot be changed. The open
// invitations of somebody who is an owner no longer end.
func (s *Store) SetRole(ctx context.Context, ws id.Workspace, m id.Member, role identity.Role) (out Member, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": ws, "member": m, "role": role.String()}
		if role != identity.Owner {
			if err := keepOwner(ctx, tx, ws, m); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `DELETE FROM invitations WHERE workspace_id = @workspace AND created_by = @member`, args); err != nil {
				return err
			}
		}
		var before string
		err := tx.QueryRow(ctx, `SELECT role FROM members WHERE workspace_id = @workspace AND member_id = @member FOR UPDATE`, args).Scan(&before)
		if pg.NoRows(err) {
			return fault.New(fault.NotFound, "no such member")
		}
		if err != nil {
			return err
		}
		if before != role.String() {
			change := Change{Member: actor(ctx), Action: RoleChanged, Subject: m.String(), Detail: before + " to " + role.String()}
			if err := record(ctx, tx, ws, change); err != nil {
				return err
			}
		}
		out, err = collectOne(ctx, tx, scanMember, `
			UPDATE members SET role = @role WHERE workspace_id = @workspace AND member_id = @member
			RETURNING `+memberColumns, args)
		return err
	})
	return out, wrap(err, "change a member's role")
}

// RemoveMember ends a membership, revokes the API keys that the member created, and withdraws the
// invitations that they made or that are for their address. The last owner cannot be removed.
func (s *Store) RemoveMember(ctx context.Context, ws id.Workspace, m id.Member) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		if err := keepOwner(ctx, tx, ws, m); err != nil {
			return err
		}
		args := pg.Args{"workspace": ws, "member": m}
		changes, err := collect(ctx, tx, func(row pgx.CollectableRow) (Change, error) {
			c := Change{Member: actor(ctx), Action: KeyRevoked}
			return c, row.Scan(&c.Subject, &c.Detail)
		}, `SELECT key_id::text, name FROM api_keys WHERE workspace_id = @workspace AND created_by = @member ORDER BY key_id FOR UPDATE`, args)
		if err != nil {
			return err
		}
		// Otherwise they could come back by signing in.
		if _, err := tx.Exec(ctx, `
			DELETE FROM invitations WHERE workspace_id = @workspace AND email = (SELECT p.email FROM people p WHERE p.member_id = @member)`, args); err != nil {
			return err
		}
		if err := deleteOne(ctx, tx, "member", `DELETE FROM members WHERE workspace_id = @workspace AND member_id = @member`, args); err != nil {
			return err
		}
		return record(ctx, tx, ws, append(changes, Change{Member: actor(ctx), Action: MemberRemoved, Subject: m.String()})...)
	})
	return wrap(err, "remove a member")
}

// keepOwner fails if m is the only owner. It locks the workspace's row, so that two owners
// cannot leave at the same time.
func keepOwner(ctx context.Context, tx pgx.Tx, ws id.Workspace, m id.Member) error {
	args := pg.Args{"workspace": ws, "member": m}
	if _, err := tx.Exec(ctx, `SELECT FROM workspaces WHERE workspace_id = @workspace FOR UPDATE`, args); err != nil {
		return err
	}
	var is, others bool
	err := tx.QueryRow(ctx, `
		SELECT coalesce(bool_or(member_id = @member), false), coalesce(bool_or(member_id <> @member), false)
		FROM members WHERE workspace_id = @workspace AND role = 'owner'`, args).Scan(&is, &others)
	if err == nil && is && !others {
		return fault.Coded(fault.Conflict, "LAST_OWNER", "a workspace needs an owner: give another member this role first")
	}
	return err
}
