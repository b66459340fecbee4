package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"time"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/kill"
	"signalbox.dev/services/e2e/world"
)

// stories runs the stories of package e2e against the installation.
func stories(ctx context.Context, r *rig) error { return r.tell(ctx, r.installation()) }

func (r *rig) tell(ctx context.Context, in world.Installation) error {
	n, err := in.Stories(ctx, r.dir)
	r.say("   %d stories told", n)
	return err
}

// storm keeps conversations going while parts end, and checks each of them.
func (r *rig) storm(ctx context.Context, w *world.World) error {
	if err := r.startKiller(ctx); err != nil {
		return err
	}
	logs, err := os.MkdirTemp(r.dir, "storm-")
	if err != nil {
		return err
	}
	var report strings.Builder
	result, err := kill.Run(ctx, kill.Config{
		World: w, FarEnd: farEndAddress, Dir: logs, Seed: rand.Uint64N(1_000_000), Kills: r.kills, Rate: r.rate, Talkers: int(10 * r.rate),
		Least: 2 * time.Second, Most: 4 * time.Second, Out: &report,
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, &report)
	}
	r.say("   seed %d: kills %v, %d messages, %d runs, %d events seen, %d problems", result.Seed, result.Kills, result.Messages, result.Runs, result.Sights, len(result.Problems))
	if !result.OK() || result.Runs < r.kills {
		result.Write(&report)
		return fmt.Errorf("invariants were violated, or too few runs were checked (evidence in %s)\n%s", logs, &report)
	}
	return os.RemoveAll(logs)
}

func kills(ctx context.Context, r *rig) error {
	w, err := r.world(ctx)
	if err != nil {
		return err
	}
	return r.storm(ctx, w)
}

func restarts(ctx context.Context, r *rig) error {
	parts, err := r.parts(ctx)
	if err != nil {
		return err
	}
	for _, p := range parts {
		p.(*container).end = restartContainer
	}
	w, err := world.Attach(r.installation(), parts...)
	if err != nil {
		return err
	}
	return r.storm(ctx, w)
}

// upgrade changes the version of agent-runner there and back again.
func upgrade(ctx context.Context, r *rig) error {
	const version = "9.9.9-next"
	_, err := r.output(ctx, nil, nil, "docker", "build", "--file", "deploy/Dockerfile", "--build-arg", "SERVICE="+subject.AgentRunner,
		"--build-arg", "VERSION="+version, "--tag", "signalbox/"+subject.AgentRunner+":next", ".")
	if err != nil {
		return err
	}
	before, err := r.ids(ctx)
	if err != nil {
		return err
	}
	tag := r.tag
	replace := func(c *container) error {
		ctx, cancel := context.WithTimeout(ctx, c.limit)
		defer cancel()
		tag = map[string]string{r.tag: "next", "next": r.tag}[tag]
		_, err := r.output(ctx, nil, []string{"TAG=" + tag}, "docker", r.composeArgs("up", "--detach", "--no-build", "--no-deps", "--wait", subject.AgentRunner)...)
		if err != nil {
			return err
		}
		ids, err := r.ids(ctx)
		c.id, c.pid = ids[subject.AgentRunner+"-1"], ""
		return err
	}
	w, err := world.Attach(r.installation(), &container{r: r, name: subject.AgentRunner + "-1", end: replace, limit: 3 * time.Minute})
	if err != nil {
		return err
	}
	all := r.kills
	r.kills = 3
	defer func() { r.kills = all }()
	if err := r.storm(ctx, w); err != nil {
		return err
	}
	after, err := r.ids(ctx)
	if err != nil {
		return err
	}
	for name, id := range before {
		if changed := after[name] != id; changed != (name == subject.AgentRunner+"-1") {
			return fmt.Errorf("%s was replaced: %t", name, changed)
		}
	}
	said, err := r.output(ctx, nil, nil, "docker", "exec", after[subject.AgentRunner+"-1"], "/service", "--version")
	if err == nil && !strings.Contains(string(said), version) {
		err = fmt.Errorf("agent-runner is of version %s, want %s", said, version)
	}
	return errors.Join(err, r.up(ctx, "--no-build")) // the first version again
}

// ids returns the ids of the containers by the names of parts.
func (r *rig) ids(ctx context.Context) (map[string]string, error) {
	parts, err := r.parts(ctx)
	out := map[string]string{}
	for _, p := range parts {
		out[p.Name()] = p.(*container).id
	}
	return out, err
}

