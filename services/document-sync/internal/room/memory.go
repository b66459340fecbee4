package room

import (
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

// usage is what the rooms of a workspace take.
type usage struct {
	rooms   int // guarded by hub.mu
	bytes   atomic.Int64
	waiting allowance
}

// Why documents take nothing more. What is committed stays.

func errDocumentFull() error {
	return fault.New(fault.TooLarge, "the document is full: open it anew and delete something, or go on in another one")
}

func errFull() error {
	return &fault.Error{Kind: fault.Unavailable, Message: "too many documents are open here; try again later", RetryAfter: 10 * time.Second}
}

// Shares of what there is.
const (
	// roomShare is the part of an instance that a workspace gets however much others take,
	// and that is left to others however much it takes.
	roomShare = 4
	// growShare is the part of Config.MemoryBytes, and of a workspace's share of it, that
	// documents which are open may grow by when no more are opened.
	growShare = 8
)

// shareOf is what the rooms of one workspace may take in any case.
func (h *Hub) shareOf() int64 { return int64(h.cfg.MemoryBytes) / roomShare }

// mostOf is what those of one workspace may take while nobody else needs it: more only
// who has less than a share gets.
func (h *Hub) mostOf() int64 { return int64(h.cfg.MemoryBytes) - h.shareOf() }

// crowded says whether nothing more is to be loaded, for a workspace or for anybody.
func (h *Hub) crowded() bool { return h.bytes.Load() >= int64(h.cfg.MemoryBytes) }

// full says whether what is open may not grow any more either.
func (h *Hub) full(u *usage) bool {
	more := func(n int64) int64 { return n * (growShare + 1) / growShare }
	all := h.bytes.Load()
	return all >= more(int64(h.cfg.MemoryBytes)) || all >= more(h.mostOf()) && u.bytes.Load() >= more(h.shareOf())
}

// makeRoom makes place for one more room of a workspace, if need be by unloading others;
// h.mu is held. The last share of all is for workspaces that have none, so that they find
// place too.
func (h *Hub) makeRoom(ws id.Workspace, u *usage) (evicted []*room, ok bool) {
	for {
		share := (h.cfg.Rooms + roomShare - 1) / roomShare
		own := u.rooms >= share && len(h.rooms) >= max(share, h.cfg.Rooms-share) || u.bytes.Load() >= h.shareOf() && h.bytes.Load() >= h.mostOf()
		if !own && len(h.rooms) < h.cfg.Rooms && !h.crowded() {
			return evicted, true
		}
		r := h.evict(func(r *room) bool { return !own || r.ref.Workspace == ws })
		if r == nil {
			return evicted, false
		}
		evicted = append(evicted, r)
	}
}

// evict unloads the first room of those left by all that may be; h.mu is held.
func (h *Hub) evict(may func(*room) bool) *room {
	for e := h.idle.Front(); e != nil; e = e.Next() {
		if r, ok := e.Value.(*room); ok && may(r) && h.unload(r) {
			return r
		}
	}
	return nil
}

// account notes what the room takes. mu is held, and nobody else has the doc.
func (r *room) account() {
	n := 0
	if r.end == nil && r.doc != nil {
		n = r.doc.Size() + r.answers.bytes
	}
	r.hub.bytes.Add(int64(n - r.bytes))
	r.usage.bytes.Add(int64(n - r.bytes))
	r.bytes = n
}

// noPlaceFor says why the doc does not take an update, v1, which would make it larger.
// Deletions always go in: they are what makes place. The turn is held.
func (r *room) noPlaceFor(update []byte) error {
	switch {
	case len(update) == 0 || update[0] == 0: // no structs
		return nil
	case r.unsavable.Load() || r.doc.Size()+len(update) > r.hub.cfg.DocumentBytes:
		return errDocumentFull()
	case r.hub.full(r.usage):
		return errFull()
	}
	return nil
}

// outgrown says why a batch is not committed that made a doc of this size larger: a few
// bytes can take much memory, and deleting here and there divides what there is. The
// turn is held.
func (r *room) outgrown(before int) error {
	if after := r.doc.Size(); after > before && after > 2*r.hub.cfg.DocumentBytes {
		return errDocumentFull()
	}
	return nil
}
