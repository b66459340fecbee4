package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// Follow says what of a session a viewer wants to see. The zero Follow is all.
type Follow struct {
	// Run is the ordinal of the only run to follow, after whose end the stream is
	// over; 0 for all runs.
	Run int64
	// Sender leaves out what who sent the message knows: the message, by its id,
	// and that the run began.
	Sender  bool
	Message string
}

// Viewer is one watcher's place in a session's feed. It belongs to one goroutine.
// Its life: Open; perhaps After, FromStart or Restart to stand elsewhere than at
// the newest event; then Serve or End; Close.
type Viewer struct {
	feed  *Feed
	shard *shard
	topic *topic
	actor identity.Actor
	wake  chan struct{} // capacity 1: there may be something new

	follow   Follow
	backlog  []frame // what comes before the ring
	next     uint64  // index in the ring
	last     Position
	consumed uint64 // bytes of the topic that are behind next
	batch    []frame

	held   *Snapshot // the last one it got
	placed time.Time // when it was put where it is
}

// errAgain means that the ring moves on faster than the log can be read.
var errAgain = errors.New("the ring moves on faster than the log can be read")

// errFellOff means that the ring has no longer what the viewer wants next.
var errFellOff = errors.New("the viewer fell off the ring")

const (
	pullBytes  = 64 << 10 // what is written at once
	pullFrames = 256
	// tailAttempts bounds how often the log is read again because the ring moved on.
	tailAttempts = 4
	// aheadWait is how long an event that another gateway already had may take to come here.
	aheadWait = 500 * time.Millisecond
)

// start places a viewer whose topic has just opened at the newest event.
func (v *Viewer) start() error {
	v.topic.mu.Lock()
	defer v.topic.mu.Unlock()
	v.stand(v.topic.ring.end())
	return v.topic.err
}

// stand places the viewer at an index of the ring. The topic's lock is held.
func (v *Viewer) stand(index uint64) {
	r := &v.topic.ring
	v.backlog, v.next, v.consumed, v.placed = nil, index, r.pushed, time.Now()
	if index < r.end() {
		if f := r.frames[index-r.first]; f.through > 0 {
			v.consumed = f.through - uint64(len(f.data))
		}
	}
}

// Close gives the viewer up. Closing twice is harmless.
func (v *Viewer) Close() {
	t := v.topic
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.viewers[v]; ok {
		delete(t.viewers, v)
		v.feed.metrics.viewers.Dec()
	}
}

// Forget is Close for a session that turned out not to exist: nothing of it is kept.
func (v *Viewer) Forget() {
	v.Close()
	v.shard.post(func() {
		t := v.topic
		t.mu.Lock()
		empty := len(t.viewers) == 0 && len(t.ring.frames) == 0
		t.mu.Unlock()
		if empty {
			t.close(ErrGone)
		}
	})
}

func (v *Viewer) poke() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// FollowRun makes the viewer follow one run only. The run need not have begun: if
// it ends without the log showing it, the feed finds out.
func (v *Viewer) FollowRun(run *agentv1.Run, f Follow) {
	v.follow = f
	v.follow.Run = run.GetOrdinal()
	now := time.Now()
	v.shard.post(func() {
		if v.topic.phase != closed {
			v.topic.expect(run.GetOrdinal(), run.GetId(), now)
		}
	})
}

// After places the viewer behind the event at p; false when it is not known here
// any more, or not yet: then a snapshot is due.
func (v *Viewer) After(ctx context.Context, p Position) (bool, error) {
	return v.seek(ctx, p, 1)
}

// FromStart places the viewer before the first event of a run. When that is false
// the log does not have it, and the viewer stands where it stood.
func (v *Viewer) FromStart(ctx context.Context, run int64) (bool, error) {
	return v.seek(ctx, Position{Run: run}, 0)
}

// FromStartOfNew is FromStart for a run that was made after Open: what is not here
// yet is still to come.
func (v *Viewer) FromStartOfNew(ctx context.Context, run int64) error {
	t := v.topic
	t.mu.Lock()
	if i, ok := t.ring.find(Position{Run: run}); ok {
		v.stand(i)
	}
	fine := t.ring.first <= v.next
	t.mu.Unlock()
	if fine {
		return nil
	}
	_, err := v.FromStart(ctx, run)
	return err
}

// seek looks for the event at p, in the ring and then in the log, and places the
// viewer skip frames after it.
func (v *Viewer) seek(ctx context.Context, p Position, skip int) (found bool, err error) {
	if skip > 0 {
		v.last = p
	}
	if v.seekRing(p, skip) {
		return true, nil
	}
	var ahead bool
	err = v.fromTail(ctx, func(frames []frame) (int, bool) {
		i, ok := findFrame(frames, p)
		found = ok
		switch {
		case ok:
			return i + skip, true
		case p == (Position{}) && skip == 1 && len(frames) > 0 && frames[0].pos == (Position{1, 0}):
			found = true // before all, and the log reaches back to the session's first event
			return 0, true
		}
		ahead = skip == 1 && isAhead(frames, p)
		return 0, false
	})
	if err == nil && !found && ahead {
		return v.await(ctx, p)
	}
	return found, err
}

// fromTail places the viewer at that frame of the log's tail which at tells;
// false leaves the viewer where it is.
func (v *Viewer) fromTail(ctx context.Context, at func([]frame) (int, bool)) error {
	for range tailAttempts {
		got, err := v.load(ctx)
		if err != nil {
			return err
		}
		i, ok := at(got.frames)
		if !ok || v.join(got, i) {
			return nil
		}
	}
	return unavailable(errAgain)
}

