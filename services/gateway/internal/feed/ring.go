package feed

import (
	"slices"
	"time"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

// place orders the events of a session's log: the stream's sequence and, in the upper bits,
// the number of times that the stream was recreated. The zero place is before all events.
type place uint64

const placeBits = 48

func placeOf(generation, seq uint64) place {
	return place(generation<<placeBits | seq&(1<<placeBits-1))
}

// kind is what viewers need to know about an event.
type kind uint8

const (
	other kind = iota
	userMessage
	runStart
	runEnd
	hole // events are missing here
	// switched stands for another branch of the session. Viewers of the session get a snapshot.
	switched
)

// frame is an encoded event or a hole. Frames in a ring or a tail are shared and, apart from folds,
// immutable.
type frame struct {
	place     place
	synthetic bool // not from the log: stands after the log's event of the same place
	late      bool // a synthesized end, after a later run has begun: not a position to resume from
	pos       Position
	kind      kind
	message   string       // the message's id, of a userMessage
	event     *runv1.Event // nil for a hole
	data      []byte
	folds     []dialect.Encoding // for readers, as they come; guarded by the topic's mutex
	time      time.Time          // when it was created
	through   uint64             // bytes of the topic's frames up to and including this one
}

// newFrame encodes e. It returns nil if the dialect does not have the event.
func newFrame(d dialect.Dialect, e *runv1.Event, at place, now time.Time) *frame {
	f := &frame{place: at, pos: Position{e.GetRunOrdinal(), e.GetNumber()}, event: e, data: d.Append(nil, e), time: now}
	if e.GetBranchSwitched() != nil {
		f.kind = switched
		return f
	}
	if len(f.data) == 0 {
		return nil
	}
	switch body := e.GetBody().(type) {
	case *runv1.Event_UserMessage:
		f.kind, f.message = userMessage, body.UserMessage.GetMessageId()
	case *runv1.Event_RunStart:
		f.kind = runStart
	case *runv1.Event_Done, *runv1.Event_Error:
		f.kind = runEnd
	}
	return f
}

// ring has the last frames of a topic. The index of a frame never changes.
type ring struct {
	frames   []*frame
	first    uint64 // index of frames[0], or of the next frame if there are none
	bytes    int    // of frames
	pushed   uint64 // bytes of all frames since the beginning
	full     bool   // frames were evicted
	evicted  place  // their highest place
	maxCount int
	maxBytes int
}

// firstIndex leaves room for frames that fill puts before the first one.
const firstIndex = 1 << 32

func newRing(maxCount, maxBytes int) ring {
	return ring{first: firstIndex, maxCount: maxCount, maxBytes: maxBytes}
}

func (r *ring) end() uint64 { return r.first + uint64(len(r.frames)) }

func (r *ring) push(f *frame) {
	r.pushed += uint64(len(f.data))
	r.bytes += len(f.data)
	f.through = r.pushed
	r.frames = append(r.frames, f)
	for len(r.frames) > r.maxCount || len(r.frames) > 1 && r.bytes > r.maxBytes {
		r.full, r.evicted = true, max(r.evicted, r.frames[0].place)
		r.bytes -= len(r.frames[0].data)
		r.frames[0] = nil // free its memory
		r.frames = r.frames[1:]
		r.first++
	}
}

// fill inserts older frames before the first one, as many as there is room for. They must
// directly precede it.
func (r *ring) fill(older []*frame) {
	if r.full {
		return // it stays full
	}
	n, size := 0, 0
	for n < len(older) && len(r.frames)+n < r.maxCount {
		size += len(older[len(older)-1-n].data)
		if r.bytes+size > r.maxBytes {
			break
		}
		n++
	}
	if n == 0 {
		return
	}
	if n < len(older) {
		r.full, r.evicted = true, older[len(older)-n-1].place
	}
	older = older[len(older)-n:]
	r.frames = append(append(make([]*frame, 0, len(r.frames)+n), older...), r.frames...)
	r.first -= uint64(n)
	r.bytes = 0
	for _, f := range r.frames {
		r.bytes += len(f.data)
	}
}

// missing returns the frames of a tail that directly precede the first one, or nil if that
// cannot be determined.
func (r *ring) missing(frames []*frame, until place) []*frame {
	if i, ok := r.after(until); ok && i == r.first {
		return frames
	}
	if len(r.frames) == 0 {
		return nil
	}
	first := r.frames[0]
	if i, ok := findFrame(frames, first.pos); ok && first.kind != hole && !first.synthetic {
		return frames[:i]
	}
	return nil
}

// find returns the index of the event at p.
func (r *ring) find(p Position) (uint64, bool) {
	i, ok := findFrame(r.frames, p)
	return r.first + uint64(i), ok
}

// after returns the index of the first frame after the log's event at p. It returns false if
// frames after p were evicted.
func (r *ring) after(p place) (uint64, bool) {
	for i, f := range r.frames {
		if f.place > p || f.place == p && f.synthetic {
			return r.first + uint64(i), r.evicted <= p
		}
	}
	return r.end(), r.evicted <= p
}

// findFrame searches from the end, because most searches are for recent events.
func findFrame(frames []*frame, p Position) (int, bool) {
	for i, f := range slices.Backward(frames) {
		if f.pos == p && f.kind != hole && !f.late {
			return i, true
		}
	}
	return 0, false
}
