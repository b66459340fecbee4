package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/audit"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// Question is what a person or a client is asked about a tool call.
type Question string

// The questions.
const (
	AskApproval Question = "approval" // may the call run?
	AskOutcome  Question = "outcome"  // its outcome is unknown: did it happen?
	AskClient   Question = "client"   // a client runs the call: what is the result?
)

// Decision is the answer to a Question.
type Decision string

// The decisions.
const (
	Approved Decision = "approved"
	Refused  Decision = "refused"
	Answered Decision = "answered" // to AskClient: a client sent the result
	Expired  Decision = "expired"  // nobody answered in time
	Happened Decision = "happened" // to AskOutcome: the call took effect
	Repeat   Decision = "repeat"   // to AskOutcome: run it again
	ByRule   Decision = "rule"     // a rule approved it, so that nobody was asked
)

// Ask is a question to a person or a client about a call, and the answer.
type Ask struct {
	Question Question
	// Why says in a sentence why a person is asked. It may be empty if a client is.
	Why string
	// Until is when a missing answer counts as a refusal, and a missing result as an error.
	Until time.Time
	// TimeLimit becomes the call's deadline once it is dispatched.
	TimeLimit time.Duration

	Decision       Decision // "" while nobody has answered
	DecisionReason string
	DecidedBy      *id.Member
	// ArgsHash is the hash of the arguments that the answer is about.
	ArgsHash []byte
}

// Announced says how much of a call its run's last event covers. It is set when a run parks
// with the call's step open.
type Announced string

// What is announced of a call.
const (
	AnnouncedNothing  Announced = ""
	AnnouncedQuestion Announced = "question"
	AnnouncedAll      Announced = "all"
)

// Waits reports whether a call waits for a person or a client.
func (c *Call) Waits() bool { return c.Ask != nil && c.Ask.Decision == "" && c.Outcome == nil }

// MayRun reports whether a call may be dispatched: nobody has to be asked about it, or it was
// approved with exactly these arguments.
func (c *Call) MayRun() bool {
	if c.Ask == nil {
		return true
	}
	switch c.Ask.Decision {
	case Approved, Repeat, ByRule:
		return bytes.Equal(c.Ask.ArgsHash, HashArgs(c.Args))
	default:
		return false
	}
}

// HashArgs returns the SHA-256 of a call's arguments without insignificant whitespace.
func HashArgs(args json.RawMessage) []byte {
	var compact bytes.Buffer
	if json.Compact(&compact, args) != nil {
		compact.Reset()
		compact.Write(args)
	}
	sum := sha256.Sum256(compact.Bytes())
	return sum[:]
}

// queueAsk writes the question about a call whose row exists. An undecided question makes the
// call planned.
func queueAsk(b *pgx.Batch, c *Claim, call *Call) {
	args := c.key()
	args["key"], args["question"], args["why"], args["until"] = call.Key, call.Ask.Question, call.Ask.Why, call.Ask.Until
	args["hash"], args["limit"], args["decision"] = HashArgs(call.Args), call.Ask.TimeLimit.Milliseconds(), call.Ask.Decision
	if call.Ask.Until.IsZero() {
		args["until"] = nil // nobody is asked
	}
	b.Queue(`
		UPDATE tool_calls SET question = @question, asked_why = @why, asked_at = clock_timestamp(), expires_at = @until,
			args_hash = @hash, time_limit_ms = @limit, decision = @decision, decided_why = '', decided_by = NULL, decided_at = NULL,
			phase = CASE @decision WHEN '' THEN 'planned' ELSE phase END,
			deadline = CASE @decision WHEN '' THEN clock_timestamp() ELSE deadline END
		WHERE workspace_id = @workspace AND key = @key`, args)
}

// Wait is a step whose calls have ended, except for those that wait for a person or a client.
type Wait struct {
	Step int
	// Outcomes are the outcomes of all calls that have ended.
	Outcomes map[id.Operation]*Outcome
	// Unknown are calls whose outcome is unknown, with the question about it.
	Unknown []Call
	// Events announce that the run waits. They are numbered by the caller and published through
	// the outbox, since the claim is over once the run is parked.
	Events []*runv1.Event
	// Subject is the session's run log.
	Subject string
	Time    time.Duration // as in Answer
}

