package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/toolbox"
)

// afterDeadline is how long the run waits for an outcome after the call's deadline: the
// executor needs a moment to record the timeout.
const afterDeadline = 5 * time.Second

// runTools runs the calls of an answered step, emits each result as it comes, and completes
// the step, or parks the run if calls wait for a person or a client. told has what the run log holds
// already. again is true if another claim may have dispatched the calls; an executor that has
// run one answers with what it recorded. ended is true if the run has ended or is parked.
func (a *answering) runTools(ctx, stoppable context.Context, s *run.OpenStep, told *told, again bool) (ended bool, err error) {
	for outcomes := (outcomes{}); ; again = true {
		if err := a.tellQuestions(ctx, s, told); err != nil {
			return false, err
		}
		unknown, interrupted, err := a.runCalls(ctx, stoppable, s, told, outcomes, again)
		if err != nil {
			return false, err
		}
		if interrupted || len(outcomes) == len(s.Calls) {
			return a.completeStep(ctx, stoppable, s, outcomes, interrupted)
		}
		if parked, err := a.wait(ctx, s, outcomes, unknown, told); parked || err != nil {
			return parked, err
		}
		if s, err = a.Store.LastStep(ctx, a.claim); err != nil {
			return false, err
		}
	}
}

// outcomes are the outcomes of a step's calls.
type outcomes map[id.Operation]*run.Outcome

// runCalls runs the calls that have no outcome and need not wait, and collects
// the outcomes. unknown are calls with an unknown outcome that a person is asked about. If the
// run is interrupted, every call has an outcome afterwards.
func (a *answering) runCalls(ctx, stoppable context.Context, s *run.OpenStep, told *told, outcomes outcomes, again bool) (unknown []run.Call, interrupted bool, err error) {
	step, calls := s.Index, s.Calls
	open := map[string]*run.Call{}
	var latest time.Time
	for i := range calls {
		c := &calls[i]
		switch {
		case outcomes[c.Key] != nil, c.Waits():
			continue
		case c.Outcome != nil:
			if err := a.emitResult(ctx, step, c, c.Outcome, told, outcomes); err != nil {
				return nil, false, err
			}
			continue
		case !c.MayRun():
			return nil, false, fmt.Errorf("call %s of run %s has other arguments than those that were approved", c.Key, a.claim.Run.ID)
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
		c, outcome := open[o.GetKey()], outcomeOf(o)
		if outcome.State == toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN && c.Ask != nil {
			unknown = append(unknown, a.askOutcome(c, outcome))
			return nil
		}
		return a.emitResult(ctx, step, c, outcome, told, outcomes)
	}, func(p *toolv1.Progress) error { return a.log.Append(ctx, toolProgress(step, open[p.GetKey()], p)) })
	cause := context.Cause(waiting)
	if cause == nil && errors.Is(err, toolbox.ErrUnreachable) {
		a.Log.WarnContext(ctx, "run goes on without tool calls: no executor can be reached", "run", a.claim.Run.ID, "step", step, "calls", len(open))
		cause = err
	}
	if err != nil && (ctx.Err() != nil || cause == nil) {
		return nil, false, err
	}
	if errors.Is(context.Cause(stoppable), run.ErrFenced) {
		return nil, false, run.ErrFenced
	}
	interrupted = stoppable.Err() != nil
	if interrupted {
		a.Tools.Cancel(ctx, a.claim.Run.ID)
	}
	return unknown, interrupted, a.abandon(ctx, s, cause, told, outcomes, unknown, interrupted)
}

// abandon gives outcomes to the calls that the run no longer waits for. If it is interrupted,
// these are all that have none, except for those that people and clients have answered in the
// meantime: they were told that their answer counts.
func (a *answering) abandon(ctx context.Context, s *run.OpenStep, cause error, told *told, outcomes outcomes, unknown []run.Call, interrupted bool) error {
	if interrupted && slices.ContainsFunc(s.Calls, func(c run.Call) bool { return c.Waits() }) {
		if err := a.takeAnswers(ctx, told, outcomes); err != nil {
			return err
		}
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		asked := slices.IndexFunc(unknown, func(u run.Call) bool { return u.Key == c.Key })
		if outcomes[c.Key] != nil || !interrupted && (asked >= 0 || c.Waits()) {
			continue
		}
		outcome := abandonedOutcome(c, cause)
		if r := told.results[c.ID]; r != nil {
			outcome = outcomeFromEvent(r) // viewers have seen this result
		} else if asked >= 0 {
			outcome = unknown[asked].Outcome
		}
		if err := a.emitResult(ctx, s.Index, c, outcome, told, outcomes); err != nil {
			return err
		}
	}
	return nil
}

