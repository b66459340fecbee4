package sim

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/subject"
)

// jet is the model of the NATS server: its streams and its faults. The world's lock guards it.
type jet struct {
	w       *world
	streams []*stream
	down    bool // connections are broken
	lost    bool // it has lost something that it had acknowledged
	stored  []*message
}

// stream is a stream of JetStream.
type stream struct {
	name   string
	prefix string
	window time.Duration // in which an id is known
	limit  int           // messages; more are refused. 0: no limit

	msgs   []*message // by sequence
	seq    uint64
	known  map[string]*message // by id, those of the window
	state  streamState
	reader *consumer // of a work queue
}

type streamState uint8

const (
	serving    streamState = iota
	leaderless             // no leader, and requests fail at once
	silent                 // requests get no answer
)

// message is a stored message.
type message struct {
	stream  *stream
	seq     uint64
	subject string
	id      string
	schema  string
	data    []byte
	at      time.Time
}

// Bounds of package bus.
const (
	attemptTimeout = 2 * time.Second
	requestTimeout = 5 * time.Second
	resendPause    = 100 * time.Millisecond
)

var errLate = errors.New("the server did not answer in time")

const queueLimit = 40 // small, so that it is met

func newJet(w *world, partitions int) *jet {
	j := &jet{w: w}
	j.streams = append(j.streams, newQueue(w, subject.Runs, "work.run."), newQueue(w, subject.Tools, "work.tool."))
	for p := range partitions {
		j.streams = append(j.streams, &stream{name: subject.EventStream(p), prefix: fmt.Sprintf("ev.%02d.", p), window: 20 * time.Second, known: map[string]*message{}})
	}
	return j
}

func (j *jet) stream(name string) *stream {
	for _, s := range j.streams {
		if s.name == name {
			return s
		}
	}
	return nil
}

func (j *jet) streamOf(subj string) *stream {
	for _, s := range j.streams {
		if strings.HasPrefix(subj, s.prefix) {
			return s
		}
	}
	return nil
}

// last returns the newest message on a subject that was stored by then, or nil.
func (s *stream) last(subj string, then time.Time) *message {
	for _, m := range slices.Backward(s.msgs) {
		if m.subject == subj && !m.at.After(then) {
			return m
		}
	}
	return nil
}

// store handles a message as the stream's leader does.
func (j *jet) store(m message, fence *uint64) (seq uint64, err error) {
	s := m.stream
	if old := s.known[m.id]; old != nil && time.Since(old.at) < s.window {
		return old.seq, nil
	}
	if fence != nil && j.w.plant != logsUnfenced {
		at := uint64(0)
		if last := s.last(m.subject, time.Now()); last != nil {
			at = last.seq
		}
		if at != *fence {
			return 0, bus.ErrFenced
		}
	}
	if s.limit > 0 && len(s.msgs) >= s.limit {
		return 0, bus.ErrFull
	}
	if j.w.plant == acksUnstored && s.reader == nil && j.w.chance("forgets", 0.05) {
		return s.seq + 1, nil
	}
	s.seq++
	m.seq, m.at = s.seq, time.Now()
	s.msgs = append(s.msgs, &m)
	s.known[m.id] = &m
	j.stored = append(j.stored, &m)
	if s.reader != nil {
		s.reader.add(&m)
	}
	return m.seq, nil
}

// wipe loses all messages, like a lost disk.
func (j *jet) wipe() {
	j.lost = true
	for _, s := range j.streams {
		s.msgs, s.seq, s.known = nil, 0, map[string]*message{}
		if s.reader != nil {
			s.reader.wipe()
		}
	}
}

// loseTail loses the latest messages, like a server that is killed before it has synced.
func (j *jet) loseTail(d time.Duration) {
	for _, s := range j.streams {
		for len(s.msgs) > 0 && time.Since(s.msgs[len(s.msgs)-1].at) < d {
			m := s.msgs[len(s.msgs)-1]
			s.msgs = s.msgs[:len(s.msgs)-1]
			s.seq = m.seq - 1
			delete(s.known, m.id)
			if s.reader != nil {
				s.reader.drop(m)
			}
			j.lost = true
		}
	}
}

// wire is one process's connection to the bus. It replaces *bus.Bus.
type wire struct {
	w *world
	p *process
}

// errOf returns the error that p gets instead of a reply of s.
func (b wire) errOf(s *stream) error {
	switch {
	case b.w.nats.down || b.p.noNATS:
		return bus.ErrDisconnected
	case s != nil && s.state == leaderless:
		return bus.ErrNoStream
	case s != nil && s.state == silent:
		return errLate
	}
	return nil
}

// OnReconnect implements sweep.Bus: connections do not break here.
func (wire) OnReconnect(func()) (stop func()) { return func() {} }

// Publish implements runlog.Bus, outbox.Publisher and sweep.Bus.
func (b wire) Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error) {
	ctx, cancel := atMost(ctx, requestTimeout)
	defer cancel()
	for {
		seq, err := b.send(ctx, attemptTimeout, subj, id, nil, m)
		if !errors.Is(err, errLate) && !errors.Is(err, bus.ErrDisconnected) {
			return seq, err
		}
		if sleep(ctx, resendPause) != nil {
			return 0, err
		}
	}
}

// PublishFenced implements runlog.Bus.
func (b wire) PublishFenced(ctx context.Context, subj, id string, last uint64, m proto.Message) (uint64, error) {
	return b.send(ctx, requestTimeout, subj, id, &last, m)
}

