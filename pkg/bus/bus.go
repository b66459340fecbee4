// Package bus carries protobuf messages over NATS: durable ones over JetStream, nudges over
// core NATS.
//
//   - Postgres is the truth. A work message announces a row that needs work, an event shows
//     progress. Any message may come twice, and all of them may be lost with the server's disk.
//   - A durable message has an id. Publishing it again under the same id within the stream's
//     window is harmless.
//   - The error of a work-queue handler is the delivery decision: nil acks, Terminal drops,
//     RetryAfter waits, any other error backs off. See Consume.
//   - Each message names its schema and carries the W3C trace context in its headers. Decode
//     returns a Terminal error for an unexpected schema.
//
// One Bus is one connection; WithoutEcho opens another. It reconnects until it is closed, so
// services and servers start in any order. Close ends the NATS client's goroutines; Consume
// and Streams.Run wait for their own. If the process dies, its messages are delivered to
// another consumer after subject.AckWait.
package bus

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
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
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/subject"
)

// Limits of calls whose context has no deadline.
const (
	attemptTimeout = 2 * time.Second  // for the ack of one attempt of Publish
	requestTimeout = 5 * time.Second  // for a reply of the server
	asyncTimeout   = 4 * time.Second  // for an ack of PublishAsync; a leader that dies never sends it
	closeTimeout   = 10 * time.Second // for Close to drain
	asyncPending   = 16_384           // messages of PublishAsync without an ack
)

// Config configures a connection.
type Config struct {
	URL      string      // nats://host:port, several separated by commas; unused with an in-process server
	Service  string      // names the connection and the inbox
	User     string      // defaults to Service
	Password conf.Secret // empty: no login

	// TLS proves who this service is and, without CAFile, has the authorities that sign the
	// servers' certificates; nil: no certificate, and the system's authorities. It is used for
	// tls URLs. CAFile is a PEM file, with which TLS is used for all URLs.
	TLS    *mtls.Credentials
	CAFile string

	Conn       []nats.Option                 // applied last, such as natsd's for an in-process connection
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

	connected func()        // closes once; called at the first connection
	once      chan struct{} // closed at the first connection
	closed    chan struct{} // closed when the connection has been closed for good
	created   chan struct{} // closed when nc is set

	mu          sync.Mutex // guards what follows
	session     session
	lastErr     error                // why there is no connection
	onReconnect map[*func()]struct{} // called after each reconnect
}

