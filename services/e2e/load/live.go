package main

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/e2e/world"
)

// silent is the script of an answer that begins and then pauses for longer than a measurement: its
// runs stay open while this program publishes their events.
const silent = `
rules:
  - then:
      - say: "one"
      - wait: 590s
`

// stage has sessions with open runs, whose events this program publishes.
type stage struct {
	world   *world.World
	bus     *bus.Bus
	open    []*openRun
	members []world.Member
}

// openRun is a run in progress.
type openRun struct {
	member  world.Member
	session id.Session
	run     id.Run
	subject string
	next    int64
}

const stagePartitions = 4

// newStage starts a world with a number of replicas of each service, and sessions with one open run
// each.
func newStage(ctx context.Context, b *bench, replicas, sessions int) (s *stage, err error) {
	s = &stage{}
	if s.world, err = b.world(ctx, world.Options{Replicas: replicas, Partitions: stagePartitions}); err != nil {
		return nil, err
	}
	if err := s.fill(ctx, sessions); err != nil {
		quietly(s.close)
		return nil, err
	}
	return s, nil
}

func (s *stage) fill(ctx context.Context, sessions int) (err error) {
	if err := s.world.PutScript(ctx, "silent", silent); err != nil {
		return err
	}
	if s.bus, err = s.world.Bus(ctx, subject.AgentRunner); err != nil {
		return err
	}
	if s.members, err = s.world.NewMembers(ctx, "", "owner", sessions); err != nil {
		return err
	}
	s.open = make([]*openRun, sessions)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i, m := range s.members {
		group.Go(func() (err error) {
			s.open[i], err = s.begin(ctx, m)
			return err
		})
	}
	return group.Wait()
}

// begin creates a session with a run, and waits for the run's first word.
func (s *stage) begin(ctx context.Context, m world.Member) (*openRun, error) {
	c := s.world.Client(0, m)
	text, err := c.NewSession(ctx, "sim/silent")
	if err != nil {
		return nil, err
	}
	run, err := c.Submit(ctx, text, world.Sending{Content: "go"})
	if err != nil {
		return nil, err
	}
	stream, err := c.Watch(ctx, world.RunEvents(run.ID), "")
	if err != nil {
		return nil, err
	}
	defer quietly(stream.Close)
	for {
		e, err := stream.Next()
		if err != nil {
			return nil, fmt.Errorf("the run did not begin: %w", err)
		}
		if e.Type != "text-delta" {
			continue
		}
		o := &openRun{member: m}
		o.session, _ = id.Parse[id.Session](text)
		o.run, _ = id.Parse[id.Run](run.ID)
		ws, _ := id.Parse[id.Workspace](m.Workspace)
		o.subject = subject.Events(subject.Partition(o.session, stagePartitions), ws, o.session)
		if _, err := fmt.Sscanf(string(e.ID), "1-%d", &o.next); err != nil {
			return nil, fmt.Errorf("the event id %q: %w", e.ID, err)
		}
		o.next++
		return o, nil
	}
}

func (s *stage) close() error {
	if s.bus != nil {
		s.bus.Close()
	}
	return s.world.Close()
}

// say publishes a delta with the current time, like a runner.
func (s *stage) say(ctx context.Context, o *openRun) error {
	e := &runv1.Event{
		RunId: o.run.String(), RunOrdinal: 1, Epoch: 1, Number: o.next,
		Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: payload()}},
	}
	if _, err := s.bus.Publish(ctx, o.subject, fmt.Sprintf("%s:1:%d", o.run, o.next), e); err != nil {
		return err
	}
	o.next++
	return nil
}

// payload returns a text of a delta's usual length, with the mark.
func payload() string {
	return fmt.Sprintf("%s%d; some words of an answer", mark, time.Now().UnixNano())
}

// viewer returns the request of a session's owner.
func (s *stage) viewer(o *openRun, after string) target { return s.viewerAs(o, o.member, after) }

// viewerAs returns the request of another viewer.
func (s *stage) viewerAs(o *openRun, who world.Member, after string) target {
	u, _ := url.Parse(s.world.Gateways[0])
	header := ""
	if after != "" {
		header = "Last-Event-ID: " + after + "\r\n"
	}
	return target{u.Host, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Workspace-Id: %s\r\nAccept: text/event-stream\r\n%s\r\n",
		world.SessionEvents(o.session.String()), u.Host, who.Token, who.Workspace, header)}
}

// pace calls f about rate times a second, on some goroutines, for a while, and returns the number of
// calls.
func pace(ctx context.Context, rate int, d time.Duration, workers int, f func(ctx context.Context, worker int) error) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var count atomic.Int64
	group, inner := errgroup.WithContext(ctx)
	for w := range workers {
		group.Go(func() error {
			every := time.Duration(float64(time.Second) * float64(workers) / float64(rate))
			due := time.Now().Add(every * time.Duration(w) / time.Duration(workers))
			for {
				if wait := time.Until(due); wait > 0 {
					select {
					case <-inner.Done():
						return nil
					case <-time.After(wait):
					}
				}
				if inner.Err() != nil {
					return nil
				}
				if err := f(context.WithoutCancel(inner), w); err != nil {
					return err
				}
				count.Add(1)
				due = due.Add(every)
			}
		})
	}
	err := group.Wait()
	return int(count.Load()), err
}

