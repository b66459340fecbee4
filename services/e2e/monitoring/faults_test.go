package monitoring_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/faultproxy"
	"signalbox.dev/services/e2e/monitoring"
	"signalbox.dev/services/e2e/world"
)

// fault causes a fault. look checks what the runbook says is there to be seen, and mend does what it
// says is to be done.
type fault func(t *testing.T) (look, mend func(t *testing.T))

// faults has a fault for each alert.
func (r *rig) faults() map[string]fault {
	return map[string]fault{
		"ServiceDown":            r.killExecutor,
		"DependencyNotReady":     r.stopNATS,
		"RequestsFail":           r.stopPostgres,
		"RunsFail":               r.failModel,
		"RunsWaitForRunner":      r.fillWorkspace,
		"OutboxStuck":            r.stopNATSLong,
		"RunLogLosesEvents":      r.loseEvents,
		"NoAccountAvailable":     r.revokeKey,
		"DocumentsSaveSlowly":    r.slowDocuments,
		"HandlersPanic":          r.deployBroken,
		"ConnectionsRunOut":      r.lockKeys,
		"BusUnstable":            r.cutBus,
		"BudgetNearlySpent":      r.spendBudget,
		"CertificateExpires":     r.expireSoon,
		"CertificateNotReloaded": r.replaceKey,
	}
}

