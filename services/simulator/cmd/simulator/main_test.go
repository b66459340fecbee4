package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/pkg/process"
)

// TestServe starts the program, asks for its health, and ends it.
func TestServe(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logs, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"--addr", "127.0.0.1:0", "--pace", "0"}, []string{"SIMULATOR_ADDR=256.0.0.1:1"}, io.Discard, w)
		_ = w.Close()
	}()
	scan := bufio.NewScanner(logs)
	if !scan.Scan() {
		t.Fatalf("no line was logged: %v", <-done)
	}
	var line struct{ Address string }
	if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/health", "/ready", "/simulator/scripts"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+line.Address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("GET %s = %d, want 200", path, resp.StatusCode)
		}
	}
	check := func() error {
		return run(t.Context(), []string{"--healthcheck"}, []string{"SIMULATOR_ADDR=" + line.Address}, io.Discard, io.Discard)
	}
	if err := check(); err != nil {
		t.Errorf("--healthcheck of a running simulator = %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run ended with %v", err)
	}
	if err := check(); err == nil {
		t.Error("--healthcheck of nothing is well")
	}
}

// TestCommandLine checks help and what is refused.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), []string{"--help"}, nil, &out, io.Discard); err != nil {
		t.Errorf("--help = %v", err)
	}
	for _, want := range []string{"--addr", "SIMULATOR_ADDR", "SIMULATOR_SCRIPT", "SIMULATOR_PACE", "LOG_LEVEL"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("--help does not tell of %s", want)
		}
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("rules:\n  - then: [{sing: a}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		args  []string
		env   []string
		want  string
		usage bool
	}{
		{args: []string{"--nope"}, want: "flag provided but not defined", usage: true},
		{args: []string{"extra"}, want: `unexpected argument "extra"`, usage: true},
		{args: []string{"--pace", "-1"}, want: "SIMULATOR_PACE is -1: use a factor"},
		{env: []string{"SIMULATOR_PACE=fast"}, want: "SIMULATOR_PACE"},
		{args: []string{"--script", bad}, want: "bad.yaml:2:13: rules[0].then[0].sing"},
		{args: []string{"--script", bad + "x"}, want: "no such file"},
		{args: []string{"--addr", "127.0.0.1:99999"}, want: "99999"},
		{env: []string{"LOG_FORMAT=xml"}, want: "LOG_FORMAT"},
	}
	for _, c := range cases {
		err := run(t.Context(), c.args, c.env, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, process.ErrUsage) != c.usage {
			t.Errorf("run(%v, %v) = %v, want an error with %q (usage: %t)", c.args, c.env, err, c.want, c.usage)
		}
	}
}
