package execute

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// ending is how a call ends here: with an outcome, or by being handed to another executor.
type ending struct {
	state  toolv1.OutcomeState
	result tool.Result

	handOver bool // no outcome: another executor continues the call
	lost     bool // and has it already
}

// Bounds of an error outcome's text, which may come from a remote side.
const (
	maxMessage   = 4000 // runes
	maxReason    = 400  // runes; the message, which has the whole reason, goes to the model with it
	maxErrorType = 64
)

func failed(errorType, format string, args ...any) ending {
	return ending{
		state:  toolv1.OutcomeState_OUTCOME_STATE_ERROR,
		result: tool.Errorf(clip(errorType, maxErrorType), "%s", clip(fmt.Sprintf(format, args...), maxMessage)),
	}
}

// because adds a cause, which may be nil.
func (e ending) because(c *tool.Cause) ending {
	if c != nil {
		short := *c
		short.Reason = clip(c.Reason, maxReason)
		e.result = e.result.WithCause(&short)
	}
	return e
}

// advice tells the model what to do after an ending that leaves the effect open.
func (j *job) advice() string {
	if j.withoutEffect() {
		return "try again, or continue without it"
	}
	return "it is not known whether it took effect: check before you try again"
}

// orUnknown returns the ending with the state unknown if the call may have taken effect.
func (j *job) orUnknown(e ending) ending {
	if !j.withoutEffect() {
		e.state = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
	}
	return e
}

// uncertain returns an error ending with the state unknown if an earlier try may have taken
// effect, about which the error says nothing.
func (j *job) uncertain(e ending) ending {
	if j.withoutEffect() {
		return e
	}
	return j.orUnknown(failed(e.result.ErrorType(), "%s; the call had been tried before: %s", tool.OutputText(e.result.JSON()), j.advice()))
}

func (j *job) unknown() ending {
	return j.orUnknown(failed("unknown_outcome", "%s was interrupted; %s", j.entry.Spec.Name, j.advice()))
}

// timedOut returns the ending of a call that is out of time.
func (j *job) timedOut() ending {
	if j.begun.Load() || j.repeated() {
		return j.orUnknown(failed("timeout", "%s did not end in time; %s", j.entry.Spec.Name, j.advice()))
	}
	return failed("timeout", "%s did not start in time and had no effect; try again, or continue without it", j.entry.Spec.Name)
}

// cancelled returns the ending of a cancelled call. An effect that it may have had is not
// undone.
func (j *job) cancelled() ending {
	if !j.begun.Load() && !j.repeated() {
		e := failed("cancelled", "%s was cancelled before it started and had no effect", j.entry.Spec.Name)
		e.state = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return e
	}
	e := failed("cancelled", "%s was cancelled; %s", j.entry.Spec.Name, j.advice())
	e.state = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
	return j.orUnknown(e)
}

// notAvailable returns the ending of a call whose tool cannot be used.
func (j *job) notAvailable(a tool.Availability) ending {
	reason := cmp.Or(a.Reason, "it is not available now")
	cause := a.Cause
	if cause == nil {
		cause = &tool.Cause{Code: tool.Unavailable, Reason: reason}
	}
	if a.ConnectURL != "" {
		reason += " (a person can connect it at " + a.ConnectURL + ")"
	}
	return failed("unavailable", "%s cannot be used: %s", j.entry.Spec.Name, reason).because(cause)
}

// fromFault returns the ending for a tool's error. otherwise is the error type if the fault
// has no code.
func (j *job) fromFault(err error, otherwise string) ending {
	f := fault.From(err)
	if f.Kind == fault.Internal {
		return failed("internal", "%s failed with an internal error; continue without it", j.msg.GetToolName())
	}
	if f.Code != "" {
		otherwise = strings.ToLower(f.Code)
	}
	cause, _ := errors.AsType[*tool.Cause](err)
	return failed(otherwise, "%s", f.Message).because(cause)
}

// endingOf returns the ending for a tool's answer. A result counts even if the context has
// ended meanwhile.
func (e *Executor) endingOf(ctx context.Context, j *job, a answer) ending {
	if a.err == nil {
		return j.endingOfResult(a)
	}
	if p, ok := errors.AsType[*panics.Error](a.err); ok {
		e.cfg.Log.ErrorContext(ctx, "tool panicked", "tool", j.entry.Spec.Name, "key", j.Key, "error", p)
		return j.orUnknown(failed("internal", "%s failed with an internal error; %s", j.entry.Spec.Name, j.advice()))
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errLost), errors.Is(a.err, errLost):
		return ending{handOver: true, lost: true}
	case errors.Is(cause, errCancelled):
		return j.cancelled()
	case errors.Is(a.err, errUnverified) && (cause == nil || errors.Is(cause, errTimeout)):
		e.cfg.Log.WarnContext(ctx, "call not verified", "tool", j.entry.Spec.Name, "key", j.Key, "error", a.err)
		return j.unknown()
	case errors.Is(cause, errTimeout):
		return j.timedOut()
	case cause != nil && j.effect != toolv1.Effect_EFFECT_UNSAFE:
		return ending{handOver: true} // the process ends
	case cause != nil:
		return j.unknown()
	}
	return e.endingOfError(ctx, j, a)
}

// endingOfError returns the ending for an error of a tool whose context had not ended.
func (e *Executor) endingOfError(ctx context.Context, j *job, a answer) ending {
	f := fault.From(a.err)
	switch f.Kind {
	case fault.Internal:
		e.cfg.Log.ErrorContext(ctx, "tool failed", "tool", j.entry.Spec.Name, "key", j.Key, "error", a.err)
		return j.orUnknown(failed("internal", "%s failed with an internal error; %s", j.entry.Spec.Name, j.advice()))
	case fault.Unavailable, fault.Deadline, fault.Cancelled, fault.Limited:
		e.cfg.Log.WarnContext(ctx, "remote side of a tool unavailable", "tool", j.entry.Spec.Name, "key", j.Key, "error", a.err)
		return j.orUnknown(failed(f.Kind.String(), "%s; %s", f.Message, j.advice()))
	}
	return a.afterEarlierTry(j, j.fromFault(a.err, f.Kind.String()))
}

func (j *job) endingOfResult(a answer) ending {
	if size, limit := a.result.Size(), j.entry.Spec.OutputCap; size > limit {
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
		return a.afterEarlierTry(j, ending{state: toolv1.OutcomeState_OUTCOME_STATE_ERROR, result: a.result})
	}
	return ending{state: toolv1.OutcomeState_OUTCOME_STATE_OK, result: a.result}
}

// afterEarlierTry returns the ending for an error of a tool that had been tried before. With the
// effect keyed, the error may concern only the second try. With same_tx and verify it is
// certain that the first try had no effect.
func (a answer) afterEarlierTry(j *job, e ending) ending {
	if a.tried && j.effect == toolv1.Effect_EFFECT_KEYED {
		return j.uncertain(e)
	}
	return e
}
