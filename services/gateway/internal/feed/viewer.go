package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway/internal/dialect"
)

// Follow selects the events of a session that a viewer receives. The zero Follow selects
// all.
type Follow struct {
	// Run is the ordinal of the run to follow; its end ends the stream. 0 selects all runs.
	Run int64
	// Sender leaves out what the sender of Message knows: the message itself, and the start
	// of the run.
	Sender  bool
	Message string
	// Reader encodes the events and decides when the stream ends, instead of the feed's dialect.
	// The stream breaks off where that dialect would send a snapshot. Without Run, Session is set.
	Reader *dialect.Reader
}

// Viewer is a position in a session's feed. It belongs to one goroutine. Call Open, or Join
// and Ready; then After, FromStart or Restart to start elsewhere than at the newest event;
// then Serve or End, and Close. Or call Attach, after which it belongs to the feed.
type Viewer struct {
	feed  *Feed
	topic *topic
	actor identity.Actor
	since time.Time     // when it was opened
	wake  chan struct{} // capacity 1: there may be new frames; nil once it is attached

	// The owner's; see Attach.
	follow       Follow
	followed     string   // id of the run to follow
	backlog      []*frame // frames before those of the ring; changed under the topic's mutex
	weight       int      // of the backlog
	next         uint64   // index in the ring; 0 if frames are missing between backlog and ring
	last         Position // the last event that it has
	consumed     uint64   // bytes of the topic before next
	lastSnapshot *lastSnapshot
	placed       time.Time // when its position was set
	wrote        time.Time // when something was last written

	// Guarded by the topic's mutex.
	at    int // index in the viewers of its group or topic
	group *group
	owned bool      // by a worker or a goroutine
	gone  bool      // it is in no list any more
	cause error     // the reason to end it, if any
	leave time.Time // when to end it because the gateway drains

	// Set by LeaveLast.
	leavesLast bool

	// Set by Attach.
	conn  *Conn
	ended func(error)
}

// lastSnapshot describes the snapshot that a viewer was sent last.
type lastSnapshot struct {
	contents Contents
	taken    time.Time
	until    place
}

// errAgain means that the ring evicts frames faster than the log can be read.
var errAgain = errors.New("the ring moves on faster than the log can be read")

// errNoRecord means that the record cannot be read, and that the log no longer has the event
// to continue after: events that only the record has may follow it.
var errNoRecord = errors.New("the record of the session's log cannot be read")

// errFellOff means that the viewer's next frame was evicted from the ring.
var errFellOff = errors.New("the viewer fell off the ring")

const (
	// tailAttempts limits how often the log is read again because the ring has moved on.
	tailAttempts = 4
	// aheadWait is how long to wait for an event that another gateway has sent already.
	aheadWait  = 500 * time.Millisecond
	aheadLooks = 25
)

// Ready waits until the feed of the session is open. No event published after that is
// missed. After an error the caller closes the viewer.
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

// Overtook reports whether the log already had events of a run, or of a later one, when
// the session was opened here. The viewer's position is then after them.
func (v *Viewer) Overtook(run int64) bool { return v.topic.first.Run >= run }

// setPosition sets the viewer's position in the ring. The caller holds the topic's lock.
func (v *Viewer) setPosition(index uint64) {
	r := &v.topic.ring
	v.spend(len(v.backlog))
	v.next, v.consumed, v.placed = index, r.pushed, time.Now()
	if index < r.end() {
		if f := r.frames[index-r.first]; f.through > 0 {
			v.consumed = f.through - uint64(len(f.data))
		}
	}
}

// Close removes the viewer. Further calls have no effect.
func (v *Viewer) Close() {
	if v.topic != nil {
		v.topic.remove(v)
	}
}

// Forget is Close for a session that does not exist: its topic is closed too.
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

