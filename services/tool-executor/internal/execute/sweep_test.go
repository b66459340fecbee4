package execute_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// memory is a ledger without a database, for tests of timing.
type memory struct {
	mu   sync.Mutex // guards the rest
	rows map[ledger.Ref]*row
	away bool          // the database is unavailable
	slow time.Duration // it takes so long to answer
}

type row struct {
	work     []byte
	executor string
	version  int
	attempt  int
	released bool
	done     *toolv1.Outcome
	taken    time.Time // when it was last taken over
}

var errAway = errors.New("the database is away")

// in runs f under the lock, unless the database is unavailable.
func (m *memory) in(f func() error) error {
	m.mu.Lock()
	slow := m.slow
	m.mu.Unlock()
	if slow > 0 {
		<-time.After(slow)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return errAway
	}
	return f()
}

// memoryLedger is one executor's view of a memory.
type memoryLedger struct {
	*memory
	name string
}

func (l memoryLedger) Claim(_ context.Context, c ledger.Call) (out ledger.Claim, err error) {
	return out, l.in(func() error {
		if l.rows[c.Ref] == nil {
			l.rows[c.Ref] = &row{work: c.Work, executor: l.name, attempt: 1}
			out.Attempt = 1
		}
		return nil
	})
}

func (l memoryLedger) mine(ref ledger.Ref, attempt int, f func(r *row)) error {
	return l.in(func() error {
		r := l.rows[ref]
		if r == nil || r.executor != l.name || r.attempt != attempt || r.done != nil {
			return ledger.ErrLost
		}
		r.version++
		f(r)
		return nil
	})
}

func (l memoryLedger) Record(_ context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome, _ id.Member) error {
	return l.mine(ledger.Ref{Workspace: ws, Key: id.Must[id.Operation](o.GetKey())}, attempt, func(r *row) { r.done = o })
}

func (l memoryLedger) Release(_ context.Context, ref ledger.Ref, attempt int) error {
	return l.mine(ref, attempt, func(r *row) { r.released = true })
}

func (l memoryLedger) Renew(_ context.Context, refs []ledger.Ref) (map[ledger.Ref]int, error) {
	out := map[ledger.Ref]int{}
	return out, l.in(func() error {
		for _, ref := range refs {
			if r := l.rows[ref]; r != nil && r.executor == l.name && r.done == nil && !r.released {
				r.version++
				out[ref] = r.attempt
			}
		}
		return nil
	})
}

func (l memoryLedger) Open(context.Context) (out []ledger.Open, err error) {
	return out, l.in(func() error {
		for ref, r := range l.rows {
			if r.done == nil {
				out = append(out, ledger.Open{Ref: ref, Version: fmt.Sprint(r.version), Executor: r.executor, Released: r.released})
			}
		}
		return nil
	})
}

func (l memoryLedger) Work(_ context.Context, ref ledger.Ref) (work []byte, err error) {
	return work, l.in(func() error {
		work = l.rows[ref].work
		return nil
	})
}

func (l memoryLedger) TakeOver(_ context.Context, o ledger.Open) (out ledger.Claim, err error) {
	return out, l.in(func() error {
		r := l.rows[o.Ref]
		if r.done != nil || fmt.Sprint(r.version) != o.Version {
			return ledger.ErrLost
		}
		out.Former, out.Effect = []string{r.executor}, pure
		r.executor, r.released, r.taken = l.name, false, time.Now()
		r.version++
		r.attempt++
		out.Attempt = r.attempt
		return nil
	})
}

// The pace of the executors in these tests.
const (
	renewEvery = 500 * time.Millisecond
	quiet      = time.Second
	lease      = 6 * time.Second
	sweepEvery = 250 * time.Millisecond
)

// timed is a world whose time is the test's own.
type timed struct {
	*memory
	*world
}

func newTimed(tools ...tool.Tool) *timed {
	return &timed{
		&memory{rows: map[ledger.Ref]*row{}},
		&world{alive: &presence{names: map[string]bool{}}, tools: tools, ws: id.New[id.Workspace](), run: id.New[id.Run]()},
	}
}

