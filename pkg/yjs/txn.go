package yjs

import (
	"cmp"
	"slices"
	"sort"
)

// Txn is a transaction: edits that become visible together. It is valid until the function
// that received it returns.
type Txn struct {
	doc     *Doc
	id      uint64
	origin  any
	local   bool
	touched []span     // clients with new structs
	deleted []deletion // deletions, in order until commit sorts them
	merge   []itemPos  // split items, to be merged again
	changes []change   // changed types
	subdocs []subdocChange
	order   []uint32 // clients by their first deletion, for undo
	scan    int      // the remaining steps for search
	moved   int      // list entries moved by splits
}

// movedPerStep is the number of list entries that move in the time of one search step.
const movedPerStep = 256

// overBudget reports whether splits in long lists have exceeded MaxScan steps.
func (t *Txn) overBudget() bool { return t.moved/movedPerStep > t.doc.limits.MaxScan }

// resetBudget renews the budget of steps.
func (t *Txn) resetBudget() { t.scan, t.moved = t.doc.limits.MaxScan, 0 }

type span struct {
	client        uint32
	before, after uint32
}

type itemPos struct{ client, clock uint32 }

type deletion struct{ client, clock, length uint32 }

type change struct {
	b   *branch
	sub uint32
}

// Origin returns the origin passed to [Doc.Transact] or [Doc.ApplyUpdate].
func (t *Txn) Origin() any { return t.origin }

// Local reports whether the edits were made here and not by an update.
func (t *Txn) Local() bool { return t.local }

// Doc returns the document.
func (t *Txn) Doc() *Doc { return t.doc }

// before returns a client's state when the transaction began.
func (t *Txn) before(ci uint32) uint32 {
	c := &t.doc.clients[ci]
	if c.txn == t.id {
		return t.touched[c.touched].before
	}
	if t.id == t.doc.lastTxn {
		return c.state
	}
	return t.beforeLater(ci)
}

// beforeLater is before when a later transaction has begun, inside an observer.
func (t *Txn) beforeLater(ci uint32) uint32 {
	if clock, ok := t.began(ci); ok {
		return clock
	}
	for _, later := range t.doc.queue {
		if later.id > t.id {
			if clock, ok := later.began(ci); ok {
				return clock
			}
		}
	}
	if open := t.doc.txn; open != nil && open.id > t.id {
		if clock, ok := open.began(ci); ok {
			return clock
		}
	}
	return t.doc.clients[ci].state
}

// began returns the initial state of a client that the transaction touched.
func (t *Txn) began(ci uint32) (clock uint32, ok bool) {
	for i := range t.touched {
		if t.touched[i].client == ci {
			return t.touched[i].before, true
		}
	}
	return 0, false
}

// adds reports whether the transaction created the struct at clock.
func (t *Txn) adds(ci, clock uint32) bool { return clock >= t.before(ci) }

// deletes reports whether the transaction deleted the struct at clock. It is valid once
// commit has begun.
func (t *Txn) deletes(ci, clock uint32) bool {
	_, ok := slices.BinarySearchFunc(t.deleted, clock, func(x deletion, clock uint32) int {
		if x.client != ci {
			return cmp.Compare(x.client, ci)
		}
		if x.clock+x.length <= clock {
			return -1
		}
		if x.clock > clock {
			return 1
		}
		return 0
	})
	return ok
}

// Transact runs f as one transaction. Edits and nested calls of Transact within f belong to
// it. Observers run and updates are sent when the outermost f returns.
func (d *Doc) Transact(origin any, f func(*Txn)) {
	t, outer := d.begin(origin, true)
	defer d.end(outer)
	f(t)
}

// begin returns the open transaction, or a new one.
func (d *Doc) begin(origin any, local bool) (t *Txn, opened bool) {
	if d.txn != nil {
		return d.txn, false
	}
	d.lastTxn++
	if d.spare != nil {
		t, d.spare = d.spare, nil
		*t = Txn{touched: t.touched[:0], deleted: t.deleted[:0], merge: t.merge[:0], changes: t.changes[:0], subdocs: t.subdocs[:0]}
	} else {
		t = &Txn{}
	}
	t.doc, t.id, t.origin, t.local, t.scan = d, d.lastTxn, origin, local, d.limits.MaxScan
	d.txn = t
	return t, true
}

