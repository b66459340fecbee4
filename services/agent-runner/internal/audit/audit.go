// Package audit records who decided what in a workspace: answers to approvals, and changes to
// approval rules and budgets. A row is part of the transaction that it describes, and can neither
// be changed nor deleted by the service; the rows of a workspace are a hash chain (pkg/hashchain). It
// never has the arguments of tool calls.
package audit

import (
	"cmp"
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
)

// Actions other than the answers to approvals, which are "call-" and a run.Decision.
const (
	RuleSet       = "rule-set"
	RuleDeleted   = "rule-deleted"
	BudgetSet     = "budget-set"
	BudgetDeleted = "budget-deleted"
)

// Row is a row of the audit.
type Row struct {
	ID        uuid.UUID
	Workspace id.Workspace `db:"workspace_id"`
	At        time.Time
	Member    *id.Member `db:"member_id"` // nil if nobody answered in time
	Action    string
	Subject   string      // the tool call's id, the rule or the budget
	Tool      string      `db:"tool_name"`
	Session   *id.Session `db:"session_id"`
	Run       *id.Run     `db:"run_id"`
	Detail    string
}

// Add adds a row in a transaction; ID and At are set. Writers of a workspace's rows wait for each
// other until their transactions end, so that it is the last that a transaction locks.
func Add(ctx context.Context, tx pgx.Tx, r Row) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO audit (id, workspace_id, member_id, action, subject, tool_name, session_id, run_id, detail)
		VALUES (@id, @workspace, @member, @action, @subject, @tool, @session, @run, @detail)`, pg.Args{
		"id": uuid.Must(uuid.NewV7()), "workspace": r.Workspace, "member": r.Member, "action": r.Action, "subject": r.Subject,
		"tool": r.Tool, "session": r.Session, "run": r.Run, "detail": r.Detail,
	})
	if err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	return nil
}

// Table returns the audit in the service's database.
func Table(db *pg.DB) hashchain.Table {
	return hashchain.Table{DB: db, Name: "audit", Fields: []string{
		"member_id", "action", "subject", "tool_name", "session_id", "run_id", "detail",
	}}
}

// Store reads the audit. It is safe for concurrent use.
type Store struct{ db *pg.DB }

// NewStore returns a store.
func NewStore(db *pg.DB) *Store { return &Store{db} }

// Query selects a page of the audit.
type Query struct {
	Token  string // of the page; empty: the first one
	Limit  int    // 1 to 100; 0 means 20
	Search hashchain.Search
}

// List returns a page of a workspace's audit, newest first, and the token of the next page, which
// is empty on the last one. A search reads the workspace's rows until the page is full.
func (s *Store) List(ctx context.Context, a identity.Actor, q Query) (page []Row, next string, err error) {
	limit := cmp.Or(q.Limit, 20)
	if limit < 1 || limit > 100 {
		return nil, "", fault.New(fault.Invalid, "limit must be 1 to 100")
	}
	args := pg.Args{"workspace": a.Workspace, "limit": limit + 1, "before": nil, "id": nil}
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
		SELECT id, workspace_id, at, member_id, action, subject, tool_name, session_id, run_id, detail FROM audit
		WHERE workspace_id = @workspace AND (@before::timestamptz IS NULL OR (at, id) < (@before, @id::uuid))
			AND `+q.Search.Where(args, "action, tool_name, subject, detail")+`
		ORDER BY at DESC, id DESC LIMIT @limit`, args).Query(pg.Collect(&page))
	if err := s.db.ReadInWorkspace(ctx, a.Workspace, b); err != nil {
		return nil, "", fmt.Errorf("read the audit: %w", err)
	}
	if len(page) > limit {
		page = page[:limit]
		last := page[limit-1]
		next = last.At.UTC().Format(time.RFC3339Nano) + "_" + last.ID.String()
	}
	return page, next, nil
}