// live measures the latency from a publication to the viewers' sockets and the cost of each delivered
// event, compared with nginx and nchan under the same load.
func live(ctx context.Context, b *bench) error {
	for _, l := range []struct {
		name                             string
		sessions, viewers, eventsASecond int
	}{
		{"10,000 events/s to 1,000 viewers of 100 sessions", 100, 10, 1000},
		{"100,000 events/s to 2,000 viewers of 20 sessions", 20, 100, 1000},
	} {
		ours, err := liveOurs(ctx, b, l.sessions, l.viewers, l.eventsASecond)
		if err != nil {
			return err
		}
		b.delivery(l.name+", gateway", ours)
		theirs, err := liveNchan(ctx, b, l.sessions, l.viewers, l.eventsASecond)
		if err != nil {
			fmt.Fprintf(b.out, "  nginx with nchan is left out: %v\n", err)
			continue
		}
		b.delivery(l.name+", nginx with nchan", theirs)
		b.figure(l.name+", processor time per event beside nchan's", ours.cpuPerEvent()/theirs.cpuPerEvent(), "×")
	}
	return nil
}

// delivered is the result of one load.
type delivered struct {
	events    int64
	wanted    int64
	took      time.Duration
	cpu       time.Duration
	other     map[string]time.Duration // of the other processes
	latencies sample
}

// cpuPerEvent is in microseconds.
func (d *delivered) cpuPerEvent() float64 { return milliseconds(d.cpu) * 1000 / float64(d.events) }

func (b *bench) delivery(name string, d *delivered) {
	b.figure(name+": delivered", float64(d.events)/d.took.Seconds(), "1/s")
	b.figure(name+": lost", float64(d.wanted-d.events), "")
	b.figure(name+": publish to socket, p50", milliseconds(d.latencies.quantile(0.5)), "ms")
	b.figure(name+": publish to socket, p99", milliseconds(d.latencies.quantile(0.99)), "ms")
	b.figure(name+": processor time per event", d.cpuPerEvent(), "µs")
	for part, used := range d.other {
		b.figure(name+": processor time per event, "+part, milliseconds(used)*1000/float64(d.events), "µs")
	}
}

const liveTime = 10 * time.Second

func liveOurs(ctx context.Context, b *bench, sessions, viewers, rate int) (*delivered, error) {
	s, err := newStage(ctx, b, 1, sessions)
	if err != nil {
		return nil, err
	}
	defer quietly(s.close)
	var targets []target
	for _, o := range s.open {
		for range viewers {
			targets = append(targets, s.viewer(o, ""))
		}
	}
	workers := min(sessions, 8)
	cpu := func() map[string]time.Duration { return usage(s.world) }
	return b.deliver(ctx, targets, cpu, subject.Gateway+"-1", rate, viewers, workers, func(ctx context.Context, worker, turn int) error {
		own := (sessions - worker + workers - 1) / workers // the sessions of this worker
		return s.say(ctx, s.open[worker+workers*(turn%own)])
	})
}

// deliver opens the viewers, publishes for a while and counts the deliveries.
func (b *bench) deliver(ctx context.Context, targets []target, cpu func() map[string]time.Duration, part string, rate, viewers, workers int, publish func(ctx context.Context, worker, turn int) error) (*delivered, error) {
	a, err := watch(ctx, targets)
	if err != nil {
		return nil, err
	}
	defer a.close()
	turns := make([]int, workers)
	one := func(ctx context.Context, w int) error {
		turns[w]++
		return publish(ctx, w, turns[w]-1)
	}
	warm, err := pace(ctx, rate, time.Second, workers, one)
	if err != nil {
		return nil, err
	}
	if err := a.await(ctx, int64(warm*viewers)); err != nil {
		return nil, err
	}
	a.keep.Store(true)
	before, begin := cpu(), time.Now()
	n, err := pace(ctx, rate, time.Duration(b.times(int(liveTime))), workers, one)
	if err != nil {
		return nil, err
	}
	wanted := int64((warm + n) * viewers)
	err = a.await(ctx, wanted)
	d := &delivered{
		events: a.events.Load() - int64(warm*viewers), wanted: int64(n * viewers), took: time.Since(begin), other: map[string]time.Duration{},
	}
	if err != nil {
		fmt.Fprintf(b.out, "  %v\n", err)
	}
	for name, used := range cpu() {
		switch name {
		case part:
			d.cpu = used - before[name]
		case world.NATSName:
			d.other[name] = used - before[name]
		}
	}
	a.mu.Lock()
	d.latencies = a.latencies
	a.mu.Unlock()
	return d, nil
}

// await waits for a number of events.
func (a *audience) await(ctx context.Context, events int64) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for a.events.Load() < events {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%d events of %d arrived; %d viewers were cut", a.events.Load(), events, a.cut.Load())
		}
	}
	return nil
}

// idle measures the memory of idle streams.
func idle(ctx context.Context, b *bench) error {
	for _, l := range []struct{ sessions, viewers int }{{1000, 10}, {10, 1000}} {
		if err := idleOurs(ctx, b, b.times(l.sessions), l.viewers); err != nil {
			return err
		}
	}
	return nil
}

func idleOurs(ctx context.Context, b *bench, sessions, viewers int) error {
	s, err := newStage(ctx, b, 1, sessions)
	if err != nil {
		return err
	}
	defer quietly(s.close)
	gateway := s.world.Replica(subject.Gateway, 1).PID()
	before, err := resident(gateway)
	if err != nil {
		return err
	}
	var targets []target
	for _, o := range s.open {
		for range viewers {
			targets = append(targets, s.viewer(o, ""))
		}
	}
	a, err := watch(ctx, targets)
	if err != nil {
		return err
	}
	defer a.close()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(5 * time.Second): // until the garbage of opening them is collected
	}
	after, err := resident(gateway)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d open streams of %d sessions", len(targets), sessions)
	b.figure(name+": memory of the gateway", float64(after)/(1<<20), "MiB")
	b.figure(name+": memory per stream", float64(after-before)/1024/float64(len(targets)), "KiB")
	return nil
}
