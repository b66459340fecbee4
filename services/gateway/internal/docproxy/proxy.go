package docproxy

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/mux"
	"signalbox.dev/pkg/panics"

	"signalbox.dev/services/gateway/internal/api"
	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/docproxy/editor"
)

// Config configures a Proxy.
type Config struct {
	Authenticator *auth.Authenticator
	Streams       *auth.Streams // limits sockets by member and workspace, and ends them
	Signer        *identity.Signer
	URL           string            // of document-sync
	Secure        *mtls.Credentials // for an https URL; may be nil
	Log           *slog.Logger
	Metrics       prometheus.Registerer // nil: none
	// Origins may open sockets from their pages, like the gateway's own origin; * for all.
	Origins []string
	// Max bounds the number of sockets.
	Max int
	// WriteTimeout bounds the time of a write of 64 KiB to a client.
	WriteTimeout time.Duration
	// DrainWindow is the time over which Drain spreads the closing of sockets.
	DrainWindow time.Duration
	// TokenWait bounds the wait for the first message with a token; 10 s when 0.
	TokenWait time.Duration
}

// Proxy relays sockets to document-sync. It is safe for concurrent use.
type Proxy struct {
	cfg     Config
	target  *url.URL
	metrics *metrics
	host    *editor.Host
	mux     *mux.Pool

	draining context.Context //nolint:containedctx // cancelled by Drain
	drain    context.CancelCauseFunc
	drained  chan struct{} // closed after Drain when no socket is left

	mu      sync.Mutex // guards what follows
	count   int        // sockets, including those before the upgrade
	waiting int        // sockets without a token yet
	open    map[*relay]struct{}
}

const (
	maxWaiting    = 1000        // sockets without a token yet
	maxMessage    = 8 << 20     // bytes of a client's message, as in document-sync
	maxQueue      = 4 << 20     // bytes queued for a slow client
	maxQueueTotal = 256 << 20   // bytes queued for all slow clients together
	closeWait     = time.Second // for the client's close frame
	checkEvery    = time.Second // between two checks of each socket
)

// New returns a Proxy. Run must be running for sockets to time out.
func New(cfg Config) (*Proxy, error) {
	if cfg.TokenWait == 0 {
		cfg.TokenWait = 10 * time.Second
	}
	target, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of document-sync: %w", err)
	}
	if target.Path == "" {
		target.Path = "/" // JoinPath leaves it relative
	}
	p := &Proxy{cfg: cfg, target: target, metrics: newMetrics(cfg.Metrics), drained: make(chan struct{}), open: map[*relay]struct{}{}}
	p.host = editor.NewHost(editor.Config{
		Message: maxMessage, Queue: maxQueue, QueueTotal: maxQueueTotal, WriteWait: cfg.WriteTimeout, CloseWait: closeWait, In: p.metrics.up, Out: p.metrics.down,
	}, func(w http.ResponseWriter, reason error) {
		api.WriteError(w, fault.New(fault.Invalid, "%s", strings.TrimPrefix(reason.Error(), "websocket: ")))
	})
	p.mux = mux.NewPool(mux.Config{Dial: p.dial})
	p.draining, p.drain = context.WithCancelCause(context.Background())
	return p, nil
}

// Document serves GET /ws/documents/{id} with y-protocols.
func (p *Proxy) Document(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, func(_ context.Context, s *opening) error {
		doc, err := id.Parse[id.Document](r.PathValue("id"))
		if err != nil {
			return fault.New(fault.NotFound, "no such document: its id is not one")
		}
		s.document = doc.String()
		s.path, s.idle = "/ws/documents/"+s.document, plainIdle
		return nil
	})
}

// Hocuspocus serves GET /ws/hocuspocus: documents in Hocuspocus' envelope, whose messages may
// contain the token.
func (p *Proxy) Hocuspocus(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, func(ctx context.Context, s *opening) error {
		s.path, s.idle = "/ws/hocuspocus", hocuspocusIdle
		if s.token != "" {
			return nil
		}
		return p.awaitToken(ctx, s)
	})
}

// Messages that keep idle clients from reconnecting: an empty awareness update and, for
// Hocuspocus, one of a document without a name. Its providers note that a message came before
// they look at the name.
var (
	plainIdle      = editor.Idle([]byte{1, 1, 0})
	hocuspocusIdle = editor.Idle([]byte{0, 1, 1, 0})
)

// opening is a socket in the state opening.
type opening struct {
	conn      *editor.Conn
	from      netip.Addr
	token     string
	workspace string
	path      string   // at document-sync
	document  string   // the document, as far as it is known
	asked     bool     // the token came in a message of that document
	kept      [][]byte // messages that came before the token
	idle      []byte
}

