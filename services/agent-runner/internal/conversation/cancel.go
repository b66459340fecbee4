package conversation

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Target selects the runs that Cancel stops: the run named by Only, all runs, or by default
// the session's active run. If no run is active, the default is the next queued one.
type Target struct {
	Only id.Run
	All  bool
}

// Cancel stops runs of a session and wakes the next queued run, if there is one. It ends
// queued runs itself. For a running or waiting one it puts a stop into its inbox and returns it in
// running so that the caller can nudge its runner.
func (s *Store) Cancel(ctx context.Context, a identity.Actor, session id.Session, w Target) (cancelled, running []id.Run, err error) {
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		cancelled, running = nil, nil
		if err := lock(ctx, tx, a.Workspace, session); err != nil {
			return err
		}
		open, err := openRuns(ctx, tx, a.Workspace, session)
		if err != nil {
			return err
		}
		found := false
		for i, r := range open {
			if !id.IsZero(w.Only) && r.ID != w.Only || id.IsZero(w.Only) && !w.All && i > 0 {
				continue
			}
			found = true
			if err := s.stop(ctx, tx, a, &r); err != nil {
				return err
			}
			cancelled = append(cancelled, r.ID)
			if r.State != run.Queued {
				running = append(running, r.ID)
			}
		}
		if !found && !id.IsZero(w.Only) {
			return checkExists(ctx, tx, a.Workspace, session, w.Only)
		}
		return run.WakeNext(ctx, tx, a.Workspace, session)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("cancel: %w", err)
	}
	s.out.Poke()
	return cancelled, running, nil
}

// Withdraw removes a message that is queued and ends its run. Of the run's events there is only the
// end, so that viewers do not see the message join the conversation. It returns Conflict if the
// message is in the conversation already, or joins an active run.
func (s *Store) Withdraw(ctx context.Context, a identity.Actor, session id.Session, message id.Message) error {
	err := s.takeBack(ctx, a, session, message, func(ctx context.Context, tx pgx.Tx, _ []run.Run, _ *run.Run) error {
		if _, err := tx.Exec(ctx, `DELETE FROM messages WHERE workspace_id = @workspace AND id = @message`, pg.Args{"workspace": a.Workspace, "message": message}); err != nil {
			return fmt.Errorf("delete the message: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("withdraw message: %w", err)
	}
	return nil
}

// Move moves a message that is queued to the end of the queue (Queue), or into the inbox of the active
// run (Steer), and returns the run that answers it now. The run that would have answered it ends as in
// Withdraw, in the same transaction. It returns Conflict if the message is in the conversation already,
// joins an active run, or has none to steer. The caller nudges the runner of a run that is steered.
func (s *Store) Move(ctx context.Context, a identity.Actor, session id.Session, message id.Message, mode Mode) (*run.Run, error) {
	var now run.Run
	err := s.takeBack(ctx, a, session, message, func(ctx context.Context, tx pgx.Tx, open []run.Run, old *run.Run) (err error) {
		args := pg.Args{"workspace": a.Workspace, "session": session, "message": message, "old": old.ID, "member": old.CreatedBy}
		if mode == Steer {
			if now = open[0]; now.State == run.Queued {
				return fault.Coded(fault.Conflict, "NO_ACTIVE_RUN", "no run of this session is active: the first message that waits is the next to be answered")
			}
			if len(old.ResponseSchema) > 0 {
				return fault.New(fault.Invalid, "the message asks for an answer in a format of its own, which the active run does not have: let it wait")
			}
			args["run"] = now.ID
			_, err = tx.Exec(ctx, `
				INSERT INTO run_inbox (workspace_id, run_id, kind, message_id, created_by)
				VALUES (@workspace, @run, 'steer', @message, @member)`, args)
		} else {
			args["run"] = id.New[id.Run]()
			var rows pgx.Rows
			rows, err = tx.Query(ctx, `
				WITH place AS (
					UPDATE sessions SET next_ordinal = next_ordinal + 1
					WHERE workspace_id = @workspace AND id = @session RETURNING next_ordinal - 1 AS ordinal
				)
				INSERT INTO runs (id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, tools,
					timezone, collect_tool_stats, response_schema, client_tools, created_at, epoch, fruitless, last_event, runner)
				SELECT @run, workspace_id, session_id, place.ordinal, 'queued', user_message_id, created_by, role, provider, model, tools,
					timezone, collect_tool_stats, response_schema, client_tools, clock_timestamp(), 0, 0, -1, ''
				FROM runs, place WHERE workspace_id = @workspace AND id = @old
				RETURNING `+run.Columns, args)
			if err == nil {
				now, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[run.Run])
			}
		}
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE messages SET run_id = @run WHERE workspace_id = @workspace AND id = @message`, args)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("move message: %w", err)
	}
	return &now, nil
}

// takeBack ends the run of a message that is queued, of the session's open runs, after what else is
// done with the message in the same transaction.
func (s *Store) takeBack(ctx context.Context, a identity.Actor, session id.Session, message id.Message,
	also func(ctx context.Context, tx pgx.Tx, open []run.Run, old *run.Run) error,
) error {
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if err := lock(ctx, tx, a.Workspace, session); err != nil {
			return err
		}
		open, err := openRuns(ctx, tx, a.Workspace, session)
		if err != nil {
			return err
		}
		var waits bool
		err = tx.QueryRow(ctx, `SELECT position IS NULL FROM messages WHERE workspace_id = @workspace AND session_id = @session AND id = @message`,
			pg.Args{"workspace": a.Workspace, "session": session, "message": message}).Scan(&waits)
		switch {
		case pg.NoRows(err):
			return noMessage()
		case err != nil:
			return err
		}
		at := slices.IndexFunc(open, func(r run.Run) bool { return r.UserMessage == message && r.State == run.Queued })
		if at < 0 || !waits {
			return fault.Coded(fault.Conflict, "MESSAGE_BEGUN", "the message does not wait any more: stop its run, or edit the message when the run has ended")
		}
		if err := also(ctx, tx, open, &open[at]); err != nil {
			return err
		}
		if err := s.publishEnd(ctx, tx, &open[at]); err != nil {
			return err
		}
		return run.WakeNext(ctx, tx, a.Workspace, session)
	})
	if err == nil {
		s.out.Poke()
	}
	return err
}

// CancelMember stops all runs that a member started in the workspace.
func (s *Store) CancelMember(ctx context.Context, a identity.Actor, member id.Member) (cancelled, running []id.Run, err error) {
	type open struct {
		SessionID id.Session
		ID        id.Run
	}
	var runs []open
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT session_id, id FROM runs
			WHERE workspace_id = @workspace AND created_by = @member AND state IN ('queued', 'running', 'waiting')`,
			pg.Args{"workspace": a.Workspace, "member": member})
		if err != nil {
			return err
		}
		runs, err = pgx.CollectRows(rows, pgx.RowToStructByName[open])
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the runs of member %s: %w", member, err)
	}
	for _, r := range runs {
		c, active, err := s.Cancel(ctx, a, r.SessionID, Target{Only: r.ID})
		if err != nil && fault.KindOf(err) != fault.NotFound { // NotFound: deleted in between
			return cancelled, running, err
		}
		cancelled, running = append(cancelled, c...), append(running, active...)
	}
	return cancelled, running, nil
}

// checkExists returns NotFound if the session has no such run. To cancel a run that has
// ended is no error.
func checkExists(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session, r id.Run) error {
	var exists bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM runs WHERE workspace_id = @workspace AND session_id = @session AND id = @run)`,
		pg.Args{"workspace": ws, "session": session, "run": r}).Scan(&exists)
	if err != nil {
		return err
	}
	if !exists {
		return fault.New(fault.NotFound, "this session has no such run")
	}
	return nil
}

func (s *Store) stop(ctx context.Context, tx pgx.Tx, a identity.Actor, r *run.Run) error {
	if r.State == run.Queued {
		return s.endQueued(ctx, tx, r)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO run_inbox (workspace_id, run_id, kind, created_by)
		SELECT @workspace, @run, 'stop', @member
		WHERE NOT EXISTS (SELECT FROM run_inbox WHERE run_id = @run AND kind = 'stop' AND read_at IS NULL)`,
		pg.Args{"workspace": a.Workspace, "run": r.ID, "member": a.Member})
	if err != nil {
		return fmt.Errorf("put a stop into the inbox: %w", err)
	}
	// A runner ends a run that waits for a person.
	return run.Resume(ctx, tx, r.Workspace, r.Session, r.ID, fmt.Sprintf("stopped-%d", r.Epoch))
}

