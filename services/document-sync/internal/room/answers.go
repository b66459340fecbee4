package room

import (
	"context"
	"slices"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/yjs"
)

// What one connection's questions may cost. The first in a document is answered at once,
// with all there is, as long as there were not too many such documents; who asks again has
// to wait until its share has grown.
const (
	answerRate  = 1 << 20          // bytes a second, for long
	answerBurst = 8 * time.Second  // of what it has saved, at most
	firstBurst  = 64 * time.Second // of what it will have, for first answers
	leastAnswer = 1 << 10          // in bytes, whatever is sent
	// walkShare is the part of a document's memory that an answer costs besides: its
	// deletions are looked for in all of it.
	walkShare = 64
)

// Bounds of what is kept for others who ask the same.
const (
	crowd      = 4 // seats, from which on it is
	maxAnswers = 8
	keptBytes  = 4 << 20 // and the newest answer
)

// maxSyncs is how many state vectors of one peer wait for the doc to be clean. A peer
// that sends more is answered less often, with all that it lacks.
const maxSyncs = 4

// maxVector is how many bytes a state vector may have: that is of 65,536 clients.
const maxVector = 512 << 10

// questions are what a seat asked and was not told.
type questions struct {
	vectors   []string // as they came
	awareness bool
}

// answers are messages about the doc as it is. They are dropped when it changes, or when
// nobody has asked for a while.
type answers struct {
	step1 *Message
	step2 map[string]*Message // by state vector
	bytes int
	old   bool // nobody asked since the hub's last round
}

// Share is what the questions of a connection may cost yet. The zero value is that of a
// new one. Seats of any number of documents use it.
type Share struct {
	mu    sync.Mutex
	ready time.Time // when it is not overdrawn any more
}

func (s *Share) until() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// pay notes what an answer of n bytes costs.
func (s *Share) pay(n int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if saved := now.Add(-answerBurst); s.ready.Before(saved) {
		s.ready = saved
	}
	s.ready = s.ready.Add(time.Duration(max(n, leastAnswer)) * time.Second / answerRate)
}

// Sync is answered by a KindStep2 message with what a peer with this state vector lacks:
// soon, unless the peer has asked for much before. Who asks the same again before that
// is answered once. An Invalid fault says that it is none, a TooLarge one that it is too
// large.
func (s *Seat) Sync(vector []byte) error {
	if len(vector) > maxVector {
		return fault.New(fault.TooLarge, "the state vector is too large: open the document anew")
	}
	if _, err := yjs.DecodeStateVector(vector); err != nil {
		return fault.Wrap(err, fault.Invalid, "the state vector is malformed")
	}
	r := s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := s.gone(); err != nil {
		return err
	}
	if v := string(vector); len(s.asked.vectors) < maxSyncs && !slices.Contains(s.asked.vectors, v) {
		s.asked.vectors = append(s.asked.vectors, v)
	}
	s.answerSoon()
	return nil
}

// QueryAwareness sends the peer the awareness of all who are there: at once, unless it
// has asked for much before.
func (s *Seat) QueryAwareness() {
	r := s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.gone() != nil {
		return
	}
	if now := time.Now(); now.Before(s.share.until()) {
		s.asked.awareness = true
		s.answerSoon()
	} else {
		s.tellAwareness(now)
	}
}

func (s *Seat) tellAwareness(now time.Time) {
	s.asked.awareness = false
	all := s.room.aware.Encode()
	s.share.pay(len(all), now)
	if all != nil {
		s.send(&Message{Kind: KindAwareness, Payload: all})
	}
}

// ready is when the seat may be answered.
func (s *Seat) ready() time.Time {
	at := s.share.until()
	if !s.told {
		at = at.Add(-firstBurst)
	}
	return at
}

// answerSoon answers now when that is possible, else as soon as it is. room.mu is held.
func (s *Seat) answerSoon() {
	r := s.room
	if s.waits {
		return
	}
	if !r.busy {
		at := s.tryAnswer(time.Now())
		r.account()
		if at.IsZero() {
			return
		}
		r.arm(at)
	}
	s.waits = true
	r.waiting = append(r.waiting, s)
	if !r.busy && r.doc == nil {
		r.busy = true
		r.lose()
	}
}

// answerWaiting answers who waited, as far as their time has come. mu is held, and nobody
// else has the doc.
func (r *room) answerWaiting(now time.Time) {
	later := r.waiting[:0]
	for _, s := range r.waiting {
		if at := s.tryAnswer(now); at.IsZero() {
			s.waits = false
		} else {
			r.arm(at)
			later = append(later, s)
		}
	}
	clear(r.waiting[len(later):])
	if r.waiting = later; len(later) == 0 {
		r.waiting = nil
	}
}

