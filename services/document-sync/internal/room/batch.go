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

// inbox holds waiting updates in one buffer.
type inbox struct {
	data     []byte
	items    []item
	isolated bool // its updates were tried one by one
}

// item is an update in an inbox.
type item struct {
	seat    *Seat
	end     int   // its end in data; it begins at the end of the previous one
	refused error // why it is not part of the batch
}

func (b *inbox) update(i int) []byte {
	from := 0
	if i > 0 {
		from = b.items[i-1].end
	}
	return b.data[from:b.items[i].end:b.items[i].end]
}

// itemSize is the approximate cost of an update in addition to its bytes.
const itemSize = 64

// size is the approximate cost of the inbox.
func (b *inbox) size() int { return len(b.data) + itemSize*len(b.items) }

// refuse removes an update from the batch. With all, because the doc may contain part of it,
// all other updates of its sender are removed too, so that the sender cannot cause repeated
// reloads.
func (b *inbox) refuse(i int, err error, all bool) {
	for j := range b.items {
		if it := &b.items[j]; j == i || all && it.seat == b.items[i].seat && it.refused == nil {
			it.refused = err
		}
	}
}

// refuseFrom removes an update that was not applied, and the later updates of its sender, which
// build on it.
func (b *inbox) refuseFrom(i int, err error) {
	for j := range b.items[i:] {
		if it := &b.items[i+j]; it.seat == b.items[i].seat && it.refused == nil {
			it.refused = err
		}
	}
}

// accepted returns the updates that were not refused and are not empty.
func (b *inbox) accepted() [][]byte {
	var out [][]byte
	for i := range b.items {
		if u := b.update(i); b.items[i].refused == nil && !empty(u) {
			out = append(out, u)
		}
	}
	return out
}

// maxRecycled is the maximum memory that an inbox keeps for reuse.
const maxRecycled = 64 << 10

// recycle keeps an inbox for the next batch of any room.
func (h *Hub) recycle(b *inbox) {
	if cap(b.data) > maxRecycled || cap(b.items) > maxRecycled/16 {
		return
	}
	clear(b.items)
	b.data, b.items, b.isolated = b.data[:0], b.items[:0], false
	h.inboxes.Put(b)
}

// put adds an update with reserved space to the inbox and starts a worker if necessary. mu is
// held.
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

// take returns the inbox, or ends the worker if there is none.
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
	// Updates sent after a refused one build on it and would wait forever.
	for i := range b.items {
		b.items[i].refused = b.items[i].seat.refused
	}
	r.next = time.Now().Add(r.hub.cfg.Gather)
	return b
}

// stopIfIdle ends the worker if there is nothing to do.
func (r *room) stopIfIdle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inbox == nil || r.end != nil {
		r.working = false
		return true
	}
	return false
}

// work is the worker goroutine.
func (r *room) work() { r.guard("committing updates", r.commitAll) }

// commitAll commits the inbox until it is empty.
func (r *room) commitAll() {
	for {
		r.mu.Lock()
		wait := time.Until(r.next)
		r.mu.Unlock()
		if wait > 0 && !r.pause(wait) || r.acquire(r.hub.life) != nil {
			r.stopIfIdle()
			return
		}
		b := r.take()
		if b == nil {
			r.yield()
			return
		}
		r.batch(b)
		r.hub.recycle(b)
		if r.stopIfIdle() {
			return
		}
	}
}

// batch applies, commits and broadcasts b, and releases its space. It holds the turn and
// releases it.
func (r *room) batch(b *inbox) {
	defer r.unreserve(b)
	over, err := r.attempt(b)
	if parts := b.senders(); fault.KindOf(err) == fault.TooLarge && len(parts) > 1 {
		// One sender's updates are too large, or only all together: commit each sender's separately.
		r.closeAllRefused(b)
		over, err = r.commitSeparately(parts)
	} else if err != nil {
		r.handleUncommitted(b, err)
	}
	if over {
		return
	}
	if err != nil {
		r.doc = nil
	}
	r.yield()
}

