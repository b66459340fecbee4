package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/bus"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
)

// Bounds of writing to the ledger.
const (
	writeTimeout = 3 * time.Second // one write; also all there is for it when the call must be let go of
	writePause   = 100 * time.Millisecond
	lostReturn   = time.Second // when the call that is somebody else's is looked at again
	handOnReturn = 20 * time.Millisecond
)

// finish records the end and tells of it.
func (e *Executor) finish(ctx context.Context, j *job, end ending, took time.Duration) error {
	o := &toolv1.Outcome{
		Key: j.Key.String(), RunId: j.run.String(), ToolCallId: writable(j.msg.GetToolCallId()), ToolName: writable(j.msg.GetToolName()),
		State: end.state, ResultJson: end.result.JSON(), DurationMs: took.Milliseconds(),
		ErrorType: end.result.ErrorType(), Summary: j.summary(),
	}
	if err := e.record(ctx, j, o); err != nil {
		if errors.Is(err, ledger.ErrLost) {
			// Not acked: that would take the message away from whoever works on it now.
			return bus.RetryAfter(lostReturn, fmt.Errorf("outcome of call %s not recorded: %w", j.Key, err))
		}
		return err
	}
	e.settled(j)
	e.cfg.Announce(ctx, o)
	e.tell(ctx, j, o)
	return nil
}

// record insists: the tool has run, and what is not written down now may have to
// be called unknown later.
func (e *Executor) record(ctx context.Context, j *job, o *toolv1.Outcome) error {
	until := time.Now().Add(e.cfg.Insist)
	for pause := writePause; ; pause = min(2*pause, lastPause) {
		err := e.write(ctx, func(ctx context.Context) error { return e.cfg.Ledger.Record(ctx, j.Workspace, j.attempt, o) })
		if err == nil || errors.Is(err, ledger.ErrLost) || time.Now().After(until) {
			return err
		}
		e.cfg.Log.WarnContext(ctx, "outcome not recorded yet", "key", j.Key, "error", err)
		if !wait(ctx, pause) {
			return err // the process ends
		}
	}
}

// write writes under a context of its own: the call's may have ended.
func (*Executor) write(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return f(ctx)
}

// release lets another executor go on with the call.
func (e *Executor) release(ctx context.Context, j *job, end ending) error {
	if end.lost {
		return bus.RetryAfter(lostReturn, fmt.Errorf("call %s: %w", j.Key, errLost))
	}
	err := e.write(ctx, func(ctx context.Context) error { return e.cfg.Ledger.Release(ctx, j.Ref, j.attempt) })
	if err != nil && !errors.Is(err, ledger.ErrLost) {
		e.cfg.Log.WarnContext(ctx, "call not released: its lease must run out", "key", j.Key, "error", err)
	}
	return bus.RetryAfter(handOnReturn, fmt.Errorf("call %s is handed on: %w", j.Key, bus.ErrDraining))
}

// tell logs and counts a call, once. Arguments and results stay out of it.
func (e *Executor) tell(ctx context.Context, j *job, o *toolv1.Outcome) {
	e.cfg.Metrics.done(j, o)
	e.cfg.Log.InfoContext(ctx, "tool call",
		"tool", o.GetToolName(), "workspace", j.Workspace, "session", j.actor.Session, "run", j.run, "key", j.Key, "tool_call_id", o.GetToolCallId(),
		"duration_ms", o.GetDurationMs(), "ok", o.GetState() == toolv1.OutcomeState_OUTCOME_STATE_OK, "bytes", len(o.GetResultJson()),
		"error_type", o.GetErrorType(), "attempt", j.attempt)
}

// KeepLeases renews the leases of the calls in hand until ctx is done, and lets
// go of those that were lost.
func (e *Executor) KeepLeases(ctx context.Context) {
	t := time.NewTicker(e.cfg.Renew)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		held, refs := e.held()
		if len(refs) == 0 {
			continue
		}
		if err := e.renew(ctx, held, refs); err != nil && ctx.Err() == nil {
			// Others may take the calls over now, if they can reach the database. A tool
			// that runs goes on: what its effect allows is decided there.
			e.cfg.Log.WarnContext(ctx, "leases not renewed", "error", err)
		}
	}
}

// held returns the claimed calls in hand with their attempts.
func (e *Executor) held() (map[*job]int, []ledger.Ref) {
	e.mu.Lock()
	defer e.mu.Unlock()
	held := make(map[*job]int, len(e.hands.jobs))
	refs := make([]ledger.Ref, 0, len(e.hands.jobs))
	for ref, j := range e.hands.jobs {
		if j.attempt > 0 {
			held[j] = j.attempt
			refs = append(refs, ref)
		}
	}
	return held, refs
}

// renew renews leases and ends the calls whose claim is not ours any more.
func (e *Executor) renew(ctx context.Context, held map[*job]int, refs []ledger.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	asked := time.Now()
	current, err := e.cfg.Ledger.Renew(ctx, refs)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for j, attempt := range held {
		// A call that is recorded meanwhile is not among them either; its tool has ended.
		if current[j.Ref] != attempt {
			j.cancel(errLost)
		} else if j.confirmed.Before(asked) {
			j.confirmed = asked
		}
	}
	return nil
}