// atMost bounds a context that has no deadline.
func atMost(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// send tries to publish once. The message may be stored late, and its ack may be lost.
func (b wire) send(ctx context.Context, wait time.Duration, subj, id string, fence *uint64, m proto.Message) (uint64, error) {
	data, err := proto.Marshal(m)
	if err != nil {
		return 0, err
	}
	s := b.w.nats.streamOf(subj)
	msg := message{stream: s, subject: subj, id: id, schema: string(m.ProtoReflect().Descriptor().FullName()), data: data}
	name := b.p.name + " publish " + id
	r := request{name: name, lo: 100 * time.Microsecond, hi: 2 * time.Millisecond}
	var unheard bool
	b.w.locked(func() {
		if b.w.chance(name, b.w.shape.slowBus) {
			r.lo, r.hi = 100*time.Millisecond, 3*time.Second
		}
		unheard = !b.w.calm && b.w.chance(name, b.w.shape.lostAcks)
	})
	attempt, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var seq uint64 // not read once the caller has left
	r.do = func() error {
		err := b.errOf(s)
		if err == nil {
			seq, err = b.w.nats.store(msg, fence)
		}
		b.w.note(name, brief(err))
		return err
	}
	err = b.w.request(attempt, b.p, r)
	if errors.Is(err, errLate) || err == nil && unheard {
		<-attempt.Done()
		err = attempt.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = errLate
	}
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// ask runs a read request.
func (b wire) ask(ctx context.Context, s *stream, what, subj string, do func(then time.Time)) error {
	ctx, cancel := atMost(ctx, requestTimeout)
	defer cancel()
	name := b.p.name + " " + what + " " + subj
	r := request{name: name, lo: 100 * time.Microsecond, hi: 3 * time.Millisecond}
	b.w.locked(func() {
		if b.w.chance(name, b.w.shape.slowBus) {
			r.lo, r.hi = 10*time.Millisecond, 500*time.Millisecond
		}
	})
	r.do = func() error {
		err := b.errOf(s)
		if err == nil {
			// A replica without the newest messages may reply.
			then := time.Now()
			if b.w.chance(name, b.w.shape.staleReads) {
				then = then.Add(-b.w.between(name, 0, 200*time.Millisecond))
			}
			do(then)
		}
		b.w.note(name, brief(err))
		return err
	}
	err := b.w.request(ctx, b.p, r)
	if errors.Is(err, errLate) {
		<-ctx.Done()
		err = ctx.Err()
	}
	return err
}

// Last implements runlog.Bus.
func (b wire) Last(ctx context.Context, stream, subj string) (*bus.Stored, error) {
	s := b.w.nats.stream(stream)
	var out *bus.Stored // not read once the caller has left
	err := b.ask(ctx, s, "last", subj, func(then time.Time) {
		if m := s.last(subj, then); m != nil {
			out = stored(m)
		}
	})
	if err != nil {
		return nil, err
	}
	if out == nil {
		return nil, bus.ErrNotFound
	}
	return out, nil
}

// Read implements runlog.Bus.
func (b wire) Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error] {
	return func(yield func(*bus.Stored, error) bool) {
		if after >= through {
			return
		}
		var found []*bus.Stored
		s := b.w.nats.stream(stream)
		err := b.ask(ctx, s, "read", subj, func(then time.Time) {
			for _, m := range s.msgs {
				if m.subject == subj && m.seq > after && m.seq <= through && !m.at.After(then) {
					found = append(found, stored(m))
				}
			}
		})
		if err != nil {
			yield(nil, err)
			return
		}
		for _, m := range found {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func stored(m *message) *bus.Stored {
	return &bus.Stored{Seq: m.seq, Time: m.at, Message: *received(m)}
}

func received(m *message) *bus.Message {
	return &bus.Message{Subject: m.subject, ID: m.id, Header: nats.Header{bus.SchemaHeader: {m.schema}}, Data: m.data}
}

// Subscribe implements toolbox.Bus and loop.Subscriber.
func (b wire) Subscribe(subj string, fn func(ctx context.Context, m *bus.Message)) (*bus.Subscription, error) {
	b.w.locked(func() {
		b.p.hears = append(b.p.hears, interest{strings.TrimSuffix(subj, "*"), fn})
	})
	return nil, nil
}

type interest struct {
	prefix string
	hear   func(ctx context.Context, m *bus.Message)
}

// Nudge implements toolbox.Bus. Each subscriber may miss the message.
func (b wire) Nudge(ctx context.Context, subj string, m proto.Message) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	msg := &message{subject: subj, schema: string(m.ProtoReflect().Descriptor().FullName()), data: data}
	name := b.p.name + " nudge " + subj
	return b.w.request(ctx, b.p, request{name: name, lo: 50 * time.Microsecond, hi: time.Millisecond, do: func() error {
		err := b.errOf(nil)
		b.w.note(name, brief(err))
		if err == nil {
			b.w.nats.spread(msg)
		}
		return err
	}})
}

// spread delivers a message to all subscribers of a core subject.
func (j *jet) spread(m *message) {
	for _, p := range j.w.processes {
		if p == nil || p.dead {
			continue
		}
		for _, i := range p.hears {
			name := p.name + " hears " + m.subject
			if !strings.HasPrefix(m.subject, i.prefix) || p.noNATS || !j.w.calm && j.w.chance(name, j.w.shape.lostNudges) {
				continue
			}
			wait := j.w.moment(j.w.between(name, 50*time.Microsecond, 2*time.Millisecond))
			p.work.Go(func() {
				if sleep(p.ctx, wait) == nil && p.enter(p.ctx, name) == nil {
					i.hear(p.ctx, received(m))
				}
			})
		}
	}
}

// queuesEmpty reports whether no work waits or is active.
func (j *jet) queuesEmpty() bool {
	for _, s := range j.streams {
		if s.reader != nil && len(s.reader.entries) > 0 {
			return false
		}
	}
	return true
}
