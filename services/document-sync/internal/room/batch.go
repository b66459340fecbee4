package room

import (
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// inbox has the updates that wait, in one piece of memory.
type inbox struct {
	data     []byte
	items    []item
	isolated bool // what panics was looked for
}

// item is one update of an inbox.
type item struct {
	seat    *Seat
	end     int   // in data; it begins where the one before ends
	refused error // why it is not part of the batch
}

func (b *inbox) update(i int) []byte {
	from := 0
	if i > 0 {
		from = b.items[i-1].end
	}
	return b.data[from:b.items[i].end:b.items[i].end]
}

// itemSize is what an update in an inbox costs besides its bytes, about.
const itemSize = 64

// size is what the inbox costs, about.
func (b *inbox) size() int { return len(b.data) + itemSize*len(b.items) }

// refuse leaves an update out, and when it may have left a part of itself in the doc all
// others of its sender, so that it cannot have the doc loaded again and again.
func (b *inbox) refuse(i int, err error, all bool) {
	for j := range b.items {
		if it := &b.items[j]; j == i || all && it.seat == b.items[i].seat && it.refused == nil {
			it.refused = err
		}
	}
}

// refuseFrom leaves out an update that was not looked at yet, and what its sender sent
// after it, which builds on it.
func (b *inbox) refuseFrom(i int, err error) {
	for j := range b.items[i:] {
		if it := &b.items[i+j]; it.seat == b.items[i].seat && it.refused == nil {
			it.refused = err
		}
	}
}

// accepted returns the updates that were not refused, without empty ones.
func (b *inbox) accepted() [][]byte {
	var out [][]byte
	for i := range b.items {
		if u := b.update(i); b.items[i].refused == nil && !empty(u) {
			out = append(out, u)
		}
	}
	return out
}

// reusable bounds what memory an inbox keeps for the next batch.
const reusable = 64 << 10

// recycle keeps an inbox for the next batch of any room.
func (h *Hub) recycle(b *inbox) {
	if cap(b.data) > reusable || cap(b.items) > reusable/16 {
		return
	}
	clear(b.items)
	b.data, b.items, b.isolated = b.data[:0], b.items[:0], false
	h.inboxes.Put(b)
}

// put adds an update, which has its place, to the inbox and sees to it that there is a
// worker. mu is held.
func (r *room) put(s *Seat, update []byte) {
	if r.inbox == nil {
		b, ok := r.hub.inboxes.Get().(*inbox)
		if !ok {
			b = &inbox{}
		}
		r.inbox = b
	}
	r.inbox.data = append(r.inbox.data, update...)
	r.inbox.items = append(r.inbox.items, item{seat: s, end: len(r.inbox.data)})
	if !r.working {
		r.working = r.hub.spawn(r.work)
	}
}

// take returns the inbox, or ends the worker when there is none.
func (r *room) take() *inbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.inbox
	r.inbox = nil
	for _, w := range r.blocked {
		close(w)
	}
	r.blocked = nil
	if b == nil || r.end != nil {
		r.working = false
		return nil
	}
	// What somebody sent behind an update that was refused builds on it: it would wait for
	// that for ever.
	for i := range b.items {
		b.items[i].refused = b.items[i].seat.refused
	}
	r.next = time.Now().Add(r.hub.cfg.Gather)
	return b
}

// idleNow ends the worker when there is nothing to do.
func (r *room) idleNow() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inbox == nil || r.end != nil {
		r.working = false
		return true
	}
	return false
}

// work is the worker.
func (r *room) work() { r.guard("committing updates", r.commitAll) }

// commitAll commits what is in the inbox until there is nothing.
func (r *room) commitAll() {
	for {
		r.mu.Lock()
		wait := time.Until(r.next)
		r.mu.Unlock()
		if wait > 0 && !r.pause(wait) || r.acquire(r.hub.life) != nil {
			r.idleNow()
			return
		}
		b := r.take()
		if b == nil {
			r.yield()
			return
		}
		r.batch(b)
		r.hub.recycle(b)
		if r.idleNow() {
			return
		}
	}
}

