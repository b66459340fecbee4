package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/services/e2e/world"
)

// library is a document server: Signalbox or one of its peers.
type library interface {
	name() string
	// places creates n documents.
	places(ctx context.Context, n int) ([]place, error)
	// cpu is the processor time of each process, and memory their resident memory.
	cpu() map[string]time.Duration
	memory() (int64, error)
	close() error
}

// documents compares live documents with two servers from npm.
func documents(ctx context.Context, b *bench) error {
	for _, open := range []func(context.Context, *bench) (library, error){openOurs, peer("y-websocket"), peer("hocuspocus")} {
		for _, scene := range []func(context.Context, *bench, library) error{
			func(ctx context.Context, b *bench, l library) error { return b.rooms(ctx, l, 500, 3, 1000) },
			func(ctx context.Context, b *bench, l library) error { return b.rooms(ctx, l, 1, 200, 50) },
			func(ctx context.Context, b *bench, l library) error { return b.idleEditors(ctx, l) },
		} {
			if err := b.scene(ctx, open, scene); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) scene(ctx context.Context, open func(context.Context, *bench) (library, error), scene func(context.Context, *bench, library) error) error {
	l, err := open(ctx, b)
	if err != nil {
		return err
	}
	if err := scene(ctx, b, l); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", l.name(), err), l.close())
	}
	return l.close()
}

// rooms sends updates at a rate to a number of documents, each with a number of editors, of which at
// most twenty write.
func (b *bench) rooms(ctx context.Context, l library, rooms, each, rate int) error {
	places, err := l.places(ctx, rooms)
	if err != nil {
		return err
	}
	p, err := gather(ctx, places, each)
	if err != nil {
		return err
	}
	defer p.close()
	var writers []*editor
	for i := range min(each, 20) { // one editor after the other, so that a document's editors do not write at once
		for _, r := range p.rooms {
			if err := r.editors[i].begin(); err != nil {
				return err
			}
			writers = append(writers, r.editors[i])
		}
	}
	idle, err := idleCPU(ctx, l)
	if err != nil {
		return err
	}
	if _, err := typing(ctx, writers, rate, 2*time.Second); err != nil {
		return err
	}
	p.keep.Store(true)
	start := time.Now()
	before, had := l.cpu(), p.delivered.Load()
	typed, err := typing(ctx, writers, rate, time.Duration(b.times(20))*time.Second)
	if err != nil {
		return err
	}
	if err := p.arrived(ctx, had+int64(typed*(each-1))); err != nil {
		return err
	}
	after, took := l.cpu(), time.Since(start)
	of := fmt.Sprintf("%s, %d × %d, ", l.name(), rooms, each)
	var all time.Duration
	for part, used := range after {
		used -= before[part]
		all += used
		if len(after) > 1 && used > 0 {
			b.figure(of+"CPU per update of "+part, float64(used.Microseconds())/float64(typed), "µs")
		}
	}
	b.figure(of+"updates/s", float64(typed)/float64(b.times(20)), "")
	b.figure(of+"CPU per update", float64(all.Microseconds())/float64(typed), "µs")
	b.figure(of+"CPU per delivery", float64(all.Microseconds())/float64(typed*(each-1)), "µs")
	// At a low rate, most of the CPU time may be that of the idle system.
	above := all - time.Duration(idle*float64(took))
	b.figure(of+"CPU while idle", idle*1000, "ms/s")
	b.figure(of+"CPU per update, less that", float64(above.Microseconds())/float64(typed), "µs")
	b.figure(of+"CPU per delivery, less that", float64(above.Microseconds())/float64(typed*(each-1)), "µs")
	b.figure(of+"latency p50", milliseconds(p.latencies.quantile(.5)), "ms")
	b.figure(of+"latency p99", milliseconds(p.latencies.quantile(.99)), "ms")
	if n := p.cut.Load(); n > 0 {
		b.figure(of+"connections cut", float64(n), "")
	}
	return nil
}

// idleCPU returns the number of processors that l uses while open documents are idle.
func idleCPU(ctx context.Context, l library) (float64, error) {
	if err := pause(ctx, 10*time.Second); err != nil { // for work left from opening
		return 0, err
	}
	before, start := l.cpu(), time.Now()
	if err := pause(ctx, 4*time.Second); err != nil {
		return 0, err
	}
	var used time.Duration
	for part, now := range l.cpu() {
		used += now - before[part]
	}
	return used.Seconds() / time.Since(start).Seconds(), nil
}

// arrived waits until a number of messages are delivered.
func (p *press) arrived(ctx context.Context, want int64) error {
	for deadline := time.Now().Add(30 * time.Second); p.delivered.Load() < want; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d deliveries arrived", p.delivered.Load(), want)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// idleEditors opens idle connections, ten per document.
func (b *bench) idleEditors(ctx context.Context, l library) error {
	rooms := b.times(500)
	places, err := l.places(ctx, rooms)
	if err != nil {
		return err
	}
	warm, err := gather(ctx, places[:1], 10) // without the one-time cost of the first connections
	if err != nil {
		return err
	}
	defer warm.close()
	before, err := l.memory()
	if err != nil {
		return err
	}
	p, err := gather(ctx, places, 10)
	if err != nil {
		return err
	}
	defer p.close()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(5 * time.Second):
	}
	after, err := l.memory()
	if err != nil {
		return err
	}
	b.figure(fmt.Sprintf("%s, memory of each of %d idle connections", l.name(), rooms*10), float64(after-before)/float64(rooms*10)/1024, "KB")
	return nil
}

// ours is a cluster with one replica of each service.
type ours struct {
	*world.World
	member world.Member
}

func openOurs(ctx context.Context, b *bench) (library, error) {
	w, err := b.world(ctx, world.Options{Replicas: 1})
	if err != nil {
		return nil, err
	}
	member, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		return nil, errors.Join(err, w.Close()) //nolint:contextcheck // it has a timeout of its own
	}
	return &ours{w, member}, nil
}

