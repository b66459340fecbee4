package yjs

import (
	"cmp"
	"slices"
	"sort"
)

// Txn is a transaction: the edits between which nobody looks. It is valid until the
// function it was handed to returns.
type Txn struct {
	doc     *Doc
	id      uint64
	origin  any
	local   bool
	touched []span   // clients that made structs
	deleted []dead   // what was deleted, in that order until commit sorts it
	merge   []place  // items that were split off, to be joined again
	changes []change // types that changed
	subdocs []subdocChange
	order   []uint32 // clients in the order of their first deletions, for undo
	scan    int      // steps left for finding places
	moved   int      // entries of struct lists that made room or closed up
}

// movedPerStep is how many entries of a list move in the time that passing an item takes.
const movedPerStep = 256

// tired says whether splits in long lists have cost as much as MaxScan steps.
func (t *Txn) tired() bool { return t.moved/movedPerStep > t.doc.limits.MaxScan }

// rested begins a new budget of steps.
func (t *Txn) rested() { t.scan, t.moved = t.doc.limits.MaxScan, 0 }

type span struct {
	client        uint32
	before, after uint32
}

type place struct{ client, clock uint32 }

type dead struct{ client, clock, length uint32 }

type change struct {
	b   *branch
	sub uint32
}

// Origin returns what was handed to [Doc.Transact] or [Doc.ApplyUpdate].
func (t *Txn) Origin() any { return t.origin }

// Local says whether the edits were made here; otherwise they came as an update.
func (t *Txn) Local() bool { return t.local }

// Doc returns the document.
func (t *Txn) Doc() *Doc { return t.doc }

// before returns where a client stood when the transaction began.
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

// beforeLater is before once a later transaction has begun, in an observer.
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

// began returns where a client stood that the transaction touched.
func (t *Txn) began(ci uint32) (clock uint32, ok bool) {
	for i := range t.touched {
		if t.touched[i].client == ci {
			return t.touched[i].before, true
		}
	}
	return 0, false
}

// adds says whether the transaction made the struct at clock.
func (t *Txn) adds(ci, clock uint32) bool { return clock >= t.before(ci) }

