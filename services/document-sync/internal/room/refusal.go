package room

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"time"

	"signalbox.dev/pkg/id"
)

// How long an update waits that is tried again after it was refused: twice as long each
// time. What else the same connection sends waits with it, so it is well below the time
// after which somebody counts as gone.
const (
	firstHold   = time.Second
	holdDoubles = 3 // times: 8 s
	forgetAfter = 10 * time.Minute
	maxRefusals = 1000 // that a room remembers
)

// refusal is what a room remembers of updates that it has refused. An editor keeps what
// was refused, sends it again when it connects again, and many do that at once and for
// ever; and each time the document may have to be loaded anew, while all others wait.
type refusal struct {
	times int
	until time.Time // not tried before
}

// writer is whose structs an update has first: a page that comes back is the same writer
// with the same structs, and one that was loaded anew is another.
type writer struct {
	member id.Member
	client uint64 // of Yjs; 0 where there are no structs, or none that can be read
	sum    uint64 // of all of such an update: it is only like itself
}

func (s *Seat) writer(update []byte) writer {
	w, rest := writer{member: s.author.Member}, update
	for range 3 { // how many clients, how many structs the first one has, and who it is
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

// remember notes that an update was refused. mu is held.
func (r *room) remember(s *Seat, update []byte, now time.Time) {
	if empty(update) {
		return // it came with what was to blame
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
	f.until = now.Add(firstHold << min(f.times, holdDoubles))
	f.times++
	r.refusals[w] = f
}

// hold waits while an update is not to be tried again yet, at most until ctx is done. mu
// is held, but for that time.
func (r *room) hold(ctx context.Context, s *Seat, update []byte) error {
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
