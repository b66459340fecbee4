package agentrunner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// flood is many runs of one workspace whose answers begin and then wait for release.
type flood struct {
	answered, letGo chan struct{}
	other           chan struct{} // closed to let the answer of another workspace end
}

// flood submits to n sessions.
func (w *world) flood(n int) flood {
	w.t.Helper()
	f := flood{make(chan struct{}, n), make(chan struct{}), make(chan struct{})}
	for range n + 1 {
		w.model.then(func(a *answer) {
			a.begin()
			end := f.other
			if strings.Contains(string(a.request), "flood") {
				end = f.letGo
				f.answered <- struct{}{}
			}
			select {
			case <-end:
			case <-a.r.Context().Done():
			}
			a.text("Well.")
			a.end()
		})
	}
	for range n {
		w.submit(w.session(&agentv1.CreateSessionRequest{}), "flood")
	}
	return f
}

// elsewhere submits in another workspace and makes it the world's workspace.
func (w *world) elsewhere() *viewer {
	w.t.Helper()
	w.workspace = id.New[id.Workspace]()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "me too")
	return v
}

func begins(ev *runv1.Event) bool { return ev.GetRunStart() != nil }

// A run of another workspace starts as soon as a slot is free, however many runs of the first
// workspace wait.
func TestManyRunsDelayNoOtherWorkspace(t *testing.T) {
	t.Parallel()
	const slots, waiting = 2, 20
	w := newWorld(t)
	w.start(func(c *agentrunner.Config) { c.Slots = slots })
	f := w.flood(slots + waiting)
	for range slots {
		<-f.answered
	}
	v := w.elsewhere()
	f.letGo <- struct{}{} // one slot is free, and goes to whom?
	v.until(begins)
	if n := len(f.answered); n != 0 {
		t.Errorf("%d runs of the flood began before, want none", n)
	}
	close(f.other)
	v.until(isEnd)
	close(f.letGo)
	for range waiting {
		<-f.answered
	}
}

// A session has no more messages waiting than may.
func TestSessionQueueFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(c *agentrunner.Config) { c.MaxQueued = 1 })
	f := w.flood(0) // scripts one answer, which waits
	session := w.session(&agentv1.CreateSessionRequest{})
	w.submit(session, "one")
	w.submit(session, "two")
	_, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: session, ContentJson: `"three"`})
	if refusal := fault.From(err); refusal.Kind != fault.Limited || refusal.RetryAfter <= 0 || refusal.Code != "QUEUE_FULL" {
		t.Errorf("a message beyond those that may wait = %v (retry after %s), want 429 with Retry-After", err, refusal.RetryAfter)
	}
	w.model.then(func(a *answer) { a.begin(); a.text("Well."); a.end() })
	close(f.other)
}

// A workspace does not exceed its limit of running runs, so that others find a free slot. The
// further runs wait, up to the limit of waiting runs, and all of them start eventually.
func TestWorkspaceLimit(t *testing.T) {
	t.Parallel()
	const most, waiting = 2, 3
	w := newWorld(t)
	w.start(func(c *agentrunner.Config) { c.WorkspaceRuns, c.WorkspaceWaiting = most, waiting })
	f := w.flood(most + waiting)
	for range most {
		<-f.answered
	}
	_, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{
		SessionId: w.session(&agentv1.CreateSessionRequest{}), ContentJson: `"one more"`,
	})
	if refusal := fault.From(err); refusal.Kind != fault.Limited || refusal.RetryAfter <= 0 || refusal.Code != "TOO_MANY_WAITING" {
		t.Errorf("a message beyond those that may wait = %v (retry after %s), want 429 with Retry-After", err, refusal.RetryAfter)
	}
	v := w.elsewhere()
	v.until(begins)
	if n := len(f.answered); n != 0 {
		t.Errorf("%d runs of the flood began beyond the limit", n)
	}
	close(f.other)
	v.until(isEnd)
	close(f.letGo)
	for range waiting {
		<-f.answered
	}
}

// A run of several steps gives its slot back at a step border when another workspace waits, and
// continues later.
func TestRunYieldsItsSlot(t *testing.T) {
	t.Parallel()
	const slots, steps = 2, 50
	w := newWorld(t)
	busy, began := make(chan struct{}, slots*steps), make(chan struct{})
	w.tools.add("one", func(context.Context, *toolv1.Call) string {
		busy <- struct{}{}
		select {
		case <-began:
		case <-time.After(100 * time.Millisecond): // a step lasts so long
		}
		return `{"result":"1"}`
	})
	for i := range slots*steps + 1 {
		w.model.then(func(a *answer) {
			switch {
			case strings.Contains(string(a.request), "short"):
				close(began)
				says("Short.")(a)
			case isClosed(began):
				says("Long.")(a)
			default:
				calls([3]string{fmt.Sprint("call", i), "one", `{}`})(a)
			}
		})
	}
	w.start(func(c *agentrunner.Config) { c.Slots = slots })
	var long []*viewer
	for range slots {
		session := w.session(&agentv1.CreateSessionRequest{MaxSteps: steps})
		long = append(long, w.watch(session))
		w.submit(session, "long")
		<-busy
	}
	w.workspace = id.New[id.Workspace]()
	w.submit(w.session(&agentv1.CreateSessionRequest{}), "short")
	<-began
	for _, v := range long {
		events := v.until(isEnd)
		checkDense(t, events)
		if end := events[len(events)-1].GetDone(); end.GetText() != "Long." || end.GetFinishReason() != "stop" {
			t.Errorf("a long run ended as %v, want its answer after the other workspace's run", end)
		}
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
