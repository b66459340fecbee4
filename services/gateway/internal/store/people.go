package store

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Bounds of invitations.
const (
	maxInvitations = 1000 // per workspace
	// InvitationDays is how long an invitation is valid.
	InvitationDays = 30
)

// Person is somebody whom the OpenID Connect provider has identified, or, with a name alone, an
// access token.
type Person struct {
	Member id.Member
	Email  string // empty unless it is verified; in lower case if the store returned it
	Name   string // may be empty
}

const maxName = 200 // bytes

// cleanName returns a name without controls and marks that reverse the text.
func cleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, ""))
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "")
	}
	return strings.TrimSpace(name)
}

// SetName records what a person is called. An empty name changes nothing.
func (s *Store) SetName(ctx context.Context, m id.Member, name string) error {
	if name = cleanName(name); name == "" {
		return nil
	}
	// AsSystem: nobody may write about themselves.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO people (member_id, email, name) VALUES (@member, '', @name)
			ON CONFLICT (member_id) DO UPDATE SET name = excluded.name WHERE people.name <> excluded.name`, pg.Args{"member": m, "name": name})
		return err
	})
	return wrap(err, "record a person's name")
}

// foldEmail returns an address as it is compared and stored. Only ASCII letters have a lower
// case here: Unicode has letters, such as the Kelvin sign, whose lower case is another person's
// address.
func foldEmail(address string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, address)
}

// Domain admits everybody whose e-mail address is in a domain.
type Domain struct {
	Name string // in lower case
	// Workspace is the one that they join with Role when they sign in for the first time. Zero:
	// they may sign in, and join none.
	Workspace id.Workspace
	Role      identity.Role
}

// Admit records a person who signs in, and makes them a member of the workspaces that have
// invited them and, the first time, of those of their domain. A person who is then in no
// workspace and in no domain is Forbidden, and is not recorded.
func (s *Store) Admit(ctx context.Context, p Person, domains []Domain) error {
	p.Email, p.Name = foldEmail(p.Email), cleanName(p.Name)
	// AsSystem: the invitations are of many workspaces.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"member": p.Member, "email": p.Email, "name": p.Name, "days": InvitationDays}
		var first, admitted bool
		if err := tx.QueryRow(ctx, `
			INSERT INTO people (member_id, email, name) VALUES (@member, @email, @name)
			ON CONFLICT (member_id) DO UPDATE SET email = excluded.email, name = excluded.name
			RETURNING xmax = 0`, args).Scan(&first); err != nil {
			return err
		}
		type membership struct {
			workspace id.Workspace
			how       string
		}
		scan := func(row pgx.CollectableRow) (m membership, err error) { return m, row.Scan(&m.workspace, &m.how) }
		joined, err := collect(ctx, tx, scan, `
			WITH invited AS (DELETE FROM invitations WHERE email = @email AND @email <> '' RETURNING workspace_id, role, created_at)
			INSERT INTO members (workspace_id, member_id, role)
			SELECT workspace_id, @member, role FROM invited WHERE created_at > now() - make_interval(days => @days)
			ON CONFLICT DO NOTHING RETURNING workspace_id, role || ', invited'`, args)
		if err != nil {
			return err
		}
		_, domain, _ := strings.Cut(p.Email, "@")
		for _, d := range domains {
			if d.Name != domain || domain == "" {
				continue
			}
			admitted = true
			if d.Workspace == (id.Workspace{}) || !first {
				continue
			}
			more, err := collect(ctx, tx, scan, `
				INSERT INTO members (workspace_id, member_id, role)
				SELECT workspace_id, @member, @role FROM workspaces WHERE workspace_id = @workspace
				ON CONFLICT DO NOTHING RETURNING workspace_id, role || ', by domain'`,
				pg.Args{"workspace": d.Workspace, "member": p.Member, "role": d.Role.String()})
			if err != nil {
				return err
			}
			joined = append(joined, more...)
		}
		slices.SortFunc(joined, func(a, b membership) int { return bytes.Compare(a.workspace.UUID[:], b.workspace.UUID[:]) })
		for _, m := range joined {
			if err := record(ctx, tx, m.workspace, Change{Member: p.Member, Action: MemberJoined, Subject: p.Email, Detail: m.how}); err != nil {
				return err
			}
		}
		if admitted {
			return nil
		}
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM members WHERE member_id = @member)`, args).Scan(&admitted); err != nil || admitted {
			return err
		}
		if p.Email == "" {
			return fault.Coded(fault.Forbidden, "NOT_INVITED", "you are in no workspace, and your company's sign-in page does not confirm your e-mail address: ask the operator")
		}
		return fault.Coded(fault.Forbidden, "NOT_INVITED", "nobody has invited %s to a workspace yet: ask an owner of one to invite this address, or sign in with another account", p.Email)
	})
	return wrap(err, "admit a person")
}

