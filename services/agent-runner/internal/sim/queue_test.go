package sim

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/subject"
)

// consumer is the durable consumer of a work queue, which all processes of a
// service share. The world's lock guards it.
type consumer struct {
	w       *world
	stream  *stream
	entries []*entry // those of the stream's messages, in order
	pulls   []*pull  // waiting pull requests
}

// entry is a message of the queue as its consumer sees it.
type entry struct {
	*message
	attempt int
	held    bool      // delivered, and neither acked nor given up
	until   time.Time // held: when it is given up; else: when it may be delivered
	watched bool      // a check will compare until
}

// pull is a process's request for one message.
type pull struct {
	p   *process
	got chan *entry // of one
}

func newQueue(w *world, name, prefix string) *stream {
	s := &stream{name: name, prefix: prefix, window: 2 * time.Minute, limit: queueLimit, known: map[string]*message{}}
	s.reader = &consumer{w: w, stream: s}
	return s
}

func (c *consumer) add(m *message) {
	c.entries = append(c.entries, &entry{message: m})
	c.pump()
}

func (c *consumer) wipe() { c.entries = nil }

// drop removes a message even if a process works on it.
func (c *consumer) drop(m *message) {
	c.entries = slices.DeleteFunc(c.entries, func(e *entry) bool { return e.message == m })
}

// reachable reports whether the consumer can be reached by any process.
func (c *consumer) reachable() bool { return !c.w.nats.down && c.stream.state == serving }

// pump delivers messages to waiting pulls.
func (c *consumer) pump() {
	if !c.reachable() {
		return
	}
	for _, e := range c.entries {
		if e.held || time.Now().Before(e.until) {
			continue
		}
		if !c.deliver(e) {
			return
		}
	}
}

func (c *consumer) deliver(e *entry) bool {
	able := slices.DeleteFunc(slices.Clone(c.pulls), func(p *pull) bool { return p.p.dead || p.p.noNATS })
	if len(able) == 0 {
		return false
	}
	slices.SortFunc(able, func(a, b *pull) int { return strings.Compare(a.p.name, b.p.name) })
	to := able[c.w.pick("deliver "+e.id, len(able))]
	c.pulls = slices.DeleteFunc(c.pulls, func(p *pull) bool { return p == to })
	e.attempt++
	e.held = true
	c.w.note("deliver", e.id, fmt.Sprint(e.attempt), "to", to.p.name)
	c.hold(e)
	wait := c.w.between("deliver "+e.id, 50*time.Microsecond, 2*time.Millisecond)
	c.w.after(wait, func() { to.got <- e })
	return true
}

// hold restarts the ack wait of a message.
func (c *consumer) hold(e *entry) {
	e.until = time.Now().Add(subject.AckWait)
	if !e.watched {
		c.watch(e)
	}
}

// watch makes a message ready again when its ack wait is over.
func (c *consumer) watch(e *entry) {
	e.watched = true
	c.w.after(time.Until(e.until)+c.w.between("gives up "+e.id, 0, 50*time.Millisecond), func() {
		switch {
		case !e.held:
			e.watched = false
		case time.Now().Before(e.until):
			c.watch(e)
		default:
			e.watched, e.held = false, false
			c.pump()
		}
	})
}

// again makes a message ready after a while.
func (c *consumer) again(e *entry, after time.Duration) {
	e.held, e.until = false, time.Now().Add(after)
	c.w.after(after+time.Nanosecond, c.pump)
}

// repeat delivers a message a second time while a process works on it.
func (c *consumer) repeat(name string) {
	var held []*entry
	for _, e := range c.entries {
		if e.held {
			held = append(held, e)
		}
	}
	if len(held) > 0 {
		e := held[c.w.pick(name, len(held))]
		e.held, e.until = false, time.Now()
		c.pump()
	}
}

// handler is bus.Handler with the parts of the delivery that it uses.
type handler func(ctx context.Context, m *bus.Message, attempt int, draining <-chan struct{}) error

