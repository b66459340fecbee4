package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/faultproxy"
	"signalbox.dev/services/e2e/world"
)

// The runs' deadlines in these worlds. A run that has not ended after runTime and the time to
// detect that is stuck.
const (
	runTime = 40 * time.Second
	stuck   = runTime + 20*time.Second
)

// environment shortens the timeouts of runs, so that a trouble of seconds exceeds most of them.
// Leases and heartbeats have their defaults.
func environment(service string, _ int) []string {
	switch service {
	case subject.AgentRunner:
		return []string{
			"AGENT_RUNNER_RUN_TIME=" + runTime.String(), "AGENT_RUNNER_STEP_TIME=15s", "AGENT_RUNNER_FIRST_BYTE=6s", "AGENT_RUNNER_IDLE=4s",
			"AGENT_RUNNER_TOOL_TIME=8s", "AGENT_RUNNER_TOOL_QUEUEING=8s", "AGENT_RUNNER_PATIENCE=15s", fmt.Sprint("DATABASE_CONNS=", conns),
		}
	case subject.CredentialBroker:
		return []string{
			"CREDENTIAL_BROKER_HEADERS_TIMEOUT=4s", "CREDENTIAL_BROKER_FIRST_EVENT_TIMEOUT=4s", "CREDENTIAL_BROKER_IDLE_TIMEOUT=4s",
			fmt.Sprint("DATABASE_CONNS=", conns),
		}
	case subject.Gateway:
		return []string{fmt.Sprint("GATEWAY_DATABASE_CONNECTIONS=", conns)}
	}
	return []string{fmt.Sprint("DATABASE_CONNS=", conns)}
}

// partitions of the run log: few, so that a world starts quickly.
const partitions = 4

// conns is the number of a process's connections to Postgres.
const conns = 8

// viewers is the name of the link from the people to the gateways.
const viewers = "viewers → gateway"

// rig is a cluster with a proxy on every link, and people who use it.
type rig struct {
	*world.World
	ctx      context.Context //nolint:containedctx // the test's
	db       *pgxpool.Pool   // of an administrator, without a proxy
	http     *http.Client    // of people; connections are not reused
	gateways []string        // base URLs of the gateways, through proxies
	who      world.Member
	load     *load

	normal time.Duration // the normal duration of a run
	before counts        // the normal counts

	mu    sync.Mutex // guards links
	links map[string][]*faultproxy.Proxy
}

// newRig starts a cluster, and then the load.
func newRig(t *testing.T, o world.Options) *rig {
	t.Helper()
	r := &rig{ctx: t.Context(), links: map[string][]*faultproxy.Proxy{}, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	o.Dir, o.Programs, o.Via = t.ArtifactDir(), programs, r.via
	o.Partitions = partitions
	own := o.Env
	o.Env = func(service string, replica int) []string {
		env := environment(service, replica)
		if own != nil {
			env = append(env, own(service, replica)...)
		}
		return env
	}
	t.Cleanup(r.closeLinks)
	w, err := world.Start(t.Context(), o)
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
	for i, url := range w.Gateways {
		addr, err := r.via(world.Link{From: "viewers", To: fmt.Sprintf("gateway-%d", i+1), Network: "tcp", Address: strings.TrimPrefix(url, "http://")})
		if err != nil {
			t.Fatal(err)
		}
		r.gateways = append(r.gateways, "http://"+addr)
	}
	if err := w.PutScript(t.Context(), "notes", script); err != nil {
		t.Fatal(err)
	}
	if r.who, err = w.NewMember(t.Context(), "", "owner"); err != nil {
		t.Fatal(err)
	}
	if r.db, err = pgxpool.New(t.Context(), w.Database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	r.warmUp(t)
	r.load = r.startLoad(users)
	t.Cleanup(r.load.stop)
	return r
}

// via puts a proxy on a link.
func (r *rig) via(l world.Link) (string, error) {
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
func kind(part string) string {
	return strings.TrimRight(strings.TrimRight(part, "0123456789"), "-")
}

func (r *rig) closeLinks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range r.links {
		for _, p := range all {
			_ = p.Close()
		}
	}
}

// link returns the proxies of a link, one for each replica.
func (r *rig) link(t *testing.T, name string) []*faultproxy.Proxy {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.links[name]) == 0 {
		t.Fatalf("unknown link %q", name)
	}
	return r.links[name]
}

// set sets the fault of a link, for all replicas.
func (r *rig) set(t *testing.T, name string, f faultproxy.Fault) {
	t.Helper()
	for _, p := range r.link(t, name) {
		if err := p.Set(f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// client returns a client of a gateway, through the proxy before it.
func (r *rig) client(gateway int) world.Client {
	return world.Client{URL: r.gateways[gateway%len(r.gateways)], Who: r.who, HTTP: r.http}
}

// wait pauses. It returns false if the test ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
