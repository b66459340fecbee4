package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
)

// postgres is the model of the server: its tables and its faults. The world's lock guards it.
type postgres struct {
	*rows

	away  bool          // it refuses connections
	hangs bool          // it does not answer
	life  int           // how often it was away: what was open before is lost
	ahead time.Duration // of the runners' clocks is its own

	holder  *process  // of the outbox's lock
	waiting []*waiter // for it
}

// waiter waits for the outbox's lock.
type waiter struct {
	p    *process
	turn chan struct{} // closed when it has the lock
}

// Limits of package pg.
const (
	acquireTimeout  = 5 * time.Second
	lockTimeout     = 10 * time.Second
	idleTransaction = time.Minute
)

var errAway = fault.Wrap(errors.New("connection refused"), fault.Unavailable, "the database is not available at the moment; try again")

// transact runs one transaction for p. After a network error it is unknown whether it was
// committed.
func (w *world) transact(ctx context.Context, p *process, name string, do func() error) error {
	var away, hangs, slow, lost bool
	life := 0
	name = p.name + " " + name
	if err := p.enter(ctx, name); err != nil {
		return err
	}
	w.locked(func() {
		away, hangs, life = w.pg.away || p.noPostgres, w.pg.hangs, w.pg.life
		slow = w.chance(name, w.shape.slowRows)
		lost = !w.calm && w.chance(name, w.shape.lostAnswers)
	})
	switch {
	case away:
		return w.request(ctx, p, request{name: name, lo: time.Millisecond, hi: 20 * time.Millisecond, do: func() error { return errAway }})
	case hangs:
		if err := w.request(ctx, p, request{name: name, lo: acquireTimeout, hi: acquireTimeout + time.Second, do: func() error { return errAway }}); err != nil {
			return err
		}
	}
	r := request{name: name, lo: 200 * time.Microsecond, hi: 4 * time.Millisecond}
	if slow {
		r.lo, r.hi = 50*time.Millisecond, 900*time.Millisecond
	}
	r.do = func() error {
		if w.pg.away || w.pg.hangs || w.pg.life != life || p.noPostgres {
			w.note(name, "lost")
			return errAway // nothing was committed
		}
		err := do()
		if err == nil {
			w.observe()
		}
		w.note(name, brief(err))
		return err
	}
	err := w.request(ctx, p, r)
	if err == nil && lost {
		// It was committed, and the connection broke.
		w.locked(func() { w.note(name, "answer lost") })
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		return errAway
	}
	return err
}

// brief returns the name of an error for the trace.
func brief(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, run.ErrFenced):
		return "fenced"
	}
	return err.Error()
}

// store is one runner's connection to Postgres. It replaces *run.Store, *conversation.Store and
// the outbox's table.
type store struct {
	w *world
	p *process
}

// label returns a run's name for the trace: session, ordinal, epoch.
func label(c *run.Claim) string { return runLabel(&c.Run) }

