package room

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"time"

	"signalbox.dev/pkg/id"
)

// The delay before a refused update is tried again, doubled each time. It holds up everything
// else from the connection and is therefore well below presence.Timeout.
const (
	firstBackoff     = time.Second
	backoffDoublings = 3 // up to 8 s
	forgetAfter      = 10 * time.Minute
	maxRefusals      = 1000 // remembered per room
)

// refusal is the backoff of a refused update. Editors keep refused updates and resend them
// whenever they reconnect, and each time the document may have to be reloaded while everybody
// waits.
type refusal struct {
	times int
	until time.Time // no attempt before
}

// writer identifies the sender of an update: a page that reconnects has the same Yjs client, a
// reloaded page another one.
type writer struct {
	member id.Member
	client uint64 // the Yjs client of its first structs; 0 if there are none
	sum    uint64 // the hash of such an update
}

func (s *Seat) writer(update []byte) writer {
	w, rest := writer{member: s.author.Member}, update
	for range 3 { // the number of clients, the structs of the first client, and its id
		n, size := binary.Uvarint(rest)
		if w.client = n; size <= 0 || n == 0 {
			w.client, w.sum = 0, maphash.Bytes(sums, update)
			return w
		}
		rest = rest[size:]
	}
	return w
}

var sums = maphash.MakeSeed()

// noteRefusal records that an update was refused. mu is held.
func (r *room) noteRefusal(s *Seat, update []byte, now time.Time) {
	if empty(update) {
		return // it was refused because of another update
	}
	if r.refusals == nil {
		r.refusals = make(map[writer]refusal)
	}
	w := s.writer(update)
	f, known := r.refusals[w]
	if !known && len(r.refusals) >= maxRefusals {
		maps.DeleteFunc(r.refusals, func(_ writer, f refusal) bool { return now.After(f.until) })
		if len(r.refusals) >= maxRefusals {
			return
		}
	}
	if now.Sub(f.until) > forgetAfter {
		f.times = 0
	}
	f.until = now.Add(firstBackoff << min(f.times, backoffDoublings))
	f.times++
	r.refusals[w] = f
}

// awaitRetry waits until a refused update may be tried again, or ctx is done. mu is held, but released
// meanwhile.
func (r *room) awaitRetry(ctx context.Context, s *Seat, update []byte) error {
	if empty(update) {
		return nil
	}
	f, refused := r.refusals[s.writer(update)]
	wait := time.Until(f.until)
	if !refused || wait <= 0 {
		return nil
	}
	r.mu.Unlock()
	defer r.mu.Lock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
