package room

import (
	"context"
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/presence"
	"signalbox.dev/services/document-sync/internal/store"
)

// maxSeats bounds the connections in one document.
const maxSeats = 2000

// Seat is a connection's membership in a room. Its methods are safe for concurrent use, but
// must not be called from Peer.Send or Peer.Close. After the room has closed the peer, they
// return a fault and do nothing.
type Seat struct {
	room   *room
	peer   Peer
	share  *Share // the connection's rate limit
	author store.Author
	reads  bool // a viewer, whose updates are refused

	// Guarded by room.mu.
	owner    presence.Owner
	asked    requests
	answered bool  // a step 1 was answered
	greet    bool  // the server's step 1 is still to be sent
	waits    bool  // it is in room.waiting
	closed   bool  // the room has closed the peer
	refused  error // the refusal of an update that closed it
	hasLeft  bool
}

// Join opens a document for a peer. The peer is sent a KindStep1, everybody's awareness, and from
// then on all changes. It returns NotFound for a document that does not exist, and Unavailable
// if the instance is full. The caller calls Leave.
func (h *Hub) Join(ctx context.Context, ref store.Ref, actor identity.Actor, peer Peer) (*Seat, error) {
	h.mu.Lock()
	refused := h.noJoin
	h.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	r, err := h.open(ctx, ref)
	if err != nil {
		return nil, err
	}
	s := &Seat{room: r, peer: peer, share: peer.Share(), greet: true, reads: actor.Role < identity.Editor}
	s.author = store.Author{Member: actor.Member, Run: actor.Run}
	s.owner.Member = actor.Member.UUID
	if err := r.seat(s); err != nil {
		h.unpin(r)
		return nil, err
	}
	h.metrics.seats.Inc()
	return s, nil
}

func (r *room) seat(s *Seat) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return r.end
	}
	if len(r.seats) >= maxSeats {
		return &fault.Error{Kind: fault.Unavailable, Message: "too many connections are in this document; try again later", RetryAfter: 10 * time.Second}
	}
	r.seats = append(r.seats, s)
	s.answerSoon()
	if all := r.aware.Encode(); all != nil {
		s.send(&Message{Kind: KindAwareness, Payload: all})
	}
	return nil
}

// Leave removes the connection from the room and its awareness everywhere. Its pending updates
// are still committed. It may be called twice.
func (s *Seat) Leave() {
	r := s.room
	r.mu.Lock()
	if s.hasLeft {
		r.mu.Unlock()
		return
	}
	s.hasLeft, s.asked = true, requests{}
	if i := slices.Index(r.seats, s); i >= 0 {
		last := len(r.seats) - 1
		r.seats[i], r.seats[last] = r.seats[last], nil
		r.seats = r.seats[:last]
	}
	if r.end == nil {
		r.present(r.aware.Leave(&s.owner, time.Now()))
	}
	r.mu.Unlock()
	r.hub.metrics.seats.Dec()
	r.hub.unpin(r)
}

func (s *Seat) send(m *Message) {
	if !s.closed && !s.hasLeft {
		s.peer.Send(m)
	}
}

func (s *Seat) close(code int, reason string) {
	if !s.closed && !s.hasLeft {
		s.closed = true
		s.peer.Close(code, reason)
	}
}

// closedError returns why the seat can no longer be used; room.mu is held.
func (s *Seat) closedError() error {
	switch {
	case s.room.end != nil:
		return s.room.end
	case s.hasLeft || s.closed:
		return fault.New(fault.Cancelled, "the connection is closed")
	}
	return nil
}

// Awareness applies an awareness update of the peer. A malformed or oversized one is an Invalid
// or TooLarge fault.
func (s *Seat) Awareness(update []byte) error {
	r := s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.closedError(); err != nil {
		return err
	}
	change, err := r.aware.Apply(&s.owner, update, time.Now())
	if err != nil {
		return awarenessFault(err)
	}
	r.present(change)
	return nil
}

func awarenessFault(err error) error {
	if errors.Is(err, presence.ErrTooMuch) {
		return fault.Wrap(err, fault.TooLarge, "the awareness update is too large, or one of too many")
	}
	return fault.Wrap(err, fault.Invalid, "the awareness update is malformed")
}

// Update queues an update, which it copies. It blocks while too many updates of the room, its
// workspace or the hub are uncommitted, and for some seconds if the update was refused before,
// until ctx is done. Then the peer is sent KindStored, or closed with CloseMalformed,
// CloseRefused, or CloseBusy if memory is exhausted. A viewer gets a Forbidden fault, unless the
// update has only deletions that were made already: these count as stored.
func (s *Seat) Update(ctx context.Context, update []byte) error {
	s.room.hub.metrics.updates.Inc()
	if s.reads {
		return s.view(ctx, update)
	}
	r := s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.refusals) > 0 {
		if err := r.awaitRetry(ctx, s, update); err != nil {
			return err
		}
	}
	for {
		if err := s.closedError(); err != nil {
			return err
		}
		if empty(update) && r.inbox == nil && !r.working { // most answers to the server's step 1
			s.send(&Message{Kind: KindStored})
			return nil
		}
		later, ok := r.reserve(len(update))
		if ok {
			r.put(s, update)
			return nil
		}
		if err := r.awaitSpace(ctx, later); err != nil {
			return err
		}
	}
}

// awaitSpace waits until the inbox was taken, the room has ended, or later is closed. mu is held, but
// released meanwhile.
func (r *room) awaitSpace(ctx context.Context, later <-chan struct{}) error {
	w := make(chan struct{})
	r.blocked = append(r.blocked, w)
	r.mu.Unlock()
	select {
	case <-w:
	case <-later:
	case <-ctx.Done():
	}
	r.mu.Lock()
	if i := slices.Index(r.blocked, w); i >= 0 {
		r.blocked = slices.Delete(r.blocked, i, i+1)
	}
	return ctx.Err()
}

// view is Update for a viewer.
func (s *Seat) view(ctx context.Context, update []byte) error {
	known, err := s.changesNothing(ctx, update)
	if err != nil {
		return err
	}
	if !known {
		return fault.New(fault.Forbidden, "viewers cannot change documents: ask an owner of the workspace to make you an editor")
	}
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.send(&Message{Kind: KindStored})
	return nil
}

// empty reports whether an update has neither structs nor deletions.
func empty(update []byte) bool { return len(update) == 2 && update[0] == 0 && update[1] == 0 }
