package docproxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/api"
	"signalbox.dev/services/gateway/internal/door"
)

// Config is what the proxy works with.
type Config struct {
	Door    *door.Door
	Streams *door.Streams // counts sockets of members and workspaces, and ends them
	Signer  *identity.Signer
	URL     string // of document-sync
	Log     *slog.Logger
	Metrics prometheus.Registerer // nil: none
	// Origins are those whose pages may open sockets, besides the gateway's own; * for all.
	Origins []string
	// Max bounds the sockets of this gateway.
	Max int
	// Patience is how long a client may take nothing.
	Patience time.Duration
	// DrainWindow is the time over which Drain closes sockets.
	DrainWindow time.Duration
	// TokenWait is how long the first message with a token may take; 10 s when 0.
	TokenWait time.Duration
	// Silence is for how long document-sync may say nothing; 90 s when 0: it pings
	// every 30 s.
	Silence time.Duration
}

// Proxy relays sockets to document-sync. It may be used from any goroutine.
type Proxy struct {
	cfg     Config
	target  *url.URL
	metrics *metrics
	tick    atomic.Int64 // goes up three times in Silence

	draining context.Context //nolint:containedctx // the life of what is being opened
	drain    context.CancelCauseFunc
	drained  chan struct{} // closed when all are gone after Drain

	mu      sync.Mutex // guards what follows
	count   int        // sockets, from before the upgrade to the end
	waiting int        // those without a token yet
	open    map[*relay]struct{}
}

// maxWaiting bounds how many may be on the way to tell who they are.
const maxWaiting = 1000

// New returns a proxy; Run keeps it honest.
func New(cfg Config) (*Proxy, error) {
	if cfg.TokenWait == 0 {
		cfg.TokenWait = 10 * time.Second
	}
	if cfg.Silence == 0 {
		cfg.Silence = 90 * time.Second
	}
	target, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of document-sync: %w", err)
	}
	if target.Path == "" {
		target.Path = "/" // JoinPath leaves it relative
	}
	p := &Proxy{cfg: cfg, target: target, metrics: newMetrics(cfg.Metrics), drained: make(chan struct{}), open: map[*relay]struct{}{}}
	p.draining, p.drain = context.WithCancelCause(context.Background())
	return p, nil
}

// Document serves GET /ws/documents/{id}: the y-protocols.
func (p *Proxy) Document(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, func(_ context.Context, s *opening) error {
		doc, err := id.Parse[id.Document](r.PathValue("id"))
		if err != nil {
			return fault.New(fault.NotFound, "no such document: its id is not one")
		}
		s.path = "/ws/documents/" + doc.String()
		return nil
	})
}

// Hocuspocus serves GET /ws/hocuspocus: documents in Hocuspocus' envelope, which may
// bring the token.
func (p *Proxy) Hocuspocus(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, func(ctx context.Context, s *opening) error {
		s.path = "/ws/hocuspocus"
		if s.token != "" {
			return nil
		}
		return p.awaitToken(ctx, s)
	})
}

// opening is a socket that is not relayed yet.
type opening struct {
	conn      *websocket.Conn
	tape      *tape
	token     string
	workspace string
	path      string // at document-sync
	document  string // the one of Hocuspocus' first token
}

// serve makes a request a socket. aim finds out what is asked for.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, aim func(context.Context, *opening) error) {
	if r.ProtoMajor != 1 || !websocket.IsWebSocketUpgrade(r) {
		api.WriteUpgradeRequired(w)
		return
	}
	if origin := r.Header.Get("Origin"); !p.allows(origin, r.Host) {
		api.WriteError(w, fault.Coded(fault.Forbidden, "ORIGIN_NOT_ALLOWED", "pages of %s may not open sockets here: GATEWAY_CORS_ORIGINS says whose may", clip(origin, 100)))
		return
	}
	full, err := p.admit()
	if err != nil {
		api.WriteError(w, err)
		return
	}
	h := &hijacker{ResponseWriter: w}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: p.cfg.Patience,
		CheckOrigin:      func(*http.Request) bool { return true },
		Error: func(w http.ResponseWriter, _ *http.Request, _ int, reason error) {
			api.WriteError(w, fault.New(fault.Invalid, "%s", strings.TrimPrefix(reason.Error(), "websocket: ")))
		},
	}
	conn, err := upgrader.Upgrade(h, r, nil)
	if err != nil {
		p.leave() // the client was told, or is gone
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(p.draining, func() { cancel(context.Cause(p.draining)) }) //nolint:contextcheck // the end of the gateway's
	defer stop()
	s := &opening{conn: conn, tape: h.tape, token: api.TokenOf(r), workspace: api.WorkspaceOf(r)}
	if err = full; err == nil {
		if err = aim(ctx, s); err == nil {
			err = p.establish(ctx, s)
		}
	}
	if err != nil {
		p.refuse(ctx, s, err)
		p.leave()
	}
}

