package yjs

import (
	"cmp"
	"slices"
	"time"
)

// UndoOptions configure an [UndoManager].
type UndoOptions struct {
	// Scope holds the shared types whose edits can be undone, including their contents. Empty
	// means the whole document.
	Scope []any
	// Origins holds the origins of transactions that can be undone, compared with ==. Empty
	// means origin nil.
	Origins []any
	// CaptureTimeout merges transactions that are closer in time into one step; 0 keeps them
	// separate.
	CaptureTimeout time.Duration
	// IgnoreRemoteMapChanges lets an undo overwrite keys that others have set since.
	IgnoreRemoteMapChanges bool
	// Now returns the time; nil means time.Now.
	Now func() time.Time
}

// UndoManager undoes and redoes the edits in its scope with its origins, and leaves all
// others alone. Content that it may restore is not garbage collected.
type UndoManager struct {
	doc   *Doc
	opts  UndoOptions
	scope []*branch
	undos []*undoStep
	redos []*undoStep
	mode  int8 // -1 while undoing, 1 while redoing
	last  time.Time
	stop  func()

	keepShared bool // keep types with content of others, see Doc.UndoUpdate
}

// undoStep is the unit of one undo.
type undoStep struct{ inserts, deletes DeleteSet }

// NewUndoManager returns an undo manager that captures until Close is called.
func NewUndoManager(d *Doc, o UndoOptions) (*UndoManager, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Origins == nil {
		o.Origins = []any{nil}
	}
	u := &UndoManager{doc: d, opts: o}
	for _, t := range o.Scope {
		b, ok := branchValue(t)
		if !ok || b.doc != d {
			return nil, ErrDetached
		}
		u.scope = append(u.scope, b)
	}
	u.stop = d.OnTransaction(u.capture)
	return u, nil
}

// Close stops capturing and releases the content kept for undoing.
func (u *UndoManager) Close() {
	u.Clear()
	u.stop()
}

// CanUndo reports whether there is a step to undo.
func (u *UndoManager) CanUndo() bool { return len(u.undos) > 0 }

// CanRedo reports whether there is a step to redo.
func (u *UndoManager) CanRedo() bool { return len(u.redos) > 0 }

// StopCapturing makes the next transaction begin a new step.
func (u *UndoManager) StopCapturing() { u.last = time.Time{} }

// Undo undoes the last step and reports whether that changed anything.
func (u *UndoManager) Undo() bool {
	u.mode = -1
	defer func() { u.mode = 0 }()
	return u.pop(&u.undos)
}

// Redo redoes the last undone step and reports whether that changed anything.
func (u *UndoManager) Redo() bool {
	u.mode = 1
	defer func() { u.mode = 0 }()
	return u.pop(&u.redos)
}

// Clear removes all steps.
func (u *UndoManager) Clear() { u.clear(true, true) }

func (u *UndoManager) clear(undos, redos bool) {
	undos, redos = undos && len(u.undos) > 0, redos && len(u.redos) > 0
	if !undos && !redos {
		return
	}
	d := u.doc
	_, opened := d.begin(nil, true)
	forget := func(steps *[]*undoStep) {
		for _, s := range *steps {
			u.each(s.deletes, func(r ref, it *item) {
				if u.covers(it) {
					d.keep(r, false)
				}
			})
		}
		*steps = nil
	}
	if undos {
		forget(&u.undos)
	}
	if redos {
		forget(&u.redos)
	}
	d.end(opened)
}

// covers reports whether an item is in the scope.
func (u *UndoManager) covers(it *item) bool {
	if it.kind == kindGC {
		return false
	}
	if len(u.scope) == 0 {
		return true
	}
	b := u.doc.branches[it.parent]
	return slices.ContainsFunc(u.scope, b.within)
}

// each calls f for the items of a set, split to fit.
func (u *UndoManager) each(ds DeleteSet, f func(r ref, it *item)) {
	d := u.doc
	for _, c := range ds {
		ci := d.lookup(c.Client)
		if ci == none {
			continue
		}
		for _, r := range c.Ranges {
			d.eachStruct(ci, r.Clock, min(r.end(), d.clients[ci].state), func(r ref, it *item) {
				if it.kind != kindGC {
					f(r, it)
				}
			})
		}
	}
}

// keep protects an item and its ancestors from garbage collection, or ends that.
func (d *Doc) keep(r ref, keep bool) {
	for r != 0 {
		it := d.at(r)
		if (it.flags&itKeep != 0) == keep {
			return
		}
		it.flags ^= itKeep
		r = d.branches[it.parent].item
	}
}

