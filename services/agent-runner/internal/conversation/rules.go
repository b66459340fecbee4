package conversation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/audit"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Rule is a row of approval_rules: what people have decided about later calls of a tool.
type Rule struct {
	ID        id.Operation
	SessionID *id.Session // nil: all sessions of the workspace
	ToolName  string
	Args      *json.RawMessage // nil: any arguments
	Effect    run.RuleEffect
	CreatedBy id.Member
	CreatedAt time.Time
}

const ruleColumns = `id, session_id, tool_name, args, effect, created_by, created_at`

// Limits of rules. A run reads all rules about the tools that it calls.
const (
	maxRules    = 1000
	maxRuleArgs = 64 << 10
)

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// CreateRule stores a rule, which replaces one with the same scope, tool and arguments. Rules
// for the whole workspace are for its owners.
func (s *Store) CreateRule(ctx context.Context, a identity.Actor, r Rule) (*Rule, error) {
	if err := checkText("tool", r.ToolName, 128, false); err != nil {
		return nil, err
	}
	switch {
	case r.ToolName == "":
		return nil, fault.New(fault.Invalid, "tool is required")
	case !toolName.MatchString(r.ToolName): // such as mcp__linear__*, which people would rely on
		return nil, fault.New(fault.Invalid, "tool must be the whole name of one tool, such as browser_open: a rule has no patterns")
	case r.Effect != run.Allow && r.Effect != run.Deny && r.Effect != run.AskBy:
		return nil, fault.New(fault.Invalid, "effect must be allow, deny or ask")
	case r.Args != nil && (len(*r.Args) > maxRuleArgs || !json.Valid(*r.Args) || !bytes.HasPrefix(bytes.TrimSpace(*r.Args), []byte("{"))):
		return nil, fault.New(fault.Invalid, "args must be a JSON object of at most %d KiB", maxRuleArgs>>10)
	}
	var out Rule
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) (err error) {
		if r.SessionID != nil {
			if err := lock(ctx, tx, a.Workspace, *r.SessionID); err != nil {
				return err
			}
		}
		var record audit.Row
		if out, record, err = insertRule(ctx, tx, a, r); err != nil {
			return err
		}
		return audit.Add(ctx, tx, record)
	})
	if err != nil {
		return nil, fmt.Errorf("create an approval rule: %w", err)
	}
	return &out, nil
}

// insertRule stores a rule, if the actor may. The caller adds the returned row to the audit.
func insertRule(ctx context.Context, tx pgx.Tx, a identity.Actor, r Rule) (out Rule, record audit.Row, err error) {
	if r.SessionID == nil && a.Role < identity.Owner {
		return out, record, fault.New(fault.Forbidden, "only owners make approval rules for the whole workspace: make one for the session")
	}
	var count int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM approval_rules WHERE workspace_id = @workspace`, pg.Args{"workspace": a.Workspace}).Scan(&count); err != nil {
		return out, record, err
	}
	if count >= maxRules {
		return out, record, fault.Coded(fault.Limited, "TOO_MANY_RULES", "this workspace has %d approval rules, which is the most: delete some", count)
	}
	args := pg.Args{
		"id": id.New[id.Operation](), "workspace": a.Workspace, "session": r.SessionID, "tool": r.ToolName, "args": nil, "hash": nil,
		"effect": r.Effect, "member": a.Member,
	}
	if r.Args != nil {
		args["args"], args["hash"] = string(*r.Args), run.HashArgs(*r.Args)
	}
	rows, err := tx.Query(ctx, `
		INSERT INTO approval_rules (id, workspace_id, session_id, tool_name, args, args_hash, effect, created_by)
		VALUES (@id, @workspace, @session, @tool, @args, @hash, @effect, @member)
		ON CONFLICT ON CONSTRAINT approval_rules_subject DO UPDATE SET effect = @effect, created_by = @member, created_at = clock_timestamp()
		RETURNING `+ruleColumns, args)
	if err != nil {
		return out, record, err
	}
	if out, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Rule]); err != nil {
		return out, record, err
	}
	detail := string(out.Effect)
	if out.Args != nil {
		detail += ", for certain arguments"
	}
	return out, audit.Row{
		Workspace: a.Workspace, Member: &a.Member, Action: audit.RuleSet, Subject: out.ID.String(), Tool: out.ToolName, Session: out.SessionID, Detail: detail,
	}, nil
}

// Rules returns a page of the workspace's rules, newest first, and the token of the next page,
// which is empty on the last one.
func (s *Store) Rules(ctx context.Context, a identity.Actor, token string, limit int) (page []Rule, next string, err error) {
	if limit == 0 {
		limit = 20
	}
	if limit < 1 || limit > 100 {
		return nil, "", fault.New(fault.Invalid, "limit must be 1 to 100")
	}
	args := pg.Args{"workspace": a.Workspace, "limit": limit + 1, "before": nil, "id": nil}
	if token != "" {
		if args["before"], args["id"], err = parseToken(token); err != nil {
			return nil, "", err
		}
	}
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+ruleColumns+` FROM approval_rules
			WHERE workspace_id = @workspace AND (@before::timestamptz IS NULL OR (created_at, id) < (@before, @id::uuid))
			ORDER BY created_at DESC, id DESC LIMIT @limit`, args)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, pgx.RowToStructByName[Rule])
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list approval rules: %w", err)
	}
	if len(page) > limit {
		page = page[:limit]
		next = tokenOf(page[limit-1].CreatedAt, page[limit-1].ID)
	}
	return page, next, nil
}

// DeleteRule deletes a rule. Rules for the whole workspace are for its owners.
func (s *Store) DeleteRule(ctx context.Context, a identity.Actor, rule id.Operation) error {
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"workspace": a.Workspace, "id": rule}
		record := audit.Row{Workspace: a.Workspace, Member: &a.Member, Action: audit.RuleDeleted, Subject: rule.String()}
		err := tx.QueryRow(ctx, `SELECT session_id, tool_name, effect FROM approval_rules WHERE workspace_id = @workspace AND id = @id FOR UPDATE`, args).
			Scan(&record.Session, &record.Tool, &record.Detail)
		switch {
		case pg.NoRows(err):
			return fault.New(fault.NotFound, "there is no such approval rule")
		case err != nil:
			return err
		case record.Session == nil && a.Role < identity.Owner:
			return fault.New(fault.Forbidden, "only owners delete approval rules of the whole workspace")
		}
		if _, err = tx.Exec(ctx, `DELETE FROM approval_rules WHERE workspace_id = @workspace AND id = @id`, args); err != nil {
			return err
		}
		return audit.Add(ctx, tx, record)
	})
	if err != nil {
		return fmt.Errorf("delete an approval rule: %w", err)
	}
	return nil
}
