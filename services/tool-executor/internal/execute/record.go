package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
)

// Bounds of writing to the ledger.
const (
	writeTimeout  = 3 * time.Second // one write, also when the process shuts down
	writePause    = 100 * time.Millisecond
	lostRetry     = time.Second // redelivery of a call that another executor has
	handOverRetry = 20 * time.Millisecond
)

// finish records the outcome and announces it.
func (e *Executor) finish(ctx context.Context, j *job, end ending, took time.Duration) error {
	o := &toolv1.Outcome{
		Key: j.Key.String(), RunId: j.run.String(), ToolCallId: writable(j.msg.GetToolCallId()), ToolName: writable(j.msg.GetToolName()),
		State: end.state, ResultJson: end.result.JSON(), DurationMs: took.Milliseconds(),
		ErrorType: end.result.ErrorType(), Summary: j.summary(),
	}
	if err := e.record(ctx, j, o); err != nil {
		if errors.Is(err, ledger.ErrLost) {
			// An ack would take the message away from the executor that has the call now.
			return bus.RetryAfter(lostRetry, fmt.Errorf("outcome of call %s not recorded: %w", j.Key, err))
		}
		return err
	}
	e.finished(j)
	e.cfg.Announce(ctx, o)
	e.report(ctx, j, o)
	return nil
}

// record retries for Config.RecordFor: the tool has run, and without its outcome the call may
// have to end as unknown.
func (e *Executor) record(ctx context.Context, j *job, o *toolv1.Outcome) error {
	until := time.Now().Add(e.cfg.RecordFor)
	by := j.actor.Member
	if j.withoutEffect() {
		by = id.Member{}
	}
	for pause := writePause; ; pause = min(2*pause, lastPause) {
		err := e.write(ctx, func(ctx context.Context) error { return e.cfg.Ledger.Record(ctx, j.Workspace, j.attempt, o, by) })
		if err == nil || errors.Is(err, ledger.ErrLost) || time.Now().After(until) {
			return err
		}
		e.cfg.Log.WarnContext(ctx, "outcome not recorded yet", "key", j.Key, "error", err)
		if !sleep(ctx, pause) {
			return err // the process ends
		}
	}
}

// write calls f with its own timeout, because the call's context may have ended.
func (*Executor) write(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return f(ctx)
}

// release lets another executor continue the call.
func (e *Executor) release(ctx context.Context, j *job, end ending) error {
	if end.lost {
		return bus.RetryAfter(lostRetry, fmt.Errorf("call %s: %w", j.Key, errLost))
	}
	err := e.write(ctx, func(ctx context.Context) error { return e.cfg.Ledger.Release(ctx, j.Ref, j.attempt) })
	if err != nil && !errors.Is(err, ledger.ErrLost) {
		e.cfg.Log.WarnContext(ctx, "call not released: its lease must expire", "key", j.Key, "error", err)
	}
	return bus.RetryAfter(handOverRetry, fmt.Errorf("call %s is handed over: %w", j.Key, bus.ErrDraining))
}

// report logs and counts a call, without its arguments and result.
func (e *Executor) report(ctx context.Context, j *job, o *toolv1.Outcome) {
	e.cfg.Metrics.done(j, o)
	e.cfg.Log.InfoContext(ctx, "tool call",
		"tool", o.GetToolName(), "workspace", j.Workspace, "session", j.actor.Session, "run", j.run, "key", j.Key, "tool_call_id", o.GetToolCallId(),
		"duration_ms", o.GetDurationMs(), "ok", o.GetState() == toolv1.OutcomeState_OUTCOME_STATE_OK, "bytes", len(o.GetResultJson()),
		"error_type", o.GetErrorType(), "attempt", j.attempt)
}

// KeepLeases renews the leases of active calls until ctx is done, and cancels the calls whose
// claim was lost.
func (e *Executor) KeepLeases(ctx context.Context) {
	t := time.NewTicker(e.cfg.Renew)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		claimed, refs := e.claimed()
		if len(refs) == 0 {
			continue
		}
		if err := e.renew(ctx, claimed, refs); err != nil && ctx.Err() == nil {
			// Executors that reach the database may take the calls over. A tool that runs here
			// continues; the other executor does what the tool's effect allows.
			e.cfg.Log.WarnContext(ctx, "leases not renewed", "error", err)
		}
	}
}

// claimed returns the claimed active calls with their attempts.
func (e *Executor) claimed() (map[*job]int, []ledger.Ref) {
	e.mu.Lock()
	defer e.mu.Unlock()
	attempts := make(map[*job]int, len(e.active.jobs))
	refs := make([]ledger.Ref, 0, len(e.active.jobs))
	for ref, j := range e.active.jobs {
		if j.attempt > 0 {
			attempts[j] = j.attempt
			refs = append(refs, ref)
		}
	}
	return attempts, refs
}

// renew renews leases and cancels the calls whose claim was lost.
func (e *Executor) renew(ctx context.Context, attempts map[*job]int, refs []ledger.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	sent := time.Now()
	current, err := e.cfg.Ledger.Renew(ctx, refs)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for j, attempt := range attempts {
		// A call that was recorded meanwhile is missing too; its tool has ended.
		if current[j.Ref] != attempt {
			j.cancel(errLost)
		} else if j.confirmed.Before(sent) {
			j.confirmed = sent
		}
	}
	return nil
}
