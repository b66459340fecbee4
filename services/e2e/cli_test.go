package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"signalbox.dev/pkg/pgtest"

	"signalbox.dev/services/e2e/world"
)

// TestCommandLine runs the scripts of the command line, as a person at a terminal uses it.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	postgres := pgtest.Bin(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cli",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			pgtest.LetIn(t, env.WorkDir)
			env.Setenv("SIGNALBOX_PG_BIN", postgres)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"running":          func(ts *testscript.TestScript, _ bool, args []string) { running(ts, args[0]) },
			"portof":           portOf,
			"appears":          appears,
			"gone":             gone,
			"samefield":        sameField,
			"firstfield":       firstField,
			"nowhere":          nowhere,
			"for-each-service": forEachService,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// running waits until Signalbox runs in a data folder and returns its address.
func running(ts *testscript.TestScript, data string) string {
	var r struct{ URL string }
	for deadline := time.Now().Add(timeout); ; {
		b, err := os.ReadFile(ts.MkAbs(filepath.Join(data, "running.json")))
		if err == nil && json.Unmarshal(b, &r) == nil && r.URL != "" {
			return r.URL
		}
		if time.Now().After(deadline) {
			ts.Fatalf("Signalbox does not start in %s: %v", data, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// portOf puts the port of the Signalbox in a data folder into a variable.
func portOf(ts *testscript.TestScript, _ bool, args []string) {
	u, err := url.Parse(running(ts, args[0]))
	ts.Check(err)
	ts.Setenv(args[1], u.Port())
}

// appears waits until a file that matches a pattern exists.
func appears(ts *testscript.TestScript, _ bool, args []string) {
	for deadline := time.Now().Add(timeout); ; {
		if found, _ := filepath.Glob(ts.MkAbs(args[0])); len(found) > 0 {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not appear", args[0])
		}
		<-time.After(10 * time.Millisecond)
	}
}

// gone fails if a process still works in a data folder: `signalbox up` holds the folder's lock,
// and every process of Postgres that of its own folder.
func gone(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	if _, err := os.Stat(filepath.Join(dir, "running.json")); err == nil {
		ts.Fatalf("running.json still exists")
	}
	for _, name := range []string{"lock", "postgres.lock", "postgres"} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was not created yet
		}
		ts.Check(err)
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			ts.Fatalf("a process still runs and holds the lock of %s", f.Name())
		}
		ts.Check(f.Close())
	}
}

func field(ts *testscript.TestScript, text, name string) string {
	m := regexp.MustCompile(`"` + name + `": "([^"]*)"`).FindStringSubmatch(text)
	if m == nil {
		ts.Fatalf("no %s in %s", name, text)
	}
	return m[1]
}

// sameField compares a field of two JSON files: samefield A B FIELD
func sameField(ts *testscript.TestScript, _ bool, args []string) {
	if a, b := field(ts, ts.ReadFile(args[0]), args[2]), field(ts, ts.ReadFile(args[1]), args[2]); a != b {
		ts.Fatalf("%s is %s and %s", args[2], a, b)
	}
}

// firstField puts the first value of a field into a variable: firstfield FILE FIELD VARIABLE
func firstField(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[2], field(ts, ts.ReadFile(args[0]), args[1]))
}

// nowhere fails if a file below a folder contains a text.
func nowhere(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(filepath.WalkDir(ts.MkAbs(args[0]), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(args[1])) {
			ts.Fatalf("%s contains %q", path, args[1])
		}
		return err
	}))
}

// forEachService runs every service's program with the same arguments.
func forEachService(ts *testscript.TestScript, _ bool, args []string) {
	for _, s := range world.Services() {
		ts.Check(ts.Exec(s, args...))
	}
}
