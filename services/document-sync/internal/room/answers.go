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

// Limits of a connection's requests. The first one in a document is answered at once unless
// the connection opened too many documents recently; later ones are rate-limited.
const (
	answerRate  = 1 << 20          // bytes per second
	answerBurst = 8 * time.Second  // maximum saved budget
	firstBurst  = 64 * time.Second // maximum overdraft for first answers
	leastAnswer = 1 << 10          // minimum cost in bytes
	// walkShare is the fraction of a document's memory added to the cost of an answer, which
	// searches all of it for deletions.
	walkShare = 64
)

// Limits of the answers cached for peers with the same state vector.
const (
	cacheFrom  = 4 // seats from which on answers are cached
	maxAnswers = 8
	cacheBytes = 4 << 20 // beyond this, only the newest one
)

// maxSyncs is the maximum number of state vectors of a peer that wait for the doc to be clean.
// A peer that sends more gets fewer answers, which contain everything it lacks.
const maxSyncs = 4

// maxVector is the maximum size of a state vector, enough for 65,536 clients.
const maxVector = 512 << 10

// requests are the unanswered requests of a seat.
type requests struct {
	vectors   []string // as received
	awareness bool
}

// answers caches messages about the current doc, until it changes or nobody has asked for a
// while.
type answers struct {
	step1 *Message
	step2 map[string]*Message // by state vector
	bytes int
	old   bool // unused since the hub's last round
}

// Share is the rate limit of a connection's requests in all its documents. The zero value is
// ready to use.
type Share struct {
	mu    sync.Mutex
	ready time.Time // when the budget is positive again
}

func (s *Share) until() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// pay charges an answer of n bytes.
func (s *Share) pay(n int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if saved := now.Add(-answerBurst); s.ready.Before(saved) {
		s.ready = saved
	}
	s.ready = s.ready.Add(time.Duration(max(n, leastAnswer)) * time.Second / answerRate)
}

// Sync requests a KindStep2 message with everything that a peer with this state vector lacks.
// The rate limit may delay it. Equal requests that are pending are answered once. A malformed
// vector is an Invalid fault, an oversized one TooLarge.
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
	if err := s.closedError(); err != nil {
		return err
	}
	if v := string(vector); len(s.asked.vectors) < maxSyncs && !slices.Contains(s.asked.vectors, v) {
		s.asked.vectors = append(s.asked.vectors, v)
	}
	s.answerSoon()
	return nil
}

// QueryAwareness sends the peer the awareness of all clients. The rate limit may delay it.
func (s *Seat) QueryAwareness() {
	r := s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.closedError() != nil {
		return
	}
	if now := time.Now(); now.Before(s.share.until()) {
		s.asked.awareness = true
		s.answerSoon()
	} else {
		s.sendAwareness(now)
	}
}

func (s *Seat) sendAwareness(now time.Time) {
	s.asked.awareness = false
	all := s.room.aware.Encode()
	s.share.pay(len(all), now)
	if all != nil {
		s.send(&Message{Kind: KindAwareness, Payload: all})
	}
}

// ready returns when the rate limit allows an answer.
func (s *Seat) ready() time.Time {
	at := s.share.until()
	if !s.answered {
		at = at.Add(-firstBurst)
	}
	return at
}

// answerSoon answers now if possible, otherwise as soon as possible. room.mu is held.
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
		r.discard()
	}
}

// answerWaiting answers the waiting seats that are due. mu is held, and the doc is not in use.
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

// checkWaiting answers the waiting seats that are due. While the room is busy, release does
// so. mu is held.
func (r *room) checkWaiting(now time.Time) {
	if len(r.waiting) > 0 && !r.busy {
		r.answerWaiting(now)
		r.account()
		if r.doc == nil {
			r.busy = true
			r.discard()
		}
	}
}

// tryAnswer is answer. If the doc panics, which discards it, the seat waits for the next one.
func (s *Seat) tryAnswer(now time.Time) (later time.Time) {
	if s.room.doc == nil {
		return now
	}
	if err := s.room.readDoc(func() { later = s.answer(now) }); err != nil {
		return now
	}
	return later
}

// answer answers the seat's requests, or returns when the rate limit allows it.
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
		s.answered = true
	}
	s.asked.vectors = nil
	if s.asked.awareness {
		s.sendAwareness(now)
	}
	return time.Time{}
}

// step1 is the server's step 1 for new peers.
func (r *room) step1() *Message {
	a := &r.answers
	a.old = false
	if a.step1 == nil {
		a.step1 = &Message{Kind: KindStep1, Payload: r.doc.StateVector().Encode()}
		a.bytes += 2 * len(a.step1.Payload)
	}
	return a.step1
}

// step2 is the answer to a state vector, cached for peers with the same vector.
func (r *room) step2(vector string) *Message {
	a := &r.answers
	a.old = false
	// Pending updates are part of an answer, and may arrive without a change of the doc.
	shared := len(r.seats) >= cacheFrom && !r.doc.Pending()
	if m := a.step2[vector]; m != nil && shared {
		return m
	}
	sv, err := yjs.DecodeStateVector([]byte(vector))
	if err != nil {
		sv = nil // unexpected: it was decoded before. The whole state is a valid answer too.
	}
	m := &Message{Kind: KindStep2, Payload: r.hub.engine.encode(r.doc, sv)}
	if !shared {
		return m
	}
	if a.bytes > cacheBytes || len(a.step2) >= maxAnswers {
		*a = answers{}
	}
	if a.step2 == nil {
		a.step2 = make(map[string]*Message)
	}
	a.step2[vector] = m
	a.bytes += len(vector) + 2*len(m.Payload) // the encoded message is retained too
	return m
}

// forgetAnswers drops the cache if it was not used since the last call.
func (r *room) forgetAnswers() {
	if !r.mu.TryLock() {
		return // next time
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

// changesNothing reports whether a viewer's v1 update changes nothing: clients answer the server's step
// 1 with all deletions that they know. It waits for the doc to be clean.
func (s *Seat) changesNothing(ctx context.Context, update []byte) (known bool, err error) {
	if empty(update) {
		return true, nil
	}
	sent := yjs.New(yjs.Options{Limits: outside})
	if panics.Try(func() error { return sent.ApplyUpdate(update, nil) }) != nil || len(sent.StateVector()) > 0 {
		return false, nil
	}
	structs, deletions := sent.Contents()
	if len(structs) > 0 {
		return false, nil
	}
	r := s.room
	if err := r.acquire(ctx); err != nil {
		return false, err
	}
	defer r.yield()
	if !s.allowed() {
		return false, nil
	}
	err = r.readDoc(func() {
		_, made := r.doc.Contents()
		known = made.Includes(deletions)
	})
	return known, err
}

// allowed reports whether the rate limit allows a request that scans the doc, and charges it.
func (s *Seat) allowed() bool {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	now := time.Now()
	if now.Before(s.share.until()) {
		return false
	}
	s.share.pay(s.room.doc.Size()/walkShare, now)
	return true
}
