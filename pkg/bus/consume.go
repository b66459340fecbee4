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

// Delivery is a work message in a handler's hand.
type Delivery struct {
	Message
	Seq     uint64 // in the stream
	Attempt int    // 1 at the first delivery. It proves nothing: some deliveries are not counted

	draining <-chan struct{}
}

// Draining is closed when the worker shuts down: a handler that can hand on its
// work at a border does so now, and the others end what they do. After
// ConsumeConfig.DrainTimeout their context is cancelled.
func (d *Delivery) Draining() <-chan struct{} { return d.draining }

// ConsumeConfig says what to consume and how.
type ConsumeConfig struct {
	Stream   string
	Consumer string // durable, made by Apply
	Slots    int    // handlers at a time

	// Taken, if it is not nil, holds an element for each slot in use, and Slots is its
	// capacity: others may take slots of the same by sending, and give them back by
	// receiving. One is held while a message is fetched.
	Taken chan struct{}

	// Handler works on one delivery; its error is the decision (see Consume).
	// Its context carries the publisher's trace and is not cancelled by that of
	// Consume, only when the time to drain is over (cause ErrDraining).
	Handler func(ctx context.Context, d *Delivery) error

	InProgress   time.Duration // between signs of life; subject.InProgress when 0
	DrainTimeout time.Duration // for handlers in hand when ctx is done; 25 s when 0
}

// Bounds of the two backoffs: of a delivery whose handler failed, and of the
// consumer when the server does not give it any.
const (
	handlerBackoff    = 250 * time.Millisecond
	maxHandlerBackoff = 30 * time.Second
	reopenBackoff     = 100 * time.Millisecond
	maxReopenBackoff  = 2 * time.Second
	healthyAfter      = 30 * time.Second
	handBackDelay     = 20 * time.Millisecond // never 0: a bare nak comes back at once, and loops
	letGoTimeout      = 5 * time.Second       // for handlers whose context was cancelled
	ackTimeout        = time.Second           // of one ack, which is sent again for requestTimeout
)

// Consume hands the messages of a durable consumer to cfg.Handler until ctx is
// done, at most cfg.Slots at a time; a message is fetched when a slot is free,
// so that none waits here while another replica is idle. What the handler
// returns is the decision:
//
//	nil               the message is done; the ack is confirmed by the server
//	Terminal(err)     the message is dropped and logged as an error
//	RetryAfter(d, …)  it comes again after d
//	any other error   it comes again after a backoff, as after a panic
//
// A handler may get a message twice, also at the same time as another replica
// that was thought dead: the second time must be harmless. While it works, the
// server hears a sign of life every two seconds.
//
// Consume survives restarts of the server and the deletion of the stream or the
// consumer: it waits for them, with a backoff that is reset after 30 s of health.
//
// When ctx is done it fetches no more, closes Delivery.Draining, and waits for
// the handlers in hand; after DrainTimeout their contexts are cancelled. It
// returns nil when all have ended, and an error when the bus was closed or
// handlers hold on for as long again (five seconds at most).
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
		inHand:   map[*nats.Msg]struct{}{},
		draining: ctx.Done(),
	}
	return c.run(ctx)
}

// consumption is one call of Consume. Its goroutine fetches; each message in
// hand has one; one more gives signs of life for all of them.
type consumption struct {
	*Bus
	cfg      ConsumeConfig
	log      *slog.Logger
	slots    chan struct{} // holds one element for each slot in use
	handlers sync.WaitGroup
	draining <-chan struct{}

	mu     sync.Mutex             // guards inHand, and that no sign of life follows a decision
	inHand map[*nats.Msg]struct{} // messages that are being worked on
}

func (c *consumption) run(ctx context.Context) error {
	work, letGo := context.WithCancelCause(context.WithoutCancel(ctx))
	defer letGo(nil)
	stop := make(chan struct{})
	var signs sync.WaitGroup
	signs.Go(func() { c.signs(stop) })
	defer signs.Wait()
	defer close(stop)

	err := c.fetchAll(ctx, work)
	return errors.Join(err, c.drain(letGo))
}

// fetchAll fetches until ctx is done or the bus is closed, and opens the
// consumer again when it breaks.
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
		c.log.WarnContext(ctx, "consumer interrupted", "error", err, "again_in", pause)
		select {
		case <-ctx.Done():
		case <-c.closed:
		case <-time.After(pause):
		}
	}
	return nil
}

// fetch opens the consumer and starts a handler for each message, until ctx is
// done or the consumer breaks.
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
			return nil // no request is open while all slots are taken
		}
		msg, err := pull.next(ctx)
		if err != nil || msg == nil {
			<-c.slots
			return translate(err)
		}
		if ctx.Err() != nil {
			<-c.slots
			c.handBack(ctx, msg)
			return nil
		}
		c.start(work, msg)
	}
}

