package monitoring_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/faultproxy"
	"signalbox.dev/services/e2e/monitoring"
	"signalbox.dev/services/e2e/world"
)

// rig is a cluster with TLS and with proxies on its links to PostgreSQL, NATS and document-sync, a
// Prometheus, and a person who uses the cluster.
type rig struct {
	*world.World
	api     monitoring.API
	promDir string
	who     world.Member
	broken  string // a tool-executor whose handler panics
	second  string // the program of the second tool-executor, a link
	ca      *mtlstest.Authority
	certs   string // has a folder with a certificate for each service

	mu    sync.Mutex // guards links
	links map[string][]*faultproxy.Proxy
}

// TestMonitoring is described by the package.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	if os.Getenv("SIGNALBOX_E2E_METRICS") == "" {
		t.Skip("part of `make e2e-metrics` (SIGNALBOX_E2E_METRICS=full)")
	}
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	rules, alerts, err := monitoring.Rules(root)
	if err != nil {
		t.Fatal(err)
	}
	queries, err := monitoring.Queries(root)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := newRig(t, root, rules)

	// Nothing is wrong: every query has a value, but for quiet ones, and nothing fires.
	calm, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := r.api.Await(calm, queries); err != nil {
		t.Fatal(err)
	}
	r.awaitFiring(t, nil)

	faults := r.faults()
	for _, alert := range slices.Sorted(maps.Keys(faults)) {
		if !slices.Contains(alerts, alert) {
			t.Errorf("there is no alert %s", alert)
		}
	}
	for _, alert := range alerts { //nolint:paralleltest // one fault at a time: they share a cluster
		cause := faults[alert]
		if cause == nil {
			t.Errorf("no fault lets the alert %s fire", alert)
			continue
		}
		t.Run(alert, func(t *testing.T) {
			look, mend := cause(t)
			defer func() {
				mend(t)
				r.awaitFiring(t, nil)
			}()
			r.awaitFiring(t, []string{alert})
			look(t)
		})
	}
	t.Run("takeovers", r.takeOver)
	if !t.Failed() { // all faults were there
		r.allHadValues(t, queries, began)
		r.bounded(t)
	}
}

// allHadValues requires each query to have had a value since began.
func (r *rig) allHadValues(t *testing.T, queries []monitoring.Query, began time.Time) {
	for _, q := range queries {
		found, err := r.api.Since(t.Context(), q.Expr, began)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Errorf("panel %q: %s never had a value (%s)", q.Panel, q.Expr, q.Quiet())
		}
	}
}

// awaitFiring waits until the alerts fire. For none, it waits until nothing fires.
func (r *rig) awaitFiring(t *testing.T, want []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	start := time.Now()
	for {
		firing, err := r.api.Firing(ctx)
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(a string) bool { return firing[a] != "" })
		if err == nil && len(missing) == 0 && (len(want) > 0 || len(firing) == 0) {
			t.Logf("after %s: %v", time.Since(start).Round(time.Second), firing)
			return
		}
		if !pause(ctx, 300*time.Millisecond) {
			t.Fatalf("firing: %v, want %v", firing, want)
		}
	}
}

// database connects to PostgreSQL as an administrator, without a proxy.
func (r *rig) database(t *testing.T) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), r.Database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.WithoutCancel(t.Context())) })
	return db
}

// environment makes some limits small enough to be reached.
func environment(service string, _ int) []string {
	env := []string{"TLS_REQUIRED=false"} // there is a proxy before PostgreSQL
	switch service {
	case subject.AgentRunner:
		env = append(env, fmt.Sprint("AGENT_RUNNER_WORKSPACE_RUNS=", workspaceRuns), "AGENT_RUNNER_MODEL_TRIES=1", "AGENT_RUNNER_TOOL_TIME=60s")
	case subject.Gateway:
		env = append(env, fmt.Sprint("GATEWAY_DATABASE_CONNECTIONS=", gatewayConns))
	case subject.CredentialBroker:
		env = append(env, "CREDENTIAL_BROKER_ALLOW_PRIVATE=true") // the simulator, as a provider with accounts
	}
	return env
}

const (
	workspaceRuns = 4
	gatewayConns  = 4
)