// end commits a transaction opened by begin. Transactions of observers are committed after it.
func (d *Doc) end(opened bool) {
	if !opened {
		return
	}
	t := d.txn
	d.txn = nil
	d.queue = append(d.queue, t)
	if d.committing {
		return
	}
	d.committing = true
	defer func() { // also when an observer panics
		d.committing = false
		clear(d.queue)
		d.queue = d.queue[:0]
	}()
	for i := 0; i < len(d.queue); i++ {
		d.commit(d.queue[i])
	}
	if d.spare == nil {
		d.spare = t
		if cap(t.deleted) > 1024 || cap(t.touched) > 1024 || cap(t.merge) > 1024 || cap(t.changes) > 1024 {
			d.spare = nil
		} else {
			clear(t.changes[:cap(t.changes)])
			clear(t.subdocs[:cap(t.subdocs)])
			t.origin = nil
		}
	}
}

// commit proceeds in the order of Yjs, which determines the encoded bytes: observers, garbage
// collection, then merges in deleted ranges, of new structs and of split structs, each from
// right to left.
func (d *Doc) commit(t *Txn) {
	if len(d.txnFns) > 0 {
		t.recordDeleteOrder()
	}
	t.sortDeleted()
	for i := range t.touched {
		s := &t.touched[i]
		s.after = d.clients[s.client].state
	}
	if !t.local {
		for _, c := range t.changes {
			if c.b.markers != nil { // remote insertions do not update them
				c.b.markers.list = c.b.markers.list[:0]
			}
		}
	}
	d.observe(t)
	if !d.opts.KeepDeleted {
		d.collectDeleted(t)
	}
	d.mergeDeleted(t)
	d.mergeNew(t)
	d.mergeSplits(t)
	if !t.local {
		d.renewClientID(t)
	}
	if len(d.updateFns) > 0 {
		d.sendUpdate(t)
	}
	d.commitSubdocs(t)
	if d.garbage > 4096 && d.garbage > len(d.text)/2 {
		d.compact()
	}
}

// renewClientID takes a new client id if another writer used ours.
func (d *Doc) renewClientID(t *Txn) {
	for _, s := range t.touched {
		if s.after != s.before && d.clients[s.client].id == d.clientID {
			d.clientID = newClientID()
		}
	}
}

// recordDeleteOrder records the order of deletions by client, which sorting would lose.
func (t *Txn) recordDeleteOrder() {
	t.order = nil
	last := none
	for _, x := range t.deleted {
		if x.client != last && !slices.Contains(t.order, x.client) {
			t.order = append(t.order, x.client)
		}
		last = x.client
	}
}

func (t *Txn) sortDeleted() {
	ds := t.deleted
	if len(ds) < 2 {
		return
	}
	byPlace := func(a, b deletion) int {
		if a.client != b.client {
			return cmp.Compare(a.client, b.client)
		}
		return cmp.Compare(a.clock, b.clock)
	}
	if !slices.IsSortedFunc(ds, byPlace) {
		slices.SortFunc(ds, byPlace)
	}
	j := 0
	for _, x := range ds[1:] {
		if l := &ds[j]; l.client == x.client && l.clock+l.length >= x.clock {
			l.length = max(l.length, x.clock+x.length-l.clock)
		} else {
			j++
			ds[j] = x
		}
	}
	t.deleted = ds[:j+1]
}

func (d *Doc) collectDeleted(t *Txn) {
	for _, x := range slices.Backward(t.deleted) {
		s := d.clients[x.client].structs
		for si := d.find(x.client, x.clock); si < len(s); si++ {
			it := d.at(s[si])
			if it.clock >= x.clock+x.length {
				break
			}
			if it.kind != kindGC && it.deleted() && it.flags&itKeep == 0 {
				d.collect(it)
			}
		}
	}
}

func (d *Doc) mergeDeleted(t *Txn) {
	for end := len(t.deleted); end > 0; {
		begin := end - 1
		for begin > 0 && t.deleted[begin-1].client == t.deleted[begin].client {
			begin--
		}
		d.mergeRanges(t.deleted[begin:end])
		end = begin
	}
}

// mergeRanges merges the structs of sorted ranges of one client, and each range with its
// neighbours. It moves the rest of the list once instead of once per range.
func (d *Doc) mergeRanges(ds []deletion) {
	ci := ds[0].client
	s := d.clients[ci].structs
	left, right := len(s), len(s) // s[:left] is not processed yet, s[right:] is final
	for _, x := range slices.Backward(ds) {
		after := 2 + d.findLeft(ci, left, x.clock+x.length-1) // after the range and its neighbour
		if after <= left {
			right -= left - after
			copy(s[right:], s[after:left])
			left = after
		} else if right < len(s) { // the neighbour is the first final struct
			s[left] = s[right]
			left, right = left+1, right+1
		}
		for left > 1 && d.at(s[left-1]).clock >= x.clock {
			left -= 1 + d.mergeRun(s, left-1)
			right--
			s[right] = s[left]
		}
	}
	d.clients[ci].structs = slices.Delete(s, left, right)
}