// capture adds a transaction to the steps, before garbage collection.
func (u *UndoManager) capture(t *Txn) {
	if !u.tracks(t) {
		return
	}
	d := u.doc
	steps := &u.undos
	switch u.mode {
	case -1:
		steps = &u.redos
		u.StopCapturing()
	case 0:
		u.clear(false, true)
	}
	s := &undoStep{deletes: t.deletesInOrder(), inserts: t.insertSet()}
	now := u.opts.Now()
	if u.mode == 0 && len(*steps) > 0 && !u.last.IsZero() && now.Sub(u.last) < u.opts.CaptureTimeout {
		top := (*steps)[len(*steps)-1]
		top.deletes = joinInOrder(top.deletes, s.deletes)
		top.inserts = joinInOrder(top.inserts, s.inserts)
	} else {
		*steps = append(*steps, s)
	}
	if u.mode == 0 {
		u.last = now
	}
	d.txn = t // splits belong to the transaction being committed
	u.each(s.deletes, func(r ref, it *item) {
		if u.covers(it) {
			d.keep(r, true)
		}
	})
	d.txn = nil
}

func (u *UndoManager) tracks(t *Txn) bool {
	if t.origin != any(u) && !slices.Contains(u.opts.Origins, t.origin) {
		return false
	}
	if len(u.scope) == 0 {
		return true
	}
	return slices.ContainsFunc(t.changes, func(c change) bool {
		return !c.b.deletedItem() && slices.ContainsFunc(u.scope, c.b.within)
	})
}

// insertSet returns the structs that the transaction created, clients in the order in which
// they joined the document.
func (t *Txn) insertSet() DeleteSet {
	spans := slices.Clone(t.touched)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.client, b.client) })
	var ds DeleteSet
	for _, s := range spans {
		if s.after > s.before {
			ds = append(ds, ClientRanges{t.doc.clients[s.client].id, []Range{{s.before, s.after - s.before}}})
		}
	}
	return ds
}

// deletesInOrder returns the deletions of the transaction, clients in the order of their first
// deletions.
func (t *Txn) deletesInOrder() DeleteSet {
	ds := t.deleteSet()
	at := func(c ClientRanges) int { return slices.Index(t.order, t.doc.lookup(c.Client)) }
	slices.SortFunc(ds, func(a, b ClientRanges) int { return cmp.Compare(at(a), at(b)) })
	return ds
}

// joinInOrder merges two sets and keeps the order of clients.
func joinInOrder(a, b DeleteSet) DeleteSet {
	out := make(DeleteSet, 0, len(a)+len(b))
	for _, c := range slices.Concat(a, b) {
		i := slices.IndexFunc(out, func(o ClientRanges) bool { return o.Client == c.Client })
		if i < 0 {
			out = append(out, ClientRanges{c.Client, slices.Clone(c.Ranges)})
			continue
		}
		out[i].Ranges = sortRanges(append(out[i].Ranges, c.Ranges...))
	}
	return out
}

// pop takes steps from a stack until one changes something.
func (u *UndoManager) pop(steps *[]*undoStep) bool {
	d := u.doc
	_, opened := d.begin(u, true)
	changed := false
	for len(*steps) > 0 && !changed {
		s := (*steps)[len(*steps)-1]
		*steps = (*steps)[:len(*steps)-1]
		changed = u.apply(s)
	}
	d.end(opened)
	return changed
}

func (u *UndoManager) apply(s *undoStep) (changed bool) {
	d := u.doc
	var remove, redo []ref
	u.each(s.inserts, func(r ref, it *item) {
		if it.flags&itRedone != 0 {
			id := ID{d.clients[it.client].id, it.clock}
			to, diff, ok := d.followRedone(id)
			if !ok {
				return
			}
			if diff > 0 {
				n := d.at(to)
				to = d.cleanStart(n.client, n.clock+diff)
			}
			r, it = to, d.at(to)
		}
		if !it.deleted() && u.covers(it) {
			remove = append(remove, r)
		}
	})
	wanted := make(map[ref]bool)
	u.each(s.deletes, func(r ref, it *item) {
		// Content created and deleted within the step stays deleted.
		if u.covers(it) && !s.inserts.Contains(d.clients[it.client].id, it.clock) {
			redo = append(redo, r)
			wanted[r] = true
		}
	})
	for _, r := range redo {
		if u.redo(r, wanted, s.inserts) != 0 {
			changed = true
		}
	}
	for _, r := range slices.Backward(remove) {
		if u.keepShared && d.keptForOthers(r, s.inserts) {
			continue
		}
		if !d.at(r).deleted() {
			d.deleteItem(r)
		}
		changed = true
	}
	for _, c := range d.txn.changes {
		if c.sub == 0 && c.b.markers != nil {
			c.b.markers.list = c.b.markers.list[:0]
		}
	}
	return changed
}

