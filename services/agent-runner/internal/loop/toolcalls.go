package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"signalbox.dev/pkg/id"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
)

// afterDeadline is how long the run waits for an outcome after the call's deadline: the
// executor needs a moment to record the timeout.
const afterDeadline = 5 * time.Second

// runTools runs the calls of an answered step, emits each result when it arrives, and completes
// the step. emitted has the results that are already in the run log. again is true if another
// claim may have dispatched the calls; an executor that has run a call then answers with the
// recorded outcome.
func (a *answering) runTools(ctx, stoppable context.Context, s *run.OpenStep, emitted map[string]*runv1.ToolResult, again bool) (ended bool, err error) {
	step, calls := s.Index, s.Calls
	outcomes := make(map[id.Operation]*run.Outcome, len(calls))
	open := map[string]*run.Call{}
	var latest time.Time
	for i := range calls {
		c := &calls[i]
		if c.Outcome != nil {
			if err := a.emitResult(ctx, step, c, c.Outcome, emitted, outcomes); err != nil {
				return false, err
			}
			continue
		}
		open[c.Key.String()] = c
		if c.Deadline.After(latest) {
			latest = c.Deadline
		}
	}
	if again {
		// The deadlines may have passed while the run had no runner. Outcomes that were
		// recorded in the meantime need time to be found.
		if least := time.Now().Add(a.cfg.ToolTime); latest.Before(least) {
			latest = least
		}
	}
	waiting, cancel := context.WithDeadlineCause(stoppable, latest.Add(afterDeadline), errToolTime)
	defer cancel()
	err = a.await(waiting, s, open, again, func(o *toolv1.Outcome) error {
		return a.emitResult(ctx, step, open[o.GetKey()], outcomeOf(o), emitted, outcomes)
	})
	if err != nil && (ctx.Err() != nil || waiting.Err() == nil) {
		return false, err
	}
	if errors.Is(context.Cause(stoppable), run.ErrFenced) {
		return false, run.ErrFenced
	}
	interrupted := stoppable.Err() != nil
	if interrupted {
		a.Tools.Cancel(ctx, a.claim.Run.ID)
	}
	for i := range calls {
		c := &calls[i]
		if outcomes[c.Key] != nil {
			continue
		}
		outcome := abandonedOutcome(c, context.Cause(waiting))
		if r := emitted[c.ID]; r != nil {
			outcome = outcomeFromEvent(r) // viewers have seen this result
		}
		if err := a.emitResult(ctx, step, c, outcome, emitted, outcomes); err != nil {
			return false, err
		}
	}
	return a.completeStep(ctx, stoppable, s, outcomes, interrupted)
}

var (
	errToolTime = errors.New("the tools ran out of time")
	errNoAnswer = errors.New("no executor has answered yet")
)

// Calls without an outcome are dispatched again after redispatchAfter. The wait then doubles
// each time, plus a second. If the bus did not take a call, the wait is dispatchRetry.
const (
	redispatchAfter = 3 * time.Second
	dispatchTimeout = 2 * time.Second
	dispatchRetry   = 250 * time.Millisecond
)

// await dispatches open calls and waits for their outcomes. It dispatches a call again after
// a while, because its message may have been lost with the bus or with an executor that had
// not claimed the call. An executor recognizes a call that it works on by its key, and acks.
func (a *answering) await(ctx context.Context, s *run.OpenStep, open map[string]*run.Call, again bool, got func(*toolv1.Outcome) error) error {
	missing := maps.Clone(open)
	take := func(o *toolv1.Outcome) error {
		delete(missing, o.GetKey())
		return got(o)
	}
	patience := redispatchAfter
	for round := 0; len(missing) > 0; round++ {
		keys := make([]id.Operation, 0, len(missing))
		wait := patience
		for _, c := range s.Calls {
			if missing[c.Key.String()] == nil {
				continue
			}
			keys = append(keys, c.Key)
			if err := a.dispatch(ctx, run.Dispatch(&a.claim.Run, s.Index, c, a.claim.Run.Epoch, round)); err != nil && ctx.Err() == nil {
				a.Log.WarnContext(ctx, "call not dispatched", "run", a.claim.Run.ID, "key", c.Key, "error", err)
				wait = dispatchRetry
			}
		}
		if wait == patience {
			patience = 2*patience + time.Second
		}
		limited, cancel := context.WithTimeoutCause(ctx, wait, errNoAnswer)
		err := a.waiter.Await(limited, keys, again || round > 0, take)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, errNoAnswer) {
			return err
		}
	}
	return nil
}

