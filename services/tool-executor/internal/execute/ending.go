package execute

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// ending is how a call ends: with an outcome, or in other hands.
type ending struct {
	state  toolv1.OutcomeState
	result tool.Result

	handOn bool // no outcome: somebody else goes on with the call
	lost   bool // and has it already
}

// Bounds of what a far end may put into an outcome that is no result of a tool.
const (
	maxMessage   = 4000 // runes
	maxErrorType = 64
)

func failed(errorType, format string, args ...any) ending {
	return ending{
		state:  toolv1.OutcomeState_OUTCOME_STATE_ERROR,
		result: tool.Errorf(clip(errorType, maxErrorType), "%s", clip(fmt.Sprintf(format, args...), maxMessage)),
	}
}

// maybe is the warning that goes with an end which says nothing about the effect.
func (j *job) maybe() string {
	if j.harmless() {
		return "try again, or do without it"
	}
	return "it is not known whether it took effect: check before you try again"
}

// unsure makes an end one whose effect nobody knows, if there can be one.
func (j *job) unsure(e ending) ending {
	if !j.harmless() {
		e.state = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
	}
	return e
}

// doubted is an error that says nothing about what an earlier try did.
func (j *job) doubted(e ending) ending {
	if j.harmless() {
		return e
	}
	return j.unsure(failed(e.result.ErrorType(), "%s; the call had been tried before: %s", tool.OutputText(e.result.JSON()), j.maybe()))
}

func (j *job) unknown() ending {
	return j.unsure(failed("unknown_outcome", "%s was interrupted; %s", j.entry.Spec.Name, j.maybe()))
}

// timedOut is the end of a call whose time is over. One that nobody can have run
// certainly did nothing.
func (j *job) timedOut() ending {
	if j.begun.Load() || j.repeated() {
		return j.unsure(failed("timeout", "%s did not end in time; %s", j.entry.Spec.Name, j.maybe()))
	}
	return failed("timeout", "%s was not begun in time and did nothing; try again, or do without it", j.entry.Spec.Name)
}

// cancelled is the end of a call that nobody wants any more. What may have happened
// has not been undone.
func (j *job) cancelled() ending {
	if !j.begun.Load() && !j.repeated() {
		e := failed("cancelled", "%s was cancelled before it began and did nothing", j.entry.Spec.Name)
		e.state = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return e
	}
	e := failed("cancelled", "%s was cancelled; %s", j.entry.Spec.Name, j.maybe())
	e.state = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
	return j.unsure(e)
}

func (j *job) notAvailable(a tool.Availability) ending {
	reason := a.Reason
	if reason == "" {
		reason = "it is not available now"
	}
	if a.ConnectURL != "" {
		reason += " (a person connects it at " + a.ConnectURL + ")"
	}
	return failed("unavailable", "%s cannot be used: %s", j.entry.Spec.Name, reason)
}

// fromFault makes an error that a caller may be told about the end; otherwise is
// the error's type where the fault has no code.
func (j *job) fromFault(err error, otherwise string) ending {
	f := fault.From(err)
	if f.Kind == fault.Internal {
		return failed("internal", "%s failed inside; do without it", j.msg.GetToolName())
	}
	if f.Code != "" {
		otherwise = strings.ToLower(f.Code)
	}
	return failed(otherwise, "%s", f.Message)
}

// judge makes the end of what running a tool brought. A result counts whatever
// became of the context meanwhile: what happened, happened.
func (e *Executor) judge(ctx context.Context, j *job, a answer) ending {
	if a.err == nil {
		return j.judgeResult(a)
	}
	if p, ok := errors.AsType[*panics.Error](a.err); ok {
		e.cfg.Log.ErrorContext(ctx, "tool panicked", "tool", j.entry.Spec.Name, "key", j.Key, "error", p)
		return j.unsure(failed("internal", "%s failed inside; %s", j.entry.Spec.Name, j.maybe()))
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errLost), errors.Is(a.err, errLost):
		return ending{handOn: true, lost: true}
	case errors.Is(cause, errCancelled):
		return j.cancelled()
	case errors.Is(a.err, errUnverified) && (cause == nil || errors.Is(cause, errTimeout)):
		e.cfg.Log.WarnContext(ctx, "call not verified", "tool", j.entry.Spec.Name, "key", j.Key, "error", a.err)
		return j.unknown()
	case errors.Is(cause, errTimeout):
		return j.timedOut()
	case cause != nil && j.effect != toolv1.Effect_EFFECT_UNSAFE:
		return ending{handOn: true} // the process ends
	case cause != nil:
		return j.unknown()
	}
	return e.judgeError(ctx, j, a)
}

// judgeError is for errors of a tool that had all the time it wanted.
func (e *Executor) judgeError(ctx context.Context, j *job, a answer) ending {
	f := fault.From(a.err)
	switch f.Kind {
	case fault.Internal:
		e.cfg.Log.ErrorContext(ctx, "tool failed", "tool", j.entry.Spec.Name, "key", j.Key, "error", a.err)
		return j.unsure(failed("internal", "%s failed inside; %s", j.entry.Spec.Name, j.maybe()))
	case fault.Unavailable, fault.Deadline, fault.Cancelled, fault.Limited:
		e.cfg.Log.WarnContext(ctx, "tool's far end did not serve it", "tool", j.entry.Spec.Name, "key", j.Key, "error", a.err)
		return j.unsure(failed(f.Kind.String(), "%s; %s", f.Message, j.maybe()))
	}
	return a.weigh(j, j.fromFault(a.err, f.Kind.String()))
}

func (j *job) judgeResult(a answer) ending {
	if size, limit := len(a.result.JSON()), j.entry.Spec.OutputCap; size > limit {
		did := ""
		if j.effect != toolv1.Effect_EFFECT_PURE && !a.result.IsError() {
			did = "it took effect, but "
		}
		less := j.entry.Spec.Less
		if less == "" {
			less = "ask for less"
		}
		return failed("output_too_large", "%sthe result of %s has %d bytes, over the limit of %d: %s", did, j.entry.Spec.Name, size, limit, less)
	}
	if a.result.IsError() {
		return a.weigh(j, ending{state: toolv1.OutcomeState_OUTCOME_STATE_ERROR, result: a.result})
	}
	return ending{state: toolv1.OutcomeState_OUTCOME_STATE_OK, result: a.result}
}

// weigh looks at an error that a tool gave to a call which had been tried before:
// a far end that takes keys may mean the second time only. Those that are asked
// first (same_tx, verify) have said that there was no first one.
func (a answer) weigh(j *job, e ending) ending {
	if a.tried && j.effect == toolv1.Effect_EFFECT_KEYED {
		return j.doubted(e)
	}
	return e
}