func restart(t *testing.T, p world.Part) {
	t.Helper()
	if err := errors.Join(p.Restart(), p.Ready(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) killExecutor(t *testing.T) (look, mend func(*testing.T)) {
	p := r.Replica(subject.ToolExecutor, 1)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) { r.value(t, `up{job="tool-executor"} == 0`) }, func(t *testing.T) {
		restart(t, p)
		r.awaitFiring(t, nil)
		// In Kubernetes, a service without pods is not even asked.
		if err := r.WriteTargets(r.promDir, subject.ToolExecutor); err != nil {
			t.Fatal(err)
		}
		r.awaitFiring(t, []string{"ServiceDown"})
		if err := r.WriteTargets(r.promDir); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *rig) stopNATS(t *testing.T) (look, mend func(*testing.T)) {
	p := r.Proc(world.NATSName)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) {
		r.value(t, `signalbox_ready{check="nats"} == 0`)
		r.notReady(t, r.Replica(subject.AgentRunner, 1), "nats")
	}, func(t *testing.T) { restart(t, p) }
}

// stopNATSLong cancels a queued run, whose end cannot be published.
func (r *rig) stopNATSLong(t *testing.T) (look, mend func(*testing.T)) {
	stopped, mend := r.stopNATS(t)
	c := r.Client(0, r.who)
	session, err := c.NewSession(t.Context(), "sim/monitoring")
	for range 2 {
		if err == nil {
			_, err = c.Submit(t.Context(), session, world.Sending{Content: "write a note"})
		}
	}
	if err == nil {
		err = c.Cancel(t.Context(), session)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) {
		stopped(t)
		r.logged(t, subject.AgentRunner, "outbox waits", "not connected to NATS")
	}, mend
}

func (r *rig) stopPostgres(t *testing.T) (look, mend func(*testing.T)) {
	if err := r.Postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	stop := repeat(t, 5, r.listKeys)
	return func(t *testing.T) {
			r.value(t, `sum by (route, status) (rate(gateway_http_requests_total{status="503"}[10s])) > 0`)
			r.notReady(t, r.Replica(subject.Gateway, 1), "postgres")
		}, func(t *testing.T) {
			stop(t)
			restart(t, r.Postgres)
		}
}

// listKeys needs PostgreSQL.
func (r *rig) listKeys(ctx context.Context) {
	_ = r.Client(0, r.who).Call(ctx, world.Request{Method: http.MethodGet, Path: "/api/keys"}, nil) // most get 503
}

// repeat calls fn in n goroutines, again and again, until stop.
func repeat(t *testing.T, n int, fn func(ctx context.Context)) (stop func(*testing.T)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for pause(ctx, 100*time.Millisecond) {
				fn(ctx)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func(*testing.T) { cancel(); wg.Wait() }
}

func (r *rig) failModel(t *testing.T) (look, mend func(*testing.T)) {
	if err := r.PutScript(t.Context(), "overloaded", `rules: [{name: fail, then: [{fail: overloaded}]}]`); err != nil {
		t.Fatal(err)
	}
	stop := repeat(t, 1, func(ctx context.Context) {
		_ = monitoring.SendAndRead(ctx, r.Client(0, r.who), "simulator", "sim/overloaded", "hello") // ends with an error
	})
	return func(t *testing.T) {
		r.logged(t, subject.AgentRunner, "run ended", "MODEL_OVERLOADED")
		r.value(t, `sum by (provider, outcome) (rate(signalbox_model_calls_total{outcome!="ok"}[20s])) > 0`)
	}, stop
}

// fillWorkspace starts more long runs than a workspace may have.
func (r *rig) fillWorkspace(t *testing.T) (look, mend func(*testing.T)) {
	if err := r.PutScript(t.Context(), "long", `rules: [{name: stall, then: [{say: wait}, {wait: 170s}, {say: done}]}]`); err != nil {
		t.Fatal(err)
	}
	who, err := r.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	c := r.Client(0, who)
	var sessions []string
	for range workspaceRuns + 1 {
		session, err := c.NewSession(t.Context(), "sim/long")
		if err == nil {
			_, err = c.Submit(t.Context(), session, world.Sending{Content: "wait"})
		}
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, session)
	}
	return func(t *testing.T) {
			r.value(t, fmt.Sprintf("max by (workspace) (signalbox_queue_oldest_seconds{workspace=%q}) > 60", who.Workspace))
			r.value(t, fmt.Sprintf("sum(signalbox_runs_in_hand) >= %d", workspaceRuns))
		}, func(t *testing.T) {
			for _, session := range sessions {
				if err := c.Cancel(t.Context(), session); err != nil {
					t.Error(err)
				}
			}
		}
}

// loseEvents lets the run log lose events while PostgreSQL takes none.
func (r *rig) loseEvents(t *testing.T) (look, mend func(*testing.T)) {
	if err := r.PutScript(t.Context(), "slow", "delay: 20ms\nrules: [{name: talk, then: [{say: '"+strings.Repeat("and on ", 200)+"'}]}]"); err != nil {
		t.Fatal(err)
	}
	c := r.Client(0, r.who)
	session, err := c.NewSession(t.Context(), "sim/slow")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Send(t.Context(), session, world.Sending{Content: "talk"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func(events int) {
		t.Helper()
		for range events {
			if _, err := s.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	read(5)
	const link = "agent-runner → postgres"
	r.set(t, link, faultproxy.Fault{Silent: faultproxy.Both})
	defer r.set(t, link, faultproxy.Fault{})
	read(10) // what is published now is not copied
	if err := r.PurgeRunLog(t.Context()); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) {
		r.logged(t, subject.AgentRunner, "the stream dropped messages before they were copied")
	}, func(*testing.T) {}
}

// revokeKey adds an account whose key the provider refuses.
func (r *rig) revokeKey(t *testing.T) (look, mend func(*testing.T)) {
	c := r.Client(0, r.who)
	var made struct{ Account struct{ ID string } }
	err := c.Call(t.Context(), world.Request{Method: http.MethodPost, Path: "/api/accounts", Body: map[string]string{
		"provider": "openai", "label": "revoked", "secret": "bad-key", "base_url": r.Simulator + "/openai/v1",
	}}, &made)
	if err != nil {
		t.Fatal(err)
	}
	stop := repeat(t, 1, func(ctx context.Context) {
		_ = monitoring.SendAndRead(ctx, c, "openai", "gpt-sim", "hello") // ends with an error
	})
	return func(t *testing.T) {
			r.value(t, `sum by (account, reason) (signalbox_broker_account_cooldowns_total{provider="openai"}) > 0`)
			var list struct{ Accounts []json.RawMessage }
			if err := c.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/accounts"}, &list); err != nil {
				t.Fatal(err)
			}
			if all := fmt.Sprintf("%s", list.Accounts); !strings.Contains(all, "AUTH_FAILED") {
				t.Errorf("GET /api/accounts does not say why the account is not used: %s", all)
			}
		}, func(t *testing.T) {
			if err := c.Call(t.Context(), world.Request{Method: http.MethodDelete, Path: "/api/accounts/" + made.Account.ID}, nil); err != nil {
				t.Error(err)
			}
			stop(t)
		}
}

func (r *rig) slowDocuments(t *testing.T) (look, mend func(*testing.T)) {
	const link = "document-sync → postgres"
	r.set(t, link, faultproxy.Fault{Latency: 600 * time.Millisecond})
	return func(t *testing.T) {
		r.value(t, `signalbox_pg_connections{job="document-sync", state="in_use"} > 0`)
	}, func(t *testing.T) { r.set(t, link, faultproxy.Fault{}) }
}

// buildBroken builds a tool-executor whose handler of calls panics, and makes the second
// executor's program a link to the whole one.
func (r *rig) buildBroken(t *testing.T, root, programs string) {
	t.Helper()
	const file, call = "services/tool-executor/consume.go", "return s.executor.Handle(ctx, call)"
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(text), call) != 1 {
		t.Fatalf("%s does not have %q once", file, call)
	}
	dir := t.TempDir()
	edited := filepath.Join(dir, "consume.go")
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, file): edited}}) // strings always marshal
	err = errors.Join(
		os.WriteFile(edited, []byte(strings.Replace(string(text), call, `panic("planted: "+call.GetKey())`, 1)), 0o600),
		os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	r.broken, r.second = filepath.Join(dir, "broken"), filepath.Join(dir, "tool-executor")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay="+filepath.Join(dir, "overlay.json"), "-o", r.broken, "./services/tool-executor/cmd/tool-executor")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if err := os.Symlink(filepath.Join(programs, subject.ToolExecutor), r.second); err != nil {
		t.Fatal(err)
	}
}