// batch applies, commits and passes on what is in b, and gives its place back. It has the
// turn and gives it on.
func (r *room) batch(b *inbox) {
	defer r.settled(b)
	over, err := r.attempt(b)
	if parts := b.senders(); fault.KindOf(err) == fault.TooLarge && len(parts) > 1 {
		// One of them is to blame, or all together. Each alone the store may take.
		r.closeAllRefused(b)
		over, err = r.apart(parts)
	} else if err != nil {
		r.uncommitted(b, err)
	}
	if over {
		return
	}
	if err != nil {
		r.doc = nil
	}
	r.yield()
}

// apart attempts what parts of a batch that was refused have, one by one. The doc still
// has the batch; after an error it has what is not committed again.
func (r *room) apart(parts []*inbox) (over bool, err error) {
	clean := false
	for _, b := range parts {
		if !clean && !r.afresh() {
			return true, nil
		}
		over, err = r.attempt(b)
		if over {
			return true, nil
		}
		if clean = err == nil; !clean {
			r.uncommitted(b, err)
			if !refused(err) {
				return false, err
			}
		}
	}
	return false, err
}

// attempt applies, commits and passes on what is in b. After an error the doc has what
// is not committed; over says that the room is. The turn is held.
func (r *room) attempt(b *inbox) (over bool, err error) {
	before := r.doc.Size()
	update, err := r.apply(b)
	for err != nil { // with one update less
		if !r.afresh() || panicked(err) && !r.isolate(b, err) {
			return true, nil
		}
		update, err = r.apply(b)
	}
	if err := r.outgrown(before); err != nil {
		return false, err
	}
	var seq int64
	if update != nil {
		start := time.Now()
		seq, err = r.commit(b.author(), update)
		r.hub.metrics.commit.Observe(time.Since(start).Seconds())
		if err != nil {
			return false, err
		}
	}
	r.hub.metrics.batches.Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end == nil {
		r.closeRefused(b)
		if update != nil {
			r.committed(seq, update, b.only())
		}
		r.tellStored(b)
	}
	return false, nil
}

// senders returns an inbox for each sender with what was not refused of it.
func (b *inbox) senders() []*inbox {
	var parts []*inbox
	of := make(map[*Seat]*inbox)
	for i, it := range b.items {
		if it.refused != nil {
			continue
		}
		p := of[it.seat]
		if p == nil {
			p = &inbox{}
			of[it.seat], parts = p, append(parts, p)
		}
		p.data = append(p.data, b.update(i)...)
		p.items = append(p.items, item{seat: it.seat, end: len(p.data)})
	}
	return parts
}

// author returns who made the last update that was not refused.
func (b *inbox) author() store.Author {
	for i := len(b.items) - 1; i > 0; i-- {
		if b.items[i].refused == nil {
			return b.items[i].seat.author
		}
	}
	return b.items[0].seat.author
}

// only returns the sender when all updates are of one, who needs no copy.
func (b *inbox) only() *Seat {
	one := b.items[0].seat
	for i := range b.items {
		if b.items[i].seat != one {
			return nil
		}
	}
	return one
}