// consume passes messages to handle until the process drains or dies, and then waits for the
// active ones. It is a model of bus.Consume: handle's error is the delivery decision.
func (p *process) consume(name string, free chan struct{}, handle handler) {
	c := p.w.nats.stream(name).reader
	ctx, letGo := context.WithCancelCause(p.ctx)
	defer letGo(nil)
	in := inHand{entries: map[*entry]bool{}}
	stop := make(chan struct{})
	p.work.Go(func() { p.heartbeat(c, &in, stop) })
	defer close(stop)
	for {
		select {
		case free <- struct{}{}:
		case <-p.drain:
		case <-p.ctx.Done():
		}
		if p.leaves() {
			break
		}
		e := p.pull(c)
		if e == nil {
			break
		}
		p.w.locked(func() { in.entries[e] = true })
		in.work.Go(func() {
			defer func() { <-free }()
			err := p.handled(ctx, e, handle)
			p.w.locked(func() { delete(in.entries, e) })
			p.settle(ctx, c, e, err)
		})
	}
	done := make(chan struct{})
	go func() {
		in.work.Wait()
		close(done)
	}()
	limit := time.NewTimer(drainTime)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		letGo(bus.ErrDraining)
	case <-p.ctx.Done():
	}
	<-done
}

// pull returns a message, or nil if the process drains or dies first.
func (p *process) pull(c *consumer) *entry {
	ask := &pull{p, make(chan *entry, 1)}
	p.w.locked(func() {
		c.pulls = append(c.pulls, ask)
		c.pump()
	})
	select {
	case e := <-ask.got:
		if p.enter(p.ctx, p.name+" takes "+e.id) != nil {
			return nil
		}
		return e
	case <-p.drain:
	case <-p.ctx.Done():
	}
	asked := false
	p.w.locked(func() {
		asked = slices.Contains(c.pulls, ask)
		c.pulls = slices.DeleteFunc(c.pulls, func(o *pull) bool { return o == ask })
	})
	if !asked { // it is on its way here
		e := <-ask.got
		p.settle(p.ctx, c, e, bus.RetryAfter(20*time.Millisecond, nil))
	}
	return nil
}

func (p *process) handled(ctx context.Context, e *entry, handle handler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p.w.locked(func() { p.w.violation("%s panics: %v\n%s", p.name, v, debug.Stack()) })
			err = errors.New("panic")
		}
	}()
	var attempt int
	p.w.locked(func() { attempt = e.attempt })
	return handle(ctx, received(e.message), attempt, p.drain)
}

// settle sends the delivery decision to the queue, with retries like bus.Consume.
func (p *process) settle(ctx context.Context, c *consumer, e *entry, decision error) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	name := p.name + " settles " + e.id
	for {
		err := p.w.request(limited, p, request{name: name, lo: 100 * time.Microsecond, hi: 2 * time.Millisecond, do: func() error {
			if !c.reachable() || p.noNATS {
				return bus.ErrDisconnected
			}
			p.settled(c, e, name, decision)
			return nil
		}})
		if !errors.Is(err, bus.ErrDisconnected) || sleep(limited, resendPause) != nil {
			return
		}
	}
}

func (p *process) settled(c *consumer, e *entry, name string, decision error) {
	after, asked := bus.After(decision)
	p.w.note(name, fmt.Sprint(decision == nil), after.String())
	if !slices.Contains(c.entries, e) {
		return // an ack came before, or it was lost
	}
	switch {
	case decision == nil:
		// An ack counts even after redelivery: only the rows fence.
		c.drop(e.message)
		c.stream.msgs = slices.DeleteFunc(c.stream.msgs, func(m *message) bool { return m == e.message })
	case bus.IsTerminal(decision):
		p.w.violation("%s drops %s: %v", p.name, e.id, decision)
	case asked:
		c.again(e, max(after, 20*time.Millisecond))
	default:
		c.again(e, p.w.between(name, 0, min(30*time.Second, 250*time.Millisecond<<min(e.attempt, 7))))
	}
}

// inHand are the messages that a process works on. The world's lock guards entries.
type inHand struct {
	entries map[*entry]bool
	work    sync.WaitGroup
}

// heartbeat extends the ack wait of active messages at intervals.
func (p *process) heartbeat(c *consumer, in *inHand, stop <-chan struct{}) {
	tick := time.NewTicker(subject.InProgress)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		if p.enter(p.ctx, p.name+" signs") != nil {
			return
		}
		p.w.locked(func() {
			for _, e := range c.entries {
				if in.entries[e] && e.held && c.reachable() && !p.noNATS {
					e.until = time.Now().Add(subject.AckWait)
				}
			}
		})
	}
}
