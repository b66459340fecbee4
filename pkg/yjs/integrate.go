package yjs

// integrate inserts an item with known parent, neighbours and origins into the list and the
// store. It returns false, without changes, when the scan budget is exhausted.
func (d *Doc) integrate(r ref, it *item) bool {
	b := d.branches[it.parent]
	if (it.left == 0 && (it.right == 0 || d.at(it.right).left != 0)) ||
		(it.left != 0 && d.at(it.left).right != it.right) {
		last, now := d.placed, placement{r, it.left, it.oClient, it.oClock, it.client, d.txn.id}
		if last.item != 0 && last.item == it.right && last.after(now) {
			it.left = d.at(it.right).left
		} else {
			left, ok := d.place(it, b)
			if !ok {
				return false
			}
			it.left = left
		}
		d.placed = now
	} else {
		d.placed.item = 0
	}
	d.link(r, it, b)
	if it.sub == 0 && it.countable() && !it.deleted() {
		b.length += it.length
	}
	d.addStruct(r, it)
	d.integrateContent(r, it, b)
	d.noteChange(b, it.sub)
	switch {
	case b.deletedItem() || (it.sub != 0 && it.right != 0):
		d.deleteItem(r)
	case it.sub != 0 && it.length > 1 && !it.deleted(): // only the last unit is the value
		d.split(it.client, len(d.clients[it.client].structs)-1, it.length-1)
		d.deleteItem(r)
	}
	return true
}

// placement caches the last result of place. An author who types against the direction of the
// text (always at one index) creates items that have the previous one on their right and
// otherwise equal fields: each would be compared with all previous ones, in quadratic time.
type placement struct {
	item, left              ref
	oClient, oClock, client uint32
	txn                     uint64
}

// after reports whether an item belongs directly before the last one.
func (p placement) after(now placement) bool {
	now.item = p.item
	return p == now
}

func (d *Doc) link(r ref, it *item, b *branch) {
	if it.left != 0 {
		l := d.at(it.left)
		it.right = l.right
		l.right = r
	} else if it.sub != 0 {
		if it.right == 0 || d.at(it.right).left != 0 {
			it.right, _ = d.firstOf(b.entry(it.sub))
		}
	} else {
		it.right = b.start
		b.start = r
	}
	if it.right != 0 {
		d.at(it.right).left = r
	} else if it.sub != 0 {
		b.setEntry(it.sub, r)
		if it.left != 0 {
			d.deleteItem(it.left) // replaced by the new value
		}
	}
}

// firstOf returns the leftmost item of a list and its distance.
func (d *Doc) firstOf(r ref) (first ref, steps int) {
	for r != 0 {
		l := d.at(r).left
		if l == 0 {
			break
		}
		r = l
		steps++
	}
	return r, steps
}

// place finds the left neighbour of an item and removes an invalid right origin from the item.
// It returns false when the scan budget is exhausted.
func (d *Doc) place(it *item, b *branch) (left ref, ok bool) {
	left, inside, ok := d.search(it, b)
	if inside {
		it.right, it.rClient = 0, none
		left, _, ok = d.search(it, b)
	}
	return left, ok
}

// search implements YATA: it finds the left neighbour among the items between the origins of
// the item. Items that it passes are recorded in seen; those from conflict on may still
// belong after the item.
//
// The right origin ends the search if it has the same origin. Otherwise it was inserted after
// the item's origin and everything attached to it; inside reports that it is among these.
func (d *Doc) search(it *item, b *branch) (left ref, inside, ok bool) {
	left = it.left
	var first, stop ref
	switch {
	case left != 0:
		first = d.at(left).right
	case it.sub != 0:
		var steps int
		first, steps = d.firstOf(b.entry(it.sub))
		d.txn.scan -= steps
	default:
		first = b.start
	}
	oc, ok32 := it.oClient, it.oClock
	if it.right != 0 {
		if r := d.at(it.right); r.oClient == oc && (oc == none || r.oClock == ok32) {
			stop = it.right
		}
	}
	id, right := d.clients[it.client].id, it.right
	passed, conflict, limit := 0, 0, d.txn.scan
	looked, settled := false, false
	for o := first; o != 0 && o != stop; {
		if passed++; passed > limit {
			return 0, false, false
		}
		oi := d.at(o)
		if oi.oClient == oc && (oc == none || oi.oClock == ok32) {
			if settled {
				// Look for right only.
			} else if oi.client != it.client && d.clients[oi.client].id < id {
				left = o
				conflict = passed
			} else if it.rClient == oi.rClient && (it.rClient == none || it.rClock == oi.rClock) {
				if right == stop {
					break
				}
				settled = true
			}
		} else if oi.oClient != none {
			if !looked {
				looked = true
				d.newScan()
			}
			at := d.seenAt(d.originOf(oi), first, o)
			if inside = at >= 0 && o == right; at < 0 || inside {
				break
			}
			if at < conflict {
				left = o
				conflict = passed
			}
		} else {
			break
		}
		o = oi.right
	}
	d.txn.scan -= passed
	if looked {
		d.stamp += uint32(len(d.seen))
		if cap(d.seen) > 1<<14 {
			d.seen = nil
		}
	}
	return left, inside, true
}

// newScan begins a new list of seen items, to locate the origins of other items in it. A stamp
// below Doc.stamp belongs to an earlier list.
func (d *Doc) newScan() {
	d.seen = d.seen[:0]
	if len(d.stamps) < int(d.used) || d.stamp > 1<<31 {
		d.stamps = make([]uint32, int(d.used)+int(d.used)/4+64)
		d.stamp = 1
	}
}

