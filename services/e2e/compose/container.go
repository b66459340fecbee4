package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

// killerName is a container that sees all processes of the engine. `docker kill` would count as a stop
// on purpose, after which Docker does not restart the container.
const killerName = project + "-killer"

// container is a part of the installation. It implements world.Part: Docker itself restarts it.
type container struct {
	r     *rig
	name  string // of the part: gateway-1
	id    string
	pid   string // of the process that was killed last
	end   func(c *container) error
	limit time.Duration // of one command
}

// parts lists the containers that run all the time.
func (r *rig) parts(ctx context.Context) ([]world.Part, error) {
	b, err := r.compose(ctx, "ps", "--format", "json")
	if err != nil {
		return nil, err
	}
	var parts []world.Part
	for line := range strings.Lines(string(b)) {
		var c struct{ ID, Name, Service string }
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			return nil, fmt.Errorf("docker compose ps: %w", err)
		}
		name := strings.TrimPrefix(c.Name, project+"-")
		if c.Service == world.PostgresName || c.Service == world.NATSName || c.Service == world.SimulatorName {
			name = c.Service
		}
		parts = append(parts, &container{r: r, name: name, id: c.ID, end: killProcess, limit: 2 * time.Minute})
	}
	return parts, nil
}

func (r *rig) startKiller(ctx context.Context) error {
	if err := r.docker(ctx, "rm", "--force", killerName); err != nil {
		return err
	}
	return r.docker(ctx, "run", "--detach", "--name", killerName, "--pid", "host", "--network", "none", "--init", "--entrypoint", "sleep", "postgres:18", "infinity")
}

// killProcess ends the container's first process, and with it all the others.
func killProcess(c *container) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	var err error
	if c.pid, err = c.r.inspect(ctx, c.id, "{{.State.Pid}}"); err != nil {
		return err
	}
	if c.pid == "0" {
		return nil // it is down
	}
	return c.r.docker(ctx, "exec", killerName, "sh", "-c",
		fmt.Sprintf("kill -9 %[1]s 2>/dev/null; while kill -0 %[1]s 2>/dev/null; do sleep 0.01; done", c.pid))
}

// restartContainer stops the container as `docker compose restart` does, and starts it.
func restartContainer(c *container) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	var err error
	if c.pid, err = c.r.inspect(ctx, c.id, "{{.State.Pid}}"); err != nil {
		return err
	}
	return c.r.docker(ctx, "restart", "--timeout", "40", c.id)
}

// Name implements world.Part.
func (c *container) Name() string { return c.name }

// Kill implements world.Part.
func (c *container) Kill() error { return c.end(c) }

// Stop implements world.Part.
func (c *container) Stop() error { return errors.New("stop " + c.name + ": it belongs to Compose") }

// Restart implements world.Part: the engine does it.
func (c *container) Restart() error { return nil }

// Running implements world.Part.
func (c *container) Running() bool { return true }

// Ready implements world.Part: a new process is healthy.
func (c *container) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	for {
		state, err := c.r.inspect(ctx, c.id, "{{.State.Pid}} {{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}")
		if pid, rest, _ := strings.Cut(state, " "); err == nil && pid != c.pid && rest == "running healthy" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is %q: %w", c.name, state, errors.Join(err, ctx.Err()))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
