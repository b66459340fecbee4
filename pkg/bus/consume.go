package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
)

// Delivery is a work message as a handler gets it.
type Delivery struct {
	Message
	Seq     uint64 // in the stream
	Attempt int    // 1 at the first delivery; a hint only, because some deliveries are not counted

	draining <-chan struct{}
}

// Draining is closed when the worker shuts down. A handler that can hand over its work does
// so now; the others finish. After ConsumeConfig.DrainTimeout their context is cancelled.
func (d *Delivery) Draining() <-chan struct{} { return d.draining }

// ConsumeConfig configures Consume.
type ConsumeConfig struct {
	Stream   string
	Consumer string // durable, created by Apply
	Slots    int    // concurrent handlers

	// Taken, if not nil, is a semaphore of capacity Slots that Consume shares with others: a
	// sender takes a slot, a receiver frees one. Fetching a message takes a slot, too.
	Taken chan struct{}

	// Handler works on one delivery; its error is the decision (see Consume). Its context
	// has the publisher's trace. Consume's context does not cancel it, only the end of
	// DrainTimeout does, with the cause ErrDraining.
	Handler func(ctx context.Context, d *Delivery) error

	InProgress   time.Duration // between heartbeats; 0 means subject.InProgress
	DrainTimeout time.Duration // for running handlers when ctx is done; 0 means 25 s
}

// Backoffs of a delivery whose handler failed and of a consumer that cannot be opened, and
// other timing.
const (
	handlerBackoff    = 250 * time.Millisecond
	maxHandlerBackoff = 30 * time.Second
	reopenBackoff     = 100 * time.Millisecond
	maxReopenBackoff  = 2 * time.Second
	healthyAfter      = 30 * time.Second
	minNakDelay       = 20 * time.Millisecond // a nak without a delay redelivers at once, and loops
	cancelTimeout     = 5 * time.Second       // for handlers whose context was cancelled
	ackTimeout        = time.Second           // of one attempt to ack
)

// Consume passes the messages of a durable consumer to cfg.Handler until ctx is done, at
// most cfg.Slots at a time. It fetches a message only when a slot is free, so that none waits
// here while another replica is idle. The handler's error is the decision:
//
//	nil               the message is done; the server confirms the ack
//	Terminal(err)     the message is dropped and logged as an error
//	RetryAfter(d, …)  it is redelivered after d
//	any other error   it is redelivered after a backoff, as after a panic
//
// A handler may get a message twice, even while another replica that seemed dead still works
// on it: the second time must be harmless. While the handler works, the server gets a
// heartbeat every two seconds.
//
// Consume survives restarts of the server and the deletion of the stream or the consumer: it
// waits for them with a backoff, which starts again after 30 healthy seconds.
//
// When ctx is done, Consume stops fetching, closes Delivery.Draining, and waits for the
// running handlers; after DrainTimeout it cancels their contexts. It returns nil when all
// have ended, and an error if the bus was closed or if handlers ignore the cancellation.
func (b *Bus) Consume(ctx context.Context, cfg ConsumeConfig) error {
	if cfg.Slots < 1 || cfg.Handler == nil || cfg.Stream == "" || cfg.Consumer == "" {
		return fmt.Errorf("consume %s of %s: stream, consumer, handler and at least one slot are needed", cfg.Consumer, cfg.Stream)
	}
	if cfg.InProgress <= 0 {
		cfg.InProgress = subject.InProgress
	}
	if cfg.DrainTimeout <= 0 {
		cfg.DrainTimeout = 25 * time.Second
	}
	if cfg.Taken == nil {
		cfg.Taken = make(chan struct{}, cfg.Slots)
	}
	c := &consumption{
		Bus:      b,
		cfg:      cfg,
		log:      b.log.With("stream", cfg.Stream, "consumer", cfg.Consumer),
		slots:    cfg.Taken,
		active:   map[*nats.Msg]struct{}{},
		draining: ctx.Done(),
	}
	// A series that begins at 1 has no increase: an alert would miss the first panic.
	b.metrics.deliveries.WithLabelValues(b.service, cfg.Consumer, "panic")
	return c.run(ctx)
}

