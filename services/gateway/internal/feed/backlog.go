package feed

import "slices"

// frameCost is what a frame takes beside its data.
const frameCost = 192

// smallPage is what a viewer may have of a tail when all backlogs together are over
// their bound.
const smallPage = 2 * pullBytes

func (f *frame) weight() int { return len(f.data) + frameCost }

// page returns how much a viewer may have of a tail just now.
func (f *Feed) page() int {
	page := int(min(f.cfg.BehindBytes, maxTailBytes)) //nolint:gosec // a few megabytes
	if f.backlogs.Load() >= f.cfg.BacklogBytes {
		page = min(page, smallPage)
	}
	return page
}

// keep makes frames the viewer's backlog, as many as it may have. The rest, and what
// is after them when part is set, is read again when the viewer gets there. The
// topic's lock is held.
func (v *Viewer) keep(frames []*frame, part bool) {
	limit := v.feed.page()
	n, size := 0, 0
	for n < len(frames) && (n == 0 || size+frames[n].weight() <= limit) {
		size += frames[n].weight()
		n++
	}
	v.backlog, v.weight = slices.Clone(frames[:n]), size // not the whole tail, which would stay in memory
	v.feed.backlogs.Add(int64(size))
	if part || n < len(frames) {
		v.next = 0 // behind the ring, wherever that is
	}
}

// spend takes the first n frames out of the backlog. The topic's lock is held.
func (v *Viewer) spend(n int) {
	size := 0
	for i, f := range v.backlog[:n] {
		size += f.weight()
		v.backlog[i] = nil
	}
	v.weight -= size
	v.feed.backlogs.Add(-int64(size))
	if v.backlog = v.backlog[n:]; len(v.backlog) == 0 {
		v.backlog = nil
	}
}
