package canary_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"

	"signalbox.dev/services/e2e/world"
)

// taps are proxies between parts that search every byte.
type taps struct {
	marks *marks

	mu        sync.Mutex // guards listeners
	listeners []net.Listener
	work      sync.WaitGroup
}

// via is for world.Options.
func (t *taps) via(l world.Link) (string, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	t.listeners = append(t.listeners, listener)
	t.mu.Unlock()
	t.work.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // closed
			}
			t.work.Go(func() { t.carry(l, from) })
		}
	})
	return listener.Addr().String(), nil
}

func (t *taps) carry(l world.Link, from net.Conn) {
	defer from.Close()
	to, err := new(net.Dialer).Dial(l.Network, l.Address)
	if err != nil {
		return // the part is down: the other one sees a connection that ends
	}
	defer to.Close()
	var both sync.WaitGroup
	forward := func(to, from net.Conn, place string) {
		_, _ = io.Copy(io.MultiWriter(&stream{marks: t.marks, place: place}, to), from) // it ends when either does
		_ = to.(interface{ CloseWrite() error }).CloseWrite()                           // like the other side
	}
	both.Go(func() { forward(to, from, "wire "+l.From+" > "+l.To) })
	both.Go(func() { forward(from, to, "wire "+l.To+" > "+l.From) })
	both.Wait()
}

// close closes the taps after the world.
func (t *taps) close() {
	t.mu.Lock()
	for _, l := range t.listeners {
		_ = l.Close() // there are no more connections
	}
	t.mu.Unlock()
	t.work.Wait()
}

// overhear is a RoundTripper that searches responses.
type overhear struct {
	marks *marks
	next  http.RoundTripper
}

func (o overhear) RoundTrip(r *http.Request) (*http.Response, error) {
	place := "answer to " + r.Method + " " + r.URL.Path
	res, err := o.next.RoundTrip(r)
	if err != nil {
		o.marks.look(place, []byte(err.Error()))
		return res, err
	}
	s := &stream{marks: o.marks, place: place}
	_ = res.Header.Write(s) // s accepts everything
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.TeeReader(res.Body, s), res.Body}
	return res, nil
}
