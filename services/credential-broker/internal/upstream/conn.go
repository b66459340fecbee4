package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/panics"
)

const (
	maxHead   = 256 << 10 // bytes of an answer's head
	maxInform = 8         // answers of the kind 1xx before the answer
	// A request up to this size fits into the sockets' buffers, so that writing it
	// does not wait for the server to read.
	fits = 32 << 10
	// What a server said before it closed the connection on a request that it did
	// not read is waited for this long.
	lastWords = time.Second
)

// errHead means an answer whose head does not end.
var errHead = fmt.Errorf("the head of the answer is over the limit of %d KiB", maxHead>>10)

// conn is a connection. While an exchange goes on, it belongs to that; socket may
// be closed by anyone at any time.
type conn struct {
	t      *Transport
	origin origin
	socket net.Conn
	stream net.Conn // socket, or TLS over it
	under  *records // between the two; nil without TLS
	in     *bufio.Reader
	since  time.Time // when it became idle
	reused bool

	unlimited bool // reads are not counted against budget
	budget    int
	got       bool // something of the answer came

	sending sync.WaitGroup // a request that is written by a goroutine of its own
	wrote   bool           // something of the request may have been sent; read after sending
	written atomic.Bool    // all of it was
}

// abort closes the socket. It is safe at any time, from any goroutine.
func (c *conn) abort() { _ = c.socket.Close() }

// close closes the socket and waits for the request's writing to end.
func (c *conn) close() {
	c.abort()
	c.sending.Wait()
}

// Read implements io.Reader for in.
func (c *conn) Read(b []byte) (int, error) {
	if !c.unlimited {
		if c.budget <= 0 {
			return 0, errHead
		}
		b = b[:min(len(b), c.budget)]
	}
	n, err := c.stream.Read(b)
	c.budget -= n
	c.got = c.got || n > 0
	return n, err
}

// exchange writes a request and reads the answer's head. When it fails, the
// connection is closed.
func (c *conn) exchange(req *http.Request) (*http.Response, error) {
	c.got, c.wrote = false, false
	c.written.Store(false)
	// The first thing, so that whatever waits below ends with the context.
	stop := context.AfterFunc(req.Context(), c.abort)
	res, err := c.ask(req)
	if err != nil {
		stop()
		c.close()
		return nil, err
	}
	keep := !res.Close && !req.Close && res.StatusCode != http.StatusSwitchingProtocols
	b := &body{c: c, ctx: req.Context(), stop: stop, from: res.Body, keep: keep}
	if res.Body == http.NoBody {
		b.end(io.EOF) // and the answer keeps its NoBody
		return res, nil
	}
	res.Body = b
	return res, nil
}

func (c *conn) ask(req *http.Request) (*http.Response, error) {
	head := c.t.heads.Get().(*[]byte)
	var err error
	if *head, err = appendHead((*head)[:0], req); err != nil {
		return nil, err
	}
	if req.ContentLength > fits {
		// Its failure shows in the reading: the socket is broken then, or the server's
		// answer says more.
		c.sending.Go(func() {
			err := panics.Try(func() error { return c.send(head, req) })
			if _, ok := errors.AsType[*panics.Error](err); ok {
				c.abort() // or nobody would see it
			}
		})
	} else if err := c.send(head, req); err != nil {
		if !c.wrote {
			return nil, err
		}
		// Perhaps it was refused half way: the answer says why.
		_ = c.socket.SetReadDeadline(time.Now().Add(lastWords))
		res, readErr := c.readHead(req)
		if readErr != nil {
			return nil, err
		}
		_ = c.socket.SetReadDeadline(time.Time{})
		res.Close = true
		return res, nil
	}
	return c.readHead(req)
}

// send writes a request, what is short with one write, and gives the head's buffer
// back.
func (c *conn) send(head *[]byte, req *http.Request) error {
	defer c.t.heads.Put(head)
	if req.Body != nil {
		defer req.Body.Close()
	}
	if req.ContentLength <= fits {
		b, err := appendBody(*head, req)
		if err != nil {
			return err
		}
		*head = b
		if err := c.write(b); err != nil {
			return err
		}
		c.written.Store(true)
		return nil
	}
	if err := c.write(*head); err != nil {
		return err
	}
	n, err := io.Copy(writer{c}, req.Body)
	if err != nil || n != req.ContentLength {
		return errors.Join(fmt.Errorf("%d of %d bytes of the request were written", n, req.ContentLength), err)
	}
	c.written.Store(true)
	return nil
}

func appendBody(b []byte, req *http.Request) ([]byte, error) {
	if req.Body == nil || req.ContentLength <= 0 {
		return b, nil
	}
	from := len(b)
	b = append(b, make([]byte, req.ContentLength)...)
	if _, err := io.ReadFull(req.Body, b[from:]); err != nil {
		return b, fmt.Errorf("read the request's body: %w", err)
	}
	return b, nil
}

// write writes a request's beginning, or a short one whole.
func (c *conn) write(b []byte) error {
	n, err := c.stream.Write(b)
	c.wrote = c.wrote || n > 0
	return err
}

// writer keeps io.Copy to Write.
type writer struct{ c *conn }

// Write implements io.Writer.
func (w writer) Write(b []byte) (int, error) { return w.c.stream.Write(b) }

// readHead reads the head of the answer, past those that only inform.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	c.unlimited = false
	defer func() { c.unlimited = true }()
	for range maxInform {
		c.budget = maxHead
		res, err := http.ReadResponse(c.in, req)
		if err != nil {
			if c.budget <= 0 {
				return nil, errHead
			}
			return nil, err
		}
		if res.StatusCode >= 200 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, nil
		}
	}
	return nil, errors.New("the server informs without end")
}

// quiet reports whether nothing that was read from the socket is left over. What the
// server says later stays in the socket, where sock.Alive sees it.
func (c *conn) quiet() bool {
	if c.in.Buffered() > 0 {
		return false
	}
	if c.under == nil {
		return true
	}
	// TLS reads as much as there is, holds it, and does not say so: it is read from
	// until it has nothing more. Messages of its own, such as session tickets, it takes
	// in by the way.
	c.under.shut = true
	_, err := c.in.Peek(1)
	c.under.shut = false
	return errors.Is(err, errShut) && c.under.between()
}

// again reports whether a request that failed may be sent over another connection:
// this one was idle, and the server has not seen the request, or may see it twice.
// The request's writing has ended.
func (c *conn) again(req *http.Request) bool {
	switch {
	case !c.reused || c.got:
		return false
	case !c.wrote:
		return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
	}
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// body is an answer's body. At its end the connection is idle or closed.
type body struct {
	c    *conn
	ctx  context.Context //nolint:containedctx // the request's, which lives as long as the body
	stop func() bool     // ends the watch over ctx
	from io.Reader
	keep bool
	err  error // after the end
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.from.Read(p)
	if err != nil {
		b.end(err)
	}
	return n, b.err
}

// Close implements io.Closer. An answer that was not read to its end ends the
// connection.
func (b *body) Close() error {
	if b.err == nil {
		b.end(http.ErrBodyReadAfterClose)
	}
	return nil
}

// end ends the exchange.
func (b *body) end(err error) {
	b.err = err
	whole := errors.Is(err, io.EOF)
	if !whole && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.err = reason(b.ctx, err)
	}
	// Bytes behind the end were not asked for, and of a request that is still being
	// written although its answer has ended nobody knows what the server makes.
	if whole && b.keep && b.c.written.Load() && b.c.quiet() && b.stop() {
		b.c.sending.Wait()
		b.c.t.put(b.c)
		return
	}
	b.stop()
	b.c.close()
}
