package agentrunner_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// trap is a log handler that panics on a message a number of times, like a bug in the goroutine
// that logs it.
type trap struct {
	slog.Handler
	message string
	left    *atomic.Int32
}

func (h trap) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message && h.left.Add(-1) >= 0 {
		panic("a bug behind " + h.message)
	}
	return h.Handler.Handle(ctx, r)
}

func (h trap) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// A panic costs a run one claim. The process survives and claims the run again.
func TestPanicCostsOneClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var left atomic.Int32
	left.Store(1)
	w.logs = trap{slog.NewTextHandler(t.Output(), nil), "model call failed; trying again", &left}
	w.model.then(fails(529, overloaded), says("Here it is."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	events := v.until(isEnd)
	checkDense(t, events)
	want := []string{`1 user "go"`, "1 start", "1 start", "1 text Here it is.", "1 step 0 stop 10/5", `1 done stop "Here it is." 1`}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	if left.Load() != 0 {
		t.Error("nothing panicked")
	}
}
