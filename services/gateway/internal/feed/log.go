package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/runorder"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Bounds of one read of the log.
const (
	maxRead         = 40_000
	maxReadBytes    = 8 << 20
	maxTailBytes    = 8 << 20 // encoded
	readTimeout     = 10 * time.Second
	compareTimeout  = 3 * time.Second // also for opening: better a refusal than a long wait
	compareAttempts = 5
	resetDoubt      = 300 * time.Millisecond // a replica may be a little behind
	retryDelay      = 250 * time.Millisecond
	failureDelay    = time.Second
	giveUpAfter     = 15 * time.Second
)

// open reads the head of the log after the subscription is established.
func (t *topic) open(ctx context.Context) {
	begun := time.Now()
	head, err := t.readHead(ctx)
	t.post(func() {
		if t.phase != opening {
			return
		}
		if err != nil {
			t.shard.feed.cfg.Log.WarnContext(ctx, "session feed not opened", "session", t.session, "error", err)
			t.close(err)
			return
		}
		now := time.Now()
		t.nextComparison = now.Add(t.shard.feed.cfg.Idle)
		if head != nil {
			t.setHead(markOf(head))
			if e, ok := t.decode(head); ok {
				t.applyHead(e, now)
			}
		}
		t.phase, t.compared = flowing, begun
		t.takeHeld(0)
		close(t.opened)
	})
}

// applyHead processes the log's newest event when the topic is opened.
func (t *topic) applyHead(e *runv1.Event, now time.Time) {
	t.first, t.firstEnds = Position{e.GetRunOrdinal(), e.GetNumber()}, isEnd(e)
	t.newest = spanOf(e)
	if e.GetEpoch() > 0 {
		t.begun = t.first.Run
	}
	t.order.Begin(spanOf(e))
	t.expectOpen(t.order, now)
}

func (t *topic) readHead(ctx context.Context) (*bus.Stored, error) {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	b := t.shard.feed.cfg.Bus
	if err := b.Flush(ctx); err != nil {
		return nil, err
	}
	st, err := b.Last(ctx, t.stream, t.log)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // an empty log has no head
	}
	return st, err
}

// expectOpen expects the ends of the runs that are open in o.
func (t *topic) expectOpen(o *runorder.Order, now time.Time) {
	for n, p := range o.Open() {
		t.expect(n, p.ID, now)
	}
}

// comparison is the result of comparing with the log and looking up silent runs.
type comparison struct {
	begun     time.Time
	from      uint64 // the generation with which it was begun
	recreated bool   // the stream was recreated
	msgs      []*bus.Stored
	runs      map[int64]*agentv1.Run
	gone      bool // a run, and so its session, was deleted
	err       error
	wanted    uint64
	repair    uint64 // the repair that it is for; 0 for none
}

// compare compares the log with the head and looks up runs, outside the worker. want is the
// sequence that must be reached; 0 for none.
func (t *topic) compare(want uint64, ask map[int64]string, delay time.Duration) {
	t.comparing++
	generation, head, actor := t.generation, t.head, t.anyActor()
	var repair uint64
	if t.phase == repairing {
		repair = t.repairs
	}
	t.start(func(ctx context.Context) {
		n := comparison{from: generation, wanted: want, repair: repair, err: pause(ctx, delay)}
		n.begun = time.Now()
		if n.err == nil {
			n.recreated, n.msgs, n.err = t.readChanges(ctx, head, want)
		}
		// Runs are looked up even if the log cannot be read.
		if len(n.msgs) == 0 && len(ask) > 0 {
			n.runs, n.gone = t.askRuns(identity.With(ctx, actor), ask)
		}
		t.post(func() { t.applyComparison(&n) })
	})
}

// anyActor returns the identity of one of the viewers.
func (t *topic) anyActor() identity.Actor {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.viewers {
		return v.actor
	}
	for _, g := range t.groups {
		for _, v := range g.viewers {
			return v.actor
		}
	}
	return identity.Actor{}
}

