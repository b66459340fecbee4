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
// Its life: Open, or Join and Ready; perhaps After, FromStart or Restart to stand elsewhere than at
// the newest event; then Serve or End, and Close; or Hand, after which it is the
// feed's.
type Viewer struct {
	feed  *Feed
	topic *topic
	actor identity.Actor
	since time.Time     // when it was opened
	wake  chan struct{} // capacity 1: there may be something new; nil once it is handed over

	// The owner's; see Hand.
	follow   Follow
	backlog  []*frame // what comes before the ring; set and spent under the topic's mutex
	weight   int      // of the backlog
	next     uint64   // index in the ring; 0 when there is more before the ring than the backlog
	last     Position // it has this and what is before it
	consumed uint64   // bytes of the topic that are behind next
	held     *standing
	placed   time.Time // when it was put where it is
	wrote    time.Time // when it was last written to

	// Guarded by the topic's mutex.
	at    int // index in its group's or its topic's viewers
	group *group
	owned bool      // a goroutine deals with it
	gone  bool      // it is in no list any more
	cause error     // why it is to end
	leave time.Time // when it is to end because the gateway drains

	// Set by Hand.
	conn  *Conn
	ended func(error)
}

// standing is what the last snapshot told a viewer.
type standing struct {
	contents Contents
	taken    time.Time
	until    place
}

// errAgain means that the ring moves on faster than the log can be read.
var errAgain = errors.New("the ring moves on faster than the log can be read")

// errFellOff means that the ring has no longer what the viewer wants next.
var errFellOff = errors.New("the viewer fell off the ring")

const (
	// tailAttempts bounds how often the log is read again because the ring moved on.
	tailAttempts = 4
	// aheadWait is how long an event that another gateway already had may take to come here.
	aheadWait  = 500 * time.Millisecond
	aheadLooks = 25
)

