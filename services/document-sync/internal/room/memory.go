package room

import (
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

// usage is the memory used by a workspace's rooms.
type usage struct {
	rooms       int // guarded by hub.mu
	bytes       atomic.Int64
	uncommitted byteBudget
}

// Why documents accept no more. Committed content stays.

func errDocumentFull() error {
	return fault.New(fault.TooLarge, "the document is full: open it anew and delete something, or continue in another one")
}

func errFull() error {
	return &fault.Error{Kind: fault.Unavailable, Message: "too many documents are open here; try again later", RetryAfter: 10 * time.Second}
}

// Fractions of the memory.
const (
	// roomShare is the fraction of an instance guaranteed to a workspace, and reserved for
	// others when one uses more.
	roomShare = 4
	// growShare is the fraction of Config.MemoryBytes, and of a workspace's guarantee, by
	// which open documents may still grow when no more are opened.
	growShare = 8
)

// guaranteed is the memory guaranteed to each workspace.
func (h *Hub) guaranteed() int64 { return int64(h.cfg.MemoryBytes) / roomShare }

// workspaceMax is the maximum for one workspace: only those below their guarantee get the rest.
func (h *Hub) workspaceMax() int64 { return int64(h.cfg.MemoryBytes) - h.guaranteed() }

// memoryFull reports whether no more documents may be loaded.
func (h *Hub) memoryFull() bool { return h.bytes.Load() >= int64(h.cfg.MemoryBytes) }

// full reports whether open documents of a workspace may not grow either.
func (h *Hub) full(u *usage) bool {
	more := func(n int64) int64 { return n * (growShare + 1) / growShare }
	all := h.bytes.Load()
	return all >= more(int64(h.cfg.MemoryBytes)) || all >= more(h.workspaceMax()) && u.bytes.Load() >= more(h.guaranteed())
}

// makeSpace makes space for a room of a workspace, if necessary by evicting others. The last
// part of everything is reserved for workspaces below their guarantee. h.mu is held.
func (h *Hub) makeSpace(ws id.Workspace, u *usage) (evicted []*room, ok bool) {
	for {
		share := (h.cfg.Rooms + roomShare - 1) / roomShare
		own := u.rooms >= share && len(h.rooms) >= max(share, h.cfg.Rooms-share) || u.bytes.Load() >= h.guaranteed() && h.bytes.Load() >= h.workspaceMax()
		if !own && len(h.rooms) < h.cfg.Rooms && !h.memoryFull() {
			return evicted, true
		}
		r := h.evict(func(r *room) bool { return !own || r.ref.Workspace == ws })
		if r == nil {
			return evicted, false
		}
		evicted = append(evicted, r)
	}
}

// evict unloads the least recently used room that may be; h.mu is held.
func (h *Hub) evict(may func(*room) bool) *room {
	for e := h.idle.Front(); e != nil; e = e.Next() {
		if r, ok := e.Value.(*room); ok && may(r) && h.unload(r) {
			return r
		}
	}
	return nil
}

// account updates the memory used by the room. mu is held, and the doc is not in use.
func (r *room) account() {
	n := 0
	if r.end == nil && r.doc != nil {
		n = r.doc.Size() + r.answers.bytes
	}
	r.hub.bytes.Add(int64(n - r.bytes))
	r.usage.bytes.Add(int64(n - r.bytes))
	r.bytes = n
}

// capacityFault returns why the doc cannot accept a v1 update that would enlarge it. Deletions are
// always accepted, since they free memory. The turn is held.
func (r *room) capacityFault(update []byte) error {
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

// growthFault returns why a batch that enlarged a doc of this size must not be committed: a few
// bytes can take much memory, and scattered deletions split items. The turn is held.
func (r *room) growthFault(before int) error {
	if after := r.doc.Size(); after > before && after > 2*r.hub.cfg.DocumentBytes {
		return errDocumentFull()
	}
	return nil
}
