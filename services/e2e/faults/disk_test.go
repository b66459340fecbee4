package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/e2e/world"
)

// TestFullDisk fills the disk of NATS for a while.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	needFull(t)
	d := newDisk(t)
	r := newRig(t, world.Options{NATSDir: d.dir, Program: d.program})
	r.suffer(t, "full disk under nats", func() {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.supervise(ctx, t)
		}()
		d.tell(t, "fill")
		wait(t.Context(), 10*time.Second)
		d.tell(t, "free")
		wait(t.Context(), 10*time.Second)
		end()
		<-done
	})
	r.once(t)
	r.settle(t, idle)
}

// supervise restarts an unhealthy NATS server, like an orchestrator with a liveness probe. After a
// full disk the server accepts no messages before a restart, even with free space.
func (r *rig) supervise(ctx context.Context, t *testing.T) {
	nats := r.Proc(world.NATSName)
	for bad := 0; wait(ctx, time.Second); {
		err := r.get(ctx, nats.Ops+"/healthz", func(io.Reader) error { return nil })
		if err == nil || ctx.Err() != nil {
			bad = 0
			continue
		}
		if bad++; bad < 3 {
			continue
		}
		t.Logf("nats is not well and is started again: %v", err)
		if err := nats.Kill(); err != nil {
			t.Error(err)
		}
		if err := nats.Restart(); err != nil {
			t.Error(err)
		}
		bad = 0
	}
}

// disk is a small file system in the mount namespace of a shell. That requires root, or user
// namespaces.
type disk struct {
	dir string
	pid int
	in  io.Writer
	out *bufio.Reader
}

const diskShell = `
mount -t tmpfs -o size=96m tmpfs "$1" || exit 1
echo ready
while read -r order; do
	case $order in
	fill) cat /dev/zero >"$1/filling" 2>/dev/null; df "$1" | tail -1 ;;
	free) rm -f "$1/filling"; df "$1" | tail -1 ;;
	esac
done`

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{dir: t.TempDir()}
	flags := "-m"
	if os.Getuid() != 0 {
		flags = "-Urm"
	}
	cmd := exec.Command("unshare", flags, "sh", "-c", diskShell, "disk", d.dir)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err1 != nil || err2 != nil || err != nil {
		t.Fatalf("the test's file system needs unshare (util-linux) on Linux: %v %v %v", err, err1, err2)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	})
	d.pid, d.in, d.out = cmd.Process.Pid, in, bufio.NewReader(out)
	if line, err := d.out.ReadString('\n'); line != "ready\n" {
		_ = cmd.Wait()
		t.Fatalf("the test's file system cannot be created: run this as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): %v %s", err, stderr.String())
	}
	return d
}

// tell sends a command to the shell and waits until it is done.
func (d *disk) tell(t *testing.T, order string) {
	t.Helper()
	if _, err := fmt.Fprintln(d.in, order); err != nil {
		t.Fatal(err)
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s", order, strings.Join(strings.Fields(line), " "))
}

// program implements world.Options.Program: NATS runs in the namespace of the file system.
func (d *disk) program(service string, _ int) string {
	if service != "nats-server" {
		return ""
	}
	flags := "-m"
	if os.Getuid() != 0 {
		flags = "-U -m --preserve-credentials"
	}
	path := filepath.Join(d.dir, "..", "nats-server-in-its-own")
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter -t %s %s %s \"$@\"\n", strconv.Itoa(d.pid), flags, filepath.Join(programs, "nats-server"))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return err.Error() // is not a program, so that the start fails with this text
	}
	return path
}
