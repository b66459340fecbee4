package feed

import (
	"context"
	"errors"
	"time"
)

// outcome is what gathering came to.
type outcome uint8

const (
	everything outcome = iota // there is no more
	more                      // than is written at once
	over                      // the run that is followed has ended
	atHole                    // events are missing next
	behind                    // the ring has no longer what is next
	slow                      // the viewer is too far behind to be carried along
	lost                      // the topic is closed
)

const (
	pullBytes  = 32 << 10 // what is written at once, but for an event that is larger
	pullFrames = 1024
)

// gather appends what the viewer is to see next. It does not wait. The topic's
// lock is held.
func (v *Viewer) gather(buf []byte) ([]byte, outcome) {
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

// take appends frames for as long as they can be appended, and tells how many it
// dealt with.
func (v *Viewer) take(buf []byte, frames []*frame) (int, []byte, outcome) {
	start := len(buf)
	for i, f := range frames {
		switch {
		case i == pullFrames, len(buf)-start >= pullBytes:
			return i, buf, more
		case f.kind == hole && v.knows(f):
			v.last = v.held.contents.Position()
			continue
		case f.kind == hole && len(buf) > start:
			return i, buf, more // first what was before it
		case f.kind == hole:
			return i, buf, atHole
		}
		wanted := v.wants(f)
		if !f.synthetic && !v.has(f) {
			v.last = f.pos
		}
		if !wanted {
			continue
		}
		buf = append(buf, f.data...)
		if f.kind == runEnd && v.follow.Run != 0 {
			return i + 1, buf, over
		}
	}
	return len(frames), buf, everything
}

// hasAll reports whether nothing waits for the viewer. The topic's lock is held.
func (v *Viewer) hasAll() bool { return v.next >= v.topic.ring.end() && len(v.backlog) == 0 }

// isSlow reports whether the viewer is too far behind to be carried along: by time
// or, when it has had a moment to read on, by bytes. The topic's lock is held.
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

// wants reports whether the viewer is to see a frame.
func (v *Viewer) wants(f *frame) bool {
	switch {
	case v.follow.Run != 0 && f.pos.Run != v.follow.Run:
		return false
	case v.follow.Sender && f.kind == runStart, v.follow.Sender && f.kind == userMessage && f.message == v.follow.Message:
		return false
	case v.follow.Run != 0 && f.kind == runEnd:
		return true // the stream's own end comes whatever the snapshot has told
	case v.has(f):
		return false
	}
	return v.held == nil || !v.held.contents.covers(f)
}

// has reports whether the viewer had the frame already: from a gateway that was
// ahead, or out of the record where it was made up here.
func (v *Viewer) has(f *frame) bool { return f.pos.Run == v.last.Run && f.pos.Number <= v.last.Number }

// knows reports whether the snapshot that the viewer has makes good for a hole.
func (v *Viewer) knows(f *frame) bool {
	switch {
	case v.held == nil:
		return false
	case f.synthetic:
		return !f.time.After(v.held.taken)
	}
	return f.place <= v.held.until
}

// collect is gather with all that it takes to go on: it waits for the log, the
// record and snapshots. It appends nothing when the viewer has everything. What it
// appended is to be written also when there is an error; the stream ends with one,
// and when over is set.
func (v *Viewer) collect(ctx context.Context, buf []byte) (_ []byte, isOver bool, err error) {
	t, start := v.topic, len(buf)
	for {
		var (
			what outcome
			why  error
			next *frame
		)
		t.locked(func() {
			buf, what = v.gather(buf)
			why, next = t.err, v.nextFrame()
		})
		switch what {
		case over:
			return buf, true, nil
		case lost:
			return buf, false, why
		case atHole:
			return v.bridge(ctx, buf, next)
		case behind:
			err = v.catchUp(ctx)
		case slow:
			err = ErrSlow
		case more, everything:
			if what == everything || len(buf) > start {
				return buf, false, nil
			}
		}
		if errors.Is(err, ErrSlow) {
			if snap, serr := v.Snapshot(ctx); serr == nil {
				buf = v.AppendSnapshot(buf, snap)
			}
		}
		if err != nil {
			return buf, false, err
		}
	}
}

// nextFrame returns the frame that the viewer stands before, if there is one. The
// topic's lock is held.
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

// bridge makes good for a hole with a snapshot.
func (v *Viewer) bridge(ctx context.Context, buf []byte, f *frame) ([]byte, bool, error) {
	snap, err := v.snapshotAfter(ctx, f.time)
	if err != nil {
		return buf, false, err
	}
	return v.AppendSnapshot(buf, snap), false, v.Restart(ctx, snap)
}

// AppendSnapshot appends the event that tells a viewer what the session holds.
func (v *Viewer) AppendSnapshot(buf []byte, snap Snapshot) []byte {
	return v.feed.cfg.Dialect.AppendSnapshot(buf, snap.Data, snap.Contents.Position().String())
}
