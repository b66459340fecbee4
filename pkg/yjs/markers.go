package yjs

// markers cache recently edited positions of a sequence, so that an index is found by a short
// walk. Next to deleted items, the chosen marker may decide on which side of them an edit
// lands. Therefore this follows the rules of Yjs exactly.
type markers struct {
	list []marker
	tick uint64
	// stale means that a marker may be on a deleted item, or that itMarker may be missing.
	// Otherwise an insertion only has to shift indexes.
	stale bool
}

type marker struct {
	item  ref
	index int
	used  uint64
}

const maxMarkers = 80

// hasMarkers reports whether the sequence uses markers.
func (b *branch) hasMarkers() bool {
	return b.flags&brFormatted == 0 && (b.kind == refText || b.kind == refArray || b.kind == refXMLText)
}

// marker returns a marker near index, or nil. It is valid until the next edit.
func (b *branch) marker(index int) *marker {
	if b.start == 0 || index == 0 || !b.hasMarkers() {
		return nil
	}
	d := b.doc
	if b.markers == nil {
		b.markers = &markers{}
	}
	m := b.markers
	var near *marker
	best := 0
	for i := range m.list {
		dist := index - m.list[i].index
		if dist < 0 {
			dist = -dist
		}
		if near == nil || dist <= best {
			near, best = &m.list[i], dist
		}
	}
	p, at := b.start, 0
	if near != nil {
		p, at = near.item, near.index
		m.tick++
		near.used = m.tick
	}
	it := d.at(p)
	for it.right != 0 && at < index {
		if it.shown() {
			if index < at+int(it.length) {
				break
			}
			at += int(it.length)
		}
		p = it.right
		it = d.at(p)
	}
	for it.left != 0 && at > index {
		p = it.left
		it = d.at(p)
		if it.shown() {
			at -= int(it.length)
		}
	}
	// Avoid items that may be merged into their left neighbour.
	for it.left != 0 {
		l := d.at(it.left)
		if l.client != it.client || l.end() != it.clock {
			break
		}
		p, it = it.left, l
		if it.shown() {
			at -= int(it.length)
		}
	}
	m.tick++
	m.stale = m.stale || !it.shown()
	if near != nil {
		moved := near.index - at
		if moved < 0 {
			moved = -moved
		}
		if moved*maxMarkers < int(b.length) {
			return m.set(d, near, p, at)
		}
	}
	if len(m.list) < maxMarkers {
		it.flags |= itMarker
		m.list = append(m.list, marker{p, at, m.tick})
		return &m.list[len(m.list)-1]
	}
	oldest := &m.list[0]
	for i := range m.list {
		if m.list[i].used < oldest.used {
			oldest = &m.list[i]
		}
	}
	return m.set(d, oldest, p, at)
}

func (m *markers) set(d *Doc, k *marker, p ref, at int) *marker {
	if old := k.item; old != p {
		d.at(old).flags &^= itMarker
		for i := range m.list {
			if m.list[i].item == old && &m.list[i] != k {
				m.stale = true
			}
		}
	}
	d.at(p).flags |= itMarker
	k.item, k.index, k.used = p, at, m.tick
	return k
}

// shiftMarkers shifts the markers after an edit at index that adds n units, or removes -n.
func (b *branch) shiftMarkers(index, n int) {
	if b.markers == nil {
		return
	}
	d, m := b.doc, b.markers
	if n <= 0 || !m.stale {
		for i := range m.list {
			if k := &m.list[i]; index < k.index || (n > 0 && index == k.index) {
				k.index = max(index, k.index+n)
			}
		}
		return
	}
	m.stale = false
	for i := len(m.list) - 1; i >= 0; i-- {
		k := &m.list[i]
		p := k.item
		it := d.at(p)
		it.flags &^= itMarker
		for p != 0 && !it.shown() {
			if p = it.left; p != 0 {
				if it = d.at(p); it.shown() {
					k.index -= int(it.length)
				}
			}
		}
		if p == 0 || it.flags&itMarker != 0 {
			m.list = append(m.list[:i], m.list[i+1:]...)
			continue
		}
		k.item = p
		it.flags |= itMarker
		if index <= k.index {
			k.index = max(index, k.index+n)
		}
	}
}

// merged moves the markers of an item that is about to be merged into its left neighbour.
func (m *markers) merged(lr ref, l *item, rr ref) {
	for i := range m.list {
		if k := &m.list[i]; k.item == rr {
			k.item = lr
			m.stale = true
			if l.shown() {
				k.index -= int(l.length)
			}
		}
	}
}
