package sim

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/loop"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/run"
)

// kit is immutable state that all worlds share.
type kit struct {
	presets   *preset.Set
	catalogue *catalogue.Catalogue
	metrics   *loop.Metrics
}

func newKit(t testing.TB) *kit {
	t.Helper()
	presets, err := preset.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	// So small that some conversations are compacted.
	models, err := catalogue.New([]byte(`{"models":[{"provider":"` + providerName + `","id":"` + modelName + `","context":400,"maxOutput":100}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return &kit{presets, models, loop.NewMetrics(prometheus.NewRegistry())}
}

// outcome is the result of one seed.
type outcome struct {
	seed   uint64
	wrong  []string
	hash   uint64
	events int
	runs   int
	took   time.Duration // of the world's time
}

// horizon is how long after the last fault a world may take to become idle.
const horizon = 8 * time.Minute

// live creates a world from a seed, runs it until it is idle, and returns its violations.
func live(t *testing.T, k *kit, seed uint64, p plant, out io.Writer) (o outcome) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(k, seed, p, out)
		o = w.live()
	})
	return o
}

func newWorld(k *kit, seed uint64, p plant, out io.Writer) *world {
	w := &world{
		seed: seed, plant: p, start: time.Now(), out: out, kit: k, trouble: time.Now(), saidAll: time.Now(),
		counts: map[string]uint64{}, taken: map[time.Time]bool{}, watcher: observer{map[id.Run]run.State{}},
		providers: &providers{}, executors: &executors{ledger: map[string]*ledgerRow{}, happened: map[string]int{}},
	}
	w.shape = w.shapeOf()
	w.pg = &postgres{rows: newRows(rowsConfig{
		run: run.Config{Lease: lease, WallTime: wallTime, Partitions: partitions, PerWorkspace: w.shape.perWorkspace}, maxQueued: 4, now: func() time.Time { return time.Now().Add(w.pg.ahead) },
		salt: uint32(mix(seed)), plant: p,
	})}
	if w.shape.asks {
		w.pg.cfg.clientTools = clientTools
	}
	w.nats = newJet(w, partitions)
	return w
}

func (w *world) live() outcome {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var people []*person
	w.locked(func() {
		w.note("shape", fmt.Sprintf("%+v", w.shape))
		ws := newID[id.Workspace](w.pg.rows)
		for n := range w.shape.people {
			if !w.shape.together {
				ws = newID[id.Workspace](w.pg.rows)
			}
			people = append(people, w.newPerson(n, ws))
		}
		w.processes = make([]*process, w.shape.runners+w.shape.executors)
		for slot := range w.processes {
			w.begin(slot)
		}
	})
	var busy sync.WaitGroup
	for _, p := range people {
		busy.Go(func() { p.talk(ctx) })
	}
	busy.Go(func() { w.rule(ctx) })
	said := make(chan struct{})
	go func() {
		busy.Wait()
		close(said)
	}()
	w.untilQuiet(said)
	w.locked(func() {
		if !w.reported { // or nothing has come to its end
			w.checkEnd(people)
		}
		w.quiet = true
	})
	end()
	<-said
	w.locked(func() {
		for _, p := range w.all {
			if !p.dead {
				w.die(p)
			}
			if p.resumed != nil {
				close(p.resumed)
				p.resumed = nil
			}
		}
	})
	for _, p := range w.all {
		p.work.Wait()
	}
	return outcome{seed: w.seed, wrong: w.wrong, hash: w.hash, events: w.events, runs: len(w.pg.allRuns), took: time.Since(w.start)}
}

// untilQuiet waits until the world is idle, at most for horizon.
func (w *world) untilQuiet(said <-chan struct{}) {
	tick := time.NewTicker(250*time.Millisecond + 1)
	defer tick.Stop()
	for range tick.C {
		quiet := false
		w.locked(func() {
			w.checkWaiting()
			quiet = closed(said) && w.allEnded() && len(w.pg.outbox) == 0 && w.nats.queuesEmpty() ||
				closed(said) && time.Since(w.trouble) > horizon || w.reported
		})
		if quiet {
			return
		}
	}
}

// Settings of TestSeeds, from the environment.
const (
	seedVariable  = "SIGNALBOX_SIM_SEED"  // one seed alone, with its trace
	seedsVariable = "SIGNALBOX_SIM_SEEDS" // how many
	firstVariable = "SIGNALBOX_SIM_FIRST" // the first of them; 1 without
)

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", variable, v, err)
	}
	return n
}

// TestSeeds runs thousands of worlds.
//
//	SIGNALBOX_SIM_SEED=123 go test -run TestSeeds -v ./services/agent-runner/internal/sim
//
// runs one of them with its trace, and SIGNALBOX_SIM_SEEDS=100000 runs more.
func TestSeeds(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	if one := number(t, seedVariable, 0); one > 0 {
		o := live(t, k, one, none, t.Output())
		report(t, o)
		t.Logf("seed %d: %d runs, %d events, %s, trace %016x", o.seed, o.runs, o.events, o.took, o.hash)
		return
	}
	n := uint64(500)
	if testing.Short() || raced {
		n = 50
	}
	first, n := number(t, firstVariable, 1), number(t, seedsVariable, n)
	begun := time.Now()
	var runs, failed atomic.Int64
	each(t, first, n, func(t *testing.T, seed uint64) bool {
		o := live(t, k, seed, none, nil)
		runs.Add(int64(o.runs))
		report(t, o)
		return len(o.wrong) == 0 || failed.Add(1) < 20
	})
	took := time.Since(begun)
	t.Logf("%d seeds, %d runs, %.0f seeds/s", n, runs.Load(), float64(n)/took.Seconds())
}

func report(t *testing.T, o outcome) {
	t.Helper()
	for _, v := range o.wrong {
		t.Errorf("seed %d: %s", o.seed, v)
	}
}

// each calls f for every seed, several at a time, until f returns false.
func each(t *testing.T, first, n uint64, f func(t *testing.T, seed uint64) bool) {
	t.Helper()
	var next atomic.Uint64
	var stop atomic.Bool
	next.Store(first)
	t.Run("workers", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for !stop.Load() {
					seed := next.Add(1) - 1
					if seed >= first+n {
						return
					}
					if !f(t, seed) {
						stop.Store(true)
					}
				}
			})
		}
	})
}

// A seed gives the same world each time.
func TestReplay(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	const n = 20
	each(t, 1, n, func(t *testing.T, seed uint64) bool {
		first, again := live(t, k, seed, none, nil), live(t, k, seed, none, nil)
		if first.hash != again.hash || first.events != again.events {
			t.Errorf("seed %d: trace %016x of %d events, then %016x of %d", seed, first.hash, first.events, again.hash, again.events)
		}
		return true
	})
}
