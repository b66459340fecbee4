package conversation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Message is a message of a session's current branch.
type Message struct {
	run.Message
	// Position is nil while it is queued.
	Position *int64
	// Parent is the message that it follows; nil for the first one, and while it is queued.
	Parent *id.Message
	// Siblings are all that follow the same message; nil if it is the only one.
	Siblings []id.Message `db:"-"`
}

// View is a consistent snapshot of a session.
type View struct {
	Session Session
	// Messages are those of the current branch, in order, and then those that are queued, in the
	// order in which they will be answered; with Page.Run, those of the run.
	Messages []Message
	// Earlier is the position of the first one, if there are earlier ones than Messages has; else 0.
	Earlier int64
	// NextSiblings are the messages of other branches that follow the last message of the current
	// branch: the next one will be their sibling. Empty with Page.Run.
	NextSiblings []id.Message
	// Summary is what the model is told in place of the first messages, or nil.
	Summary *run.Summary
	// Runs has what the messages do not say about their runs.
	Runs map[id.Run]RunOf
	// Stopped are the runs of the current branch, or of Page.Run, that ended in another way than
	// with a complete answer, in order.
	Stopped []run.Run
	// Active is the running run, or else the first queued one, or else nil.
	Active *run.Run
	// Last is the newest run that was ever claimed, or nil. Messages contains everything up
	// to its last committed event.
	Last *run.Run
	// Switched is the ordinal of the newest event about a switch of the branch, or 0.
	Switched int64
}

// RunOf is what a message's readers need of its run.
type RunOf struct {
	run.Usage

	ID        id.Run
	CreatedBy id.Member
	Simulated bool // the simulator answered
	// CostMicros is the list price in millionths of a dollar, or nil.
	CostMicros         *int64
	StartedAt, EndedAt *time.Time
	// Calls are the tool calls that have ended and whose duration is known, or about which a person
	// was asked, in order.
	Calls []CallFigures `db:"-"`
}

// CallFigures is what a tool call took, and a person's answer to the last question about it.
type CallFigures struct {
	Run            id.Run `db:"run_id"`
	StepIndex      int
	ToolCallID     string
	DurationMS     int64        // 0 if unknown
	Decision       run.Decision // empty if nobody was asked
	DecisionReason string       `db:"decided_why"`
	DecidedBy      *id.Member
	DecidedAt      *time.Time
}

// Page says which messages of a session to read.
type Page struct {
	// Limit is how many, the newest ones; 0 for all. A few more are read, so that the first one is
	// not in the middle of an answer.
	Limit int
	// Before is the position of the message before which they end; 0 for the newest ones.
	Before int64
	// Run selects the messages of one run, and the one that it answers, on whichever branch they
	// are; zero for those of the current branch. It excludes Limit and Before. NotFound if the
	// session has no such run.
	Run id.Run
}

const (
	maxPage = 1000
	// maxStretch bounds the messages that are read in addition to a page's limit. The answer with
	// the most steps has fewer.
	maxStretch = 250
)

// Read returns a session, with a page of its messages unless that is nil.
func (s *Store) Read(ctx context.Context, a identity.Actor, session id.Session, page *Page) (*View, error) {
	if page != nil && (page.Limit < 0 || page.Limit > maxPage || page.Before < 0) {
		return nil, fault.New(fault.Invalid, "limit must be 0 to %d, and before a position", maxPage)
	}
	if page != nil && !id.IsZero(page.Run) && (page.Limit > 0 || page.Before > 0) {
		return nil, fault.New(fault.Invalid, "the messages of a run have no pages: limit and before must be 0")
	}
	v := &View{}
	err := s.db.Snapshot(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		return v.read(ctx, tx, a.Workspace, session, page)
	})
	if pg.NoRows(err) {
		return nil, notFound()
	}
	if err != nil {
		return nil, fmt.Errorf("read session: %w", err)
	}
	return v, nil
}

