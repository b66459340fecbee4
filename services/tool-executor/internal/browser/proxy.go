package browser

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"signalbox.dev/pkg/netguard"
)

// Bounds of a proxy.
const (
	maxConns    = 256       // of a browser at the same time
	maxTunnel   = 128 << 20 // bytes of a connection, in each direction
	maxBody     = 32 << 20  // bytes of an answer without TLS
	idleTunnel  = 2 * time.Minute
	maxRefusals = 256 // remembered
)

// proxy is the HTTP proxy of one browser and its only way out. It connects to what the guard
// allows, and resolves the names itself.
type proxy struct {
	guard   *netguard.Guard
	reverse *httputil.ReverseProxy
	server  *http.Server
	slots   chan struct{}

	mu       sync.Mutex        // guards the fields below
	refused  map[string]string // why, by host and port
	tunnels  map[net.Conn]struct{}
	requests map[*request]struct{}
	cuts     int // that last
	closed   bool
}

// request is one that the proxy forwards; a tunnel is one, too.
type request struct {
	began time.Time
	end   context.CancelFunc
}

func newProxy(guard *netguard.Guard, log *slog.Logger) *proxy {
	p := &proxy{guard: guard, slots: make(chan struct{}, maxConns), refused: map[string]string{}, tunnels: map[net.Conn]struct{}{}, requests: map[*request]struct{}{}}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {}, // the URL is absolute already
		Transport:     guard.Transport(),
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.refuse(r.URL, err)
			hangUp(w) // a page of ours could be taken for the server's
		},
	}
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 256 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return p
}

// serve serves l until close is called.
func (p *proxy) serve(l net.Listener) { _ = p.server.Serve(l) } // always http.ErrServerClosed

// close ends all connections.
func (p *proxy) close() {
	_ = p.server.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c := range p.tunnels {
		_ = c.Close()
	}
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		hangUp(w)
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	one := &request{time.Now(), end}
	if !p.begin(one) {
		hangUp(w)
		return
	}
	defer p.forget(one)
	r = r.WithContext(ctx)
	switch {
	case r.Method == http.MethodConnect:
		p.tunnel(w, r)
	case r.URL.Scheme == "http" && r.URL.Host != "":
		p.reverse.ServeHTTP(w, r)
	default:
		http.Error(w, "this is a proxy", http.StatusBadRequest)
	}
}

// begin counts a request, unless all are refused.
func (p *proxy) begin(r *request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cuts == 0 {
		p.requests[r] = struct{}{}
	}
	return p.cuts == 0
}

func (p *proxy) forget(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.requests, r)
}

// cut ends the requests that have begun since a time, and refuses further ones, which the browser
// makes in their place, until resume is called.
func (p *proxy) cut(since time.Time) (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts++
	for r := range p.requests {
		if !r.began.Before(since) {
			r.end()
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.cuts--
	}
}

// hangUp closes the connection of a request without an answer.
func hangUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

// tunnel connects the browser with r.Host.
func (p *proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	target := &url.URL{Scheme: "https", Host: r.Host}
	err := p.guard.CheckURL(target)
	var far net.Conn
	if err == nil {
		far, err = p.guard.DialContext(r.Context(), "tcp", r.Host)
	}
	if err != nil {
		p.refuse(target, err)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer near.Close()
	if !p.track(near) || !p.track(far) {
		return
	}
	defer p.untrack(near, far)
	_ = near.SetDeadline(time.Time{})
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	ctx, cancel := context.WithCancel(r.Context()) // it ends with a cut
	defer cancel()
	var both sync.WaitGroup
	forward := func(to, from net.Conn, in io.Reader) {
		defer cancel()
		_, _ = io.CopyN(to, idleReader{in, from}, maxTunnel)
	}
	both.Go(func() { forward(far, near, buffered) })
	both.Go(func() { forward(near, far, far) })
	<-ctx.Done() // also when one direction has ended
	_, _ = near.Close(), far.Close()
	both.Wait()
}

// idleReader reads from a connection that must not be silent for too long.
type idleReader struct {
	in   io.Reader
	conn net.Conn
}

// Read implements io.Reader.
func (r idleReader) Read(b []byte) (int, error) {
	_ = r.conn.SetReadDeadline(time.Now().Add(idleTunnel))
	return r.in.Read(b)
}

func (p *proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.tunnels[c] = struct{}{}
	}
	return !p.closed
}

func (p *proxy) untrack(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.tunnels, c)
	}
}

// refuse remembers why an address is out of reach.
func (p *proxy) refuse(u *url.URL, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.refused) >= maxRefusals {
		clear(p.refused)
	}
	p.refused[hostPort(u)] = reason(err)
}

// reason returns the part of a connection's error that is of use to a model. Names and
// addresses of our own network are not in it.
func reason(err error) string {
	if errors.Is(err, netguard.ErrRefused) {
		return "only public addresses and the ports 80 and 443 can be reached"
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return "there is no such host"
		}
		return "its name could not be looked up"
	}
	if errors.Is(err, netguard.ErrTooLarge) {
		return "the answer is too large"
	}
	return "the server cannot be reached"
}

// refusal returns why an address was out of reach when it was last tried, or "".
func (p *proxy) refusal(u *url.URL) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[hostPort(u)]
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "ws": "80"}[u.Scheme]
	}
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}
