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

	"signalbox.dev/pkg/fair"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/store"
)

// Config configures a Hub. Store and Log are required; the zero value of other fields means
// their default, or none.
type Config struct {
	Store Store
	Log   *slog.Logger
	// Bus connects the other instances; nil if there are none.
	Bus Bus
	// Render derives Markdown and plain text for a snapshot.
	Render func(doc *yjs.Doc) (markdown, text string, err error)
	// ApplySeed applies a seed to a document, within a transaction. Without it seeds are
	// ignored.
	ApplySeed func(doc *yjs.Doc, seed store.Seed) error
	// Metrics registers the metrics; nil disables them.
	Metrics prometheus.Registerer

	Rooms         int           // maximum open documents (10,000)
	MemoryBytes   int           // memory for open documents (1 GiB); an eighth more for uncommitted updates
	DocumentBytes int           // memory of one document before only deletions are accepted (64 MiB)
	QueueBytes    int           // uncommitted updates in a room before senders block (1 MiB)
	Snapshots     int           // concurrent saves (4)
	Loads         int           // concurrent loads (8)
	Gather        time.Duration // between batches of a room, and bursts of messages (5 ms); negative for none
	Drain         time.Duration // for commits and snapshots at the end (10 s)
}

func (c Config) withDefaults() Config {
	c.Rooms = cmp.Or(c.Rooms, 10_000)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, 1<<30)
	c.DocumentBytes = cmp.Or(c.DocumentBytes, 64<<20)
	c.QueueBytes = cmp.Or(c.QueueBytes, 1<<20)
	c.Snapshots = cmp.Or(c.Snapshots, 4)
	c.Loads = cmp.Or(c.Loads, 8)
	c.Gather = cmp.Or(c.Gather, 5*time.Millisecond)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	return c
}

// Hub holds the open documents of this instance. It is safe for concurrent use.
type Hub struct {
	cfg      Config
	instance string
	metrics  *metrics
	engine   engine
	// life is the context of the hub's own work, which outlives the calls that cause it: a
	// commit has many senders, a load many waiters. It ends when Run does.
	life        context.Context
	endLife     context.CancelFunc
	loads       *fair.Semaphore[id.Workspace]
	saves       chan struct{}
	inboxes     sync.Pool
	out         chan outgoing
	queued      atomic.Int64  // bytes in out
	resync      chan struct{} // the bus has reconnected
	bytes       atomic.Int64  // of all documents
	uncommitted byteBudget    // for uncommitted updates

	spawning sync.Mutex // guards stopped, so that nothing is added after the last Wait
	stopped  bool
	wg       sync.WaitGroup

	mu     sync.Mutex // guards what follows
	rooms  map[store.Ref]*room
	of     map[id.Workspace]*usage
	idle   list.List // of *room without pins, least recently used first
	closed error     // why no more rooms can be opened
	noJoin error     // why nobody can join any more
}

// New returns a hub, which receives messages and unloads documents while Run runs.
func New(cfg Config) *Hub {
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg: cfg, instance: uuid.NewString(),
		loads: fair.New[id.Workspace](fair.Limits{Slots: cfg.Loads}), saves: make(chan struct{}, cfg.Snapshots),
		out: make(chan outgoing, outQueue), resync: make(chan struct{}, 1),
		rooms: make(map[store.Ref]*room), of: make(map[id.Workspace]*usage),
	}
	h.uncommitted.max = int64(cfg.MemoryBytes) / uncommittedShare
	h.inboxes.New = func() any { return &inbox{} }
	h.engine = engine{
		apply:  func(doc *yjs.Doc, update []byte) error { return doc.ApplyUpdate(update, nil) },
		encode: func(doc *yjs.Doc, sv yjs.StateVector) []byte { return doc.EncodeStateAsUpdate(sv) },
	}
	h.life, h.endLife = context.WithCancel(context.Background())
	h.metrics = newMetrics(cfg.Metrics, func() float64 { return float64(h.Open()) }, func() float64 { return float64(h.bytes.Load()) })
	return h
}

// Open returns the number of documents in memory.
func (h *Hub) Open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rooms)
}

// spawn runs f on a goroutine that Run waits for. It returns false after Run.
func (h *Hub) spawn(f func()) bool {
	h.spawning.Lock()
	defer h.spawning.Unlock()
	if h.stopped {
		return false
	}
	h.wg.Go(func() { panics.Contain(h.life, h.cfg.Log, "a document's work", f) })
	return true
}

// Faults returned to callers.
func errDraining() error {
	return &fault.Error{Kind: fault.Unavailable, Message: "this instance is shutting down; try again", RetryAfter: time.Second}
}

func errDeleted(ref store.Ref) error {
	return fault.New(fault.NotFound, "document %s does not exist", ref.Document)
}

// open returns the room of a document with a pin, which the caller removes.
func (h *Hub) open(ctx context.Context, ref store.Ref) (*room, error) {
	h.mu.Lock()
	if h.closed != nil {
		h.mu.Unlock()
		return nil, h.closed
	}
	r, evicted, err := h.find(ref)
	var opening chan struct{}
	if err == nil {
		h.pin(r)
		opening = r.opening
	}
	h.mu.Unlock()
	for _, e := range evicted {
		e.leaveBus()
	}
	if err != nil {
		return nil, err
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

// find returns the room of a document and starts to load it if there is none, with the evicted
// rooms, which the caller unsubscribes from the bus. h.mu is held.
func (h *Hub) find(ref store.Ref) (r *room, evicted []*room, err error) {
	if r = h.rooms[ref]; r != nil {
		return r, nil, nil
	}
	u := h.of[ref.Workspace]
	if u == nil {
		u = &usage{uncommitted: byteBudget{max: h.workspaceMax() / uncommittedShare}}
	}
	evicted, ok := h.makeSpace(ref.Workspace, u)
	if !ok {
		return nil, evicted, errFull()
	}
	r = &room{hub: h, ref: ref, usage: u, busy: true, opening: make(chan struct{})}
	if !h.spawn(r.load) {
		return nil, evicted, errDraining()
	}
	h.rooms[ref], h.of[ref.Workspace] = r, u
	u.rooms++
	return r, evicted, nil
}

// opened ends the loading of a room. An error removes it.
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

// drop removes a room from the map; h.mu is held.
func (h *Hub) drop(r *room) {
	if h.rooms[r.ref] == r {
		delete(h.rooms, r.ref)
		if r.usage.rooms--; r.usage.rooms == 0 {
			delete(h.of, r.ref.Workspace)
		}
	}
	if r.idle != nil {
		h.idle.Remove(r.idle)
		r.idle = nil
	}
}

// forget removes a room that has ended from the map.
func (h *Hub) forget(r *room) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(r)
}

// unload ends a room without pins unless it still has something to do. h.mu is held. The caller
// then unsubscribes it from the bus.
func (h *Hub) unload(r *room) bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.end != nil || !r.quiet() {
		return false
	}
	r.terminate(errDraining())
	h.drop(r)
	return true
}

// unloadAfter is how long an unused room stays if there is enough memory.
const unloadAfter = 30 * time.Second

func (h *Hub) unloadIdle(now time.Time) {
	var out []*room
	h.mu.Lock()
	for e := h.idle.Front(); e != nil; {
		next := e.Next()
		r, ok := e.Value.(*room)
		if !ok || now.Sub(r.left) < unloadAfter && !h.memoryFull() {
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

// all returns the loaded rooms.
func (h *Hub) all() []*room {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*room, 0, len(h.rooms))
	for _, r := range h.rooms {
		if r.opening == nil {
			out = append(out, r)
		}
	}
	return out
}
