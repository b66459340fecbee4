package feed

import "slices"

// frameCost is the memory of a frame in addition to its data.
const frameCost = 192

// smallPage is the size of a tail for a viewer while all backlogs together exceed their limit.
const smallPage = 2 * pullBytes

func (f *frame) weight() int { return len(f.data) + frameCost }

// page returns the current maximum size of a tail for a viewer.
func (f *Feed) page() int {
	page := int(min(f.cfg.BehindBytes, maxTailBytes)) //nolint:gosec // a few megabytes
	if f.backlogs.Load() >= f.cfg.BacklogBytes {
		page = min(page, smallPage)
	}
	return page
}

// keep makes frames the viewer's backlog, up to its limit. The viewer reads the rest, and what
// follows if part is set, when it gets there. The topic's lock is held.
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
		v.next = 0 // before the ring, wherever that begins
	}
}

// spend removes the first n frames of the backlog. The topic's lock is held.
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
