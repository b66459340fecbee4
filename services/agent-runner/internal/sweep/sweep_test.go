package sweep_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/sweep"
)

const (
	beat     = time.Second
	interval = 250 * time.Millisecond // between two sweeps
)

// rows has runs of a dead runner, queued runs, and runs with expired leases.
type rows struct{ dead, queued, lost []run.Claimable }

func (r *rows) ExpireAbsent(context.Context, time.Duration) ([]run.Claimable, error) {
	expired := r.dead
	r.lost = append(r.lost, expired...)
	r.dead = nil
	return expired, nil
}

func (r *rows) Sweep(_ context.Context, _ time.Duration, limit int) ([]run.Claimable, error) {
	return slices.Clone(r.lost[:min(limit, len(r.lost))]), nil
}

func (*rows) ExpireApprovals(context.Context, int) (int, error) { return 0, nil }

func (r *rows) Ready(_ context.Context, limit int) ([]run.Claimable, error) {
	return slices.Clone(r.queued[:min(limit, len(r.queued))]), nil
}

// line records the ids of wake-ups. Closing reconnected simulates a reconnect.
type line struct {
	reconnected chan struct{}
	refuse      func(id string) error // nil: takes all

	mu  sync.Mutex
	ids []string
}

func (l *line) OnReconnect(fn func()) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-l.reconnected:
			fn()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

func (l *line) Publish(_ context.Context, _, id string, _ proto.Message) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse != nil {
		if err := l.refuse(id); err != nil {
			return 0, err
		}
	}
	l.ids = append(l.ids, id)
	return 0, nil
}

// woken returns the runs of the wake-ups, each once.
func (l *line) woken() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]bool{}
	for _, id := range l.ids {
		name, _, _ := strings.Cut(id, ":")
		out[name] = true
	}
	return out
}

type presence struct{ since time.Time }

func (p presence) Steady() time.Duration { return time.Since(p.since) }

func abandoned(queued bool) run.Claimable {
	return run.Claimable{Workspace: id.New[id.Workspace](), Session: id.New[id.Session](), Run: id.New[id.Run](), Epoch: 1, Queued: queued}
}

// sweeps runs a sweeper for a while.
func sweeps(t *testing.T, r *rows, l *line, during time.Duration) {
	t.Helper()
	s := sweep.New(sweep.Config{Store: r, Bus: l, Presence: presence{time.Now()}, Beat: beat, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestSweeps(t *testing.T) {
	t.Parallel()
	dead, queued, lost := abandoned(false), abandoned(true), abandoned(false)
	for _, tt := range []struct {
		name  string
		rows  rows
		after time.Duration // since Postgres recovered
		away  bool          // the queue is unavailable at first
		want  map[string]bool
	}{
		{"no runner counts as dead at once", rows{dead: []run.Claimable{dead}}, beat / 2, false, map[string]bool{}},
		{
			"the dead, and what they may have held",
			rows{dead: []run.Claimable{dead}, queued: []run.Claimable{queued}, lost: []run.Claimable{lost}},
			beat + beat/2, false,
			map[string]bool{dead.Run.String(): true, queued.Run.String(): true},
		},
		{"expired leases may still be renewed", rows{lost: []run.Claimable{lost}}, beat + beat/2, false, map[string]bool{}},
		{"expired leases count after two beats", rows{lost: []run.Claimable{lost}, queued: []run.Claimable{queued}}, 3 * beat, false, map[string]bool{lost.Run.String(): true}},
		{
			"the queue is back, and may have lost who is queued",
			rows{queued: []run.Claimable{queued}, lost: []run.Claimable{lost}},
			beat / 2, true,
			map[string]bool{queued.Run.String(): true},
		},
		{"a queued run that waits long", rows{lost: []run.Claimable{queued}}, 3 * beat, false, map[string]bool{queued.Run.String(): true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := line{reconnected: make(chan struct{})}
				if tt.away {
					close(l.reconnected)
				}
				sweeps(t, &tt.rows, &l, tt.after)
				if diff := cmp.Diff(tt.want, l.woken()); diff != "" {
					t.Errorf("woken (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Queued runs are woken however many runs a dead runner had, and a wake-up that the queue does
// not take delays no other.
func TestDeadRunnerWithManyRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r rows
		for range 1000 {
			r.dead, r.queued = append(r.dead, abandoned(false)), append(r.queued, abandoned(true))
		}
		refused, once := r.queued[0].Run.String(), errors.New("the queue is full")
		l := line{reconnected: make(chan struct{}), refuse: func(id string) (err error) {
			if strings.HasPrefix(id, refused) {
				err, once = once, nil
			}
			return err
		}}
		sweeps(t, &r, &l, beat+interval)
		woken := l.woken()
		for _, q := range r.queued[1:] {
			if !woken[q.Run.String()] {
				t.Fatalf("%d of %d woken, and not %s", len(woken), 2000, q.Run)
			}
		}
	})
}

// A run that waits for a free slot is not woken again and again.
func TestRunIsNotWokenTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waits, lost := abandoned(true), abandoned(false)
		l := line{reconnected: make(chan struct{})}
		sweeps(t, &rows{lost: []run.Claimable{waits, lost}}, &l, 2*beat+subject.AckWait+time.Second)
		times := map[string]int{}
		for _, id := range l.ids {
			name, _, _ := strings.Cut(id, ":")
			times[name]++
		}
		if times[waits.Run.String()] != 2 || times[lost.Run.String()] != 4 {
			t.Errorf("woken %d times for a slot, %d times for a runner that is lost; want 2, 4", times[waits.Run.String()], times[lost.Run.String()])
		}
	})
}

// However many runs wait for a free slot, their wake-ups do not fill the queue. A runner that
// receives one claims whichever run is next.
func TestWakeUpsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r rows
		for range 200 {
			r.lost = append(r.lost, abandoned(true))
		}
		l := line{reconnected: make(chan struct{})}
		sweeps(t, &r, &l, 2*beat+2*interval)
		if n := len(l.woken()); n != 16 {
			t.Errorf("%d of %d that wait were woken, want 16", n, len(r.lost))
		}
	})
}
