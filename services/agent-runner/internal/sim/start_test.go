package sim

import (
	"context"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/services/agent-runner/internal/run"
)

// A model of the service's starter: a run starts in the process that created it if that has a
// free slot.

// reserve takes a slot if one is free.
func (p *process) reserve() (mine bool) {
	p.w.locked(func() {
		if p.leaves() {
			return
		}
		select {
		case p.slots <- struct{}{}:
			mine = true
			p.own++
		default:
		}
	})
	return mine
}

func (p *process) free() {
	p.w.locked(func() { p.own-- })
	<-p.slots
}

// begin works on a claim in a reserved slot.
func (p *process) begin(c *run.Claim) {
	p.work.Go(func() {
		defer p.free()
		ctx, letGo := context.WithCancelCause(p.ctx)
		defer letGo(nil)
		done := make(chan struct{})
		defer close(done)
		p.work.Go(func() {
			select {
			case <-p.drain:
			case <-done:
				return
			}
			limit := time.NewTimer(drainTime)
			defer limit.Stop()
			select {
			case <-limit.C:
				letGo(bus.ErrDraining)
			case <-done:
			}
		})
		_ = p.loop.Answer(ctx, c, p.drain)
		p.w.locked(func() {
			if p.holding[c.Run.ID] == c.Run.Epoch {
				delete(p.holding, c.Run.ID)
			}
		})
	})
}

// finishOwn waits for the runs that started here.
func (p *process) finishOwn() {
	for {
		var own int
		p.w.locked(func() { own = p.own })
		if own == 0 || p.sleep(time.Millisecond) != nil {
			return
		}
	}
}
