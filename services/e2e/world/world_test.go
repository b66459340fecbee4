package world_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"signalbox.dev/pkg/sse"

	"signalbox.dev/services/e2e/world"
)

// TestPartsRestart checks that every part can be killed and restarted at its address, and that links
// use the addresses of Via.
func TestPartsRestart(t *testing.T) {
	t.Parallel()
	programs := t.TempDir()
	if err := world.Build(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	pipes := &pipes{seen: map[string]bool{}}
	t.Cleanup(pipes.close)
	w, err := world.Start(t.Context(), world.Options{
		Dir: t.TempDir(), Programs: programs, Replicas: 1, Partitions: 2, Durable: true, Via: pipes.via,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	who, err := w.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	say := func() {
		t.Helper()
		c := w.Client(0, who)
		session, err := c.NewSession(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		run, err := c.Submit(t.Context(), session, world.Sending{Content: "hello"})
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		if err := world.Follow(t.Context(), func() world.Client { return c }, world.RunEvents(run.ID), "", func(ev sse.Event) bool {
			last = ev.Type
			return true
		}); err != nil || last != "done" {
			t.Fatalf("Follow = %v, the last event is %q, want done", err, last)
		}
	}
	say()
	for _, p := range w.Parts() {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if p.Running() {
			t.Errorf("%s runs after Kill", p.Name())
		}
	}
	for _, p := range w.Parts() {
		if err := p.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range w.Parts() {
		if err := p.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	say()
	if err := w.WipeNATS(t.Context()); err != nil {
		t.Fatal(err)
	}
	say()
	for _, link := range []string{"agent-runner-1 postgres unix", "agent-runner-1 nats tcp", "gateway-1 agent-runner-1 tcp", "credential-broker-1 simulator tcp"} {
		if !pipes.seen[link] {
			t.Errorf("Via was not called for %q", link)
		}
	}
}

// pipes puts a proxy in front of every part.
type pipes struct {
	mu        sync.Mutex // guards the rest
	seen      map[string]bool
	listeners []net.Listener
	open      sync.WaitGroup
}

func (p *pipes) via(l world.Link) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[strings.Join([]string{l.From, l.To, l.Network}, " ")] = true
	p.listeners = append(p.listeners, listener)
	p.open.Go(func() {
		for {
			a, err := listener.Accept()
			if err != nil {
				return
			}
			p.open.Go(func() { join(a, l) })
		}
	})
	return listener.Addr().String(), nil
}

func join(a net.Conn, l world.Link) {
	defer a.Close()
	b, err := net.Dial(l.Network, l.Address)
	if err != nil {
		return
	}
	defer b.Close()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // one of them has gone
			_, _ = pair[0].Close(), pair[1].Close()
		})
	}
	both.Wait()
}

func (p *pipes) close() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	p.open.Wait()
}
