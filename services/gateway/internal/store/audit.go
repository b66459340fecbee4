package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
)

// Actions in the audit. Their subject is a member, an invitation's address, a key, a browser
// session or a document.
const (
	MemberInvited       = "member-invited"
	InvitationWithdrawn = "invitation-withdrawn"
	MemberJoined        = "member-joined" // by an invitation or a domain
	MemberAdded         = "member-added"
	RoleChanged         = "role-changed"
	MemberRemoved       = "member-removed"
	KeyCreated          = "key-created"
	KeyRevoked          = "key-revoked"
	BrowserSignedOut    = "browser-signed-out"
	LinkCreated         = "link-created" // their detail is the id of the share link
	LinkRevoked         = "link-revoked"
)

// Change is a row of the audit: who changed a workspace's members or keys, or shared
// documents. The service can
// neither change nor delete it.
type Change struct {
	ID      uuid.UUID
	At      time.Time
	Member  id.Member `db:"member_id"` // who did it
	Action  string
	Subject string
	Detail  string
}

// record adds rows to the audit, in the transaction of what they describe. Writers of a workspace's
// rows wait for each other until their transactions end: it is the last that a transaction locks,
// and that of several workspaces in their order.
func record(ctx context.Context, tx pgx.Tx, ws id.Workspace, changes ...Change) error {
	for _, c := range changes {
		_, err := tx.Exec(ctx, `
			INSERT INTO audit (workspace_id, member_id, action, subject, detail) VALUES (@workspace, @member, @action, @subject, @detail)`,
			pg.Args{"workspace": ws, "member": c.Member, "action": c.Action, "subject": c.Subject, "detail": c.Detail})
		if err != nil {
			return fmt.Errorf("write the audit: %w", err)
		}
	}
	return nil
}

// AuditTable returns the audit as a hash chain.
func AuditTable(db *pg.DB) hashchain.Table {
	return hashchain.Table{DB: db, Name: "audit", Fields: []string{"member_id", "action", "subject", "detail"}}
}

// actor returns the member who makes the request.
func actor(ctx context.Context) id.Member {
	a, _ := identity.From(ctx)
	return a.Member
}

// Place is the place of a row in the audit.
type Place struct {
	At time.Time
	ID uuid.UUID
}

// AuditQuery selects rows of a workspace's audit.
type AuditQuery struct {
	Before Place // the zero Place is after all rows
	Limit  int
	// Text is in the rows, in any case, unless they are by or about one of Members. Empty: all rows.
	Text    string
	Members []id.Member
}

// Audit returns rows of a workspace's audit, newest first. A search reads the workspace's rows
// until it has as many as the limit.
func (s *Store) Audit(ctx context.Context, ws id.Workspace, q AuditQuery) (page []Change, err error) {
	members := make([]string, len(q.Members)) // not nil: NULL would match no row
	for i, m := range q.Members {
		members[i] = m.String()
	}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT id, at, member_id, action, subject, detail FROM audit
		WHERE workspace_id = @workspace AND (@newest OR (at, id) < (@before, @id))
			AND (@text = '' OR member_id = ANY (@members::text[]::uuid[]) OR subject = ANY (@members::text[])
				OR concat_ws(' ', member_id, action, subject, detail) ILIKE @pattern)
		ORDER BY at DESC, id DESC LIMIT @limit`,
		pg.Args{
			"workspace": ws, "newest": q.Before == Place{}, "before": q.Before.At, "id": q.Before.ID, "limit": q.Limit,
			"text": q.Text, "pattern": pg.Containing(q.Text), "members": members,
		}).Query(pg.Collect(&page))
	return page, wrap(s.db.ReadInWorkspace(ctx, ws, b), "read the audit")
}

// PeopleLike returns up to 100 members of a workspace whose name or e-mail address contains a text,
// in any case.
func (s *Store) PeopleLike(ctx context.Context, ws id.Workspace, text string) (members []id.Member, err error) {
	b := &pgx.Batch{}
	b.Queue(`
		SELECT p.member_id FROM people p JOIN members m ON m.member_id = p.member_id
		WHERE m.workspace_id = @workspace AND (p.name ILIKE @pattern OR p.email ILIKE @pattern)
		ORDER BY p.member_id LIMIT 100`, pg.Args{"workspace": ws, "pattern": pg.Containing(text)}).Query(func(rows pgx.Rows) error {
		members, err = pgx.CollectRows(rows, pgx.RowTo[id.Member])
		return err
	})
	return members, wrap(s.db.ReadInWorkspace(ctx, ws, b), "read the people")
}
