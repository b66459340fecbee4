package room

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/document-sync/internal/store"
)

// The hub's periodic round.
const (
	roundEvery   = 5 * time.Second // ±20 %, so that instances do not synchronize
	headsTimeout = 10 * time.Second
	headsPage    = 1000
)

// Run receives messages, reads heads and unloads documents until ctx is done. After a
// reconnect of the bus it reads heads at once. At the end it closes all peers, commits and
// saves within Config.Drain, and closes the hub. Do and Read work until then: cancel ctx when
// no more calls can arrive. It is called once and returns nil.
func (h *Hub) Run(ctx context.Context) error {
	if b := h.cfg.Bus; b != nil {
		h.supervise("the bus of open documents", b.Run)
		h.supervise("what open documents publish", func(context.Context) { h.publishAll() })
		defer b.OnReconnect(func() {
			select {
			case h.resync <- struct{}{}:
			default: // already requested
			}
		})()
	}
	for {
		t := time.NewTimer(roundEvery*4/5 + rand.N(roundEvery*2/5))
		select {
		case <-ctx.Done():
			t.Stop()
			h.drain() //nolint:contextcheck // ctx is over
			return nil
		case <-h.resync:
			for _, r := range h.all() {
				r.announcePresence(ctx) // bypasses the queue, which many rooms would fill
			}
		case <-t.C:
		}
		t.Stop()
		panics.Contain(ctx, h.cfg.Log, "the periodic round of open documents", func() { h.round(ctx) })
	}
}

// supervise runs a loop until the hub's life ends.
func (h *Hub) supervise(what string, loop func(context.Context)) {
	h.spawn(func() {
		_ = panics.Supervise(h.life, h.cfg.Log, what, func(ctx context.Context) error {
			loop(ctx)
			return nil
		})
	})
}

func (h *Hub) round(ctx context.Context) {
	now := time.Now()
	for _, r := range h.all() {
		r.expirePresence(now)
		r.forgetAnswers()
	}
	h.unloadIdle(now)
	rooms := h.all() // including idle ones, which somebody may open before they are unloaded
	for len(rooms) > 0 {
		page := rooms[:min(len(rooms), headsPage)]
		rooms = rooms[len(page):]
		if err := h.readHeads(ctx, page); err != nil {
			if ctx.Err() == nil {
				h.cfg.Log.WarnContext(ctx, "heads of open documents not read", "error", err)
			}
			return // the others would fail too
		}
	}
}

// readHeads finds rooms that missed updates, and deleted documents.
func (h *Hub) readHeads(ctx context.Context, rooms []*room) error {
	ctx, cancel := context.WithTimeout(ctx, headsTimeout)
	defer cancel()
	refs := make([]store.Ref, len(rooms))
	for i, r := range rooms {
		refs[i] = r.ref
	}
	heads, err := h.cfg.Store.Heads(ctx, refs)
	if err != nil {
		return err
	}
	for _, r := range rooms {
		head, ok := heads[r.ref]
		if !ok {
			r.endDeleted()
			continue
		}
		r.mu.Lock()
		if r.end == nil && head > r.seq.at {
			r.noteMissing(head)
		}
		r.mu.Unlock()
	}
	return nil
}

// drain closes the hub: first the peers, then their updates, then everything.
func (h *Hub) drain() {
	h.mu.Lock()
	h.noJoin = errDraining()
	h.mu.Unlock()
	for _, r := range h.all() {
		r.mu.Lock()
		for _, s := range r.seats {
			s.close(CloseRestart, restartReason)
		}
		r.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(h.life, h.cfg.Drain)
	var wg sync.WaitGroup
	for _, r := range h.all() {
		wg.Go(func() {
			panics.Contain(ctx, h.cfg.Log, "the last commits of a document", func() { r.settle(ctx) })
		})
	}
	wg.Wait()
	cancel()

	h.mu.Lock()
	h.closed = errDraining()
	h.mu.Unlock()
	h.spawning.Lock()
	h.stopped = true
	h.spawning.Unlock()
	h.endLife()
	h.finishAll() // wakes waiters for a turn, which do not watch life
	h.wg.Wait()
	h.finishAll() // those that were loading
}

func (h *Hub) finishAll() {
	for _, r := range h.all() {
		r.finish(errDraining(), CloseRestart, restartReason)
	}
}

const restartReason = "this instance is shutting down: connect again"

// settle commits the inbox and saves the document, within ctx.
func (r *room) settle(ctx context.Context) {
	for saved := false; ctx.Err() == nil; {
		if r.acquire(ctx) != nil {
			return
		}
		r.yield() // a worker, if any, was queued before us
		r.mu.Lock()
		working, save := r.working, false
		if !working && r.unsaved.any() && !r.unsaved.saving && !saved {
			r.unsaved.saving, save, saved = true, true, true
		}
		busy := r.end == nil && (working || r.unsaved.saving)
		r.mu.Unlock()
		switch {
		case save:
			r.save(ctx, true)
		case !busy:
			return
		case !r.pause(firstPause):
			return
		}
	}
}
