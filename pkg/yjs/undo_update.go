package yjs

// UndoUpdate takes back what an update in encoding v1 did, as one transaction of ours,
// and says whether that changed anything. What the update inserted and is still there is
// deleted, what it deleted comes back at its place, formats and keys included; keys that
// somebody has set since stay as they are. A type that the update made stays, with its
// attributes and without what the update put into it, while it holds something that
// others did.
//
// The document has the update already, and the content that the update deleted: it
// keeps deleted content ([Options.KeepDeleted]), and was given a state from before the
// update first. Where content is missing, ErrGone is returned and nothing is changed.
//
// What undoes the update is an update itself, which can be undone. The same update must
// not be undone twice, or what it deleted is there twice.
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
	u := &UndoManager{doc: d, sparing: true}
	return u.apply(s), nil
}

// stepOf returns what an update inserts and deletes.
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

// hasContent says whether the document has the content of a set, but for what is in
// except.
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

// spared says whether an item stays though it is in mine: a type with something that
// others did, or an attribute of one.
func (d *Doc) spared(r ref, mine DeleteSet) bool {
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

// shared says whether a type holds something that is not in mine.
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
	if b.kind != refMap { // the attributes of an element go with it
		return false
	}
	for i := range b.entries {
		if theirs(b.entries[i].item) {
			return true
		}
	}
	return false
}