// process returns an executor that renews its leases and takes over calls until
// ctx is done.
func (w *timed) process(t *testing.T, ctx context.Context, name string) *execute.Executor { //nolint:revive // t comes first in tests
	t.Helper()
	catalogue, err := tool.NewCatalogue(w.tools...)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := execute.NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	w.alive.set(name, true)
	e := execute.New(execute.Config{
		Catalogue: catalogue, Ledger: memoryLedger{w.memory, name}, Presence: w.alive, Announce: func(context.Context, *toolv1.Outcome) {},
		Log: slog.New(slog.DiscardHandler), Metrics: metrics, Slots: 4, PerWorkspace: 4,
		Renew: renewEvery, Quiet: quiet, Lease: lease, SweepEvery: sweepEvery, Grace: 2 * time.Second, RecordFor: 20 * time.Second,
	})
	go e.KeepLeases(ctx)
	go e.Sweep(ctx, 5*time.Second)
	return e
}

// leave adds the call of an executor that has died.
func (w *timed) leave(t *testing.T, executor string) ledger.Ref {
	t.Helper()
	c := w.call("act", `{}`)
	work, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (memoryLedger{w.memory, executor}).Claim(t.Context(), ledger.Call{Ref: ref(t, c), Work: work}); err != nil {
		t.Fatal(err)
	}
	return ref(t, c)
}

func (w *timed) row(r ledger.Ref) row {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *w.rows[r]
}

func (w *timed) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func quickTool() *fake {
	return newFake("act", pure, func(context.Context, tool.Call) (tool.Result, error) { return tool.Object("done"), nil })
}

// TestTakeOverTimes checks when calls are taken over.
func TestTakeOverTimes(t *testing.T) {
	t.Parallel()
	const never = 0
	for _, tt := range []struct {
		name string
		// live changes the row or its executor in the meantime, until ctx is done.
		live        func(ctx context.Context, w *timed, r ledger.Ref)
		least, most time.Duration // from the beginning until it is taken over
	}{
		{"dead executor", func(_ context.Context, w *timed, _ ledger.Ref) { w.alive.set("first", false) }, quiet, quiet + 2*sweepEvery},
		{"silent executor", func(context.Context, *timed, ledger.Ref) {}, lease, lease + 2*sweepEvery},
		{"released call", func(ctx context.Context, w *timed, r ledger.Ref) {
			_ = memoryLedger{w.memory, "first"}.Release(ctx, r, 1)
		}, quiet, quiet + 2*sweepEvery},
		{"executor that renews, present or not", func(ctx context.Context, w *timed, r ledger.Ref) {
			w.alive.set("first", false)
			for ctx.Err() == nil {
				_, _ = memoryLedger{w.memory, "first"}.Renew(ctx, []ledger.Ref{r})
				<-time.After(renewEvery)
			}
		}, never, never},
		{"executor that dies later", func(ctx context.Context, w *timed, r ledger.Ref) {
			for range 20 {
				_, _ = memoryLedger{w.memory, "first"}.Renew(ctx, []ledger.Ref{r})
				<-time.After(renewEvery)
			}
			w.alive.set("first", false)
		}, 10 * time.Second, 10*time.Second + quiet + sweepEvery},
		{"after an outage", func(_ context.Context, w *timed, _ ledger.Ref) {
			w.alive.set("first", false)
			<-time.After(quiet / 2)
			w.set(func() { w.away = true })
			<-time.After(10 * time.Second)
			w.set(func() { w.away = false })
		}, 10*time.Second + quiet/2 + quiet, 10*time.Second + quiet/2 + quiet + 3*sweepEvery},
		{"executor that recovers after an outage", func(ctx context.Context, w *timed, r ledger.Ref) {
			w.alive.set("first", false)
			w.set(func() { w.away = true })
			<-time.After(10 * time.Second)
			w.set(func() { w.away = false })
			<-time.After(renewEvery)
			for ctx.Err() == nil {
				_, _ = memoryLedger{w.memory, "first"}.Renew(ctx, []ledger.Ref{r})
				<-time.After(renewEvery)
			}
		}, never, never},
		{"reads that take too long to trust", func(_ context.Context, w *timed, _ ledger.Ref) {
			w.alive.set("first", false)
			w.set(func() { w.slow = 4 * time.Second })
		}, never, never},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := newTimed(quickTool())
				w.alive.set("first", true)
				r := w.leave(t, "first")
				begin := time.Now()
				w.process(t, ctx, "second")
				go tt.live(ctx, w, r)
				<-time.After(time.Minute)
				w.set(func() { w.slow = 0 })
				cancel()
				<-time.After(10 * time.Second)
				switch got := w.row(r); {
				case tt.most == never:
					if got.attempt != 1 {
						t.Errorf("taken over after %s, want never", got.taken.Sub(begin))
					}
				case got.attempt != 2 || got.done.GetState() != ok:
					t.Errorf("attempt %d, outcome %v, want it taken over and done", got.attempt, got.done)
				case got.taken.Sub(begin) < tt.least || got.taken.Sub(begin) > tt.most:
					t.Errorf("taken over after %s, want between %s and %s", got.taken.Sub(begin), tt.least, tt.most)
				}
			})
		})
	}
}

