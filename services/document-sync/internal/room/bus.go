package room

import (
	"context"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/store"
)

// Bus connects the rooms of all instances. Messages may be lost, delayed or repeated.
type Bus interface {
	// Run receives until ctx is done.
	Run(ctx context.Context)
	// Publish sends to all other instances, and perhaps to this one. It does not wait for
	// them or for a connection.
	Publish(ctx context.Context, ref store.Ref, c *documentv1.Change) error
	// Subscribe calls receive with every message about a document until stop is called, and
	// perhaps once more. receive does not block.
	Subscribe(ref store.Ref, receive func(*documentv1.Change)) (stop func(), err error)
	// OnReconnect calls fn when messages may have been lost.
	OnReconnect(fn func()) (stop func())
}

// NATS is a Bus over NATS. All its subscriptions share the goroutines of Run.
type NATS struct {
	bus   *bus.Bus
	log   *slog.Logger
	lanes [lanes]chan *nats.Msg

	mu   sync.Mutex // guards subs
	subs map[string]*subscriber
}

// Rooms are spread over lanes, one goroutine each, so that a busy one does not delay all
// others. laneQueue is the number of messages that may wait in each.
const (
	lanes     = 8
	laneQueue = 4096
)

type subscriber struct{ receive func(*documentv1.Change) }

// NewNATS returns a Bus over b, which should have no echo: rooms ignore their own messages.
func NewNATS(b *bus.Bus, log *slog.Logger) *NATS {
	n := &NATS{bus: b, log: log, subs: make(map[string]*subscriber)}
	for i := range n.lanes {
		n.lanes[i] = make(chan *nats.Msg, laneQueue)
	}
	return n
}

// Run implements Bus.
func (n *NATS) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, in := range n.lanes {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case m := <-in:
					panics.Contain(ctx, n.log, "a message of another instance", func() { n.pass(ctx, m) })
				}
			}
		})
	}
}

func (n *NATS) pass(ctx context.Context, m *nats.Msg) {
	n.mu.Lock()
	s := n.subs[m.Subject]
	n.mu.Unlock()
	if s == nil {
		return
	}
	c, err := bus.Decode[*documentv1.Change](&bus.Message{Subject: m.Subject, Header: m.Header, Data: m.Data})
	if err != nil {
		n.log.WarnContext(ctx, "message of another instance not understood", "subject", m.Subject, "error", err)
		return
	}
	s.receive(c)
}

// Publish implements Bus. Without a connection the message is dropped: the other instances read
// Postgres.
func (n *NATS) Publish(ctx context.Context, ref store.Ref, c *documentv1.Change) error {
	if !n.bus.Connected() {
		return bus.ErrDisconnected
	}
	return n.bus.Nudge(ctx, subject.DocUpdates(ref.Workspace, ref.Document), c)
}

// Subscribe implements Bus. A later call for the same document replaces the handler.
func (n *NATS) Subscribe(ref store.Ref, receive func(*documentv1.Change)) (stop func(), err error) {
	subj, s := subject.DocUpdates(ref.Workspace, ref.Document), &subscriber{receive}
	n.mu.Lock()
	n.subs[subj] = s
	n.mu.Unlock()
	sub, err := n.bus.SubscribeChan(subj, n.lanes[ref.Document.UUID[15]%lanes])
	forget := func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.subs[subj] == s {
			delete(n.subs, subj)
		}
	}
	if err != nil {
		forget()
		return nil, err
	}
	return func() {
		forget()
		_ = sub.Unsubscribe() // fails only without a connection, which ends the subscription too
	}, nil
}

// OnReconnect implements Bus.
func (n *NATS) OnReconnect(fn func()) (stop func()) { return n.bus.OnReconnect(fn) }

// Limits of outgoing messages.
const (
	outQueue = 4096
	outBytes = 64 << 20
	// maxOnBus is the maximum size of an update on the bus: larger ones are read from
	// Postgres.
	maxOnBus = 700 << 10
)

type outgoing struct {
	ref    store.Ref
	change *documentv1.Change
	size   int64
}

