package room

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/store"
)

// Timeouts and pauses of reads and writes.
const (
	loadTimeout  = 30 * time.Second
	firstPause   = 25 * time.Millisecond // between attempts, doubled each time
	longestPause = 2 * time.Second
	reloadFor    = time.Minute            // before the peers are closed
	gapPatience  = 100 * time.Millisecond // messages may arrive out of order
	repairPause  = time.Second            // after a failed repair
)

// outside limits untrusted updates. MaxScan is about 0.3 s of work: 20,000 concurrent changes
// once, or 2,000 ninety times. Pending structs fit into one update of the store. Committed
// updates were within these limits and are applied without any: refusing them would make the
// document unavailable.
var outside = yjs.Limits{MaxScan: 8_000_000, MaxPending: store.MaxUpdate / 2}

// load loads the doc of a new room. It holds the turn.
func (r *room) load() {
	h := r.hub
	err := panics.Try(r.loadFirst)
	if err != nil {
		if panicked(err) {
			h.cfg.Log.ErrorContext(h.life, "loading a document panicked", "document", r.ref.Document, "error", err)
		}
		r.mu.Lock()
		r.terminate(err)
		r.doc = nil
		r.mu.Unlock()
		h.opened(r, err)
		r.leaveBus()
		return
	}
	h.metrics.loads.Inc()
	h.opened(r, nil)
	h.publish(r.ref, &documentv1.Change{Awareness: &documentv1.Awareness{Query: true}})
}

func (r *room) loadFirst() error {
	h := r.hub
	if h.loads.Acquire(h.life, r.ref.Workspace) != nil {
		return errDraining()
	}
	defer h.loads.Release(r.ref.Workspace)
	// Subscribe before reading, so that no update is missed.
	if err := h.subscribe(r); err != nil {
		return fmt.Errorf("open document %s: %w", r.ref.Document, err)
	}
	ctx, cancel := context.WithTimeout(h.life, loadTimeout)
	defer cancel()
	st, doc, err := r.read(ctx)
	if err != nil {
		return err
	}
	r.install(doc)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded(st)
	r.release()
	return nil
}

// read returns a doc with everything stored. A seed is applied and becomes the last update.
func (r *room) read(ctx context.Context) (store.State, *yjs.Doc, error) {
	for range 3 {
		st, err := r.hub.cfg.Store.Load(ctx, r.ref)
		if err != nil {
			return st, nil, err
		}
		doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
		err = r.hub.apply(doc, st.Snapshot, st.Updates)
		if panicked(err) || r.panics > 0 {
			doc, err = r.applyEach(ctx, &st)
		}
		if err != nil {
			return st, nil, fmt.Errorf("load document %s: %w", r.ref.Document, err)
		}
		if !r.seeded(st) {
			return st, doc, nil
		}
		applied, err := r.applySeed(ctx, doc, &st)
		if err != nil {
			return st, nil, fmt.Errorf("apply the seed of document %s: %w", r.ref.Document, err)
		}
		if applied {
			return st, doc, nil
		}
	}
	return store.State{}, nil, &fault.Error{Kind: fault.Unavailable, Message: "the document is being written by an older release; try again", RetryAfter: time.Second}
}

// seeded reports whether there is a seed to apply.
func (r *room) seeded(st store.State) bool { return st.Seed != nil && r.hub.cfg.ApplySeed != nil }

// applySeed applies a seed, unless another instance was faster.
func (r *room) applySeed(ctx context.Context, doc *yjs.Doc, st *store.State) (applied bool, err error) {
	var update []byte
	err = panics.Try(func() (err error) {
		defer doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })()
		doc.Transact(nil, func(*yjs.Txn) { err = r.hub.cfg.ApplySeed(doc, *st.Seed) })
		return err
	})
	if err != nil {
		return false, err
	}
	seq, applied, err := r.hub.cfg.Store.ApplySeed(ctx, r.ref, *st.Seed, update)
	if err != nil || !applied {
		return false, err
	}
	if update == nil {
		update = []byte{0, 0}
	}
	st.Updates = append(st.Updates, store.Update{Sequence: seq, Data: update})
	r.hub.publishCommitted(r.ref, seq, update)
	return true, nil
}

// apply applies stored data in one transaction.
func (h *Hub) apply(doc *yjs.Doc, snapshot []byte, updates []store.Update) error {
	return panics.Try(func() (err error) {
		doc.Transact(nil, func(*yjs.Txn) {
			if snapshot != nil {
				if err = doc.ApplyUpdateV2(snapshot, nil); err != nil {
					err = fmt.Errorf("apply the snapshot: %w", err)
				}
			}
			for i := 0; i < len(updates) && err == nil; i++ {
				if err = h.engine.apply(doc, updates[i].Data); err != nil {
					err = fmt.Errorf("apply update %d: %w", updates[i].Sequence, err)
				}
			}
		})
		return err
	})
}

