package yjs

// UndoUpdate undoes an update in encoding v1 in one local transaction and reports whether that
// changed anything. It deletes what the update inserted, and restores what it deleted,
// including formats and keys, unless somebody has set a key since. A type that the update
// created stays, with its attributes, while it contains content of others.
//
// The document must have applied the update and have the content that it deleted: create it
// with [Options.KeepDeleted] and first apply a state from before the update. If content is
// missing, UndoUpdate returns ErrGone and changes nothing.
//
// The undo is an update itself, which can be undone. Undoing the same update twice would
// restore its deletions twice.
func (d *Doc) UndoUpdate(update []byte, origin any) (changed bool, err error) {
	s, err := stepOf(update)
	if err != nil {
		return false, err
	}
	_, opened := d.begin(origin, true)
	defer d.end(opened)
	if !d.hasContent(s.deletes, s.inserts) {
		return false, ErrGone
	}
	u := &UndoManager{doc: d, keepShared: true}
	return u.apply(s), nil
}

// stepOf returns the insertions and deletions of an update.
func stepOf(update []byte) (*undoStep, error) {
	var inserts DeleteSet
	var r structReader
	r.init(update, false, &ownLimits)
	for r.next() {
		if r.cur.kind != kindSkip {
			inserts = append(inserts, ClientRanges{r.cur.client, []Range{{r.cur.clock, r.cur.length}}})
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	deletes, err := r.dec.deleteSet(&ownLimits)
	if err != nil {
		return nil, err
	}
	return &undoStep{inserts: mergeDeleteSets(inserts), deletes: mergeDeleteSets(deletes)}, nil
}

// hasContent reports whether the document has the content of a set, apart from except.
func (d *Doc) hasContent(ds, except DeleteSet) bool {
	has := true
	for _, c := range ds {
		ci := d.lookup(c.Client)
		for _, r := range c.Ranges {
			if ci == none || r.end() > d.clients[ci].state {
				return false
			}
			d.eachStruct(ci, r.Clock, r.end(), func(_ ref, it *item) {
				if it.kind == kindGC || it.kind == kindDeleted {
					has = has && except.Contains(c.Client, it.clock)
				}
			})
		}
	}
	return has
}

// keptForOthers reports whether an item in mine must stay: a type with content of others, or an
// attribute of one.
func (d *Doc) keptForOthers(r ref, mine DeleteSet) bool {
	it := d.at(r)
	if b := d.branchOf(it); b != nil && d.shared(b, mine) {
		return true
	}
	around := d.branches[it.parent]
	if it.sub == 0 || around.kind == refMap || around.item == 0 {
		return false
	}
	holder := d.at(around.item)
	return mine.Contains(d.clients[holder.client].id, holder.clock) && d.shared(around, mine)
}

// shared reports whether a type contains anything that is not in mine.
func (d *Doc) shared(b *branch, mine DeleteSet) bool {
	theirs := func(r ref) bool {
		it := d.at(r)
		if it.deleted() || !it.countable() {
			return false
		}
		if !mine.Contains(d.clients[it.client].id, it.clock) {
			return true
		}
		inner := d.branchOf(it)
		return inner != nil && d.shared(inner, mine)
	}
	for r := b.start; r != 0; r = d.at(r).right {
		if theirs(r) {
			return true
		}
	}
	if b.kind != refMap { // the attributes of an element are deleted with it
		return false
	}
	for i := range b.entries {
		if theirs(b.entries[i].item) {
			return true
		}
	}
	return false
}
