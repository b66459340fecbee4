package conversation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/audit"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Approval is a question to a person about a tool call, and the answer.
type Approval struct {
	Key            id.Operation
	Session        id.Session `db:"session_id"`
	SessionTitle   string
	Run            id.Run `db:"run_id"`
	StepIndex      int
	ToolCallID     string
	ToolName       string
	Args           json.RawMessage
	Question       run.Question
	Why            string `db:"asked_why"`
	AskedAt        time.Time
	ExpiresAt      *time.Time
	AskedFor       id.Member
	Decision       run.Decision
	DecisionReason string `db:"decided_why"`
	DecidedBy      *id.Member
	DecidedAt      *time.Time
	Planned        bool // nobody has answered, and the run has not ended
	Late           bool // the question has expired
	Stopping       bool // a person has stopped the run
}

const selectApprovals = `
	SELECT c.key, c.session_id, s.title AS session_title, c.run_id, c.step_index, c.tool_call_id, c.tool_name, c.args, c.question, c.asked_why,
		c.asked_at, c.expires_at, r.created_by AS asked_for, c.decision, c.decided_why, c.decided_by, c.decided_at,
		c.phase = 'planned' AND r.state IN ('running', 'waiting') AS planned, coalesce(c.expires_at < clock_timestamp(), false) AS late,
		EXISTS (SELECT FROM run_inbox i WHERE i.run_id = r.id AND i.kind = 'stop' AND i.read_at IS NULL) AS stopping
	FROM tool_calls c JOIN runs r ON r.id = c.run_id JOIN sessions s ON s.id = c.session_id
	WHERE c.workspace_id = @workspace AND c.question IN ('approval', 'outcome') `

// Answer is a person's answer to the question about a tool call.
type Answer struct {
	Session    id.Session
	ToolCallID string
	Run        *id.Run    // of the call; nil for any of the session's
	AskedAt    *time.Time // of the question; nil for the one that waits
	Decision   run.Decision
	Reason     string
	Remember   Remember
}

// Remember says which later calls of the tool an answer is for too.
type Remember uint8

// The scopes of answers.
const (
	ThisCall      Remember = iota
	SameArguments          // calls with the same arguments in this session
	ThisSession            // all calls in this session
	ThisWorkspace          // all calls in the workspace; for owners
)

// maxReason bounds the reason of an answer, in bytes.
const maxReason = 4000

// Decide stores an answer. The same answer again changes nothing. Another answer, and one
// that comes too late, is a Conflict.
func (s *Store) Decide(ctx context.Context, a identity.Actor, d Answer) (*Approval, error) {
	if err := checkText("reason", d.Reason, maxReason, false); err != nil {
		return nil, err
	}
	var out *Approval
	var late error
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) (err error) {
		late = nil
		if err := lock(ctx, tx, a.Workspace, d.Session); err != nil {
			return err
		}
		if out, err = approval(ctx, tx, a.Workspace, &d); err != nil {
			return err
		}
		if d.AskedAt != nil && !d.AskedAt.Equal(out.AskedAt) {
			return fault.Coded(fault.Conflict, "APPROVAL_CHANGED", "another question was asked about this call at %s: read the approvals again", out.AskedAt.Format(time.RFC3339Nano))
		}
		v := run.Verdict{
			Workspace: a.Workspace, Session: out.Session, Run: out.Run, Key: out.Key, Question: out.Question, Decision: d.Decision, Reason: strings.TrimSpace(d.Reason), By: &a.Member,
		}
		if out.Planned && out.Late { // before the sweeper has seen it
			v.Decision, v.Reason, v.By = run.Expired, "", nil
			late = errExpired
		} else if decided, err := out.check(d.Decision); decided || err != nil {
			return err
		}
		var rule *audit.Row
		if late == nil {
			if rule, err = d.remember(ctx, tx, a, out); err != nil {
				return err
			}
		}
		if _, err := run.Decide(ctx, tx, v); err != nil {
			return err
		}
		if rule != nil {
			if err := audit.Add(ctx, tx, *rule); err != nil {
				return err
			}
		}
		out, err = approval(ctx, tx, a.Workspace, &d)
		return err
	})
	s.out.Poke()
	if err = firstOf(err, late); err != nil {
		return nil, fmt.Errorf("answer for tool call %s: %w", d.ToolCallID, err)
	}
	return out, nil
}