// FollowRun makes the viewer follow one run, which need not have begun. The feed notices the
// run's end even if the log does not show it.
func (v *Viewer) FollowRun(run *agentv1.Run, f Follow) {
	v.follow, v.followed = f, run.GetId()
	v.follow.Run = run.GetOrdinal()
	t, now := v.topic, time.Now()
	t.post(func() {
		if t.phase != closed {
			t.expect(run.GetOrdinal(), run.GetId(), now)
		}
	})
}

// Watch selects what the viewer receives of all runs.
func (v *Viewer) Watch(f Follow) { v.follow = f }

// MeetsHole reports whether events are missing among those that the viewer has yet to get.
func (v *Viewer) MeetsHole() bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	frames := slices.Concat(v.backlog, t.ring.frames[max(v.next, t.ring.first)-t.ring.first:])
	for i, f := range frames {
		if f.kind == hole && (i == 0 || !follows(frames[i-1].pos, frames[i+1:])) {
			return true
		}
	}
	return false
}

// Missed returns how many events the viewer will be sent that were there before it came. ok is false
// if that is not known: not all of them are loaded, or a snapshot comes in the place of some.
func (v *Viewer) Missed() (n int, ok bool) {
	before, ok := v.count(v.backlog) // without the lock: only the owner changes it, and it may be long
	if !ok {
		return 0, false
	}
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.next < t.ring.first {
		return 0, false
	}
	n, ok = v.count(t.ring.frames[v.next-t.ring.first:])
	return before + n, ok
}

// count returns how many of the frames the viewer wants. ok is false if a snapshot comes in the place of some.
func (v *Viewer) count(frames []*frame) (n int, ok bool) {
	for _, f := range frames {
		switch {
		case f.kind == hole, f.kind == switched:
			return 0, false
		case v.wants(f):
			n++
		}
	}
	return n, true
}

// Skim passes to the viewer's Reader what there is, without sending it.
func (v *Viewer) Skim(ctx context.Context) error {
	_, _, err := v.collect(ctx, nil)
	return err
}

// After sets the position after the event at p. It returns false if the event is no longer
// kept, or not yet known; the viewer then needs a snapshot.
func (v *Viewer) After(ctx context.Context, p Position) (bool, error) {
	return v.seek(ctx, p, 1, 0)
}

// FromStart sets the position before the first event of a run. It returns false and leaves
// the position if the log does not have that event.
func (v *Viewer) FromStart(ctx context.Context, run int64) (bool, error) {
	return v.seek(ctx, Position{Run: run}, 0, 0)
}

// FromStartOfNew is FromStart for a run that was created after Join: its events arrive live,
// unless the log had them when the session was opened.
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

// AwaitStart is FromStart for a run that has begun; it waits a moment for the first event.
func (v *Viewer) AwaitStart(ctx context.Context, run int64) (bool, error) {
	return v.await(ctx, Position{Run: run}, 0)
}

// seek looks for the event at p in the ring, then in the record and the log, and sets the
// position skip frames after it. If page is not 0, that many bytes of a tail are enough.
func (v *Viewer) seek(ctx context.Context, p Position, skip, page int) (found bool, err error) {
	cursor := p
	if skip == 0 {
		cursor = Position{} // it may have been elsewhere before
	}
	defer func() {
		if found {
			v.last = cursor
		}
	}()
	if p == (Position{}) { // before all events: look for the first one
		p, skip = Position{Run: 1}, 0
	}
	if p.Run < 1 {
		return false, nil // runs are counted from 1
	}
	if v.seekRing(p, skip) {
		return true, nil
	}
	var ahead bool
	w := wanted{from: p, need: needEvent, page: page}
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

// fromTail reads a tail for w and sets the position to the frame that at returns. If at
// returns false, the position stays.
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
		v.setPosition(i)
	}
	return ok
}

// isAhead reports whether p may be an event that has not arrived yet.
func isAhead(frames []*frame, p Position) bool {
	if len(frames) == 0 {
		return false
	}
	newest := frames[len(frames)-1].pos
	return p.Run == newest.Run && p.Number > newest.Number || p.Run == newest.Run+1
}

