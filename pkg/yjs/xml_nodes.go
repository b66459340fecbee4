package yjs

// The methods of this file name children by themselves and not by their index, which
// would have to be counted: they take the same time in a fragment of any length.

// InsertAfter inserts nodes behind a child, or in front of all when child is nil. What is
// no child of the fragment is [ErrDetached].
func (f *XMLFragment) InsertAfter(child any, nodes ...any) error {
	b := (*branch)(f)
	left, err := b.childItem(child)
	if err != nil {
		return err
	}
	cs, err := b.doc.contentsOf(nodes)
	if err != nil || len(cs) == 0 {
		return err
	}
	_, opened := b.doc.begin(nil, true)
	b.forgetMarkers()
	b.doc.insertValues(b, left, cs)
	b.doc.end(opened)
	return nil
}

// Remove deletes children. When one of them is no child of the fragment that is
// [ErrDetached], and nothing is deleted.
func (f *XMLFragment) Remove(children ...any) error {
	b := (*branch)(f)
	items := make([]ref, 0, len(children))
	for _, c := range children {
		r, err := b.childItem(c)
		if err != nil {
			return err
		}
		if r == 0 { // nil is a place, and no child
			return ErrDetached
		}
		items = append(items, r)
	}
	if len(items) == 0 {
		return nil
	}
	_, opened := b.doc.begin(nil, true)
	b.forgetMarkers()
	for _, r := range items {
		b.doc.deleteItem(r)
	}
	b.doc.end(opened)
	return nil
}

// Next returns the child behind one, or the first when child is nil, and whether there is
// one.
func (f *XMLFragment) Next(child any) (next any, ok bool) {
	b := (*branch)(f)
	left, err := b.childItem(child)
	if err != nil {
		return nil, false
	}
	r := b.start
	if left != 0 {
		r = b.doc.at(left).right
	}
	for ; r != 0; r = b.doc.at(r).right {
		if it := b.doc.at(r); it.shown() {
			b.doc.eachValue(it, func(v any) bool {
				next, ok = v, true
				return false
			})
			return next, ok
		}
	}
	return nil, false
}

// childItem returns the item that holds a child, 0 for nil.
func (b *branch) childItem(child any) (ref, error) {
	if b.doc == nil || b.flags&brDead != 0 {
		return 0, ErrDetached
	}
	if child == nil {
		return 0, nil
	}
	c, ok := branchValue(child)
	if !ok || c == nil || c.doc != b.doc || c.item == 0 || c.flags&brDead != 0 {
		return 0, ErrDetached
	}
	if it := b.doc.at(c.item); it.parent != b.index || it.sub != 0 || it.deleted() {
		return 0, ErrDetached
	}
	return c.item, nil
}

// forgetMarkers is for edits at an index that nobody has counted. A fragment has markers
// only when it was an array to who asked for it first.
func (b *branch) forgetMarkers() {
	if b.markers != nil {
		b.markers.list = b.markers.list[:0]
	}
}
