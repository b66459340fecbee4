package world

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"signalbox.dev/pkg/freeport"
)

// StartStandalone runs `signalbox up`: everything in one process, with its own database and bus.
// It uses the options Dir, Programs, Program, Env, LogLevel and DataDir. The caller closes the
// world, even after an error.
func StartStandalone(ctx context.Context, o Options) (*World, error) {
	w, err := newWorld(o)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(w.opts.DataDir, "data")
	addr, err := freeport.Addr()
	if err != nil {
		return w, err
	}
	url := "http://" + addr
	p, err := w.start(ctx, spec{
		name: Standalone, service: Standalone, replica: 1, addr: addr, health: url + "/ready",
		args: []string{"up", "--http", addr, "--data", data}, env: []string{"LOG_LEVEL=" + w.opts.LogLevel, untitled},
	})
	if err != nil {
		return w, err
	}
	w.Gateways = []string{url, url}
	w.TokenArgs = []string{"--data", data}
	var running struct {
		OpsURL      string `json:"ops_url"`
		DatabaseURL string `json:"database_url"`
	}
	var identity struct {
		Secret string `json:"dev_secret"`
	}
	err = errors.Join(readJSON(ctx, filepath.Join(data, "running.json"), &running), readJSON(ctx, filepath.Join(data, "identity.json"), &identity))
	w.Database, w.secret, p.Ops = running.DatabaseURL, identity.Secret, running.OpsURL
	return w, err
}

// readJSON reads a file once it exists: the server listens a moment earlier.
func readJSON(ctx context.Context, file string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for {
		b, err := os.ReadFile(file)
		if err == nil {
			return json.Unmarshal(b, v)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}
