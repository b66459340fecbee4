package bus_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"testing"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// wire is a TCP connection between a bus and its server that can be muted: then the server's
// replies are withheld until the wire is cut.
type wire struct {
	addr, to string

	mu    sync.Mutex // guards what follows
	muted bool
	asked chan struct{} // has an element after a request while muted
	conns []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), to: to, asked: make(chan struct{}, 1)}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { w.carry(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.cut()
		group.Wait()
	})
	return w
}

// carry copies in both directions until one side ends.
func (w *wire) carry(from net.Conn) {
	to, err := net.Dial("tcp", w.to)
	if err != nil {
		from.Close()
		return
	}
	w.mu.Lock()
	w.conns = append(w.conns, from, to)
	w.mu.Unlock()
	var both sync.WaitGroup
	pass := func(dst io.Writer, src io.Reader, onto func(b []byte) []byte) {
		defer from.Close()
		defer to.Close()
		buf := make([]byte, 4096)
		for {
			n, err := src.Read(buf)
			if _, werr := dst.Write(onto(buf[:n])); err != nil || werr != nil {
				return
			}
		}
	}
	both.Go(func() { pass(to, from, w.question) })
	both.Go(func() { pass(from, to, w.answer) })
	both.Wait()
}

func (w *wire) question(b []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.muted {
		select {
		case w.asked <- struct{}{}:
		default:
		}
	}
	return b
}

func (w *wire) answer(b []byte) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.muted {
		return nil
	}
	return b
}

// mute withholds the server's replies, or stops doing so.
func (w *wire) mute(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted, w.asked = on, make(chan struct{}, 1)
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = false
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// A request whose reply is lost with the connection fails at that moment, not at its
// timeout.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	w := newWire(t, srv.ClientURL()[len("nats://"):])
	b, err := bus.Connect(t.Context(), bus.Config{
		URL: "nats://" + w.addr, Service: subject.AgentRunner, Password: srv.Password(subject.AgentRunner), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	stream, subj, _ := session()
	publish(t, b, subj, "first")
	back := make(chan struct{}, 1)
	b.OnReconnect(func() { back <- struct{}{} })
	for name, ask := range map[string]func(context.Context) error{
		"Last": func(ctx context.Context) error { _, err := b.Last(ctx, stream, subj); return err },
		"Read": func(ctx context.Context) error {
			for _, err := range b.Read(ctx, stream, subj, 0, math.MaxUint64) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"Stream": func(ctx context.Context) error { _, err := b.Stream(ctx, stream); return err },
		"PublishFenced": func(ctx context.Context) error {
			_, err := b.PublishFenced(ctx, subj, "fenced", 1, text("x"))
			return err
		},
	} {
		w.mute(true)
		failed := make(chan error, 1)
		go func() { failed <- ask(t.Context()) }()
		receive(t, w.asked)
		w.cut()
		if err := receive(t, failed); !errors.Is(err, bus.ErrDisconnected) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s = %v, want a lost connection", name, err)
		}
		receive(t, back)
	}
	// Publish retries as soon as there is a connection.
	w.mute(true)
	sent := make(chan error, 1)
	go func() { _, err := b.Publish(t.Context(), subj, "again", text("x")); sent <- err }()
	receive(t, w.asked)
	w.cut()
	if err := receive(t, sent); err != nil {
		t.Errorf("Publish = %v, want a retry", err)
	}
}
