package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/subject"
)

// Ack is a pending acknowledgement. It always completes: with an error after four seconds,
// or at once when the connection is lost.
type Ack struct{ p *pendingAck }

type pendingAck struct {
	done  chan struct{}
	start time.Time
	err   error // written before done is closed
}

// Done is closed when the outcome is known.
func (a Ack) Done() <-chan struct{} { return a.p.done }

// Err returns nil if the message was stored. It must not be called before Done is closed.
// After an error the message may still have been stored.
func (a Ack) Err() error { return a.p.err }

// PublishAsync sends m without waiting for the server; it uses only the trace of ctx. It is
// for messages whose loss is noticed elsewhere, and for callers that keep unacked messages
// and send them again under the same ids. An error means that m was not sent.
//
// The client does not retry. Messages in flight together may be stored in another order:
// during a change of leader the server may refuse one and store the next.
func (b *Bus) PublishAsync(ctx context.Context, subj, id string, m proto.Message) (Ack, error) {
	msg, err := b.durable(subj, id, m)
	if err != nil {
		return Ack{}, err
	}
	b.inject(ctx, msg)
	select {
	case <-b.once:
	default:
		return Ack{}, fmt.Errorf("publish on %s: %w yet", subj, ErrDisconnected)
	}
	p := &pendingAck{done: make(chan struct{}), start: time.Now()}
	b.async.add(msg, p)
	if _, err := b.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0)); err != nil {
		b.async.take(msg)
		return Ack{}, fmt.Errorf("publish on %s: %w", subj, translate(err))
	}
	return Ack{p}, nil
}

// asyncAcks holds the pending acks by the message that the client passes to its callbacks,
// which run on its goroutine.
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

func (a *asyncAcks) acked(_ jetstream.JetStream, m *nats.Msg, _ *jetstream.PubAck) {
	if p, ok := a.take(m); ok {
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
