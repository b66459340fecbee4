package faultproxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"signalbox.dev/services/e2e/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// These tests run over pipes in a synctest bubble, so that times are exact.

// rig is a proxy between pipes.
type rig struct {
	*faultproxy.Proxy
	listener *pipeListener // the proxy's
	target   *pipeListener
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{target: newPipeListener()}
	var err error
	r.Proxy, err = faultproxy.Start(t.Context(), func(context.Context) (net.Listener, error) {
		r.listener = newPipeListener()
		return r.listener, nil
	}, func(context.Context) (net.Conn, error) { return r.target.dial() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func (r *rig) set(t *testing.T, f faultproxy.Fault) {
	t.Helper()
	if err := r.Set(f); err != nil {
		t.Fatalf("Set(%+v) = %v", f, err)
	}
}

// pair returns both ends of a new connection.
func (r *rig) pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	client = r.connect(t)
	server, err := r.target.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func (r *rig) connect(t *testing.T) net.Conn {
	t.Helper()
	client, err := r.listener.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipeListener() *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

func (l *pipeListener) dial() (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	default:
	}
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.close(); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// say writes to one end in the background.
func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatalf("say %q: %v", text, err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got[:n], err, want)
	}
}

// silent fails if anything arrives within d.
func silent(t *testing.T, c net.Conn, d time.Duration) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	n, err := c.Read(b[:])
	if ne, ok := errors.AsType[net.Error](err); n != 0 || !ok || !ne.Timeout() {
		t.Fatalf("read %q, %v, want nothing", b[:n], err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// story runs f in a bubble.
func story(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
}

func TestGoodLine(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		start := time.Now()
		say(t, client, "hello")
		hear(t, server, "hello")
		say(t, server, "there")
		hear(t, client, "there")
		if took := time.Since(start); took != 0 {
			t.Errorf("a good line took %v, want no time", took)
		}
		if got, want := r.Stats(), (faultproxy.Stats{Open: 1, Accepted: 1}); got != want {
			t.Errorf("Stats() = %+v, want %+v", got, want)
		}
		client.Close()
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the target reads %v after the client closed, want EOF", err)
		}
		synctest.Wait()
		if got, want := r.Stats(), (faultproxy.Stats{Accepted: 1}); got != want {
			t.Errorf("Stats() after the close = %+v, want %+v", got, want)
		}
	})
}

func TestLatency(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		r.set(t, faultproxy.Fault{Latency: 2 * time.Second})
		start := time.Now()
		// Four megabytes are sent at once and arrive together: latency does not limit throughput.
		text := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		if _, err := client.Write(text); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("writing took %v, want no time", took)
		}
		hear(t, server, string(text))
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("the way to the target took %v, want 2 s", took)
		}
		say(t, server, "answer")
		hear(t, client, "answer")
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("the round trip took %v, want 4 s", took)
		}
	})
}

// TestLatencyLifted checks that bytes in transit arrive at once, in order, when the latency ends.
func TestLatencyLifted(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		r.set(t, faultproxy.Fault{Latency: time.Hour})
		say(t, client, "one ")
		say(t, client, "two ")
		synctest.Wait()
		start := time.Now()
		r.set(t, faultproxy.Fault{})
		say(t, client, "three")
		hear(t, server, "one two three")
		if took := time.Since(start); took != 0 {
			t.Errorf("it took %v, want no time", took)
		}
	})
}

func TestRate(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		r.set(t, faultproxy.Fault{Rate: 1000})
		start := time.Now()
		say(t, client, string(make([]byte, 4000)))
		hear(t, server, string(make([]byte, 4000)))
		// The first piece is sent at once: one tick less.
		if took, want := time.Since(start), 3950*time.Millisecond; took != want {
			t.Errorf("4,000 bytes at 1,000 a second took %v, want %v", took, want)
		}
		say(t, client, string(make([]byte, 40_000)))
		synctest.Wait()
		start = time.Now()
		r.set(t, faultproxy.Fault{})
		hear(t, server, string(make([]byte, 40_000)))
		if took := time.Since(start); took != 0 {
			t.Errorf("without the rate it took %v, want no time", took)
		}
	})
}

