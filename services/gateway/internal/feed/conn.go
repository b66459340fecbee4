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

// Conn is an HTTP/1 answer whose connection was taken over from net/http, so that
// it takes neither a goroutine nor buffers while nothing is written. One goroutine
// at a time writes to it.
type Conn struct {
	nc          net.Conn
	raw         syscall.RawConn // nil: every write may wait
	head        []byte          // status line and headers; nil once they are sealed
	chunked     bool            // HTTP/1.1
	patience    time.Duration
	interrupted atomic.Bool
}

// Hijack takes the connection of a request over, to answer 200 with the headers
// that are set on w. patience bounds how long the client may take for 64 KiB. The
// error http.ErrNotSupported tells that nothing has happened and that w is to be
// written to: with TLS or HTTP/2 in the process, or behind something that does not
// allow it. After another error the connection is not to be used.
func Hijack(w http.ResponseWriter, r *http.Request, patience time.Duration) (*Conn, error) {
	if r.ProtoMajor != 1 || r.TLS != nil {
		return nil, http.ErrNotSupported
	}
	c := &Conn{chunked: r.ProtoAtLeast(1, 1), patience: patience}
	c.head = appendHead(w.Header(), c.chunked)
	nc, _, err := http.NewResponseController(w).Hijack() // what the client sent after its request is not for us
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

// appendHead returns what goes before the body. The connection is not used again:
// net/http does not take it back.
func appendHead(header http.Header, chunked bool) []byte {
	var b bytes.Buffer
	if chunked {
		b.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
	} else {
		b.WriteString("HTTP/1.0 200 OK\r\n")
	}
	_ = header.WriteSubset(&b, map[string]bool{"Transfer-Encoding": true, "Connection": true, "Content-Length": true, "Date": true}) // a buffer takes all
	fmt.Fprintf(&b, "Connection: close\r\nDate: %s\r\n\r\n", time.Now().UTC().Format(http.TimeFormat))
	return b.Bytes()
}

// room is what seal needs before the data: a chunk's length and a line break.
const room = 10

const lastChunk = "0\r\n\r\n"

// seal turns what is in buf after room bytes into what goes over the wire, in buf's
// own memory where that suffices. last tells that the answer ends with it.
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

// write writes p, which was sealed, and waits for a client that is slow.
func (c *Conn) write(p []byte) error {
	const piece = 64 << 10
	for len(p) > 0 {
		err := c.nc.SetWriteDeadline(time.Now().Add(c.patience))
		if err != nil {
			return left(err)
		}
		if c.interrupted.Load() {
			return errInterrupted
		}
		n, err := c.nc.Write(p[:min(len(p), piece)])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%w: it took nothing for %s", ErrSlow, c.patience)
		}
		if err != nil {
			return left(err)
		}
		p = p[n:]
	}
	return nil
}

// interrupt ends a write that waits, and those that come. Any goroutine may call it.
func (c *Conn) interrupt() {
	c.interrupted.Store(true)
	_ = c.nc.SetWriteDeadline(time.Unix(1, 0)) // fails when the connection is closed, which is as good
}

// close ends the connection, after a whole answer when whole is set. A client can
// tell: the last chunk is missing or, before HTTP/1.1, the connection is reset.
func (c *Conn) close(whole bool) {
	if tcp, ok := c.nc.(interface{ SetLinger(sec int) error }); ok && !whole && !c.chunked {
		_ = tcp.SetLinger(0) // fails when the connection is gone already
	}
	c.nc.Close()
}

// pen writes to connections without waiting, and keeps what that needs. It belongs
// to one worker.
type pen struct {
	buf  []byte
	sink [4 << 10]byte // what clients send is thrown away
	n    int
	err  error
	p    []byte

	onWrite, onRead func(fd uintptr) // made once

	writes, bytes int // not yet counted
}

func newPen() *pen {
	p := &pen{buf: make([]byte, room, 64<<10)}
	p.onWrite = func(fd uintptr) { p.n, p.err = send(fd, p.p) }
	p.onRead = func(fd uintptr) { p.n, p.err = receive(fd, p.sink[:]) }
	return p
}

// clean returns an empty buffer with room.
func (p *pen) clean() []byte { return p.buf[:room] }

// write seals buf, which came from clean, and writes it as far as the connection
// takes it now. rest is the rest.
func (p *pen) write(c *Conn, buf []byte, last bool) (rest []byte, err error) {
	if cap(buf) > cap(p.buf) && cap(buf) <= 256<<10 {
		p.buf = buf
	}
	out := c.seal(buf, last)
	if len(out) == 0 || c.raw == nil {
		return out, nil
	}
	p.p = out
	p.writes++
	p.bytes += len(out)
	err = c.raw.Control(p.onWrite)
	p.p = nil
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

// hasLeft reports whether the client has closed the connection, or its half of it.
// What it sends is of no use and thrown away, so that its end is seen behind it.
func (p *pen) hasLeft(c *Conn) bool {
	if c.raw == nil {
		return false // a write tells
	}
	if err := c.raw.Control(p.onRead); err != nil {
		return true
	}
	return p.n == 0 && p.err == nil || p.err != nil && !errors.Is(p.err, syscall.EAGAIN) && !errors.Is(p.err, syscall.EINTR)
}

// settle adds to the metrics what was written since the last time.
func (p *pen) settle(m *metrics) {
	m.writes.Add(float64(p.writes))
	m.bytes.Add(float64(p.bytes))
	p.writes, p.bytes = 0, 0
}
