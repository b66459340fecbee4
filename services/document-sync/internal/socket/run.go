package socket

import (
	"context"
	"slices"
	"time"

	"signalbox.dev/services/document-sync/internal/room"
)

const (
	pingAfter = 20 // seconds of silence in either direction
	deadAfter = 60 // seconds without a byte
)

// Run keeps time for the connections until ctx is done. Then it refuses new ones, and
// closes all, spread over at most half of Limits.Drain, so that they do not all come to the
// other instances in one moment; those that are left at its end are cut. It returns
// nil when there are none any more.
func (h *Handler) Run(ctx context.Context) error {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	var all []*conn
	for {
		select {
		case <-ctx.Done():
			h.drain()
			return nil
		case <-t.C:
			h.tick.Store(int64(time.Since(h.start) / time.Second))
			all = h.list(all[:0])
			h.look(all, time.Now().Unix())
			clear(all)
		}
	}
}

func (h *Handler) list(all []*conn) []*conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		all = append(all, c)
	}
	return all
}

// look does for each connection what time asks for.
func (h *Handler) look(all []*conn, now int64) {
	tick := h.tick.Load()
	for _, c := range all {
		seen := c.seen.Load()
		switch {
		case c.expires != 0 && now >= c.expires:
			c.end(closing{code: room.CloseToken, reason: "The token ran out: connect again with a new one."})
		case tick-seen >= deadAfter && !c.busy.Load():
			c.kill(labelDead)
		case tick-min(seen, c.sent.Load()) >= pingAfter && tick-c.pinged >= pingAfter:
			c.pinged = tick
			c.enqueue(c.session.idle())
		}
	}
}

// drainStep is how often a few of the connections are told that the instance goes away.
const drainStep = 50 * time.Millisecond

func (h *Handler) drain() {
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
	gone := make(chan struct{})
	go func() { h.live.Wait(); close(gone) }()

	end := time.NewTimer(h.limits.Drain)
	defer end.Stop()
	all := h.list(nil)
	for part := range slices.Chunk(all, len(all)/max(1, int(h.limits.Drain/2/drainStep))+1) {
		for _, c := range part {
			c.end(closing{code: room.CloseRestart, reason: restarting})
		}
		step := time.NewTimer(drainStep)
		select {
		case <-gone:
		case <-step.C:
		}
		step.Stop()
	}
	select {
	case <-gone:
		return
	case <-end.C:
	}
	for _, c := range h.list(nil) {
		c.kill(labelLost)
	}
	<-gone
}
