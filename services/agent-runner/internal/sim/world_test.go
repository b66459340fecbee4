package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// world is everything around the runners. Its lock guards all models.
type world struct {
	seed  uint64
	shape shape
	plant plant
	start time.Time
	out   io.Writer // the trace, for people; nil: none
	kit   *kit

	mu       sync.Mutex // guards what follows and the models
	hash     uint64     // of all that happened
	events   int
	counts   map[string]uint64  // draws by name
	taken    map[time.Time]bool // moments at which something takes effect
	wrong    []string           // what must not happen and did
	calm     bool               // chaos is over
	quiet    bool               // everything is, nothing is noted any more
	troubles int                // faults that last
	trouble  time.Time          // when the last one was mended
	crowded  time.Time          // when there last was no free slot
	saidAll  time.Time          // when the outbox was last seen empty
	reported bool               // something waits for too long
	lives    int                // of processes

	pg        *postgres
	nats      *jet
	providers *providers
	executors *executors
	processes []*process // those that live, by slot
	all       []*process // all there ever were
	watcher   observer
}

// draw returns the next random number of a name's sequence.
func (w *world) draw(name string) uint64 {
	n := w.counts[name]
	w.counts[name] = n + 1
	return mix(hashOf(w.seed, name) + n*0x9e3779b97f4a7c15)
}

func hashOf(h uint64, s string) uint64 {
	h ^= 14695981039346656037
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// chance is true with probability p.
func (w *world) chance(name string, p float64) bool {
	return p > 0 && float64(w.draw(name)>>11)/(1<<53) < p
}

// between returns a time from lo to hi.
func (w *world) between(name string, lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.draw(name)%uint64(max(hi-lo, 1)))
}

// pick returns a number below n.
func (w *world) pick(name string, n int) int { return int(w.draw(name) % uint64(max(n, 1))) }

// moment returns a wait of about d that ends at a unique time.
func (w *world) moment(d time.Duration) time.Duration {
	at := time.Now().Add(d)
	for w.taken[at] {
		at = at.Add(1)
	}
	w.taken[at] = true
	return time.Until(at)
}

// locked calls f under the world's lock.
func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// after calls f under the lock after about d, at a unique time.
func (w *world) after(d time.Duration, f func()) {
	time.AfterFunc(w.moment(d), func() { w.locked(f) })
}

// note adds a line to the trace.
func (w *world) note(parts ...string) {
	if w.quiet {
		return
	}
	at := time.Since(w.start)
	w.events++
	w.hash = mix(w.hash + uint64(at))
	for _, p := range parts {
		w.hash = hashOf(w.hash, p)
	}
	if w.out != nil {
		fmt.Fprintf(w.out, "%14.6f  %s\n", at.Seconds(), strings.Join(parts, " "))
	}
}

// violation notes what must not happen.
func (w *world) violation(format string, args ...any) {
	if w.quiet {
		return
	}
	what := fmt.Sprintf("at %.3f s: ", time.Since(w.start).Seconds()) + fmt.Sprintf(format, args...)
	if len(w.wrong) < 20 {
		w.wrong = append(w.wrong, what)
	}
	w.note("VIOLATED", what)
}

// request is a request of a process to the world.
type request struct {
	name   string        // of the process and its request; seeds its random numbers
	lo, hi time.Duration // how long it takes
	// do is the effect, under the world's lock. The process may be dead by then.
	do func() error
}

// errDead is the result of a killed process's requests.
var errDead = errors.New("this process is dead")

// request applies a request once, or not at all if p dies or ctx ends before. It returns the
// result once p runs again, if p is stopped.
func (w *world) request(ctx context.Context, p *process, r request) error {
	if err := p.enter(ctx, r.name); err != nil {
		return err
	}
	var wait time.Duration
	var anyway bool
	w.locked(func() {
		wait = w.moment(w.between(r.name, r.lo, r.hi))
		anyway = w.chance(r.name, 0.5)
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	asked := time.Now()
	var err error
	select {
	case <-timer.C:
		w.mu.Lock()
		if p.dead && !anyway {
			err = errDead
		} else {
			err = r.do()
		}
		w.mu.Unlock()
	case <-ctx.Done():
		if anyway { // it was on its way
			time.AfterFunc(wait-time.Since(asked), func() { w.locked(func() { _ = r.do() }) })
		}
		return ctx.Err()
	}
	if gone := p.enter(context.WithoutCancel(ctx), r.name); gone != nil {
		return gone
	}
	return err
}

// sleep waits for d. It returns the cause if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
