package conversation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/run"
)

// ClientResult is what a client sends about a call of its tool.
type ClientResult struct {
	Session    id.Session
	ToolCallID string
	Run        *id.Run // of the call; nil for any of the session's
	Step       *int32  // of the call; nil for any
	// Output is JSON. Error, if it is not empty, is sent instead: what went wrong.
	Output json.RawMessage
	Error  string
}

// clientCall is a call of a tool that a client runs.
type clientCall struct {
	ToolCall

	RunID    id.Run
	Decision run.Decision
	Planned  bool // no result was sent, and the run has not ended
	Late     bool // a missing result has become an error
	Stopping bool // a person has stopped the run
}

// SendResult stores the result of a call that waits for a client, and resumes its run. The same
// result again changes nothing. Another one, and one that comes too late, is a Conflict.
func (s *Store) SendResult(ctx context.Context, a identity.Actor, in ClientResult) (r id.Run, call *ToolCall, err error) {
	envelope, isError, err := clienttool.Result(in.Output, in.Error)
	if err != nil {
		return r, nil, err
	}
	outcome := &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: envelope}
	if isError {
		outcome.State, outcome.ErrorType = toolv1.OutcomeState_OUTCOME_STATE_ERROR, "client"
	}
	var found *clientCall
	var late error
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) (err error) {
		late = nil
		if err := lock(ctx, tx, a.Workspace, in.Session); err != nil {
			return err
		}
		if found, err = findClientCall(ctx, tx, a.Workspace, &in); err != nil {
			return err
		}
		v := run.Verdict{
			Workspace: a.Workspace, Session: in.Session, Run: found.RunID, Key: found.Key, Question: run.AskClient,
			Decision: run.Answered, By: &a.Member, Outcome: outcome,
		}
		if found.Planned && found.Late { // before the sweeper has seen it
			v.Decision, v.By = run.Expired, nil
			late = errResultExpired
		} else if same, err := found.check(envelope); same || err != nil {
			return err
		}
		if _, err := run.Decide(ctx, tx, v); err != nil {
			return err
		}
		found, err = findClientCall(ctx, tx, a.Workspace, &in)
		return err
	})
	s.out.Poke()
	if err = firstOf(err, late); err != nil {
		return r, nil, fmt.Errorf("result of tool call %s: %w", in.ToolCallID, err)
	}
	return found.RunID, &found.ToolCall, nil
}

var errResultExpired = fault.Coded(fault.Conflict, "RESULT_EXPIRED", "no client has sent the result of this call in time, so it counts as an error: ask the agent again")

// check reports whether the call has this result already, or why it cannot get it.
func (c *clientCall) check(envelope json.RawMessage) (same bool, err error) {
	switch {
	case c.Decision == run.Answered && c.Result != nil && bytes.Equal(*c.Result, envelope):
		return true, nil
	case c.Decision == run.Answered:
		return false, fault.Coded(fault.Conflict, "RESULT_SENT", "this call has another result already: a result cannot be changed")
	case c.Decision == run.Expired:
		return false, errResultExpired
	case !c.Planned:
		return false, fault.Coded(fault.Conflict, "RUN_ENDED", "the run of this call has ended without its result: ask the agent again")
	case c.Stopping:
		return false, fault.Coded(fault.Conflict, "RUN_STOPPING", "the run of this call is being stopped")
	}
	return false, nil
}

// findClientCall returns a session's call of a client's tool: the one that waits, or else the
// newest. The model's ids may repeat.
func findClientCall(ctx context.Context, tx pgx.Tx, ws id.Workspace, in *ClientResult) (*clientCall, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+callColumns+`, run_id, decision, phase = 'planned' AND run_state IN ('running', 'waiting') AS planned,
			coalesce(expires_at < clock_timestamp(), false) AS late,
			EXISTS (SELECT FROM run_inbox i WHERE i.run_id = c.run_id AND i.kind = 'stop' AND i.read_at IS NULL) AS stopping
		FROM tool_calls c JOIN (
			SELECT id AS of_run, state AS run_state, ordinal FROM runs WHERE workspace_id = @workspace AND session_id = @session
		) r ON of_run = run_id
		WHERE workspace_id = @workspace AND tool_call_id = @call AND question = 'client' AND (@run::uuid IS NULL OR run_id = @run)
			AND (@step::int IS NULL OR step_index = @step)
		ORDER BY planned DESC, ordinal DESC, step_index DESC, call_index LIMIT 1`,
		pg.Args{"workspace": ws, "session": in.Session, "call": in.ToolCallID, "run": in.Run, "step": in.Step})
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[clientCall])
	if pg.NoRows(err) {
		return nil, fault.New(fault.NotFound, "this session has no tool call with this id that a client runs")
	}
	return found, err
}
