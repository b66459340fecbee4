package socket

import (
	"context"
	"slices"
	"time"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/document-sync/internal/room"
)

// Run ticks the connections until ctx is done. Then it refuses new ones and closes all, spread
// over at most half of Limits.Drain, so that they do not reconnect all at once. Mux connections
// that are left at the end are cut. It returns nil when none are left.
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
			panics.Contain(ctx, h.log, "expiry of tokens", func() { h.closeExpired(all, time.Now().Unix()) })
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

// closeExpired closes connections whose token has expired.
func (h *Handler) closeExpired(all []*conn, now int64) {
	for _, c := range all {
		if c.expires > 0 && now >= c.expires {
			c.end(closing{code: room.CloseToken, reason: "The token has expired: connect again with a new one."})
		}
	}
}

// drainStep is the interval between the closings of a few connections each.
const drainStep = 50 * time.Millisecond

func (h *Handler) drain() {
	h.mu.Lock()
	h.draining = true
	h.checkEmpty()
	h.mu.Unlock()
	h.muxes.Drain()

	end := time.NewTimer(h.limits.Drain)
	defer end.Stop()
	all := h.list(nil)
	for part := range slices.Chunk(all, len(all)/max(1, int(h.limits.Drain/2/drainStep))+1) {
		for _, c := range part {
			c.end(closing{code: room.CloseRestart, reason: restarting})
		}
		step := time.NewTimer(drainStep)
		select {
		case <-h.empty:
		case <-step.C:
		}
		step.Stop()
	}
	select {
	case <-h.empty:
	case <-end.C:
		end.Reset(0)
	}
	h.muxes.Close(end.C)
}
