package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

const (
	// failoverRate is the number of events per second of a session.
	failoverRate = 5
	// failoverKills is the number of gateways that are killed, one after the other.
	failoverKills = 4
	// spread is the time over which viewers reconnect.
	spread = 250 * time.Millisecond
	// failoverPause is the pause between two failovers.
	failoverPause = 2 * time.Second
)

// failover measures how long viewers get no events when their gateway is killed (kill -9) or stopped
// (SIGTERM) and all of them resume at another one with the id of their last event. Each must
// continue with the next event.
func failover(ctx context.Context, b *bench) error {
	s, err := newStage(ctx, b, 2, b.times(100))
	if err != nil {
		return err
	}
	defer quietly(s.close)
	c, err := s.crowd(ctx, 20)
	if err != nil {
		return err
	}
	defer c.close()
	saying := c.keepSaying(ctx)
	kills := failoverKills
	if b.brief {
		kills = 1
	}
	var away, behind sample
	for range kills {
		out, err := c.leave(ctx, (*world.Proc).Kill)
		if err != nil {
			return errors.Join(err, saying())
		}
		for _, r := range out.returns {
			away = append(away, r.back.Sub(out.begun))
			behind = append(behind, r.back.Sub(r.asked))
		}
	}
	stopped, err := c.leave(ctx, (*world.Proc).Stop)
	if err := errors.Join(err, saying()); err != nil {
		return err
	}
	if err := c.compare(ctx); err != nil {
		return err
	}
	name := fmt.Sprintf("gateway killed under %d streams of %d sessions", len(c.viewers), len(s.open))
	b.times3(name+": kill to next event", away)
	b.times3(name+": request to next event", behind)
	b.figure(name+": kills", float64(kills), "")
	b.figure(name+": requests that were repeated", float64(c.repeated.Load()), "")
	name = fmt.Sprintf("gateway stopped under %d streams", len(c.viewers))
	pauses := make(sample, len(stopped.returns))
	for i, r := range stopped.returns {
		pauses[i] = r.back.Sub(r.cut)
	}
	b.times3(name+": cut to next event", pauses)
	b.figure(name+": SIGTERM to the last one back", milliseconds(stopped.last()), "ms")
	b.figure(name+": SIGTERM to its end", milliseconds(stopped.ended), "ms")
	b.figure("events that came, each once and in order", float64(c.events.Load()), "")
	return nil
}

// times3 formats a sample.
func (b *bench) times3(name string, s sample) {
	b.figure(name+", p50", milliseconds(s.quantile(0.5)), "ms")
	b.figure(name+", p99", milliseconds(s.quantile(0.99)), "ms")
	b.figure(name+", max", milliseconds(s.quantile(1)), "ms")
}

// crowd is a set of viewers that reconnect, each in a goroutine, to the gateway home.
type crowd struct {
	stage   *stage
	viewers []*returner
	first   map[*openRun]int64 // the number of the first event that is counted
	group   sync.WaitGroup
	stop    context.CancelFunc
	home    atomic.Int32 // index of the gateway to connect to

	events   atomic.Int64
	repeated atomic.Int64 // requests without a response

	mu      sync.Mutex // guards the rest
	returns []comeback
	wrong   error         // the first violation
	changed chan struct{} // closed and replaced when either changes
}

// comeback is a viewer's reconnect.
type comeback struct {
	cut   time.Time // when its connection broke
	asked time.Time // when the successful request was sent
	back  time.Time // when the next event arrived
}

// crowd opens a number of viewers of each session, all different members, at the first gateway.
func (s *stage) crowd(ctx context.Context, each int) (*crowd, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &crowd{stage: s, stop: stop, first: map[*openRun]int64{}, changed: make(chan struct{})}
	for _, o := range s.open {
		people, err := s.world.NewMembers(ctx, o.member.Workspace, "viewer", each)
		if err != nil {
			stop()
			return nil, err
		}
		c.first[o] = o.next
		for _, who := range people {
			c.viewers = append(c.viewers, &returner{crowd: c, open: o, who: who, last: o.next - 1})
		}
	}
	var opening errgroup.Group
	opening.SetLimit(32)
	for _, v := range c.viewers {
		opening.Go(func() error { return v.connect(ctx) })
	}
	if err := opening.Wait(); err != nil {
		stop() // closes the connections
		return nil, err
	}
	for _, v := range c.viewers {
		c.group.Go(func() { v.watch(ctx) })
	}
	return c, nil
}

func (c *crowd) close() {
	c.stop()
	c.group.Wait()
}

// keepSaying publishes events of all sessions until the returned function is called, which returns
// the error.
func (c *crowd) keepSaying(ctx context.Context) (enough func() error) {
	ctx, stop := context.WithCancel(ctx)
	open := c.stage.open
	workers := min(len(open), 8)
	turns := make([]int, workers)
	said := make(chan error, 1)
	go func() {
		_, err := pace(ctx, failoverRate*len(open), time.Hour, workers, func(ctx context.Context, w int) error {
			own := (len(open) - w + workers - 1) / workers // the sessions of this worker
			turns[w]++
			return c.stage.say(ctx, open[w+workers*(turns[w]%own)])
		})
		said <- err
	}()
	return func() error {
		stop()
		return <-said
	}
}

// departure is the effect of a gateway's end on its viewers.
type departure struct {
	begun   time.Time
	returns []comeback
	ended   time.Duration // until the process had ended
}

// last returns the time until all viewers were back.
func (d *departure) last() (last time.Duration) {
	for _, r := range d.returns {
		last = max(last, r.back.Sub(d.begun))
	}
	return last
}

