package room

import (
	"container/list"
	"context"
	"crypto/sha256"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/presence"
	"signalbox.dev/services/document-sync/internal/store"
)

type room struct {
	hub *Hub
	ref store.Ref

	usage *usage // of the workspace

	// Guarded by hub.mu.
	pins    int
	left    time.Time     // when the last pin was removed
	idle    *list.Element // in hub.idle
	opening chan struct{} // closed and set to nil when loading is over
	failed  error         // why loading failed

	// Owned by the holder of the turn, or of mu while nobody has the turn.
	doc     *yjs.Doc // nil: discarded, or the room has ended
	listen  bool     // whether the update of the next transaction is needed
	novel   []byte   // that update; nil if nothing changed
	answers answers  // about the current doc
	panics  int      // of reads of the doc

	quarantined map[[sha256.Size]byte]struct{} // updates to refuse

	mu     sync.Mutex // guards the rest
	end    error      // why the room has ended
	leave  func()     // unsubscribes from the bus
	seats  []*Seat
	stored *Message // the shared KindStored message

	busy  bool
	queue []chan struct{} // waiters for the turn; closed to hand it over

	inbox    *inbox
	refusals map[writer]refusal // updates that may be resent
	working  bool               // a worker is running
	next     time.Time          // the earliest time of the next batch
	blocked  []chan struct{}    // senders that wait for space

	waiting     []*Seat // to be greeted or answered when the doc is clean or the rate limit allows it
	remote      []remote
	remoteBytes int

	seq       sequence
	gap       time.Time // since when there has been a gap
	repairing bool

	aware   presence.Table
	awareAt time.Time // the last flush

	timer *time.Timer
	due   time.Time // of timer

	unsaved   unsaved
	unsavable atomic.Bool // the last snapshot was too large for the store

	bytes int // counted for the room in hub and usage
}

// acquire waits for the turn.
func (r *room) acquire(ctx context.Context) error {
	r.mu.Lock()
	if r.end != nil {
		defer r.mu.Unlock()
		return r.end
	}
	if !r.busy {
		r.busy = true
		r.mu.Unlock()
		return nil
	}
	w := make(chan struct{})
	r.queue = append(r.queue, w)
	r.mu.Unlock()
	select {
	case <-w:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return r.end
	}
	if ctx.Err() == nil {
		return nil
	}
	if i := slices.Index(r.queue, w); i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
	} else {
		r.release() // it was handed over at the same moment
	}
	return ctx.Err()
}

// release hands the turn on. The doc contains only committed updates. mu is held.
func (r *room) release() {
	if r.end != nil {
		r.doc = nil
		return
	}
	if !r.applyRemote() {
		r.discard()
		return
	}
	if len(r.waiting) > 0 {
		r.answerWaiting(time.Now())
		if r.doc == nil {
			r.discard()
			return
		}
	}
	r.account()
	if len(r.queue) > 0 {
		close(r.queue[0])
		r.queue = slices.Delete(r.queue, 0, 1)
		return
	}
	r.queue = nil
	r.busy = false
}

// discard discards the doc, which contains uncommitted updates, and hands the turn to a goroutine
// that reloads it. mu is held.
func (r *room) discard() {
	r.doc, r.novel = nil, nil
	r.hub.metrics.resets.Inc()
	r.hub.spawn(r.reload) // fails only at the end of the hub, which ends the room too
}

// terminate ends the room; mu is held. The holder of the turn will notice.
func (r *room) terminate(why error) {
	r.end = why
	if !r.busy {
		r.doc = nil
	}
	r.account()
	for _, w := range r.queue {
		close(w)
	}
	for _, w := range r.blocked {
		close(w)
	}
	if r.inbox != nil {
		r.unreserve(r.inbox)
	}
	r.queue, r.blocked, r.inbox, r.waiting, r.remote = nil, nil, nil, nil, nil
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// finish ends the room and closes its peers. It takes hub.mu.
func (r *room) finish(why error, code int, reason string) {
	defer func() {
		r.hub.forget(r)
		r.leaveBus()
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return
	}
	r.terminate(why)
	for _, s := range r.seats {
		s.close(code, reason)
	}
}

// guard runs f, which has or takes the turn. After a panic, whose state is unknown, the room
// ends, so that its peers reconnect and the document is loaded anew.
func (r *room) guard(what string, f func()) {
	err := panics.Try(func() error { f(); return nil })
	if err == nil {
		return
	}
	r.hub.cfg.Log.ErrorContext(r.hub.life, "panic contained, the document is closed and can be opened again",
		"in", what, "document", r.ref.Document, "error", err)
	r.finish(&fault.Error{Kind: fault.Unavailable, Message: "the document was closed after an internal error; try again", RetryAfter: time.Second},
		CloseBusy, "the document was closed after an internal error: open it anew")
}

// levelOf returns the log level of a failure that is retried: a panic is a bug.
func levelOf(err error) slog.Level {
	if panicked(err) {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// endDeleted ends the room of a deleted document.
func (r *room) endDeleted() { r.finish(errDeleted(r.ref), CloseGone, "the document was deleted") }

func (r *room) leaveBus() {
	r.mu.Lock()
	leave := r.leave
	r.leave = nil
	r.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// quiet reports whether the room has nothing to do; mu is held.
func (r *room) quiet() bool {
	return !r.busy && !r.working && len(r.seats) == 0 && len(r.remote) == 0 && !r.repairing &&
		r.aware.Shown() == 0 && (!r.unsaved.any() || r.unsaved.givenUp())
}

// broadcast sends a message to all but one; mu is held.
func (r *room) broadcast(m *Message, except *Seat) {
	if m.Kind == KindUpdate {
		n := len(r.seats)
		if except != nil {
			n--
		}
		r.hub.metrics.deliveries.Add(float64(max(n, 0))) // except may have left
	}
	for _, s := range r.seats {
		if s != except {
			s.send(m)
		}
	}
}

// arm schedules tick at a time or earlier; mu is held.
func (r *room) arm(at time.Time) {
	switch {
	case r.end != nil:
	case r.timer == nil:
		r.due = at
		r.timer = time.AfterFunc(time.Until(at), r.tick)
	case at.Before(r.due):
		r.due = at
		r.timer.Reset(time.Until(at))
	}
}

// tick does what is due and schedules the rest.
func (r *room) tick() {
	panics.Contain(r.hub.life, r.hub.cfg.Log, "a room's timer", r.doDue)
}

func (r *room) doDue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	now := time.Now()
	r.checkGap(now)
	r.checkSnapshot(now)
	r.checkPresence(now)
	r.checkWaiting(now)
}

// transact runs f in a transaction of the doc and returns its update. The caller owns the doc.
func (r *room) transact(origin any, f func()) []byte {
	r.listen, r.novel = true, nil
	defer func() { r.listen, r.novel = false, nil }()
	r.doc.Transact(origin, func(*yjs.Txn) { f() })
	return r.novel
}

// install makes doc the room's. The caller owns the room's doc.
func (r *room) install(doc *yjs.Doc) {
	doc.SetLimits(outside)
	r.answers = answers{}
	doc.OnUpdate(func(u *yjs.Update) {
		r.answers = answers{}
		if r.listen {
			r.novel = u.V1()
		}
	})
	r.doc = doc
}