// publish queues a message for other instances and drops it if the bus is too slow.
func (h *Hub) publish(ref store.Ref, c *documentv1.Change) {
	if h.cfg.Bus == nil {
		return
	}
	c.Instance = h.instance
	o := outgoing{ref: ref, change: c, size: int64(len(c.GetUpdate().GetData()) + len(c.GetAwareness().GetData()))}
	if h.queued.Add(o.size) <= outBytes {
		select {
		case h.out <- o:
			return
		default:
		}
	}
	h.queued.Add(-o.size)
	h.metrics.dropped.Inc()
}

// publishCommitted publishes a committed update.
func (h *Hub) publishCommitted(ref store.Ref, seq int64, update []byte) {
	if len(update) > maxOnBus {
		update = nil
	}
	h.publish(ref, &documentv1.Change{Update: &documentv1.CommittedUpdate{Sequence: seq, Data: update}})
}

// publishAll publishes queued messages in bursts until the hub's life ends: the cost of a
// message, here and in NATS, is mostly a wake-up.
func (h *Hub) publishAll() {
	defer h.publishQueued() // such as the final removals of presence
	for {
		select {
		case <-h.life.Done():
			return
		case o := <-h.out:
			h.publishNow(o)
			h.publishQueued()
		}
		if !h.pause(h.cfg.Gather) {
			return
		}
	}
}

func (h *Hub) publishQueued() {
	for range len(h.out) {
		h.publishNow(<-h.out)
	}
}

func (h *Hub) publishNow(o outgoing) {
	h.queued.Add(-o.size)
	if err := h.cfg.Bus.Publish(h.life, o.ref, o.change); err != nil {
		h.metrics.dropped.Inc()
	}
}

// subscribe subscribes a room to its document's messages.
func (h *Hub) subscribe(r *room) error {
	if h.cfg.Bus == nil {
		return nil
	}
	leave, err := h.cfg.Bus.Subscribe(r.ref, r.receive)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.leave = leave
	over := r.end != nil // a deletion was received already
	r.mu.Unlock()
	if over {
		r.leaveBus()
	}
	return nil
}

// remote is an update of another instance that waits for the doc to be clean.
type remote struct {
	sequence int64
	data     []byte
}

// maxRemote bounds the size of these updates; beyond it they are read from Postgres.
const maxRemote = 1 << 20

// receive handles a message about the document.
func (r *room) receive(c *documentv1.Change) {
	if c.GetInstance() == r.hub.instance {
		return
	}
	if c.GetChange().GetKind() == documentv1.SubscribeResponse_KIND_DELETED {
		r.endDeleted()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return
	}
	if s := c.GetChange().GetDocument().GetSequence(); s > r.seq.at { // such as a rename
		r.noteMissing(s)
	}
	if u := c.GetUpdate(); u != nil {
		r.receiveUpdate(u)
	}
	if a := c.GetAwareness(); a != nil {
		r.receivePresence(a)
	}
}

// receiveUpdate receives a committed update. mu is held.
func (r *room) receiveUpdate(u *documentv1.CommittedUpdate) {
	switch {
	case r.seq.has(u.GetSequence()):
		return
	case len(u.GetData()) == 0 || r.remoteBytes > maxRemote:
		r.noteMissing(u.GetSequence())
		return
	}
	r.remote = append(r.remote, remote{u.GetSequence(), u.GetData()})
	r.remoteBytes += len(u.GetData())
	if !r.busy {
		r.busy = true
		r.release()
	}
}

// applyRemote applies and broadcasts the queued updates of other instances. It returns false if
// the doc must be reloaded. mu and the turn are held.
func (r *room) applyRemote() bool {
	for i, u := range r.remote {
		if r.seq.has(u.sequence) {
			continue
		}
		err := r.committedOnly(func() error {
			if err := r.hub.engine.apply(r.doc, u.data); err != nil {
				return err
			}
			r.sendAll(u.data)
			return nil
		})
		if err != nil {
			r.hub.cfg.Log.ErrorContext(r.hub.life, "update of another instance not applied",
				"document", r.ref.Document, "sequence", u.sequence, "error", err)
			for _, u := range r.remote[i:] {
				r.seq.want = max(r.seq.want, u.sequence)
			}
			r.remote, r.remoteBytes = nil, 0
			return false
		}
		r.note(u.sequence)
	}
	r.remote, r.remoteBytes = nil, 0
	return true
}