// remember stores the rule that an answer asks for, if any, and returns its row for the audit.
func (d *Answer) remember(ctx context.Context, tx pgx.Tx, a identity.Actor, p *Approval) (*audit.Row, error) {
	r := Rule{ToolName: p.ToolName, Effect: run.Allow}
	switch {
	case d.Remember == ThisCall:
		return nil, nil //nolint:nilnil // there is no rule
	case d.Decision == run.Refused:
		r.Effect = run.Deny
	case d.Decision != run.Approved:
		return nil, fault.New(fault.Invalid, "remember: an answer about an unknown outcome is for this call only")
	}
	if d.Remember != ThisWorkspace {
		r.SessionID = &d.Session
	}
	if d.Remember == SameArguments {
		r.Args = &p.Args
	}
	_, record, err := insertRule(ctx, tx, a, r)
	return &record, err
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

var errExpired = fault.Coded(fault.Conflict, "APPROVAL_EXPIRED", "nobody answered in time, so this call counts as refused: ask the agent again")

// check reports whether the call is already decided this way, or why it cannot be.
func (p *Approval) check(d run.Decision) (decided bool, err error) {
	switch {
	case p.Decision == d:
		return true, nil
	case p.Decision == run.Expired:
		return false, errExpired
	case p.Decision != "":
		return false, fault.Coded(fault.Conflict, "APPROVAL_DECIDED", "this call is %s already: an answer cannot be changed", p.Decision)
	case !p.Planned:
		return false, fault.Coded(fault.Conflict, "RUN_ENDED", "the run of this call has ended without an answer: ask the agent again")
	case p.Stopping:
		return false, fault.Coded(fault.Conflict, "RUN_STOPPING", "the run of this call is being stopped")
	case p.Question == run.AskOutcome && d != run.Happened && d != run.Repeat:
		return false, fault.New(fault.Invalid, "outcome: this call ran and its outcome is unknown: answer happened or repeat")
	case p.Question == run.AskApproval && d != run.Approved && d != run.Refused:
		return false, fault.New(fault.Invalid, "approved: this call waits for an approval: answer true or false, without an outcome")
	}
	return false, nil
}

// approval returns the question that an answer is about: the one asked at d.AskedAt, else the one
// that waits, or else the newest. The model's ids may repeat.
func approval(ctx context.Context, tx pgx.Tx, ws id.Workspace, d *Answer) (*Approval, error) {
	rows, err := tx.Query(ctx, selectApprovals+`
		AND c.run_id IN (SELECT id FROM runs WHERE session_id = @session) AND c.tool_call_id = @call AND c.decision <> 'rule'
			AND (@run::uuid IS NULL OR c.run_id = @run)
		ORDER BY coalesce(c.asked_at = @asked, false) DESC, c.phase = 'planned' AND r.state IN ('running', 'waiting') DESC,
			r.ordinal DESC, c.step_index DESC, c.call_index LIMIT 1`,
		pg.Args{"workspace": ws, "session": d.Session, "call": d.ToolCallID, "run": d.Run, "asked": d.AskedAt})
	if err != nil {
		return nil, err
	}
	p, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Approval])
	if pg.NoRows(err) {
		return nil, fault.New(fault.NotFound, "this session has no tool call with this id that needs an answer")
	}
	return &p, err
}

// ApprovalQuery says which approvals to list.
type ApprovalQuery struct {
	Session id.Session // zero: all of the workspace
	Token   string     // from the previous page
	Limit   int        // 0: 20
}

// Approvals returns a page of the calls that wait for a person, oldest first, and the token of
// the next page, which is empty on the last one.
func (s *Store) Approvals(ctx context.Context, a identity.Actor, q ApprovalQuery) (page []Approval, next string, err error) {
	if q.Limit == 0 {
		q.Limit = 20
	}
	if q.Limit < 1 || q.Limit > 100 {
		return nil, "", fault.New(fault.Invalid, "limit must be 1 to 100")
	}
	args := pg.Args{"workspace": a.Workspace, "limit": q.Limit + 1, "session": nil, "after": nil, "key": nil}
	if !id.IsZero(q.Session) {
		args["session"] = q.Session
	}
	if q.Token != "" {
		if args["after"], args["key"], err = parseToken(q.Token); err != nil {
			return nil, "", err
		}
	}
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectApprovals+`
			AND c.phase = 'planned' AND r.state IN ('running', 'waiting') AND (@session::uuid IS NULL OR c.session_id = @session)
			AND (@after::timestamptz IS NULL OR (c.asked_at, c.key) > (@after, @key::uuid))
			ORDER BY c.asked_at, c.key LIMIT @limit`, args)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, pgx.RowToStructByName[Approval])
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list approvals: %w", err)
	}
	if len(page) > q.Limit {
		page = page[:q.Limit]
		last := page[q.Limit-1]
		next = tokenOf(last.AskedAt, last.Key)
	}
	return page, next, nil
}

func tokenOf(at time.Time, key fmt.Stringer) string {
	return at.UTC().Format(time.RFC3339Nano) + "_" + key.String()
}

func parseToken(token string) (after time.Time, key string, err error) {
	at, key, _ := strings.Cut(token, "_")
	after, err = time.Parse(time.RFC3339Nano, at)
	if _, keyErr := id.Parse[id.Operation](key); err != nil || keyErr != nil {
		return after, key, fault.New(fault.Invalid, "cursor is not one that this API has returned")
	}
	return after, key, nil
}
