package sweep_test

import (
	"context"
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
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/sweep"
)

const beat = time.Second

// rows has runs of a runner that died, queued runs, and runs whose lease ran out.
type rows struct{ dead, queued, lost []run.Abandoned }

func (r *rows) ExpireAbsent(context.Context, time.Duration) ([]run.Abandoned, error) {
	expired := r.dead
	r.lost = append(r.lost, expired...)
	r.dead = nil
	return expired, nil
}

func (r *rows) Sweep(_ context.Context, patience time.Duration, _ int) ([]run.Abandoned, error) {
	if patience > 0 {
		return slices.Clone(r.lost), nil
	}
	return slices.Concat(r.lost, r.queued), nil
}

// line keeps the ids of wake-ups. It is back, where it was away, when that is closed.
type line struct {
	back chan struct{}

	mu  sync.Mutex
	ids []string
}

func (l *line) OnReconnect(fn func()) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-l.back:
			fn()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}

func (l *line) Publish(_ context.Context, _, id string, _ proto.Message) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, id)
	return 0, nil
}

// woken returns the runs of the wake-ups, each once, and whether the queue may have
// heard of one before.
func (l *line) woken() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]bool{}
	for _, id := range l.ids {
		name, _, anew := strings.Cut(id, ":")
		out[name] = !anew
	}
	return out
}

type presence struct{ since time.Time }

func (p presence) Steady() time.Duration { return time.Since(p.since) }

func TestSweeps(t *testing.T) {
	t.Parallel()
	abandoned := func(queued bool) run.Abandoned {
		return run.Abandoned{Workspace: id.New[id.Workspace](), Session: id.New[id.Session](), Run: id.New[id.Run](), Epoch: 1, Queued: queued}
	}
	dead, queued, lost := abandoned(false), abandoned(true), abandoned(false)
	for _, tt := range []struct {
		name  string
		rows  rows
		after time.Duration // that Postgres came back
		away  bool          // the queue was, and comes back
		want  map[string]bool
	}{
		{"nobody is judged at once", rows{dead: []run.Abandoned{dead}}, beat / 2, false, map[string]bool{}},
		{
			"the dead, and what they may have held",
			rows{dead: []run.Abandoned{dead}, queued: []run.Abandoned{queued}, lost: []run.Abandoned{lost}},
			beat + beat/2, false,
			map[string]bool{dead.Run.String(): false, queued.Run.String(): false},
		},
		{"leases that ran out are renewed first", rows{lost: []run.Abandoned{lost}}, beat + beat/2, false, map[string]bool{}},
		{"and then they are lost", rows{lost: []run.Abandoned{lost}, queued: []run.Abandoned{queued}}, 3 * beat, false, map[string]bool{lost.Run.String(): false}},
		{
			"the queue is back, and may have lost who is queued",
			rows{queued: []run.Abandoned{queued}, lost: []run.Abandoned{lost}},
			beat / 2, true,
			map[string]bool{queued.Run.String(): false},
		},
		{"a queued one that waits long is woken as at first", rows{lost: []run.Abandoned{queued}}, 3 * beat, false, map[string]bool{queued.Run.String(): true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := line{back: make(chan struct{})}
				if tt.away {
					close(l.back)
				}
				s := sweep.New(sweep.Config{Store: &tt.rows, Bus: &l, Presence: presence{time.Now()}, Beat: beat, Log: slog.New(slog.DiscardHandler)})
				ctx, cancel := context.WithTimeout(t.Context(), tt.after)
				defer cancel()
				if err := s.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, l.woken()); diff != "" {
					t.Errorf("woken, and whether as at first (-want +got):\n%s", diff)
				}
			})
		})
	}
}
