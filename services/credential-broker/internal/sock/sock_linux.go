//go:build linux && !race

package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// conn is a TCP connection that is read and written by raw system calls.
type conn struct {
	*net.TCPConn
	raw syscall.RawConn

	reading sync.Mutex // guards in
	in      transfer
	read    func(fd uintptr) bool // made once: a closure per call would be allocated

	writing sync.Mutex // guards out
	out     transfer
	write   func(fd uintptr) bool
}

// transfer is one read or write.
type transfer struct {
	b     []byte
	n     int
	errno syscall.Errno
}

func wrap(tcp *net.TCPConn) net.Conn {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return tcp
	}
	c := &conn{TCPConn: tcp, raw: raw}
	c.read, c.write = c.in.receive, c.out.send
	return c
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	c.in = transfer{b: b}
	err := c.raw.Read(c.read)
	n, errno := c.in.n, c.in.errno
	c.in.b = nil
	switch {
	case err != nil:
		return 0, c.opError("read", err)
	case errno != 0:
		return 0, c.opError("read", os.NewSyscallError("recvfrom", errno))
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.out = transfer{b: b}
	err := c.raw.Write(c.write)
	n, errno := c.out.n, c.out.errno
	c.out.b = nil
	switch {
	case err != nil:
		return n, c.opError("write", err)
	case errno != 0:
		return n, c.opError("write", os.NewSyscallError("sendto", errno))
	}
	return n, nil
}

// ReadFrom implements io.ReaderFrom: the embedded connection's would bypass Write.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }

// WriteTo implements io.WriterTo.
func (c *conn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

// receive reads once; false means to wait until there is something to read.
func (t *transfer) receive(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&t.b[0])), uintptr(len(t.b)), 0, 0, 0)
		switch errno {
		case 0:
			t.n = int(n)
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.errno = errno
			return true
		}
	}
}

// send writes what is left; false means to wait until the socket takes more.
func (t *transfer) send(fd uintptr) bool {
	for t.n < len(t.b) {
		rest := t.b[t.n:]
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&rest[0])), uintptr(min(len(rest), maxSend)), syscall.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			t.n += int(n)
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.errno = errno
			return true
		}
	}
	return true
}

// maxSend bounds the time of one call, during which the scheduler cannot use the processor.
const maxSend = 256 << 10

// opError returns an error in the form of the net package's.
func (c *conn) opError(op string, err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok { // the raw connection's, whose Op is raw-read
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
