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

// Publish stores m on subj and returns its sequence in the stream once the server has acked
// it. Publishing an id again returns the first sequence, so Publish retries after a timeout
// or a lost connection until ctx is done (five seconds without a deadline). After an error
// the message may still have been stored: publish it again under the same id.
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

// PublishFenced publishes if the last message on subj has the sequence last (0: no message
// yet), and otherwise returns ErrFenced. It sends once and waits at most five seconds. After
// any error, the message was stored if Last returns one with the same id.
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

	request, release := b.inSession(ctx)
	defer release()
	attempt, cancel := context.WithTimeout(request, wait)
	defer cancel()
	ack, err := b.js.PublishMsg(attempt, msg, opts...)
	if err != nil {
		err = sessionErr(request, err)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
			err = fmt.Errorf("%w: %w", errLate, err)
		}
		return 0, fmt.Errorf("publish on %s: %w", subj, translate(err))
	}
	return ack.Sequence, nil
}

// durable encodes a message for a stream, which needs an id.
func (b *Bus) durable(subj, id string, m proto.Message) (*nats.Msg, error) {
	if id == "" {
		return nil, fmt.Errorf("publish on %s: a durable message needs an id", subj)
	}
	return encode(subj, id, m)
}

// startPublish starts a span and injects it into the message; done ends and counts it.
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