func (v *View) read(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session, page *Page) error {
	args := pg.Args{"workspace": ws, "session": session, "simulator": run.Simulator}
	rows, err := tx.Query(ctx, `SELECT `+columns+` FROM sessions WHERE workspace_id = @workspace AND id = @session`, args)
	if err != nil {
		return err
	}
	if v.Session, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Session]); err != nil {
		return err
	}
	open, err := openRuns(ctx, tx, ws, session)
	if err != nil {
		return err
	}
	if len(open) > 0 {
		v.Active = &open[0]
	}
	rows, err = tx.Query(ctx, `
		SELECT `+run.Columns+` FROM runs
		WHERE workspace_id = @workspace AND session_id = @session AND epoch > 0
		ORDER BY ordinal DESC LIMIT 1`, args)
	if err != nil {
		return err
	}
	last, err := pgx.CollectRows(rows, pgx.RowToStructByName[run.Run])
	if err != nil {
		return err
	}
	if len(last) > 0 {
		v.Last = &last[0]
	}
	if err := tx.QueryRow(ctx, `SELECT coalesce(switched, 0) FROM sessions WHERE workspace_id = @workspace AND id = @session`, args).Scan(&v.Switched); err != nil {
		return err
	}
	if page == nil {
		return nil
	}
	args["run"] = nil
	if !id.IsZero(page.Run) {
		args["run"] = page.Run
		err = v.readMessagesOfRun(ctx, tx, args, page.Run)
	} else {
		err = v.readMessages(ctx, tx, args, *page)
	}
	if err != nil {
		return err
	}
	if err := v.addSiblings(ctx, tx, *page); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, `SELECT `+run.NewestSummary+` FROM sessions s WHERE workspace_id = @workspace AND id = @session`, args).Scan(&v.Summary); err != nil {
		return err
	}
	return v.readRuns(ctx, tx, args)
}

// readMessages reads a page of messages. It begins with the first message of a run, or with one
// that no run of ours has answered.
func (v *View) readMessages(ctx context.Context, tx pgx.Tx, args pg.Args, page Page) error {
	args["first"], args["before"], args["newest"] = int64(0), cmp.Or(page.Before, math.MaxInt64), page.Before == 0
	if page.Limit > 0 {
		args["limit"], args["stretched"] = page.Limit, page.Limit+maxStretch
		var first int64
		err := tx.QueryRow(ctx, `
			WITH newest AS (
				SELECT position, role, run_id, row_number() OVER (ORDER BY position DESC) AS n, lead(run_id) OVER (ORDER BY position DESC) AS earlier
				FROM (SELECT position, role, run_id FROM messages
					WHERE workspace_id = @workspace AND session_id = @session AND position < @before AND `+branch.OnCurrent+`
					ORDER BY position DESC LIMIT @stretched) m
			), page AS (
				SELECT coalesce(max(position) FILTER (WHERE n >= @limit AND role = 'user' AND (run_id IS NULL OR run_id IS DISTINCT FROM earlier)),
					min(position) FILTER (WHERE role <> 'tool'), 0) AS first
				FROM newest
			)
			SELECT first, CASE WHEN EXISTS (
				SELECT FROM messages WHERE workspace_id = @workspace AND session_id = @session AND position < first AND `+branch.OnCurrent+`) THEN first ELSE 0 END
			FROM page`, args).Scan(&first, &v.Earlier)
		if err != nil {
			return err
		}
		args["first"] = first
	}
	rows, err := tx.Query(ctx, `
		SELECT `+run.MessageColumns+`, position, CASE WHEN position IS NOT NULL THEN coalesce(lag(id) OVER (ORDER BY position), (
			SELECT p.id FROM messages p WHERE p.workspace_id = @workspace AND p.session_id = @session AND position < messages.position AND `+branch.OnCurrent+`
			ORDER BY position DESC LIMIT 1)) END AS parent
		FROM messages
		WHERE workspace_id = @workspace AND session_id = @session
			AND (position IS NULL AND @newest OR position >= @first AND position < @before AND `+branch.OnCurrent+`)
		ORDER BY position NULLS LAST,
			CASE WHEN position IS NULL THEN (SELECT ordinal FROM runs r WHERE r.workspace_id = @workspace AND r.id = messages.run_id) END,
			created_at, id`, args)
	if err != nil {
		return err
	}
	v.Messages, err = pgx.CollectRows(rows, pgx.RowToStructByName[Message])
	return err
}

// readMessagesOfRun reads the messages of a run, and the one that it answers.
func (v *View) readMessagesOfRun(ctx context.Context, tx pgx.Tx, args pg.Args, r id.Run) error {
	if err := checkExists(ctx, tx, v.Session.Workspace, v.Session.ID, r); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `
		SELECT `+run.MessageColumns+`, position, (
			SELECT p.id FROM messages p WHERE p.workspace_id = @workspace AND p.session_id = @session
				AND p.position = parent_of(@workspace, @session, messages.position)) AS parent
		FROM messages
		WHERE workspace_id = @workspace AND session_id = @session AND (run_id = @run OR id = (
			SELECT user_message_id FROM runs r WHERE r.workspace_id = @workspace AND r.session_id = @session AND r.id = @run))
		ORDER BY position NULLS LAST, created_at, id`, args)
	if err != nil {
		return err
	}
	v.Messages, err = pgx.CollectRows(rows, pgx.RowToStructByName[Message])
	return err
}

