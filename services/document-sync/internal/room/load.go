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

// Bounds of reading and writing.
const (
	loadTimeout  = 30 * time.Second
	firstPause   = 25 * time.Millisecond // between attempts, doubled each time
	longestPause = 2 * time.Second
	reloadFor    = time.Minute            // then the peers are sent away
	holePatience = 100 * time.Millisecond // messages overtake each other
	repairPause  = time.Second            // after one that did not work
)

// outside are the limits of updates that come from outside. MaxScan is about 0.3 s of
// work, for which one may change 2,000 places that others changed too ninety times, or
// 20,000 once; what waits fits into one update of the store. What is committed was within
// them and has none any more: refused, it would take the document away from everybody.
var outside = yjs.Limits{MaxScan: 8_000_000, MaxPending: store.MaxUpdate / 2}

// load makes the doc of a new room. It has the turn.
func (r *room) load() {
	h := r.hub
	err := panics.Try(r.loadFirst)
	if err != nil {
		if panicked(err) {
			h.cfg.Log.ErrorContext(h.life, "loading a document panicked", "document", r.ref.Document, "error", err)
		}
		r.mu.Lock()
		r.over(err)
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
	// First listen, then read: nothing falls between.
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

// read makes a doc of what is stored. Markdown that was written past the state is
// brought in and is then the last of the updates.
func (r *room) read(ctx context.Context) (store.State, *yjs.Doc, error) {
	for range 3 {
		st, err := r.hub.cfg.Store.Load(ctx, r.ref)
		if err != nil {
			return st, nil, err
		}
		doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
		err = r.hub.apply(doc, st.Snapshot, st.Updates)
		if panicked(err) || r.panics > 0 {
			doc, err = r.sift(ctx, &st)
		}
		if err != nil {
			return st, nil, fmt.Errorf("load document %s: %w", r.ref.Document, err)
		}
		if !r.seeded(st) {
			return st, doc, nil
		}
		planted, err := r.plant(ctx, doc, &st)
		if err != nil {
			return st, nil, fmt.Errorf("bring text into document %s: %w", r.ref.Document, err)
		}
		if planted {
			return st, doc, nil
		}
	}
	return store.State{}, nil, &fault.Error{Kind: fault.Unavailable, Message: "the document is being written by an older program; try again", RetryAfter: time.Second}
}

// seeded says whether there is text to be brought in.
func (r *room) seeded(st store.State) bool { return st.Seed != nil && r.hub.cfg.Plant != nil }

// plant brings in a seed, unless somebody else was first.
func (r *room) plant(ctx context.Context, doc *yjs.Doc, st *store.State) (planted bool, err error) {
	var update []byte
	err = panics.Try(func() (err error) {
		defer doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })()
		doc.Transact(nil, func(*yjs.Txn) { err = r.hub.cfg.Plant(doc, *st.Seed) })
		return err
	})
	if err != nil {
		return false, err
	}
	seq, planted, err := r.hub.cfg.Store.Plant(ctx, r.ref, *st.Seed, update)
	if err != nil || !planted {
		return false, err
	}
	if update == nil {
		update = []byte{0, 0}
	}
	st.Updates = append(st.Updates, store.Update{Sequence: seq, Data: update})
	r.hub.publishCommitted(r.ref, seq, update)
	return true, nil
}

// apply applies what is stored in one transaction.
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

// loaded notes what the doc has, read anew. mu is held.
func (r *room) loaded(st store.State) {
	r.seq.reach(st.At)
	now := time.Now()
	for _, u := range st.Updates {
		r.seq.note(u.Sequence)
	}
	r.unsaved.loaded(st, now)
	r.noticeHole(now)
	r.armSnapshot()
}

// reload loads the doc again that was lost, and gives the turn on.
func (r *room) reload() {
	r.guard("loading a document again", func() {
		if r.restore() {
			r.yield()
		}
	})
}

