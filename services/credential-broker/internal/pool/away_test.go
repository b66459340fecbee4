package pool_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/price"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
)

// soon is the time for what should take a second at most, on a busy machine.
const soon = 5 * time.Second

// link is one instance's connection to the bus. It can be cut, or swallow what is sent.
type link struct {
	t       *testing.T
	l       net.Listener
	to      string
	work    sync.WaitGroup
	swallow atomic.Bool
	// swallowed receives when a state was swallowed.
	swallowed chan struct{}

	mu    sync.Mutex // guards what follows
	down  bool
	conns []net.Conn
}

func newLink(t *testing.T, srv *natsd.Server) *link {
	t.Helper()
	u, err := url.Parse(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{t: t, l: l, to: u.Host, swallowed: make(chan struct{}, 1)}
	k.work.Go(k.accept)
	t.Cleanup(func() {
		_ = l.Close()
		k.cut(true)
		k.work.Wait()
	})
	return k
}

// bus returns a connection over the link. It is closed with the test, before the link.
func (k *link) bus(srv *natsd.Server) *bus.Bus {
	k.t.Helper()
	b, err := bus.Connect(k.t.Context(), bus.Config{
		Service: subject.CredentialBroker, URL: "nats://" + k.l.Addr().String(), Password: srv.Password(subject.CredentialBroker),
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(b.Close)
	return b
}

func (k *link) accept() {
	for {
		near, err := k.l.Accept()
		if err != nil {
			return
		}
		far, err := new(net.Dialer).DialContext(context.Background(), "tcp", k.to)
		if err != nil {
			_ = near.Close()
			continue
		}
		k.mu.Lock()
		if k.down {
			_, _ = near.Close(), far.Close()
		}
		k.conns = append(k.conns, near, far)
		k.mu.Unlock()
		k.work.Go(func() { k.carry(far, near, true) })
		k.work.Go(func() { k.carry(near, far, false) })
	}
}

func (k *link) carry(to io.WriteCloser, from io.Reader, out bool) {
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if out && k.swallow.Load() {
			if bytes.Contains(b[:n], []byte("cred.state.")) {
				select {
				case k.swallowed <- struct{}{}:
				default:
				}
			}
			n = 0
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut breaks the link, or with down false restores it.
func (k *link) cut(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
	for _, c := range k.conns {
		_ = c.Close()
	}
	k.conns = nil
}

// After a lost connection, announcements that an instance missed, and its own that were lost,
// are repeated.
func TestBusWasAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for range 3 {
		w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	}
	srv := natstest.New(t)
	far, near := newLink(t, srv), newLink(t, srv)
	farBus, nearBus := far.bus(srv), near.bus(srv)
	first, second, third := w.instance(nearBus), w.instance(farBus), w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	second.take()
	third.take()

	a := first.take()
	far.cut(true)
	await(t, "the second's connection is away", func() bool { return !farBus.Connected() })
	first.Report(t.Context(), a, pool.Outcome{Reason: pool.QuotaExhausted, Status: 403})
	within(t, soon, "the third knows of the health", func() bool { return third.state(a.ID).Health < 90 })
	far.cut(false)
	within(t, soon, "the second does, when it is back", func() bool { return second.state(a.ID).Health < 90 })

	near.swallow.Store(true)
	b := first.take(a.ID)
	first.Report(t.Context(), b, pool.Outcome{Reason: pool.QuotaExhausted, Status: 403})
	select {
	case <-near.swallowed:
	case <-time.After(soon):
		t.Fatal("the first never announces it")
	}
	near.swallow.Store(false)
	near.cut(false) // and is there again
	within(t, soon, "the second learns what was swallowed", func() bool { return second.state(b.ID).Health < 90 })
	for name, i := range map[string]*instance{"second": second, "third": third} {
		if h := i.state(a.ID).Health; math.Abs(h-80) > 1 {
			t.Errorf("the %s counts twice what was said twice: the health is %v, want 80", name, h)
		}
	}
}

// An instance ignores its own announcements.
func TestHearsItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	srv := natstest.New(t)
	first, second := w.instance(natstest.Bus(t, srv, subject.CredentialBroker)), w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	a, b := first.take(), second.take()
	first.Report(t.Context(), a, pool.Outcome{Reason: pool.AuthFailed, Status: 401})
	within(t, soon, "the second has heard", func() bool { return second.state(a.ID).Health < 81 })
	second.Report(t.Context(), b, pool.Outcome{Reason: pool.OK})
	// The first receives this after its own message.
	within(t, soon, "the first has heard", func() bool { return first.state(a.ID).Health > 80.9 })
	if h := first.state(a.ID).Health; math.Abs(h-81) > 0.5 {
		t.Errorf("the health is %v, want 81: one failure, and one success", h)
	}
}

// away is a store that can become unavailable for writing.
type away struct {
	pool.Store
	gone   atomic.Bool
	failed chan store.Learned // what was not written, while somebody wants to know
}

func (s *away) Learn(ctx context.Context, l store.Learned) error {
	if !s.gone.Load() {
		return s.Store.Learn(ctx, l)
	}
	select {
	case s.failed <- l:
	default:
	}
	return errors.New("the database is away")
}

// When the database is back, all that was not written is written: each request once, and every
// cooldown.
func TestDatabaseWasAway(t *testing.T) {
	t.Parallel()
	s := &away{failed: make(chan store.Learned)}
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	w.add(w.actor.Workspace, "openai", "openai", "", "y", w.actor.Workspace)
	s.Store = w.store
	w.config.Store = s
	w.config.WriteEvery = 5 * time.Millisecond
	i := w.runs(w.config)
	s.gone.Store(true)
	good := func(n int) {
		for range n {
			i.Report(t.Context(), i.take(), pool.Outcome{Reason: pool.OK, Model: "gpt-5", Tokens: price.Tokens{Input: 10, Output: 1}})
		}
	}
	good(3)
	for l := range s.failed { // their batch
		if len(l.Stats) > 0 {
			break
		}
	}
	good(4)
	a := i.take()
	i.Report(t.Context(), a, pool.Outcome{Reason: pool.RateLimited, Status: 429, RetryAfter: time.Hour})
	for l := range s.failed {
		if len(l.Limits) > 0 {
			break
		}
	}
	s.gone.Store(false)
	want := []store.Stat{
		{Workspace: w.actor.Workspace, Provider: "openai", Account: a.ID, Reason: pool.OK, Requests: 7, TokensIn: 70, TokensOut: 7, CostMicros: 161},
		{Workspace: w.actor.Workspace, Provider: "openai", Account: a.ID, Reason: pool.RateLimited, Requests: 1},
	}
	var stats []store.Stat
	within(t, soon, "all is written", func() bool {
		stats = must(w.store.Stats(t.Context(), w.actor.Workspace))
		return len(stats) == 2 && stats[0].Requests >= 7 && len(must(w.store.Known(t.Context(), w.actor.Workspace)).Limits[a.ID]) > 0
	})
	i.stop()
	if diff := cmp.Diff(want, must(w.store.Stats(t.Context(), w.actor.Workspace))); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}

// A cooldown is written at once, without waiting for the next regular write.
func TestCooldownIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	w.config.WriteEvery = time.Hour
	i := w.instance(nil)
	a := i.take()
	i.Report(t.Context(), a, pool.Outcome{Reason: pool.RateLimited, Status: 429, RetryAfter: time.Hour})
	within(t, soon, "the cooldown is written", func() bool {
		return len(must(w.store.Known(t.Context(), w.actor.Workspace)).Limits[a.ID]) > 0
	})
}

// must drops an error: the test finds what is missing.
func must[T any](all T, _ error) T { return all }
