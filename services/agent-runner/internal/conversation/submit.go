package conversation

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Mode is what a message does while a run of its session is active.
type Mode uint8

// The modes.
const (
	Queue  Mode = iota // wait behind it
	Steer              // join its conversation before the next step
	Reject             // be refused
)

// NewMessage is a user message that wants an answer.
type NewMessage struct {
	Session id.Session
	// Content is the API's form: a JSON string or an array of parts.
	Content          json.RawMessage
	Model, Provider  string
	Tools            []string // nil: the session's
	CollectToolStats bool
	IdempotencyKey   string
	Mode             Mode
	Timezone         string
}

// Submitted is what became of a message.
type Submitted struct {
	Run     run.Run
	Message id.Message
	// Created is false when the idempotency key had been used already.
	Created bool
	// Steered is true when the message joins a run that was there: it needs a nudge.
	Steered bool
}

// Submit stores a message and the run that answers it, or puts the message into
// the inbox of the active run (Steer).
func (s *Store) Submit(ctx context.Context, a identity.Actor, n NewMessage) (*Submitted, error) {
	content, err := modelmsg.Input(n.Content, s.cfg.Content)
	if err != nil {
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
	n.Content = content
	var out *Submitted
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		out, err = s.submit(ctx, tx, a, n)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("submit message: %w", err)
	}
	s.out.Poke()
	return out, nil
}

func (s *Store) submit(ctx context.Context, tx pgx.Tx, a identity.Actor, n NewMessage) (*Submitted, error) {
	// The lock makes the session's runs stand in line: ordinals, the queue and the
	// idempotency key are decided under it.
	session, err := lockSession(ctx, tx, a.Workspace, n.Session)
	if err != nil {
		return nil, err
	}
	if n.IdempotencyKey != "" {
		found, err := byIdempotencyKey(ctx, tx, a.Workspace, n)
		if found != nil || err != nil {
			return found, err
		}
	}
	if err := s.refuseFull(ctx, tx, a.Workspace, n); err != nil {
		return nil, err
	}
	open, err := openRuns(ctx, tx, a.Workspace, n.Session)
	if err != nil {
		return nil, err
	}
	switch {
	case len(open) > 0 && n.Mode == Reject:
		return nil, fault.Coded(fault.Conflict, "RUN_ACTIVE", "a run of this session is active: wait for its end, cancel it, or send the message with mode queue or steer")
	case len(open) > 0 && n.Mode == Steer && open[0].State == run.Running:
		return steer(ctx, tx, a, n, open[0])
	case len(open) > s.cfg.MaxQueued:
		return nil, fault.Coded(fault.Conflict, "QUEUE_FULL", "%d messages of this session wait already: wait for an answer, or cancel", len(open)-1)
	}
	return s.enqueue(ctx, tx, a, n, session, len(open) == 0)
}

// refuseFull keeps a session within what can be read in one answer and sent to a
// model in one request.
func (s *Store) refuseFull(ctx context.Context, tx pgx.Tx, ws id.Workspace, n NewMessage) error {
	var size int
	err := tx.QueryRow(ctx, `
		SELECT coalesce(sum(octet_length(content::text)), 0) FROM messages
		WHERE workspace_id = $1 AND session_id = $2`, ws, n.Session).Scan(&size)
	if err != nil {
		return fmt.Errorf("measure the session: %w", err)
	}
	if size+len(n.Content) > s.cfg.MaxBytes {
		return fault.Coded(fault.TooLarge, "SESSION_FULL", "this session holds %d MiB already, and %d MiB is the most: start a new one", size>>20, s.cfg.MaxBytes>>20)
	}
	return nil
}

type lockedSession struct {
	Model, Provider, TitleSource string
	NextOrdinal                  int64
}

func lockSession(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) (lockedSession, error) {
	rows, err := tx.Query(ctx, `
		SELECT model, provider, title_source, next_ordinal FROM sessions
		WHERE workspace_id = $1 AND id = $2 FOR UPDATE`, ws, session)
	if err != nil {
		return lockedSession{}, err
	}
	l, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[lockedSession])
	if pg.NoRows(err) {
		return l, notFound()
	}
	return l, err
}

