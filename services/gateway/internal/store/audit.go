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

// Audit returns up to limit rows of a workspace's audit, newest first, before a place; the zero
// Place is after all rows.
func (s *Store) Audit(ctx context.Context, ws id.Workspace, before Place, limit int) (page []Change, err error) {
	b := &pgx.Batch{}
	b.Queue(`
		SELECT id, at, member_id, action, subject, detail FROM audit
		WHERE workspace_id = @workspace AND (@newest OR (at, id) < (@before, @id))
		ORDER BY at DESC, id DESC LIMIT @limit`,
		pg.Args{"workspace": ws, "newest": before == Place{}, "before": before.At, "id": before.ID, "limit": limit}).Query(pg.Collect(&page))
	return page, wrap(s.db.ReadInWorkspace(ctx, ws, b), "read the audit")
}
