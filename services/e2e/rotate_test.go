package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/world"
)

// TestRotation replaces the keys between services, and then the passwords of NATS, by the steps of
// docs/operate.md, while people use the services.
func TestRotation(t *testing.T) {
	t.Parallel()
	balancer := &world.Balancer{}
	t.Cleanup(func() { _ = balancer.Close() })
	w := startRotated(t, world.Options{Via: balancer.Via})
	addr := ""
	for i, gateway := range w.Gateways {
		var err error
		addr, err = balancer.Via(world.Link{To: fmt.Sprintf("%s-%d", subject.Gateway, i+1), Address: strings.TrimPrefix(gateway, "http://")})
		if err != nil {
			t.Fatal(err)
		}
	}
	use := startUse(t, w, "http://"+addr)
	restartAll := func() {
		t.Helper()
		for replica := range 2 {
			restart(t, w, replica+1)
		}
		use.await(t)
	}
	set := func(name string, value func(service string, p *world.Proc) string) {
		for _, service := range world.Services() {
			for replica := 1; replica <= 2; replica++ {
				p := w.Replica(service, replica)
				p.SetEnv(name, value(service, p))
			}
		}
	}
	use.await(t)

	keys := keygen(t)
	trusted := func(service string, _ *world.Proc) string { return keys[world.Variable(service)+"_TRUSTED_KEYS"] }
	set("TRUSTED_KEYS", func(service string, p *world.Proc) string { return p.Env("TRUSTED_KEYS") + "," + trusted(service, p) })
	restartAll()
	set("SERVICE_KEY", func(service string, _ *world.Proc) string { return keys[world.Variable(service)+"_SERVICE_KEY"] })
	restartAll()
	set("TRUSTED_KEYS", trusted)
	restartAll()

	server := w.Proc(world.NATSName)
	for _, service := range world.Services() {
		variable := subject.PasswordVariable(service)
		if server.Env(variable) == "" {
			t.Fatalf("NATS has no %s", variable)
		}
		server.SetEnv(variable, "p"+strings.ReplaceAll(id.New[id.Run]().String(), "-", ""))
	}
	set("NATS_PASSWORD", func(service string, _ *world.Proc) string { return server.Env(subject.PasswordVariable(service)) })
	if err := errors.Join(server.Stop(), server.Restart(), server.Ready(t.Context())); err != nil {
		t.Fatal(err)
	}
	restartAll()
	use.end(t)
}

// TestPoolerRotation replaces the services' passwords for a database behind a pooler, while people
// use the services.
func TestPoolerRotation(t *testing.T) {
	t.Parallel()
	if _, err := pgd.FindPooler(); err != nil {
		t.Skip(err)
	}
	w := startRotated(t, world.Options{Pooler: true, Replicas: 1})
	use := startUse(t, w, w.Gateways[0])
	use.await(t)
	if err := w.RotateDatabasePasswords(t.Context()); err != nil {
		t.Fatal(err)
	}
	use.await(t)
	restart(t, w, 1) // new connections need the new passwords
	use.await(t)
	use.end(t)
}

// restart stops and starts a replica of each service.
func restart(t *testing.T, w *world.World, replica int) {
	t.Helper()
	var all errgroup.Group
	for _, service := range world.Services() {
		p := w.Replica(service, replica)
		all.Go(func() error { return errors.Join(p.Stop(), p.Restart(), p.Ready(t.Context())) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}

// startRotated starts a cluster of its own.
func startRotated(t *testing.T, o world.Options) *world.World {
	t.Helper()
	o.Dir, o.Programs, o.Partitions = t.TempDir(), bin, 1
	o.Env = func(service string, _ int) []string {
		if service == subject.Gateway {
			return []string{"GATEWAY_DRAIN_WINDOW=200ms"}
		}
		return nil
	}
	w, err := world.Start(t.Context(), o)
	return started(t, w, err)
}

// keygen returns the variables that `signalbox keygen` prints.
func keygen(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "signalbox"), "keygen").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		all[name] = value
	}
	return all
}

// use is what a few people do all the time: each starts sessions, and asks something that a model
// answers.
type use struct {
	done    atomic.Int64 // answers
	failed  atomic.Bool
	stop    context.CancelFunc
	running errgroup.Group
}

func startUse(t *testing.T, w *world.World, url string) *use {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	u := &use{stop: stop}
	t.Cleanup(stop)
	for range 3 {
		who, err := w.NewMember(t.Context(), "", "owner")
		if err != nil {
			t.Fatal(err)
		}
		c := world.Client{URL: url, Who: who, HTTP: w.HTTP}
		u.running.Go(func() error {
			for ctx.Err() == nil {
				if err := ask(context.WithoutCancel(ctx), c); err != nil {
					u.failed.Store(true)
					return err
				}
				u.done.Add(1)
			}
			return nil
		})
	}
	return u
}

// await waits for a few further answers.
func (u *use) await(t *testing.T) {
	t.Helper()
	const n = 5
	for goal, deadline := u.done.Load()+n, time.Now().Add(timeout); u.done.Load() < goal; {
		if u.failed.Load() || time.Now().After(deadline) {
			u.end(t)
			t.Fatalf("%d answers are missing", goal-u.done.Load())
		}
		<-time.After(10 * time.Millisecond)
	}
}

// end waits for the last answers.
func (u *use) end(t *testing.T) {
	t.Helper()
	u.stop()
	if err := u.running.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("%d answers", u.done.Load())
}

// ask asks one question in a new session. Calls that fail because a process stops are repeated, with
// the same key.
func ask(ctx context.Context, c world.Client) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	session, err := again(ctx, func() (string, error) { return c.NewSession(ctx, "") })
	if err != nil {
		return fmt.Errorf("new session: %w", err)
	}
	s := world.Sending{Content: "hello", Key: id.New[id.Run]().String()}
	run, err := again(ctx, func() (world.Run, error) { return c.Submit(ctx, session, s) })
	for err == nil && !run.Ended() {
		<-time.After(200 * time.Millisecond) // below the gateway's limit of requests
		run, err = again(ctx, func() (world.Run, error) { return c.Run(ctx, run.ID) })
	}
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	if run.State != "done" || run.FinishReason == nil || *run.FinishReason != "stop" {
		return fmt.Errorf("the run is %+v, want it done", run)
	}
	return nil
}

// again repeats a call while no process answers it: its connection breaks, or the answer is 503.
func again[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for {
		out, err := call()
		r, refused := errors.AsType[*world.Refused](err)
		if err == nil || ctx.Err() != nil || refused && r.Status != 503 {
			return out, err
		}
		<-time.After(20 * time.Millisecond)
	}
}
