package datadir_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/standalone/internal/datadir"
)

func open(t *testing.T, path string) *datadir.Dir {
	t.Helper()
	d, err := datadir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deep", "data")
	first, err := open(t, path).Identity()
	if err != nil {
		t.Fatal(err)
	}
	again, err := open(t, path).Identity()
	if err != nil || again != first {
		t.Errorf("Identity = %v, %v, want the same again", again, err)
	}
	info, err := os.Stat(filepath.Join(path, "identity.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("identity.json has mode %v, %v, want 0600", info.Mode(), err)
	}
	for _, text := range []string{"", "{", `{"workspace_id":"x"}`, "{}"} {
		if err := os.WriteFile(filepath.Join(path, "identity.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t, path).Identity(); err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "backup") {
			t.Errorf("Identity of %q = %v, want an error that says what to do", text, err)
		}
		if b, _ := os.ReadFile(filepath.Join(path, "identity.json")); string(b) != text {
			t.Errorf("a damaged file was written over with %q", b)
		}
	}
}

// Postgres, which does not run as root, must be able to traverse root's folder.
func TestModes(t *testing.T) {
	t.Parallel()
	want := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		want = 0o711
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "deep", "data"), closed} {
		open(t, path)
		for name, want := range map[string]os.FileMode{path: want, filepath.Join(path, "keys"): 0o700} {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s has mode %v, %v, want %v", name, info.Mode().Perm(), err, want)
			}
		}
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	one, two := open(t, path), open(t, path)
	if err := one.SetRunning(datadir.Running{PID: 1, URL: "http://x"}); err != nil {
		t.Fatal(err)
	}
	if _, alive, err := two.Running(); alive || err != nil {
		t.Errorf("Running = %v, %v; nobody holds the lock", alive, err)
	}
	if err := one.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := two.Lock(); !errors.Is(err, datadir.ErrLocked) {
		t.Errorf("Lock of a locked folder = %v, want ErrLocked", err)
	}
	if r, alive, err := two.Running(); !alive || err != nil || r.URL != "http://x" {
		t.Errorf("Running = %v, %v, %v", r, alive, err)
	}
	one.Unlock()
	if err := two.Lock(); err != nil {
		t.Errorf("Lock after Unlock = %v", err)
	}
	two.Unlock()
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := datadir.Open(file); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("Open of a file = %v, want an error that says what to do", err)
	}
}

// LockOrRunning waits for a short holder of the lock, and finds a running Signalbox.
func TestLockOrRunning(t *testing.T) {
	t.Parallel()
	ctx, path := t.Context(), t.TempDir()
	holder, other := open(t, path), open(t, path)
	if err := holder.SetRunning(datadir.Running{URL: "http://left.behind"}); err != nil {
		t.Fatal(err)
	}
	if _, alive, err := holder.LockOrRunning(ctx, time.Minute); alive || err != nil {
		t.Fatalf("LockOrRunning where one was killed = %v, %v; want the lock", alive, err)
	}
	if _, alive, err := other.LockOrRunning(ctx, time.Nanosecond); alive || !errors.Is(err, datadir.ErrLocked) {
		t.Errorf("LockOrRunning = %v, %v; want ErrLocked", alive, err)
	}
	got := make(chan error, 1)
	go func() {
		_, alive, err := other.LockOrRunning(ctx, time.Minute)
		if alive {
			err = errors.New("one runs there")
		}
		got <- err
	}()
	holder.Unlock()
	if err := <-got; err != nil {
		t.Errorf("LockOrRunning once it is free = %v", err)
	}
	want := datadir.Running{URL: "http://127.0.0.1:1"}
	if err := other.SetRunning(want); err != nil {
		t.Fatal(err)
	}
	if r, alive, err := holder.LockOrRunning(ctx, time.Minute); r != want || !alive || err != nil {
		t.Errorf("LockOrRunning where one runs = %v, %v, %v; want %v", r, alive, err, want)
	}
}