// endQueued ends a run that was never claimed. Its message joins the conversation unanswered,
// unless the run was to answer again one that has joined, and its two events are published under
// epoch 0.
func (s *Store) endQueued(ctx context.Context, tx pgx.Tx, r *run.Run) error {
	args := pg.Args{"workspace": r.Workspace, "session": r.Session, "message": r.UserMessage}
	var content string
	err := tx.QueryRow(ctx, `
		WITH waiting AS (
			SELECT id FROM messages WHERE workspace_id = @workspace AND id = @message AND position IS NULL
		), place AS (
			UPDATE sessions SET next_position = next_position + 1
			WHERE workspace_id = @workspace AND id = @session AND EXISTS (SELECT FROM waiting)
			RETURNING next_position - 1 AS position
		), joined AS (
			UPDATE messages m SET position = place.position, created_at = clock_timestamp()
			FROM place, waiting WHERE m.workspace_id = @workspace AND m.id = waiting.id
		)
		SELECT content::text FROM messages WHERE workspace_id = @workspace AND id = @message`, args).Scan(&content)
	if err != nil {
		return fmt.Errorf("join the message of a queued run: %w", err)
	}
	asked := &runv1.Event{RunId: r.ID.String(), RunOrdinal: r.Ordinal, Time: timestamppb.Now()}
	asked.Body = run.UserMessageEvent(r.UserMessage, r.CreatedBy, []byte(content), asked.GetTime().AsTime())
	return s.publishEnd(ctx, tx, r, asked)
}

// publishEnd marks a run that was never claimed as cancelled, and publishes its end after the events
// before it.
func (s *Store) publishEnd(ctx context.Context, tx pgx.Tx, r *run.Run, before ...*runv1.Event) error {
	last := int64(len(before))
	_, err := tx.Exec(ctx, `
		UPDATE runs SET state = 'cancelled', finish_reason = 'cancelled', last_event = @last, ended_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @run`, pg.Args{"workspace": r.Workspace, "run": r.ID, "last": last})
	if err != nil {
		return fmt.Errorf("end a queued run: %w", err)
	}
	end := &runv1.Event{
		RunId: r.ID.String(), RunOrdinal: r.Ordinal, Number: last, Time: timestamppb.Now(),
		Body: &runv1.Event_Done{Done: &runv1.Done{FinishReason: "cancelled", Simulated: r.Simulated()}},
	}
	_, subj := run.LogSubject(s.cfg.Partitions, r.Workspace, r.Session)
	return outbox.Add(ctx, tx, run.EventMessages(r.Workspace, subj, append(before, end))...)
}