// await waits a moment for an event that is expected, such as one that the viewer received
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

// load returns a tail that was read for w, or one that contains the event w asks for.
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

// join makes the tail's frames from index i on the viewer's backlog, followed by the ring. It
// returns false if the ring has moved on.
func (v *Viewer) join(got tail, i int) bool {
	t := v.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.ring.after(got.until)
	if ok || got.part {
		v.setPosition(index)
		v.keep(got.frames[i:], got.part)
	}
	return ok || got.part
}

// Snapshot returns a snapshot of the session that was taken after the call began.
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

// Restart sets the position before the first event that the snapshot does not contain. The
// end of the followed run is sent in any case.
func (v *Viewer) Restart(ctx context.Context, snap Snapshot) error {
	p := snap.Contents.Position()
	v.lastSnapshot = &lastSnapshot{snap.Contents, snap.taken, snap.until}
	v.last = p
	if v.follow.Run != 0 && p.Run >= v.follow.Run && snap.Contents.active != v.follow.Run {
		if done, err := v.restartAtEnd(ctx); done || err != nil {
			return err
		}
	}
	if v.restartInRing(p) {
		return nil
	}
	w := wanted{from: p, need: needLater}
	if v.follow.Run != 0 && p.Run != v.follow.Run || p == (Position{}) {
		w = wanted{from: Position{Run: max(v.follow.Run, 1)}}
	}
	return v.fromTail(ctx, w, func(got tail) (int, bool, error) {
		i, ok := v.restartAt(got.frames, p)
		if !ok && got.short {
			return 0, false, unavailable(ErrSlow) // too many events follow the snapshot
		}
		if _, whole := findFrame(got.frames, w.from); got.unrecorded && !whole {
			return 0, false, unavailable(errNoRecord) // the client resumes
		}
		return i, true, nil // wants leaves out what the snapshot contains
	})
}

// restartAtEnd sets the position before the end of the followed run. It takes that from the
// ring or, since the log and the record may have lost it, from the run's row. It returns false
// if the run has not ended.
func (v *Viewer) restartAtEnd(ctx context.Context) (bool, error) {
	t := v.topic
	inRing := false
	t.locked(func() {
		for i, f := range t.ring.frames {
			if f.kind == runEnd && f.pos.Run == v.follow.Run {
				v.setPosition(t.ring.first + uint64(i))
				inRing = true
				return
			}
		}
	})
	if inRing {
		return true, nil
	}
	run, err := id.Parse[id.Run](v.followed)
	if err != nil {
		return false, unavailable(err)
	}
	ctx, cancel := context.WithTimeout(identity.With(ctx, v.actor), callTimeout)
	defer cancel()
	row, err := v.feed.cfg.Source.Run(ctx, run)
	if err != nil {
		return false, fmt.Errorf("look up the followed run: %w", err)
	}
	if !ended(row) {
		return false, nil
	}
	end := newFrame(v.feed.cfg.Dialect, EndOf(row), place(t.reached.Load()), time.Now())
	end.synthetic = true
	t.locked(func() {
		v.setPosition(t.ring.end())
		v.keep([]*frame{end}, false)
	})
	return true, nil
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
		v.setPosition(index)
	}
	return ok
}

// restartAt returns the index of the frame to continue with after a snapshot up to p. ok
// reports that no frame is missing before it.
func (v *Viewer) restartAt(frames []*frame, p Position) (i int, ok bool) {
	if i, ok = findFrame(frames, p); !ok {
		return 0, false
	}
	// Otherwise events of the followed run may come before these frames.
	return i + 1, v.follow.Run == 0 || p.Run <= v.follow.Run
}

// loadTail reads the frames that were evicted from the ring before the viewer had them.
func (v *Viewer) loadTail(ctx context.Context) error {
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