// readRuns reads what the view tells of the runs of its messages.
func (v *View) readRuns(ctx context.Context, tx pgx.Tx, args pg.Args) error {
	answering, named := map[id.Run]bool{}, map[id.Message]bool{}
	ids := make([]id.Run, 0, len(v.Messages))
	for i := range v.Messages {
		m := &v.Messages[i]
		named[m.ID] = true
		answering[m.Run] = answering[m.Run] || m.Role != "user"
		if i == 0 || v.Messages[i-1].Run != m.Run {
			ids = append(ids, m.Run)
		}
	}
	args["runs"] = ids
	rows, err := tx.Query(ctx, `
		SELECT id, created_by, split_part(provider, '-', 1) = @simulator AS simulated,
			input_tokens AS input, cache_read_tokens AS cache_read, cache_write_tokens AS cache_write, output_tokens AS output, reasoning_tokens AS reasoning, estimated,
			started_at, ended_at, `+costOfRun+`
		FROM runs WHERE workspace_id = @workspace AND id = ANY (@runs::uuid[])`, args)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[RunOf])
	if err != nil {
		return err
	}
	v.Runs = make(map[id.Run]RunOf, len(all))
	for _, r := range all {
		v.Runs[r.ID] = r
	}
	rows, err = tx.Query(ctx, `
		SELECT run_id, step_index, tool_call_id, duration_ms, CASE WHEN question IN ('approval', 'outcome') AND decision <> 'rule' THEN decision ELSE '' END AS decision,
			decided_why, decided_by, decided_at
		FROM tool_calls
		WHERE workspace_id = @workspace AND run_id = ANY (@runs::uuid[]) AND phase = 'done'
			AND (duration_ms > 0 OR question IN ('approval', 'outcome') AND decision NOT IN ('', 'rule'))
		ORDER BY run_id, step_index, call_index`, args)
	if err != nil {
		return err
	}
	calls, err := pgx.CollectRows(rows, pgx.RowToStructByName[CallFigures])
	if err != nil {
		return err
	}
	for _, c := range calls {
		r := v.Runs[c.Run]
		r.Calls = append(r.Calls, c)
		v.Runs[c.Run] = r
	}
	rows, err = tx.Query(ctx, `
		SELECT `+run.Columns+` FROM runs r
		WHERE workspace_id = @workspace AND session_id = @session AND (state IN ('failed', 'cancelled') OR state = 'done' AND finish_reason <> 'stop')
			AND CASE WHEN @run::uuid IS NOT NULL THEN r.id = @run ELSE
				EXISTS (SELECT FROM messages WHERE workspace_id = @workspace AND session_id = @session AND run_id = r.id AND role <> 'user' AND `+branch.OnCurrent+`)
				OR EXISTS (SELECT FROM messages WHERE workspace_id = @workspace AND session_id = @session AND id = r.user_message_id AND `+branch.OnCurrent+`)
					AND NOT EXISTS (SELECT FROM messages WHERE workspace_id = @workspace AND session_id = @session AND run_id = r.id AND role <> 'user')
					AND NOT EXISTS (SELECT FROM runs o WHERE o.workspace_id = @workspace AND o.session_id = @session
						AND o.user_message_id = r.user_message_id AND o.ordinal > r.ordinal)
					AND NOT EXISTS (SELECT FROM messages m JOIN run_inbox i ON i.run_id = m.run_id AND i.message_id = m.id
						WHERE m.workspace_id = @workspace AND m.id = r.user_message_id) END
		ORDER BY ordinal`, args)
	if err != nil {
		return err
	}
	stopped, err := pgx.CollectRows(rows, pgx.RowToStructByName[run.Run])
	v.Stopped = slices.DeleteFunc(stopped, func(r run.Run) bool { return !answering[r.ID] && !named[r.UserMessage] })
	return err
}

// Step is a row of steps.
type Step struct {
	StepIndex    int
	FinishReason string
	Usage        run.Usage
	Wasted       run.Usage
	CommittedAt  *time.Time
	// List prices in millionths of a dollar, or nil: of the step, and of its calls that broke off.
	CostMicros, WastedCostMicros *int64
}

// ToolCall is a row of tool_calls.
type ToolCall struct {
	Key        id.Operation
	StepIndex  int
	ToolCallID string
	ToolName   string
	Args       json.RawMessage
	Effect     string
	Phase      string
	State      string
	Result     *json.RawMessage
	ErrorType  string
	Summary    string
	DurationMS int64
	PlannedAt  time.Time
	DoneAt     *time.Time
	// ClientUntil is set while the call waits for the result of a client: when a missing one
	// becomes an error.
	ClientUntil *time.Time
}