// backup follows docs/operate.md, "Back up and restore".
func backup(ctx context.Context, r *rig) error {
	w, err := r.world(ctx)
	if err != nil {
		return err
	}
	who, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		return err
	}
	c := w.Client(0, who)
	const markdown = "# Kept\n\nThis is to survive.\n"
	var made struct{ Document struct{ ID string } }
	err = c.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "kept", "content": markdown}}, &made)
	if err != nil {
		return err
	}
	session, err := c.NewSession(ctx, "")
	if err != nil {
		return err
	}
	if _, err := c.Submit(ctx, session, world.Sending{Content: "hello"}); err != nil {
		return err
	}
	add := r.composeArgs("run", "--rm", "--no-TTY", "accounts", "add", "anthropic", "--no-check", "--label", "kept", "--workspace", who.Workspace)
	if _, err := r.output(ctx, strings.NewReader("sk-ant-kept\n"), nil, "docker", add...); err != nil {
		return err
	}
	dump, err := r.compose(ctx, "exec", "--no-TTY", "postgres", "pg_dump", "--username=signalbox", "--format=custom", "signalbox")
	if err != nil {
		return err
	}
	key, err := r.compose(ctx, "cp", "credential-broker:/data/seal.key", "-") // a tar archive
	if err != nil {
		return err
	}
	r.say("   %d bytes of dump, %d of key", len(dump), len(key))

	if _, err := r.compose(ctx, "down", "--volumes", "--timeout", "40"); err != nil {
		return err
	}
	began := time.Now()
	if _, err := r.compose(ctx, "up", "--detach", "--wait", "--no-build", "postgres", "nats"); err != nil {
		return err
	}
	if _, err := r.compose(ctx, "run", "--rm", "migrate"); err != nil {
		return err
	}
	restore := r.composeArgs("exec", "--no-TTY", "postgres", "pg_restore", "--username=signalbox", "--clean", "--if-exists", "--exit-on-error", "--dbname=signalbox")
	if _, err := r.output(ctx, bytes.NewReader(dump), nil, "docker", restore...); err != nil {
		return err
	}
	if _, err := r.compose(ctx, "create", "--no-build", "credential-broker"); err != nil {
		return err
	}
	if _, err := r.output(ctx, bytes.NewReader(key), nil, "docker", r.composeArgs("cp", "--archive", "-", "credential-broker:/data")...); err != nil {
		return err
	}
	if err := r.up(ctx, "--no-build"); err != nil {
		return err
	}
	r.say("   restored and up after %.1f s", time.Since(began).Seconds())

	messages, err := c.Messages(ctx, session)
	if err == nil && len(messages) == 0 {
		err = errors.New("the session has no messages")
	}
	var read struct{ Document struct{ Content string } }
	err = errors.Join(err, c.Call(ctx, world.Request{Method: http.MethodGet, Path: "/api/documents/" + made.Document.ID}, &read))
	if err == nil && read.Document.Content != markdown {
		err = fmt.Errorf("the document is %q", read.Document.Content)
	}
	if err != nil {
		return err
	}
	var rotated struct{ Sealed, Failed int }
	b, err := r.compose(ctx, "run", "--rm", "--no-TTY", "accounts", "rotate-keys", "--yes", "--json")
	if err == nil {
		err = json.Unmarshal(b, &rotated)
	}
	if err == nil && (rotated.Sealed == 0 || rotated.Failed > 0) {
		err = fmt.Errorf("%d secrets were decrypted and %d were not", rotated.Sealed, rotated.Failed)
	}
	return err
}

const (
	replicasFile   = "deploy/compose/replicas.yml"
	monitoringFile = "deploy/compose/monitoring.yml"
)

func replicas(ctx context.Context, r *rig) error {
	r.shape = []string{replicasFile}
	if err := r.up(ctx, "--no-build"); err != nil {
		return err
	}
	// The stories have viewers on both gateways.
	var gateways []string
	for _, n := range []string{"1", "2"} {
		ip, err := r.inspect(ctx, project+"-gateway-"+n, `{{(index .NetworkSettings.Networks "`+project+`_outside").IPAddress}}`)
		if err != nil {
			return err
		}
		gateways = append(gateways, "http://"+ip+":8080")
	}
	if err := r.tell(ctx, r.installation(gateways...)); err != nil {
		return err
	}
	w, err := r.world(ctx) // through the balancer
	if err != nil {
		return err
	}
	if err := r.storm(ctx, w); err != nil {
		return err
	}
	r.shape = nil
	return r.up(ctx, "--no-build", "--remove-orphans")
}

func monitoring(ctx context.Context, r *rig) error {
	r.shape = []string{monitoringFile}
	// Grafana's image is not to be had everywhere.
	if _, err := r.compose(ctx, "up", "--detach", "--wait", "--no-build", "prometheus"); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := scraped(limited)
		if err == nil {
			break
		}
		select {
		case <-limited.Done():
			return err
		case <-time.After(time.Second):
		}
	}
	var rules struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Health string }
			}
		}
	}
	if err := getJSON(ctx, "http://127.0.0.1:9090/api/v1/rules", &rules); err != nil {
		return err
	}
	n := 0
	for _, g := range rules.Data.Groups {
		n += len(g.Rules)
	}
	if n == 0 {
		return errors.New("there are no alerts in Prometheus")
	}
	r.say("   all targets are up, %d alerts", n)
	_, err := r.compose(ctx, "rm", "--stop", "--force", "--volumes", "prometheus")
	r.shape = nil
	return err
}

// scraped reports what Prometheus does not scrape.
func scraped(ctx context.Context) error {
	var targets struct {
		Data struct {
			ActiveTargets []struct {
				Labels            map[string]string
				Health, LastError string
			}
		}
	}
	if err := getJSON(ctx, "http://127.0.0.1:9090/api/v1/targets", &targets); err != nil {
		return err
	}
	up := map[string]bool{}
	for _, t := range targets.Data.ActiveTargets {
		if t.Health != "up" {
			return fmt.Errorf("%v is %s: %s", t.Labels, t.Health, t.LastError)
		}
		up[t.Labels["job"]] = true
	}
	for _, service := range world.Services() {
		if !up[service] {
			return fmt.Errorf("%s is not scraped", service)
		}
	}
	return nil
}

func getJSON(ctx context.Context, url string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return json.NewDecoder(io.LimitReader(res.Body, 32<<20)).Decode(out)
}
