package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

// project is Compose's name of the installation.
const project = "signalbox-e2e"

// published is where the gateway, or the balancer, is reached.
const published = "127.0.0.1:18080"

// rig is the installation and what the steps share.
type rig struct {
	root, dir string // the checkout, and a folder for files of ours
	out       io.Writer
	began     time.Time
	kills     int
	rate      float64
	images    string // archive of a release's images
	build     bool
	tag       string   // of the images that run
	profile   string   // of Compose; "" for none
	shape     []string // files besides docker-compose.yml
	variables []string // over those of the file, for Compose
	settings  map[string]string
}

func (r *rig) say(format string, args ...any) {
	fmt.Fprintf(r.out, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// output runs a command in the checkout, with additional environment variables, and returns what it
// prints. The error has both outputs.
func (r *rig) output(ctx context.Context, stdin io.Reader, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdin, cmd.Env = r.root, stdin, append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := append(stdout.Bytes(), stderr.Bytes()...)
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said[max(0, len(said)-6000):])
	}
	return stdout.Bytes(), nil
}

func (r *rig) docker(ctx context.Context, args ...string) error {
	_, err := r.output(ctx, nil, nil, "docker", args...)
	return err
}

// inspect returns a property of a container, an image and so on.
func (r *rig) inspect(ctx context.Context, name, format string) (string, error) {
	b, err := r.output(ctx, nil, nil, "docker", "inspect", "--format", format, name)
	return strings.TrimSpace(string(b)), err
}

func (r *rig) composeArgs(args ...string) []string {
	all := []string{"compose", "--project-name", project, "--env-file", r.file("env"), "--file", "docker-compose.yml"}
	for _, f := range append(r.shape, r.file("override.json")) {
		all = append(all, "--file", f)
	}
	if r.profile != "" {
		all = append(all, "--profile", r.profile)
	}
	return append(all, args...)
}

// compose runs `docker compose`.
func (r *rig) compose(ctx context.Context, args ...string) ([]byte, error) {
	return r.output(ctx, nil, r.variables, "docker", r.composeArgs(args...)...)
}

func (r *rig) file(name string) string { return filepath.Join(r.dir, name) }

// install starts the shipped installation from nothing, and asks it something.
func (r *rig) install(ctx context.Context) error {
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := r.writeEnv(ctx); err != nil {
		return err
	}
	if err := r.down(ctx); err != nil {
		return err
	}
	if !r.build {
		return r.up(ctx, "--no-build")
	}
	// signalbox has the packages of all the others: they are compiled once.
	for _, services := range [][]string{{"migrate"}, nil} {
		if _, err := r.compose(ctx, append([]string{"build"}, services...)...); err != nil {
			return err
		}
		if services == nil {
			r.say("all images are built")
		}
	}
	return r.up(ctx, "--build")
}

// writeEnv makes the settings as a newcomer does, and chooses another port.
func (r *rig) writeEnv(ctx context.Context) error {
	env := r.file("env")
	if err := os.Remove(env); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := r.output(ctx, nil, nil, "sh", "deploy/make-env.sh", "--development", env); err != nil {
		return err
	}
	b, err := os.ReadFile(env)
	if err != nil {
		return err
	}
	r.settings = map[string]string{}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			r.settings[name] = value
		}
	}
	b = fmt.Appendf(b, "\nSIGNALBOX_HTTP=%s\nTAG=%s\nRESEARCH_REPO=signalbox/research\n", published, r.tag)
	return errors.Join(os.WriteFile(env, b, 0o600), r.writeOverride())
}

// up brings the project to its shape, and measures until the first answer.
func (r *rig) up(ctx context.Context, args ...string) error {
	began := time.Now()
	if _, err := r.compose(ctx, append([]string{"up", "--detach", "--wait", "--wait-timeout", "300"}, args...)...); err != nil {
		return err
	}
	ready := time.Since(began)
	w, err := r.world(ctx)
	if err != nil {
		return err
	}
	who, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		return err
	}
	if err := ask(ctx, w.Client(0, who), "hello"); err != nil {
		return err
	}
	r.say("up: all healthy after %.1f s, the first answer after %.1f s", ready.Seconds(), time.Since(began).Seconds())
	return nil
}

// ask sends a message in a new session and waits for the answer.
func ask(ctx context.Context, c world.Client, content string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	session, err := c.NewSession(ctx, "")
	if err != nil {
		return err
	}
	var said struct{ Content string }
	err = c.Call(ctx, world.Request{
		Method: http.MethodPost, Path: "/api/sessions/" + session + "/messages", Header: http.Header{"Accept": {"application/json"}},
		Body: world.Sending{Content: content},
	}, &said)
	if err == nil && said.Content == "" {
		err = errors.New("the answer is empty")
	}
	return err
}

// installation describes the project for package world.
func (r *rig) installation(gateways ...string) world.Installation {
	if len(gateways) == 0 {
		gateways = []string{"http://" + published}
	}
	return world.Installation{
		Gateways: gateways, Simulator: "http://" + simulatorAddress + ":8089",
		Database: "postgres://signalbox:" + r.settings["POSTGRES_PASSWORD"] + "@" + postgresAddress + ":5432/signalbox?sslmode=disable",
		Secret:   r.settings["GATEWAY_DEV_SECRET"],
	}
}

func (r *rig) world(ctx context.Context) (*world.World, error) {
	parts, err := r.parts(ctx)
	if err != nil {
		return nil, err
	}
	return world.Attach(r.installation(), parts...)
}

// logs shows the ends of the logs of all containers.
func (r *rig) logs(ctx context.Context) {
	b, err := r.compose(ctx, "logs", "--no-color", "--tail", "15")
	if err != nil {
		b = []byte(err.Error())
	}
	r.say("the ends of the logs:\n%s", b)
}

// down removes the project and sees that nothing of it is left.
func (r *rig) down(ctx context.Context) error {
	r.shape, r.profile = []string{replicasFile, monitoringFile}, "*"
	defer func() { r.shape, r.profile = nil, "" }()
	if _, err := r.compose(ctx, "down", "--volumes", "--remove-orphans", "--timeout", "40"); err != nil {
		return err
	}
	if err := r.docker(ctx, "rm", "--force", "--volumes", killerName); err != nil {
		return err
	}
	for _, kind := range [][]string{{"ps", "--all"}, {"volume", "ls"}, {"network", "ls"}} {
		b, err := r.output(ctx, nil, nil, "docker", append(kind, "--quiet", "--filter", "label=com.docker.compose.project="+project)...)
		if err != nil {
			return err
		}
		if len(b) > 0 {
			return fmt.Errorf("after `docker compose down`, docker %s lists %s", strings.Join(kind, " "), b)
		}
	}
	return nil
}
