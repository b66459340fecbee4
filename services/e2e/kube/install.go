package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/e2e/world"
)

// scenario is a part of the test. Scenarios run in order, each after the system has become whole
// again.
type scenario struct {
	name    string
	run     func(ctx context.Context, s *suite, r *result) error
	always  bool // the others need it
	current bool // it is about this version's chart and programs: not with -from
	long    bool // only with -long, or by its name
}

// The flood is last because it leaves the autoscalers on.
var scenarios = []scenario{
	{name: "trial", run: trial, current: true},
	{name: "install", run: install, always: true},
	{name: "stories", run: stories, current: true},
	{name: "quiet", run: quiet},
	{name: "policies", run: policies},
	{name: "encryption", run: encryption, current: true},
	{name: "rolling restart", run: rollingRestart},
	{name: "upgrade and rollback", run: upgrade},
	{name: "pods killed", run: podsKilled},
	{name: "kubelet stopped", run: kubeletStopped},
	{name: "NATS servers lost", run: natsLost},
	{name: "PostgreSQL failed over", run: postgresFailover},
	{name: "flood", run: flood, current: true, long: true},
}

// prepare makes the namespace, in which Pod Security "restricted" is enforced, and loads images.
func (s *suite) prepare(ctx context.Context) error {
	if err := s.loadImages(ctx, "postgres.tar", "nats.tar", "*-dev.tar"); err != nil {
		return err
	}
	return s.apply(ctx, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+namespace+`", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}`)
}

// trial installs the chart as a trial, measures the time until the first answer, upgrades it, rolls
// it back to its first revision, as if the database had been migrated meanwhile, and removes it.
func trial(ctx context.Context, s *suite, r *result) error {
	if err := errors.Join(s.prepare(ctx), s.loadImages(ctx, "*-next.tar")); err != nil {
		return err
	}
	begun := time.Now()
	chart := func(verb, tag string, timeout time.Duration) error {
		return s.helm(ctx, verb, "signalbox", "deploy/helm/signalbox", "-f", "deploy/helm/signalbox/values-local.yaml", "--wait", "--timeout", timeout.String(),
			"--set", "image.tag="+tag+",image.pullPolicy=Never,local.storage.enabled=false,local.postgres.image=localhost/postgres:1,local.postgres.user=65532,local.nats.image=localhost/nats:1")
	}
	if err := chart("install", "dev", patience); err != nil {
		return err
	}
	ready := time.Since(begun)
	database, err := s.address(ctx, "signalbox-postgres")
	if err != nil {
		return err
	}
	password, err := s.secret(ctx, "signalbox-secrets", "POSTGRES_PASSWORD")
	if err != nil {
		return err
	}
	if s.world, err = s.reach(ctx, fmt.Sprintf("postgres://signalbox:%s@%s:5432/signalbox?sslmode=disable", password, database)); err != nil {
		return err
	}
	if err := s.answer(ctx); err != nil {
		return err
	}
	total := time.Since(begun)
	r.Figures = append(r.Figures, figure{"everything ready", ready.Seconds(), "s"}, figure{"first answer", total.Seconds(), "s"})
	if total > time.Minute {
		r.Broken = append(r.Broken, fmt.Sprintf("the first answer came after %s; the goal is 60 s", total.Round(time.Second)))
	}
	if err := errors.Join(chart("upgrade", "next", patience), s.answer(ctx)); err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	// As if the newer version had migrated the database. The Job of the installation runs again, and
	// must not mind; an installation or upgrade must.
	if err := s.pretendNewer(ctx); err != nil {
		return err
	}
	err = errors.Join(s.helm(ctx, "rollback", "signalbox", "1", "--wait", "--wait-for-jobs", "--timeout", patience.String()), s.answer(ctx))
	if err != nil {
		return fmt.Errorf("rollback to the first revision: %w", err)
	}
	if err := chart("upgrade", "dev", time.Minute); err == nil {
		r.Broken = append(r.Broken, "an older version was installed over the database of a newer one")
	} else if why, logs := s.whyMigrationFailed(ctx); logs != nil || !strings.Contains(why, pg.ErrNewer.Error()) {
		r.Broken = append(r.Broken, fmt.Sprintf("an upgrade to an older version failed for another reason: %v; its migration said %q (%v)", err, why, logs))
	}
	if err := s.answer(ctx); err != nil {
		return fmt.Errorf("after an upgrade that was refused: %w", err)
	}
	if err := s.helm(ctx, "uninstall", "signalbox", "--wait", "--timeout", patience.String()); err != nil {
		return err
	}
	_, err = s.do(ctx, "", "kubectl", "delete", "namespace", namespace, "--timeout", patience.String())
	return err
}

// whyMigrationFailed returns what the failed pods of the chart's migration have logged.
func (s *suite) whyMigrationFailed(ctx context.Context) (string, error) {
	pods, err := s.kubectl(ctx, "get", "pods", "-l", "app.kubernetes.io/component=migrate", "--field-selector=status.phase=Failed", "-o", "name")
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for pod := range strings.FieldsSeq(pods) {
		out, err := s.kubectl(ctx, "logs", pod)
		if err != nil {
			return "", err
		}
		all.WriteString(out + "\n")
	}
	return all.String(), nil
}

