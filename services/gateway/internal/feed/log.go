package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Bounds of one read of the log.
const (
	maxRead      = 40_000
	maxReadBytes = 8 << 20
	maxTailBytes = 8 << 20 // encoded
	readTimeout  = 10 * time.Second
	lookTimeout  = 3 * time.Second // also for opening: better a refusal than a long wait
	lookAttempts = 5
	resetDoubt   = 300 * time.Millisecond // a replica may be a little behind
	retryDelay   = 250 * time.Millisecond
	troubleDelay = time.Second
	giveUpAfter  = 15 * time.Second
)

// open finds the head of the log, once the server knows of the subscription.
func (t *topic) open(ctx context.Context) {
	begun := time.Now()
	head, err := t.readHead(ctx)
	t.shard.post(func() {
		if t.phase != opening {
			return
		}
		if err != nil {
			t.shard.feed.cfg.Log.WarnContext(ctx, "session feed not opened", "session", t.session, "error", err)
			t.close(err)
			return
		}
		now := time.Now()
		t.nextLook = now.Add(t.shard.feed.cfg.Idle)
		if head != nil {
			t.setHead(head.Seq)
			if e, ok := t.decode(head); ok {
				t.order.begin(e)
				t.expectOpen(t.order, now)
			}
		}
		t.phase, t.compared = flowing, begun
		t.takeHeld(0)
		close(t.opened)
	})
}

func (t *topic) readHead(ctx context.Context) (*bus.Stored, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	b := t.shard.feed.cfg.Bus
	if err := b.Flush(ctx); err != nil {
		return nil, err
	}
	st, err := b.Last(ctx, t.stream, t.log)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // an empty log has no head, and that is well
	}
	return st, err
}

// expectOpen waits for the ends of the runs that o has not seen end.
func (t *topic) expectOpen(o *order, now time.Time) {
	for n, p := range o.runs {
		if !p.ended {
			t.expect(n, p.id, now)
		}
	}
}

// news is what a look at the log and at silent runs brought.
type news struct {
	begun  time.Time
	began  bool // the stream has begun anew
	msgs   []*bus.Stored
	runs   map[int64]*agentv1.Run
	gone   bool // a run, and so its session, is not there any more
	err    error
	wanted uint64
}