const callColumns = `key, step_index, tool_call_id, tool_name, args, effect, phase, state, result, error_type, summary, duration_ms, planned_at, done_at,
	CASE WHEN phase = 'planned' AND question = 'client' THEN expires_at END AS client_until`

// RunView is a run with its committed steps and tool calls.
type RunView struct {
	Run run.Run
	// CostMicros is the list price in millionths of a dollar, or nil.
	CostMicros *int64
	Steps      []Step
	Calls      []ToolCall
	// Approvals are the questions to people about the calls.
	Approvals []Approval
	// EndWaits and Text are set for a run that has ended. EndWaits is true while its last
	// events are in the outbox. Text has the texts of all steps, separated by blank lines.
	EndWaits bool
	Text     string
}

func scanStep(row pgx.CollectableRow) (s Step, err error) {
	u, w := &s.Usage, &s.Wasted
	return s, row.Scan(&s.StepIndex, &s.FinishReason, &u.Input, &u.CacheRead, &u.CacheWrite, &u.Output, &u.Reasoning, &u.Estimated,
		&w.Input, &w.CacheRead, &w.CacheWrite, &w.Output, &w.Reasoning, &w.Estimated, &s.CommittedAt, &s.CostMicros, &s.WastedCostMicros)
}

// costOfRun is the list price of a run's model calls; NULL if one is unknown or there is none.
const costOfRun = `(SELECT CASE WHEN count(*) = count(u.cost_micros) THEN sum(u.cost_micros)::bigint END FROM usage u
	WHERE u.workspace_id = runs.workspace_id AND u.run_id = runs.id) AS cost_micros`

// Run returns a run with its steps and tool calls.
func (s *Store) Run(ctx context.Context, a identity.Actor, r id.Run) (*RunView, error) {
	v := &RunView{}
	args := pg.Args{"workspace": a.Workspace, "run": r}
	err := s.db.Snapshot(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+run.Columns+` FROM runs WHERE workspace_id = @workspace AND id = @run`, args)
		if err != nil {
			return err
		}
		if v.Run, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[run.Run]); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT `+costOfRun+` FROM runs WHERE workspace_id = @workspace AND id = @run`, args).Scan(&v.CostMicros); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `
			SELECT s.step_index, s.finish_reason, s.input_tokens, s.cache_read_tokens, s.cache_write_tokens, s.output_tokens, s.reasoning_tokens, s.estimated,
				s.wasted_input_tokens, coalesce(w.cache_read_tokens, 0), coalesce(w.cache_write_tokens, 0), s.wasted_output_tokens,
				coalesce(w.reasoning_tokens, 0), coalesce(w.estimated, false), s.committed_at, u.cost_micros, w.cost_micros
			FROM steps s
				LEFT JOIN usage u ON u.workspace_id = s.workspace_id AND u.run_id = s.run_id AND u.step_index = s.step_index AND NOT u.wasted
				LEFT JOIN usage w ON w.workspace_id = s.workspace_id AND w.run_id = s.run_id AND w.step_index = s.step_index AND w.wasted
			WHERE s.workspace_id = @workspace AND s.run_id = @run ORDER BY s.step_index`, args)
		if err != nil {
			return err
		}
		if v.Steps, err = pgx.CollectRows(rows, scanStep); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `
			SELECT `+callColumns+` FROM tool_calls
			WHERE workspace_id = @workspace AND run_id = @run ORDER BY step_index, call_index`, args)
		if err != nil {
			return err
		}
		if v.Calls, err = pgx.CollectRows(rows, pgx.RowToStructByName[ToolCall]); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, selectApprovals+`AND c.run_id = @run`, args); err != nil {
			return err
		}
		if v.Approvals, err = pgx.CollectRows(rows, pgx.RowToStructByName[Approval]); err != nil || !v.Run.State.Ended() {
			return err
		}
		_, args["subject"] = run.LogSubject(s.cfg.Partitions, a.Workspace, v.Run.Session)
		args["session"] = v.Run.Session
		rows, err = tx.Query(ctx, `
			SELECT content FROM messages
			WHERE workspace_id = @workspace AND session_id = @session AND run_id = @run AND role = 'assistant'
			ORDER BY position`, args)
		if err != nil {
			return err
		}
		contents, err := pgx.CollectRows(rows, pgx.RowTo[json.RawMessage])
		if err != nil {
			return err
		}
		v.Text = modelmsg.PlainTexts(contents)
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox WHERE workspace_id = @workspace AND subject = @subject)`, args).Scan(&v.EndWaits)
	})
	if pg.NoRows(err) {
		return nil, fault.New(fault.NotFound, "there is no such run")
	}
	if err != nil {
		return nil, fmt.Errorf("read run: %w", err)
	}
	return v, nil
}
