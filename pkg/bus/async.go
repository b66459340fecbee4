package bus

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/subject"
)

// Ack is the promise of an acknowledgement. It is always kept: by an error
// after four seconds, or at once when the connection is lost.
type Ack struct{ p *pendingAck }

type pendingAck struct {
	done  chan struct{}
	start time.Time
	conn  uint64 // which connection it went out on: how many there were before
	seq   uint64 // this and err are written before done is closed
	err   error
}

// Done is closed when the outcome is known.
func (a Ack) Done() <-chan struct{} { return a.p.done }

// Err returns nil when the message is stored, and why not otherwise. It must
// not be called before Done is closed. After an error the message may still
// have been stored.
func (a Ack) Err() error { return a.p.err }

// Seq returns the sequence in the stream. It must not be called before Done is closed.
func (a Ack) Seq() uint64 { return a.p.seq }

// PublishAsync is PublishAfter without a message before.
func (b *Bus) PublishAsync(subj, id string, m proto.Message) (Ack, error) {
	return b.PublishAfter(Ack{}, subj, id, m)
}

// PublishAfter sends m without waiting for the server. The caller keeps it until
// its ack; when that brings an error, it publishes m again, and all that
// followed, in order and under the same ids.
//
// prev is the ack of the message that must come before m in the stream, as that
// of the event before it. PublishAfter refuses m with ErrOutOfOrder when prev was
// not stored, or is under way on a connection that is lost: m would overtake it.
// Any error returned here means that m was not sent.
//
// With replicas one way remains: between two leaders the server refuses a
// message and takes the next one on the same connection. Readers of the run log
// go by the number in the event.
func (b *Bus) PublishAfter(prev Ack, subj, id string, m proto.Message) (Ack, error) {
	msg, err := b.durable(subj, id, m)
	if err != nil {
		return Ack{}, err
	}
	select {
	case <-b.once:
	default:
		return Ack{}, fmt.Errorf("publish on %s: %w yet", subj, ErrDisconnected)
	}
	p := &pendingAck{done: make(chan struct{}), start: time.Now(), conn: b.nc.Stats().Reconnects}
	if !prev.allows(p) {
		return Ack{}, fmt.Errorf("publish on %s: %w", subj, ErrOutOfOrder)
	}
	b.async.add(msg, p)
	// No retries by the client: they would come after later messages.
	if _, err := b.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0)); err != nil {
		b.async.take(msg)
		return Ack{}, fmt.Errorf("publish on %s: %w", subj, translate(err))
	}
	return Ack{p}, nil
}

// allows reports whether a message that goes out like next cannot overtake a's.
func (a Ack) allows(next *pendingAck) bool {
	if a.p == nil {
		return true
	}
	select {
	case <-a.p.done:
		return a.p.err == nil
	default:
		return a.p.conn == next.conn
	}
}

// asyncAcks are the promises that are not kept yet, by the message that the
// client's callbacks name. The callbacks run on the client's goroutine.
type asyncAcks struct {
	b       *Bus
	pending sync.Map // *nats.Msg → *pendingAck
}

func (a *asyncAcks) add(m *nats.Msg, p *pendingAck) { a.pending.Store(m, p) }

func (a *asyncAcks) take(m *nats.Msg) (*pendingAck, bool) {
	v, ok := a.pending.LoadAndDelete(m)
	if !ok {
		return nil, false
	}
	p, ok := v.(*pendingAck)
	return p, ok
}

func (a *asyncAcks) acked(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) {
	if p, ok := a.take(m); ok {
		p.seq = ack.Sequence
		a.settle(m, p, nil)
	}
}

func (a *asyncAcks) refused(_ jetstream.JetStream, m *nats.Msg, err error) {
	if p, ok := a.take(m); ok {
		a.settle(m, p, fmt.Errorf("publish on %s: %w", m.Subject, translate(err)))
	}
}

func (a *asyncAcks) settle(m *nats.Msg, p *pendingAck, err error) {
	p.err = err
	close(p.done)
	a.b.metrics.published(subject.Kind(m.Subject), err, time.Since(p.start))
}
