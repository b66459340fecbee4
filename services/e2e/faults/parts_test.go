package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/faultproxy"
	"signalbox.dev/services/e2e/world"
)

// TestParts suspends, kills and restarts parts.
//
//nolint:paralleltest // one trouble at a time: they share a cluster
func TestParts(t *testing.T) {
	t.Parallel()
	needFull(t)
	r := newRig(t, world.Options{Durable: true})
	const long = 30 * time.Second
	t.Run("a stopped runner", func(t *testing.T) { r.freeze(t, r.Replica(subject.AgentRunner, 1), long) })
	t.Run("a runner stopped while it publishes", func(t *testing.T) {
		r.freezeInTransaction(t, r.Replica(subject.AgentRunner, 1), "FROM outbox WHERE id >", long)
	})
	t.Run("a stopped executor", func(t *testing.T) { r.freezeExecutor(t, long) })
	t.Run("a stopped gateway", func(t *testing.T) { r.freeze(t, r.Replica(subject.Gateway, 1), long) })
	t.Run("postgres restarted", func(t *testing.T) { r.restart(t, r.Postgres, world.Part.Stop) })
	t.Run("postgres killed", func(t *testing.T) { r.restart(t, r.Postgres, world.Part.Kill) })
	t.Run("nats restarted", func(t *testing.T) { r.restart(t, r.Proc(world.NATSName), world.Part.Stop) })
	t.Run("nats killed", func(t *testing.T) { r.restart(t, r.Proc(world.NATSName), world.Part.Kill) })
	t.Run("nats wiped", r.wipe)
	t.Run("started in any order", r.anyOrder)
	r.once(t)
	r.settle(t, idle)
}

// TestRollingRestart restarts all processes one after the other, like a deployment.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	needFull(t)
	r := newRig(t, world.Options{})
	r.roll(t, world.Services())
	r.load.drain()
	// Before, nothing failed, so each model call belongs to a step.
	if calls, steps := r.modelCalls(t), r.steps(t); calls != steps {
		t.Errorf("the model was called %d times for %d steps", calls, steps)
	}
	r.once(t)
}

