package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"signalbox.dev/pkg/subject"
)

// shape is the size of a world, and which faults it has how often.
type shape struct {
	runners, executors, people int
	slots                      int
	together                   bool          // everybody is of one workspace
	perWorkspace               int           // runs that runners may have of one; 0: no limit
	asks                       bool          // some tools need a person's approval, and clients run one
	fruitless                  int           // claims, before a run is given up
	chaos                      time.Duration // how long there are faults
	pace                       time.Duration // between two
	faults                     []fate        // that may happen

	slowRows, slowBus, lostAnswers, lostAcks, lostNudges, staleReads float64
	modelRefuses, modelBreaks                                        float64
}

// shapeOf draws a shape. A few kinds of faults together find more than all at once. Some worlds
// have no faults, so that a violation there has no excuse.
func (w *world) shapeOf() shape {
	p := func(most float64) float64 {
		if w.chance("shape", 0.5) {
			return 0
		}
		return most * float64(w.pick("shape", 1000)) / 1000
	}
	s := shape{
		runners: 1 + w.pick("shape", 3), executors: 1 + w.pick("shape", 2), people: 1 + w.pick("shape", 3), slots: 1 + w.pick("shape", 4),
		fruitless: usualFruitless,
	}
	if s.together = w.chance("shape", 0.5); s.together {
		s.perWorkspace = w.pick("shape", 3)
	}
	s.asks = w.chance("shape", 0.5)
	if w.chance("shape", 0.05) {
		return s
	}
	s.chaos = w.between("shape", 5*time.Second, 40*time.Second)
	s.pace = w.between("shape", 300*time.Millisecond, 6*time.Second)
	if w.chance("shape", 0.1) {
		s.fruitless = w.pick("shape", 3)
	}
	for _, f := range allFates {
		if w.chance("shape", 0.35) {
			s.faults = append(s.faults, f)
		}
	}
	s.slowRows, s.slowBus, s.lostAnswers, s.lostAcks = p(0.05), p(0.15), p(0.15), p(0.15)
	s.lostNudges, s.staleReads, s.modelRefuses, s.modelBreaks = p(1), p(0.3), p(0.2), p(0.3)
	return s
}

// usualFruitless is more fruitless claims than the faults of a world can cause.
const usualFruitless = 20

// fate is a kind of fault.
type fate string

const (
	killRunner     fate = "kill a runner"
	drainRunner    fate = "drain a runner"
	stopRunner     fate = "stop a runner for a while"
	killExecutor   fate = "kill an executor"
	postgresAway   fate = "postgres is away"
	postgresHangs  fate = "postgres hangs"
	postgresForOne fate = "postgres is out of reach for one"
	natsDown       fate = "nats is down"
	natsForOne     fate = "nats is out of reach for one"
	noLeader       fate = "a stream has no leader"
	natsSilent     fate = "a stream is silent"
	natsWiped      fate = "jetstream is wiped"
	natsUnsynced   fate = "nats dies before it has synced"
	deliveredTwice fate = "a message is delivered twice"
	modelsAway     fate = "the broker is away"
	toolsAway      fate = "the executors' door is away"
	clockJumps     fate = "the clock of postgres jumps"
)

var allFates = [...]fate{
	killRunner, drainRunner, stopRunner, killExecutor, postgresAway, postgresHangs, postgresForOne, natsDown, natsForOne, noLeader, natsSilent,
	natsWiped, natsUnsynced, deliveredTwice, modelsAway, toolsAway, clockJumps,
}

