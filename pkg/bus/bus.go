// Package bus carries protobuf messages over NATS: durably over JetStream, as
// nudges over core NATS.
//
// What a reader must know:
//
//   - Postgres is the truth. A work message says that there is something to do,
//     an event shows how far it is. Anything here may come twice, and everything
//     may be lost with the server's disk.
//   - A durable message has an id. Publishing it again under the same id within
//     the stream's window is harmless.
//   - A work-queue handler's error is the delivery decision: nil acks, Terminal
//     drops, RetryAfter waits, anything else backs off. See Consume.
//   - Each message names its schema and carries the W3C trace context in its
//     headers. Decode refuses another schema than the one expected, for good.
//
// One Bus is one connection; WithoutEcho opens another. It reconnects for as long as it
// lives, so services and servers start in any order. Goroutines: the NATS client's own,
// which Close ends, and those of Consume and Streams.Run, which wait for theirs. If the process dies, work
// that was in hand is delivered to somebody else after subject.AckWait.
package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/subject"
)

// Bounds on what a call waits for when its context says nothing.
const (
	attemptTimeout = 2 * time.Second  // one ack of Publish, which sends again
	requestTimeout = 5 * time.Second  // one answer of the server
	asyncTimeout   = 4 * time.Second  // an ack of PublishAsync; one in flight when a leader dies never comes
	closeTimeout   = 10 * time.Second // Close, for what is on its way
	asyncPending   = 16_384           // PublishAsync, messages without an ack
)

// Config says how to connect.
type Config struct {
	URL      string      // nats://host:port, several separated by commas; not used in process
	Service  string      // names the connection, the inbox and, unless User does, the user
	User     string      // Service when empty
	Password conf.Secret // no login when empty

	Conn       []nats.Option                 // applied last, such as natsd's for a connection in process
	Log        *slog.Logger                  // required
	Metrics    prometheus.Registerer         // nil: none
	Tracer     trace.TracerProvider          // nil: the global one
	Propagator propagation.TextMapPropagator // nil: W3C trace context
}

// Bus is a connection to NATS. Its methods may be called from any goroutine.
type Bus struct {
	cfg       Config
	service   string
	nc        *nats.Conn
	js        jetstream.JetStream
	log       *slog.Logger
	metrics   *metrics
	tracer    trace.Tracer
	propagate propagation.TextMapPropagator
	async     asyncAcks

	connected func()        // called at the first connection
	once      chan struct{} // closed then
	closed    chan struct{} // closed when the connection is gone for good

	mu      sync.Mutex           // guards what follows
	lines   lines                // what waits for an answer
	lastErr error                // why it is not connected, for Ready
	again   map[*func()]struct{} // called at each reconnect
}

