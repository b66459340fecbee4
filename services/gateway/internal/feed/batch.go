package feed

import (
	"context"
	"errors"
	"time"
)

// outcome says why a batch ends where it does.
type outcome uint8

const (
	everything outcome = iota // the viewer has all frames
	more                      // the batch is full
	over                      // the followed run has ended
	atHole                    // the next frame is a hole, or stands for another branch
	behind                    // the next frame was evicted from the ring
	slow                      // the viewer is too far behind
	lost                      // the topic is closed
)

const (
	pullBytes  = 32 << 10 // of a batch, unless one event is larger
	pullFrames = 1024
)

// nextBatch appends the next frames for the viewer to buf, without blocking. The caller
// holds the topic's lock.
func (v *Viewer) nextBatch(buf []byte) ([]byte, outcome) {
	r := &v.topic.ring
	switch {
	case v.topic.err != nil:
		return buf, lost
	case v.isSlow(r):
		return buf, slow
	case len(v.backlog) > 0:
		n, buf, what := v.take(buf, v.backlog)
		v.spend(n)
		if what == everything && v.next < r.end() {
			what = more
		}
		return buf, what
	case v.next < r.first && r.pushed-v.consumed > v.feed.cfg.BehindBytes:
		return buf, slow
	case v.next < r.first:
		return buf, behind
	}
	frames := r.frames[v.next-r.first:]
	n, buf, what := v.take(buf, frames)
	if n > 0 {
		v.next += uint64(n)
		v.consumed = max(v.consumed, frames[n-1].through)
	}
	return buf, what
}

// take appends the frames that the viewer wants, up to the end of a batch, and returns how
// many frames it has passed.
func (v *Viewer) take(buf []byte, frames []*frame) (int, []byte, outcome) {
	start := len(buf)
	for i, f := range frames {
		switch {
		case i == pullFrames, len(buf)-start >= pullBytes:
			return i, buf, more
		case f.kind == hole && v.knows(f):
			v.last = v.lastSnapshot.contents.Position()
			continue
		case f.kind == hole && v.follow.Reader != nil && v.continuesWith(frames[i+1:]):
			continue
		case f.kind == switched && (v.follow.Run != 0 || v.follow.Reader != nil || v.knowsSwitch(f)):
			if !v.has(f) {
				v.last = f.pos
			}
			continue
		case (f.kind == hole || f.kind == switched) && len(buf) > start:
			return i, buf, more // the frames before the hole go out first
		case f.kind == hole, f.kind == switched:
			return i, buf, atHole
		}
		wanted := v.wants(f)
		if !f.synthetic && !v.has(f) {
			v.last = f.pos
		}
		if !wanted {
			continue
		}
		if r := v.follow.Reader; r != nil {
			var isOver bool
			if buf, isOver = r.Next(buf, f.event, &f.folds); isOver {
				return i + 1, buf, over
			}
			continue
		}
		buf = append(buf, f.data...)
		if f.kind == runEnd && v.follow.Run != 0 {
			return i + 1, buf, over
		}
	}
	return len(frames), buf, everything
}

// continuesWith reports whether the first of frames is the event after the viewer's last: a hole
// between the two stands for events of other runs.
func (v *Viewer) continuesWith(frames []*frame) bool { return follows(v.last, frames) }

func follows(p Position, frames []*frame) bool {
	return len(frames) > 0 && frames[0].kind != hole && p.Run > 0 && frames[0].pos == Position{p.Run, p.Number + 1}
}

// hasAll reports whether the viewer has all frames. The caller holds the topic's lock.
func (v *Viewer) hasAll() bool { return v.next >= v.topic.ring.end() && len(v.backlog) == 0 }

// isSlow reports whether the viewer is too far behind: by time, or by bytes once it has had
// a moment to read. The caller holds the topic's lock.
func (v *Viewer) isSlow(r *ring) bool {
	if v.hasAll() {
		return false
	}
	waiting := v.placed
	if i := max(v.next, r.first); len(v.backlog) == 0 && i < r.end() && r.frames[i-r.first].time.After(waiting) {
		waiting = r.frames[i-r.first].time
	}
	age, limit := time.Since(waiting), v.feed.cfg.MaxBehind
	behind := r.pushed - v.consumed + uint64(v.weight) //nolint:gosec // it is not negative
	return age > limit || age > limit/15 && behind > v.feed.cfg.BehindBytes
}

