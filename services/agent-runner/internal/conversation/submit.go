package conversation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/structured"
)

// Mode says what happens to a message that comes while a run of its session is active.
type Mode uint8

// The modes.
const (
	Queue  Mode = iota // the message waits until the run has ended
	Steer              // the message joins the run's conversation before its next step
	Reject             // the message is refused
)

// NewMessage is a user message to be answered.
type NewMessage struct {
	Session id.Session
	// Content is the API's form: a JSON string or an array of parts.
	Content          json.RawMessage
	Model, Provider  string
	Tools            []string // nil: the session's
	CollectToolStats bool
	ResponseSchema   string // JSON Schema of the final answer; empty for free text
	// ClientTools are the tools that clients run; absent: the session's.
	ClientTools    *agentv1.ClientTools
	IdempotencyKey string
	Mode           Mode
	Timezone       string
	// Edit makes the message a sibling of another one. Regenerate, instead of Content, answers an
	// earlier message again: the one that it names or, if that is not the user's, the user's newest
	// before it. Either switches the branch, whatever Mode says, and is without PreClaim.
	Edit, Regenerate *branch.Ref
	// Last is the ordinal of the session's newest run as the sender knows it. The message is refused
	// if there is a newer one. Nil: any.
	Last *int64
	// PreClaim, if it is not nil, claims the new run in the transaction that creates it,
	// provided that no other run of the session comes first.
	PreClaim *run.PreClaim

	clientTools []clienttool.Tool // checked
}

// Submitted is the result of Submit.
type Submitted struct {
	Run     run.Run
	Message id.Message
	// Created is false if the idempotency key had been used before.
	Created bool
	// Steered is true if the message joins an active run, whose runner the caller nudges.
	Steered bool
	// First is true if the run can start at once, so that the caller wakes a runner.
	First bool
}

