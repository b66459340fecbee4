package feed

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is an HTTP/1 response on a connection that was hijacked from net/http, so that it
// needs neither a goroutine nor buffers while nothing is written. Only one goroutine at a
// time writes to it.
type Conn struct {
	nc          net.Conn
	raw         syscall.RawConn // nil if non-blocking writes are impossible
	head        []byte          // status line and headers; nil once they were sealed
	chunked     bool            // HTTP/1.1
	timeout     time.Duration   // of a write of 64 KiB
	interrupted atomic.Bool
}

// Hijack takes over the connection of a request, in order to answer 200 with the headers set
// on w. timeout bounds the time that the client may take for 64 KiB. The error
// http.ErrNotSupported means that nothing has happened and the caller writes to w instead:
// with TLS or HTTP/2 in the process, or if w cannot be hijacked. After any other error the
// connection must not be used.
func Hijack(w http.ResponseWriter, r *http.Request, timeout time.Duration) (*Conn, error) {
	if r.ProtoMajor != 1 || r.TLS != nil {
		return nil, http.ErrNotSupported
	}
	c := &Conn{chunked: r.ProtoAtLeast(1, 1), timeout: timeout}
	c.head = responseHead(w.Header(), c.chunked)
	nc, _, err := http.NewResponseController(w).Hijack() // data after the request is ignored
	if err != nil {
		return nil, fmt.Errorf("take the connection over: %w", err)
	}
	c.nc = nc
	if s, ok := nc.(syscall.Conn); ok {
		c.raw, err = s.SyscallConn()
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("take the connection over: %w", err)
	}
	return c, nil
}

// responseHead returns the status line and the headers. The connection is not reused,
// because net/http does not take it back.
func responseHead(header http.Header, chunked bool) []byte {
	var b bytes.Buffer
	if chunked {
		b.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
	} else {
		b.WriteString("HTTP/1.0 200 OK\r\n")
	}
	_ = header.WriteSubset(&b, map[string]bool{"Transfer-Encoding": true, "Connection": true, "Content-Length": true, "Date": true}) // a buffer does not fail
	fmt.Fprintf(&b, "Connection: close\r\nDate: %s\r\n\r\n", time.Now().UTC().Format(http.TimeFormat))
	return b.Bytes()
}

// room is the space that seal needs before the data, for a chunk's length and a line break.
const room = 10

const lastChunk = "0\r\n\r\n"

// seal returns the bytes to send for the data in buf after room, using buf's memory if
// possible. last ends the response.
func (c *Conn) seal(buf []byte, last bool) []byte {
	out, n := buf[room:], len(buf)-room
	if c.chunked && n > 0 {
		var size [room]byte
		line := append(strconv.AppendUint(size[:0], uint64(n), 16), '\r', '\n')
		buf = append(buf, '\r', '\n')
		out = buf[room-len(line):]
		copy(out, line)
	}
	if c.chunked && last {
		out = append(out, lastChunk...)
	}
	if c.head != nil {
		out = append(c.head, out...)
		c.head = nil
	}
	return out
}

// errInterrupted ends a write because the stream is to end.
var errInterrupted = errors.New("the write was interrupted")

// write writes p, which was sealed. It blocks while the client is slow.
func (c *Conn) write(p []byte) error {
	const piece = 64 << 10
	for len(p) > 0 {
		err := c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
		if err != nil {
			return left(err)
		}
		if c.interrupted.Load() {
			return errInterrupted
		}
		n, err := c.nc.Write(p[:min(len(p), piece)])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%w: the client accepted nothing for %s", ErrSlow, c.timeout)
		}
		if err != nil {
			return left(err)
		}
		p = p[n:]
	}
	return nil
}

// interrupt ends the current write and all later ones. Any goroutine may call it.
func (c *Conn) interrupt() {
	c.interrupted.Store(true)
	_ = c.nc.SetWriteDeadline(time.Unix(1, 0)) // fails if the connection is closed already
}

// close closes the connection. Unless the response is complete, the client notices: the last
// chunk is missing or, before HTTP/1.1, the connection is reset.
func (c *Conn) close(complete bool) {
	if tcp, ok := c.nc.(interface{ SetLinger(sec int) error }); ok && !complete && !c.chunked {
		_ = tcp.SetLinger(0) // fails if the connection is closed already
	}
	c.nc.Close()
}

// pen writes to connections without blocking. Each worker has one.
type pen struct {
	buf     []byte           // reused by each write
	out     []byte           // what onWrite writes
	discard [4 << 10]byte    // what clients send
	n       int              // result of onWrite or onRead
	err     error            // likewise
	onWrite func(fd uintptr) // stored, since a closure for each call would be allocated
	onRead  func(fd uintptr)

	writes, bytes int // not counted in the metrics yet
}

func newPen() *pen {
	p := &pen{buf: make([]byte, room, 64<<10)}
	p.onWrite = func(fd uintptr) { p.n, p.err = ignoringEINTR(syscall.Write, int(fd), p.out) }
	p.onRead = func(fd uintptr) { p.n, p.err = ignoringEINTR(syscall.Read, int(fd), p.discard[:]) }
	return p
}

func ignoringEINTR(call func(int, []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := call(fd, p)
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// empty returns the pen's buffer with room for seal and nothing else.
func (p *pen) empty() []byte { return p.buf[:room] }

// write seals buf, which came from empty, and writes as much as the connection takes now. It
// returns the rest.
func (p *pen) write(c *Conn, buf []byte, last bool) (rest []byte, err error) {
	if cap(buf) > cap(p.buf) && cap(buf) <= 256<<10 {
		p.buf = buf
	}
	out := c.seal(buf, last)
	if len(out) == 0 || c.raw == nil {
		return out, nil
	}
	p.out = out
	p.writes++
	p.bytes += len(out)
	err = c.raw.Control(p.onWrite)
	p.out = nil
	switch {
	case err != nil:
		return nil, left(err)
	case errors.Is(p.err, syscall.EAGAIN):
		return out, nil
	case p.err != nil:
		return nil, left(p.err)
	}
	return out[p.n:], nil
}

// hasLeft reports whether the client has closed the connection or its sending half. It reads
// and discards what the client sends, because the end comes after that.
func (p *pen) hasLeft(c *Conn) bool {
	if c.raw == nil {
		return false // the next write reports it
	}
	if err := c.raw.Control(p.onRead); err != nil {
		return true
	}
	return p.n == 0 && p.err == nil || p.err != nil && !errors.Is(p.err, syscall.EAGAIN)
}

// settle adds the writes since the previous call to the metrics.
func (p *pen) settle(m *metrics) {
	m.writes.Add(float64(p.writes))
	m.bytes.Add(float64(p.bytes))
	p.writes, p.bytes = 0, 0
}
