package faults_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/id"

	"signalbox.dev/services/e2e/world"
)

// users is the number of people who send one message after the other.
const users = 4

// load simulates people: each sends a message, watches its run to the end, sends another request,
// and then the next message.
type load struct {
	r      *rig
	cancel context.CancelFunc
	last   chan struct{} // closed when no more tasks may start
	people sync.WaitGroup

	mu    sync.Mutex // guards tasks
	tasks []*task    // started tasks, in order
}

func (r *rig) startLoad(people int) *load {
	ctx, cancel := context.WithCancel(r.ctx)
	l := &load{r: r, cancel: cancel, last: make(chan struct{})}
	for i := range people {
		l.people.Go(func() { l.work(ctx, i) })
	}
	return l
}

// drain ends the load once all running tasks are over. It is called once.
func (l *load) drain() {
	close(l.last)
	l.people.Wait()
}

// stop ends the load and abandons the running tasks.
func (l *load) stop() {
	l.cancel()
	l.people.Wait()
}

func (l *load) work(ctx context.Context, person int) {
	session := ""
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-l.last:
			return
		default:
		}
		if i%4 == 0 {
			session = l.r.newSession(ctx)
		}
		k := l.r.newTask(person + i)
		l.mu.Lock()
		l.tasks = append(l.tasks, k)
		l.mu.Unlock()
		k.do(ctx, session)
		k.ask(ctx, l.r.client(person+i), "/api/documents?limit=5")
		k.ask(ctx, l.r.client(person+i), "/api/tools")
		close(k.over)
	}
}

// newSession retries until a session is created.
func (r *rig) newSession(ctx context.Context) string {
	for gateway := 0; ; gateway++ {
		attempt, cancel := context.WithTimeout(ctx, requestTime)
		session, err := r.client(gateway).NewSession(attempt, "sim/notes")
		cancel()
		if err == nil {
			return session
		}
		if !wait(ctx, 200*time.Millisecond) {
			return ""
		}
	}
}

func (r *rig) newTask(gateway int) *task {
	key := id.New[id.Operation]().String()
	return &task{r: r, n: key[len(key)-12:], key: key, gateway: gateway, over: make(chan struct{})}
}

// underWay returns the number of the first task that is not over yet.
func (l *load) underWay() int {
	for n, k := range l.since(0) {
		select {
		case <-k.over:
		default:
			return n
		}
	}
	return len(l.since(0))
}

// since returns the tasks from the n-th on.
func (l *load) since(n int) []*task {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.tasks[n:])
}

// summary counts the results of some tasks.
type summary struct {
	ends               map[string]int
	retries, snapshots int
	hung               int
	refused            map[string]int
	slowest            time.Duration
	problems           []string
}

func summarize(tasks []*task) summary {
	s := summary{ends: map[string]int{}, refused: map[string]int{}}
	for _, k := range tasks {
		s.ends[k.end]++
		s.retries += k.retries
		s.snapshots += k.snapshots
		s.hung += k.hung
		for _, answer := range k.refused {
			s.refused[answer]++
		}
		if !k.ended.IsZero() {
			s.slowest = max(s.slowest, k.ended.Sub(k.accepted))
		}
		s.problems = append(s.problems, k.problems...)
	}
	return s
}

// String formats a summary in one line.
func (s summary) String() string {
	line := fmt.Sprintf("ends %s, slowest run %s", tally(s.ends), s.slowest.Round(100*time.Millisecond))
	for _, n := range []struct {
		what string
		n    int
	}{{"steps again", s.retries}, {"snapshots", s.snapshots}, {"requests without an answer", s.hung}} {
		if n.n > 0 {
			line += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	if len(s.refused) > 0 {
		line += ", refused " + tally(s.refused)
	}
	return line
}

func tally(counts map[string]int) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d × %s", counts[what], what))
	}
	return strings.Join(parts, ", ")
}

// finish waits until all tasks from the n-th on that have started are over, and returns them. Each
// has its own deadline; reaching this one is a failure.
func (l *load) finish(t *testing.T, from int) []*task {
	t.Helper()
	tasks := l.since(from)
	limit := time.After(stuck + 4*requestTime)
	for _, k := range tasks {
		select {
		case <-k.over:
		case <-limit:
			t.Fatalf("note %s, run %s is neither accepted nor over", k.n, k.run)
		}
	}
	return tasks
}

// probe runs some concurrent tasks and returns the duration of the slowest, and false if one
// failed.
func (r *rig) probe(ctx context.Context) (time.Duration, bool) {
	const n = 4
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	var wg sync.WaitGroup
	tasks := make([]*task, n)
	for i := range tasks {
		tasks[i] = r.newTask(i)
		wg.Go(func() { tasks[i].do(ctx, r.newSession(ctx)) })
	}
	wg.Wait()
	var slowest time.Duration
	for _, k := range tasks {
		if k.end != "ok" || len(k.problems) > 0 {
			return 0, false
		}
		slowest = max(slowest, k.took())
	}
	return slowest, true
}

// warmUp measures the normal duration of a run, and the normal counts of goroutines and
// connections.
func (r *rig) warmUp(t *testing.T) {
	t.Helper()
	for range 3 {
		took, ok := r.probe(r.ctx)
		if !ok {
			t.Fatal("a run fails without any trouble")
		}
		r.normal = max(r.normal, took)
	}
	r.before = r.count()
}

// recoveryTime is the time after a trouble in which runs may be slow.
const recoveryTime = 30 * time.Second

// recovered waits until new runs are as fast as before, with a tolerance for other tests on the
// machine, and returns how long that took.
func (r *rig) recovered() (time.Duration, error) {
	begun := time.Now()
	for {
		took, ok := r.probe(r.ctx)
		if ok && took <= 3*r.normal+500*time.Millisecond {
			return time.Since(begun) - took, nil
		}
		if time.Since(begun) > recoveryTime {
			return 0, fmt.Errorf("%s after the trouble new runs have not recovered: one took %s (succeeded: %v), normal is %s", time.Since(begun).Round(time.Second), took, ok, r.normal)
		}
	}
}

// stored compares the viewers' view of runs with the stored runs.
func (r *rig) stored(tasks []*task) []string {
	var out []string
	for _, k := range tasks {
		if k.run == "" {
			continue
		}
		run, err := world.Client{URL: r.Gateways[0], Who: r.who, HTTP: r.http}.Run(r.ctx, k.run)
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("run %s: %v", k.run, err))
		case !run.Ended():
			out = append(out, fmt.Sprintf("run %s is %s", k.run, run.State))
		case (k.end == "ok" && run.Text != written(k.n)):
			out = append(out, fmt.Sprintf("run %s: its viewer saw a whole answer, stored is %q", k.run, run.Text))
		}
	}
	return out
}
