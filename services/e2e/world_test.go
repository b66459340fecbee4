package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"signalbox.dev/pkg/id"

	"signalbox.dev/services/e2e/world"
)

// timeout bounds every wait; reaching it is a failure.
const timeout = world.Timeout

// bin is the folder of the programs, created by TestMain.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if driver := os.Getenv(driverURL); driver != "" {
			if err := conformanceClient(driver, os.Args[len(os.Args)-1]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
		dir, err := os.MkdirTemp("", "signalbox-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = dir
		if err := world.Build(context.Background(), dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		for _, h := range []*sharedWorld{standalone, cluster, mixed, stopping, fewSlots} {
			h.stop()
		}
		return code
	}())
}

// started returns a world of the test's own, which is closed with it, or ends the test with the
// error of its start.
func started(t *testing.T, w *world.World, err error) *world.World {
	t.Helper()
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
	return w
}

// sharedWorld is a world that is started for the first story that needs it and stopped
// by TestMain.
type sharedWorld struct {
	name  string
	start func(context.Context, world.Options) (*world.World, error)

	once sync.Once
	err  error
	*world.World
	traces *collector
}

var (
	standalone = &sharedWorld{name: "standalone", start: world.StartStandalone}
	cluster    = &sharedWorld{name: "cluster", start: world.Start}
)

// up starts the world if necessary and returns when it is ready.
func (h *sharedWorld) up(t *testing.T) *sharedWorld {
	t.Helper()
	h.once.Do(func() {
		h.traces = newCollector()
		// Not the test's folder: the world outlives the test that needed it first.
		dir := filepath.Join(bin, h.name)
		if h.err = os.Mkdir(dir, 0o755); h.err != nil {
			return
		}
		h.World, h.err = h.start(context.Background(), world.Options{Dir: dir, Programs: bin, LogLevel: "debug", Traces: h.traces.url, Env: onThisMachine})
	})
	if h.err != nil {
		t.Fatalf("start %s: %v", h.name, h.err)
	}
	return h
}

func (h *sharedWorld) stop() {
	if h.World != nil {
		if err := h.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", h.name, err)
		}
	}
	if h.traces != nil {
		h.traces.server.Close()
	}
}

// newMember creates a member with `signalbox token`, as a person at a terminal does,
// in a new workspace if none is given.
func (h *sharedWorld) newMember(workspace, role string) (world.Member, error) {
	var m world.Member
	if workspace == "" {
		workspace = id.New[id.Workspace]().String()
	}
	args := []string{"token", "--json", "--workspace", workspace, "--member", id.New[id.Member]().String(), "--role", role}
	cmd := exec.Command(filepath.Join(bin, "signalbox"), append(args, h.TokenArgs...)...)
	cmd.Env = append(os.Environ(), h.TokenEnv...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("signalbox token: %w\n%s", err, &stderr)
	}
	return m, json.Unmarshal(out, &m)
}