// leave ends the viewers' gateway, waits until all have resumed at the other one, and restarts it.
func (c *crowd) leave(ctx context.Context, end func(*world.Proc) error) (*departure, error) {
	if err := wait(ctx, failoverPause); err != nil {
		return nil, err
	}
	if early := c.takeReturns(); len(early) > 0 {
		return nil, fmt.Errorf("%d viewers were cut for no reason", len(early))
	}
	from := c.home.Load()
	victim := c.stage.world.Replica(subject.Gateway, int(from)+1)
	c.home.Store(1 - from)
	d := &departure{begun: time.Now()}
	ended := make(chan error, 1)
	go func() {
		err := end(victim)
		d.ended = time.Since(d.begun)
		ended <- err
	}()
	err := c.await(ctx, func() bool { return len(c.returns) >= len(c.viewers) })
	if err := errors.Join(err, <-ended); err != nil {
		return nil, err
	}
	if d.returns = c.takeReturns(); len(d.returns) != len(c.viewers) {
		return nil, fmt.Errorf("%d viewers resumed %d times", len(c.viewers), len(d.returns))
	}
	if err := victim.Restart(); err != nil {
		return nil, err
	}
	return d, victim.Ready(ctx)
}

func (c *crowd) takeReturns() (returns []comeback) {
	c.mu.Lock()
	defer c.mu.Unlock()
	returns, c.returns = c.returns, nil
	return returns
}

// compare waits until every viewer has the last event of its session. The viewers themselves check
// that no event is missing or duplicated.
func (c *crowd) compare(ctx context.Context) error {
	var want int64
	for _, v := range c.viewers {
		want += v.open.next - c.first[v.open]
	}
	if err := c.await(ctx, func() bool { return c.events.Load() >= want }); err != nil {
		return err
	}
	if got, cut := c.events.Load(), len(c.takeReturns()); got != want || cut > 0 {
		return fmt.Errorf("%d events arrived, want %d; %d viewers were cut for no reason", got, want, cut)
	}
	return nil
}

// await waits until ok, which is called with the lock, returns true.
func (c *crowd) await(ctx context.Context, ok func() bool) error {
	deadline := time.NewTimer(world.Timeout)
	defer deadline.Stop()
	look := time.NewTicker(50 * time.Millisecond) // not every event signals a change
	defer look.Stop()
	for {
		c.mu.Lock()
		done, err, changed, n := ok(), c.wrong, c.changed, len(c.returns)
		c.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("%d of %d viewers have resumed, %d events arrived", n, len(c.viewers), c.events.Load())
		}
	}
}

// note records a comeback or a violation.
func (c *crowd) note(r *comeback, wrong error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r != nil {
		c.returns = append(c.returns, *r)
	}
	if c.wrong == nil {
		c.wrong = wrong
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// returner is a viewer of a session that reconnects whenever it is cut.
type returner struct {
	crowd *crowd
	open  *openRun
	who   world.Member
	last  int64         // number of the last event that it has
	lines *bufio.Reader // of its connection
	leave func()        // ends the connection
}

// watch reads events until ctx is done.
func (v *returner) watch(ctx context.Context) {
	defer func() { v.leave() }()
	var way *comeback
	for {
		v.read(way)
		v.leave()
		if ctx.Err() != nil {
			return
		}
		way = &comeback{cut: time.Now()}
		// Like a well-behaved client: at once, with jitter.
		for most := spread; ; most = min(2*most, 4*spread) {
			if wait(ctx, rand.N(most)) != nil {
				return
			}
			way.asked = time.Now()
			if err := v.connect(ctx); err == nil {
				break
			}
			v.crowd.repeated.Add(1)
		}
	}
}

// connect requests the events after the last one, and reads the response's status.
func (v *returner) connect(ctx context.Context) error {
	gateway, err := url.Parse(v.crowd.stage.world.Gateways[v.crowd.home.Load()])
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", gateway.Host)
	if err != nil {
		return err
	}
	forget := context.AfterFunc(ctx, func() { _ = conn.Close() })
	v.lines, v.leave = bufio.NewReaderSize(conn, 2048), func() {
		forget()
		_ = conn.Close() // nothing was written
	}
	if err := v.ask(conn); err != nil {
		v.leave()
		return err
	}
	return nil
}

func (v *returner) ask(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	t := v.crowd.stage.viewerAs(v.open, v.who, fmt.Sprintf("1-%d", v.last))
	if _, err := conn.Write([]byte(t.request)); err != nil {
		return err
	}
	status, err := v.lines.ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.Contains(status, " 200 ") {
		return fmt.Errorf("open a stream: %s", strings.TrimSpace(status))
	}
	return conn.SetDeadline(time.Time{})
}

// read reads events until the connection ends; the first ends a way back.
func (v *returner) read(way *comeback) {
	for {
		line, err := v.lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		id, ok := bytes.CutPrefix(line, []byte("id: "))
		if !ok {
			continue
		}
		digits, ok := bytes.CutPrefix(bytes.TrimSpace(id), []byte("1-"))
		number, err := strconv.ParseInt(string(digits), 10, 64)
		if !ok || err != nil || number != v.last+1 {
			v.crowd.note(nil, fmt.Errorf("after event %d of session %s: %q", v.last, v.open.session, id))
			return
		}
		v.last = number
		v.crowd.events.Add(1)
		if way != nil {
			way.back = time.Now()
			v.crowd.note(way, nil)
			way = nil
		}
	}
}

// wait waits for a while, or returns ctx's error.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