// seenAt returns the index of an item among those from first to last, or -1. It extends the
// list to last on demand.
func (d *Doc) seenAt(org, first, last ref) int {
	next := first
	if n := len(d.seen); n > 0 {
		next = d.at(d.seen[n-1]).right
	}
	for {
		d.stamps[next] = d.stamp + uint32(len(d.seen))
		d.seen = append(d.seen, next)
		if next == last {
			break
		}
		next = d.at(next).right
	}
	return int(d.stamps[org]) - int(d.stamp)
}

// originOf returns the item that contains an item's origin.
func (d *Doc) originOf(it *item) ref {
	if it.left != 0 {
		if l := d.at(it.left); l.client == it.oClient && l.clock <= it.oClock && it.oClock < l.end() {
			return it.left
		}
	}
	return d.itemAt(it.oClient, it.oClock)
}

// addStruct appends a struct at its client's next clock.
func (d *Doc) addStruct(r ref, it *item) {
	c := &d.clients[it.client]
	d.touch(it.client)
	d.added++
	c.structs = append(c.structs, r)
	c.state = it.end()
}

// touch records a client's state before its first change.
func (d *Doc) touch(ci uint32) {
	c := &d.clients[ci]
	if c.txn != d.txn.id {
		c.txn = d.txn.id
		c.touched = uint32(len(d.txn.touched))
		d.txn.touched = append(d.txn.touched, span{client: ci, before: c.state})
	}
}

func (d *Doc) integrateContent(r ref, it *item, b *branch) {
	switch it.kind {
	case kindDeleted:
		d.txn.deleted = append(d.txn.deleted, deletion{it.client, it.clock, it.length})
		it.flags |= itDeleted
	case kindFormat:
		b.flags |= brFormatted
		b.markers = nil
	case kindType:
		t := d.branchOf(it)
		t.item = r
		t.flush()
	case kindDoc:
		s, _ := d.payloads[it.a].(*Subdoc)
		s.parent, s.item = d, r
		d.txn.subdocs = append(d.txn.subdocs, subdocChange{s, true})
	}
}

// noteChange records a change of a type, unless the type is new in this transaction.
func (d *Doc) noteChange(b *branch, sub uint32) {
	t := d.txn
	if b.item != 0 {
		it := d.at(b.item)
		if it.deleted() || it.clock >= t.before(it.client) {
			return
		}
	}
	if sub == 0 {
		if b.changed == t.id {
			return
		}
		b.changed = t.id
	}
	t.changes = append(t.changes, change{b, sub})
}

// deleteItem marks an item and its content as deleted.
func (d *Doc) deleteItem(r ref) {
	it := d.at(r)
	if it.deleted() {
		return
	}
	d.markDeleted(it)
	if b := d.branchOf(it); b != nil {
		d.deleteChildren(b)
	}
}

func (d *Doc) markDeleted(it *item) {
	b := d.branches[it.parent]
	if it.sub == 0 && it.countable() {
		b.length -= it.length
	}
	it.flags |= itDeleted
	if it.flags&itMarker != 0 && b.markers != nil {
		b.markers.stale = true
	}
	d.txn.deleted = append(d.txn.deleted, deletion{it.client, it.clock, it.length})
	d.noteChange(b, it.sub)
	if it.kind == kindDoc {
		s, _ := d.payloads[it.a].(*Subdoc)
		d.txn.subdocs = append(d.txn.subdocs, subdocChange{s, false})
	}
}

// deleteChildren uses an explicit stack: documents may be nested deeper than a goroutine's
// stack allows.
func (d *Doc) deleteChildren(b *branch) {
	type frame struct {
		b     *branch
		next  ref
		entry int
	}
	stack := []frame{{b: b, next: b.start}}
	for len(stack) > 0 {
		f := &stack[len(stack)-1]
		var r ref
		if f.next != 0 {
			r = f.next
			f.next = d.at(r).right
		} else if f.entry < len(f.b.entries) {
			r = f.b.entries[f.entry].item
			f.entry++
		} else {
			stack = stack[:len(stack)-1]
			continue
		}
		it := d.at(r)
		if it.deleted() {
			// It will be collected with its parent and may then be merged.
			if it.clock < d.txn.before(it.client) {
				d.txn.merge = append(d.txn.merge, itemPos{it.client, it.clock})
			}
			continue
		}
		d.markDeleted(it)
		if c := d.branchOf(it); c != nil {
			stack = append(stack, frame{b: c, next: c.start})
		}
	}
}

// collect removes the content of a deleted item.
func (d *Doc) collect(it *item) {
	if b := d.branchOf(it); b != nil {
		d.collectChildren(b)
	}
	if it.kind != kindDeleted {
		d.dropContent(it)
		it.kind = kindDeleted
	}
}

func (d *Doc) collectChildren(b *branch) {
	stack := []*branch{b}
	for len(stack) > 0 {
		b := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for r := b.start; r != 0; {
			it := d.at(r)
			r = it.right
			stack = d.toGC(it, stack)
		}
		for _, e := range b.entries {
			for r := e.item; r != 0; {
				it := d.at(r)
				r = it.left
				stack = d.toGC(it, stack)
			}
		}
		d.freeBranch(b)
	}
}

// toGC turns an item into a GC range.
func (d *Doc) toGC(it *item, stack []*branch) []*branch {
	if it.kind == kindGC {
		return stack
	}
	if b := d.branchOf(it); b != nil {
		stack = append(stack, b)
	}
	d.dropContent(it)
	it.kind = kindGC
	it.flags = itDeleted | it.flags&itRedone
	it.left, it.right, it.parent, it.sub = 0, 0, 0, 0
	it.oClient, it.rClient = none, none
	return stack
}