func (a *answering) dispatch(ctx context.Context, m outbox.Message) error {
	ctx, cancel := context.WithTimeout(ctx, dispatchTimeout)
	defer cancel()
	_, err := a.Bus.Publish(ctx, m.Subject, m.ID, m.Body)
	return err
}

// emitResult keeps an outcome and emits it, unless the run log holds the same result already.
// The log may hold another result for the call if an earlier claim stopped waiting for it.
func (a *answering) emitResult(ctx context.Context, step int, c *run.Call, o *run.Outcome, emitted map[string]*runv1.ToolResult, outcomes map[id.Operation]*run.Outcome) error {
	outcomes[c.Key] = o
	a.Metrics.toolCalls.WithLabelValues(o.State.String()).Inc()
	if r := emitted[c.ID]; r != nil && r.GetResultJson() == string(o.Result) && r.GetIsError() == o.IsError() {
		return nil
	}
	return a.log.Append(ctx, toolResult(step, c, o))
}

// completeStep commits the results in call order. If the run was interrupted, it then
// commits the end of the run.
func (a *answering) completeStep(ctx, stoppable context.Context, s *run.OpenStep, outcomes map[id.Operation]*run.Outcome, interrupted bool) (ended bool, err error) {
	results := make([]modelmsg.Result, len(s.Calls))
	for i, c := range s.Calls {
		o := outcomes[c.Key]
		results[i] = modelmsg.Result{CallID: c.ID, ToolName: c.Name, Envelope: o.Result, IsError: o.IsError()}
	}
	r := run.Results{Step: s.Index, Content: modelmsg.ToolResults(results), Outcomes: outcomes}
	if err := a.log.Flush(ctx); err != nil {
		return false, err
	}
	next := a.log.Next()
	if err := a.retryUnavailable(ctx, func() (err error) {
		a.unread, err = a.Store.CommitResults(ctx, a.claim, r, next)
		return err
	}); err != nil {
		return false, err
	}
	a.history = append(a.history, run.Message{Run: a.claim.Run.ID, Role: string(llm.Tool), Content: r.Content})
	a.paused = false
	err = a.log.Append(ctx, stepComplete(s.Index, s.InputTokens, s.OutputTokens, s.FinishReason))
	if err != nil || !interrupted {
		return false, err
	}
	end := run.End{State: run.Cancelled, FinishReason: reasonCancelled}
	if errors.Is(context.Cause(stoppable), errWallTime) {
		end.FinishReason = reasonMaxTime
	}
	return true, a.finish(ctx, end)
}

func outcomeOf(o *toolv1.Outcome) *run.Outcome {
	return &run.Outcome{
		State: o.GetState(), Result: json.RawMessage(o.GetResultJson()), ErrorType: o.GetErrorType(),
		Summary: o.GetSummary(), DurationMS: o.GetDurationMs(),
	}
}

// outcomeFromEvent rebuilds an outcome from the event that announced it.
func outcomeFromEvent(r *runv1.ToolResult) *run.Outcome {
	o := &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: json.RawMessage(r.GetResultJson())}
	if r.GetIsError() {
		o.State, o.ErrorType = toolv1.OutcomeState_OUTCOME_STATE_ERROR, "interrupted"
	}
	return o
}

// abandonedOutcome returns the outcome of a call that the run no longer waits for.
func abandonedOutcome(c *run.Call, cause error) *run.Outcome {
	switch {
	case errors.Is(cause, errStopped) && c.Effect == toolv1.Effect_EFFECT_PURE:
		o := refused("cancelled", "a person stopped the run before this call had ended")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return o
	case errors.Is(cause, errStopped):
		o := refused("cancelled", "a person stopped the run before this call had ended and its effect is unknown: check whether it happened before you try again")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
		return o
	case c.Effect == toolv1.Effect_EFFECT_PURE:
		return refused("timeout", "the tool did not answer in time: try again, or continue without it")
	default:
		o := refused("unknown", "the tool did not answer in time and its effect is unknown: check whether it happened before you try again")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
		return o
	}
}

// refused returns an error outcome that does not come from an executor.
func refused(errorType, format string, args ...any) *run.Outcome {
	b, err := json.Marshal(map[string]string{"error": fmt.Sprintf(format, args...)})
	if err != nil {
		b = []byte(`{"error":"the tool failed"}`) // a string always marshals
	}
	return &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_ERROR, Result: b, ErrorType: errorType}
}