// loaded records the contents of a newly loaded doc. mu is held.
func (r *room) loaded(st store.State) {
	r.seq.reach(st.At)
	now := time.Now()
	for _, u := range st.Updates {
		r.seq.note(u.Sequence)
	}
	r.unsaved.loaded(st, now)
	r.noteGap(now)
	r.armSnapshot()
}

// reload reloads a discarded doc and releases the turn.
func (r *room) reload() {
	r.guard("loading a document again", func() {
		if r.restore() {
			r.yield()
		}
	})
}

// restore reloads the doc and sends the peers what they may have missed. The turn is held;
// false means that the room or the hub's life has ended.
func (r *room) restore() bool {
	h := r.hub
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if r.panics > maxPanics {
			r.finish(&fault.Error{Kind: fault.Unavailable, Message: "the document cannot be read at the moment; try again later"},
				CloseBusy, "the document cannot be read at the moment")
			return false
		}
		ctx, cancel := context.WithTimeout(h.life, loadTimeout)
		st, doc, err := r.read(ctx)
		cancel()
		if err == nil {
			r.install(doc)
			if err = r.readDoc(func() { r.resume(st) }); err == nil {
				return true
			}
		}
		switch {
		case fault.KindOf(err) == fault.NotFound:
			r.endDeleted()
			return false
		case h.life.Err() != nil:
			return false
		case time.Since(began) > reloadFor:
			h.cfg.Log.ErrorContext(h.life, "document not loaded again, its peers are sent away", "document", r.ref.Document, "error", err)
			r.finish(&fault.Error{Kind: fault.Unavailable, Message: "the document cannot be loaded at the moment; try again later", Err: err},
				CloseBusy, "the document cannot be loaded at the moment")
			return false
		}
		h.cfg.Log.WarnContext(h.life, "document not loaded again yet", "document", r.ref.Document, "error", err)
		if !r.pause(pause) {
			return false
		}
	}
}

// resume sends the peers what they may have missed during a reload.
func (r *room) resume(st store.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.catchUpPeers(st)
	r.loaded(st)
}

// pause sleeps; false means that the room or the hub's life has ended.
func (r *room) pause(d time.Duration) bool {
	if !r.hub.pause(d) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end == nil
}

// pause sleeps; false means that the hub's life has ended.
func (h *Hub) pause(d time.Duration) bool {
	if d <= 0 {
		return h.life.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-h.life.Done():
		return false
	case <-t.C:
		return true
	}
}

// catchUpPeers sends updates that were committed but not broadcast before the doc was discarded,
// or the whole state if they are not known individually. mu and the turn are held.
func (r *room) catchUpPeers(st store.State) {
	if len(r.seats) == 0 {
		return
	}
	if st.At > r.seq.at {
		r.sendAll(r.hub.engine.encode(r.doc, nil))
		return
	}
	for _, u := range st.Updates {
		if !r.seq.has(u.Sequence) {
			r.sendAll(u.Data)
		}
	}
}

func (r *room) sendAll(update []byte) {
	r.broadcast(&Message{Kind: KindUpdate, Payload: update}, nil)
}

// committedOnly runs f, which applies committed updates, without limits. The turn is held.
func (r *room) committedOnly(f func() error) error {
	return panics.Try(func() error {
		doc := r.doc
		doc.SetLimits(yjs.Unlimited())
		defer doc.SetLimits(outside)
		return f()
	})
}

// note records a committed update that the doc contains. mu is held.
func (r *room) note(seq int64) {
	r.seq.note(seq)
	r.noteGap(time.Now())
}

// noteMissing records that an update exists that the doc lacks. mu is held.
func (r *room) noteMissing(seq int64) {
	r.seq.want = max(r.seq.want, seq)
	r.noteGap(time.Now())
}

func (r *room) noteGap(now time.Time) {
	switch {
	case !r.seq.gap():
		r.gap = time.Time{}
	case r.gap.IsZero():
		r.gap = now
		r.arm(now.Add(gapPatience))
	}
}

// checkGap starts the repair of a gap that has lasted long enough. mu is held.
func (r *room) checkGap(now time.Time) {
	if r.gap.IsZero() || r.repairing {
		return
	}
	if due := r.gap.Add(gapPatience); now.Before(due) {
		r.arm(due)
		return
	}
	r.repairing = r.hub.spawn(r.repair)
}

