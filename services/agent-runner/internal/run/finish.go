package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// ErrMoreToDo means that the run cannot end yet, because a steering message arrived during
// the last step.
var ErrMoreToDo = errors.New("a steering message waits")

// End describes the end of a run.
type End struct {
	State        State
	Text         string
	FinishReason string
	FinishDetail string // for people; empty if the reason says it all
	ErrorMessage string
	ErrorCode    string
	ErrorRetryAt *time.Time // when what failed may succeed; nil if unknown
	// Answer is the answer of the last step if it is not committed yet.
	Answer *Answer
	// Time is as in Answer, and does not include that of the Answer.
	Time time.Duration
	// UnlessSteered makes Finish return ErrMoreToDo if a steering message is unread, because
	// the model has yet to answer it. Otherwise unread messages join the conversation
	// unanswered.
	UnlessSteered bool
	// Events announce the end, in order; the last one is done or error. They are numbered by
	// the caller and published through the outbox.
	Events []*runv1.Event
	// Subject is the session's run log.
	Subject string
}

// Finish commits the end of a run in one transaction: the last answer, the state, the
// terminal events, and the wake-up of the session's next queued run or else of another
// waiting run of the workspace. If it returns ErrMoreToDo, it has committed nothing.
func (s *Store) Finish(ctx context.Context, c *Claim, e End) error {
	err := s.commitQueued(ctx, c, func(ctx context.Context, b *pgx.Batch, w *waiting) error {
		if len(w.unread) > 0 && e.UnlessSteered {
			return ErrMoreToDo
		}
		if e.Answer != nil {
			queueAnswer(b, c, e.Answer, "complete")
			queueCalls(b, c, e.Answer)
		}
		for _, m := range w.unread {
			queueJoin(b, c, m)
		}
		queueTime(b, c, e.Time)
		queueEnd(b, c, e)
		out := EventMessages(c.Run.Workspace, e.Subject, e.Events)
		switch {
		case len(w.next) > 0:
			out = append(out, Wake(c.Run.Workspace, c.Run.Session, w.next[0]))
		case len(w.other) > 0:
			out = append(out, wakeAfter(w.other[0], c.Run.ID))
		}
		return outbox.Queue(ctx, b, out...)
	})
	if err != nil {
		return fmt.Errorf("finish run %s: %w", c.Run.ID, err)
	}
	s.out.Poke()
	return nil
}

func queueEnd(b *pgx.Batch, c *Claim, e End) {
	var used Usage
	steps := 0
	if e.Answer != nil {
		if used = e.Answer.Usage; !e.Answer.Interrupted {
			steps = e.Answer.Step + 1
		}
	}
	queueProgress(b, c, used, steps, e.Events[len(e.Events)-1].GetNumber())
	args := c.key()
	args["state"], args["text"], args["reason"] = e.State, e.Text, e.FinishReason
	args["detail"], args["message"], args["code"], args["retry"] = e.FinishDetail, e.ErrorMessage, e.ErrorCode, e.ErrorRetryAt
	b.Queue(`
		UPDATE runs SET state = @state, text = @text, finish_reason = @reason, finish_detail = @detail, error_message = @message, error_code = @code,
			error_retry_at = @retry, lease_until = NULL, ended_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @run`, args)
	b.Queue(`
		UPDATE run_inbox SET read_at = clock_timestamp()
		WHERE workspace_id = @workspace AND run_id = @run AND read_at IS NULL`, args)
	b.Queue(`
		UPDATE sessions SET updated_at = clock_timestamp() WHERE workspace_id = @workspace AND id = @session`, args)
}

// EventMessages returns outbox messages for events of the run log.
func EventMessages(ws id.Workspace, subj string, events []*runv1.Event) []outbox.Message {
	out := make([]outbox.Message, len(events))
	for i, ev := range events {
		out[i] = outbox.Message{Workspace: ws, Subject: subj, ID: EventID(ev), Body: ev}
	}
	return out
}

// EventID returns an event's message id in the log.
func EventID(ev *runv1.Event) string {
	return fmt.Sprintf("%s:%d:%d", ev.GetRunId(), ev.GetEpoch(), ev.GetNumber())
}

// LogSubject returns the stream and the subject of a session's run log.
func LogSubject(partitions int, ws id.Workspace, session id.Session) (stream, subj string) {
	p := subject.Partition(session, partitions)
	return subject.EventStream(p), subject.Events(p, ws, session)
}
