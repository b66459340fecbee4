package room

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// Config is what a Hub works with. Store and Log are needed; the zero value of the rest
// means its default, or none.
type Config struct {
	Store Store
	Log   *slog.Logger
	// Bus reaches the other instances; nil where there are none.
	Bus Bus
	// Render derives Markdown and plain text for a snapshot.
	Render func(doc *yjs.Doc) (markdown, text string, err error)
	// Plant brings Markdown into a document that somebody wrote who knows documents only
	// as text. It is called within a transaction; nil leaves such text aside.
	Plant func(doc *yjs.Doc, seed store.Seed) error
	// Metrics is where metrics are registered.
	Metrics prometheus.Registerer

	Rooms      int           // most documents in memory (10,000)
	QueueBytes int           // of updates that wait in a room before senders block (1 MiB); one is always taken
	Snapshots  int           // saved at once (4)
	Loads      int           // of documents at once (8)
	Gather     time.Duration // between two batches of a room (5 ms); negative for none
	Drain      time.Duration // what commits and snapshots may take at the end (10 s)
}

func (c Config) withDefaults() Config {
	c.Rooms = cmp.Or(c.Rooms, 10_000)
	c.QueueBytes = cmp.Or(c.QueueBytes, 1<<20)
	c.Snapshots = cmp.Or(c.Snapshots, 4)
	c.Loads = cmp.Or(c.Loads, 8)
	c.Gather = cmp.Or(c.Gather, 5*time.Millisecond)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	return c
}

// Hub has the documents that are open on this instance. Its methods may be called from
// any goroutine.
type Hub struct {
	cfg      Config
	instance string
	metrics  *metrics
	// life is of the hub's own work, which outlives the calls that cause it: a commit is
	// of many senders, a load of whoever wants the room. It ends when Run does.
	life    context.Context
	endLife context.CancelFunc
	loads   chan struct{}
	saves   chan struct{}
	inboxes sync.Pool
	out     chan outgoing
	queued  atomic.Int64  // bytes in out
	resync  chan struct{} // asks Run to read the heads

	spawning sync.Mutex // guards stopped, so that nothing is added behind the last Wait
	stopped  bool
	wg       sync.WaitGroup

	mu     sync.Mutex // guards what follows
	rooms  map[store.Ref]*room
	of     map[id.Workspace]int // rooms of each workspace
	idle   list.List            // of *room without pins, the one that was left first in front
	closed error                // why no room is opened any more
	noJoin error                // why nobody may join any more
}

// New returns a hub. It hears of other instances and unloads documents while Run runs.
func New(cfg Config) *Hub {
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg: cfg, instance: uuid.NewString(),
		loads: make(chan struct{}, cfg.Loads), saves: make(chan struct{}, cfg.Snapshots),
		out: make(chan outgoing, outQueue), resync: make(chan struct{}, 1),
		rooms: make(map[store.Ref]*room), of: make(map[id.Workspace]int),
	}
	h.inboxes.New = func() any { return &inbox{} }
	h.life, h.endLife = context.WithCancel(context.Background())
	h.metrics = newMetrics(cfg.Metrics, func() float64 { return float64(h.Open()) })
	return h
}

// Open returns how many documents are in memory.
func (h *Hub) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rooms)
}

// spawn runs f on a goroutine that Run waits for; not when Run is over.
func (h *Hub) spawn(f func()) bool {
	h.spawning.Lock()
	defer h.spawning.Unlock()
	if h.stopped {
		return false
	}
	h.wg.Go(f)
	return true
}

// Faults that callers see.
func errDraining() error {
	return &fault.Error{Kind: fault.Unavailable, Message: "this instance is going away; try again", RetryAfter: time.Second}
}

func errFull() error {
	return &fault.Error{Kind: fault.Unavailable, Message: "too many documents are open here; try again later", RetryAfter: 10 * time.Second}
}

func errGone(ref store.Ref) error {
	return fault.New(fault.NotFound, "document %s does not exist", ref.Document)
}

