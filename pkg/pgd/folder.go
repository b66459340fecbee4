package pgd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// inspect returns the major version of the data folder, 0 if it does not exist yet.
func inspect(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return 0, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return 0, fmt.Errorf("data folder %s belongs to another user: start as that user, or choose another folder: %w", dir, err)
	}
	if err != nil {
		return 0, fmt.Errorf("read the data folder: %w", err)
	}
	damaged := func(what string) error {
		return fmt.Errorf("data folder %s is not empty and %s: it is damaged or not a data folder of PostgreSQL. "+
			"Restore it, or move it away to start with an empty one", dir, what)
	}
	text, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if err != nil {
		return 0, damaged("has no readable PG_VERSION")
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || major <= 0 {
		return 0, damaged(fmt.Sprintf("its PG_VERSION says %.20q", text))
	}
	if _, err := os.Stat(filepath.Join(dir, "global", "pg_control")); err != nil {
		return 0, damaged("has no global/pg_control")
	}
	return major, nil
}

// initialize runs initdb in a folder beside dir and renames it. It removes what killed runs
// left there; the caller holds the owner's lock.
func initialize(ctx context.Context, bins binaries, as user, dir string, fast bool) error {
	old, _ := filepath.Glob(dir + ".init-*") // a dir with odd characters matches nothing
	for _, o := range old {
		_ = os.RemoveAll(o)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".init-")
	if err != nil {
		return fmt.Errorf("create the data folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // does nothing after the rename
	if err := as.chown(tmp); err != nil {
		return err
	}
	// Each start sets the authentication (authenticate).
	args := []string{"-D", tmp, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-instructions", "--data-checksums"}
	if fast {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bins.dir, "initdb"), args...)
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.SysProcAttr = as.attr()
	cmd.WaitDelay = quitTimeout // for initdb's own children
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w; %s", err, explain(lastOf(out)))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("move the new data folder into place (it must not be a mount point; use a folder in it): %w", err)
	}
	return nil
}

// authenticate sets who may connect: everybody who can reach the socket, or with a password
// only roles with theirs. It sets the superuser's password.
func (s *Server) authenticate(ctx context.Context, bins binaries, as user, serverLock *os.File) error {
	method := "trust"
	if s.password != "" {
		method = "scram-sha-256"
	}
	rules := []byte("local all all " + method + "\n")
	file := filepath.Join(s.dir, "pg_hba.conf")
	if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, rules) {
		if err := errors.Join(os.WriteFile(file+".new", rules, 0o600), os.Lchown(file+".new", as.uid, as.uid), os.Rename(file+".new", file)); err != nil {
			return fmt.Errorf("write pg_hba.conf: %w", err)
		}
	}
	if s.password == "" {
		return nil
	}
	// In single-user mode nobody else can connect.
	cmd := exec.CommandContext(ctx, filepath.Join(bins.dir, "postgres"), "--single", "-D", s.dir, "-c", "log_min_error_statement=panic",
		"-c", "recovery_init_sync_method="+syncAfterCrash, "postgres")
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.SysProcAttr = as.attr()
	cmd.ExtraFiles = []*os.File{serverLock}
	cmd.WaitDelay = quitTimeout
	cmd.Stdin = strings.NewReader("ALTER ROLE postgres LOGIN PASSWORD '" + s.password.Reveal() + "'\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("set the administrator's password: %w; %s", err, explain(lastOf(out)))
	}
	return nil
}

// lastOf returns the last lines of an output.
func lastOf(out []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-len(tail{})):], []byte("\n"))
}

// lockOwner takes the lock of the process that runs the server of dir. It waits a moment,
// because an owner that was just killed may not have ended.
func lockOwner(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("the data folder belongs to another user: start as that user, or choose another folder: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := lock(ctx, f, ownerTimeout); err != nil {
		_ = f.Close()
		return nil, running(dir)
	}
	return f, nil
}

func running(dir string) error {
	pid := "" // while it starts
	if p := readPidFile(dir).pid; p > 0 {
		pid = fmt.Sprintf(" (pid %d)", p)
	}
	return fmt.Errorf("data folder %s is in use by a running PostgreSQL%s: stop the program that started it, or choose another folder", dir, pid)
}

// lockServer takes the lock that the server's processes inherit, once the last process of an
// earlier server has released it.
func lockServer(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := lock(ctx, f, serverTimeout); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the earlier PostgreSQL of data folder %s (pid %d) lost its owner and has not ended: %w", dir, readPidFile(dir).pid, err)
	}
	return f, nil
}

// lock polls until the lock is free or the limit is over: the system call has no timeout.
func lock(ctx context.Context, f *os.File, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// sweep removes temporary folders whose owner and server were killed, in the middle of initdb
// or together with the shell. Nothing depends on it, so errors are ignored.
func sweep(parent string) {
	tops, _ := filepath.Glob(filepath.Join(parent, temporary+"*")) // a parent with odd characters matches nothing
	for _, top := range tops {
		info, err := os.Lstat(top)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < time.Minute { // a young folder's owner may not have its locks yet
			continue
		}
		if isFree(filepath.Join(top, "data.lock"), false) && isFree(filepath.Join(top, "data"), true) {
			_ = os.RemoveAll(top)
		}
	}
}

// isFree reports whether the lock on a file is free. For a missing file it returns absent.
func isFree(name string, absent bool) bool {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return absent && errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// pidFile is the content of postmaster.pid.
type pidFile struct {
	pid                int
	port, socket, host string
}

func readPidFile(dir string) pidFile {
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		return pidFile{}
	}
	lines := append(strings.Split(string(text), "\n"), make([]string, 8)...)
	pid, _ := strconv.Atoi(strings.TrimSpace(lines[0]))
	return pidFile{pid: pid, port: lines[3], socket: lines[4], host: lines[5]}
}

// clearStale removes the pid files of a server that was killed. No server of ours is running,
// because we hold its lock, but somebody may have started one by hand. Postgres itself only
// checks whether the process id is in use, and refuses to start after a reboot that gave the
// id to another program.
func clearStale(dir string) error {
	p := readPidFile(dir)
	if p.pid > 0 && syscall.Kill(p.pid, 0) != syscall.ESRCH {
		for network, address := range map[string]string{"unix": filepath.Join(p.socket, ".s.PGSQL."+p.port), "tcp": net.JoinHostPort(p.host, p.port)} {
			if c, err := net.DialTimeout(network, address, time.Second); err == nil {
				_ = c.Close()
				return running(dir)
			}
		}
	}
	for _, name := range []string{"postmaster.pid", socketName, socketName + ".lock"} {
		err := os.Remove(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the files of a killed server: %w", err)
		}
	}
	return nil
}