// restore loads the doc again and gives the peers what they may have missed meanwhile.
// The turn is held; false means that the room is over, or the hub's life.
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
			if err = r.look(func() { r.resume(st) }); err == nil {
				return true
			}
		}
		switch {
		case fault.KindOf(err) == fault.NotFound:
			r.gone()
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

// resume gives the peers what they may have missed while the doc was loaded again.
func (r *room) resume(st store.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.catchUpPeers(st)
	r.loaded(st)
}

// pause waits; false means that the hub's life is over, or the room.
func (r *room) pause(d time.Duration) bool {
	if !r.hub.pause(d) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end == nil
}

// pause waits; false means that the hub's life is over.
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

// catchUpPeers sends what was committed and not broadcast before the doc was lost, or
// everything when that is not known one by one. mu and the turn are held.
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

// committedOnly runs f, which applies what somebody committed, without limits. The turn
// is held.
func (r *room) committedOnly(f func() error) error {
	return panics.Try(func() error {
		doc := r.doc
		doc.SetLimits(yjs.Unlimited())
		defer doc.SetLimits(outside)
		return f()
	})
}

// note adds a committed update to what the doc has. mu is held.
func (r *room) note(seq int64) {
	r.seq.note(seq)
	r.noticeHole(time.Now())
}

// known says that an update exists that has not come. mu is held.
func (r *room) known(seq int64) {
	r.seq.want = max(r.seq.want, seq)
	r.noticeHole(time.Now())
}

func (r *room) noticeHole(now time.Time) {
	switch {
	case !r.seq.hole():
		r.hole = time.Time{}
	case r.hole.IsZero():
		r.hole = now
		r.arm(now.Add(holePatience))
	}
}

// checkHole has a hole repaired that is there for a while. mu is held.
func (r *room) checkHole(now time.Time) {
	if r.hole.IsZero() || r.repairing {
		return
	}
	if due := r.hole.Add(holePatience); now.Before(due) {
		r.arm(due)
		return
	}
	r.repairing = r.hub.spawn(r.repair)
}

// repair reads what is missing.
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
	r.hole = time.Time{}
	if r.end == nil && r.seq.hole() {
		now := time.Now()
		r.hole = now.Add(repairPause - holePatience)
		r.arm(now.Add(repairPause))
	}
}

// catchUp reads what was committed since, applies it and passes it on.
func (r *room) catchUp(ctx context.Context) error {
	st, err := r.since(ctx)
	if err != nil {
		return err
	}
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.yield()
	return r.absorb(ctx, st)
}

// yield is release for who does not hold mu, or lose when the doc is not to be trusted.
func (r *room) yield() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doc == nil && r.end == nil {
		r.lose()
		return
	}
	r.release()
}

// news is what was committed since.
type news struct {
	store.State
	wanted int64 // sequence.want when it was read: more than it brings there is not
}

// since reads what was committed after what the doc has. Nobody waits for it.
func (r *room) since(ctx context.Context) (news, error) {
	r.mu.Lock()
	at, n := r.seq.at, news{wanted: r.seq.want}
	r.mu.Unlock()
	var err error
	n.State, err = r.hub.cfg.Store.Since(ctx, r.ref, at)
	if err != nil && fault.KindOf(err) == fault.NotFound {
		r.gone()
	}
	return n, err
}

// absorb applies what since has read. The turn is held; after an error there is no
// doc any more.
func (r *room) absorb(ctx context.Context, n news) error {
	if r.seeded(n.State) { // loading brings it in
		if r.afresh() { //nolint:contextcheck // the room waits for it, not this caller alone
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
	if err := panics.Try(func() error { return r.absorbUpdates(n.State) }); err != nil {
		r.hub.cfg.Log.ErrorContext(ctx, "committed updates not applied", "document", r.ref.Document, "error", err)
		r.doc = nil
		return err
	}
	if r.seq.want == n.wanted {
		r.seq.want = 0
	}
	r.noticeHole(time.Now())
	return nil
}

// absorbUpdates applies updates that were read and passes them on. mu and the turn are
// held.
func (r *room) absorbUpdates(st store.State) error {
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
		if r.doc.Pending() { // of that the peers get all that was read
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

// merge joins updates into one.
func (r *room) merge(updates [][]byte) []byte {
	if len(updates) == 1 {
		return updates[0]
	}
	all, err := yjs.MergeUpdates(updates)
	if err != nil { // over a budget of merging: everything has these too
		return r.doc.EncodeStateAsUpdate(nil)
	}
	return all
}

// committed notes an update of ours, tells everybody and has a snapshot saved. mu and the
// turn are held.
func (r *room) committed(seq int64, update []byte, except *Seat) {
	r.broadcast(&Message{Kind: KindUpdate, Payload: update}, except)
	r.hub.publishCommitted(r.ref, seq, update)
	r.note(seq)
	r.unsaved.committed(seq, time.Now())
	r.armSnapshot()
}
