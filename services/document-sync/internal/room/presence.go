package room

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/presence"
	"signalbox.dev/services/document-sync/internal/store"
)

// Minimum intervals between messages about changed and renewed presence. Clients rely on
// receiving their own: y-websocket considers a silent connection dead.
const (
	presenceEvery = 25 * time.Millisecond
	renewalEvery  = time.Second
)

// present sends changes of the table, now or soon. mu is held.
func (r *room) present(change presence.Change) {
	gap := presenceEvery
	switch change {
	case presence.Nothing:
		return
	case presence.Renewed:
		gap = renewalEvery
	}
	now := time.Now()
	if due := r.awareAt.Add(gap); now.Before(due) {
		r.arm(due)
		return
	}
	r.flushPresence(now)
}

func (r *room) flushPresence(now time.Time) {
	all, local := r.aware.Flush()
	if all == nil {
		return
	}
	r.awareAt = now
	r.broadcast(&Message{Kind: KindAwareness, Payload: all}, nil)
	if local != nil {
		r.hub.publish(r.ref, &documentv1.Change{Awareness: &documentv1.Awareness{Data: local}})
	}
}

// checkPresence sends what is due and renews shown clients. mu is held.
func (r *room) checkPresence(now time.Time) {
	_, next := r.aware.Renew(now)
	if !next.IsZero() {
		r.arm(next)
	}
	if due := r.awareAt.Add(presenceEvery); !now.Before(due) {
		r.flushPresence(now)
	} else if r.aware.Dirty() {
		r.arm(due)
	}
}

// receivePresence receives the awareness of another instance. mu is held.
func (r *room) receivePresence(a *documentv1.Awareness) {
	if data := a.GetData(); len(data) > 0 {
		change, err := r.aware.Apply(nil, data, time.Now())
		if err != nil {
			r.hub.cfg.Log.WarnContext(r.hub.life, "awareness of another instance not taken", "document", r.ref.Document, "error", err)
		}
		r.present(change)
	}
	if a.GetQuery() {
		if local := r.aware.Local(); local != nil {
			r.hub.publish(r.ref, &documentv1.Change{Awareness: &documentv1.Awareness{Data: local}})
		}
	}
}

// announcePresence sends the local presence to other instances and requests theirs, after messages
// may have been lost.
func (r *room) announcePresence(ctx context.Context) {
	r.mu.Lock()
	local, needed := r.aware.Local(), r.end == nil && (len(r.seats) > 0 || !r.aware.Empty())
	r.mu.Unlock()
	if !needed {
		return
	}
	h := r.hub
	c := &documentv1.Change{Instance: h.instance, Awareness: &documentv1.Awareness{Data: local, Query: true}}
	if err := h.cfg.Bus.Publish(ctx, r.ref, c); err != nil {
		h.metrics.dropped.Inc()
	}
}

// Show makes a client without a connection, such as an agent, visible for a while to everybody
// who has the document open on any instance. state is its awareness, a JSON object. The caller
// chooses the client id, the same for an agent on all instances.
func (h *Hub) Show(ctx context.Context, ref store.Ref, client uint64, state any, span time.Duration) error {
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("show presence: %w", err)
	}
	r, err := h.open(ctx, ref)
	if err != nil {
		return err
	}
	defer h.unpin(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return r.end
	}
	now := time.Now()
	if err := r.aware.Show(client, data, now.Add(span), now); err != nil {
		return awarenessFault(err)
	}
	r.present(presence.Changed)
	r.arm(now.Add(min(span, presence.Timeout/2)))
	return nil
}

// expirePresence removes clients without recent updates.
func (r *room) expirePresence(now time.Time) {
	if !r.mu.TryLock() {
		return // next time
	}
	defer r.mu.Unlock()
	if r.end == nil && !r.aware.Empty() {
		r.present(r.aware.Expire(now))
	}
}