// Submit stores a message and the run that answers it, or puts the message into the inbox
// of the active run (Steer). The caller wakes a runner if the result is First, unless
// PreClaim has claimed the run. The sweeper finds a run whose wake-up was lost.
func (s *Store) Submit(ctx context.Context, a identity.Actor, n NewMessage) (*Submitted, error) {
	var err error
	if n.Regenerate != nil {
		n.Content = nil
	} else if n.Content, err = modelmsg.Input(n.Content, s.cfg.Content); err != nil {
		return nil, err
	}
	if err := checkFields(nil, &n.Model, &n.Provider, nil, n.Tools); err != nil {
		return nil, err
	}
	if err := checkKey(n.IdempotencyKey); err != nil {
		return nil, err
	}
	if err := checkText("timezone", n.Timezone, 64, true); err != nil {
		return nil, err
	}
	if n.ResponseSchema != "" {
		if _, err := structured.Compile(structured.ResponseFormat, []byte(n.ResponseSchema)); err != nil {
			return nil, err
		}
	}
	if err := s.checkTools(ctx, n.Tools); err != nil {
		return nil, err
	}
	if n.clientTools, err = s.clientTools(ctx, n.ClientTools); err != nil {
		return nil, err
	}
	if n.Provider != "" || n.Model != "" {
		if n.Provider, n.Model, err = s.choose(ctx, a, n.Session, orNil(n.Provider), orNil(n.Model)); err != nil {
			return nil, err
		}
	}
	var (
		out   *Submitted
		found submitState
	)
	err = s.db.ChangeInWorkspace(ctx, a.Workspace, queueSubmitState(a.Workspace, n, &found), func(b *pgx.Batch) (err error) {
		out, err = s.submit(ctx, b, a, n, &found)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("submit message: %w", err)
	}
	if n.branches() {
		s.out.Poke() // the run waits for the event about the switch
	}
	return out, nil
}

// submit decides how to treat a message and queues the statements for it. Its result is
// complete once they have run.
func (s *Store) submit(ctx context.Context, b *pgx.Batch, a identity.Actor, n NewMessage, found *submitState) (*Submitted, error) {
	if len(found.session) == 0 {
		return nil, notFound()
	}
	if found.same != nil {
		return found.same.submitted(n, found.target)
	}
	if n.Edit != nil && n.Edit.Current && len(found.target) > 0 && found.target[0].Same {
		return sameAgain(b, a, n, found.target[0].ID), nil
	}
	if n.Last != nil && found.session[0].NextOrdinal != *n.Last+1 {
		return nil, fault.Coded(fault.Conflict, "NOT_THE_LAST", "the session has gone on since: read it and send the message again, or fork the session")
	}
	if n.branches() && len(found.open) > 0 {
		return nil, runActive()
	}
	if found.size+int64(len(n.Content)) > int64(s.cfg.MaxBytes) {
		// A session is read in one response and sent to a model in one request.
		return nil, fault.Coded(fault.TooLarge, "SESSION_FULL", "this session holds %d MiB already, and %d MiB is the most: start a new one", found.size>>20, s.cfg.MaxBytes>>20)
	}
	open := found.open
	switch {
	case len(open) > 0 && n.Mode == Reject:
		return nil, fault.Coded(fault.Conflict, "RUN_ACTIVE", "a run of this session is active: wait for its end, cancel it, or send the message with mode queue or steer")
	case len(open) > 0 && n.Mode == Steer && open[0].State != run.Queued:
		return steer(b, a, n, open[0]), nil
	case len(open) > s.cfg.MaxQueued:
		return nil, &fault.Error{
			Kind: fault.Limited, Code: "QUEUE_FULL", RetryAfter: retryWaiting,
			Message: fmt.Sprintf("%d messages of this session are waiting already: wait for an answer, or cancel some", len(open)-1),
		}
	case s.cfg.MaxWaiting > 0 && found.waiting >= s.cfg.MaxWaiting && (len(open) > 0 || !n.PreClaim.Ready()):
		return nil, &fault.Error{
			Kind: fault.Limited, Code: "TOO_MANY_WAITING", RetryAfter: retryWaiting,
			Message: fmt.Sprintf("%d messages of this workspace are waiting for an answer already: try again when some are answered, or cancel some", found.waiting),
		}
	}
	if n.branches() {
		if err := s.branch(ctx, b, a, &n, found); err != nil {
			return nil, err
		}
	}
	return enqueue(b, a, n, found, len(open) == 0), nil
}

// submitState is what Submit reads, under the session's lock, before it decides.
type submitState struct {
	session []lockedSession // empty if there is no such session
	same    *duplicate      // the earlier message with the same idempotency key
	size    int64           // bytes of the session's messages, of all branches
	read    int64           // bytes that a runner reads of the current branch
	target  []branch.Target // what NewMessage.EditOf or Regenerate names; empty if there is none
	open    []run.Run       // the session's runs that have not ended, in order
	waiting int             // number of queued runs of the workspace
}

// retryWaiting is the Retry-After of TOO_MANY_WAITING.
const retryWaiting = 5 * time.Second

type lockedSession struct {
	Model, Provider           string
	NextOrdinal, NextPosition int64
	run.Settings
}

// duplicate is the earlier message with the same idempotency key.
type duplicate struct {
	message id.Message
	same    bool      // its content is the same
	run     []run.Run // the run that answers it or that it steered
}

func (r *duplicate) submitted(n NewMessage, target []branch.Target) (*Submitted, error) {
	if n.Regenerate != nil {
		r.same = len(target) > 0 && target[0].Asked != nil && *target[0].Asked == r.message
	}
	if !r.same {
		return nil, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key was used with another message: use a new key for a new message")
	}
	if len(r.run) == 0 {
		return nil, fmt.Errorf("the message of idempotency key %q has no run", n.IdempotencyKey)
	}
	return &Submitted{Run: r.run[0], Message: r.message}, nil
}

// queueSubmitState locks the session and reads its state. The lock serializes submissions
// to the session: ordinals, the queue's limit and idempotency keys are decided under it.
func queueSubmitState(ws id.Workspace, n NewMessage, found *submitState) *pgx.Batch {
	args := pg.Args{"workspace": ws, "session": n.Session, "key": n.IdempotencyKey, "content": string(n.Content)}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT model, provider, title_source, next_ordinal, next_position, system_prompt, preset, tools, max_steps, client_tools, compact, no_summary_at, `+preset.Own+` AS own_preset, `+run.NewestSummary+` AS summary,
			`+branch.Elsewhere+` AS elsewhere
		FROM sessions s
		WHERE workspace_id = @workspace AND id = @session FOR UPDATE`, args).Query(pg.Collect(&found.session))
	if n.IdempotencyKey != "" {
		queueDuplicate(b, args, n.Regenerate != nil, &found.same)
	}
	if n.branches() {
		ref := *cmp.Or(n.Edit, n.Regenerate)
		ref.Content = string(n.Content)
		branch.QueueTarget(b, ws, n.Session, ref, &found.target)
	}
	b.Queue(`
		SELECT coalesce(sum(octet_length(content::text)), 0),
			coalesce(sum(octet_length(content::text) + coalesce(octet_length(raw), 0)) FILTER (WHERE `+branch.OnCurrent+`), 0)
		FROM messages WHERE workspace_id = @workspace AND session_id = @session`, args).
		QueryRow(func(row pgx.Row) error { return row.Scan(&found.size, &found.read) })
	b.Queue(selectOpen, args).Query(pg.Collect(&found.open))
	b.Queue(`SELECT count(*) FROM runs WHERE workspace_id = @workspace AND state = 'queued'`, args).
		QueryRow(func(row pgx.Row) error { return row.Scan(&found.waiting) })
	n.PreClaim.QueueReads(b)
	return b
}

// selectOpen selects the session's runs that have not ended, in order.
const selectOpen = `
	SELECT ` + run.Columns + ` FROM runs
	WHERE workspace_id = @workspace AND session_id = @session AND state IN ('queued', 'running', 'waiting')
	ORDER BY state = 'queued', ordinal`

// openRuns returns the session's runs that have not ended, in order.
func openRuns(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) ([]run.Run, error) {
	rows, err := tx.Query(ctx, selectOpen, pg.Args{"workspace": ws, "session": session})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[run.Run])
}

// queueDuplicate reads the message with an idempotency key and its run, or the run that answers
// one again.
func queueDuplicate(b *pgx.Batch, args pg.Args, again bool, into **duplicate) {
	var found duplicate
	message, answer := `
		SELECT id, content::text = @content FROM messages
		WHERE workspace_id = @workspace AND session_id = @session AND idempotency_key = @key`, `id = (
			SELECT run_id FROM messages WHERE workspace_id = @workspace AND session_id = @session AND idempotency_key = @key)`
	if again {
		answer = `session_id = @session AND idempotency_key = @key`
		message = `SELECT user_message_id, false FROM runs WHERE workspace_id = @workspace AND ` + answer
	}
	b.Queue(message, args).
		Query(func(rows pgx.Rows) error {
			if rows.Next() {
				*into = &found
				return rows.Scan(&found.message, &found.same)
			}
			return rows.Err()
		})
	b.Queue(`
		SELECT `+run.Columns+` FROM runs WHERE workspace_id = @workspace AND `+answer, args).
		Query(pg.Collect(&found.run))
}

// enqueue creates a run. It is queued unless NewMessage.PreClaim claims it.
func enqueue(b *pgx.Batch, a identity.Actor, n NewMessage, found *submitState, first bool) *Submitted {
	session := found.session[0]
	message, newRun := id.New[id.Message](), id.New[id.Run]()
	title := ""
	if n.Regenerate != nil {
		message = *found.target[0].Asked
	} else if session.TitleSource == "" {
		title = modelmsg.Title(n.Content)
	}
	args := pg.Args{
		"run": newRun, "workspace": a.Workspace, "session": n.Session, "ordinal": session.NextOrdinal, "message": message,
		"member": a.Member, "role": a.Role.String(), "provider": cmp.Or(n.Provider, session.Provider), "model": cmp.Or(n.Model, session.Model),
		"tools": n.Tools, "timezone": n.Timezone, "stats": n.CollectToolStats, "schema": orNil(n.ResponseSchema), "title": title,
		"clienttools": n.clientTools, "key": nil,
		"state": run.Queued, "epoch": 0, "event": -1, "runner": "", "lease": nil, "wall": nil, "joined": 0,
	}
	if n.clientTools != nil {
		session.ClientTools = n.clientTools
	}
	preClaimed := first && n.PreClaim.Ready()
	var position *int64
	if preClaimed {
		n.PreClaim.SetArgs(newRun, args)
		position, args["joined"] = &session.NextPosition, 1
	}
	out := &Submitted{Message: message, Created: true, First: first}
	asked := run.Message{ID: message, Run: newRun, Role: "user", Content: n.Content}
	if n.Regenerate != nil {
		args["key"] = orNil(n.IdempotencyKey)
	} else {
		queueMessage(b, a, n, message, newRun, position).QueryRow(func(row pgx.Row) error { return row.Scan(&asked.CreatedAt) })
	}
	b.Queue(`
		INSERT INTO runs (id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, tools,
			timezone, collect_tool_stats, response_schema, client_tools, idempotency_key, created_at, epoch, fruitless, last_event, runner, lease_until, deadline, started_at)
		VALUES (@run, @workspace, @session, @ordinal, @state, @message, @member, @role, @provider, @model, @tools,
			@timezone, @stats, @schema::json, @clienttools::json, @key, clock_timestamp(), @epoch::bigint, @epoch::bigint, @event, @runner, clock_timestamp() + @lease::interval,
			clock_timestamp() + @wall::interval, CASE WHEN @epoch::bigint > 0 THEN clock_timestamp() END)
		RETURNING `+run.Columns, args).Query(func(rows pgx.Rows) (err error) {
		if out.Run, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[run.Run]); err == nil && preClaimed {
			n.PreClaim.Created(out.Run, asked, session.Settings, found.read+int64(len(n.Content)))
			// The caller sees the run as it was before its claim.
			out.Run.State, out.Run.Epoch, out.Run.Fruitless, out.Run.LastEvent = run.Queued, 0, 0, -1
			out.Run.StartedAt, out.Run.Deadline = nil, nil
		}
		return err
	})
	b.Queue(`
		UPDATE sessions SET next_ordinal = next_ordinal + 1, next_position = next_position + @joined, updated_at = clock_timestamp(),
			title = CASE WHEN @title = '' THEN title ELSE @title END,
			title_source = CASE WHEN @title = '' THEN title_source ELSE 'message' END
		WHERE workspace_id = @workspace AND id = @session`, args)
	return out
}

func steer(b *pgx.Batch, a identity.Actor, n NewMessage, active run.Run) *Submitted {
	message := id.New[id.Message]()
	queueMessage(b, a, n, message, active.ID, nil)
	b.Queue(`
		INSERT INTO run_inbox (workspace_id, run_id, kind, message_id, created_by)
		VALUES (@workspace, @run, 'steer', @message, @member)`,
		pg.Args{"workspace": a.Workspace, "run": active.ID, "message": message, "member": a.Member})
	return &Submitted{Run: active, Message: message, Created: true, Steered: true}
}

// queueMessage stores a user message. With a position it joins the conversation at once.
// The returned statement yields the message's created_at.
func queueMessage(b *pgx.Batch, a identity.Actor, n NewMessage, message id.Message, answered id.Run, position *int64) *pgx.QueuedQuery {
	return b.Queue(`
		INSERT INTO messages (id, workspace_id, session_id, run_id, position, role, content, idempotency_key, created_at)
		VALUES (@id, @workspace, @session, @run, @position, 'user', @content, @key, clock_timestamp())
		RETURNING created_at`,
		pg.Args{
			"id": message, "workspace": a.Workspace, "session": n.Session, "run": answered, "position": position, "content": string(n.Content),
			"key": orNil(n.IdempotencyKey),
		})
}