// findLeft is find restricted to the first n structs of a client.
func (d *Doc) findLeft(ci uint32, n int, clock uint32) int {
	s := d.clients[ci].structs
	if n == len(s) {
		return d.find(ci, clock)
	}
	return sort.Search(n, func(i int) bool { return d.at(s[i]).clock > clock }) - 1
}

func (d *Doc) mergeNew(t *Txn) {
	for i := range t.touched {
		s := t.touched[i]
		if s.before != s.after {
			d.mergeFrom(s.client, max(d.find(s.client, s.before), 1))
		}
	}
}

// mergeFrom merges the structs of a client from the last down to the first-th. It collects the
// results at the end of the list and moves them once: an update may contain a million
// structs that are all merged.
func (d *Doc) mergeFrom(ci uint32, first int) {
	c := &d.clients[ci]
	s := c.structs
	si, kept := len(s)-1, len(s)
	for si >= first {
		n := d.mergeRun(s, si)
		if si -= n; si < first {
			break // this one does not move
		}
		kept--
		s[kept] = s[si]
		si--
	}
	c.structs = slices.Delete(s, si+1, kept)
	if cap(s) > 1024 && cap(s) > 4*len(c.structs) {
		c.structs = slices.Clone(c.structs)
	}
}

func (d *Doc) mergeSplits(t *Txn) {
	for _, p := range slices.Backward(t.merge) {
		si := d.find(p.client, p.clock)
		if si+1 < len(d.clients[p.client].structs) {
			if d.mergeLeft(p.client, si+1) > 1 {
				continue
			}
		}
		if si > 0 {
			d.mergeLeft(p.client, si)
		}
	}
}

// mergeLeft merges the struct at si into its left neighbours as far as possible and returns how
// many structs it removed.
func (d *Doc) mergeLeft(ci uint32, si int) int {
	c := &d.clients[ci]
	n := d.mergeRun(c.structs, si)
	if n > 0 {
		c.structs = slices.Delete(c.structs, si-n+1, si+1)
	}
	return n
}

// mergeRun is mergeLeft without the change of the list: of the n+1 structs up to si, the first
// remains.
func (d *Doc) mergeRun(s []ref, si int) (n int) {
	first := si
	for first > 0 && d.mergeable(d.at(s[first-1]), s[first], d.at(s[first])) {
		first--
	}
	left := s[first]
	for _, r := range s[first+1 : si+1] {
		d.mergeInto(left, d.at(left), r, d.at(r))
	}
	return si - first
}

// mergeable reports whether two adjacent structs of a client can be merged.
func (d *Doc) mergeable(l *item, rr ref, r *item) bool {
	if l.kind != r.kind || (l.flags^r.flags)&itDeleted != 0 {
		return false
	}
	switch l.kind {
	case kindGC:
		return true
	case kindDeleted, kindString, kindAny, kindJSON:
		return l.right == rr && r.oClient == l.client && r.oClock == l.end()-1 &&
			l.rClient == r.rClient && (l.rClient == none || l.rClock == r.rClock) &&
			(l.flags|r.flags)&itRedone == 0
	}
	return false
}

func (d *Doc) mergeInto(lr ref, l *item, rr ref, r *item) {
	if l.kind != kindGC {
		b := d.branches[l.parent]
		if b.markers != nil {
			b.markers.merged(lr, l, rr)
		}
		l.flags |= r.flags & itKeep
		l.right = r.right
		if l.right != 0 {
			d.at(l.right).left = lr
		} else if l.sub != 0 && b.entry(l.sub) == rr {
			b.setEntry(l.sub, lr)
		}
		switch l.kind {
		case kindString:
			if l.a+l.b == r.a && l.flags&r.flags&itASCII != 0 && l.flags&itRoomy == 0 {
				l.b += r.b // adjacent in the arena
				l.flags = l.flags&^itRoomy | r.flags&itRoomy
				if l.flags&itRoomy != 0 && sizeClass(l.b)-l.b != sizeClass(r.b)-r.b {
					d.garbage += int(sizeClass(r.b) - r.b)
					l.flags &^= itRoomy
				}
			} else {
				d.appendText(l, d.textOf(r), r.flags&itASCII != 0)
				d.garbage += int(textRoom(r))
			}
		case kindAny, kindJSON:
			a, _ := d.payloads[l.a].([]any)
			b, _ := d.payloads[r.a].([]any)
			d.payloads[l.a] = append(a, b...)
			d.weights[l.a] += d.weights[r.a]
			d.weight += int(d.weights[r.a])
			d.freePayload(r.a)
		}
	}
	l.length += r.length
	d.freeItem(rr)
}