// redoneAt returns the item that replaces r, or 0.
func (d *Doc) redoneAt(r ref) ref {
	if r == 0 || d.at(r).flags&itRedone == 0 {
		return 0
	}
	id := d.redone[r]
	return d.cleanStart(d.lookup(id.Client), id.Clock)
}

// redo restores a deleted item and returns its replacement, or 0 if that is impossible.
func (u *UndoManager) redo(r ref, wanted map[ref]bool, removing DeleteSet) ref {
	d := u.doc
	if again := d.redoneAt(r); again != 0 {
		return again
	}
	it := d.at(r)
	if it.kind == kindGC {
		return 0
	}
	parent := d.branches[it.parent]
	holder := parent.item
	if holder != 0 && d.at(holder).deleted() {
		if d.at(holder).flags&itRedone == 0 && (!wanted[holder] || u.redo(holder, wanted, removing) == 0) {
			return 0
		}
		for d.at(holder).flags&itRedone != 0 {
			holder = d.redoneAt(holder)
		}
	}
	if holder != 0 {
		if parent = d.branchOf(d.at(holder)); parent == nil {
			return 0
		}
	}
	var left, right ref
	if it.sub == 0 {
		left, right = u.redoPlace(r, holder)
	} else {
		var ok bool
		if left, ok = u.redoKey(r, parent, holder, removing); !ok {
			return 0
		}
	}
	made := d.redoItem(it, parent, left, right)
	d.at(r).flags |= itRedone
	if d.redone == nil {
		d.redone = make(map[ref]ID)
	}
	n := d.at(made)
	d.redone[r] = ID{d.clients[n.client].id, n.clock}
	d.keep(made, true)
	return made
}

// redoPlace finds the neighbours of an item in a sequence, or their replacements.
func (u *UndoManager) redoPlace(r, holder ref) (left, right ref) {
	d := u.doc
	trace := func(n ref, next func(*item) ref) ref {
		for ; n != 0; n = next(d.at(n)) {
			t := n
			for t != 0 && d.branches[d.at(t).parent].item != holder {
				t = d.redoneAt(t)
			}
			if t != 0 {
				return t
			}
		}
		return 0
	}
	left = trace(d.at(r).left, func(it *item) ref { return it.left })
	right = trace(r, func(it *item) ref { return it.right })
	return left, right
}

// redoKey finds the item after which a key is set again. ok is false if somebody else has set
// the key since.
func (u *UndoManager) redoKey(r ref, parent *branch, holder ref, removing DeleteSet) (left ref, ok bool) {
	d := u.doc
	it := d.at(r)
	if it.right == 0 || u.opts.IgnoreRemoteMapChanges {
		return parent.entry(it.sub), true
	}
	left = r
	for left != 0 && d.at(left).right != 0 {
		n := d.at(d.at(left).right)
		id := d.clients[n.client].id
		if n.flags&itRedone == 0 && !removing.Contains(id, n.clock) && !u.deleted(u.undos, id, n.clock) && !u.deleted(u.redos, id, n.clock) {
			break
		}
		left = d.at(left).right
		for d.at(left).flags&itRedone != 0 {
			left = d.redoneAt(left)
		}
	}
	if left != 0 && d.at(left).right != 0 {
		return 0, false
	}
	if left != 0 && d.branches[d.at(left).parent].item != holder {
		left = parent.entry(it.sub)
	}
	return left, true
}

func (u *UndoManager) deleted(steps []*undoStep, id uint64, clock uint32) bool {
	return slices.ContainsFunc(steps, func(s *undoStep) bool { return s.deletes.Contains(id, clock) })
}

// redoItem inserts a copy of an item.
func (d *Doc) redoItem(it *item, parent *branch, left, right ref) ref {
	fill := func(n *item) {
		switch it.kind {
		case kindString:
			d.setText(n, slices.Clone(d.textOf(it)), it.flags&itASCII != 0)
		case kindAny, kindJSON:
			vs, _ := d.payloads[it.a].([]any)
			n.a = d.newPayload(slices.Clone(vs))
		case kindType:
			old := d.branchOf(it)
			b := d.newBranch(old.kind)
			b.name = old.name
			n.a = d.newPayload(b)
		case kindDoc:
			s, _ := d.payloads[it.a].(*Subdoc)
			n.a = d.newPayload(newSubdoc(s.guid, s.wireOptions()))
		case kindDeleted:
		default:
			n.a, n.b = d.newPayload(d.payloads[it.a]), it.b
		}
	}
	return d.insertItem(parent, left, right, it.sub, it.kind, it.length, fill)
}
