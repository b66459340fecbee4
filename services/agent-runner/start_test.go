package agentrunner_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// queuedUp returns how many messages were ever published to the work queue of runs.
func (w *world) queuedUp() uint64 {
	w.t.Helper()
	s, err := natstest.Bus(w.t, w.nats, subject.Admin).Stream(w.t.Context(), subject.Runs)
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Last
}

// A run starts in the process that received its message while there is a free slot; the other
// runs go through the queue.
func TestStart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		slots, runs int
		queued      uint64
	}{{1, 1, 1}, {2, 1, 0}, {3, 3, 1}} {
		t.Run(fmt.Sprintf("%d runs in %d slots", tc.runs, tc.slots), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			release := make(chan struct{})
			for range tc.runs {
				w.model.then(func(a *answer) { a.begin(); await(a.r.Context(), release); a.text("Hello."); a.end() })
			}
			w.start(func(c *agentrunner.Config) { c.Slots = tc.slots })
			var watched []*viewer
			for range tc.runs {
				session := w.session(&agentv1.CreateSessionRequest{})
				v := w.watch(session)
				w.submit(session, "go")
				v.until(func(ev *runv1.Event) bool { return ev.GetRunStart() != nil }) // it has its slot
				watched = append(watched, v)
			}
			close(release)
			for _, v := range watched {
				events := v.until(isEnd)
				if diff := cmp.Diff([]string{"1 text Hello.", "1 step 0 stop 10/5", `1 done stop "Hello." 1`}, lines(events)); diff != "" {
					t.Error(diff)
				}
			}
			if got := w.queuedUp(); got != tc.queued {
				t.Errorf("%d messages went through the queue, want %d", got, tc.queued)
			}
		})
	}
}

// A run whose member has an unknown role is tried again and finally given up. Then the queued
// runs of its session start.
func TestUnknownRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	started, release := make(chan struct{}), make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); close(started); await(a.r.Context(), release); a.text("First."); a.end() }, says("Third."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "one")
	<-started
	second := w.submit(session, "two").GetRun().GetId()
	w.submit(session, "three")
	err := w.db.Open(t, agentrunner.Migrations()).AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE runs SET role = 'archivist', fruitless = 19 WHERE id = $1`, second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	ends := 0
	events := v.until(func(ev *runv1.Event) bool {
		if isEnd(ev) {
			ends++
		}
		return ends == 3
	})
	got := lines(events)
	if want := `3 done stop "Third." 1`; got[len(got)-1] != want {
		t.Errorf("the last event is %q, want %q", got[len(got)-1], want)
	}
	if e := w.run(second).GetRun(); e.GetErrorCode() != "RUN_STUCK" {
		t.Errorf("the run ended as %v %q, want RUN_STUCK", e.GetState(), e.GetErrorCode())
	}
}

// Another process continues a run that started in a process which exits, although the queue
// has no message for it.
func TestStartThenLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); close(began); <-a.r.Context().Done() }, says("Whole."))
	leaves := w.start(func(c *agentrunner.Config) { c.Drain = 100 * time.Millisecond })
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	<-began
	leaves.stop()
	w.start()
	events := v.until(isEnd)
	checkDense(t, events)
	if got := lines(events); got[len(got)-1] != `1 done stop "Whole." 1` {
		t.Errorf("events: %v", got)
	}
}
