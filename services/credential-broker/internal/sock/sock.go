// Package sock makes TCP reads and writes cheaper for a process that waits for many connections
// and does little for each.
//
// Go tells its scheduler about every system call, in case it blocks. In a mostly idle process
// that wakes for one small read and one small write, as a proxy of streams does, this costs more
// than the calls: the scheduler's monitor thread is woken each time. The sockets here never
// block, so there is nothing to tell. Waiting, deadlines and closing remain the net package's.
//
// Connections stay as they are if they are not TCP, on other systems than Linux, and under the
// race detector, which must see reads and writes.
package sock

import (
	"net"
	"syscall"
)

// Wrap returns a cheaper c, if there is one. It may be read and written from several goroutines
// at the same time.
func Wrap(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		return wrap(tcp)
	}
	return c
}

// Listen returns l with its connections wrapped.
func Listen(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}

// Alive reports whether an idle connection can still be used: the other side has neither closed
// it nor sent anything. It does not wait, even while another goroutine reads. A connection that
// is not TCP counts as alive.
func Alive(c net.Conn) bool {
	if raw, ok := c.(syscall.Conn); ok {
		return alive(raw)
	}
	return true
}
