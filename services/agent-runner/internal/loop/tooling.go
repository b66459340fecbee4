package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// afterDeadline is how long after a call's deadline its outcome is still waited
// for: the executor needs a moment to record that it gave up.
const afterDeadline = 5 * time.Second

// useTools sees the calls of an answered step through, tells viewers of each
// result as it comes (but for those in told), and completes the step. With again,
// the calls were dispatched by another claim, and are dispatched once more: an
// executor that has run one answers with what it recorded.
func (a *answering) useTools(ctx, stoppable context.Context, s *run.OpenStep, told map[string]bool, again bool) (ended bool, err error) {
	step, calls := s.Index, s.Calls
	outcomes := make(map[id.Operation]*run.Outcome, len(calls))
	open := map[string]*run.Call{}
	var keys []id.Operation
	var latest time.Time
	for i := range calls {
		c := &calls[i]
		if c.Outcome != nil {
			if err := a.tell(ctx, step, c, c.Outcome, told, outcomes); err != nil {
				return false, err
			}
			continue
		}
		open[c.Key.String()] = c
		keys = append(keys, c.Key)
		if c.Deadline.After(latest) {
			latest = c.Deadline
		}
		if again && stoppable.Err() == nil {
			m := run.Dispatch(&a.claim.Run, step, *c, a.claim.Run.Epoch)
			if _, err := a.Bus.Publish(ctx, m.Subject, m.ID, m.Body); err != nil {
				return false, fmt.Errorf("dispatch %s again: %w", c.Name, err)
			}
		}
	}
	if again {
		// Their time may have run out while nobody had the run, and their outcomes be
		// recorded long since: whoever takes over gives them time to be found.
		if least := time.Now().Add(a.cfg.ToolTime); latest.Before(least) {
			latest = least
		}
	}
	waiting, cancel := context.WithDeadlineCause(stoppable, latest.Add(afterDeadline), errToolTime)
	defer cancel()
	err = a.waiter.Await(waiting, keys, again, func(o *toolv1.Outcome) error {
		return a.tell(ctx, step, open[o.GetKey()], outcomeOf(o), told, outcomes)
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
	for _, c := range open {
		if outcomes[c.Key] == nil {
			if err := a.tell(ctx, step, c, unfinished(c, context.Cause(waiting)), told, outcomes); err != nil {
				return false, err
			}
		}
	}
	return a.completeStep(ctx, stoppable, s, outcomes, interrupted)
}

var errToolTime = errors.New("the tools' time is over")

// tell keeps an outcome and puts it into the run log.
func (a *answering) tell(ctx context.Context, step int, c *run.Call, o *run.Outcome, told map[string]bool, outcomes map[id.Operation]*run.Outcome) error {
	outcomes[c.Key] = o
	a.Metrics.toolCalls.WithLabelValues(o.State.String()).Inc()
	if told[c.ID] {
		return nil
	}
	return a.log.Append(ctx, toolResult(step, c, o))
}

// completeStep commits the results in call order, or with them the end of a run
// that was interrupted.
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
	complete := stepComplete(s.Index, s.InputTokens, s.OutputTokens, s.FinishReason)
	if interrupted {
		end := run.End{State: run.Cancelled, FinishReason: reasonCancelled, Results: &r}
		if errors.Is(context.Cause(stoppable), errWallTime) {
			end.FinishReason = reasonMaxTime
		}
		end.Events = append(end.Events, complete)
		return true, a.finish(ctx, end)
	}
	next := a.log.Next()
	if err := a.insist(ctx, func() error { return a.Store.CommitResults(ctx, a.claim, r, next) }); err != nil {
		return false, err
	}
	a.history = append(a.history, run.Message{Run: a.claim.Run.ID, Role: string(llm.Tool), Content: r.Content})
	a.paused = false
	return false, a.log.Append(ctx, complete)
}

func outcomeOf(o *toolv1.Outcome) *run.Outcome {
	return &run.Outcome{
		State: o.GetState(), Result: json.RawMessage(o.GetResultJson()), ErrorType: o.GetErrorType(),
		Summary: o.GetSummary(), DurationMS: o.GetDurationMs(),
	}
}

// unfinished is the outcome of a call that nobody waits for any longer.
func unfinished(c *run.Call, cause error) *run.Outcome {
	switch {
	case errors.Is(cause, errStopped):
		o := refused("cancelled", "a person stopped the run before this call had ended")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return o
	case c.Effect == toolv1.Effect_EFFECT_PURE:
		return refused("timeout", "the tool did not answer in time: try again, or do without")
	default:
		o := refused("unknown", "the tool did not answer in time and its effect is unknown: look whether it happened before you try again")
		o.State = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
		return o
	}
}

// refused is an error outcome that we make ourselves.
func refused(errorType, format string, args ...any) *run.Outcome {
	b, err := json.Marshal(map[string]string{"error": fmt.Sprintf(format, args...)})
	if err != nil {
		b = []byte(`{"error":"the tool failed"}`) // a string always marshals
	}
	return &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_ERROR, Result: b, ErrorType: errorType}
}