// readChanges returns the events after head. It retries a few times while they do not reach want, since
// a replica may be behind. recreated means that the stream was recreated: then it returns all events.
func (t *topic) readChanges(ctx context.Context, head mark, want uint64) (recreated bool, msgs []*bus.Stored, err error) {
	f := t.shard.feed
	if !f.comparisons.acquire(ctx) {
		return false, nil, ctx.Err()
	}
	defer f.comparisons.release()
	limit := compareTimeout
	if want > 0 {
		limit = readTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	doubts := 0
	for attempt := range compareAttempts {
		last, err := f.cfg.Bus.Last(ctx, t.stream, t.log)
		wait := 20 * time.Millisecond << attempt
		switch {
		case errors.Is(err, bus.ErrNotFound):
			if want == 0 {
				return false, nil, nil // aged out, or lost and nothing has come since
			}
		case err != nil:
			return false, nil, err
		case head.is(last):
			if want <= head.seq {
				return false, nil, nil
			}
		default:
			a, err := t.readAfter(ctx, head, last.Seq, doubts > 0)
			if err != nil {
				return false, nil, err
			}
			if !a.doubtful && (reaches(a.msgs, want) || attempt == compareAttempts-1) {
				return a.recreated, a.msgs, nil
			}
			if a.doubtful {
				doubts++
				wait = resetDoubt
			}
		}
		if err := pause(ctx, wait); err != nil {
			return false, nil, err
		}
	}
	return false, nil, nil
}

// after has the log's events after a mark.
type after struct {
	msgs      []*bus.Stored
	recreated bool // the mark is not in this stream, of which msgs are all events
	doubtful  bool // it is not known yet, and there are no msgs
}

// readAfter reads the log after head, up to through. The head itself shows that the log is the same.
// If the head is missing, it is old, or the stream was lost, which the creation time shows, or the
// stream has lost its end, which is believed the second time, since a replica may be behind.
func (t *topic) readAfter(ctx context.Context, head mark, through uint64, doubted bool) (after, error) {
	if head == (mark{}) {
		msgs, err := t.readLog(ctx, 0, through)
		return after{msgs: msgs}, err
	}
	msgs, err := t.readLog(ctx, head.seq-1, through)
	if err != nil {
		return after{}, err
	}
	if len(msgs) > 0 && head.is(msgs[0]) {
		return after{msgs: msgs[1:]}, nil
	}
	stream, err := t.shard.feed.cfg.Bus.Stream(ctx, t.stream)
	switch {
	case err != nil:
		return after{}, err
	case stream.Created.After(head.time): // recreated
	case stream.First > head.seq: // the head is old
		return after{msgs: msgs, doubtful: len(msgs) == 0}, nil
	case !doubted:
		return after{doubtful: true}, nil
	}
	// If it is recreated again meanwhile, the next comparison does not find this head.
	msgs, err = t.readLog(ctx, 0, through)
	return after{msgs: msgs, recreated: true}, err
}

func reaches(msgs []*bus.Stored, want uint64) bool {
	return want == 0 || len(msgs) > 0 && msgs[len(msgs)-1].Seq >= want
}

// readLog returns the stored events with after < sequence ≤ through, oldest first, up to the bounds.
func (t *topic) readLog(ctx context.Context, after, through uint64) ([]*bus.Stored, error) {
	t.shard.feed.metrics.logReads.Inc()
	var out []*bus.Stored
	size := 0
	for st, err := range t.shard.feed.cfg.Bus.Read(ctx, t.stream, t.log, after, through) {
		if err != nil {
			return nil, err
		}
		out = append(out, st)
		if size += len(st.Data); len(out) >= maxRead || size >= maxReadBytes {
			break
		}
	}
	return out, nil
}

// askRuns looks runs up in Postgres. Runs that cannot be looked up are left out.
func (t *topic) askRuns(ctx context.Context, ask map[int64]string) (runs map[int64]*agentv1.Run, gone bool) {
	runs = map[int64]*agentv1.Run{}
	for n, text := range ask {
		run, err := id.Parse[id.Run](text)
		if err != nil {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		r, err := t.shard.feed.cfg.Source.Run(limited, run)
		cancel()
		switch {
		case err == nil:
			runs[n] = r
		case fault.KindOf(err) == fault.NotFound:
			return nil, true
		default:
			t.shard.feed.cfg.Log.WarnContext(ctx, "silent run not looked up", "run", text, "error", err)
		}
	}
	return runs, false
}

// applyComparison applies the result of compare, on the worker.
func (t *topic) applyComparison(n *comparison) {
	t.comparing--
	defer t.startTail()
	if t.phase == closed {
		return
	}
	if n.gone {
		t.close(ErrGone)
		return
	}
	switch {
	case n.err != nil:
		if !t.isRepair(n) { // which is tried again
			t.answerLoads(tail{err: n.err})
		}
		t.retryRepair(n)
	case n.from != t.generation: // it compared with the head of an earlier stream
		if t.isRepair(n) {
			t.compare(n.wanted, nil, 0)
		}
	default:
		t.failingSince, t.compared = time.Time{}, n.begun
		t.applyChanges(n)
	}
	// Events may still be in transit, longer if the log has no leader.
	patience := t.shard.feed.cfg.Silence
	if n.err != nil {
		patience *= 6
	}
	for _, ordinal := range slices.Sorted(maps.Keys(n.runs)) { // in the order of the runs, which viewers rely on
		t.applyRun(ordinal, n.runs[ordinal], patience)
	}
}

// isRepair reports whether n is for the current repair.
func (t *topic) isRepair(n *comparison) bool { return t.phase == repairing && n.repair == t.repairs }

func (t *topic) applyChanges(n *comparison) {
	if n.recreated {
		t.generation++
		t.setHead(mark{})
		t.checkLoss(n.msgs)
	}
	for _, st := range n.msgs {
		if st.Seq > t.head.seq {
			t.setHead(markOf(st))
			t.push(st)
		}
	}
	if t.isRepair(n) {
		t.phase = flowing
		t.takeHeld(n.wanted)
	}
}

// checkLoss appends a hole if the stream was recreated and does not begin with the event that
// follows the newest one seen here. The order of the events alone does not show that whole runs
// were lost, nor any loss after a head that may have been a zombie's.
func (t *topic) checkLoss(msgs []*bus.Stored) {
	if len(msgs) == 0 || t.newest.Run == 0 {
		return
	}
	e, ok := t.decode(msgs[0])
	if !ok {
		return
	}
	s := spanOf(e)
	if s.Run < t.newest.Run || s.Run == t.newest.Run && s.First <= t.newest.Last+1 || s.Run == t.newest.Run+1 && s.First == 0 {
		return
	}
	t.locked(func() { t.ring.push(&frame{place: t.place(msgs[0].Seq), kind: hole, time: time.Now()}) })
	t.touch()
}

// retryRepair repeats a failed repair for a while. A failed comparison is repeated later.
func (t *topic) retryRepair(n *comparison) {
	log, ctx := t.shard.feed.cfg.Log, t.shard.feed.life
	now := time.Now()
	if !t.isRepair(n) {
		log.DebugContext(ctx, "log not compared", "session", t.session, "error", n.err)
		t.nextComparison = now.Add(min(failureDelay, t.shard.feed.cfg.Idle))
		return
	}
	if t.failingSince.IsZero() {
		t.failingSince = now
		log.WarnContext(ctx, "log not read, trying again", "session", t.session, "error", n.err)
	}
	if now.Sub(t.failingSince) > giveUpAfter {
		t.close(fmt.Errorf("%w: %w", ErrLost, n.err))
		return
	}
	t.compare(n.wanted, nil, retryDelay)
}

// takeHeld processes the held live events. Events up to wanted that the log did not have are
// gone.
func (t *topic) takeHeld(wanted uint64) {
	held := t.held
	t.held, t.heldBytes = nil, 0
	for i, st := range held {
		switch {
		case st.Seq <= t.head.seq:
			continue
		case st.Prev > t.head.seq && st.Prev > wanted:
			t.repair(st, st.Prev)
			for _, later := range held[i+1:] {
				t.hold(later)
			}
			return
		}
		t.setHead(markOf(st))
		t.push(st)
	}
}

// outboxPatience is the time for an end event to leave the outbox.
const outboxPatience = 15 * time.Second

// applyRun processes the row of a silent run. If the run has ended and the log does not have
// its end event within patience, the event is synthesized.
func (t *topic) applyRun(ordinal int64, run *agentv1.Run, patience time.Duration) {
	p := t.pending[ordinal]
	if p == nil || !ended(run) {
		return
	}
	if run.GetEndWaits() {
		patience = max(patience, outboxPatience)
	}
	now := time.Now()
	if p.ended.IsZero() {
		p.ended = now
	}
	if now.Sub(p.ended) < patience {
		p.nextAsk = p.ended.Add(patience)
		return
	}
	e := EndOf(run)
	t.order.Expect(ordinal, run.GetId()) // perhaps none of its events ever arrived
	known, _ := t.order.Progress(ordinal)
	e.Epoch, e.Number = known.Epoch, max(e.Number, known.Number+1)
	t.shard.feed.metrics.synthesized.Inc()
	t.shard.feed.cfg.Log.WarnContext(t.shard.feed.life, "run's end synthesized: the log does not have it", "run", run.GetId(), "number", e.GetNumber())
	t.pushEvent(e, t.place(t.head.seq), true)
}

func ended(run *agentv1.Run) bool {
	switch run.GetState() {
	case agentv1.RunState_RUN_STATE_DONE, agentv1.RunState_RUN_STATE_FAILED, agentv1.RunState_RUN_STATE_CANCELLED:
		return true
	}
	return false
}

// EndOf returns the end event of a run that has ended, made from its row.
func EndOf(run *agentv1.Run) *runv1.Event {
	e := &runv1.Event{RunId: run.GetId(), RunOrdinal: run.GetOrdinal(), Number: run.GetLastEvent()}
	if run.GetState() == agentv1.RunState_RUN_STATE_FAILED {
		e.Body = &runv1.Event_Error{Error: &runv1.Error{Message: run.GetErrorMessage(), Code: run.GetErrorCode(), RetryAt: run.GetErrorRetryAt()}}
		return e
	}
	e.Body = &runv1.Event_Done{Done: &runv1.Done{
		Text:           cmp.Or(run.GetFullText(), run.GetText()), // the previous release sets only this
		FinalText:      run.GetText(),
		Simulated:      run.GetSimulated(),
		TotalTokensIn:  run.GetUsage().GetInputTokens(),
		TotalTokensOut: run.GetUsage().GetOutputTokens(),
		Steps:          run.GetSteps(),
		FinishReason:   run.GetFinishReason(),
		FinishDetail:   run.GetFinishDetail(),
	}}
	return e
}

// pause waits for d. It fails if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