func (c *consumption) handBack(ctx context.Context, msg *nats.Msg) {
	if err := msg.NakWithDelay(handBackDelay); err != nil {
		c.log.WarnContext(ctx, "message not given back", "subject", msg.Subject, "error", err)
	}
}

func (c *consumption) start(ctx context.Context, msg *nats.Msg) {
	gauge := c.metrics.inHand.WithLabelValues(c.service, c.cfg.Consumer)
	c.hold(msg)
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
	c.release(msg)
	c.settle(ctx, msg, d, err)
	endSpan(span, err)
}

func (c *consumption) call(ctx context.Context, d *Delivery) (err error) {
	defer panics.Recover(&err)
	return c.cfg.Handler(ctx, d)
}

// settle tells the server what was decided, also when the handler's context is cancelled.
func (c *consumption) settle(ctx context.Context, msg *nats.Msg, d *Delivery, err error) {
	log := c.log.With("subject", d.Subject, "message", d.ID, "attempt", d.Attempt)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	decision, after := c.decide(d, err)
	tell := func() error { return msg.NakWithDelay(after) } // a bare nak comes back at once, and loops
	switch decision {
	case "ack":
		tell = func() error {
			attempt, cancel := context.WithTimeout(ctx, ackTimeout)
			defer cancel()
			return msg.AckSync(nats.Context(attempt))
		}
	case "terminal":
		log.ErrorContext(ctx, "message dropped", "error", err)
		tell = func() error { return msg.Term() }
	case "panic":
		log.ErrorContext(ctx, "handler panicked", "error", err, "again_in", after)
	case "retry":
		log.InfoContext(ctx, "message comes again", "error", err, "again_in", after)
	default:
		log.WarnContext(ctx, "handler failed, message comes again", "error", err, "again_in", after)
	}
	if err := c.insist(ctx, tell); err != nil {
		decision = "unsettled"
		log.WarnContext(ctx, "decision did not reach the server, message comes again", "error", err)
	}
	c.metrics.deliveries.WithLabelValues(c.service, c.cfg.Consumer, decision).Inc()
}

// insist repeats tell until it reaches the server or ctx is done: a server that
// is back soon is no reason to do the work again.
func (c *consumption) insist(ctx context.Context, tell func() error) error {
	for {
		err := translate(tell())
		again := errors.Is(err, ErrDisconnected) || errors.Is(err, ErrNoStream) || errors.Is(err, context.DeadlineExceeded)
		if !again {
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
		return "retry", max(after, handBackDelay)
	}
	after = backoff(d.Attempt, handlerBackoff, maxHandlerBackoff)
	if _, ok := errors.AsType[*panics.Error](err); ok {
		return "panic", after
	}
	select {
	case <-c.draining:
		after = handBackDelay // this worker leaves: it says nothing about the message
	default:
	}
	return "backoff", after
}

// drain waits for the handlers in hand.
func (c *consumption) drain(letGo context.CancelCauseFunc) error {
	done := make(chan struct{})
	go func() { // outlives drain only with the handlers that hold on
		c.handlers.Wait()
		close(done)
	}()
	if within(done, c.cfg.DrainTimeout) {
		return nil
	}
	letGo(ErrDraining)
	if within(done, min(c.cfg.DrainTimeout, letGoTimeout)) {
		return nil
	}
	return fmt.Errorf("consume %s of %s: %d handlers hold on after they were told to let go", c.cfg.Consumer, c.cfg.Stream, len(c.slots))
}

func within(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// signs tells the server at intervals that what is in hand is being worked on.
func (c *consumption) signs(stop <-chan struct{}) {
	t := time.NewTicker(c.cfg.InProgress)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		c.mu.Lock()
		for msg := range c.inHand {
			_ = msg.InProgress() // without a connection there is nobody to tell; the next one does
		}
		c.mu.Unlock()
	}
}

func (c *consumption) hold(msg *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inHand[msg] = struct{}{}
}

// release ends the signs of life before a decision is sent: one that came after
// a nak would undo its delay.
func (c *consumption) release(msg *nats.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inHand, msg)
}

// backoff doubles base with each attempt up to limit, and takes a random part
// of the upper half, so that what failed together does not come again together.
func backoff(attempt int, base, limit time.Duration) time.Duration {
	d := limit
	if n := min(max(attempt, 1)-1, 20); base<<n < limit {
		d = base << n
	}
	return d/2 + rand.N(d/2+1)
}