// deletes says whether the transaction deleted the struct at clock; after commit began.
func (t *Txn) deletes(ci, clock uint32) bool {
	_, ok := slices.BinarySearchFunc(t.deleted, clock, func(x dead, clock uint32) int {
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

// Transact runs f as one transaction. Within f, edits and further calls of Transact
// belong to it; observers run and updates are sent when the outermost f returns.
func (d *Doc) Transact(origin any, f func(*Txn)) {
	t, outer := d.begin(origin, true)
	defer d.end(outer)
	f(t)
}

// begin returns the open transaction, or opens one.
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

// end commits a transaction that begin opened. Transactions that observers open are
// committed after this one.
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

// commit does what Yjs does, in its order: observers, collection, joining within the
// delete set, then of new structs, then of splits, each from the right to the left.
// The order decides which bytes the state has.
func (d *Doc) commit(t *Txn) {
	if len(d.txnFns) > 0 {
		t.noteOrder()
	}
	t.sortDeleted()
	for i := range t.touched {
		s := &t.touched[i]
		s.after = d.clients[s.client].state
	}
	if !t.local {
		for _, c := range t.changes {
			if c.b.markers != nil { // they do not know what others inserted
				c.b.markers.list = c.b.markers.list[:0]
			}
		}
	}
	d.observe(t)
	if d.opts.KeepDeleted {
		d.joinDeleted(t)
	} else {
		d.collectDeleted(t)
		d.joinDeleted(t)
	}
	d.joinNew(t)
	d.joinSplits(t)
	if !t.local {
		d.renew(t)
	}
	if len(d.updateFns) > 0 {
		d.sendUpdate(t)
	}
	d.commitSubdocs(t)
	if d.garbage > 4096 && d.garbage > len(d.text)/2 {
		d.compact()
	}
}

// renew takes another client id when somebody else was seen to use ours.
func (d *Doc) renew(t *Txn) {
	for _, s := range t.touched {
		if s.after != s.before && d.clients[s.client].id == d.clientID {
			d.clientID = newClientID()
		}
	}
}

// noteOrder keeps what sorting would lose: redo works in the order of the deletions.
func (t *Txn) noteOrder() {
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
	byPlace := func(a, b dead) int {
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

func (d *Doc) joinDeleted(t *Txn) {
	for end := len(t.deleted); end > 0; {
		begin := end - 1
		for begin > 0 && t.deleted[begin-1].client == t.deleted[begin].client {
			begin--
		}
		d.joinRanges(t.deleted[begin:end])
		end = begin
	}
}

// joinRanges joins the structs of ranges of one client, and each range with its neighbours.
// The list closes up once, and not for each range.
func (d *Doc) joinRanges(ds []dead) {
	ci := ds[0].client
	s := d.clients[ci].structs
	left, right := len(s), len(s) // s[:left] is to be looked at yet, s[right:] stays
	for _, x := range slices.Backward(ds) {
		behind := 2 + d.findLeft(ci, left, x.clock+x.length-1) // the range and its neighbour
		if behind <= left {
			right -= left - behind
			copy(s[right:], s[behind:left])
			left = behind
		} else if right < len(s) { // the neighbour is the first that stays
			s[left] = s[right]
			left, right = left+1, right+1
		}
		for left > 1 && d.at(s[left-1]).clock >= x.clock {
			left -= 1 + d.joinRun(s, left-1)
			right--
			s[right] = s[left]
		}
	}
	d.clients[ci].structs = slices.Delete(s, left, right)
}

// findLeft is find among the first n structs of a client.
func (d *Doc) findLeft(ci uint32, n int, clock uint32) int {
	s := d.clients[ci].structs
	if n == len(s) {
		return d.find(ci, clock)
	}
	return sort.Search(n, func(i int) bool { return d.at(s[i]).clock > clock }) - 1
}

func (d *Doc) joinNew(t *Txn) {
	for i := range t.touched {
		s := t.touched[i]
		if s.before != s.after {
			d.joinFrom(s.client, max(d.find(s.client, s.before), 1))
		}
	}
}

// joinFrom joins the structs of a client from the last down to the first-th. What stays
// is gathered at the end of the list and moved down once: an update may bring a million
// structs that all are joined.
func (d *Doc) joinFrom(ci uint32, first int) {
	c := &d.clients[ci]
	s := c.structs
	si, kept := len(s)-1, len(s)
	for si >= first {
		n := d.joinRun(s, si)
		if si -= n; si < first {
			break // this one stays where it is
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

func (d *Doc) joinSplits(t *Txn) {
	for _, p := range slices.Backward(t.merge) {
		si := d.find(p.client, p.clock)
		if si+1 < len(d.clients[p.client].structs) {
			if d.joinLeft(p.client, si+1) > 1 {
				continue
			}
		}
		if si > 0 {
			d.joinLeft(p.client, si)
		}
	}
}

// joinLeft joins the struct at si with as many on its left as go, and returns how many
// went away.
func (d *Doc) joinLeft(ci uint32, si int) int {
	c := &d.clients[ci]
	n := d.joinRun(c.structs, si)
	if n > 0 {
		c.structs = slices.Delete(c.structs, si-n+1, si+1)
	}
	return n
}

// joinRun is joinLeft, but that it leaves the list alone: of the n+1 structs up to si
// the first is what is left.
func (d *Doc) joinRun(s []ref, si int) (n int) {
	first := si
	for first > 0 && d.joinable(d.at(s[first-1]), s[first], d.at(s[first])) {
		first--
	}
	left := s[first]
	for _, r := range s[first+1 : si+1] {
		d.join(left, d.at(left), r, d.at(r))
	}
	return si - first
}

// joinable says whether two neighbours in the store are one struct.
func (d *Doc) joinable(l *item, rr ref, r *item) bool {
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

func (d *Doc) join(lr ref, l *item, rr ref, r *item) {
	if l.kind != kindGC {
		b := d.branches[l.parent]
		if b.markers != nil {
			b.markers.joined(d, lr, l, rr)
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
				l.b += r.b // they lie side by side
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