// repair reads the missing updates.
func (r *room) repair() {
	h := r.hub
	ctx, cancel := context.WithTimeout(h.life, loadTimeout)
	defer cancel()
	err := panics.Try(func() error { return r.catchUp(ctx) })
	if err == nil {
		h.metrics.repairs.Inc()
	} else if h.life.Err() == nil && fault.KindOf(err) != fault.NotFound {
		h.cfg.Log.Log(ctx, levelOf(err), "missing updates not read yet", "document", r.ref.Document, "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repairing = false
	r.gap = time.Time{}
	if r.end == nil && r.seq.gap() {
		now := time.Now()
		r.gap = now.Add(repairPause - gapPatience)
		r.arm(now.Add(repairPause))
	}
}

// catchUp reads, applies and broadcasts what was committed since.
func (r *room) catchUp(ctx context.Context) error {
	st, err := r.since(ctx)
	if err != nil {
		return err
	}
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.yield()
	return r.applyMissed(ctx, st)
}

// yield is release without mu held, or discard if the doc must be reloaded.
func (r *room) yield() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doc == nil && r.end == nil {
		r.discard()
		return
	}
	r.release()
}

// missed is what was committed after a sequence.
type missed struct {
	store.State
	wanted int64 // sequence.want at the time of the read, which covers it
}

// since reads what was committed after the contents of the doc.
func (r *room) since(ctx context.Context) (missed, error) {
	r.mu.Lock()
	at, n := r.seq.at, missed{wanted: r.seq.want}
	r.mu.Unlock()
	var err error
	n.State, err = r.hub.cfg.Store.Since(ctx, r.ref, at)
	if err != nil && fault.KindOf(err) == fault.NotFound {
		r.endDeleted()
	}
	return n, err
}

// applyMissed applies the result of since. The turn is held; after an error the doc is discarded.
func (r *room) applyMissed(ctx context.Context, n missed) error {
	if r.seeded(n.State) { // a reload applies the seed
		if r.reset() { //nolint:contextcheck // the whole room waits for it, not only this caller
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return cmp.Or(r.end, errDraining())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return r.end
	}
	if err := panics.Try(func() error { return r.applyMissedUpdates(n.State) }); err != nil {
		r.hub.cfg.Log.ErrorContext(ctx, "committed updates not applied", "document", r.ref.Document, "error", err)
		r.doc = nil
		return err
	}
	if r.seq.want == n.wanted {
		r.seq.want = 0
	}
	r.noteGap(time.Now())
	return nil
}

// applyMissedUpdates applies and broadcasts updates from the store. mu and the turn are held.
func (r *room) applyMissedUpdates(st store.State) error {
	if st.At <= r.seq.at {
		st.Snapshot = nil
	}
	var raw [][]byte
	rows := make([]store.Update, 0, len(st.Updates))
	for _, u := range st.Updates {
		if !r.seq.has(u.Sequence) {
			rows, raw = append(rows, u), append(raw, u.Data)
		}
	}
	if st.Snapshot != nil || len(rows) > 0 {
		var update []byte
		err := r.committedOnly(func() (err error) {
			update = r.transact(nil, func() { err = r.hub.apply(r.doc, st.Snapshot, rows) })
			return err
		})
		if err != nil {
			return err
		}
		if r.doc.Pending() { // pending structs are not in update
			if st.Snapshot != nil {
				update = r.doc.EncodeStateAsUpdate(nil)
			} else {
				update = r.merge(raw)
			}
		}
		if update != nil {
			r.sendAll(update)
		}
	}
	r.seq.reach(st.At)
	for _, u := range st.Updates {
		r.seq.note(u.Sequence)
	}
	return nil
}

// merge merges updates into one.
func (r *room) merge(updates [][]byte) []byte {
	if len(updates) == 1 {
		return updates[0]
	}
	all, err := yjs.MergeUpdates(updates)
	if err != nil { // over the limits of merging: the whole state contains them too
		return r.doc.EncodeStateAsUpdate(nil)
	}
	return all
}

// committed records a committed update, broadcasts it and schedules a snapshot. mu and the turn
// are held.
func (r *room) committed(seq int64, update []byte, except *Seat) {
	r.broadcast(&Message{Kind: KindUpdate, Payload: update}, except)
	r.hub.publishCommitted(r.ref, seq, update)
	r.note(seq)
	r.unsaved.committed(seq, time.Now())
	r.armSnapshot()
}
