//go:build unix

package feed

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// This file has the models around the feeds of a simulated world: the run log, a gateway's connection
// to it, agent-runner with its record of the log, and sockets.

// logged is a message of the log.
type logged struct {
	seq, prev uint64
	at        time.Time
	data      []byte
}

// runLog is the stream of one session, as JetStream keeps it.
type runLog struct {
	created time.Time
	first   uint64
	last    uint64 // of all messages, including those of other sessions
	msgs    []*logged
}

// stored returns a message as a read returns it.
func (l *logged) stored(subj string) *bus.Stored {
	return &bus.Stored{
		Message: bus.Message{Subject: subj, Header: nats.Header{bus.SchemaHeader: {"signalbox.run.v1.Event"}}, Data: l.data},
		Seq:     l.seq, Time: l.at,
	}
}

// live returns a message as JetStream republishes it.
func (l *logged) live(liveSubj, subj string) *nats.Msg {
	return &nats.Msg{Subject: liveSubj, Data: l.data, Header: nats.Header{
		bus.SchemaHeader: {"signalbox.run.v1.Event"}, "Nats-Subject": {subj}, "Nats-Sequence": {strconv.FormatUint(l.seq, 10)},
		"Nats-Last-Sequence": {strconv.FormatUint(l.prev, 10)}, "Nats-Time-Stamp": {l.at.Format(time.RFC3339Nano)},
	}}
}

// simBus is one gateway's connection to the bus.
type simBus struct {
	w    *simWorld
	name string

	// Guarded by the world's mutex.
	up      bool
	lose    int           // the next live messages to lose
	lag     time.Duration // of the answering replica
	in      map[string]chan *nats.Msg
	arrival time.Time // of the last live message in transit
	again   []func()  // callbacks of OnReconnect
}

var errOffline = errors.New("the bus cannot be reached")

// request takes some time. While the gateway is offline it fails, at once or when ctx ends.
func (b *simBus) request(ctx context.Context) error {
	if err := pause(ctx, b.w.latency(b.name)); err != nil {
		return err
	}
	b.w.mu.Lock()
	up, hangs := b.up, b.w.random(b.name).IntN(2) == 0
	b.w.mu.Unlock()
	switch {
	case up:
		return nil
	case hangs:
		<-ctx.Done()
		return ctx.Err()
	}
	return errOffline
}

// deliver sends a live message to the gateway, in order. The world's mutex is held.
func (b *simBus) deliver(m *logged) {
	at := b.arrival
	if now := time.Now().Add(b.w.latency(b.name + " live")); now.After(at) {
		at = now
	}
	b.arrival = at.Add(1)
	log := b.w.log
	time.AfterFunc(time.Until(at), func() {
		b.w.mu.Lock()
		lost := !b.up || b.lose > 0 || b.w.log != log // a server that loses its log restarts
		b.lose = max(0, b.lose-1)
		ch := b.in[b.w.live]
		b.w.mu.Unlock()
		if ch != nil && !lost {
			ch <- m.live(b.w.live, b.w.subj)
		}
	})
}

func (b *simBus) SubscribeChan(subj string, ch chan *nats.Msg) (*bus.Subscription, error) {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.in[subj] = ch
	return &bus.Subscription{}, nil
}

func (b *simBus) OnReconnect(fn func()) func() {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	b.again = append(b.again, fn)
	return func() {}
}

func (b *simBus) Connected() bool {
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	return b.up
}

func (b *simBus) Flush(ctx context.Context) error { return b.request(ctx) }

func (b *simBus) Stream(ctx context.Context, _ string) (bus.StreamState, error) {
	if err := b.request(ctx); err != nil {
		return bus.StreamState{}, err
	}
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	l := b.w.log
	return bus.StreamState{Created: l.created, First: l.first, Last: l.last}, nil
}

// visible returns the messages that the answering replica has. The world's mutex is held.
func (b *simBus) visible() []*logged {
	l := b.w.log
	until := time.Now().Add(-min(b.lag, time.Since(l.created)))
	n := len(l.msgs)
	for n > 0 && l.msgs[n-1].at.After(until) {
		n--
	}
	return l.msgs[:n]
}

func (b *simBus) Last(ctx context.Context, _, subj string) (*bus.Stored, error) {
	if err := b.request(ctx); err != nil {
		return nil, err
	}
	b.w.mu.Lock()
	defer b.w.mu.Unlock()
	msgs := b.visible()
	if len(msgs) == 0 {
		return nil, bus.ErrNotFound
	}
	return msgs[len(msgs)-1].stored(subj), nil
}

