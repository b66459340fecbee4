package docproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// buffers are taken for as long as bytes flow.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// errEnding ends a pump because the socket ends.
var errEnding = errors.New("the socket ends")

// pump passes on what one connection sends to another one. While nothing comes it
// is a goroutine that waits, and no buffer.
type pump struct {
	relay    *relay
	from, to net.Conn
	source   syscall.RawConn // nil where there is more than a socket, as with TLS
	sink     syscall.RawConn
	patience time.Duration // how long a write may wait
	bytes    prometheus.Counter
	isDown   bool // to the client
	broken   bool // a write failed: what is there may end anywhere

	err     error // why reading ended
	onWrite func(fd uintptr)
	piece   []byte // what onWrite writes
	wrote   int    // how much it did
	failed  error
}

func (p *pump) init(r *relay, from, to net.Conn, patience time.Duration, bytes prometheus.Counter) {
	p.relay, p.from, p.to, p.patience, p.bytes = r, from, to, patience, bytes
	p.source, p.sink = raw(from), raw(to)
	p.onWrite = func(fd uintptr) {
		for p.wrote, p.failed = syscall.Write(int(fd), p.piece); errors.Is(p.failed, syscall.EINTR); {
			p.wrote, p.failed = syscall.Write(int(fd), p.piece)
		}
	}
}

func raw(c net.Conn) syscall.RawConn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return rc
}

// run passes on first, and then what comes, until the source ends: io.EOF when it
// closed its side. The up pump goes on reading when it can write no more.
func (p *pump) run(first []byte) error {
	if len(first) > 0 {
		if err := p.pass(first); err != nil {
			return err
		}
	}
	if p.source == nil {
		return p.runPlain()
	}
	// One Read for the pump's whole life: onReadable is called when something may
	// have come, and the runtime waits in between.
	if err := p.source.Read(p.onReadable); err != nil {
		return err
	}
	return p.err
}

// onReadable passes on all that is there, and reports whether that was the end.
func (p *pump) onReadable(fd uintptr) bool {
	b := buffers.Get().(*[32 << 10]byte) // the pool has nothing else
	defer buffers.Put(b)
	for {
		n, err := syscall.Read(int(fd), b[:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return false
		case err == nil && n == 0:
			err = io.EOF
		case err == nil:
			err = p.pass(b[:n])
		}
		if err != nil {
			p.err = err
			return true
		}
	}
}

func (p *pump) runPlain() error {
	b := make([]byte, 4<<10)
	for {
		n, err := p.from.Read(b)
		if n > 0 {
			if err := p.pass(b[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// pass writes b. Only the down pump ends with it.
func (p *pump) pass(b []byte) error {
	r := p.relay
	if r.ending.Load() {
		if p.isDown {
			return errEnding
		}
		return nil
	}
	err := p.write(b)
	switch {
	case err == nil && p.isDown:
		r.frames.follow(b)
		r.heard.Store(r.proxy.tick.Load())
	case err != nil && p.isDown:
		p.broken = true
		return err
	case err != nil:
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			err = errStuck
		} else {
			err = away(err)
		}
		r.end(err)
		return nil
	}
	p.bytes.Add(float64(len(b)))
	return nil
}

// write writes b, at once where it can, else within the pump's patience.
func (p *pump) write(b []byte) error {
	if p.sink != nil {
		p.piece = b
		err := p.sink.Control(p.onWrite)
		p.piece = nil
		switch {
		case err != nil:
			return err
		case p.failed == nil:
			b = b[p.wrote:]
		case !errors.Is(p.failed, syscall.EAGAIN):
			return p.failed
		}
	}
	if len(b) == 0 {
		return nil
	}
	if !p.relay.mayWait(p.to, p.patience) {
		return errEnding
	}
	_, err := p.to.Write(b)
	return err
}