// open returns the room of a document with a pin, which the caller takes off.
func (h *Hub) open(ctx context.Context, ref store.Ref) (*room, error) {
	h.mu.Lock()
	if h.closed != nil {
		h.mu.Unlock()
		return nil, h.closed
	}
	r := h.rooms[ref]
	var evicted *room
	if r == nil {
		var ok bool
		if evicted, ok = h.makeRoom(ref.Workspace); !ok {
			h.mu.Unlock()
			return nil, errFull()
		}
		r = &room{hub: h, ref: ref, busy: true, opening: make(chan struct{})}
		if !h.spawn(r.load) {
			h.mu.Unlock()
			return nil, errDraining()
		}
		h.rooms[ref] = r
		h.of[ref.Workspace]++
	}
	h.pin(r)
	opening := r.opening
	h.mu.Unlock()
	if evicted != nil {
		evicted.leaveBus()
	}
	if opening == nil {
		return r, nil
	}
	select {
	case <-opening:
	case <-ctx.Done():
		h.unpin(r)
		return nil, ctx.Err()
	}
	if r.failed != nil {
		h.unpin(r)
		return nil, r.failed
	}
	return r, nil
}

// opened ends the loading of a room; after an error it is as if it had never been.
func (h *Hub) opened(r *room, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		r.failed = err
		h.drop(r)
	}
	close(r.opening)
	r.opening = nil
}

// pin keeps a room in memory; h.mu is held.
func (h *Hub) pin(r *room) {
	r.pins++
	if r.idle != nil {
		h.idle.Remove(r.idle)
		r.idle = nil
	}
}

func (h *Hub) unpin(r *room) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.pins--; r.pins == 0 && h.rooms[r.ref] == r {
		r.left = time.Now()
		r.idle = h.idle.PushBack(r)
	}
}

// drop takes a room out of the map; h.mu is held.
func (h *Hub) drop(r *room) {
	if h.rooms[r.ref] == r {
		delete(h.rooms, r.ref)
		if h.of[r.ref.Workspace]--; h.of[r.ref.Workspace] == 0 {
			delete(h.of, r.ref.Workspace)
		}
	}
	if r.idle != nil {
		h.idle.Remove(r.idle)
		r.idle = nil
	}
}

// forget takes a room that is over out of the map.
func (h *Hub) forget(r *room) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(r)
}

// makeRoom makes place for one more room of a workspace, if need be by unloading one; h.mu
// is held. A workspace has a share of all at most, so that others find place too.
func (h *Hub) makeRoom(ws id.Workspace) (evicted *room, ok bool) {
	own := h.of[ws] >= (h.cfg.Rooms+roomShare-1)/roomShare
	if !own && len(h.rooms) < h.cfg.Rooms {
		return nil, true
	}
	for e := h.idle.Front(); e != nil; e = e.Next() {
		if r, ok := e.Value.(*room); ok && (!own || r.ref.Workspace == ws) && h.unload(r) {
			return r, true
		}
	}
	return nil, false
}

// roomShare is how many workspaces would fill an instance.
const roomShare = 4

// unload takes a room without pins out of memory, unless it has something to do yet;
// h.mu is held. The caller then lets it leave the bus.
func (h *Hub) unload(r *room) bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.end != nil || !r.quiet() {
		return false
	}
	r.over(errDraining())
	h.drop(r)
	return true
}

// unloadAfter is how long a room stays when everybody has left.
const unloadAfter = 30 * time.Second

func (h *Hub) unloadIdle(now time.Time) {
	var out []*room
	h.mu.Lock()
	for e := h.idle.Front(); e != nil; {
		next := e.Next()
		r, ok := e.Value.(*room)
		if !ok || now.Sub(r.left) < unloadAfter {
			break
		}
		if h.unload(r) {
			out = append(out, r)
		}
		e = next
	}
	h.mu.Unlock()
	for _, r := range out {
		r.leaveBus()
	}
}

// all returns the rooms that are loaded; of those without pins only when idle is set.
func (h *Hub) all(idle bool) []*room {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*room, 0, len(h.rooms))
	for _, r := range h.rooms {
		if r.opening == nil && (idle || r.pins > 0) {
			out = append(out, r)
		}
	}
	return out
}
