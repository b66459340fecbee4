package execute

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"signalbox.dev/pkg/fault"
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

func failed(errorType, format string, args ...any) ending {
	return ending{state: toolv1.OutcomeState_OUTCOME_STATE_ERROR, result: tool.Errorf(errorType, format, args...)}
}

// maybe is the warning that goes with an end which says nothing about the effect.
func (j *job) maybe() string {
	if j.pure() {
		return "try again, or do without it"
	}
	return "it is not known whether it took effect: check before you try again"
}

// unsure makes an end one whose effect nobody knows, if there is one.
func (j *job) unsure(e ending) ending {
	if !j.pure() {
		e.state = toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
	}
	return e
}

func (j *job) unknown() ending {
	return j.unsure(failed("unknown_outcome", "%s was interrupted; %s", j.entry.Spec.Name, j.maybe()))
}

// timedOut is the end of a call whose time is over. One that nobody can have run
// certainly did nothing.
func (j *job) timedOut() ending {
	if j.repeated() {
		return j.unsure(failed("timeout", "%s was not done in time; %s", j.entry.Spec.Name, j.maybe()))
	}
	return failed("timeout", "%s was not begun in time and did nothing; try again, or do without it", j.entry.Spec.Name)
}

func (j *job) cancelled() ending {
	e := failed("cancelled", "%s was cancelled before it began", j.entry.Spec.Name)
	if j.repeated() && !j.pure() {
		e = failed("cancelled", "%s was cancelled; %s", j.entry.Spec.Name, j.maybe())
	}
	e.state = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
	return e
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
		return j.judgeResult(a.result)
	}
	if p, ok := errors.AsType[*panicked](a.err); ok {
		e.cfg.Log.ErrorContext(ctx, "tool panicked", "tool", j.entry.Spec.Name, "key", j.Key, "panic", fmt.Sprint(p.value), "stack", p.stack)
		return failed("internal", "%s failed inside; %s", j.entry.Spec.Name, j.maybe())
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errLost):
		return ending{handOn: true, lost: true}
	case errors.Is(cause, errCancelled):
		end := failed("cancelled", "%s was cancelled; %s", j.entry.Spec.Name, j.maybe())
		end.state = toolv1.OutcomeState_OUTCOME_STATE_CANCELLED
		return end
	case errors.Is(cause, errTimeout):
		return j.unsure(failed("timeout", "%s did not end in time; %s", j.entry.Spec.Name, j.maybe()))
	case cause != nil && j.entry.Spec.Effect != toolv1.Effect_EFFECT_UNSAFE:
		return ending{handOn: true} // the process ends
	case cause != nil, errors.Is(a.err, errUnverified):
		return j.unknown()
	}
	return e.judgeError(ctx, j, a.err)
}

// judgeError is for errors of a tool that had all the time it wanted.
func (e *Executor) judgeError(ctx context.Context, j *job, err error) ending {
	f := fault.From(err)
	switch f.Kind {
	case fault.Internal:
		e.cfg.Log.ErrorContext(ctx, "tool failed", "tool", j.entry.Spec.Name, "key", j.Key, "error", err)
		return failed("internal", "%s failed inside; %s", j.entry.Spec.Name, j.maybe())
	case fault.Unavailable, fault.Deadline, fault.Cancelled, fault.Limited:
		e.cfg.Log.WarnContext(ctx, "tool's far end did not serve it", "tool", j.entry.Spec.Name, "key", j.Key, "error", err)
		return j.unsure(failed(f.Kind.String(), "%s; %s", f.Message, j.maybe()))
	}
	return j.fromFault(err, f.Kind.String())
}

func (j *job) judgeResult(r tool.Result) ending {
	if size, limit := len(r.JSON()), j.entry.Spec.OutputCap; size > limit {
		did := ""
		if !j.pure() {
			did = "it took effect, but "
		}
		less := j.entry.Spec.Less
		if less == "" {
			less = "ask for less"
		}
		return failed("output_too_large", "%sthe result of %s has %d bytes, over the limit of %d: %s", did, j.entry.Spec.Name, size, limit, less)
	}
	state := toolv1.OutcomeState_OUTCOME_STATE_OK
	if r.IsError() {
		state = toolv1.OutcomeState_OUTCOME_STATE_ERROR
	}
	return ending{state: state, result: r}
}