// Wait parks a run until a person or a client has answered for one of its calls. It wakes another waiting
// run of the workspace, because this one holds no slot any more. lastEvent is the number of
// the event that announces it. If a person has answered or stopped the run in the meantime,
// Wait commits nothing and returns false.
func (s *Store) Wait(ctx context.Context, c *Claim, w Wait, lastEvent int64) (parked bool, err error) {
	var (
		held, news bool
		others     []Claimable
	)
	known := make([]string, 0, len(w.Outcomes)+len(w.Unknown))
	for key := range w.Outcomes {
		known = append(known, key.String())
	}
	for i := range w.Unknown {
		known = append(known, w.Unknown[i].Key.String())
	}
	args := c.key()
	args["step"], args["known"] = w.Step, known
	look := &pgx.Batch{}
	queueLock(look, c, &held)
	look.Queue(`
		SELECT EXISTS (
			SELECT FROM tool_calls WHERE workspace_id = @workspace AND run_id = @run AND step_index = @step
				AND phase <> 'planned' AND NOT key = ANY (@known::uuid[])
		) OR EXISTS (
			SELECT FROM run_inbox WHERE workspace_id = @workspace AND run_id = @run AND kind = 'stop' AND read_at IS NULL)`, args).
		QueryRow(func(row pgx.Row) error { return row.Scan(&news) })
	queueOther(look, c, &others)
	err = s.db.ChangeInWorkspace(ctx, c.Run.Workspace, look, func(b *pgx.Batch) error {
		parked = held && !news
		switch {
		case !held:
			return ErrFenced
		case news:
			return nil
		}
		queueWait(b, c, &w, lastEvent)
		out := EventMessages(c.Run.Workspace, w.Subject, w.Events)
		if len(others) > 0 {
			o := others[0]
			out = append(out, wake(o.Workspace, o.Session, o.Run, fmt.Sprintf("after-%s-%d", c.Run.ID, c.Run.Epoch)))
		}
		return outbox.Queue(ctx, b, out...)
	})
	if err != nil {
		return false, fmt.Errorf("park run %s until a person answers: %w", c.Run.ID, err)
	}
	if parked {
		c.Run.LastEvent = lastEvent
		s.out.Poke()
	}
	return parked, nil
}

func queueWait(b *pgx.Batch, c *Claim, w *Wait, lastEvent int64) {
	for key, o := range w.Outcomes {
		queueOutcome(b, c, key, o)
	}
	for i := range w.Unknown {
		call := &w.Unknown[i]
		queueOutcome(b, c, call.Key, call.Outcome)
		queueAsk(b, c, call)
	}
	args := c.key()
	args["step"] = w.Step
	b.Queue(`
		UPDATE tool_calls SET announced = CASE phase WHEN 'planned' THEN 'question' ELSE 'all' END
		WHERE workspace_id = @workspace AND run_id = @run AND step_index = @step`, args)
	b.Queue(`
		UPDATE steps SET waiting_since = clock_timestamp()
		WHERE workspace_id = @workspace AND run_id = @run AND step_index = @step`, args)
	queueTime(b, c, w.Time)
	queueProgress(b, c, Usage{}, 0, lastEvent)
	b.Queue(`
		UPDATE runs SET state = 'waiting', lease_until = NULL, runner = ''
		WHERE workspace_id = @workspace AND id = @run`, args)
}

