package feed

import (
	"signalbox.dev/pkg/runorder"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// spanOf returns an event's span for the canonical order.
func spanOf(e *runv1.Event) runorder.Span {
	n := e.GetNumber()
	return runorder.Span{ID: e.GetRunId(), Run: e.GetRunOrdinal(), Epoch: e.GetEpoch(), First: n, Last: n, Ends: isEnd(e)}
}

// isEnd reports whether no event with the same ordinal follows.
func isEnd(e *runv1.Event) bool {
	switch e.GetBody().(type) {
	case *runv1.Event_Done, *runv1.Event_Error, *runv1.Event_BranchSwitched:
		return true
	}
	return false
}
