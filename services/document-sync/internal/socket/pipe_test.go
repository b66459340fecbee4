package socket_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gorilla/websocket"

	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// pipes is a listener in memory. Its connections have no buffer: writes block until they are read.
type pipes struct {
	accept chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial() (net.Conn, error) {
	here, there := net.Pipe()
	p.accept <- there
	return here, nil
}

// bubble runs a test with a clock of its own and connections in memory.
func bubble(t *testing.T, limits socket.Limits, f func(t *testing.T, w *world, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := prepare(t, limits)
		p, inner := newPipes(t, w.front), newPipes(t, w.doors)
		w.front.dial = func(context.Context) (net.Conn, error) { return inner.dial() }
		w.run()
		f(t, w, p)
	})
}

// newPipes serves h over pipes.
func newPipes(t *testing.T, h http.Handler) *pipes {
	p := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(p) }()
	t.Cleanup(func() { server.Close(); <-served })
	return p
}

// raw is a client without behaviour of its own.
type raw struct {
	t  testing.TB
	ws *websocket.Conn
}

// dial connects to path, over the network or over pipes if there are any.
func (w *world) dial(t testing.TB, p *pipes, path string) *raw {
	t.Helper()
	base := w.url
	if p != nil {
		base = "ws://pipes"
	}
	ws, res, err := w.dialer(p).DialContext(t.Context(), base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	t.Cleanup(func() { ws.Close() })
	return &raw{t, ws}
}

func (w *world) dialer(p *pipes) *websocket.Dialer {
	d := &websocket.Dialer{}
	if p != nil {
		d.NetDial = func(string, string) (net.Conn, error) { return p.dial() }
	}
	return d
}

func (r *raw) send(msg []byte) {
	r.t.Helper()
	if err := r.ws.WriteMessage(websocket.BinaryMessage, msg); err != nil {
		r.t.Fatal(err)
	}
}

// next returns the next message of y-protocols.
func (r *raw) next() yproto.Message {
	r.t.Helper()
	_, b, err := r.ws.ReadMessage()
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := yproto.Decode(b)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// until reads up to a message of a kind.
func (r *raw) until(k yproto.Kind) yproto.Message {
	r.t.Helper()
	for {
		if m := r.next(); m.Kind == k {
			return m
		}
	}
}

// end reads until the close, and returns its code and reason.
func (r *raw) end() (int, string) {
	r.t.Helper()
	for {
		_, _, err := r.ws.ReadMessage()
		if end, ok := errors.AsType[*websocket.CloseError](err); ok {
			return end.Code, end.Text
		}
		if err != nil {
			return 0, err.Error()
		}
	}
}

func path(name, query string) string {
	return "/ws/documents/" + name + "?" + url.PathEscape(query)
}