// look compares the log with the head and looks runs up, outside the worker. want
// is the sequence that must be reached, 0 for none.
func (t *topic) look(want uint64, ask map[int64]string, delay time.Duration) {
	t.looking = true
	head, actor := t.head, t.anyActor()
	t.shard.start(func(ctx context.Context) {
		n := news{wanted: want, err: pause(ctx, delay)}
		n.begun = time.Now()
		if n.err == nil {
			n.began, n.msgs, n.err = t.readNews(ctx, head, want)
		}
		// Postgres is asked whether or not the log can be read.
		if len(n.msgs) == 0 && len(ask) > 0 {
			n.runs, n.gone = t.askRuns(identity.With(ctx, actor), ask)
		}
		t.shard.post(func() { t.learnNews(&n) })
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

// readNews returns the events after head. While they do not reach want it tries
// again, a few times: a replica may be behind.
func (t *topic) readNews(ctx context.Context, head, want uint64) (began bool, msgs []*bus.Stored, err error) {
	if !t.shard.feed.acquire(ctx) {
		return false, nil, ctx.Err()
	}
	defer t.shard.feed.release()
	limit := lookTimeout
	if want > 0 {
		limit = readTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	doubt := false
	for attempt := range lookAttempts {
		var last uint64
		st, err := t.shard.feed.cfg.Bus.Last(ctx, t.stream, t.log)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			if want == 0 {
				return false, nil, nil // aged out; were it begun anew, there would be something
			}
		case err != nil:
			return false, nil, err
		default:
			last = st.Seq
		}
		switch {
		case st != nil && last < head && doubt:
			msgs, err := t.readLog(ctx, 0, last)
			return true, msgs, err
		case st != nil && last < head:
			doubt = true
			if err := pause(ctx, resetDoubt); err != nil {
				return false, nil, err
			}
			continue
		case last > head && last >= want:
			msgs, err := t.readLog(ctx, head, last)
			if err != nil || reaches(msgs, want) || attempt == lookAttempts-1 {
				return false, msgs, err
			}
		case last >= want:
			return false, nil, nil
		}
		if err := pause(ctx, 20*time.Millisecond<<attempt); err != nil {
			return false, nil, err
		}
	}
	return false, nil, nil
}

func reaches(msgs []*bus.Stored, want uint64) bool {
	return want == 0 || len(msgs) > 0 && msgs[len(msgs)-1].Seq >= want
}

// readLog returns the stored events with after < sequence ≤ through, as many as
// the bounds allow, oldest first.
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

// askRuns looks runs up in Postgres. One that cannot be looked up now is left out.
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

// learnNews is the worker's part of look.
func (t *topic) learnNews(n *news) {
	t.looking = false
	defer t.startTail()
	if t.phase == closed {
		return
	}
	if n.gone {
		t.close(ErrGone)
		return
	}
	if n.err != nil {
		if t.phase != repairing { // which is tried again
			t.answerLoads(tail{err: n.err})
		}
		t.endureTrouble(n)
	} else {
		t.trouble, t.compared = time.Time{}, n.begun
		t.learnLog(n)
	}
	// Events may still be on their way; longer where the log has no leader just now.
	patience := t.shard.feed.cfg.Silence
	if n.err != nil {
		patience *= 6
	}
	for ordinal, run := range n.runs {
		t.learnRun(ordinal, run, patience)
	}
}

func (t *topic) learnLog(n *news) {
	if n.began {
		t.generation++
		t.setHead(0)
	}
	for _, st := range n.msgs {
		if st.Seq > t.head {
			t.setHead(st.Seq)
			t.push(st)
		}
	}
	if t.phase == repairing {
		t.phase = flowing
		t.takeHeld(n.wanted)
	}
}

// endureTrouble tries a repair again for a while; comparing alone can wait.
func (t *topic) endureTrouble(n *news) {
	log, ctx := t.shard.feed.cfg.Log, t.shard.feed.life
	now := time.Now()
	if t.phase != repairing {
		log.DebugContext(ctx, "log not compared", "session", t.session, "error", n.err)
		t.nextLook = now.Add(min(troubleDelay, t.shard.feed.cfg.Idle))
		return
	}
	if t.trouble.IsZero() {
		t.trouble = now
		log.WarnContext(ctx, "log not read, trying again", "session", t.session, "error", n.err)
	}
	if now.Sub(t.trouble) > giveUpAfter {
		t.close(fmt.Errorf("%w: %w", ErrLost, n.err))
		return
	}
	t.look(n.wanted, nil, retryDelay)
}

// takeHeld deals with the live events that waited. Up to wanted, what the log did
// not have is not there any more.
func (t *topic) takeHeld(wanted uint64) {
	held := t.held
	t.held, t.heldBytes = nil, 0
	for i, st := range held {
		switch {
		case st.Seq <= t.head:
			continue
		case st.Prev > t.head && st.Prev > wanted:
			t.repair(st, st.Prev)
			for _, later := range held[i+1:] {
				t.hold(later)
			}
			return
		}
		t.setHead(st.Seq)
		t.push(st)
	}
}

// learnRun takes what Postgres says about a run whose log is silent. An end is
// made up when the log does not show it within patience.
func (t *topic) learnRun(ordinal int64, run *agentv1.Run, patience time.Duration) {
	p := t.pending[ordinal]
	if p == nil || !ended(run) {
		return
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
	known := t.order.runs[ordinal]
	if known == nil { // nothing of it has ever come
		known = &progress{id: run.GetId(), number: -1}
		t.order.runs[ordinal] = known
	}
	e.Epoch, e.Number = known.epoch, max(e.Number, known.number+1)
	t.shard.feed.metrics.madeUp.Inc()
	t.shard.feed.cfg.Log.WarnContext(t.shard.feed.life, "run's end made up: the log does not have it", "run", run.GetId(), "number", e.GetNumber())
	t.pushEvent(e, t.place(t.head), true)
}

func ended(run *agentv1.Run) bool {
	switch run.GetState() {
	case agentv1.RunState_RUN_STATE_DONE, agentv1.RunState_RUN_STATE_FAILED, agentv1.RunState_RUN_STATE_CANCELLED:
		return true
	}
	return false
}

// EndOf returns the terminal event of a run that has ended, as its row tells it.
func EndOf(run *agentv1.Run) *runv1.Event {
	e := &runv1.Event{RunId: run.GetId(), RunOrdinal: run.GetOrdinal(), Number: run.GetLastEvent()}
	if run.GetState() == agentv1.RunState_RUN_STATE_FAILED {
		e.Body = &runv1.Event_Error{Error: &runv1.Error{Message: run.GetErrorMessage(), Code: run.GetErrorCode()}}
		return e
	}
	e.Body = &runv1.Event_Done{Done: &runv1.Done{
		Text:           run.GetText(),
		TotalTokensIn:  run.GetUsage().GetInputTokens(),
		TotalTokensOut: run.GetUsage().GetOutputTokens(),
		Steps:          run.GetSteps(),
		FinishReason:   run.GetFinishReason(),
	}}
	return e
}

// pause waits for d; its error says that ctx ended first.
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