// deployBroken replaces an executor's program by one with a bug, and takes it back.
func (r *rig) deployBroken(t *testing.T) (look, mend func(*testing.T)) {
	p := r.Replica(subject.ToolExecutor, 2)
	deploy := func(t *testing.T, program string) {
		t.Helper()
		if err := errors.Join(p.Stop(), os.Remove(r.second), os.Symlink(program, r.second)); err != nil {
			t.Fatal(err)
		}
		restart(t, p)
	}
	whole, err := os.Readlink(r.second)
	if err != nil {
		t.Fatal(err)
	}
	deploy(t, r.broken)
	return func(t *testing.T) { r.logged(t, subject.ToolExecutor, "handler panicked", "planted") }, func(t *testing.T) { deploy(t, whole) }
}

// lockKeys keeps the gateway's statements, and so its connections, waiting for a lock.
func (r *rig) lockKeys(t *testing.T) (look, mend func(*testing.T)) {
	tx, err := r.database(t).Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "LOCK TABLE gateway.api_keys IN ACCESS EXCLUSIVE MODE")
	}
	if err != nil {
		t.Fatal(err)
	}
	stop := repeat(t, 6*gatewayConns, r.listKeys)
	return func(t *testing.T) {
			r.value(t, `max by (job) (signalbox_pg_connections{job="gateway", state="in_use"}) == `+fmt.Sprint(gatewayConns))
			var waiting int
			err := tx.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pg_backend_pid() = ANY (pg_blocking_pids(pid))").Scan(&waiting)
			if err != nil || waiting == 0 {
				t.Errorf("pg_stat_activity shows %d statements that wait for this session's lock, %v; want some", waiting, err)
			}
		}, func(t *testing.T) {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			stop(t)
		}
}

// cutBus resets the gateways' connections to NATS again and again.
func (r *rig) cutBus(t *testing.T) (look, mend func(*testing.T)) {
	const link = "gateway → nats"
	stop := repeat(t, 1, func(ctx context.Context) {
		r.set(t, link, faultproxy.Fault{Reset: true}) //nolint:contextcheck // the proxies outlive ctx
		pause(ctx, 100*time.Millisecond)
		r.set(t, link, faultproxy.Fault{}) //nolint:contextcheck // as above
		pause(ctx, time.Second)
	})
	return func(t *testing.T) { r.logged(t, subject.Gateway, "nats connection lost") }, func(t *testing.T) {
		stop(t)
		r.set(t, link, faultproxy.Fault{})
	}
}