func (v *Viewer) seekRing(p Position, skip int) bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.ring.find(p)
	if ok {
		v.stand(i + uint64(skip))
	}
	return ok
}

// isAhead reports whether p could be the id of an event that is about to come.
func isAhead(frames []frame, p Position) bool {
	if len(frames) == 0 {
		return false
	}
	newest := frames[len(frames)-1].pos
	return p.Run == newest.Run && p.Number > newest.Number || p.Run == newest.Run+1
}

// await waits a moment for an event that the viewer has from a gateway that was ahead.
func (v *Viewer) await(ctx context.Context, p Position) (bool, error) {
	limit := time.NewTimer(aheadWait)
	defer limit.Stop()
	for {
		if v.seekRing(p, 1) {
			return true, nil
		}
		select {
		case <-v.wake:
		case <-limit.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// load returns the log's tail.
func (v *Viewer) load(ctx context.Context) (tail, error) {
	c := make(chan tail, 1)
	if !v.shard.post(func() { v.topic.load(c) }) {
		return tail{}, unavailable(ErrDraining)
	}
	select {
	case got := <-c:
		if got.err != nil {
			return tail{}, unavailable(got.err)
		}
		return got, nil
	case <-v.feed.stopped:
		return tail{}, unavailable(ErrDraining)
	case <-ctx.Done():
		return tail{}, context.Cause(ctx)
	}
}

// join makes the tail's frames from the i-th on the viewer's backlog, before what
// the ring has after the tail; false when the ring has moved on since.
func (v *Viewer) join(got tail, i int) bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.ring.after(got.until)
	if ok {
		v.stand(index)
		v.backlog = got.frames[i:]
	}
	return ok
}

// Snapshot returns what the session holds, as of after this call.
func (v *Viewer) Snapshot(ctx context.Context) (Snapshot, error) {
	return v.snapshotAfter(ctx, time.Now())
}

func (v *Viewer) snapshotAfter(ctx context.Context, need time.Time) (Snapshot, error) {
	snap, err := v.topic.snapshots.get(identity.With(ctx, v.actor), v.topic, need)
	if err != nil {
		return Snapshot{}, fmt.Errorf("take a snapshot: %w", err)
	}
	return snap, nil
}

// Restart places the viewer where a snapshot of Snapshot ends: before the events
// that it does not contain. The end of a run that is followed still comes.
func (v *Viewer) Restart(ctx context.Context, snap Snapshot) error {
	v.held = &snap
	if v.restartInRing(snap.Contents.Position()) {
		return nil
	}
	return v.fromTail(ctx, func(frames []frame) (int, bool) {
		i, _ := v.restartAt(frames, snap.Contents.Position())
		return i, true // what the snapshot contains is left out one by one
	})
}

func (v *Viewer) restartInRing(p Position) bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := v.restartAt(t.ring.frames, p)
	if ok {
		v.stand(t.ring.first + uint64(i))
	}
	return ok
}

// restartAt returns which of the frames to go on with when all up to p is known.
func (v *Viewer) restartAt(frames []frame, p Position) (i int, ok bool) {
	if i, ok = findFrame(frames, p); !ok {
		return 0, false
	}
	i++
	if v.follow.Run == 0 {
		return i, true
	}
	for j := i - 1; j >= 0; j-- {
		if frames[j].kind == runEnd && frames[j].pos.Run == v.follow.Run {
			return j, true
		}
	}
	return i, true
}

// pull returns the next frames, as many as are written at once; none when the
// viewer has everything. They are the viewer's until the next pull.
func (v *Viewer) pull() ([]frame, error) {
	size := 0
	v.batch = v.batch[:0]
	take := func(from []frame) int {
		for i := range from {
			if len(v.batch) >= pullFrames || size >= pullBytes {
				return i
			}
			v.batch = append(v.batch, from[i])
			size += len(from[i].data)
		}
		return len(from)
	}
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.ring
	switch {
	case t.err != nil:
		return nil, t.err
	case v.isSlow(r):
		return nil, ErrSlow
	case v.next < r.first:
		return nil, errFellOff
	case len(v.backlog) > 0:
		v.backlog = v.backlog[take(v.backlog):]
	default:
		n := take(r.frames[v.next-r.first:])
		v.next += uint64(n)
		if n > 0 {
			v.consumed = max(v.consumed, v.batch[n-1].through)
		}
	}
	return v.batch, nil
}

// isSlow reports whether the viewer is too far behind to be carried along: by time
// or, when it has had a moment to read on, by bytes. The topic's lock is held.
func (v *Viewer) isSlow(r *ring) bool {
	if v.next >= r.end() && len(v.backlog) == 0 {
		return false
	}
	waiting := v.placed
	if i := max(v.next, r.first); len(v.backlog) == 0 && r.frames[i-r.first].time.After(waiting) {
		waiting = r.frames[i-r.first].time
	}
	age, limit := time.Since(waiting), v.feed.cfg.MaxBehind
	return age > limit || age > limit/15 && r.pushed-v.consumed > v.feed.cfg.BehindBytes
}

// catchUp places a viewer that the ring has left behind where it was, out of the log.
func (v *Viewer) catchUp(ctx context.Context) error {
	if v.last == (Position{}) {
		return ErrSlow
	}
	placed := v.placed
	ok, err := v.After(ctx, v.last)
	if err != nil {
		return err
	}
	if v.placed = placed; !ok {
		return ErrSlow
	}
	return nil
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
	}
	return v.held == nil || !v.held.Contents.covers(f)
}

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

// Session returns the id of the viewer's session.
func (v *Viewer) Session() id.Session { return v.topic.session }