// Connect returns a bus. It does not wait for a server: one that is not there
// yet is tried again in the background for ever, and Ready tells. An error
// means that the configuration is wrong. The caller closes the bus.
func Connect(ctx context.Context, cfg Config) (*Bus, error) {
	if cfg.Service == "" {
		return nil, errors.New("connect to NATS: the service has no name")
	}
	if cfg.URL == "" && len(cfg.Conn) == 0 {
		return nil, errors.New("connect to NATS: no address; give one such as nats://127.0.0.1:4222")
	}
	if cfg.Log == nil {
		return nil, errors.New("connect to NATS: no logger")
	}
	b := &Bus{
		cfg:       cfg,
		service:   cfg.Service,
		log:       cfg.Log,
		metrics:   newMetrics(cfg.Metrics, cfg.Service),
		propagate: cfg.Propagator,
		once:      make(chan struct{}),
		closed:    make(chan struct{}),
		again:     map[*func()]struct{}{},
		lines:     newLines(),
	}
	b.async.b = b
	b.connected = sync.OnceFunc(func() { close(b.once) })
	if b.propagate == nil {
		b.propagate = propagation.TraceContext{}
	}
	tracers := cfg.Tracer
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	b.tracer = tracers.Tracer("signalbox.dev/pkg/bus")

	var err error
	if b.nc, err = nats.Connect(cfg.URL, b.options(ctx, cfg)...); err != nil {
		if _, ok := errors.AsType[*url.Error](err); ok { // the cause quotes it
			err = errors.New("an address (NATS_URL) does not parse: want nats://127.0.0.1:4222, with special characters of a password percent-encoded")
		}
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	if b.nc.IsConnected() {
		b.connected()
	}
	b.js, err = jetstream.New(b.nc,
		jetstream.WithDefaultTimeout(requestTimeout),
		jetstream.WithPublishAsyncTimeout(asyncTimeout),
		jetstream.WithPublishAsyncMaxPending(asyncPending),
		jetstream.WithPublishAsyncAckHandler(b.async.acked),
		jetstream.WithPublishAsyncErrHandler(b.async.refused),
	)
	if err != nil {
		b.nc.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return b, nil
}

// WithoutEcho returns a bus over a connection of its own, as this one's was configured,
// on which it does not hear what it sends itself: the server does not send that back. The
// caller closes it.
func (b *Bus) WithoutEcho(ctx context.Context) (*Bus, error) {
	cfg := b.cfg
	cfg.Conn = append(slices.Clone(cfg.Conn), nats.NoEcho())
	return Connect(ctx, cfg)
}

func (b *Bus) options(ctx context.Context, cfg Config) []nats.Option {
	ctx = context.WithoutCancel(ctx) // the callbacks log for as long as the bus lives
	opts := []nats.Option{
		nats.Name(cfg.Service),
		nats.CustomInboxPrefix(subject.InboxPrefix(cfg.Service)),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		// Nothing is kept for after a reconnect: it would overtake what was lost
		// with the connection and is published again.
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(), // a password may be right tomorrow
		nats.Timeout(requestTimeout),
		nats.PingInterval(2 * time.Second), // a line that went silent is given up after 6 s
		nats.MaxPingsOutstanding(2),
		nats.DrainTimeout(closeTimeout),
		nats.ConnectHandler(func(nc *nats.Conn) {
			b.connected()
			b.log.InfoContext(ctx, "connected to nats", "address", nc.ConnectedUrlRedacted())
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.metrics.reconnects.Inc()
			b.log.InfoContext(ctx, "reconnected to nats", "address", nc.ConnectedUrlRedacted())
			b.announce()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.setErr(err)
			b.lose()
			if err != nil {
				b.log.WarnContext(ctx, "nats connection lost", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { b.setErr(err) }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subj := ""
			if sub != nil {
				subj = sub.Subject
			}
			b.log.WarnContext(ctx, "nats reports an error", "subject", subj, "error", err)
		}),
		nats.ClosedHandler(func(*nats.Conn) {
			b.lose()
			close(b.closed)
		}),
	}
	if cfg.Password != "" {
		user := cfg.User
		if user == "" {
			user = cfg.Service
		}
		opts = append(opts, nats.UserInfo(user, cfg.Password.Reveal()))
	}
	return append(opts, cfg.Conn...)
}

func (b *Bus) setErr(err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastErr = err
}

// OnReconnect has fn called each time the connection was lost and is back: what
// was sent on core subjects meanwhile did not come. The server knows of all
// subscriptions before it hears what fn asks. fn runs on a goroutine of the client
// and must not wait. After stop it is not called any more, but for a call that has
// begun.
func (b *Bus) OnReconnect(fn func()) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := &fn
	b.again[key] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.again, key)
	}
}

func (b *Bus) announce() {
	b.mu.Lock()
	all := slices.Collect(maps.Keys(b.again))
	b.mu.Unlock()
	for _, fn := range all {
		(*fn)()
	}
}

// Connected reports whether there is a connection, as far as is known without asking.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// Ready returns nil when the server answers on this connection. Without a
// deadline in ctx it waits two seconds for that.
func (b *Bus) Ready(ctx context.Context) error {
	if !b.nc.IsConnected() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.lastErr != nil {
			return fmt.Errorf("not connected to NATS: %w", b.lastErr)
		}
		return errors.New("not connected to NATS")
	}
	ctx, cancel := atMost(ctx, 2*time.Second)
	defer cancel()
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("NATS does not answer: %w", err)
	}
	return nil
}

// Flush returns when the server has processed all that was sent before, such
// as a subscription.
func (b *Bus) Flush(ctx context.Context) error {
	if err := b.awaitFirst(ctx); err != nil {
		return err
	}
	ctx, cancel := atMost(ctx, requestTimeout)
	defer cancel()
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("flush the NATS connection: %w", err)
	}
	return nil
}

// Close lets callbacks end, sends what is buffered, and closes the connection;
// it gives up on that after ten seconds. End Consume first. Closing twice is harmless.
func (b *Bus) Close() {
	if err := b.nc.Drain(); err != nil {
		b.nc.Close() // not connected: there is nobody to send to
	}
	select {
	case <-b.closed:
	case <-time.After(closeTimeout + time.Second):
		b.nc.Close()
	}
	b.js.CleanupPublisher()
}

// awaitFirst waits for the first connection: until then the client does not
// know what the server can do, and refuses headers.
func (b *Bus) awaitFirst(ctx context.Context) error {
	select {
	case <-b.once:
		return nil
	default:
	}
	ctx, cancel := atMost(ctx, requestTimeout)
	defer cancel()
	select {
	case <-b.once:
		return nil
	case <-b.closed:
		return ErrClosed
	case <-ctx.Done():
		b.mu.Lock()
		why := b.lastErr
		b.mu.Unlock()
		return fmt.Errorf("no NATS server answers at %s: %w (%w)", Addresses(b.cfg.URL), cmp.Or(why, errors.New("none took the connection")), ctx.Err())
	}
}

// Addresses returns a list of servers without what they are logged in to with.
func Addresses(list string) string {
	servers := strings.Split(list, ",")
	for i, s := range servers {
		s = strings.TrimSpace(s)
		s = s[strings.LastIndex(s, "@")+1:]
		if _, rest, ok := strings.Cut(s, "://"); ok {
			s = rest
		}
		servers[i] = s
	}
	return strings.Join(servers, ", ")
}

// atMost is context.WithTimeout that leaves an existing deadline alone.
func atMost(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