// commitSeparately attempts the parts of a refused batch one by one. The doc still contains the batch;
// after an error it again contains uncommitted updates.
func (r *room) commitSeparately(parts []*inbox) (over bool, err error) {
	clean := false
	for _, b := range parts {
		if !clean && !r.reset() {
			return true, nil
		}
		over, err = r.attempt(b)
		if over {
			return true, nil
		}
		if clean = err == nil; !clean {
			r.handleUncommitted(b, err)
			if !refused(err) {
				return false, err
			}
		}
	}
	return false, err
}

// attempt applies, commits and broadcasts b. After an error the doc contains uncommitted
// updates. over reports that the room has ended. The turn is held.
func (r *room) attempt(b *inbox) (over bool, err error) {
	before := r.doc.Size()
	update, err := r.apply(b)
	for err != nil { // retry without the refused updates
		if !r.reset() || panicked(err) && !r.isolate(b, err) {
			return true, nil
		}
		update, err = r.apply(b)
	}
	if err := r.growthFault(before); err != nil {
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
		r.sendStored(b)
	}
	return false, nil
}

// senders divides the accepted updates by sender.
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

// author returns the author of the last accepted update.
func (b *inbox) author() store.Author {
	for i := len(b.items) - 1; i > 0; i-- {
		if b.items[i].refused == nil {
			return b.items[i].seat.author
		}
	}
	return b.items[0].seat.author
}

// only returns the sender of all updates, who needs no copy, or nil if there are several.
func (b *inbox) only() *Seat {
	one := b.items[0].seat
	for i := range b.items {
		if b.items[i].seat != one {
			return nil
		}
	}
	return one
}

// apply applies a batch in one transaction and returns the update to be committed, nil if
// nothing is new. After an error the doc may contain part of an update, which is refused or,
// after a panic, still to be found by isolate. The turn is held.
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
				if err := r.capacityFault(b.update(at)); err != nil {
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
		// Pending structs are not in the transaction's update.
		if all := b.accepted(); len(all) > 0 {
			err = r.readDoc(func() { update = r.merge(all) })
			if len(all) == 1 {
				update = slices.Clone(update) // the inbox will be reused
			}
		}
	}
	if panicked(err) {
		r.hub.cfg.Log.ErrorContext(r.hub.life, "updates not applied", "document", r.ref.Document, "error", err)
	}
	return update, err
}

// reset reloads a doc that contains part of a refused update. The turn stays held; false means
// that the room has ended.
func (r *room) reset() bool {
	r.hub.metrics.resets.Inc()
	r.doc = nil
	return r.restore()
}

// commit appends an update to the store. It retries until that succeeds, the store refuses the
// update, or the hub's life ends.
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

// refused reports whether the store will never accept the update.
func refused(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLarge, fault.Conflict:
		return true
	}
	return false
}

// handleUncommitted handles a batch that was not committed.
func (r *room) handleUncommitted(b *inbox, err error) {
	h := r.hub
	switch {
	case fault.KindOf(err) == fault.NotFound:
		r.endDeleted()
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

// closeAllRefused is closeRefused without mu held.
func (r *room) closeAllRefused(b *inbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeRefused(b)
}

// closeRefused closes the senders of refused updates. Their later updates are refused too. mu is held.
func (r *room) closeRefused(b *inbox) {
	for i := range b.items {
		it := &b.items[i]
		if it.refused == nil {
			continue
		}
		if it.seat.refused == nil {
			it.seat.refused = it.refused
			r.noteRefusal(it.seat, b.update(i), time.Now())
		}
		it.seat.close(closingOf(it.refused))
		r.hub.metrics.refused.Inc()
	}
}

// closingOf returns how a refused update closes its connection.
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

func (r *room) sendStored(b *inbox) {
	if r.stored == nil {
		r.stored = &Message{Kind: KindStored}
	}
	for i := range b.items {
		if it := &b.items[i]; it.refused == nil {
			it.seat.send(r.stored)
		}
	}
}