// Connect returns a bus. It does not wait for a server, but retries in the background until
// the bus is closed; Ready reports the connection's state. An error means that the
// configuration is wrong. The caller closes the bus.
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
		created:   make(chan struct{}),
		session:   newSession(),

		onReconnect: map[*func()]struct{}{},
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

	secure, err := secureOptions(cfg)
	if err != nil {
		return nil, err
	}
	if b.nc, err = nats.Connect(cfg.URL, append(b.options(ctx, cfg), secure...)...); err != nil {
		if _, ok := errors.AsType[*url.Error](err); ok { // which quotes the password
			err = errors.New("NATS_URL does not parse: want nats://127.0.0.1:4222, with special characters of a password percent-encoded")
		}
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	close(b.created)
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

// WithoutEcho returns a bus with the same configuration over a connection of its own, on
// which it does not receive its own messages. The caller closes it.
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
		nats.CustomReconnectDelay(func(rounds int) time.Duration {
			<-b.created
			if rounds >= 4 && rounds&(rounds-1) == 0 || rounds%64 == 0 {
				b.log.WarnContext(ctx, "not connected to nats", "address", Addresses(cfg.URL), "error", cmp.Or(b.cause(), errors.New("no server takes connections")))
			}
			jitter := 250 * time.Millisecond
			if cfg.Secure() {
				jitter = time.Second // handshakes are dear
			}
			return 250*time.Millisecond + rand.N(jitter)
		}),
		// No buffer for after a reconnect: its messages would overtake those that were
		// lost with the connection and are published again.
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(), // the password may be corrected on the server
		nats.Timeout(requestTimeout),
		nats.PingInterval(2 * time.Second), // a silent connection is given up after 6 s
		nats.MaxPingsOutstanding(2),
		nats.DrainTimeout(closeTimeout),
		nats.ConnectHandler(func(nc *nats.Conn) {
			b.connected()
			b.log.InfoContext(ctx, "connected to nats", "address", nc.ConnectedUrlRedacted())
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.metrics.reconnects.Inc()
			b.log.InfoContext(ctx, "reconnected to nats", "address", nc.ConnectedUrlRedacted())
			b.reconnected()
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			b.setErr(err)
			b.endSession()
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
			b.log.WarnContext(ctx, "nats error", "subject", subj, "error", err)
		}),
		nats.ClosedHandler(func(*nats.Conn) {
			b.endSession()
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

// Secure reports whether the connections of cfg use TLS, whatever the servers say.
func (c Config) Secure() bool {
	return c.CAFile != "" || !slices.ContainsFunc(strings.Split(c.URL, ","), func(u string) bool {
		return !strings.HasPrefix(strings.TrimSpace(u), "tls://")
	})
}

// secureOptions returns the options for TLS. The client asks for the certificates whenever it
// connects.
func secureOptions(cfg Config) ([]nats.Option, error) {
	if cfg.CAFile == "" && (cfg.TLS == nil || !strings.Contains(cfg.URL, "tls://")) {
		return nil, nil // the client knows what tls means
	}
	var (
		certificate nats.TLSCertHandler
		roots       nats.RootCAsHandler
	)
	if cfg.TLS != nil {
		certificate = func() (tls.Certificate, error) { return cfg.TLS.Certificate(), nil }
		roots = func() (*x509.CertPool, error) { return cfg.TLS.Roots(), nil }
	}
	if cfg.CAFile != "" {
		own, err := mtls.OpenRoots(cfg.CAFile, cfg.Log)
		if err != nil {
			return nil, fmt.Errorf("NATS_CA_FILE: %w", err)
		}
		roots = func() (*x509.CertPool, error) { return own.Pool(), nil }
	}
	return []nats.Option{nats.ClientTLSConfig(certificate, roots)}, nil
}

func (b *Bus) setErr(err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastErr = err
}

// cause returns why there is no connection. The client calls no handler when a server takes the
// connection and TLS or the login then fails, and keeps that error itself.
func (b *Bus) cause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.nc.LastError(), b.lastErr)
}

// OnReconnect calls fn after each reconnect: messages sent on core subjects in between were
// missed. All subscriptions are restored before fn is called. fn runs on a goroutine of the
// client and must not block. After stop, only a call that has begun goes on.
func (b *Bus) OnReconnect(fn func()) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := &fn
	b.onReconnect[key] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.onReconnect, key)
	}
}

func (b *Bus) reconnected() {
	b.mu.Lock()
	all := slices.Collect(maps.Keys(b.onReconnect))
	b.mu.Unlock()
	for _, fn := range all {
		(*fn)()
	}
}

// Connected reports whether the client has a connection, without asking the server.
func (b *Bus) Connected() bool { return b.nc.IsConnected() }

// Ready returns nil if the server replies, within two seconds unless ctx has a deadline.
func (b *Bus) Ready(ctx context.Context) error {
	if !b.nc.IsConnected() {
		if err := b.cause(); err != nil {
			return fmt.Errorf("not connected to NATS: %w", err)
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

// Flush returns when the server has processed everything sent before, such as a
// subscription.
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

// Close lets callbacks end, sends what is buffered, and closes the connection, within ten
// seconds. Consume has to end first. Closing twice is harmless.
func (b *Bus) Close() {
	if err := b.nc.Drain(); err != nil {
		b.nc.Close() // not connected: nothing can be sent
	}
	select {
	case <-b.closed:
	case <-time.After(closeTimeout + time.Second):
		b.nc.Close()
	}
	b.js.CleanupPublisher()
}

// awaitFirst waits for the first connection. Before it, the client does not know whether the
// server supports headers, and refuses them.
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
		return fmt.Errorf("no NATS server answers at %s: %w (%w)", Addresses(b.cfg.URL), cmp.Or(b.cause(), errors.New("none took the connection")), ctx.Err())
	}
}

// Addresses returns a list of server URLs without schemes and credentials.
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

// atMost adds a timeout unless ctx has a deadline.
func atMost(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
