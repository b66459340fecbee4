// Package sock makes reading and writing of TCP connections cheaper for a process
// that waits for many of them and has little to do for each.
//
// Go tells its scheduler about every system call, in case it takes long. Where a
// process is mostly idle and wakes for one small read and one small write, as a
// proxy of streams does, that costs more than the calls themselves: the scheduler's
// watchdog is woken each time, on a thread of its own. The sockets here never block,
// so there is nothing to tell. All else, waiting, deadlines, closing, is the net
// package's, underneath.
//
// On other systems than Linux, and under the race detector, which must see who reads
// what, connections stay as they are. So do those that are not TCP.
package sock

import (
	"net"
	"syscall"
)

// Wrap returns c, quicker where that can be. Reading and writing may go on at the
// same time, each from one goroutine at a time or from several.
func Wrap(c net.Conn) net.Conn {
	if tcp, ok := c.(*net.TCPConn); ok {
		return wrap(tcp)
	}
	return c
}

// Listen returns l, whose connections are wrapped.
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

// Alive reports whether an idle connection can still be used: the other side has
// neither closed it nor said anything. It does not wait, also while another goroutine
// reads. It reports true of what is not TCP.
func Alive(c net.Conn) bool {
	if raw, ok := c.(syscall.Conn); ok {
		return alive(raw)
	}
	return true
}