// serve upgrades a request to a socket. target determines what the socket is for.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, target func(context.Context, *opening) error) {
	if !websocket.IsWebSocketUpgrade(r) {
		api.WriteUpgradeRequired(w)
		return
	}
	if origin := r.Header.Get("Origin"); !p.allows(origin, r.Host) {
		api.WriteError(w, fault.Coded(fault.Forbidden, "ORIGIN_NOT_ALLOWED", "pages of %s may not open sockets here: GATEWAY_CORS_ORIGINS says whose may", editor.Clip(origin, 100)))
		return
	}
	full, err := p.admit()
	if err != nil {
		api.WriteError(w, err)
		return
	}
	conn, err := p.host.Take(w, r)
	if err != nil {
		p.leave() // Take has answered
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(p.draining, func() { cancel(context.Cause(p.draining)) }) //nolint:contextcheck // the proxy's own
	defer stop()
	s := &opening{conn: conn, from: p.cfg.Authenticator.Address(r), token: api.TokenOf(r), workspace: api.WorkspaceOf(r)}
	if err = full; err == nil {
		if err = target(ctx, s); err == nil {
			err = p.establish(ctx, s)
		}
	}
	if err != nil {
		p.refuse(ctx, s, err)
	}
}

// allows reports whether a page of origin may open a socket on host. Clients other than
// browsers send no origin.
func (p *Proxy) allows(origin, host string) bool {
	if origin == "" || slices.Contains(p.cfg.Origins, "*") || slices.Contains(p.cfg.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// admit counts a socket; the caller must call leave. A refusal in full is to be sent after the
// upgrade. After an error the socket is not counted.
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

// checkDrained closes drained if the proxy drains and has no sockets. The lock is held.
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

// awaitToken gets the token from Hocuspocus' first messages.
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
	a, kept, err := firstToken(ctx, s.conn, p.cfg.TokenWait)
	p.mu.Lock()
	p.waiting--
	p.mu.Unlock()
	s.token, s.document, s.asked, s.kept = a.token, a.document, a.document != "", kept
	return err
}

// establish authorizes the caller and connects the socket to document-sync. If it returns
// nil, the socket no longer belongs to the request.
func (p *Proxy) establish(ctx context.Context, s *opening) error {
	if s.token == "" {
		return errNoToken
	}
	person, err := p.cfg.Authenticator.Authenticate(ctx, s.from, s.token)
	if err != nil {
		return withCause(ctx, err)
	}
	principal, err := p.cfg.Authenticator.Authorize(ctx, person, s.workspace)
	if err != nil {
		return withCause(ctx, err)
	}
	asking, count, err := p.cfg.Streams.Add(ctx, principal)
	if err != nil {
		return err
	}
	relay := &relay{proxy: p, conn: s.conn, count: count}
	first, err := p.openRequest(principal, s.path)
	if err == nil {
		if relay.up, err = p.mux.Open(asking, s.document, first, relay); err != nil {
			err = withCause(asking, unavailable(err))
		}
	}
	if err != nil {
		count.Close()
		return err
	}
	if tcp, ok := s.conn.NetConn().(interface {
		SetKeepAliveConfig(config net.KeepAliveConfig) error
	}); ok {
		_ = tcp.SetKeepAliveConfig(keepAlive) // fails if it is closed
	}
	s.conn.SetIdle(s.idle)
	p.mu.Lock()
	p.open[relay] = struct{}{}
	p.metrics.open.Set(float64(len(p.open)))
	p.mu.Unlock()
	count.Detach(relay.end)
	if p.draining.Err() != nil {
		relay.end(errDraining) // Drain may not have seen it
	}
	go relay.run(s.kept) //nolint:contextcheck // a socket outlives the request that opened it
	return nil
}

// refuse sends the client the reason and closes its connection, in the background.
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
	if s.asked && (e.code == codeToken || e.code == codeForbidden) {
		s.conn.Send(editor.Message(denied(s.document, e.reason))) // the close frame has the reason too
	}
	p.metrics.ended(e.code)
	go func() {
		defer p.leave()
		panics.Contain(context.WithoutCancel(ctx), p.cfg.Log, "refusal of a socket", func() {
			s.conn.Finish(editor.Closing{Code: e.code, Reason: e.reason})
		})
	}()
}

// ended removes a relay that has ended.
func (p *Proxy) ended(r *relay, why editor.Closing) {
	p.metrics.ended(why.Code)
	p.cfg.Log.Debug("socket ended", "code", why.Code, "error", why.Reason) //nolint:sloglint // the request has ended
	p.mu.Lock()
	delete(p.open, r)
	p.metrics.open.Set(float64(len(p.open)))
	p.mu.Unlock()
	p.leave()
}

// Drain refuses new sockets, ends those in the state opening, and closes the open ones spread
// over the drain window. It does not wait.
func (p *Proxy) Drain() {
	p.drain(errDraining)
	p.each(func(r *relay) {
		time.AfterFunc(rand.N(p.cfg.DrainWindow), func() { r.end(errDraining) })
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checkDrained()
}

// Drained is closed after Drain when no socket is left.
func (p *Proxy) Drained() <-chan struct{} { return p.drained }

func (p *Proxy) each(f func(*relay)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.open {
		f(r)
	}
}

// Run checks the timeouts of sockets and runs the connections to document-sync until ctx is
// done. Then it closes the remaining sockets and returns when none is left.
func (p *Proxy) Run(ctx context.Context) error {
	connections, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	done.Go(func() { _ = p.mux.Run(connections) }) // which is nil
	defer done.Wait()
	defer hangUp()
	t := time.NewTicker(checkEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			p.Drain()
			p.each(func(r *relay) { r.end(errDraining) })
			<-p.drained
			return nil
		case <-t.C:
			p.host.Tick()
			p.each(func(r *relay) { r.contain(r.conn.CheckTimeouts) })
		}
	}
}