// checkWaiting answers those whose time has come; while the room is busy, whoever gives
// the turn on does. mu is held.
func (r *room) checkWaiting(now time.Time) {
	if len(r.waiting) > 0 && !r.busy {
		r.answerWaiting(now)
		r.account()
		if r.doc == nil {
			r.busy = true
			r.lose()
		}
	}
}

// tryAnswer is answer. Who cannot be answered because the doc panics, which is gone then,
// waits for the next one.
func (s *Seat) tryAnswer(now time.Time) (later time.Time) {
	if s.room.doc == nil {
		return now
	}
	if err := s.room.look(func() { later = s.answer(now) }); err != nil {
		return now
	}
	return later
}

// answer answers what the seat asked, or says when that may be.
func (s *Seat) answer(now time.Time) (later time.Time) {
	r := s.room
	if s.greet {
		s.send(r.step1())
		s.greet = false
	}
	if len(s.asked.vectors) == 0 && !s.asked.awareness {
		return time.Time{}
	}
	if at := s.ready(); now.Before(at) {
		return at
	}
	for _, v := range s.asked.vectors {
		m := r.step2(v)
		s.share.pay(len(m.Payload)+r.doc.Size()/walkShare, now)
		s.send(m)
		s.told = true
	}
	s.asked.vectors = nil
	if s.asked.awareness {
		s.tellAwareness(now)
	}
	return time.Time{}
}

// step1 is the server's question to all who come.
func (r *room) step1() *Message {
	a := &r.answers
	a.old = false
	if a.step1 == nil {
		a.step1 = &Message{Kind: KindStep1, Payload: r.doc.StateVector().Encode()}
		a.bytes += 2 * len(a.step1.Payload)
	}
	return a.step1
}

// step2 is the answer to a state vector, the same message for all who have the same.
func (r *room) step2(vector string) *Message {
	a := &r.answers
	a.old = false
	// What waits for other updates is part of an answer, and comes without the doc
	// having changed.
	shared := len(r.seats) >= crowd && !r.doc.Pending()
	if m := a.step2[vector]; m != nil && shared {
		return m
	}
	sv, err := yjs.DecodeStateVector([]byte(vector))
	if err != nil {
		sv = nil // not to be expected: it was read before. All there is answers it, too.
	}
	m := &Message{Kind: KindStep2, Payload: r.hub.engine.encode(r.doc, sv)}
	if !shared {
		return m
	}
	if a.bytes > keptBytes || len(a.step2) >= maxAnswers {
		*a = answers{}
	}
	if a.step2 == nil {
		a.step2 = make(map[string]*Message)
	}
	a.step2[vector] = m
	a.bytes += len(vector) + 2*len(m.Payload) // it is kept as it is sent, too
	return m
}

// forgetAnswers drops what nobody has asked for since the last call.
func (r *room) forgetAnswers() {
	if !r.mu.TryLock() {
		return // the next time
	}
	defer r.mu.Unlock()
	switch a := &r.answers; {
	case r.busy || r.end != nil:
	case a.old:
		*a = answers{}
		r.account()
	default:
		a.old = true
	}
}

// known says whether an update, v1, of a viewer changes nothing: clients answer the
// server's step 1 with all deletions that they know. It waits for the doc to be clean.
func (s *Seat) known(ctx context.Context, update []byte) (known bool, err error) {
	if empty(update) {
		return true, nil
	}
	said := yjs.New(yjs.Options{Limits: outside})
	if panics.Try(func() error { return said.ApplyUpdate(update, nil) }) != nil || len(said.StateVector()) > 0 {
		return false, nil
	}
	structs, deletions := said.Contents()
	if len(structs) > 0 {
		return false, nil
	}
	r := s.room
	if err := r.acquire(ctx); err != nil {
		return false, err
	}
	defer r.yield()
	if !s.mayAsk() {
		return false, nil
	}
	err = r.look(func() {
		_, made := r.doc.Contents()
		known = made.Includes(deletions)
	})
	return known, err
}

// mayAsk says whether a question that costs a look at all of the doc may be answered
// now, and charges it.
func (s *Seat) mayAsk() bool {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	now := time.Now()
	if now.Before(s.share.until()) {
		return false
	}
	s.share.pay(s.room.doc.Size()/walkShare, now)
	return true
}
