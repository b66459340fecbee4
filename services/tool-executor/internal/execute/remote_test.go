package execute_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// effects are the five effects, with the kind of remote side for each; document-sync takes a key
// like the others.
var effects = []toolv1.Effect{pure, sameTx, keyed, verify, unsafe}

// remote is a remote side on the network.
type remote struct {
	*farend.Server
	url     string
	lookups chan struct{} // one for each time that somebody looked for an effect
}

func newRemote(t testing.TB) *remote {
	t.Helper()
	r := &remote{Server: farend.New(), lookups: make(chan struct{}, 1024)}
	web := httptest.NewServer(r.Server)
	r.url = web.URL
	t.Cleanup(func() {
		r.Close()
		web.Close()
	})
	return r
}

// act is a tool of one effect that calls the remote side.
type act struct {
	remote *remote
	client *farend.Client
	spec   tool.Spec
}

func (a *act) Spec() tool.Spec                             { return a.spec }
func (a *act) Available(context.Context) tool.Availability { return tool.Availability{Available: true} }

func (a *act) Run(ctx context.Context, c tool.Call) (tool.Result, error) {
	key := c.Key.String()
	var e farend.Effect
	var err error
	switch a.spec.Effect {
	case pure:
		e, err = a.client.Read(ctx, key)
	case sameTx, keyed:
		e, err = a.client.Keyed(ctx, key, key, farend.Latency{})
	case verify:
		e, err = a.client.Marked(ctx, key, key, farend.Latency{})
	default:
		e, err = a.client.Blind(ctx, key, farend.Latency{})
	}
	if err != nil {
		return tool.Result{}, fault.Wrap(err, fault.Unavailable, "the remote side did not answer")
	}
	return tool.Object(e), nil
}

func (a *act) Verify(ctx context.Context, c tool.Call) (tool.Result, bool, error) {
	e, found, err := a.client.Find(ctx, c.Key.String())
	a.remote.lookups <- struct{}{}
	if err != nil {
		return tool.Result{}, false, fault.Wrap(err, fault.Unavailable, "the remote side did not answer")
	}
	return tool.Object(e), found, nil
}

// tool returns a tool named act. Each process has its own, with its own connections.
func (r *remote) tool(effect toolv1.Effect, h *http.Client, settle time.Duration) *act {
	return &act{r, farend.NewClient(r.url, h), tool.Spec{
		Name: "act", Description: "acts upon the remote side", InputSchema: json.RawMessage(anyArgs), Effect: effect, Settle: settle,
	}}
}

// alone returns a client whose connections are closed with the test.
func alone(t testing.TB) *http.Client {
	h := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h.CloseIdleConnections)
	return h
}

// moment is a point of a call at which its executor dies or stops.
type moment int

const (
	never moment = iota
	setClaim
	beforeRecord
	recorded
	announced
)

var errDead = errors.New("this process is dead")

// mortal is a process that dies at a moment or when kill is called. Nothing it does afterwards
// has an effect, and its connections are closed. If it is stopped instead, it keeps its
// connections and continues when it is woken.
type mortal struct {
	*executor
	at   moment
	stop bool
	died chan struct{} // closed at the moment
	wake chan struct{} // closed when it may continue
	kill func()

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// newMortal starts a process that dies (or, with stop, stops) at a moment.
func (w *world) newMortal(t *testing.T, r *remote, effect toolv1.Effect, settle time.Duration, at moment, stop bool) *mortal {
	t.Helper()
	m := &mortal{at: at, stop: stop, died: make(chan struct{}), wake: make(chan struct{})}
	h := &http.Client{Transport: &http.Transport{DialContext: m.dial}}
	m.executor = w.with(r.tool(effect, h, settle)).start(t, func(c *execute.Config) {
		c.Ledger, c.Announce = &mortalLedger{c.Ledger.(*ledger.Ledger), m}, m.announce
	})
	m.kill = sync.OnceFunc(func() {
		close(m.died)
		if stop {
			return
		}
		w.alive.set(m.name, false)
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, c := range m.conns {
			_ = c.Close() // as the kernel does
		}
	})
	t.Cleanup(func() {
		m.goOn()
		h.CloseIdleConnections()
	})
	return m
}

func (m *mortal) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if m.isDead() {
		return nil, errDead
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, c)
	return c, err
}

func (m *mortal) goOn() {
	select {
	case <-m.wake:
	default:
		close(m.wake)
	}
}

func (m *mortal) isDead() bool {
	select {
	case <-m.died:
		return !m.stop
	default:
		return false
	}
}

// pass is a point where the process may die. It returns if the process is alive, or when it is
// woken, which for a dead process is at the end of the test.
func (m *mortal) pass(now moment) error {
	if m.at == now && now != never {
		m.kill()
	}
	select {
	case <-m.died:
	default:
		return nil
	}
	<-m.wake
	if m.isDead() {
		return errDead
	}
	return nil
}

func (m *mortal) announce(ctx context.Context, o *toolv1.Outcome) {
	if m.pass(never) != nil {
		return
	}
	m.said.add(ctx, o)
	_ = m.pass(announced) // nothing of it is heard afterwards
}

// mortalLedger is the ledger of a mortal.
type mortalLedger struct {
	*ledger.Ledger
	m *mortal
}

func (l *mortalLedger) Claim(ctx context.Context, c ledger.Call) (ledger.Claim, error) {
	claim, err := l.Ledger.Claim(ctx, c)
	return claim, errors.Join(err, l.m.pass(setClaim))
}

func (l *mortalLedger) Record(ctx context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome, by id.Member) error {
	if err := l.m.pass(beforeRecord); err != nil {
		return err
	}
	err := l.Ledger.Record(context.WithoutCancel(ctx), ws, attempt, o, by)
	return errors.Join(err, l.m.pass(recorded))
}

func (l *mortalLedger) Release(ctx context.Context, ref ledger.Ref, attempt int) error {
	return errors.Join(l.m.pass(never), l.Ledger.Release(ctx, ref, attempt))
}

func (l *mortalLedger) Renew(ctx context.Context, refs []ledger.Ref) (map[ledger.Ref]int, error) {
	if err := l.m.pass(never); err != nil {
		return nil, err
	}
	return l.Ledger.Renew(context.WithoutCancel(ctx), refs)
}

// handle lets a process handle a call in the background; the test waits for it. bury ends the
// goroutines of a dead process, which can have no effect.
func (m *mortal) handle(t *testing.T, c *toolv1.Call) (ended chan error, bury func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- m.Handle(ctx, c)
	}()
	bury = func() {
		cancel()
		m.goOn()
		<-done
	}
	t.Cleanup(bury)
	return ended, bury
}
