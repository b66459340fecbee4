package world

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
)

// Member is a person with a token.
type Member struct {
	Token     string `json:"token"`
	Workspace string `json:"workspace_id"`
	ID        string `json:"member_id"`
}

const tokenLifetime = 24 * time.Hour

// NewMembers creates n members with a role (owner, editor, viewer), in the given workspace or,
// for "", each in a workspace of their own. Thousands take a second.
func (w *World) NewMembers(ctx context.Context, workspace, role string, n int) ([]Member, error) {
	out := make([]Member, n)
	workspaces, members := make([]string, n), make([]string, n)
	for i := range out {
		member := id.New[id.Member]()
		token, _, err := identity.DevToken(conf.Secret(w.secret), member, tokenLifetime)
		if err != nil {
			return nil, err
		}
		out[i] = Member{Token: token, Workspace: workspace, ID: member.String()}
		if workspace == "" {
			out[i].Workspace = id.New[id.Workspace]().String()
		}
		workspaces[i], members[i] = out[i].Workspace, out[i].ID
	}
	db, err := pgx.Connect(ctx, w.Database)
	if err != nil {
		return nil, fmt.Errorf("make members: %w", err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }() // nothing is left to write
	args := pgx.NamedArgs{"workspaces": workspaces, "members": members, "role": role}
	for _, sql := range []string{
		`INSERT INTO gateway.workspaces (workspace_id, name)
		 SELECT DISTINCT w::uuid, 'End to end' FROM unnest(@workspaces::text[]) w ON CONFLICT DO NOTHING`,
		`INSERT INTO gateway.members (workspace_id, member_id, role)
		 SELECT w::uuid, m::uuid, @role FROM unnest(@workspaces::text[], @members::text[]) t(w, m)`,
	} {
		if _, err := db.Exec(ctx, sql, args); err != nil {
			return nil, fmt.Errorf("make members: %w", err)
		}
	}
	return out, nil
}

// NewMember creates one member, as NewMembers does.
func (w *World) NewMember(ctx context.Context, workspace, role string) (Member, error) {
	members, err := w.NewMembers(ctx, workspace, role, 1)
	if err != nil {
		return Member{}, err
	}
	return members[0], nil
}