// rule plays faults for a while and then ends them all.
func (w *world) rule(ctx context.Context) {
	end := time.Now().Add(w.shape.chaos)
	var mending sync.WaitGroup
	for len(w.shape.faults) > 0 {
		var pause time.Duration
		w.locked(func() { pause = w.moment(w.between("fate", 0, 2*w.shape.pace)) })
		if time.Now().Add(pause).After(end) || sleep(ctx, pause) != nil {
			break
		}
		w.mu.Lock()
		f := w.shape.faults[w.pick("fate", len(w.shape.faults))]
		w.strike(ctx, f, &mending)
		w.mu.Unlock()
	}
	_ = sleep(ctx, time.Until(end))
	mending.Wait()
	// At a time of its own: whoever waited for the last fault's end must not race with the calm.
	var pause time.Duration
	w.locked(func() { pause = w.moment(time.Millisecond) })
	_ = sleep(ctx, pause)
	w.locked(func() {
		w.calm, w.trouble = true, later(w.trouble, time.Now())
		w.note("calm")
	})
}

// strike plays a fault; mend waits for its end.
func (w *world) strike(ctx context.Context, f fate, mending *sync.WaitGroup) {
	name := "fate " + string(f)
	// soon calls a function after a while; mend ends a fault.
	soon := func(lo, hi time.Duration, do func()) {
		d := w.moment(w.between(name, lo, hi))
		w.note("FAULT", string(f), fmt.Sprint(d))
		mending.Go(func() {
			_ = sleep(ctx, d) // at the end of the world everything is mended at once
			w.locked(do)
		})
	}
	mend := func(lo, hi time.Duration, undo func()) {
		w.troubles++
		soon(lo, hi, func() {
			w.troubles--
			w.trouble = later(w.trouble, time.Now())
			undo()
			w.note("mended", string(f))
			w.pump()
		})
	}
	one := func(first, n int) *process {
		p := w.processes[first+w.pick(name, n)]
		if p == nil || p.dead {
			return nil
		}
		p.ill = time.Now().Add(time.Hour)
		w.note("FAULT", string(f), p.name)
		return p
	}
	runner := func() *process { return one(0, w.shape.runners) }
	well := func(p *process) { p.ill = time.Now() }
	switch f {
	case killRunner, killExecutor:
		p := runner()
		if f == killExecutor {
			p = one(w.shape.runners, w.shape.executors)
		}
		if p != nil && !p.leaves() {
			w.die(p)
			soon(100*time.Millisecond, 4*time.Second, func() { w.begin(p.slot) }) //nolint:contextcheck // a process lives by its own
		}
	case drainRunner:
		if p := runner(); p != nil && !p.leaves() {
			p.leave()
			mending.Go(func() { //nolint:contextcheck // a process lives by its own
				select {
				case <-p.left:
				case <-p.ctx.Done(): // killed meanwhile
				}
				w.locked(func() {
					if !p.dead {
						w.die(p)
						w.begin(p.slot)
					}
				})
			})
		}
	case stopRunner:
		if p := runner(); p != nil && p.resumed == nil {
			resumed := make(chan struct{})
			p.resumed = resumed
			mend(200*time.Millisecond, 30*time.Second, func() {
				if p.resumed == resumed {
					p.resumed = nil
					close(resumed)
					well(p)
				}
			})
		}
	case postgresForOne:
		if p := runner(); p != nil && !p.noPostgres {
			p.noPostgres = true
			w.vanish(p)
			if w.pg.holder == p {
				w.pg.unlockOutbox(p)
			}
			mend(200*time.Millisecond, 12*time.Second, func() { p.noPostgres = false; well(p) })
		}
	case natsForOne:
		if p := runner(); p != nil && !p.noNATS {
			p.noNATS = true
			mend(200*time.Millisecond, 12*time.Second, func() { p.noNATS = false; well(p) })
		}
	default:
		w.strikeAll(f, name, mend)
	}
}

