package room

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// engine gives access to documents, so that tests can make them panic.
type engine struct {
	apply  func(doc *yjs.Doc, update []byte) error
	encode func(doc *yjs.Doc, sv yjs.StateVector) []byte
}

// maxPanics is the number of panics on reading a room's document after which its peers are
// closed.
const maxPanics = 3

// maxQuarantined is the maximum number of quarantined updates that a room remembers.
const maxQuarantined = 1000

var errQuarantined = errors.New("the update panics")

func panicked(err error) bool {
	_, ok := errors.AsType[*panics.Error](err)
	return ok
}

// readDoc runs f, which reads the doc. If f panics, the doc is discarded and reloaded with a check
// of each update. The turn is held, or mu while nobody has the turn.
func (r *room) readDoc(f func()) error {
	err := panics.Try(func() error { f(); return nil })
	if err != nil {
		r.doc = nil
		r.panics++
		r.hub.cfg.Log.ErrorContext(r.hub.life, "document not readable, reloading", "document", r.ref.Document, "error", err)
	}
	return err
}

// try applies an update to a doc and encodes the result.
func (h *Hub) try(doc *yjs.Doc, update []byte) error {
	return panics.Try(func() error {
		err := h.engine.apply(doc, update)
		h.engine.encode(doc, nil)
		return err
	})
}

// isolate tries the updates of a batch that panicked one by one and quarantines those that
// panic again, or the whole batch if it was isolated before. The doc is reloaded before and
// after; false means that the room has ended. The turn is held.
func (r *room) isolate(b *inbox, why error) bool {
	if b.isolated { // no single update is to blame
		r.refuseAll(b, why)
		return true
	}
	b.isolated = true
	var before [][]byte
	for i := range b.items {
		if b.items[i].refused != nil {
			continue
		}
		update := b.update(i)
		err := r.hub.try(r.doc, update)
		if !panicked(err) {
			before = append(before, update)
			continue
		}
		b.refuse(i, errQuarantined, true)
		if !r.reset() {
			return false
		}
		r.quarantine(r.hub.life, r.doc, store.Quarantined{
			Sequence: r.at(), Updates: append(slices.Clone(before), update), Author: b.items[i].seat.author, Panic: trace(err),
		})
		for _, u := range before {
			_ = r.hub.try(r.doc, u)
		}
	}
	return r.reset()
}

// refuseAll refuses and quarantines a batch as a whole. Its updates may be tried again, since
// the culprit is unknown. The turn is held.
func (r *room) refuseAll(b *inbox, why error) {
	q := store.Quarantined{Sequence: r.at(), Updates: b.accepted(), Author: b.author(), Panic: trace(why)}
	for i := range b.items {
		b.refuse(i, errQuarantined, true)
	}
	if len(q.Updates) > 0 {
		r.keep(r.hub.life, r.doc, q)
	}
}

// at returns the sequence up to which the doc has everything.
func (r *room) at() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq.at
}

// applyEach loads a doc update by update. An update that panics twice, the second time on a new doc,
// is quarantined and replaced by an empty one in st. The turn is held.
func (r *room) applyEach(ctx context.Context, st *store.State) (*yjs.Doc, error) {
	made := func(updates []store.Update) (*yjs.Doc, error) {
		doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
		return doc, r.hub.apply(doc, st.Snapshot, updates)
	}
	doc, err := made(nil)
	if err == nil { // otherwise no update is to blame
		err = panics.Try(func() error { r.hub.engine.encode(doc, nil); return nil })
	}
	for i := 0; i < len(st.Updates) && err == nil; i++ {
		u := &st.Updates[i]
		again := r.hub.try(doc, u.Data)
		if panicked(again) {
			if doc, err = made(st.Updates[:i]); err != nil {
				break
			}
			again = r.hub.try(doc, u.Data)
		}
		switch {
		case panicked(again):
			if doc, err = made(st.Updates[:i]); err != nil {
				break
			}
			r.quarantine(ctx, doc, store.Quarantined{Sequence: u.Sequence - 1, Updates: [][]byte{u.Data}, Author: u.Author, Panic: trace(again), Committed: true})
			u.Data = []byte{0, 0}
		case again != nil:
			err = fmt.Errorf("apply update %d: %w", u.Sequence, again)
		}
	}
	return doc, err
}

func trace(err error) string {
	if p, ok := errors.AsType[*panics.Error](err); ok {
		return fmt.Sprintf("%v\n\n%s", p.Value, p.Stack)
	}
	return err.Error()
}

// quarantine stores an update that panicked twice, with the state of doc, and refuses it from
// now on. The turn is held.
func (r *room) quarantine(ctx context.Context, doc *yjs.Doc, q store.Quarantined) {
	if r.quarantined == nil || len(r.quarantined) >= maxQuarantined {
		r.quarantined = make(map[[sha256.Size]byte]struct{})
	}
	r.quarantined[sha256.Sum256(q.Updates[len(q.Updates)-1])] = struct{}{}
	r.keep(ctx, doc, q)
}

// keep stores updates that panicked twice, with the state of doc, to which they were applied.
// The turn is held.
func (r *room) keep(ctx context.Context, doc *yjs.Doc, q store.Quarantined) {
	q.Ref = r.ref
	for i, u := range q.Updates {
		q.Updates[i] = slices.Clone(u) // inboxes are reused
	}
	r.hub.metrics.quarantined.Inc()
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	err := panics.Try(func() error {
		q.State = doc.EncodeStateAsUpdateV2(nil)
		return r.hub.cfg.Store.Quarantine(ctx, q)
	})
	log := r.hub.cfg.Log.With("document", r.ref.Document, "after", q.Sequence, "panic", q.Panic)
	if err != nil {
		log.ErrorContext(ctx, "update panicked twice and could not be quarantined", "error", err)
		return
	}
	log.ErrorContext(ctx, "update panicked twice and was quarantined")
}

func (r *room) inQuarantine(update []byte) bool {
	if len(r.quarantined) == 0 {
		return false
	}
	_, ok := r.quarantined[sha256.Sum256(update)]
	return ok
}
