package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
)

// Nudge sends m to the current subscribers. It may get lost, as when the connection breaks:
// receivers must also check the truth from time to time.
func (b *Bus) Nudge(ctx context.Context, subj string, m proto.Message) (err error) {
	msg, err := encode(subj, "", m)
	if err != nil {
		return err
	}
	if err := b.awaitFirst(ctx); err != nil {
		return fmt.Errorf("nudge %s: %w", subj, err)
	}
	_, done := b.startPublish(ctx, msg)
	defer func() { done(err) }()
	if err := b.nc.PublishMsg(msg); err != nil {
		return fmt.Errorf("nudge %s: %w", subj, translate(err))
	}
	return nil
}

// Subscription is a subscription to a subject. It ends with the bus. The zero Subscription
// has ended.
type Subscription struct{ sub *nats.Subscription }

// Unsubscribe ends the subscription. It does not wait for a running callback, which is the
// last one.
func (s *Subscription) Unsubscribe() error {
	if s.sub == nil {
		return nil
	}
	if err := s.sub.Unsubscribe(); err != nil {
		return fmt.Errorf("unsubscribe %s: %w", s.sub.Subject, translate(err))
	}
	return nil
}

// Subscribe calls fn for each message on subj, which may contain wildcards, one after the
// other, on a goroutine of the subscription. fn gets the sender's trace, and a panic in it is
// logged. Up to 65,536 messages wait for fn; further ones are dropped. After Flush the server
// knows the subscription.
func (b *Bus) Subscribe(subj string, fn func(ctx context.Context, m *Message)) (*Subscription, error) {
	sub, err := b.nc.Subscribe(subj, func(m *nats.Msg) {
		ctx, span := b.tracer.Start(b.extract(context.Background(), m.Header), "receive "+subject.Kind(m.Subject),
			trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attribute.String("messaging.system", "nats")))
		defer span.End()
		msg := received(m)
		panics.Contain(ctx, b.log, "subscriber of "+subj, func() { fn(ctx, &msg) })
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subj, translate(err))
	}
	if err := sub.SetPendingLimits(65_536, 64<<20); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subj, err)
	}
	return &Subscription{sub}, nil
}

// SubscribeChan sends each message on subj to ch, which subscriptions may share and which
// must stay open as long as they do. If ch is full the client drops the message and logs it;
// a reader of the run log sees the gap (Republished). A subscription has no goroutine.
func (b *Bus) SubscribeChan(subj string, ch chan *nats.Msg) (*Subscription, error) {
	sub, err := b.nc.ChanSubscribe(subj, ch)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subj, translate(err))
	}
	return &Subscription{sub}, nil
}

// Republished decodes a message of the run log that came on a live subject. Its Subject and
// Seq are those in the log, and Prev is the sequence of the previous message on that subject
// (0: none), which reveals gaps.
func Republished(m *nats.Msg) (*Stored, error) {
	s, err := stored(m)
	if err != nil {
		return nil, err
	}
	prev := m.Header.Get(jetstream.LastSequenceHeader)
	if s.Prev, err = strconv.ParseUint(prev, 10, 64); err != nil {
		return nil, fmt.Errorf("message on %s: previous sequence %q is not a number", m.Subject, clip(prev))
	}
	return s, nil
}

// stored reads the headers that the server adds to a stored message.
func stored(m *nats.Msg) (*Stored, error) {
	s := &Stored{Message: received(m)}
	subj, seq := m.Header.Get(jetstream.SubjectHeader), m.Header.Get(jetstream.SequenceHeader)
	var err error
	if s.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil || subj == "" {
		return nil, fmt.Errorf("message on %s does not come from a stream: sequence %q, subject %q", m.Subject, clip(seq), clip(subj))
	}
	s.Subject = subj
	if s.Time, err = time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer)); err != nil {
		return nil, fmt.Errorf("message %d on %s: time: %w", s.Seq, subj, err)
	}
	return s, nil
}
