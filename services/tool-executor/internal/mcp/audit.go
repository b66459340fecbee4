package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/visible"
)

// Actions in the audit.
const (
	ServerAdded   = "server-added"
	ServerRemoved = "server-removed"
	ToolsApproved = "tools-approved"
	SignedInTo    = "signed-in"
)

// Change is a row of the audit: who changed an MCP server. It can be neither changed nor deleted.
type Change struct {
	ID         uuid.UUID
	At         time.Time
	Member     id.Member `db:"member_id"`
	Action     string
	Server     uuid.UUID `db:"server_id"`
	ServerName string    `db:"server_name"`
	// Detail is the host of a server that was added, or the names of the tools that were
	// approved.
	Detail string
}

const (
	maxChanges = 100 // of a page
	maxDetail  = 500 // runes
)

// record writes the audit, in the transaction of what it describes, and is the last that this does:
// it locks the workspace's chain. The member is the context's.
func record(ctx context.Context, tx pgx.Tx, n Server, action, detail string) error {
	by, _ := identity.From(ctx)
	_, err := tx.Exec(ctx, `
		INSERT INTO mcp_audit (id, workspace_id, member_id, action, server_id, server_name, detail)
		VALUES (@id, @workspace, @member, @action, @server, @name, @detail)`, pg.Args{
		"id": uuid.Must(uuid.NewV7()), "workspace": n.Workspace, "member": by.Member, "action": action,
		"server": n.ID, "name": n.Name, "detail": clip(visible.Text(detail), maxDetail),
	})
	if err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	return nil
}

// ChangesQuery selects a page of the audit.
type ChangesQuery struct {
	Token  string // of the page; empty: the first one
	Limit  int    // 1 to 100
	Search hashchain.Search
}

// Audit returns a page of a workspace's audit, newest first, and the token of the next page, which
// is empty on the last one. A search reads the workspace's rows until the page is full.
func (s *Servers) Audit(ctx context.Context, ws id.Workspace, q ChangesQuery) (page []Change, next string, err error) {
	limit := q.Limit
	if limit < 1 || limit > maxChanges {
		return nil, "", fault.New(fault.Invalid, "limit must be 1 to %d", maxChanges)
	}
	args := pg.Args{"workspace": ws, "limit": limit + 1, "before": nil, "id": nil}
	if q.Token != "" {
		at, row, _ := strings.Cut(q.Token, "_")
		before, timeErr := time.Parse(time.RFC3339Nano, at)
		last, idErr := uuid.Parse(row)
		if timeErr != nil || idErr != nil {
			return nil, "", fault.New(fault.Invalid, "cursor is not one that this API has returned")
		}
		args["before"], args["id"] = before, last
	}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT id, at, member_id, action, server_id, server_name, detail FROM mcp_audit
		WHERE workspace_id = @workspace AND session_id IS NULL AND (@before::timestamptz IS NULL OR (at, id) < (@before, @id::uuid))
			AND `+q.Search.Where(args, "action, server_name, detail")+`
		ORDER BY at DESC, id DESC LIMIT @limit`, args).Query(pg.Collect(&page))
	if err := s.cfg.DB.ReadInWorkspace(ctx, ws, b); err != nil {
		return nil, "", fmt.Errorf("read the audit: %w", err)
	}
	if len(page) > limit {
		page = page[:limit]
		last := page[limit-1]
		next = last.At.UTC().Format(time.RFC3339Nano) + "_" + last.ID.String()
	}
	return page, next, nil
}