// strikeAll plays a fault that affects all processes.
func (w *world) strikeAll(f fate, name string, mend func(lo, hi time.Duration, undo func())) {
	switch f {
	case postgresAway, postgresHangs:
		if w.pg.away || w.pg.hangs {
			return
		}
		w.pg.away, w.pg.hangs = f == postgresAway, f == postgresHangs
		w.pg.crash()
		for _, p := range w.processes {
			if p != nil {
				w.vanish(p)
			}
		}
		w.allIll(time.Hour)
		mend(100*time.Millisecond, 7*time.Second, func() {
			w.pg.away, w.pg.hangs = false, false
			w.allIll(0)
			w.echo(f)
		})
	case natsDown, natsUnsynced:
		if w.nats.down {
			return
		}
		w.nats.down = true
		if f == natsUnsynced {
			w.nats.loseTail(100 * time.Millisecond)
		}
		mend(100*time.Millisecond, 6*time.Second, func() { w.nats.down = false })
	case natsWiped:
		w.note("FAULT", string(f))
		w.nats.wipe()
		w.trouble = later(w.trouble, time.Now())
	case noLeader, natsSilent:
		s := w.nats.streams[w.pick(name, len(w.nats.streams))]
		if s.state != serving {
			return
		}
		s.state = leaderless
		if f == natsSilent {
			s.state = silent
		}
		w.note(s.name)
		mend(100*time.Millisecond, 7*time.Second, func() {
			s.state = serving
			w.echo(f)
		})
	case deliveredTwice:
		w.trouble = later(w.trouble, time.Now())
		w.note("FAULT", string(f))
		w.nats.stream(subject.Runs).reader.repeat(name)
		w.nats.stream(subject.Tools).reader.repeat(name)
	case clockJumps:
		// Leases expire at once, or last longer than they should.
		w.pg.ahead = w.between(name, -20*time.Second, 20*time.Second)
		w.note("FAULT", string(f), w.pg.ahead.String())
		w.allIll(0)
		w.trouble = later(w.trouble, time.Now())
		for _, r := range w.pg.allRuns {
			w.trouble = later(w.trouble, r.lease.Add(-w.pg.ahead))
		}
	case modelsAway:
		if !w.providers.away {
			w.providers.away = true
			mend(100*time.Millisecond, 6*time.Second, func() { w.providers.away = false })
		}
	case toolsAway:
		if !w.executors.away {
			w.executors.away = true
			mend(100*time.Millisecond, 6*time.Second, func() { w.executors.away = false })
		}
	}
}

// echo is how long requests may still wait after a fault for a reply that was due during it.
func (w *world) echo(f fate) {
	if f == postgresHangs || f == natsSilent {
		w.trouble = later(w.trouble, time.Now().Add(acquireTimeout+time.Second))
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// allIll marks all processes as unhealthy for a while.
func (w *world) allIll(d time.Duration) {
	for _, p := range w.processes {
		if p != nil && p.ill.Before(time.Now().Add(d)) || d == 0 && p != nil && p.resumed == nil && !p.noPostgres && !p.noNATS {
			p.ill = time.Now().Add(d)
		}
	}
}

// pump delivers messages that waited for the end of a fault.
func (w *world) pump() {
	for _, s := range w.nats.streams {
		if s.reader != nil {
			s.reader.pump()
		}
	}
}

// begin starts a process in a slot of the world.
func (w *world) begin(slot int) {
	w.lives++
	kind := "executor"
	if slot < w.shape.runners {
		kind = "runner"
	}
	p := w.newProcess(slot, fmt.Sprintf("%s %d.%d", kind, slot, w.lives))
	w.processes[slot] = p
	w.all = append(w.all, p)
	w.note("start", p.name)
	if kind == "runner" {
		w.appear(p)
	}
	wait := w.moment(w.between(p.name, 0, 20*time.Millisecond))
	p.work.Go(func() {
		if sleep(p.ctx, wait) != nil {
			return
		}
		if kind == "runner" {
			w.startRunner(p)
		} else {
			w.startExecutor(p)
		}
	})
}

// die kills a process now.
func (w *world) die(p *process) {
	w.note("dies", p.name)
	p.dead, p.died, p.present = true, time.Now(), time.Time{}
	w.pg.unlockOutbox(p)
	p.kill()
}

// runners returns the live runners.
func (w *world) runners() []*process {
	var out []*process
	for _, p := range w.processes[:w.shape.runners] {
		if p != nil && !p.dead && p.ready {
			out = append(out, p)
		}
	}
	return out
}
