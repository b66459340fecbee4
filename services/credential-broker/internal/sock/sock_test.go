//go:build unix

package sock_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/services/credential-broker/internal/sock"
)

// pair returns two ends of a TCP connection, both wrapped.
func pair(t testing.TB) (here, there net.Conn) {
	t.Helper()
	plain, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := sock.Listen(plain)
	defer l.Close()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here = sock.Wrap(c)
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = here.Close()
		_ = there.Close()
	})
	return here, there
}

// Everything written in both directions at the same time arrives, even if it is more than the
// sockets hold.
func TestBothWays(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	data := make([]byte, 8<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	var wg sync.WaitGroup
	for _, ends := range [][2]net.Conn{{here, there}, {there, here}} {
		wg.Go(func() {
			n, err := ends[0].Write(data)
			if err != nil || n != len(data) {
				t.Errorf("Write(%d bytes) = %d, %v", len(data), n, err)
			}
		})
		wg.Go(func() {
			got := make([]byte, len(data))
			if _, err := io.ReadFull(ends[1], got); err != nil {
				t.Errorf("Read: %v", err)
			}
			if !bytes.Equal(got, data) {
				t.Error("other bytes arrive than were written")
			}
		})
	}
	wg.Wait()
}

func TestEnds(t *testing.T) {
	t.Parallel()
	b := make([]byte, 16)
	t.Run("nothing asked", func(t *testing.T) {
		t.Parallel()
		here, _ := pair(t)
		if n, err := here.Read(nil); n != 0 || err != nil {
			t.Errorf("Read(nothing) = %d, %v, want 0, nil", n, err)
		}
		if n, err := here.Write(nil); n != 0 || err != nil {
			t.Errorf("Write(nothing) = %d, %v, want 0, nil", n, err)
		}
	})
	t.Run("closed there", func(t *testing.T) {
		t.Parallel()
		here, there := pair(t)
		_, _ = there.Write([]byte("last"))
		_ = there.Close()
		got, err := io.ReadAll(here)
		if string(got) != "last" || err != nil {
			t.Errorf("ReadAll = %q, %v, want last, nil", got, err)
		}
	})
	t.Run("reset there", func(t *testing.T) {
		t.Parallel()
		here, there := pair(t)
		_ = there.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = there.Close()
		_, err := here.Read(make([]byte, 1))
		op, ok := errors.AsType[*net.OpError](err)
		if !ok || op.Op != "read" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read = %v, want an OpError read with ECONNRESET", err)
		}
		// Not the signal, which would end a process that writes to a file.
		if _, err := here.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write = %v, want EPIPE", err)
		}
	})
	t.Run("closed here", func(t *testing.T) {
		t.Parallel()
		here, _ := pair(t)
		ended := make(chan error)
		go func() {
			_, err := here.Read(make([]byte, 1))
			ended <- err
		}()
		_ = here.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read = %v, want %v", err, net.ErrClosed)
		}
		if _, err := here.Write(b); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write = %v, want %v", err, net.ErrClosed)
		}
	})
	t.Run("deadlines", func(t *testing.T) {
		t.Parallel()
		here, _ := pair(t)
		_ = here.SetDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := here.Read(make([]byte, 1))
		timeout, ok := errors.AsType[net.Error](err)
		if !errors.Is(err, os.ErrDeadlineExceeded) || !ok || !timeout.Timeout() {
			t.Errorf("Read = %v, want a timeout", err)
		}
		for err = error(nil); err == nil; {
			_, err = here.Write(make([]byte, 1<<20)) // nobody reads
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write = %v, want a timeout", err)
		}
	})
}

func TestAlive(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	if !sock.Alive(here) {
		t.Error("Alive(an idle connection) = false, want true")
	}
	_, _ = there.Write([]byte("x"))
	b := make([]byte, 1)
	wait := func() { // until something has arrived
		_ = here.SetReadDeadline(time.Now().Add(5 * time.Second))
		raw, err := here.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Read(func(fd uintptr) bool {
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
			return err == nil
		})
	}
	wait()
	if sock.Alive(here) {
		t.Error("Alive(a connection that says something) = true, want false")
	}
	if _, err := here.Read(b); err != nil || b[0] != 'x' {
		t.Errorf("then Read = %q, %v, want x", b, err)
	}
	_ = there.Close()
	wait()
	if sock.Alive(here) {
		t.Error("Alive(a connection closed there) = true, want false")
	}
	p, _ := net.Pipe()
	if !sock.Alive(p) || sock.Wrap(p) != p {
		t.Error("a pipe is not left as it is")
	}
	_ = here.Close()
	if sock.Alive(here) {
		t.Error("Alive(a connection closed here) = true, want false")
	}
}

// BenchmarkPing sends 300 bytes there and back, over wrapped and unwrapped connections.
func BenchmarkPing(b *testing.B) {
	for _, tt := range []struct {
		name string
		wrap func(net.Conn) net.Conn
	}{{"wrapped", sock.Wrap}, {"plain", func(c net.Conn) net.Conn { return c }}} {
		b.Run(tt.name, func(b *testing.B) {
			l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			c, err := new(net.Dialer).DialContext(b.Context(), "tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			far, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			near, far := tt.wrap(c), tt.wrap(far)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{far}, make([]byte, 1<<10))
			})
			defer wg.Wait()
			defer near.Close()
			buf := make([]byte, 300)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := near.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(near, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
