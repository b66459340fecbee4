package e2e_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"signalbox.dev/pkg/pgtest"

	"signalbox.dev/services/e2e/world"
)

// inside is set in the process of TestFullDisk that may mount a file system.
const inside = "SIGNALBOX_E2E_INSIDE"

// TestFullDisk fills the disk of a standalone Signalbox. Requests that cannot be stored get 503
// and the reason, and once there is space again everything continues by itself. The disk is a
// small file system in a separate mount namespace.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getenv(inside) == "" {
		enter(t)
		return
	}
	disk := pgtest.Folder(t)
	if err := syscall.Mount("disk", disk, "tmpfs", 0, "size=192m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }) // it ends with this process anyway
	s := newSolo(t, disk)
	s.ends(s.submit("hello"))
	before := s.submit("count to 100")

	filling := filepath.Join(disk, "filling")
	fill(t, filling)
	page := strings.Repeat("A line of a document.\n\n", 4000)
	var refused *world.Refused
	for i := 0; refused == nil && i < 500; i++ {
		if err := s.createDocument(page); err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
	}
	if refused == nil || refused.Status != http.StatusServiceUnavailable || refused.Code != "DISK_FULL" || !strings.Contains(refused.Message, "make room") {
		t.Errorf("creating a document on a full disk = %v, want 503 DISK_FULL and advice", refused)
	}
	if err := s.ready(); err == nil || !strings.Contains(err.Error(), `"disk":"not ready"`) {
		t.Errorf("/ready on a full disk = %v", err)
	}
	runs := []string{before}
	for range 3 { // each is accepted and stored, or refused
		run, err := s.client.Submit(t.Context(), s.session, world.Sending{Content: "hello"})
		switch {
		case err == nil:
			runs = append(runs, run.ID)
		case !errors.As(err, &refused) || refused.Code != "DISK_FULL":
			t.Errorf("sending a message on a full disk = %v", err)
		}
	}
	fill(t, filling)

	if err := os.Remove(filling); err != nil {
		t.Fatal(err)
	}
	s.until("documents can be made", func() error { return s.createDocument(page) })
	s.until("/ready says so", s.ready)
	for _, run := range append(runs, s.submit("hello")) {
		s.ends(run)
	}
}

// fill creates or extends a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was meant to fail
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// enter runs the test again in a mount namespace.
func enter(t *testing.T) {
	t.Helper()
	args := []string{"--mount"}
	if os.Getuid() != 0 {
		args = []string{"--user", "--map-current-user", "--keep-caps", "--mount"}
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", append(args, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no mount namespace can be created here: unshare: %v %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(args, os.Args[0], "-test.run=^TestFullDisk$", "-test.v")...)
	cmd.Env = append(os.Environ(), inside+"=yes", world.Built+"="+bin)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "--- SKIP") {
		t.Errorf("in the mount namespace: %v\n%s", err, out)
	}
}