// ask runs a transaction with a result.
func ask[T any](ctx context.Context, s store, name string, do func() (T, error)) (T, error) {
	var out T // not read once the caller has left
	err := s.w.transact(ctx, s.p, name, func() (err error) {
		out, err = do()
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return out, nil
}

func (s store) tell(ctx context.Context, name string, do func() error) error {
	return s.w.transact(ctx, s.p, name, do)
}

func (s store) Next(ctx context.Context) ([]run.Claimable, error) {
	next, err := ask(ctx, s, "next", func() ([]run.Claimable, error) { return s.w.pg.next() })
	if errors.Is(err, run.ErrTooEarly) {
		s.p.out.Poke()
	}
	return next, err
}

func (s store) Claim(ctx context.Context, ws id.Workspace, session id.Session, r id.Run) (*run.Claim, error) {
	c, err := ask(ctx, s, "claim "+short(r), func() (*run.Claim, error) {
		before, full := s.w.pg.holderOf(r), s.w.pg.full(r)
		c, err := s.w.pg.claim(s.p.name, ws, session, r)
		if err == nil && full {
			s.w.violation("%s takes run %s of a workspace that is at its limit", s.p.name, label(c))
		}
		if err == nil {
			s.w.checkTaken(s.p, c, before)
		}
		return c, err
	})
	if errors.Is(err, run.ErrTooEarly) {
		s.p.out.Poke()
	}
	if err == nil {
		s.w.locked(func() {
			s.p.holding[c.Run.ID] = c.Run.Epoch
			if held, ok := ctx.Value(inWorkKey{}).(*inWork); ok {
				*held = inWork{c.Run.ID, c.Run.Epoch}
			}
		})
	}
	return c, err
}

func (s store) Renew(ctx context.Context, leases []run.Lease) ([]run.Renewal, error) {
	slices.SortFunc(leases, func(a, b run.Lease) int { return slices.Compare(a.Run.UUID[:], b.Run.UUID[:]) })
	return ask(ctx, s, "renew", func() ([]run.Renewal, error) {
		s.p.renewed = time.Now()
		return s.w.pg.renew(leases), nil
	})
}

func (s store) Park(ctx context.Context, c *run.Claim) error {
	err := s.tell(ctx, "park "+label(c), func() error {
		delete(s.p.holding, c.Run.ID)
		return s.w.pg.park(c)
	})
	s.p.out.Poke()
	return err
}

func (s store) ReleaseUnconfirmed(ctx context.Context, _ id.Workspace, r id.Run) (held bool, err error) {
	return ask(ctx, s, "disown "+short(r), func() (bool, error) {
		delete(s.p.holding, r)
		return s.w.pg.releaseUnconfirmed(s.p.name, r), nil
	})
}

func (s store) Release(ctx context.Context, c *run.Claim, wait time.Duration) error {
	return s.tell(ctx, "release "+label(c), func() error {
		delete(s.p.holding, c.Run.ID)
		s.w.pg.release(c, wait)
		return nil
	})
}

func (s store) ExpireAbsent(ctx context.Context, quiet time.Duration) ([]run.Claimable, error) {
	return ask(ctx, s, "expire", func() ([]run.Claimable, error) {
		expired := s.w.pg.expireAbsent(quiet, func(runner string) bool { return !s.w.isPresent(runner) })
		if s.w.plant == sweepsNothing {
			return nil, nil
		}
		return expired, nil
	})
}

func (s store) Sweep(ctx context.Context, patience time.Duration, limit int) ([]run.Claimable, error) {
	return ask(ctx, s, "sweep", func() ([]run.Claimable, error) {
		if s.w.plant == sweepsNothing {
			return nil, nil
		}
		return s.w.pg.sweep(patience, limit), nil
	})
}

func (s store) Ready(ctx context.Context, limit int) ([]run.Claimable, error) {
	return ask(ctx, s, "ready", func() ([]run.Claimable, error) {
		if s.w.plant == sweepsNothing {
			return nil, nil
		}
		return s.w.pg.ready(limit), nil
	})
}

func (s store) History(ctx context.Context, c *run.Claim) ([]run.Message, run.Settings, error) {
	type conversation struct {
		messages []run.Message
		setting  run.Settings
	}
	out, err := ask(ctx, s, "history "+label(c), func() (out conversation, err error) {
		out.messages, out.setting, err = s.w.pg.readHistory(c)
		return out, err
	})
	return out.messages, out.setting, err
}

func (s store) LastStep(ctx context.Context, c *run.Claim) (*run.OpenStep, error) {
	return ask(ctx, s, "last step "+label(c), func() (*run.OpenStep, error) { return s.w.pg.lastStep(c), nil })
}

func (s store) ReadInbox(ctx context.Context, c *run.Claim, border bool) (run.Inbox, error) {
	name := "inbox "
	if border {
		name = "inbox at the border "
	}
	type found struct{ stop, steering bool }
	in, err := ask(ctx, s, name+label(c), func() (in found, err error) {
		in.stop, in.steering, err = s.w.pg.readInbox(c)
		if row := s.w.pg.runs[c.Run.ID]; row != nil && err == nil && border {
			row.border = time.Now()
		}
		return in, err
	})
	if err != nil || in.stop || !in.steering || !border {
		return run.Inbox{Stop: in.stop}, err
	}
	joined, err := s.JoinSteering(ctx, c)
	if err != nil {
		return run.Inbox{}, err
	}
	return run.Inbox{Joined: joined}, nil
}

func (s store) JoinSteering(ctx context.Context, c *run.Claim) ([]run.Message, error) {
	return ask(ctx, s, "join "+label(c), func() ([]run.Message, error) { return s.w.pg.joinSteering(c) })
}

func (s store) CommitAnswer(ctx context.Context, c *run.Claim, a run.Answer, lastEvent int64) error {
	given := *c // what is on its way does not change with the caller's
	if s.w.plant == dispatchesFirst || s.w.plant == plansNothing {
		for _, call := range a.Calls {
			if s.w.plant == plansNothing && call.Ask == nil {
				continue
			}
			m := run.Dispatch(&given.Run, a.Step, call, given.Run.Epoch, 0)
			_, _ = wire(s).Publish(ctx, m.Subject, m.ID, m.Body)
		}
	}
	err := s.tell(ctx, "commit answer "+label(c), func() error { return s.w.pg.commitAnswer(&given, a, lastEvent) })
	if err != nil {
		return err
	}
	c.Run.LastEvent = lastEvent
	addUsage(&c.Run, a.Usage)
	return nil
}

// Rules returns no rules: they are not part of the protocol.
func (store) Rules(context.Context, *run.Claim, []string) ([]run.Rule, error) { return nil, nil }

func (s store) Wait(ctx context.Context, c *run.Claim, w run.Wait, lastEvent int64) (parked bool, err error) {
	given := *c
	parked, err = ask(ctx, s, "wait "+label(c), func() (bool, error) {
		parked, err := s.w.pg.wait(&given, w, lastEvent)
		if parked {
			delete(s.p.holding, given.Run.ID)
		}
		return parked, err
	})
	if err == nil && parked {
		c.Run.LastEvent = lastEvent
		s.p.out.Poke()
	}
	return parked, err
}

func (s store) ExpireApprovals(ctx context.Context, limit int) (int, error) {
	n, err := ask(ctx, s, "expire approvals", func() (int, error) {
		if s.w.plant == asksForever {
			return 0, nil
		}
		return s.w.pg.expireApprovals(limit), nil
	})
	if n > 0 {
		s.p.out.Poke()
	}
	return n, err
}

func (s store) CommitResults(ctx context.Context, c *run.Claim, r run.Results, lastEvent int64) (mail bool, err error) {
	given := *c
	mail, err = ask(ctx, s, "commit results "+label(c), func() (bool, error) { return s.w.pg.commitResults(&given, r, lastEvent) })
	if err != nil {
		return false, err
	}
	c.Run.LastEvent, c.Run.Steps = lastEvent, r.Step+1
	return mail, nil
}

func (s store) CompleteStep(ctx context.Context, c *run.Claim, a run.Answer, lastEvent int64) error {
	given := *c
	err := s.tell(ctx, "complete step "+label(c), func() error { return s.w.pg.completeStep(&given, a, lastEvent) })
	if err != nil {
		return err
	}
	c.Run.LastEvent, c.Run.Steps = lastEvent, a.Step+1
	addUsage(&c.Run, a.Usage)
	return nil
}

func addUsage(r *run.Run, u run.Usage) {
	u = r.Usage().Add(u)
	r.InputTokens, r.CacheReadTokens, r.CacheWriteTokens, r.OutputTokens, r.ReasoningTokens = u.Input, u.CacheRead, u.CacheWrite, u.Output, u.Reasoning
	r.Estimated = u.Estimated
}

func (s store) AddWaste(ctx context.Context, c *run.Claim, step int, wasted run.Usage, _ *int64) error {
	given := *c
	return s.tell(ctx, "waste "+label(c), func() error { return s.w.pg.addWaste(&given, step, wasted) })
}

// SetTitle is never called: titles are off.
func (s store) SetTitle(context.Context, *run.Claim, run.Title) (bool, error) {
	return false, errors.New("the simulation has no titles")
}

// RecordNoSummary is never called: no summary fails.
func (s store) RecordNoSummary(context.Context, *run.Claim, int) error {
	return errors.New("nobody asks for a summary in the simulation")
}

func (s store) Finish(ctx context.Context, c *run.Claim, e run.End) error {
	given := *c
	err := s.tell(ctx, "finish "+label(c), func() error {
		err := s.w.pg.finish(&given, e)
		if err == nil {
			s.w.note("ended", label(&given), string(e.State), e.FinishReason, e.ErrorCode)
		}
		return err
	})
	if err == nil {
		s.p.out.Poke()
	}
	return err
}

// Submit, Cancel, Decide, SendResult and Delete do what the service does with a request.

// Submit also claims the run if it can start and the process has a slot for it; the caller then
// works on it.
func (s store) Submit(ctx context.Context, a identity.Actor, n conversation.NewMessage) (*conversation.Submitted, *run.Claim, error) {
	type submission struct {
		*conversation.Submitted
		claim *run.Claim
	}
	mine := s.p.reserve()
	out, err := ask(ctx, s, "submit "+n.IdempotencyKey, func() (out submission, err error) {
		out.Submitted, err = s.w.pg.submit(a, n)
		if err != nil || !mine || !out.First || n.Edit != nil || n.Regenerate != nil {
			return out, err
		}
		if c, err := s.w.pg.claim(s.p.name, a.Workspace, n.Session, out.Run.ID); err == nil {
			s.w.checkTaken(s.p, c, claimant{})
			out.claim = c
		}
		return out, nil
	})
	switch {
	case mine && out.claim == nil:
		s.p.free()
	case mine:
		s.w.locked(func() { s.p.holding[out.claim.Run.ID] = out.claim.Run.Epoch })
	}
	return out.Submitted, out.claim, err
}

func (s store) Cancel(ctx context.Context, a identity.Actor, session id.Session, which conversation.Target) ([]id.Run, error) {
	running, err := ask(ctx, s, "cancel "+short(session), func() ([]id.Run, error) {
		_, running, err := s.w.pg.cancel(a, session, which)
		return running, err
	})
	if err == nil {
		s.p.out.Poke()
	}
	return running, err
}

func (s store) Decide(ctx context.Context, a identity.Actor, in conversation.Answer) error {
	_, err := ask(ctx, s, "decide "+in.ToolCallID+" "+string(in.Decision), func() (run.Decision, error) { return s.w.pg.decide(a, in) })
	s.p.out.Poke()
	return err
}

func (s store) SendResult(ctx context.Context, a identity.Actor, in conversation.ClientResult) error {
	_, err := ask(ctx, s, "send the result of "+in.ToolCallID, func() (bool, error) { return true, s.w.pg.sendResult(a, in) })
	s.p.out.Poke()
	return err
}

func (s store) Switch(ctx context.Context, a identity.Actor, session id.Session, message id.Message) error {
	err := s.tell(ctx, "switch "+short(session), func() error { return s.w.pg.switchBranch(a, session, message) })
	s.p.out.Poke()
	return err
}

func (s store) Delete(ctx context.Context, a identity.Actor, session id.Session) ([]id.Run, error) {
	active, err := ask(ctx, s, "delete "+short(session), func() ([]id.Run, error) { return s.w.pg.deleteSession(a, session) })
	s.p.out.Poke()
	return active, err
}

// Page is a transaction that publishes while it holds the outbox's lock.
func (s store) Page(ctx context.Context, after int64, limit int, say func(context.Context, []outbox.Row) []int64) (n int, err error) {
	if err := s.lockOutbox(ctx); err != nil {
		return 0, err
	}
	begun := time.Now()
	defer func() { s.w.locked(func() { s.w.pg.unlockOutbox(s.p) }) }()
	life := 0
	s.w.locked(func() { life = s.w.pg.life })
	batch, err := ask(ctx, s, "outbox", func() ([]outbox.Row, error) { return s.w.pg.page(after, limit), nil })
	if err != nil || len(batch) == 0 {
		return 0, err
	}
	remove := func(said []int64) error {
		return s.tell(ctx, "outbox said", func() error {
			// The transaction ended with its connection, or for being idle.
			if s.w.pg.life != life || time.Since(begun) > idleTransaction || s.w.pg.holder != s.p {
				return errAway
			}
			s.w.pg.deleteOutbox(said)
			return nil
		})
	}
	if s.w.plant == deletesFirst {
		var ids []int64
		for _, r := range batch {
			ids = append(ids, r.ID)
		}
		if err := remove(ids); err != nil {
			return len(batch), err
		}
	}
	said := say(ctx, batch)
	if len(said) == 0 {
		return len(batch), nil
	}
	return len(batch), remove(said)
}

func (s store) lockOutbox(ctx context.Context) error {
	if err := s.p.enter(ctx, s.p.name+" outbox"); err != nil {
		return err
	}
	me := &waiter{s.p, make(chan struct{})}
	s.w.locked(func() {
		s.w.pg.waiting = append(s.w.pg.waiting, me)
		s.w.pg.nextOutbox()
	})
	limit := time.NewTimer(lockTimeout)
	defer limit.Stop()
	var err error
	select {
	case <-me.turn:
		return nil
	case <-limit.C:
		err = errAway
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.w.locked(func() {
		s.w.pg.waiting = slices.DeleteFunc(s.w.pg.waiting, func(o *waiter) bool { return o == me })
		s.w.pg.unlockOutbox(s.p) // its turn may have come in this moment
	})
	return err
}

// unlockOutbox releases the lock if p has it.
func (pg *postgres) unlockOutbox(p *process) {
	if pg.holder == p {
		pg.holder = nil
		pg.nextOutbox()
	}
}

// nextOutbox gives a free lock to the process that has waited longest.
func (pg *postgres) nextOutbox() {
	if pg.holder == nil && len(pg.waiting) > 0 {
		next := pg.waiting[0]
		pg.waiting = pg.waiting[1:]
		pg.holder = next.p
		close(next.turn)
	}
}

// crash aborts open transactions and keeps what was committed.
func (pg *postgres) crash() {
	pg.life++
	if pg.holder != nil {
		pg.unlockOutbox(pg.holder)
	}
}

// holderOf returns the claimant of a run, or the zero value if it is not running.
func (pg *postgres) holderOf(r id.Run) claimant {
	if row := pg.runs[r]; row != nil && row.State == run.Running {
		return claimant{row.runner, row.Epoch}
	}
	return claimant{}
}

// full reports whether a run has to wait for a slot of its workspace.
func (pg *postgres) full(r id.Run) bool {
	row := pg.runs[r]
	return row != nil && pg.needsSlot(row) && pg.held(row.Workspace) >= pg.most()
}

// claimant is the runner and epoch of a claim.
type claimant struct {
	runner string
	epoch  int64
}