// consumption is one call of Consume. It has a goroutine that fetches, one for each active
// message, and one for the heartbeats of all of them.
type consumption struct {
	*Bus
	cfg      ConsumeConfig
	log      *slog.Logger
	slots    chan struct{} // holds one element for each slot in use
	handlers sync.WaitGroup
	draining <-chan struct{}

	mu     sync.Mutex             // guards active, and that no heartbeat follows a decision
	active map[*nats.Msg]struct{} // messages whose handlers are running
}

func (c *consumption) run(ctx context.Context) error {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := make(chan struct{})
	var heartbeat sync.WaitGroup
	heartbeat.Go(func() { c.heartbeat(stop) })
	defer heartbeat.Wait()
	defer close(stop)

	err := c.fetchAll(ctx, work)
	return errors.Join(err, c.drain(cancel))
}

// fetchAll fetches until ctx is done or the bus is closed, and reopens the consumer when it
// breaks.
func (c *consumption) fetchAll(ctx, work context.Context) error {
	for failures := 0; ctx.Err() == nil; failures++ {
		opened := time.Now()
		err := c.fetch(ctx, work)
		if ctx.Err() != nil {
			return nil
		}
		if c.nc.IsClosed() {
			return fmt.Errorf("consume %s of %s: %w", c.cfg.Consumer, c.cfg.Stream, ErrClosed)
		}
		if time.Since(opened) > healthyAfter {
			failures = 0
		}
		pause := backoff(failures+1, reopenBackoff, maxReopenBackoff)
		c.log.WarnContext(ctx, "consumer interrupted", "error", err, "retry_in", pause)
		select {
		case <-ctx.Done():
		case <-c.closed:
		case <-time.After(pause):
		}
	}
	return nil
}

// fetch opens the consumer and starts a handler for each message, until ctx is done or the
// consumer breaks.
func (c *consumption) fetch(ctx, work context.Context) error {
	pull, err := c.openPuller(c.cfg.Stream, c.cfg.Consumer)
	if err != nil {
		return translate(err)
	}
	defer pull.close()
	for {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		msg, err := pull.next(ctx)
		if err != nil || msg == nil {
			<-c.slots
			return translate(err)
		}
		if ctx.Err() != nil {
			<-c.slots
			if err := msg.NakWithDelay(minNakDelay); err != nil {
				c.log.WarnContext(ctx, "message not returned", "subject", msg.Subject, "error", err)
			}
			return nil
		}
		c.start(work, msg)
	}
}

func (c *consumption) start(ctx context.Context, msg *nats.Msg) {
	gauge := c.metrics.active.WithLabelValues(c.service, c.cfg.Consumer)
	c.mu.Lock()
	c.active[msg] = struct{}{}
	c.mu.Unlock()
	gauge.Inc()
	c.handlers.Go(func() {
		defer func() {
			gauge.Dec()
			<-c.slots
		}()
		c.handle(ctx, msg)
	})
}

func (c *consumption) handle(ctx context.Context, msg *nats.Msg) {
	d := &Delivery{
		Message:  Message{Subject: msg.Subject, ID: msg.Header.Get(jetstream.MsgIDHeader), Header: msg.Header, Data: msg.Data},
		draining: c.draining,
	}
	if meta, err := msg.Metadata(); err == nil {
		d.Seq, d.Attempt = meta.Sequence.Stream, int(min(meta.NumDelivered, 1<<30))
	}
	ctx, span := c.tracer.Start(c.extract(ctx, d.Header), "consume "+subject.Kind(d.Subject),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("messaging.system", "nats"),
			attribute.String("messaging.destination.name", d.Subject),
			attribute.String("messaging.message.id", d.ID),
			attribute.Int("messaging.nats.attempt", d.Attempt),
		))
	start := time.Now()
	err := c.call(ctx, d)
	c.metrics.handling.WithLabelValues(c.service, c.cfg.Consumer).Observe(time.Since(start).Seconds())
	c.stopHeartbeat(msg)
	c.settle(ctx, msg, d, err)
	endSpan(span, err)
}

