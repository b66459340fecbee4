// Package faultproxy is a proxy for stream connections that injects network faults, for tests of
// services whose network is slow, silent or down. It needs no privileges and works for TCP and
// Unix sockets.
//
// A Proxy listens where one part dials, and dials where the other part listens. Set changes the
// fault of open and new connections; the zero Fault ends it.
//
// # Who owns what
//
// One goroutine accepts. Each connection has one that dials and waits and, for each direction,
// one that reads into a bounded queue and one that writes from it as the fault allows. Close
// ends all of them and waits. Bytes keep their order through all changes.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout is the timeout for dialling the target; then the client is reset.
const dialTimeout = 10 * time.Second

// Proxy is a proxy in front of a target.
type Proxy struct {
	listen func(context.Context) (net.Listener, error)
	dial   func(context.Context) (net.Conn, error)
	ctx    context.Context //nolint:containedctx // the proxy's life: Close ends it
	stop   context.CancelFunc
	work   sync.WaitGroup
	line   atomic.Pointer[line]

	mu       sync.Mutex // guards the rest, and changes of line
	listener net.Listener
	refusing bool
	conns    map[*conn]struct{}
	accepted int
}

// Listen returns a proxy from one address to another. An address is host:port or
// unix:path; the port to listen on may be 0. The caller closes the proxy.
func Listen(ctx context.Context, from, to string) (*Proxy, error) {
	network, at := split(from)
	// Chosen with the first listener, so that the address stays the same after a Refuse.
	listen := func(ctx context.Context) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, network, at)
		if err == nil {
			at = l.Addr().String()
		}
		return l, err
	}
	toNetwork, target := split(to)
	return Start(ctx, listen, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, toNetwork, target)
	})
}

func split(addr string) (network, at string) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "unix", path
	}
	return "tcp", addr
}

// Start is Listen for other kinds of connections: listen is called again after a Refuse. Both
// functions get the values of ctx, whose end does not end the proxy.
func Start(ctx context.Context, listen func(context.Context) (net.Listener, error), dial func(context.Context) (net.Conn, error)) (*Proxy, error) {
	p := &Proxy{listen: listen, dial: dial, conns: map[*conn]struct{}{}}
	p.ctx, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.line.Store(&line{changed: make(chan struct{})})
	if err := p.open(); err != nil { //nolint:contextcheck // the proxy's own comes from ctx
		p.stop()
		return nil, err
	}
	return p, nil
}

// Addr returns the proxy's address: host:port or the path of a Unix socket.
func (p *Proxy) Addr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listener.Addr().String()
}

// Stats counts a proxy's connections.
type Stats struct {
	Open     int // now
	Accepted int // ever
}

// Stats counts connections.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Open: len(p.conns), Accepted: p.accepted}
}

// Set changes the fault of open and new connections. An error means that the proxy is closed, or
// cannot listen again because another process took its address meanwhile.
func (p *Proxy) Set(f Fault) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return net.ErrClosed
	}
	old := p.line.Swap(&line{Fault: f, changed: make(chan struct{})})
	close(old.changed)
	for c := range p.conns {
		c.meet(f)
	}
	switch {
	case f.Refuse && !p.refusing:
		p.refusing = true
		_ = p.listener.Close() // this resets connections that wait to be accepted
	case !f.Refuse && p.refusing:
		if err := p.open(); err != nil {
			return err
		}
		p.refusing = false
	}
	return nil
}

// Reset resets all connections once, and does not change the fault.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.abort()
	}
}

// Close stops listening, cuts all connections and waits for all goroutines. It may be called
// twice.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.stop()
	_ = p.listener.Close()
	for c := range p.conns {
		c.abort()
	}
	p.mu.Unlock()
	p.work.Wait()
	return nil
}

// open begins to listen and accept. p.mu is held, or p is not shared yet.
func (p *Proxy) open() error {
	l, err := p.listen(p.ctx)
	if err != nil {
		return fmt.Errorf("listen again: %w", err)
	}
	p.listener = l
	p.work.Go(func() { p.accept(l) })
	return nil
}

// accept ends when the listener is closed.
func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Too many open files, or the client has gone: the next attempt may succeed.
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-p.ctx.Done():
				return
			}
		}
		p.work.Go(func() { p.serve(client) })
	}
}

// serve owns one connection.
func (p *Proxy) serve(client net.Conn) {
	c := newConn(p, client)
	if !p.add(c) {
		return
	}
	defer p.remove(c)
	if !c.forgotten.Load() {
		server, err := p.reach(c)
		if err != nil || !c.join(server) {
			c.abort()
			return
		}
	}
	c.run()
}

// reach dials the target until the connection is cut.
func (p *Proxy) reach(c *conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	return p.dial(ctx)
}

// add registers a connection and applies the current fault.
func (p *Proxy) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted++
	if p.ctx.Err() != nil {
		c.abort()
		return false
	}
	p.conns[c] = struct{}{}
	c.meet(p.line.Load().Fault)
	return true
}

func (p *Proxy) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}