// pretendNewer records a migration that no version has.
func (s *suite) pretendNewer(ctx context.Context) error {
	db, err := pgx.Connect(ctx, s.world.Database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close(ctx) }() // nothing is left to write
	_, err = db.Exec(ctx, "INSERT INTO gateway."+pg.VersionTable+" (version_id, is_applied) VALUES (99999, true)")
	return err
}

// install installs the servers and the chart.
func install(ctx context.Context, s *suite, r *result) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	password, natsTLS := rand.Text(), "/dev/null"
	if s.tls {
		if _, err := s.do(ctx, "", "deploy/e2e/kube/certificates.sh", namespace); err != nil {
			return err
		}
		natsTLS = "deploy/e2e/kube/manifests/nats-tls.conf"
	}
	begun := time.Now()
	for _, args := range [][]string{
		{"create", "secret", "generic", "postgres-admin", "--from-literal=password=" + password},
		{"create", "configmap", "nats-included", "--from-file=deploy/nats/accounts.conf", "--from-file=tls.conf=" + natsTLS},
		{"create", "configmap", "kill-script", "--from-file=kill.yaml=services/e2e/kill/script.yaml"},
		{"apply", "-f", "deploy/e2e/kube/manifests/servers.yaml"},
	} {
		if _, err := s.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	if err := s.chart(ctx, "install", s.from, "--wait"); err != nil {
		return err
	}
	r.Figures = append(r.Figures, figure{"everything ready", time.Since(begun).Seconds(), "s"})
	a, err := s.address(ctx, "postgres-a")
	if err != nil {
		return err
	}
	b, err := s.address(ctx, "postgres-b")
	if err != nil {
		return err
	}
	if s.world, err = s.reach(ctx, fmt.Sprintf("postgres://postgres:%s@%s:5432,%s:5432/signalbox?sslmode=prefer&target_session_attrs=read-write", password, a, b)); err != nil {
		return err
	}
	return s.answer(ctx)
}

// chart installs or upgrades the release with the chart of a checkout; "" is the program's own.
func (s *suite) chart(ctx context.Context, verb, checkout string, args ...string) error {
	all := []string{verb, "signalbox", filepath.Join(checkout, "deploy/helm/signalbox"), "-f", "deploy/e2e/kube/values.yaml"}
	if s.tls {
		all = append(all, "-f", "deploy/e2e/kube/tls.yaml")
	}
	return s.helm(ctx, append(append(all, "--timeout", patience.String()), args...)...)
}

// reach returns a client's view of the release.
func (s *suite) reach(ctx context.Context, database string) (*world.World, error) {
	secret, err := s.secret(ctx, "signalbox-secrets", "GATEWAY_DEV_SECRET")
	if err != nil {
		return nil, err
	}
	gateway, err := s.address(ctx, "signalbox-gateway")
	if err != nil {
		return nil, err
	}
	simulator, err := s.address(ctx, "signalbox-simulator")
	if err != nil {
		return nil, err
	}
	s.release = world.Installation{
		Gateways: []string{"http://" + gateway + ":8080"}, Simulator: "http://" + simulator + ":8089", Database: database, Secret: secret,
	}
	return world.Attach(s.release)
}

// stories runs the end-to-end stories, with viewers on two of the gateway's pods.
func stories(ctx context.Context, s *suite, r *result) error {
	addresses, err := s.kubectl(ctx, "get", "pods", "-l", "app.kubernetes.io/component=gateway", "-o", "jsonpath={.items[*].status.podIP}")
	if err != nil {
		return err
	}
	in := s.release
	in.Gateways = nil
	for a := range strings.FieldsSeq(addresses) {
		in.Gateways = append(in.Gateways, "http://"+a+":8080")
	}
	n, err := in.Stories(ctx, s.dir)
	r.Figures = append(r.Figures, figure{"stories", float64(n), "passed"})
	return err
}

// answer sends a message and waits for its answer, for which the model calls a tool.
func (s *suite) answer(ctx context.Context) error {
	who, err := s.world.NewMember(ctx, "", "owner")
	if err != nil {
		return err
	}
	c := s.world.Client(0, who)
	session, err := c.NewSession(ctx, "")
	if err != nil {
		return err
	}
	stream, err := c.Send(ctx, session, world.Sending{Content: "what time is it in Tokyo"})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }() // nothing was written
	for called := false; ; {
		ev, err := stream.Next()
		if err != nil {
			return fmt.Errorf("wait for the answer: %w", err)
		}
		called = called || ev.Type == "tool-result"
		if ev.Type == "done" {
			if !called {
				return errors.New("the answer came without the result of a tool")
			}
			return nil
		}
		if ev.Type == "error" {
			return fmt.Errorf("the run ended with an error: %s", ev.Data)
		}
	}
}

// healthy waits until the gateway serves requests again.
func (s *suite) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.world.Gateways[0]+"/ready", nil)
		if err != nil {
			return err
		}
		if res, err := s.world.HTTP.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("the gateway is not ready: %w", err)
		}
	}
}
