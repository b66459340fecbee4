package zombies_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/sse"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// timeout bounds every wait.
const timeout = time.Minute

const partitions = 4

// lease is the duration of a run's claim without a renewal.
const lease = 2 * time.Second

// rig is a cluster whose model provider and far end belong to the test.
type rig struct {
	*world.World
	ctx    context.Context //nolint:containedctx // the test's
	db     *pgxpool.Pool   // of an administrator
	model  *provider
	far    *farend.Server
	who    world.Member
	reader *bus.Bus // of the run log
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{ctx: t.Context(), model: newProvider(), far: farend.New()}
	model, far := httptest.NewServer(r.model), httptest.NewServer(r.far)
	t.Cleanup(func() {
		r.model.close()
		r.far.Close()
		model.Close()
		far.Close()
	})
	programs := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := world.Build(r.ctx, programs); err != nil {
		t.Fatal(err)
	}
	w, err := world.Start(r.ctx, world.Options{
		Dir: t.ArtifactDir(), Programs: programs, Partitions: partitions,
		Program: func(service string, _ int) string {
			if service != subject.ToolExecutor {
				return ""
			}
			return filepath.Join(programs, "tool-executor-farends")
		},
		Env: func(service string, _ int) []string {
			return []string{"FAR_END_URL=" + far.URL, "AGENT_RUNNER_LEASE=" + lease.String(), "AGENT_RUNNER_BEAT=" + (lease / 2).String(), "TOOL_EXECUTOR_LEASE=" + lease.String()}
		},
		Via: func(l world.Link) (string, error) {
			if l.To == world.SimulatorName {
				return strings.TrimPrefix(model.URL, "http://"), nil
			}
			return l.Address, nil
		},
	})
	if w != nil {
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.World = w
	if r.db, err = pgxpool.New(r.ctx, w.Database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	if r.who, err = w.NewMember(r.ctx, "", "owner"); err != nil {
		t.Fatal(err)
	}
	return r
}

// session creates a session with these tools.
func (r *rig) session(t *testing.T, tools ...string) string {
	t.Helper()
	var made struct{ Session struct{ ID string } }
	err := r.Client(0, r.who).Call(r.ctx, world.Request{
		Method: http.MethodPost, Path: "/api/sessions", Body: map[string]any{"model": "sim/zombies", "tools": append([]string{}, tools...)},
	}, &made)
	if err != nil {
		t.Fatal(err)
	}
	return made.Session.ID
}

func (r *rig) submit(t *testing.T, session, text string) (run string) {
	t.Helper()
	started, err := r.Client(0, r.who).Submit(r.ctx, session, world.Sending{Content: text})
	if err != nil {
		t.Fatal(err)
	}
	return started.ID
}

// ended waits for the end of a run.
func (r *rig) ended(t *testing.T, id string) world.Run {
	t.Helper()
	var run world.Run
	eventually(t, "the run ends", func() bool {
		var err error
		run, err = r.Client(0, r.who).Run(r.ctx, id)
		return err == nil && run.Ended()
	})
	return run
}

// lock runs a statement that takes a lock, and returns a function that releases it.
func (r *rig) lock(t *testing.T, sql string, args ...any) (release func()) {
	t.Helper()
	tx, err := r.db.Begin(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	var once bool
	release = func() {
		if !once {
			once = true
			_ = tx.Rollback(context.WithoutCancel(r.ctx)) // if it fails, the connection closes, which releases the lock too
		}
	}
	t.Cleanup(release)
	if _, err := tx.Exec(r.ctx, sql, args...); err != nil {
		t.Fatal(err)
	}
	return release
}

// value reads one value from the database.
func value[T any](t *testing.T, r *rig, sql string, args ...any) T {
	t.Helper()
	rows, err := r.db.Query(r.ctx, sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// metric sums a metric over all replicas of a service: the lines with this prefix.
func (r *rig) metric(t *testing.T, service, line string) (sum float64) {
	t.Helper()
	for n := 1; n <= 2; n++ {
		sum += r.metricOf(t, r.Replica(service, n), line)
	}
	return sum
}

// metricOf is metric for one replica.
func (r *rig) metricOf(t *testing.T, p *world.Proc, line string) (sum float64) {
	t.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, p.Ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), line) {
			v, err := strconv.ParseFloat(lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// viewed is an event as a viewer sees it.
type viewed struct{ ID, Type, Data string }

// watch collects the events of a run after an event, until the run's end.
func (r *rig) watch(t *testing.T, gateway int, run, after string) (wait func() []viewed) {
	t.Helper()
	var all []viewed
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	go func() {
		defer cancel()
		next := func() world.Client { return r.Client(gateway, r.who) }
		done <- world.Follow(ctx, next, world.RunEvents(run), after, func(ev sse.Event) bool {
			all = append(all, viewed{string(ev.ID), ev.Type, string(ev.Data)})
			return ev.Type != "done" && ev.Type != "error"
		})
	}()
	return func() []viewed {
		t.Helper()
		if err := <-done; err != nil {
			t.Fatalf("events of run %s at gateway %d: %v", run, gateway+1, err)
		}
		return all
	}
}

// check checks that events are those of a run from its first to its last, numbered without gaps
// or duplicates.
func check(t *testing.T, where string, events []viewed) {
	t.Helper()
	for i, ev := range events {
		if _, number, _ := strings.Cut(ev.ID, "-"); number != strconv.Itoa(i) {
			t.Errorf("%s: event %d (%s) has the id %s: events are missing or duplicated", where, i, ev.Type, ev.ID)
		}
	}
}

// text returns the final text of events: a step-retry retracts the text before it.
func text(t *testing.T, events []viewed) (said string) {
	t.Helper()
	for _, ev := range events {
		switch ev.Type {
		case "step-retry":
			said = ""
		case "text-delta":
			var d struct{ Delta string }
			if err := json.Unmarshal([]byte(ev.Data), &d); err != nil {
				t.Fatal(err)
			}
			said += d.Delta
		}
	}
	return said
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(timeout)
	defer end.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %s: %s", timeout, what)
		}
	}
}