func (b *simBus) Read(ctx context.Context, _, subj string, after, through uint64) iter.Seq2[*bus.Stored, error] {
	return func(yield func(*bus.Stored, error) bool) {
		if err := b.request(ctx); err != nil {
			yield(nil, err)
			return
		}
		b.w.mu.Lock()
		msgs := slices.Clone(b.visible())
		b.w.mu.Unlock()
		for _, m := range msgs {
			if m.seq > after && m.seq <= through && !yield(m.stored(subj), nil) {
				return
			}
		}
	}
}

// simSource is agent-runner: its rows, and its record of the log.
type simSource struct {
	w    *simWorld
	name string
}

func (s *simSource) request(ctx context.Context) error {
	if err := pause(ctx, s.w.latency(s.name)); err != nil {
		return err
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.outage {
		return fault.New(fault.Unavailable, "agent-runner cannot be reached")
	}
	return nil
}

func (s *simSource) Run(ctx context.Context, run id.Run) (*agentv1.Run, error) {
	if err := s.request(ctx); err != nil {
		return nil, err
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for _, r := range s.w.runs {
		if r.id == run {
			return r.row(), nil
		}
	}
	return nil, fault.New(fault.NotFound, "no such run")
}

func (s *simSource) Snapshot(ctx context.Context, _ id.Session) (Snapshot, error) {
	if err := s.request(ctx); err != nil {
		return Snapshot{}, err
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	c := s.w.contents()
	data := fmt.Sprintf(`{"type":"snapshot","contents":[%d,%d,%d,%d]}`, c.last.Run, c.last.Number, c.active, c.committed)
	return Snapshot{Data: []byte(data), Contents: c}, nil
}

func (s *simSource) Events(ctx context.Context, _ id.Session, from Position, page string) ([]*agentv1.LoggedEvent, string, error) {
	if err := s.request(ctx); err != nil {
		return nil, "", err
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	record := s.w.record
	begin, _ := strconv.Atoi(page)
	if page == "" {
		begin = slices.IndexFunc(record, func(e *agentv1.LoggedEvent) bool {
			return e.GetEvent().GetRunOrdinal() == from.Run && e.GetEvent().GetNumber() == from.Number
		})
		if begin < 0 {
			return nil, "", fault.New(fault.NotFound, "no such event")
		}
	}
	end := min(len(record), begin+5)
	next := ""
	if end < len(record) {
		next = strconv.Itoa(end)
	}
	return record[begin:end], next, nil
}

// simRun is a run and its row.
type simRun struct {
	id        id.Run
	ordinal   int64
	epoch     int64 // of the current claim
	next      int64 // number of its next event
	committed int64 // its newest committed event, -1 for none
	ended     bool
	waits     bool // its end is in the outbox
}

func (r *simRun) row() *agentv1.Run {
	row := &agentv1.Run{Id: r.id.String(), Ordinal: r.ordinal, State: agentv1.RunState_RUN_STATE_RUNNING, EndWaits: r.waits, FullText: endText(r.ordinal)}
	if r.ended {
		row.State = agentv1.RunState_RUN_STATE_DONE
	}
	if r.committed >= 0 {
		row.LastEvent = &r.committed
	}
	return row
}

func endText(ordinal int64) string { return fmt.Sprint("end of run ", ordinal) }

// canonical is an event of the canonical order.
type canonical struct {
	pos       Position
	text      string // of its data
	end       bool
	published bool
	recorded  bool
	log       *runLog   // the log on which it was published
	lostAt    time.Time // when that log was lost; zero if it was not
}

// publish stores an event on the log and delivers it. The world's mutex is held.
func (w *simWorld) publish(e *runv1.Event) *logged {
	data, err := proto.Marshal(e)
	if err != nil {
		panic(err)
	}
	m := &logged{seq: w.log.last + 1 + uint64(w.script.IntN(20)), at: time.Now(), data: data} // other sessions' messages are in between
	if n := len(w.log.msgs); n > 0 {
		m.prev = w.log.msgs[n-1].seq
	}
	w.log.last = m.seq
	if w.log.first == 0 {
		w.log.first = m.seq
	}
	w.log.msgs = append(w.log.msgs, m)
	for _, g := range w.gateways {
		g.bus.deliver(m)
	}
	w.note("publish %d: %d-%d epoch %d", m.seq, e.GetRunOrdinal(), e.GetNumber(), e.GetEpoch())
	return m
}

// publishCanonical publishes an event of the canonical order, which is recorded a moment later unless
// the log is lost first. The world's mutex is held.
func (w *simWorld) publishCanonical(e *runv1.Event, c *canonical) {
	m, log := w.publish(e), w.log
	c.published, c.log = true, log
	at := w.recorded
	if now := time.Now().Add(200*time.Millisecond + time.Duration(w.script.IntN(int(time.Second)))); now.After(at) {
		at = now
	}
	w.recorded = at.Add(1)
	time.AfterFunc(time.Until(at), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.log == log {
			c.recorded = true
			w.note("recorded %s", c.pos)
			w.record = append(w.record, &agentv1.LoggedEvent{Event: e, Sequence: m.seq, StreamCreated: timestamppb.New(log.created)})
		}
	})
}

// loseLog replaces the log with an empty one. A snapshot may stand for its events, even for
// the recorded ones: a gateway that was disconnected finds a hole. The world's mutex is held.
func (w *simWorld) loseLog() {
	for _, c := range w.canon {
		if c.log == w.log {
			c.lostAt = time.Now()
		}
	}
	w.log = &runLog{created: time.Now()}
}

// expire removes old messages from the log. The world's mutex is held.
func (w *simWorld) expire() {
	l := w.log
	for len(l.msgs) > 0 && time.Since(l.msgs[0].at) > 3*time.Second {
		l.msgs = l.msgs[1:]
	}
	l.first = l.last + 1
	if len(l.msgs) > 0 {
		l.first = l.msgs[0].seq
	}
}

// contents returns what the rows contain. The world's mutex is held.
func (w *simWorld) contents() Contents {
	last := &agentv1.EventPosition{}
	var active *agentv1.Run
	for _, r := range w.runs {
		if r.committed >= 0 {
			last = &agentv1.EventPosition{RunOrdinal: r.ordinal, Number: r.committed}
		}
		if !r.ended {
			active = r.row()
		}
	}
	return ContentsOf(last, active)
}

// simConn is the gateway's end of a socket pair. Its blocking operations take the bubble's
// time.
type simConn struct {
	mu       sync.Mutex // guards the rest
	fd       int        // -1 once closed
	deadline time.Time
	aborted  bool
}

// socketPair returns a connection and the client's descriptor.
func socketPair() (*simConn, int, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, 0, err
	}
	for _, fd := range fds {
		err = errors.Join(err, syscall.SetNonblock(fd, true), syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 4096))
	}
	return &simConn{fd: fds[0]}, fds[1], err
}

// control calls f with the open descriptor.
func (c *simConn) control(f func(fd uintptr)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(c.fd))
	return nil
}