// restart ends a part and restarts it after a while.
func (r *rig) restart(t *testing.T, p world.Part, end func(world.Part) error) {
	t.Helper()
	r.suffer(t, t.Name(), func() {
		if err := end(p); err != nil {
			t.Fatal(err)
		}
		wait(t.Context(), 2*time.Second)
		if err := errors.Join(p.Restart(), p.Ready(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
}

// wipe deletes the data of NATS.
func (r *rig) wipe(t *testing.T) {
	r.suffer(t, "nats wiped", func() {
		if err := r.WipeNATS(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// anyOrder kills everything and starts the services before their dependencies.
func (r *rig) anyOrder(t *testing.T) {
	r.suffer(t, "started in any order", func() {
		for _, p := range r.Parts() {
			if p.Name() == world.SimulatorName {
				continue // it would forget its script
			}
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		start := func(of func(world.Part) bool) {
			for _, p := range slices.Backward(r.Parts()) { // gateways first
				if p.Running() || !of(p) {
					continue
				}
				if err := p.Restart(); err != nil {
					t.Fatal(err)
				}
			}
		}
		is := func(name string) func(world.Part) bool { return func(p world.Part) bool { return p.Name() == name } }
		start(func(p world.Part) bool { return p.Name() != world.PostgresName && p.Name() != world.NATSName })
		wait(t.Context(), 4*time.Second)
		for _, p := range r.Procs() {
			if !p.Running() && p.Service != world.NATSName {
				t.Errorf("%s did not wait for Postgres and NATS:\n%s", p.Name(), p.Tail(2000))
			}
		}
		start(is(world.NATSName))
		wait(t.Context(), 2*time.Second)
		start(is(world.PostgresName))
		for _, p := range r.Parts() {
			if err := p.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// freeze suspends a busy process with SIGSTOP and resumes it later, as a zombie whose work others
// have done meanwhile.
func (r *rig) freeze(t *testing.T, p *world.Proc, d time.Duration) {
	t.Helper()
	from, held := r.stopBusy(t, p)
	r.thaw(t, p, d, from, held)
}

// freezeInTransaction is freeze during an open transaction, whose locks are held until the server
// ends it. lock is part of the transaction's last statement.
func (r *rig) freezeInTransaction(t *testing.T, p *world.Proc, lock string, d time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(world.Timeout); ; {
		from := r.load.underWay()
		signal(t, p, syscall.SIGSTOP)
		wait(t.Context(), 120*time.Millisecond) // other open transactions end within this time
		var open int
		err := r.db.QueryRow(t.Context(), `
			select count(*) from pg_stat_activity
			where application_name = $1 and state = 'idle in transaction' and query like '%' || $2 || '%'
				and state_change < clock_timestamp() - interval '100 ms'`, p.Service, lock).Scan(&open)
		if err != nil {
			t.Fatal(err)
		}
		if open > 0 {
			r.thaw(t, p, d, from, r.heldBy(t, p))
			return
		}
		signal(t, p, syscall.SIGCONT)
		if time.Now().After(deadline) {
			t.Logf("%s could not be caught in such a transaction", p.Name())
			return
		}
		wait(t.Context(), rand.N(50*time.Millisecond))
	}
}

// thaw resumes a suspended process after a while, and checks what happened to its work.
func (r *rig) thaw(t *testing.T, p *world.Proc, d time.Duration, from int, held map[string]int) {
	t.Helper()
	defer signal(t, p, syscall.SIGCONT)
	timer := time.After(d)

	// Others do not wait for it: its work is done while it is suspended.
	tasks := r.load.finish(t, from)
	took := summarize(tasks).slowest
	if took > d {
		t.Errorf("while %s was suspended a run took %s", p.Name(), took)
	}
	<-timer
	for run, epoch := range held {
		var now int
		if err := r.db.QueryRow(t.Context(), `select epoch from agent.runs where id = $1`, run).Scan(&now); err != nil || now <= epoch {
			t.Errorf("run %s has epoch %d (%v), and had %d when its runner was suspended: no other runner claimed it", run, now, err, epoch)
		}
	}
	before := r.rows(t, tasks)
	signal(t, p, syscall.SIGCONT)
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	back, err := r.recovered()
	if err != nil {
		t.Error(err)
	}
	r.check(t, t.Name(), from, back)
	// Its writes after it was resumed have no effect.
	after := r.rows(t, tasks)
	for run, row := range before {
		if after[run] != row {
			t.Errorf("run %s was %q while %s was suspended, and %q afterwards", run, row, p.Name(), after[run])
		}
	}
	r.reread(t, tasks)
}

func signal(t *testing.T, p *world.Proc, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// stopBusy suspends a busy process and returns the runs of a runner with their epochs. from is the
// first running task.
func (r *rig) stopBusy(t *testing.T, p *world.Proc) (from int, held map[string]int) {
	t.Helper()
	for range 20 {
		r.whenBusy(t, p)
		from = r.load.underWay()
		signal(t, p, syscall.SIGSTOP)
		if p.Service != subject.AgentRunner {
			return from, nil
		}
		if held = r.heldBy(t, p); len(held) > 0 {
			return from, held
		}
		signal(t, p, syscall.SIGCONT) // its work ended at that moment
	}
	t.Fatalf("%s was never busy", p.Name())
	return 0, nil
}

// heldBy returns the runs that a runner has claimed, with their epochs.
func (r *rig) heldBy(t *testing.T, p *world.Proc) map[string]int {
	t.Helper()
	rows, err := r.db.Query(t.Context(), `select id::text, epoch from agent.runs where state = 'running' and runner like '%/' || $1 || '/%'`, strconv.Itoa(p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	held := map[string]int{}
	for rows.Next() {
		var run string
		var epoch int
		if err := rows.Scan(&run, &epoch); err != nil {
			t.Fatal(err)
		}
		held[run] = epoch
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return held
}

// whenBusy waits until a process is busy.
func (r *rig) whenBusy(t *testing.T, p *world.Proc) {
	t.Helper()
	metric := "signalbox_bus_in_hand{"
	switch p.Service {
	case subject.Gateway:
		return // it always has viewers
	case subject.AgentRunner:
		metric = "signalbox_runs_in_hand" // most runs do not arrive on the bus
	}
	for deadline := time.Now().Add(world.Timeout); ; {
		n, err := r.metric(t.Context(), p, metric)
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was never busy: %d, %v", p.Name(), n, err)
		}
	}
}

// freezeExecutor suspends an executor during slow calls.
func (r *rig) freezeExecutor(t *testing.T, d time.Duration) {
	const link = "tool-executor → document-sync"
	r.set(t, link, faultproxy.Fault{Latency: 500 * time.Millisecond})
	defer r.set(t, link, faultproxy.Fault{})
	r.whenBusy(t, r.Replica(subject.ToolExecutor, 1))
	r.set(t, link, faultproxy.Fault{})
	r.freeze(t, r.Replica(subject.ToolExecutor, 1), d)
}

// rows returns the stored state of runs.
func (r *rig) rows(t *testing.T, tasks []*task) map[string]string {
	t.Helper()
	var ids []string
	for _, k := range tasks {
		if k.run != "" {
			ids = append(ids, k.run)
		}
	}
	rows, err := r.db.Query(t.Context(), `select id::text, row_to_json(r)::text from agent.runs r where id = any($1::uuid[])`, ids)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var run, row string
		if err := rows.Scan(&run, &row); err != nil {
			t.Fatal(err)
		}
		out[run] = row
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// reread watches ended runs again at both gateways: whatever a zombie wrote into the log, readers
// see one dense stream with the same end.
func (r *rig) reread(t *testing.T, tasks []*task) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), world.Timeout)
	defer cancel()
	for _, k := range tasks {
		for gateway := range r.gateways {
			if k.run == "" {
				continue
			}
			again := &task{r: r, n: k.n, gateway: gateway, session: k.session, run: k.run, over: make(chan struct{})}
			v := &viewer{task: again}
			if !v.watch(ctx) {
				t.Fatalf("run %s cannot be read again: %s", k.run, v.last())
			}
			if again.end != k.end {
				again.wrong("it ended with %q, and now with %q", k.end, again.end)
			}
			for _, p := range again.problems {
				t.Errorf("read again at gateway %d: %s", gateway+1, p)
			}
			if len(again.problems) > 0 {
				r.explain(t, k)
			}
		}
	}
}

// roll restarts all replicas of services, one after the other: a retry with the same key succeeds
// after any failed request, and no step is run twice.
func (r *rig) roll(t *testing.T, services []string) {
	t.Helper()
	s := r.suffer(t, "everything restarted", func() {
		for _, p := range r.Procs() {
			if !slices.Contains(services, p.Service) {
				continue
			}
			begun := time.Now()
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			drained := time.Since(begun)
			if err := errors.Join(p.Restart(), p.Ready(t.Context())); err != nil {
				t.Fatal(err)
			}
			t.Logf("%-20s drained in %4.1f s, ready %4.1f s later", p.Name(), drained.Seconds(), (time.Since(begun) - drained).Seconds())
		}
	})
	for end, n := range s.ends {
		if end != "ok" {
			t.Errorf("%d runs ended with %q because of a restart", n, end)
		}
	}
	if s.retries > 0 {
		t.Errorf("%d steps were run again, but a runner that drains should finish its step", s.retries)
	}
	if s.hung > 0 {
		t.Errorf("%d requests got no response", s.hung)
	}
}

// modelCalls returns the number of requests to the simulated provider since its start.
func (r *rig) modelCalls(t *testing.T) (n int) {
	t.Helper()
	err := r.get(t.Context(), r.Simulator+"/simulator/streams", func(body io.Reader) error {
		var counted struct{ Requests int }
		err := json.NewDecoder(body).Decode(&counted)
		n = counted.Requests
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// steps returns the number of steps of all runs.
func (r *rig) steps(t *testing.T) (n int) {
	t.Helper()
	if err := r.db.QueryRow(t.Context(), `select coalesce(sum(steps), 0) from agent.runs`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