// apply applies a batch in one transaction and returns what is to be committed; nil when
// there is nothing new. After an error the doc may have a part of one; it is refused, or,
// if something panicked, still to be found by isolate. The turn is held.
func (r *room) apply(b *inbox) (update []byte, err error) {
	err = panics.Try(func() error {
		var failed error
		update = r.transact(nil, func() {
			for at := range b.items {
				it := &b.items[at]
				if it.refused != nil {
					continue
				}
				if r.inQuarantine(b.update(at)) {
					b.refuse(at, errQuarantined, true)
					continue
				}
				if err := r.noPlaceFor(b.update(at)); err != nil {
					b.refuseFrom(at, err)
					continue
				}
				err := r.hub.engine.apply(r.doc, b.update(at))
				if err == nil {
					continue
				}
				partly := !errors.Is(err, yjs.ErrMalformed)
				b.refuse(at, err, partly)
				if partly {
					failed = err
					return
				}
			}
		})
		return failed
	})
	if err == nil && r.doc.Pending() {
		// What waits is not in the transaction's update.
		if all := b.accepted(); len(all) > 0 {
			err = r.look(func() { update = r.merge(all) })
			if len(all) == 1 {
				update = slices.Clone(update) // the inbox is used again
			}
		}
	}
	if panicked(err) {
		r.hub.cfg.Log.ErrorContext(r.hub.life, "updates not applied", "document", r.ref.Document, "error", err)
	}
	return update, err
}

// afresh replaces a doc that has a part of what was refused. The room keeps the turn;
// false means that the room is over.
func (r *room) afresh() bool {
	r.hub.metrics.resets.Inc()
	r.doc = nil
	return r.restore()
}

// commit has the store keep an update. It tries until that works, the store says that it
// never will, or the hub's life ends.
func (r *room) commit(author store.Author, update []byte) (int64, error) {
	h := r.hub
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		seq, err := h.cfg.Store.Append(h.life, r.ref, author, update)
		if err == nil {
			return seq, nil
		}
		if refused(err) || fault.KindOf(err) == fault.NotFound {
			return 0, err
		}
		if h.life.Err() != nil {
			return 0, err
		}
		if pause == firstPause || pause == longestPause {
			h.cfg.Log.WarnContext(h.life, "updates not committed yet", "document", r.ref.Document, "error", err)
		}
		if !r.pause(pause) {
			return 0, err
		}
	}
}

// refused says whether the store will never take an update.
func refused(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLarge, fault.Conflict:
		return true
	}
	return false
}

// uncommitted tells those whose batch will not be committed, at least not by us.
func (r *room) uncommitted(b *inbox, err error) {
	h := r.hub
	switch {
	case fault.KindOf(err) == fault.NotFound:
		r.gone()
	case refused(err):
		h.cfg.Log.WarnContext(h.life, "updates refused", "document", r.ref.Document, "error", err)
		for i := range b.items {
			if it := &b.items[i]; it.refused == nil {
				it.refused = err
			}
		}
		r.closeAllRefused(b)
	}
}

// closeAllRefused is closeRefused for who does not hold mu.
func (r *room) closeAllRefused(b *inbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeRefused(b)
}

// closeRefused closes whose updates were refused; what they sent since is, too. mu is held.
func (r *room) closeRefused(b *inbox) {
	for i := range b.items {
		it := &b.items[i]
		if it.refused == nil {
			continue
		}
		if it.seat.refused == nil {
			it.seat.refused = it.refused
			r.remember(it.seat, b.update(i), time.Now())
		}
		it.seat.close(closingOf(it.refused))
		r.hub.metrics.refused.Inc()
	}
}

// closingOf says how a connection ends whose update was refused.
func closingOf(refused error) (code int, reason string) {
	if errors.Is(refused, yjs.ErrMalformed) {
		return CloseMalformed, "the update is malformed: open the document anew"
	}
	if errors.Is(refused, errQuarantined) {
		return CloseRefused, "the change cannot be applied: copy what it added, and open the document anew"
	}
	f, ok := errors.AsType[*fault.Error](refused)
	switch {
	case ok && f.Kind == fault.Unavailable:
		return CloseBusy, f.Message
	case ok && f.Kind == fault.TooLarge:
		return CloseRefused, f.Message
	}
	return CloseRefused, "the change is too much work at once: copy what it added, open the document anew, and add it in parts"
}

func (r *room) tellStored(b *inbox) {
	if r.stored == nil {
		r.stored = &Message{Kind: KindStored}
	}
	for i := range b.items {
		if it := &b.items[i]; it.refused == nil {
			it.seat.send(r.stored)
		}
	}
}