// Person returns what is known about a person. It returns a zero Person if nothing is.
func (s *Store) Person(ctx context.Context, m id.Member) (p Person, err error) {
	err = s.db.AsMember(ctx, m, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT member_id, email, name FROM people WHERE member_id = @member`, pg.Args{"member": m}).Scan(&p.Member, &p.Email, &p.Name)
	})
	if pg.NoRows(err) {
		return Person{}, nil
	}
	return p, wrap(err, "look up a person")
}

// Invitation makes whoever signs in with an e-mail address a member.
type Invitation struct {
	Email     string // in lower case if the store returned it
	Role      identity.Role
	CreatedBy id.Member
	CreatedAt time.Time
}

func scanInvitation(row pgx.CollectableRow) (i Invitation, err error) {
	err = row.Scan(&i.Email, scanRole{&i.Role}, &i.CreatedBy, &i.CreatedAt)
	return i, err
}

// Invite invites an e-mail address to a workspace. Inviting it again renews the invitation, with
// the new role. The address of a member is a Conflict.
func (s *Store) Invite(ctx context.Context, ws id.Workspace, i Invitation) (out Invitation, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		var has string
		err := tx.QueryRow(ctx, `
			SELECT role FROM members JOIN people USING (member_id) WHERE workspace_id = @workspace AND email = @email LIMIT 1`,
			pg.Args{"workspace": ws, "email": foldEmail(i.Email)}).Scan(&has)
		if err == nil {
			return fault.Coded(fault.Conflict, "ALREADY_MEMBER", "this address belongs to a member already, with the role %s: change the role in the list of members, or remove the member first if the person now signs in with another account", has)
		}
		if !pg.NoRows(err) {
			return err
		}
		out, err = collectOne(ctx, tx, scanInvitation, `
			WITH expired AS (DELETE FROM invitations WHERE workspace_id = @workspace AND email <> @email AND created_at < now() - make_interval(days => @days))
			INSERT INTO invitations (workspace_id, email, role, created_by)
			SELECT @workspace, @email, @role, @member
			WHERE (SELECT count(*) FROM invitations WHERE workspace_id = @workspace AND email <> @email) < @most
			ON CONFLICT (workspace_id, email) DO UPDATE SET role = excluded.role, created_by = excluded.created_by, created_at = clock_timestamp()
			RETURNING email, role, created_by, created_at`, pg.Args{
			"workspace": ws, "email": foldEmail(i.Email), "role": i.Role.String(), "member": i.CreatedBy, "days": InvitationDays, "most": maxInvitations,
		})
		if pg.NoRows(err) {
			return fault.New(fault.Conflict, "the workspace has %d open invitations, which is the limit: withdraw some first", maxInvitations)
		}
		if err != nil {
			return err
		}
		return record(ctx, tx, ws, Change{Member: i.CreatedBy, Action: MemberInvited, Subject: out.Email, Detail: out.Role.String()})
	})
	return out, wrap(err, "invite")
}

// Invitations returns a workspace's valid invitations, in the order of their addresses.
func (s *Store) Invitations(ctx context.Context, ws id.Workspace) (out []Invitation, err error) {
	err = s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		out, err = collect(ctx, tx, scanInvitation, `
			SELECT email, role, created_by, created_at FROM invitations
			WHERE workspace_id = @workspace AND created_at > now() - make_interval(days => @days) ORDER BY email LIMIT @most`,
			pg.Args{"workspace": ws, "days": InvitationDays, "most": maxInvitations})
		return err
	})
	return out, wrap(err, "list invitations")
}

// Withdraw deletes an invitation.
func (s *Store) Withdraw(ctx context.Context, ws id.Workspace, email string) error {
	err := s.db.InWorkspace(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		email = foldEmail(email)
		if err := deleteOne(ctx, tx, "invitation", `DELETE FROM invitations WHERE workspace_id = @workspace AND email = @email`,
			pg.Args{"workspace": ws, "email": email}); err != nil {
			return err
		}
		return record(ctx, tx, ws, Change{Member: actor(ctx), Action: InvitationWithdrawn, Subject: email})
	})
	return wrap(err, "withdraw an invitation")
}