// byIdempotencyKey finds what the key did before: its run, or the run that its
// message steered. A key that came with other content is a mistake of the caller.
func byIdempotencyKey(ctx context.Context, tx pgx.Tx, ws id.Workspace, n NewMessage) (*Submitted, error) {
	var (
		message  id.Message
		answered id.Run
		same     bool
	)
	err := tx.QueryRow(ctx, `
		SELECT id, run_id, content::text = @content FROM messages
		WHERE workspace_id = @workspace AND session_id = @session AND idempotency_key = @key`,
		pgx.NamedArgs{"workspace": ws, "session": n.Session, "key": n.IdempotencyKey, "content": string(n.Content)}).Scan(&message, &answered, &same)
	if pg.NoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !same {
		return nil, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key was used with another message: use a new key for a new message")
	}
	rows, err := tx.Query(ctx, `SELECT `+run.Columns+` FROM runs WHERE workspace_id = $1 AND id = $2`, ws, answered)
	if err != nil {
		return nil, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[run.Run])
	if err != nil {
		return nil, err
	}
	return &Submitted{Run: r, Message: message}, nil
}

// openRuns returns the session's runs that have not ended, in order.
func openRuns(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) ([]run.Run, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+run.Columns+` FROM runs
		WHERE workspace_id = $1 AND session_id = $2 AND state IN ('queued', 'running', 'waiting')
		ORDER BY state = 'queued', ordinal`, ws, session)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[run.Run])
}

func steer(ctx context.Context, tx pgx.Tx, a identity.Actor, n NewMessage, active run.Run) (*Submitted, error) {
	message := id.New[id.Message]()
	if err := insertMessage(ctx, tx, a, n, message, active.ID); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO run_inbox (workspace_id, run_id, kind, message_id, created_by)
		VALUES (@workspace, @run, 'steer', @message, @member)`,
		pgx.NamedArgs{"workspace": a.Workspace, "run": active.ID, "message": message, "member": a.Member})
	if err != nil {
		return nil, err
	}
	return &Submitted{Run: active, Message: message, Created: true, Steered: true}, nil
}

func (s *Store) enqueue(ctx context.Context, tx pgx.Tx, a identity.Actor, n NewMessage, session lockedSession, first bool) (*Submitted, error) {
	message, newRun := id.New[id.Message](), id.New[id.Run]()
	if err := insertMessage(ctx, tx, a, n, message, newRun); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		INSERT INTO runs (id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, tools,
			timezone, collect_tool_stats, created_at)
		VALUES (@run, @workspace, @session, @ordinal, 'queued', @message, @member, @role, @provider, @model, @tools,
			@timezone, @stats, clock_timestamp())
		RETURNING `+run.Columns, pgx.NamedArgs{
		"run": newRun, "workspace": a.Workspace, "session": n.Session, "ordinal": session.NextOrdinal, "message": message,
		"member": a.Member, "role": a.Role.String(), "provider": orElse(n.Provider, session.Provider), "model": orElse(n.Model, session.Model),
		"tools": n.Tools, "timezone": n.Timezone, "stats": n.CollectToolStats,
	})
	if err != nil {
		return nil, err
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[run.Run])
	if err != nil {
		return nil, err
	}
	title := ""
	if session.TitleSource == "" {
		title = modelmsg.Title(n.Content)
	}
	_, err = tx.Exec(ctx, `
		UPDATE sessions SET next_ordinal = next_ordinal + 1, updated_at = clock_timestamp(),
			title = CASE WHEN @title = '' THEN title ELSE @title END,
			title_source = CASE WHEN @title = '' THEN title_source ELSE 'message' END
		WHERE workspace_id = @workspace AND id = @session`,
		pgx.NamedArgs{"workspace": a.Workspace, "session": n.Session, "title": title})
	if err != nil {
		return nil, err
	}
	if first {
		if err := run.Wake(ctx, tx, a.Workspace, n.Session, newRun); err != nil {
			return nil, err
		}
	}
	return &Submitted{Run: r, Message: message, Created: true}, nil
}

// insertMessage stores a user message that has not joined the conversation yet.
func insertMessage(ctx context.Context, tx pgx.Tx, a identity.Actor, n NewMessage, message id.Message, answered id.Run) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO messages (id, workspace_id, session_id, run_id, role, content, idempotency_key, created_at)
		VALUES (@id, @workspace, @session, @run, 'user', @content, @key, clock_timestamp())`,
		pgx.NamedArgs{
			"id": message, "workspace": a.Workspace, "session": n.Session, "run": answered, "content": string(n.Content),
			"key": orNil(n.IdempotencyKey),
		})
	if err != nil {
		return fmt.Errorf("store message: %w", err)
	}
	return nil
}