// Ready waits until the feed of the session is open: what is published after that
// is not missed. After an error the viewer is to be closed.
func (v *Viewer) Ready(ctx context.Context) error {
	select {
	case <-v.topic.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	v.topic.mu.Lock()
	defer v.topic.mu.Unlock()
	if v.topic.err != nil {
		return unavailable(v.topic.err)
	}
	return nil
}

// Overtook reports whether the log had events of a run, or of a later one, when the
// viewer's session was opened here: the viewer stands behind them, whoever made the
// run.
func (v *Viewer) Overtook(run int64) bool { return v.topic.first.Run >= run }

// stand places the viewer at an index of the ring. The topic's lock is held.
func (v *Viewer) stand(index uint64) {
	r := &v.topic.ring
	v.spend(len(v.backlog))
	v.next, v.consumed, v.placed = index, r.pushed, time.Now()
	if index < r.end() {
		if f := r.frames[index-r.first]; f.through > 0 {
			v.consumed = f.through - uint64(len(f.data))
		}
	}
}

// Close gives the viewer up. Closing twice is harmless.
func (v *Viewer) Close() {
	if v.topic != nil {
		v.topic.remove(v)
	}
}

// Forget is Close for a session that turned out not to exist: nothing of it is kept.
func (v *Viewer) Forget() {
	v.Close()
	t := v.topic
	t.post(func() {
		t.mu.Lock()
		empty := !t.watched() && len(t.ring.frames) == 0
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
	t, now := v.topic, time.Now()
	t.post(func() {
		if t.phase != closed {
			t.expect(run.GetOrdinal(), run.GetId(), now)
		}
	})
}

// After places the viewer behind the event at p; false when it is not known here
// any more, or not yet: then a snapshot is due.
func (v *Viewer) After(ctx context.Context, p Position) (bool, error) {
	return v.seek(ctx, p, 1, 0)
}

// FromStart places the viewer before the first event of a run. When that is false
// the log does not have it, and the viewer stands where it stood.
func (v *Viewer) FromStart(ctx context.Context, run int64) (bool, error) {
	return v.seek(ctx, Position{Run: run}, 0, 0)
}

// FromStartOfNew is FromStart for a run that was made after Join: what is not here
// yet is still to come, unless the log had it when the session was opened.
func (v *Viewer) FromStartOfNew(ctx context.Context, run int64) (bool, error) {
	if v.seekRing(Position{Run: run}, 0) {
		return true, nil
	}
	t := v.topic
	t.mu.Lock()
	toCome := t.ring.first <= v.next && !v.Overtook(run)
	t.mu.Unlock()
	if toCome {
		return true, nil
	}
	return v.FromStart(ctx, run)
}

// AwaitStart is FromStart for a run that has begun and whose first event may be on
// its way: it waits a moment for it.
func (v *Viewer) AwaitStart(ctx context.Context, run int64) (bool, error) {
	return v.await(ctx, Position{Run: run}, 0)
}

// seek looks for the event at p, in the ring and then in what is kept behind it,
// and places the viewer skip frames after it. It may do with a page of so many
// bytes, if that is not 0.
func (v *Viewer) seek(ctx context.Context, p Position, skip, page int) (found bool, err error) {
	if cursor := p; skip > 0 {
		defer func() {
			if found {
				v.last = cursor
			}
		}()
	}
	if p == (Position{}) { // before all: there is no such event, so it is the one after it
		p, skip = Position{Run: 1}, 0
	}
	if p.Run < 1 {
		return false, nil // runs are counted from 1
	}
	if v.seekRing(p, skip) {
		return true, nil
	}
	var ahead bool
	w := wanted{from: p, exact: true, page: page}
	err = v.fromTail(ctx, w, func(got tail) (int, bool, error) {
		i, ok := findFrame(got.frames, p)
		found, ahead = ok, skip == 1 && (got.ahead || isAhead(got.frames, p))
		return i + skip, ok, nil
	})
	if err == nil && !found && ahead {
		return v.await(ctx, p, skip)
	}
	return found, err
}

// fromTail places the viewer at that frame of a tail read for w which at tells;
// false leaves the viewer where it is.
func (v *Viewer) fromTail(ctx context.Context, w wanted, at func(tail) (int, bool, error)) error {
	for range tailAttempts {
		got, err := v.load(ctx, w)
		if err != nil {
			return err
		}
		i, ok, err := at(got)
		if !ok || v.join(got, i) {
			return err
		}
	}
	return unavailable(errAgain)
}

func (v *Viewer) seekRing(p Position, skip int) bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.ring.find(p)
	i += uint64(skip)
	if !ok && skip == 1 {
		i, ok = t.behindFirst(p)
	}
	if ok {
		v.stand(i)
	}
	return ok
}

// isAhead reports whether p could be the id of an event that is about to come.
func isAhead(frames []*frame, p Position) bool {
	if len(frames) == 0 {
		return false
	}
	newest := frames[len(frames)-1].pos
	return p.Run == newest.Run && p.Number > newest.Number || p.Run == newest.Run+1
}

// await waits a moment for an event that must come, such as one that the viewer has
// from a gateway that was ahead.
func (v *Viewer) await(ctx context.Context, p Position, skip int) (bool, error) {
	tick := time.NewTicker(aheadWait / aheadLooks)
	defer tick.Stop()
	for range aheadLooks {
		if v.seekRing(p, skip) {
			return true, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return v.seekRing(p, skip), nil
}

// load returns a tail that was read for w, or one that has the event it asks for.
func (v *Viewer) load(ctx context.Context, w wanted) (tail, error) {
	t, c := v.topic, make(chan tail, 1)
	w.since, w.actor, w.c = v.since, v.actor, c
	if !t.post(func() { t.load(w) }) {
		return tail{}, unavailable(ErrDraining)
	}
	select {
	case got := <-c:
		if got.err != nil {
			return tail{}, unavailable(got.err)
		}
		return got, nil
	case <-v.feed.life.Done():
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
	if ok || got.part {
		v.stand(index)
		v.keep(got.frames[i:], got.part)
	}
	return ok || got.part
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
	p := snap.Contents.Position()
	v.held = &standing{snap.Contents, snap.taken, snap.until}
	v.last = p
	if v.restartInRing(p) {
		return nil
	}
	from := p
	if v.follow.Run != 0 && p.Run != v.follow.Run || p == (Position{}) {
		from = Position{Run: max(v.follow.Run, 1)}
	}
	return v.fromTail(ctx, wanted{from: from}, func(got tail) (int, bool, error) {
		i, ok := v.restartAt(got.frames, p)
		if !ok && got.short {
			return 0, false, unavailable(ErrSlow) // there is more after the snapshot than is brought after it
		}
		return i, true, nil // what the snapshot contains is left out one by one
	})
}

func (v *Viewer) restartInRing(p Position) bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := v.restartAt(t.ring.frames, p)
	index := t.ring.first + uint64(i)
	if !ok && v.follow.Run == 0 {
		index, ok = t.behindFirst(p)
	}
	if ok {
		v.stand(index)
	}
	return ok
}

// restartAt returns which of the frames to go on with when all up to p is known;
// ok tells that nothing is missing before it.
func (v *Viewer) restartAt(frames []*frame, p Position) (i int, ok bool) {
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
	return i, p.Run <= v.follow.Run // of a later one, and the end that is waited for was before
}

// catchUp places a viewer that the ring has left behind where it was, out of what
// is kept behind the ring.
func (v *Viewer) catchUp(ctx context.Context) error {
	if v.last == (Position{}) {
		return ErrSlow
	}
	placed := v.placed
	ok, err := v.seek(ctx, v.last, 1, v.feed.page())
	if err != nil {
		return err
	}
	if v.placed = placed; !ok {
		return ErrSlow
	}
	return nil
}

// Session returns the id of the viewer's session.
func (v *Viewer) Session() id.Session { return v.topic.session }
