package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/subject"
)

// Publish stores m on subj and returns its sequence in the stream once the
// server has acknowledged it; a repetition of an id returns the first one's.
// Because of that id it is sent again when an answer is late or the connection
// is lost, until ctx is done (five seconds when it has no deadline). After an
// error the message may still have been stored: publish it again under the same id.
func (b *Bus) Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error) {
	ctx, cancel := atMost(ctx, requestTimeout)
	defer cancel()
	for {
		seq, err := b.publish(ctx, attemptTimeout, subj, id, m)
		if !errors.Is(err, errLate) && !errors.Is(err, ErrDisconnected) {
			return seq, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(backoff(1, resendPause, resendPause)):
		}
	}
}

const resendPause = 100 * time.Millisecond

// PublishFenced is Publish on condition that the last message on subj has the
// sequence last (0: there is none); otherwise it returns ErrFenced, and Last
// tells who was faster. It sends once and waits five seconds at most. After any
// error compare the id of Last with id: the same means that it was stored.
func (b *Bus) PublishFenced(ctx context.Context, subj, id string, last uint64, m proto.Message) (uint64, error) {
	return b.publish(ctx, requestTimeout, subj, id, m, jetstream.WithExpectLastSequencePerSubject(last))
}

func (b *Bus) publish(ctx context.Context, wait time.Duration, subj, id string, m proto.Message, opts ...jetstream.PublishOpt) (seq uint64, err error) {
	msg, err := b.durable(subj, id, m)
	if err != nil {
		return 0, err
	}
	if err := b.awaitFirst(ctx); err != nil {
		return 0, fmt.Errorf("publish on %s: %w", subj, err)
	}
	ctx, done := b.startPublish(ctx, msg)
	defer func() { done(err) }()

	asking, forget := b.onLine(ctx)
	defer forget()
	attempt, cancel := context.WithTimeout(asking, wait)
	defer cancel()
	ack, err := b.js.PublishMsg(attempt, msg, opts...)
	if err != nil {
		err = unanswered(asking, err)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
			err = fmt.Errorf("%w: %w", errLate, err)
		}
		return 0, fmt.Errorf("publish on %s: %w", subj, translate(err))
	}
	return ack.Sequence, nil
}

// durable is encode for messages that a stream keeps: they need an id.
func (b *Bus) durable(subj, id string, m proto.Message) (*nats.Msg, error) {
	if id == "" {
		return nil, fmt.Errorf("publish on %s: a durable message needs an id", subj)
	}
	return encode(subj, id, m)
}

// startPublish opens a span and puts it into the message; done ends it and counts.
func (b *Bus) startPublish(ctx context.Context, msg *nats.Msg) (context.Context, func(error)) {
	kind, start := subject.Kind(msg.Subject), time.Now()
	ctx, span := b.tracer.Start(ctx, "publish "+kind, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("messaging.system", "nats"),
		attribute.String("messaging.destination.name", msg.Subject),
	))
	b.inject(ctx, msg)
	return ctx, func(err error) {
		b.metrics.published(kind, err, time.Since(start))
		endSpan(span, err)
	}
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, clip(err.Error()))
	}
	span.End()
}