func newRig(t *testing.T, root string, rules []byte) *rig {
	t.Helper()
	r := &rig{links: map[string][]*faultproxy.Proxy{}, promDir: t.TempDir(), ca: mtlstest.NewAuthority(t), certs: t.TempDir()}
	for _, name := range append(world.Services(), world.NATSName) {
		r.certify(t, name, good)
	}
	programs := t.TempDir()
	if err := world.Build(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	r.buildBroken(t, root, programs)
	t.Cleanup(func() {
		for _, p := range slices.Concat(slices.Collect(maps.Values(r.links))...) {
			_ = p.Close()
		}
	})
	w, err := world.Start(t.Context(), world.Options{
		Dir: t.ArtifactDir(), Programs: programs, Partitions: 4, TLS: r.certs, Env: environment, Via: r.via,
		Program: func(service string, replica int) string {
			if service == subject.ToolExecutor && replica == 2 {
				return r.second
			}
			return ""
		},
	})
	if w != nil {
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.World = w
	p, err := w.StartPrometheus(t.Context(), r.promDir, rules)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	r.api = monitoring.API{URL: p.Ops, HTTP: w.HTTP}
	if r.who, err = w.NewMember(t.Context(), "", "owner"); err != nil {
		t.Fatal(err)
	}
	use, stop := context.WithCancel(t.Context())
	used := make(chan error, 1)
	go func() { used <- monitoring.Use(use, w, r.who) }()
	t.Cleanup(func() {
		stop()
		if err := <-used; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return r
}

const good = 90 * 24 * time.Hour // the life of a certificate that is not about to expire

// certify replaces a service's certificate.
func (r *rig) certify(t *testing.T, service string, life time.Duration) {
	t.Helper()
	dir := filepath.Join(r.certs, service)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r.ca.Files(t, dir, mtlstest.Certificate{Names: []string{service}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Life: life})
}

// via puts a proxy on the links to PostgreSQL, NATS and document-sync.
func (r *rig) via(l world.Link) (string, error) {
	if l.To != world.PostgresName && l.To != world.NATSName && !strings.HasPrefix(l.To, subject.DocumentSync) {
		return l.Address, nil
	}
	to := l.Address
	if l.Network == "unix" {
		to = "unix:" + to
	}
	p, err := faultproxy.Listen(context.Background(), "127.0.0.1:0", to)
	if err != nil {
		return "", err
	}
	name := kind(l.From) + " → " + kind(l.To)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[name] = append(r.links[name], p)
	return p.Addr(), nil
}

// kind returns a part's name without the number of the replica.
func kind(part string) string { return strings.TrimRight(part, "-0123456789") }

// set sets the fault of a link, for all replicas.
func (r *rig) set(t *testing.T, link string, f faultproxy.Fault) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.links[link]) == 0 {
		t.Fatalf("there is no link %q", link)
	}
	for _, p := range r.links[link] {
		if err := p.Set(f); err != nil {
			t.Fatal(err)
		}
	}
}

// pause returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// until repeats check until it returns nil.
func until(t *testing.T, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), world.Timeout)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		if !pause(ctx, 200*time.Millisecond) {
			t.Fatal(err)
		}
	}
}

// value requires an expression to have a value.
func (r *rig) value(t *testing.T, expr string) {
	t.Helper()
	until(t, func() error {
		found, err := r.api.Now(t.Context(), expr)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s has no value", expr)
		}
		return err
	})
}

// logged requires a line of a service's log.
func (r *rig) logged(t *testing.T, service string, parts ...string) {
	t.Helper()
	until(t, func() error {
		for _, p := range r.Procs() {
			if p.Service != service {
				continue
			}
			for line := range strings.Lines(p.Tail(1 << 20)) {
				if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
					return nil
				}
			}
		}
		return fmt.Errorf("no %s logs %q", service, parts)
	})
}

// notReady requires a check of a program's /ready to be "not ready".
func (r *rig) notReady(t *testing.T, p *world.Proc, check string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: mtlstest.ClientConfig(r.ca, p.Service)}}
	defer client.CloseIdleConnections()
	until(t, func() error {
		res, err := client.Get(p.Ops + "/ready") //nolint:noctx // until has a limit
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var b strings.Builder
		if err := res.Write(&b); err != nil {
			return err
		}
		if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(b.String(), check) {
			return fmt.Errorf("/ready = %s, want 503 that names %s", b.String(), check)
		}
		return nil
	})
}