func (c *consumption) call(ctx context.Context, d *Delivery) (err error) {
	defer panics.Recover(&err)
	return c.cfg.Handler(ctx, d)
}

// settle sends the decision to the server, even if the handler's context is cancelled.
func (c *consumption) settle(ctx context.Context, msg *nats.Msg, d *Delivery, err error) {
	log := c.log.With("subject", d.Subject, "message", d.ID, "attempt", d.Attempt)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	decision, after := c.decide(d, err)
	send := func() error { return msg.NakWithDelay(after) }
	switch decision {
	case "ack":
		send = func() error {
			attempt, cancel := context.WithTimeout(ctx, ackTimeout)
			defer cancel()
			return msg.AckSync(nats.Context(attempt))
		}
	case "terminal":
		log.ErrorContext(ctx, "message dropped", "error", err)
		send = func() error { return msg.Term() }
	case "panic":
		log.ErrorContext(ctx, "handler panicked", "error", err, "retry_in", after)
	case "retry":
		log.InfoContext(ctx, "message will be redelivered", "error", err, "retry_in", after)
	default:
		log.WarnContext(ctx, "handler failed, message will be redelivered", "error", err, "retry_in", after)
	}
	if err := c.sendDecision(ctx, send); err != nil {
		decision = "unsettled"
		log.WarnContext(ctx, "decision did not reach the server, message will be redelivered", "error", err)
	}
	c.metrics.deliveries.WithLabelValues(c.service, c.cfg.Consumer, decision).Inc()
}

// sendDecision repeats send until the server replies or ctx is done, so that a short outage
// of the server does not cause a redelivery.
func (c *consumption) sendDecision(ctx context.Context, send func() error) error {
	for {
		err := translate(send())
		if !errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrNoStream) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-c.closed:
			return err
		case <-time.After(resendPause):
		}
	}
}

// decide reads the decision from a handler's error.
func (c *consumption) decide(d *Delivery, err error) (decision string, after time.Duration) {
	if err == nil {
		return "ack", 0
	}
	if IsTerminal(err) {
		return "terminal", 0
	}
	if after, ok := After(err); ok {
		return "retry", max(after, minNakDelay)
	}
	after = backoff(d.Attempt, handlerBackoff, maxHandlerBackoff)
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return "panic", after
	}
	select {
	case <-c.draining:
		after = minNakDelay // the worker stops, which is not the message's fault
	default:
	}
	return "backoff", after
}

// drain waits for the running handlers.
func (c *consumption) drain(cancel context.CancelCauseFunc) error {
	done := make(chan struct{})
	go func() { // outlives drain only with handlers that ignore the cancellation
		c.handlers.Wait()
		close(done)
	}()
	if within(done, c.cfg.DrainTimeout) {
		return nil
	}
	cancel(ErrDraining)
	if within(done, min(c.cfg.DrainTimeout, cancelTimeout)) {
		return nil
	}
	return fmt.Errorf("consume %s of %s: %d handlers still run after their context was cancelled", c.cfg.Consumer, c.cfg.Stream, len(c.slots))
}

func within(done <-chan struct{}, d time.Duration) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// heartbeat extends the ack wait of active messages.
func (c *consumption) heartbeat(stop <-chan struct{}) {
	t := time.NewTicker(c.cfg.InProgress)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		c.mu.Lock()
		for msg := range c.active {
			_ = msg.InProgress() // fails without a connection; the next heartbeat may not
		}
		c.mu.Unlock()
	}
}

// stopHeartbeat comes before the decision: a heartbeat after a nak would undo its delay.
func (c *consumption) stopHeartbeat(msg *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, msg)
}

// backoff doubles base with each attempt up to limit, and returns a random duration in the
// upper half of that, so that failures at one time are not retried at one time.
func backoff(attempt int, base, limit time.Duration) time.Duration {
	d := limit
	if n := min(max(attempt, 1)-1, 20); base<<n < limit {
		d = base << n
	}
	return d/2 + rand.N(d/2+1)
}