// allows reports whether a page of origin may open a socket on host. What is no
// page has no origin.
func (p *Proxy) allows(origin, host string) bool {
	if origin == "" || slices.Contains(p.cfg.Origins, "*") || slices.Contains(p.cfg.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// admit counts a socket; the caller leaves. full tells that it is one too many, which
// is told after the upgrade. After an error nothing was counted.
func (p *Proxy) admit() (full, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.drained:
		return nil, &fault.Error{Kind: fault.Unavailable, Code: "DRAINING", Message: errDraining.reason, RetryAfter: time.Second}
	default:
	}
	p.count++
	switch {
	case p.draining.Err() != nil:
		return errDraining, nil
	case p.count > p.cfg.Max:
		return errTooMany, nil
	}
	return nil, nil
}

func (p *Proxy) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count--
	p.checkDrained()
}

// checkDrained tells who waits for it that all are gone. The lock is held.
func (p *Proxy) checkDrained() {
	if p.count > 0 || p.draining.Err() == nil {
		return
	}
	select {
	case <-p.drained:
	default:
		close(p.drained)
	}
}

// awaitToken takes the token of Hocuspocus' first messages.
func (p *Proxy) awaitToken(ctx context.Context, s *opening) error {
	p.mu.Lock()
	free := p.waiting < maxWaiting
	if free {
		p.waiting++
	}
	p.mu.Unlock()
	if !free {
		return errTooMany
	}
	a, err := firstToken(ctx, s.conn, p.cfg.TokenWait)
	p.mu.Lock()
	p.waiting--
	p.mu.Unlock()
	s.token, s.document = a.token, a.document
	return err
}

// establish finds out who asks, and connects the socket with document-sync. After
// nil it has left the request.
func (p *Proxy) establish(ctx context.Context, s *opening) error {
	if s.token == "" {
		return errNoToken
	}
	person, err := p.cfg.Door.Who(ctx, s.token)
	if err != nil {
		return withCause(ctx, err)
	}
	guest, err := p.cfg.Door.Enter(ctx, person, s.workspace)
	if err != nil {
		return withCause(ctx, err)
	}
	asking, count, err := p.cfg.Streams.Add(ctx, guest)
	if err != nil {
		return err
	}
	backend, rest, err := p.dial(asking, guest, s.path)
	if err != nil {
		err = withCause(asking, err)
		count.Close()
		return err
	}
	if tcp, ok := s.tape.Conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // fails when it is closed
	}
	relay := newRelay(p, s.tape.Conn, backend, count)
	p.mu.Lock()
	p.open[relay] = struct{}{}
	p.metrics.open.Set(float64(len(p.open)))
	p.mu.Unlock()
	count.Detach(relay.end)
	if p.draining.Err() != nil {
		relay.end(errDraining) // it may have been too late for Drain to see
	}
	relay.start(s.tape.kept, rest)
	return nil
}

// refuse tells the client why it gets no socket, and closes its connection.
func (p *Proxy) refuse(ctx context.Context, s *opening, err error) {
	e := endingOf(err)
	switch e.code {
	case codeInternal:
		p.cfg.Log.ErrorContext(ctx, "socket refused", "error", err)
	case codeBusy:
		p.cfg.Log.WarnContext(ctx, "socket refused for now", "error", err)
	default:
		p.cfg.Log.DebugContext(ctx, "socket refused", "code", e.code, "error", err)
	}
	p.metrics.ended(e.code)
	c := s.tape.Conn
	defer c.Close()
	if e.code == codeCut {
		return
	}
	if !e.told {
		if s.document != "" && (e.code == codeToken || e.code == codeForbidden) {
			_ = s.conn.SetWriteDeadline(time.Now().Add(lingering))
			_ = s.conn.WriteMessage(websocket.BinaryMessage, denied(s.document, e.reason)) // the close frame says it too
		}
		if !say(c, e) {
			return
		}
	}
	closeWrite(c)
	if c.SetReadDeadline(time.Now().Add(lingering)) == nil {
		_, _ = io.Copy(io.Discard, c) // closed with unread bytes, the connection would be reset
	}
}

// ended forgets a relay that has closed everything.
func (p *Proxy) ended(r *relay) {
	p.metrics.ended(r.code)
	p.cfg.Log.Debug("socket ended", "code", r.code, "error", r.cause) //nolint:sloglint // the request is long over
	p.mu.Lock()
	delete(p.open, r)
	p.metrics.open.Set(float64(len(p.open)))
	p.mu.Unlock()
	p.leave()
}

// Drain lets no socket in any more, ends those that are being opened, and closes the
// open ones spread over the drain window. It returns at once.
func (p *Proxy) Drain() {
	p.drain(errDraining)
	p.each(func(r *relay) {
		time.AfterFunc(rand.N(p.cfg.DrainWindow), func() { r.end(errDraining) })
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checkDrained()
}

// Drained is closed when Drain was called and no socket is left.
func (p *Proxy) Drained() <-chan struct{} { return p.drained }

func (p *Proxy) each(f func(*relay)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.open {
		f(r)
	}
}

// Run closes sockets whose other end is silent, until ctx is done; then it closes
// what is left and returns when all are gone.
func (p *Proxy) Run(ctx context.Context) error {
	t := time.NewTicker(p.cfg.Silence / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			p.Drain()
			p.each(func(r *relay) { r.end(errDraining) })
			<-p.drained
			return nil
		case <-t.C:
			now := p.tick.Add(1)
			p.each(func(r *relay) {
				if now-r.heard.Load() > 3 {
					r.end(errSilent)
				}
			})
		}
	}
}
