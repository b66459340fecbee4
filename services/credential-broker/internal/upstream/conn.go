package upstream

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"

	"signalbox.dev/services/credential-broker/internal/sock"
)

// conn is a connection of which is known whether it is idle and nothing is left over on it.
//
// Between two requests net/http reads from the connection: if it has buffered something, it
// sees that first and closes the connection. So a connection that net/http reads from has
// nothing buffered in net/http; and as it reads whole TLS records, nothing in TLS either
// unless a record is under way.
type conn struct {
	net.Conn
	sent atomic.Int64 // bytes

	mu      sync.Mutex // guards what follows
	changed sync.Cond  // of reading and closed
	reading bool
	closed  bool
	records records // of TLS; without meaning where it is not spoken
}

func newConn(c net.Conn) *conn {
	out := &conn{Conn: sock.Wrap(c)}
	out.changed.L = &out.mu
	return out
}

// unwrap returns the conn below what net/http calls a connection, and whether TLS is spoken
// over it.
func unwrap(c net.Conn) (_ *conn, secure bool) {
	if over, ok := c.(*tls.Conn); ok {
		return over.NetConn().(*conn), true
	}
	return c.(*conn), false
}

// clean reports whether the connection, which no request uses, is open and nothing but the
// answers asked for came over it.
func (c *conn) clean(secure bool) bool {
	if !sock.Alive(c.Conn) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.reading && !c.closed {
		c.changed.Wait()
	}
	return !c.closed && (!secure || c.records.between())
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.setReading(true, nil)
	n, err := c.Conn.Read(b)
	c.setReading(false, b[:n])
	return n, err
}

func (c *conn) setReading(reading bool, got []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = reading
	c.records.follow(got)
	c.changed.Broadcast()
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(int64(n))
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.changed.Broadcast()
	return err
}