// Of several sweeping executors each row goes to one, and calls without a slot wait for one.
func TestManyCallsOfADeadExecutor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		var mu sync.Mutex
		w := newTimed(newFake("act", pure, func(context.Context, tool.Call) (tool.Result, error) {
			mu.Lock()
			runs++
			mu.Unlock()
			<-time.After(3 * time.Second)
			return tool.Object("done"), nil
		}))
		var refs []ledger.Ref
		for range 20 {
			refs = append(refs, w.leave(t, "dead"))
		}
		w.process(t, ctx, "one")
		w.process(t, ctx, "two")
		<-time.After(time.Minute)
		cancel()
		<-time.After(10 * time.Second)
		for _, r := range refs {
			if got := w.row(r); got.done.GetState() != ok || got.attempt != 2 {
				t.Errorf("attempt %d, outcome %v, want it done by the second", got.attempt, got.done)
			}
		}
		if runs != len(refs) {
			t.Errorf("%d runs of %d calls", runs, len(refs))
		}
	})
}

// A process that exits hands over the calls that it has taken over and cannot finish.
func TestSweepDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leaving, leave := context.WithCancel(t.Context())
		staying, end := context.WithCancel(t.Context())
		blocked, begun := blocking("act", pure)
		w := newTimed(blocked)
		r := w.leave(t, "dead")
		w.process(t, leaving, "one")
		<-begun
		left := time.Now()
		leave()
		w.tools = []tool.Tool{quickTool()}
		w.process(t, staying, "two")
		<-time.After(20 * time.Second)
		end()
		<-time.After(10 * time.Second)
		got := w.row(r)
		if got.executor != "two" || got.done.GetState() != ok {
			t.Fatalf("%s has it, outcome %v, want it done by two", got.executor, got.done)
		}
		// It had five seconds to finish it.
		if took := got.taken.Sub(left); took < 5*time.Second || took > 5*time.Second+quiet+3*sweepEvery {
			t.Errorf("taken over after %s, want it a second after the drain", took)
		}
	})
}

// TestCancelIsFast measures how fast a call ends when its tool ignores a cancel.
func TestCancelIsFast(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		effect toolv1.Effect
		state  toolv1.OutcomeState
	}{{pure, cancelled}, {sameTx, unknown}, {keyed, unknown}, {verify, unknown}, {unsafe, unknown}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			stop, begun := make(chan struct{}), make(chan struct{}, 1)
			deaf := &checked{fake: *newFake("act", tt.effect, func(context.Context, tool.Call) (tool.Result, error) {
				begun <- struct{}{}
				<-stop
				return tool.Object("late"), nil
			})}
			w := newTimed(deaf)
			e := w.process(t, ctx, "one")
			c := w.call("act", `{}`)
			ended := make(chan error, 1)
			go func() { ended <- e.Handle(ctx, c) }()
			<-begun
			<-time.After(time.Second)
			asked := time.Now()
			if err := e.Cancel(&toolv1.Cancel{RunId: w.run.String()}); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Errorf("%v: Handle = %v", tt.effect, err)
			}
			if took := time.Since(asked); took > 250*time.Millisecond {
				t.Errorf("%v: let go after %s, want 250 ms at most", tt.effect, took)
			}
			if o := w.row(ref(t, c)).done; o.GetState() != tt.state || o.GetErrorType() != "cancelled" {
				t.Errorf("%v: outcome = %v %s, want %v", tt.effect, o.GetState(), o.GetResultJson(), tt.state)
			}
			close(stop)
			cancel()
			<-time.After(10 * time.Second)
		})
	}
}