func (r *rig) spendBudget(t *testing.T) (look, mend func(*testing.T)) {
	who, err := r.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	c := r.Client(0, who)
	set := func(t *testing.T, steps int) {
		t.Helper()
		err := c.Call(t.Context(), world.Request{Method: http.MethodPut, Path: "/api/budgets", Body: map[string]any{"scope": "workspace", "steps": steps}}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	set(t, 10)
	for range 5 { // of two steps each
		until(t, func() error {
			err := monitoring.SendAndRead(t.Context(), c, "simulator", "sim/monitoring", "write a note")
			return err
		})
	}
	return func(t *testing.T) {
		r.value(t, fmt.Sprintf(`signalbox_budget_used_ratio{workspace=%q, scope="workspace"} >= 0.9`, who.Workspace))
		var by struct{ Usage []struct{ Key string } }
		err := c.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/usage?by=model"}, &by)
		if err != nil || len(by.Usage) != 1 || by.Usage[0].Key == "" {
			t.Errorf("GET /api/usage?by=model = %v, %v, want the one model that was used", by, err)
		}
	}, func(t *testing.T) { set(t, 1000) }
}

// expireSoon gives the brokers a certificate for an hour.
func (r *rig) expireSoon(t *testing.T) (look, mend func(*testing.T)) {
	r.certify(t, subject.CredentialBroker, time.Hour)
	return func(t *testing.T) {
			r.value(t, `signalbox_tls_certificate_expiry_timestamp_seconds{job="credential-broker"} - time() < 3600`)
			cert := filepath.Join(r.certs, subject.CredentialBroker, "tls.crt")
			if out, err := exec.CommandContext(t.Context(), "openssl", "x509", "-enddate", "-noout", "-in", cert).CombinedOutput(); err != nil {
				t.Errorf("openssl: %v: %s", err, out)
			}
		}, func(t *testing.T) {
			r.certify(t, subject.CredentialBroker, good)
		}
}

// replaceKey gives the runners the key of another certificate.
func (r *rig) replaceKey(t *testing.T) (look, mend func(*testing.T)) {
	_, key := r.ca.Sign(t, mtlstest.Certificate{Names: []string{subject.AgentRunner}})
	mtlstest.Replace(t, filepath.Join(r.certs, subject.AgentRunner, "tls.key"), key)
	return func(t *testing.T) {
			r.value(t, `signalbox_tls_files_refused{job="agent-runner"} == 1`)
			r.logged(t, subject.AgentRunner, "certificates not reloaded", "private key does not match")
		}, func(t *testing.T) {
			r.certify(t, subject.AgentRunner, good)
		}
}

// takeOver kills the executors and suspends a runner while they work, so that others continue.
func (r *rig) takeOver(t *testing.T) {
	// Calls hang, and their executors die.
	const link = "tool-executor → document-sync"
	r.set(t, link, faultproxy.Fault{Silent: faultproxy.Both})
	r.value(t, `signalbox_tool_calls_in_hand > 0`)
	for n := range 2 {
		if err := r.Replica(subject.ToolExecutor, n+1).Kill(); err != nil {
			t.Fatal(err)
		}
	}
	r.set(t, link, faultproxy.Fault{})
	for n := range 2 {
		restart(t, r.Replica(subject.ToolExecutor, n+1))
	}
	r.value(t, `sum by (reason) (signalbox_tool_calls_taken_over_total) > 0`)

	if err := r.PutScript(t.Context(), "half-a-minute", "rules: [{name: talk, then: [{say: wait}, {wait: 30s}, {say: done}]}]"); err != nil {
		t.Fatal(err)
	}
	c := r.Client(0, r.who)
	session, err := c.NewSession(t.Context(), "sim/half-a-minute")
	if err != nil {
		t.Fatal(err)
	}
	run, err := c.Submit(t.Context(), session, world.Sending{Content: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	db := r.database(t)
	// runner waits until the run has a runner other than not.
	runner := func(not *world.Proc) (p *world.Proc) {
		t.Helper()
		until(t, func() error {
			var name string
			if err := db.QueryRow(t.Context(), "SELECT runner FROM agent.runs WHERE id = $1 AND state = 'running'", run.ID).Scan(&name); err != nil {
				return err
			}
			for n := range 2 {
				p = r.Replica(subject.AgentRunner, n+1)
				if p != not && strings.Contains(name, fmt.Sprintf("/%d/", p.PID())) {
					return nil
				}
			}
			return fmt.Errorf("the run's runner is %q", name)
		})
		return p
	}
	p := runner(nil)
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	runner(p)
	r.value(t, "signalbox_runs_taken_over_total > 0")
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.value(t, `rate(signalbox_run_claims_total{left="fenced"}[30s])`) // the series is new, and has a rate from its second sample on
	if err := c.Cancel(t.Context(), session); err != nil {
		t.Error(err)
	}
}

// bounded requires a workspace to have no series of its own, apart from the few that wait longest
// and the budgets that are used most.
func (r *rig) bounded(t *testing.T) {
	found, err := r.api.Now(t.Context(), `count by (__name__) ({workspace!=""})`)
	if err != nil {
		t.Fatal(err)
	}
	for _, labels := range found {
		name := labels["__name__"]
		if name != "signalbox_queue_runs" && name != "signalbox_queue_oldest_seconds" && name != "signalbox_budget_used_ratio" && !strings.HasPrefix(name, "ALERTS") {
			t.Errorf("%s has a series for each workspace", name)
		}
	}
}
