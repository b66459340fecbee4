package run

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// ErrMoreToDo means that a run cannot end well yet: a steering message arrived
// while the last step was under way.
var ErrMoreToDo = errors.New("a steering message waits")

// End is how a run ends.
type End struct {
	State        State
	Text         string
	FinishReason string
	ErrorMessage string
	ErrorCode    string
	// Answer is the last step's, when it is not committed yet.
	Answer *Answer
	// Results are the last step's, when they are not committed yet.
	Results *Results
	// UnlessSteered gives ErrMoreToDo when a steering message is unread: the model
	// has yet to answer it. Otherwise such messages join the conversation unanswered.
	UnlessSteered bool
	// Events announce the end, in order; the last one is done or error. They are
	// numbered already, and published through the outbox.
	Events []*runv1.Event
	// Subject is the session's run log.
	Subject string
}

// Finish commits the end of a run: in one transaction the last answer or results,
// the state, the terminal events and the wake-up of the next queued run. With
// ErrMoreToDo it has committed nothing.
func (s *Store) Finish(ctx context.Context, c *Claim, e End) error {
	err := s.db.InWorkspace(ctx, c.Run.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if err := lockSession(ctx, tx, c.Run.Workspace, c.Run.Session); err != nil {
			return err
		}
		if err := fence(ctx, tx, c); err != nil {
			return err
		}
		unread, err := unreadSteering(ctx, tx, c)
		if err != nil {
			return err
		}
		if len(unread) > 0 && e.UnlessSteered {
			return ErrMoreToDo
		}
		if e.Answer != nil {
			if err := writeAnswer(ctx, tx, c, *e.Answer, "complete"); err != nil {
				return err
			}
			if err := planCalls(ctx, tx, c, *e.Answer); err != nil {
				return err
			}
		}
		if e.Results != nil {
			if err := writeResults(ctx, tx, c, *e.Results); err != nil {
				return err
			}
		}
		for _, m := range unread {
			if err := join(ctx, tx, c.Run.Workspace, c.Run.Session, m); err != nil {
				return err
			}
		}
		if err := writeEnd(ctx, tx, c, e); err != nil {
			return err
		}
		return WakeNext(ctx, tx, c.Run.Workspace, c.Run.Session)
	})
	if err != nil {
		return fmt.Errorf("finish run %s: %w", c.Run.ID, err)
	}
	s.out.Poke()
	return nil
}

func lockSession(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) error {
	if _, err := tx.Exec(ctx, `SELECT FROM sessions WHERE workspace_id = $1 AND id = $2 FOR UPDATE`, ws, session); err != nil {
		return fmt.Errorf("lock session: %w", err)
	}
	return nil
}

func unreadSteering(ctx context.Context, tx pgx.Tx, c *Claim) ([]id.Message, error) {
	rows, err := tx.Query(ctx, `
		SELECT message_id FROM run_inbox
		WHERE workspace_id = @workspace AND run_id = @run AND kind = 'steer' AND read_at IS NULL
		ORDER BY id`, c.key())
	if err != nil {
		return nil, fmt.Errorf("look for steering messages: %w", err)
	}
	unread, err := pgx.CollectRows(rows, pgx.RowTo[id.Message])
	if err != nil {
		return nil, fmt.Errorf("look for steering messages: %w", err)
	}
	return unread, nil
}

func writeEnd(ctx context.Context, tx pgx.Tx, c *Claim, e End) error {
	last := e.Events[len(e.Events)-1]
	args := c.key()
	args["state"], args["text"], args["reason"] = e.State, e.Text, e.FinishReason
	args["message"], args["code"], args["event"] = e.ErrorMessage, e.ErrorCode, last.GetNumber()
	batch := &pgx.Batch{}
	if e.Answer != nil && !e.Answer.Interrupted {
		queueComplete(batch, c, e.Answer.Step)
	}
	batch.Queue(`
		UPDATE runs SET state = @state, text = @text, finish_reason = @reason, error_message = @message, error_code = @code,
			last_event = @event, lease_until = NULL, ended_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch`, args)
	batch.Queue(`
		UPDATE run_inbox SET read_at = clock_timestamp()
		WHERE workspace_id = @workspace AND run_id = @run AND read_at IS NULL`, args)
	batch.Queue(`
		UPDATE sessions SET updated_at = clock_timestamp() WHERE workspace_id = @workspace AND id = @session`, args)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write the end: %w", err)
	}
	return outbox.Add(ctx, tx, EventMessages(c.Run.Workspace, e.Subject, e.Events)...)
}

// EventMessages are events of the run log on their way through the outbox.
func EventMessages(ws id.Workspace, subj string, events []*runv1.Event) []outbox.Message {
	out := make([]outbox.Message, len(events))
	for i, ev := range events {
		out[i] = outbox.Message{Workspace: ws, Subject: subj, ID: EventID(ev), Body: ev}
	}
	return out
}

// EventID is an event's message id in the log.
func EventID(ev *runv1.Event) string {
	return fmt.Sprintf("%s:%d:%d", ev.GetRunId(), ev.GetEpoch(), ev.GetNumber())
}

// LogSubject returns the stream and the subject of a session's run log.
func LogSubject(partitions int, ws id.Workspace, session id.Session) (stream, subj string) {
	p := subject.Partition(session, partitions)
	return subject.EventStream(p), subject.Events(p, ws, session)
}
