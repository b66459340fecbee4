package yjs

// The methods in this file identify children by value and not by index. They take constant
// time in a fragment of any length.

// InsertAfter inserts nodes after a child, or at the start if child is nil. It returns
// [ErrDetached] if child is not a child of the fragment.
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

// Remove deletes children. It returns [ErrDetached] and deletes nothing if one of them is not
// a child of the fragment.
func (f *XMLFragment) Remove(children ...any) error {
	b := (*branch)(f)
	items := make([]ref, 0, len(children))
	for _, c := range children {
		r, err := b.childItem(c)
		if err != nil {
			return err
		}
		if r == 0 { // nil is a position, not a child
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

// Next returns the child after another one, or the first if child is nil. ok is false if there
// is none.
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

// childItem returns the item that contains a child, 0 for nil.
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

// forgetMarkers drops the markers after edits without a known index. A fragment has markers
// only if it was first accessed as an array.
func (b *branch) forgetMarkers() {
	if b.markers != nil {
		b.markers.list = b.markers.list[:0]
	}
}