// wants reports whether the frame is to be sent to the viewer.
func (v *Viewer) wants(f *frame) bool {
	switch {
	case v.follow.Run != 0 && f.pos.Run != v.follow.Run:
		return false
	case v.follow.Run == 0 && f.late:
		return false // a hole before the later runs stands for it
	case v.follow.Sender && f.kind == runStart, v.follow.Sender && f.kind == userMessage && f.message == v.follow.Message:
		return false
	case v.follow.Run != 0 && f.kind == runEnd:
		return true // the stream's own end is sent even if a snapshot contained it
	case v.has(f):
		return false
	}
	return v.lastSnapshot == nil || !v.lastSnapshot.contents.covers(f)
}

// has reports whether the viewer already has the frame: from a gateway that was ahead, or
// from the record if the frame was synthesized here.
func (v *Viewer) has(f *frame) bool { return f.pos.Run == v.last.Run && f.pos.Number <= v.last.Number }

// knows reports whether the viewer's snapshot covers a hole.
func (v *Viewer) knows(f *frame) bool {
	switch {
	case v.lastSnapshot == nil:
		return false
	case f.synthetic:
		return !f.time.After(v.lastSnapshot.taken)
	}
	return f.place <= v.lastSnapshot.until
}

// knowsSwitch reports whether the viewer has read the session after the switch to another branch.
func (v *Viewer) knowsSwitch(f *frame) bool {
	return v.has(f) || v.lastSnapshot != nil && (f.place <= v.lastSnapshot.until || v.lastSnapshot.contents.covers(f))
}

// collect is nextBatch for callers that may block: it reads the log and the record, and
// takes snapshots, where nextBatch stops. It appends nothing if the viewer has everything.
// The caller writes what was appended, even after an error. The stream ends after an error
// and when isOver is set.
func (v *Viewer) collect(ctx context.Context, buf []byte) (_ []byte, isOver bool, err error) {
	t, start := v.topic, len(buf)
	for {
		var (
			what outcome
			why  error
			next *frame
		)
		t.locked(func() {
			buf, what = v.nextBatch(buf)
			why, next = t.err, v.nextFrame()
		})
		switch what {
		case over:
			return buf, true, nil
		case lost:
			return buf, false, why
		case atHole:
			if v.follow.Reader != nil {
				return buf, false, ErrLost
			}
			return v.bridge(ctx, buf, next)
		case behind:
			err = v.loadTail(ctx)
		case slow:
			err = ErrSlow
		case more, everything:
			if what == everything || len(buf) > start {
				return buf, false, nil
			}
		}
		if errors.Is(err, ErrSlow) && v.follow.Reader == nil {
			if snap, serr := v.Snapshot(ctx); serr == nil {
				buf = v.AppendSnapshot(buf, snap)
			}
		}
		if err != nil {
			return buf, false, err
		}
	}
}

// nextFrame returns the viewer's next frame, or nil. The caller holds the topic's lock.
func (v *Viewer) nextFrame() *frame {
	r := &v.topic.ring
	switch {
	case len(v.backlog) > 0:
		return v.backlog[0]
	case v.next >= r.first && v.next < r.end():
		return r.frames[v.next-r.first]
	}
	return nil
}

// bridge sends a snapshot in place of the events that a hole stands for.
func (v *Viewer) bridge(ctx context.Context, buf []byte, f *frame) ([]byte, bool, error) {
	snap, err := v.snapshotAfter(ctx, f.time)
	if err != nil {
		return buf, false, err
	}
	return v.AppendSnapshot(buf, snap), false, v.Restart(ctx, snap)
}

// AppendSnapshot appends the snapshot event.
func (v *Viewer) AppendSnapshot(buf []byte, snap Snapshot) []byte {
	return v.feed.cfg.Dialect.AppendSnapshot(buf, snap.Data, snap.Contents.Position().String())
}
