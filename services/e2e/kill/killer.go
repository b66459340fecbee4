package kill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/world"
)

// killer kills and restarts parts. run is its goroutine; each part that is down has another one,
// and each program one that waits for its end.
type killer struct {
	*harness
	rnd *rand.Rand

	wg   sync.WaitGroup
	mu   sync.Mutex // guards the rest
	busy map[string]bool
}

// run kills until the limit or until ctx is done, every other time at a border, and returns
// when all parts are up again.
func (k *killer) run(ctx context.Context) {
	defer k.wg.Wait()
	for n := range k.cfg.Kills {
		var services []string
		if n%2 == 0 {
			if !pause(ctx, between(k.rnd, k.cfg.Least, k.cfg.Most)) {
				return
			}
		} else if !pause(ctx, k.cfg.Least) {
			return
		} else if b, of := k.lurk(k.rnd, k.cfg.Most); b != "" {
			services = of
			k.count(func(r *Report) { r.Borders[b]++ })
		}
		victim := k.choose(services)
		if victim == nil {
			continue
		}
		away := between(k.rnd, leastDown, mostDown)
		k.kill(ctx, victim, away)
	}
}

// choose picks a running part, of these services if one of theirs is running.
func (k *killer) choose(services []string) world.Part {
	var alive, preferred []world.Part
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.world.Parts() {
		if k.wanted(p.Name()) && !k.busy[p.Name()] {
			alive = append(alive, p)
			if slices.Contains(services, world.KindOf(p.Name())) {
				preferred = append(preferred, p)
			}
		}
	}
	if len(alive) == 0 {
		return nil
	}
	if len(preferred) > 0 {
		alive = preferred
	}
	victim := alive[k.rnd.IntN(len(alive))]
	k.busy[victim.Name()] = true
	return victim
}

func (k *killer) wanted(name string) bool {
	for _, prefix := range k.cfg.Only {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return len(k.cfg.Only) == 0
}

func (k *killer) kill(ctx context.Context, victim world.Part, away time.Duration) {
	var runs []string
	if p, ok := victim.(*world.Proc); ok && p.Service == subject.AgentRunner {
		runs = k.claimed(ctx, p)
	}
	d := &death{part: victim.Name(), at: time.Now()}
	if err := victim.Kill(); err != nil {
		k.fatal(err)
		return
	}
	k.pauses.died(d)
	k.pauses.owned(d, runs)
	k.count(func(r *Report) { r.Kills[world.KindOf(victim.Name())]++ })
	k.wg.Go(func() {
		// Even when ctx is done, so that the conversations can end.
		pause(context.WithoutCancel(ctx), away)
		k.revive(context.WithoutCancel(ctx), victim)
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.busy, victim.Name())
	})
}

// restart stops and starts each replica of each service, one after the other, as for an upgrade.
func (k *killer) restart(ctx context.Context) error {
	for range k.cfg.Restarts {
		for _, p := range k.world.Procs() {
			if !slices.Contains(world.Services(), p.Service) || !k.wanted(p.Name()) {
				continue
			}
			if !pause(ctx, between(k.rnd, k.cfg.Least, k.cfg.Most)) {
				return nil
			}
			k.mu.Lock()
			k.busy[p.Name()] = true // so that supervise leaves it alone
			k.mu.Unlock()
			k.died(p.Service) // a drain takes seconds: all pauses from here on are its
			if err := p.Stop(); err != nil {
				return err
			}
			k.revive(context.WithoutCancel(ctx), p)
			k.mu.Lock()
			delete(k.busy, p.Name())
			k.mu.Unlock()
		}
	}
	return nil
}

// revive starts a part until it stays up, like a supervisor: a program may end because a dependency
// is down.
func (k *killer) revive(ctx context.Context, part world.Part) {
	for range 100 {
		if err := part.Restart(); err != nil {
			k.count(func(r *Report) { r.EndedAlone[world.KindOf(part.Name())]++ })
			k.say("%s does not start: %v", part.Name(), err)
		} else if err := part.Ready(ctx); err == nil {
			return
		} else if part.Running() {
			k.fatal(fmt.Errorf("after a kill: %w", err))
			return
		} else {
			k.count(func(r *Report) { r.EndedAlone[world.KindOf(part.Name())]++ })
			k.say("ended by itself: %v", err)
		}
		pause(ctx, 200*time.Millisecond)
	}
	k.fatal(fmt.Errorf("%s does not stay up", part.Name()))
}

// supervise restarts programs that end without a kill, until ctx is done.
func (k *killer) supervise(ctx context.Context) {
	for pause(ctx, 100*time.Millisecond) {
		for _, p := range k.world.Procs() {
			k.mu.Lock()
			alone := !k.busy[p.Name()] && !p.Running()
			if alone {
				k.busy[p.Name()] = true
			}
			k.mu.Unlock()
			if !alone {
				continue
			}
			k.count(func(r *Report) { r.EndedAlone[world.KindOf(p.Name())]++ })
			k.say("%s ended by itself (%v):\n%s", p.Name(), p.Ended(), p.Tail(2000))
			k.revive(context.WithoutCancel(ctx), p)
			k.mu.Lock()
			delete(k.busy, p.Name())
			k.mu.Unlock()
		}
	}
}