// Resume makes a waiting run claimable, once its workspace has a slot for it, and puts its wake-up
// into the outbox. The time that it has waited does not count towards its time limit. Its new epoch
// fences off a runner that has lost the reply to Wait and would commit it again. A run that does not
// wait is left as it is. The caller holds the session's lock. occasion identifies the reason.
func Resume(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session, r id.Run, occasion string) error {
	tag, err := tx.Exec(ctx, `
		UPDATE runs SET state = 'running', epoch = epoch + 1, lease_until = clock_timestamp(),
			deadline = deadline + (clock_timestamp() - coalesce((
				SELECT max(waiting_since) FROM steps WHERE workspace_id = @workspace AND run_id = @run), clock_timestamp()))
		WHERE workspace_id = @workspace AND id = @run AND state = 'waiting'`,
		pg.Args{"workspace": ws, "run": r})
	if err != nil {
		return fmt.Errorf("resume run %s: %w", r, err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	return outbox.Add(ctx, tx, wake(ws, session, r, occasion))
}

// Verdict is the answer to the question about a planned call.
type Verdict struct {
	Workspace id.Workspace
	Session   id.Session
	Run       id.Run
	Key       id.Operation
	Question  Question
	Decision  Decision
	Reason    string
	By        *id.Member // nil if nobody decided
	// Outcome is the result that a client has sent, for Answered.
	Outcome *Outcome
}

// Decide stores the answer to the question about a planned call and resumes its run if that
// waits. It returns false if the call is not planned any more. The caller holds the session's
// lock, and takes no other lock afterwards (audit.Add).
func Decide(ctx context.Context, tx pgx.Tx, v Verdict) (decided bool, err error) {
	args := pg.Args{
		"workspace": v.Workspace, "key": v.Key, "decision": v.Decision, "reason": v.Reason, "by": v.By, "next": v.Key,
		"phase": "done", "state": nil, "result": nil, "errortype": nil,
	}
	switch v.Decision {
	case Approved:
		args["phase"] = "dispatched"
	case Repeat:
		// The executors answer the old key with the outcome that they have recorded.
		args["phase"], args["next"] = "dispatched", id.Derive(v.Key.UUID, "again")
	case Refused, Expired, Happened, Answered:
		if o := decidedOutcome(v); o != nil {
			args["state"], args["result"], args["errortype"] = outcomeName(o.State), string(o.Result), o.ErrorType
		}
	default:
		return false, fmt.Errorf("decide call %s: unknown decision %q", v.Key, v.Decision)
	}
	tag, err := tx.Exec(ctx, `
		UPDATE tool_calls SET key = @next, phase = @phase, decision = @decision, decided_why = @reason, decided_by = @by,
			decided_at = clock_timestamp(), deadline = clock_timestamp() + time_limit_ms * interval '1 millisecond',
			state = CASE WHEN question = 'outcome' AND @decision = 'expired' THEN state ELSE coalesce(@state, '') END,
			result = CASE WHEN question = 'outcome' AND @decision = 'expired' THEN result ELSE @result::json END,
			error_type = CASE WHEN question = 'outcome' AND @decision = 'expired' THEN error_type ELSE coalesce(@errortype, '') END,
			done_at = CASE @phase WHEN 'done' THEN clock_timestamp() END,
			duration_ms = CASE @decision WHEN 'answered' THEN extract(epoch FROM clock_timestamp() - asked_at) * 1000 ELSE duration_ms END
		WHERE workspace_id = @workspace AND key = @key AND phase = 'planned'`, args)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	record := audit.Row{Workspace: v.Workspace, Member: v.By, Action: "call-" + string(v.Decision), Session: &v.Session, Run: &v.Run, Detail: v.Reason}
	if err := tx.QueryRow(ctx, `SELECT tool_call_id, tool_name FROM tool_calls WHERE workspace_id = @workspace AND key = @next`, args).
		Scan(&record.Subject, &record.Tool); err != nil {
		return false, err
	}
	if err := Resume(ctx, tx, v.Workspace, v.Session, v.Run, "decided-"+v.Key.String()); err != nil {
		return false, err
	}
	return true, audit.Add(ctx, tx, record)
}

// decidedOutcome returns the outcome of a call that a decision ends.
func decidedOutcome(v Verdict) *Outcome {
	o := &Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_ERROR, ErrorType: string(v.Decision)}
	name, text := "error", ""
	switch {
	case v.Decision == Answered:
		return v.Outcome
	case v.Decision == Happened:
		o.State, o.ErrorType = toolv1.OutcomeState_OUTCOME_STATE_OK, ""
		name, text = "result", "a person has checked that this call took effect"
	case v.Decision == Expired && v.Question == AskClient:
		text = "no client has sent the result of this call in time, and it is unknown whether one has run it: go on without it"
	case v.Decision == Expired:
		text = "nobody approved this call in time, so it was not made: go on without it, or say what you would have done"
	default:
		text = "a person refused this call, so it was not made"
	}
	if v.Reason != "" {
		text += ": " + v.Reason
	}
	o.Result, _ = json.Marshal(map[string]string{name: text}) //nolint:errchkjson // strings always marshal
	return o
}

// ExpireApprovals refuses at most limit calls whose question has expired, or ends them if they
// wait for a client, and resumes their runs. It returns how many these were.
func (s *Store) ExpireApprovals(ctx context.Context, limit int) (int, error) {
	var expired []Verdict
	b := &pgx.Batch{}
	b.Queue(`
		SELECT workspace_id, session_id, run_id, key, question FROM tool_calls
		WHERE phase = 'planned' AND expires_at < clock_timestamp() ORDER BY expires_at LIMIT @limit`, pg.Args{"limit": limit}).
		Query(func(rows pgx.Rows) (err error) {
			expired, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (v Verdict, err error) {
				v.Decision = Expired
				return v, row.Scan(&v.Workspace, &v.Session, &v.Run, &v.Key, &v.Question)
			})
			return err
		})
	// AsSystem: the sweeper expires the questions of all workspaces.
	if err := s.db.ReadAsSystem(ctx, b); err != nil {
		return 0, fmt.Errorf("look for expired approvals: %w", err)
	}
	var failed []error // one that cannot be expired does not keep the others
	for _, v := range expired {
		err := s.db.InWorkspace(ctx, v.Workspace, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`,
				pg.Args{"workspace": v.Workspace, "session": v.Session}); err != nil {
				return err
			}
			_, err := Decide(ctx, tx, v)
			return err
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("expire the approval of call %s: %w", v.Key, err))
		}
	}
	n := len(expired) - len(failed)
	if n > 0 {
		s.out.Poke()
	}
	return n, errors.Join(failed...)
}
