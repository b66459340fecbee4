package upstream

import (
	"net"
	"sync"
	"sync/atomic"

	"signalbox.dev/services/credential-broker/internal/sock"
)

// conn is a connection that knows whether it is idle and has nothing left over.
//
// Between two requests net/http reads from the connection: if it has buffered something, it
// sees that first and closes the connection. So a connection that net/http reads from has
// nothing buffered in net/http, and as TLS returns whole records, nothing in TLS either, except
// for a part of a record.
type conn struct {
	net.Conn
	sent atomic.Int64 // bytes

	mu      sync.Mutex // guards what follows
	changed sync.Cond  // of reading and closed
	reading bool
	closed  bool
	records records // of TLS; meaningless without it
}

func newConn(c net.Conn) *conn {
	out := &conn{Conn: sock.Wrap(c)}
	out.changed.L = &out.mu
	return out
}

// clean reports whether the connection, which no request uses, is open and has received nothing
// but the answers asked for.
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

// recordHead is the length of a TLS record's header, whose last two bytes are the length of
// what follows (RFC 8446, 5.1).
const recordHead = 5

// records tracks where TLS records begin and end.
type records struct {
	head [recordHead]byte // of the current record
	had  int              // bytes of head
	left int              // bytes of the record's content to come
}

// follow takes in what was read.
func (r *records) follow(b []byte) {
	for len(b) > 0 {
		if r.left > 0 {
			n := min(r.left, len(b))
			r.left -= n
			b = b[n:]
			continue
		}
		n := copy(r.head[r.had:], b)
		r.had += n
		b = b[n:]
		if r.had == recordHead {
			r.had, r.left = 0, int(r.head[3])<<8|int(r.head[4])
		}
	}
}

// between reports whether no record is incomplete.
func (r *records) between() bool { return r.had == 0 && r.left == 0 }