func (*ours) name() string                    { return "signalbox" }
func (o *ours) cpu() map[string]time.Duration { return usage(o.World) }
func (o *ours) close() error                  { return o.Close() }

func (o *ours) places(ctx context.Context, n int) ([]place, error) {
	c, out := o.Client(0, o.member), make([]place, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range out {
		group.Go(func() error {
			var made struct{ Document struct{ ID string } }
			err := c.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": fmt.Sprint("Load ", i)}}, &made)
			q := url.Values{"token": {o.member.Token}, "workspace_id": {o.member.Workspace}}
			out[i] = place{url: "ws" + strings.TrimPrefix(o.Gateways[0], "http") + "/ws/documents/" + made.Document.ID + "?" + q.Encode()}
			return err
		})
	}
	return out, group.Wait()
}

// memory returns the memory of the two services with connections.
func (o *ours) memory() (int64, error) {
	var sum int64
	for _, p := range o.Procs() {
		if strings.HasPrefix(p.Name(), "gateway") || strings.HasPrefix(p.Name(), "document-sync") {
			n, err := resident(p.PID())
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// node is an unmodified server from npm, which keeps documents in memory.
type node struct {
	kind, addr string
	cmd        *exec.Cmd
}

func peer(kind string) func(context.Context, *bench) (library, error) {
	return func(ctx context.Context, _ *bench) (library, error) {
		root, err := world.Checkout()
		if err != nil {
			return nil, err
		}
		addr, err := freeport.Addr()
		if err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(addr) // the address of a listener is valid
		n := &node{kind: kind, addr: addr, cmd: exec.Command("node", filepath.Join(root, "services/e2e/yclients/serve.mjs"), kind, port)}
		var out bytes.Buffer
		n.cmd.Stderr = &out
		n.cmd.Env = append(os.Environ(), "NODE_ENV=production")
		if err := n.cmd.Start(); err != nil {
			return nil, err
		}
		for deadline := time.Now().Add(20 * time.Second); ; {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				return n, conn.Close()
			}
			if time.Now().After(deadline) {
				return nil, errors.Join(fmt.Errorf("%s did not start (npm ci in services/e2e/yclients): %w\n%s", kind, err, &out), n.close())
			}
			select {
			case <-ctx.Done():
				return nil, errors.Join(ctx.Err(), n.close())
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func (n *node) name() string { return n.kind }

func (n *node) places(_ context.Context, count int) ([]place, error) {
	out := make([]place, count)
	for i := range out {
		name := fmt.Sprint("load-", i)
		out[i] = place{url: "ws://" + n.addr + "/" + name}
		if n.kind == "hocuspocus" {
			out[i].hocuspocus = name
		}
	}
	return out, nil
}

func (n *node) cpu() map[string]time.Duration {
	d, err := processor(n.cmd.Process.Pid)
	if err != nil {
		return nil
	}
	return map[string]time.Duration{n.kind: d}
}

func (n *node) memory() (int64, error) { return resident(n.cmd.Process.Pid) }

func (n *node) close() error {
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = n.cmd.Wait() // it ends with the signal
	return nil
}