func TestSilence(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		silent   faultproxy.Direction
		up, down bool // the directions that pass
	}{
		{"up", faultproxy.Up, false, true},
		{"down", faultproxy.Down, true, false},
		{"both", faultproxy.Both, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			story(t, func(t *testing.T, r *rig) {
				client, server := r.pair(t)
				r.set(t, faultproxy.Fault{Silent: tt.silent})
				for _, way := range []struct {
					from, to net.Conn
					through  bool
				}{{client, server, tt.up}, {server, client, tt.down}} {
					say(t, way.from, "said")
					if way.through {
						hear(t, way.to, "said")
					} else {
						silent(t, way.to, time.Hour)
					}
				}
				client2, server2 := r.pair(t)
				r.set(t, faultproxy.Fault{})
				if !tt.up {
					hear(t, server, "said")
				}
				if !tt.down {
					hear(t, client, "said")
				}
				say(t, client2, "new")
				hear(t, server2, "new")
			})
		})
	}
}

func TestBlackHole(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		left, abandoned := r.pair(t)
		r.set(t, faultproxy.Fault{BlackHole: true})
		during := r.connect(t)
		for _, c := range []net.Conn{client, server, during} {
			say(t, c, string(make([]byte, 1<<20))) // dropped, whatever its size
			silent(t, c, time.Minute)
		}
		left.Close()
		silent(t, abandoned, time.Minute)
		r.set(t, faultproxy.Fault{})
		if _, err := abandoned.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the target of a client that left reads %v when the line is good, want the end", err)
		}
		// Forgotten permanently, while new connections work.
		say(t, client, "still there?")
		silent(t, server, time.Hour)
		silent(t, during, time.Hour)
		client2, server2 := r.pair(t)
		say(t, client2, "new")
		hear(t, server2, "new")
		client.Close()
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the other end of a forgotten connection reads %v after the close, want the end", err)
		}
		during.Close()
		synctest.Wait()
		if got := r.Stats().Open; got != 1 {
			t.Errorf("%d connections are open, want 1", got)
		}
	})
}

func TestRefuseNew(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		r.set(t, faultproxy.Fault{Refuse: true})
		if _, err := r.listener.dial(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial = %v, want a refusal", err)
		}
		say(t, client, "open ones go on")
		hear(t, server, "open ones go on")
		r.set(t, faultproxy.Fault{})
		client, server = r.pair(t)
		say(t, client, "again")
		hear(t, server, "again")
	})
}

func TestSlowClose(t *testing.T) {
	t.Parallel()
	story(t, func(t *testing.T, r *rig) {
		client, server := r.pair(t)
		r.set(t, faultproxy.Fault{SlowClose: time.Hour})
		start := time.Now()
		say(t, client, "last words")
		client.Close()
		hear(t, server, "last words")
		if took := time.Since(start); took != 0 {
			t.Errorf("the last bytes took %v, want no time", took)
		}
		if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("Read = %v, want EOF", err)
		}
		if took := time.Since(start); took != time.Hour {
			t.Errorf("the close took %v, want an hour", took)
		}
	})
}

// TestBounded checks that a target that does not read blocks the writer: the buffer is bounded.
func TestBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fault faultproxy.Fault
		most  int
	}{
		{"good", faultproxy.Fault{}, 256 << 10},
		{"slow", faultproxy.Fault{Rate: 1}, 256 << 10},
		{"late", faultproxy.Fault{Latency: time.Hour}, 9 << 20},
		{"silent", faultproxy.Fault{Silent: faultproxy.Both}, 256 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			story(t, func(t *testing.T, r *rig) {
				client, _ := r.pair(t)
				r.set(t, tt.fault)
				if err := client.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Fatal(err)
				}
				n, err := client.Write(make([]byte, 64<<20))
				if err == nil || n > tt.most {
					t.Errorf("Write accepted %d bytes, %v; want at most %d", n, err, tt.most)
				}
			})
		})
	}
}