// takeAnswers emits the results of calls that were answered since the run looked at them.
func (a *answering) takeAnswers(ctx context.Context, told *told, outcomes outcomes) error {
	var s *run.OpenStep
	if err := a.retryUnavailable(ctx, func() (err error) {
		s, err = a.Store.LastStep(ctx, a.claim)
		return err
	}); err != nil {
		return err
	}
	for i := range s.Calls {
		if c := &s.Calls[i]; c.Outcome != nil && outcomes[c.Key] == nil {
			if err := a.emitResult(ctx, s.Index, c, c.Outcome, told, outcomes); err != nil {
				return err
			}
		}
	}
	return nil
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
// Meanwhile heard gets the progress of the calls.
func (a *answering) await(ctx context.Context, s *run.OpenStep, open map[string]*run.Call, again bool, got func(*toolv1.Outcome) error, heard func(*toolv1.Progress) error) error {
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
		err := a.waiter.Await(limited, keys, again || round > 0, take, heard)
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

// emitResult keeps an outcome and emits it, unless viewers have the same result already. The
// log may hold another result for the call if an earlier claim stopped waiting for it.
func (a *answering) emitResult(ctx context.Context, step int, c *run.Call, o *run.Outcome, told *told, outcomes outcomes) error {
	outcomes[c.Key] = o
	if c.Announced == run.AnnouncedAll {
		return nil
	}
	a.Metrics.toolCalls.WithLabelValues(o.State.String()).Inc()
	if r := told.results[c.ID]; r != nil && r.GetResultJson() == string(o.Result) && r.GetIsError() == o.IsError() {
		return nil
	}
	return a.log.Append(ctx, toolResult(step, c, o))
}

// completeStep commits the results in call order. If the run was interrupted, it then
// commits the end of the run.
func (a *answering) completeStep(ctx, stoppable context.Context, s *run.OpenStep, outcomes outcomes, interrupted bool) (ended bool, err error) {
	results := make([]modelmsg.Result, len(s.Calls))
	for i, c := range s.Calls {
		o := outcomes[c.Key]
		t := a.tool(c.Name)
		results[i] = modelmsg.Result{
			CallID: c.ID, ToolName: c.Name, Envelope: o.Result, IsError: o.IsError(), HasImage: t.GetReturnsImage() || t.GetMayReturnImage(),
		}
	}
	r := run.Results{Step: s.Index, Content: modelmsg.ToolResults(results), Outcomes: outcomes, Time: a.worked()}
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
	err = a.log.Append(ctx, stepComplete(s.Index, s.Message, s.InputTokens, s.OutputTokens, s.FinishReason))
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
	o := &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: json.RawMessage(r.GetResultJson()), DurationMS: r.GetDurationMs()}
	if r.GetIsError() {
		o.State, o.ErrorType = toolv1.OutcomeState_OUTCOME_STATE_ERROR, "interrupted"
	}
	return o
}

// abandonedOutcome returns the outcome of a call that the run no longer waits for.
func abandonedOutcome(c *run.Call, cause error) *run.Outcome {
	switch {
	case c.Waits() && c.Ask.Question == run.AskClient:
		o := refused("cancelled", "the run was stopped before a client had sent the result of this call, and it is unknown whether one has run it")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return o
	case c.Waits():
		o := refused("cancelled", "the run was stopped before a person had approved this call, so it was not made")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return o
	case errors.Is(cause, errStopped) && c.Effect == toolv1.Effect_EFFECT_PURE:
		o := refused("cancelled", "a person stopped the run before this call had ended")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return o
	case errors.Is(cause, errStopped):
		o := refused("cancelled", "a person stopped the run before this call had ended and its effect is unknown: check whether it happened before you try again")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
		return o
	case errors.Is(cause, toolbox.ErrUnreachable) && c.Effect == toolv1.Effect_EFFECT_PURE:
		return refused("unavailable", "tools cannot be run at the moment: continue without this one, or say that it is unavailable")
	case errors.Is(cause, toolbox.ErrUnreachable):
		o := refused("unknown", "tools cannot be run at the moment, and it is unknown whether this call took effect or will: check that before you try again")
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