// simRaw is the syscall.RawConn of a connection.
type simRaw struct{ c *simConn }

func (r simRaw) Control(f func(fd uintptr)) error { return r.c.control(f) }
func (r simRaw) Read(func(uintptr) bool) error    { return errors.ErrUnsupported }
func (r simRaw) Write(func(uintptr) bool) error   { return errors.ErrUnsupported }

func (c *simConn) Read([]byte) (int, error)        { return 0, errors.ErrUnsupported }
func (c *simConn) LocalAddr() net.Addr             { return nil }
func (c *simConn) RemoteAddr() net.Addr            { return nil }
func (c *simConn) SetDeadline(time.Time) error     { return errors.ErrUnsupported }
func (c *simConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

func (c *simConn) SetLinger(int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	return nil
}

func (c *simConn) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = at
	return nil
}

func (c *simConn) Write(p []byte) (n int, err error) {
	for n < len(p) {
		m, late := 0, false
		if cerr := c.control(func(fd uintptr) {
			m, err = ignoringEINTR(syscall.Write, int(fd), p[n:])
			late = !c.deadline.IsZero() && time.Now().After(c.deadline)
		}); cerr != nil {
			return n, cerr
		}
		switch {
		case err == nil:
			n += m
		case !errors.Is(err, syscall.EAGAIN):
			return n, err
		case late:
			return n, os.ErrDeadlineExceeded
		default:
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // of the bubble's time
		}
	}
	return n, nil
}

func (c *simConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return net.ErrClosed
	}
	fd := c.fd
	c.fd = -1
	return syscall.Close(fd)
}

// random returns random numbers for a purpose at the current time. They do not depend on the order in
// which goroutines run.
func (w *simWorld) random(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name) // does not fail
	return rand.New(rand.NewPCG(w.seed^h.Sum64(), uint64(time.Since(w.start))))
}

// latency returns the time that a message or a request takes.
func (w *simWorld) latency(name string) time.Duration {
	r := w.random(name)
	most := 3 * time.Millisecond
	if r.IntN(20) == 0 {
		most = 150 * time.Millisecond
	}
	return time.Duration(1 + r.Int64N(int64(most)))
}
