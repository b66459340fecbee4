package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// atTerminal returns the output of a command at a terminal of that many columns, without
// colours.
func (p *place) atTerminal(t *testing.T, columns uint16, args ...string) string {
	t.Helper()
	ours, theirs := pty(t)
	if err := unix.IoctlSetWinsize(int(theirs.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: columns}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "signalbox", args...)
	cmd.Env = append(os.Environ(), append(p.environ, "NO_COLOR=1")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close() // the program has its own
	seen, err := io.ReadAll(ours)
	if err != nil && !errors.Is(err, syscall.EIO) { // the other end is closed
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, seen)
	}
	return strings.ReplaceAll(string(seen), "\r\n", "\n")
}

// Tables fit, wide characters take two columns, invisible characters are removed, and ids stay
// whole.
func TestTables(t *testing.T) {
	t.Parallel()
	p := newPlace(t, t.TempDir())
	for _, label := range []string{"plain", strings.Repeat("茶", 12), "turned", "e\u0301te\u0301"} {
		cmd := exec.CommandContext(t.Context(), "signalbox", "accounts", "add", "openai", "--no-check", "--label", label)
		cmd.Env = append(os.Environ(), p.environ...)
		cmd.Stdin = strings.NewReader("sk-planted-secret-00000001\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	admin, err := pgx.Connect(t.Context(), p.adminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	// As from a version that did not check labels.
	if _, err := admin.Exec(t.Context(), `UPDATE credentials.accounts SET label = $1 WHERE label = 'turned'`, "tu\u202ern\u200be\u2066d\u2028\u3164"); err != nil {
		t.Fatal(err)
	}
	for columns, want := range map[uint16]string{
		200: `
ID                                    PROVIDER  KEY    LABEL                     FOR             STATUS  HEALTH  LAST USED
ID1  openai    …0001  plain                     all workspaces  ready   100     never
ID2  openai    …0001  茶茶茶茶茶茶茶茶茶茶茶茶  all workspaces  ready   100     never
ID3  openai    …0001  turned                    all workspaces  ready   100     never
ID4  openai    …0001  été                       all workspaces  ready   100     never
`,
		107: `
ID                                    PROVIDER  KEY    LABEL        FOR           STATUS  HEALTH  LAST USED
ID1  openai    …0001  plain        all workspa…  ready   100     never
ID2  openai    …0001  茶茶茶茶茶…  all workspa…  ready   100     never
ID3  openai    …0001  turned       all workspa…  ready   100     never
`,
		60: `
ID         ID1
PROVIDER   openai
KEY        …0001
LABEL      plain
FOR        all workspaces
STATUS     ready
HEALTH     100
LAST USED  never

ID         ID2
`,
	} {
		got := p.atTerminal(t, columns, "accounts", "list")
		for line := range strings.Lines(got) {
			if n := taken(strings.TrimSuffix(line, "\n")); n > int(columns) {
				t.Errorf("at %d columns a line has %d: %s", columns, n, line)
			}
		}
		if got = "\n" + plainText(got, "nowhere"); !strings.HasPrefix(got, want) {
			t.Errorf("at %d columns it writes %s, want %s", columns, got, want)
		}
	}
}

// taken returns the columns of a text of tea and accents.
func taken(text string) int {
	return len([]rune(text)) + strings.Count(text, "茶") - strings.Count(text, "\u0301")
}

var (
	settingHelp = regexp.MustCompile(`(?m)^  ([a-z_]+)  +((?:.|\n {32})*)$`)
	rangeIn     = regexp.MustCompile(`out of range: use (\S+) to ([^\s;]+)`)
)

// The help of config lists every setting with its range and default.
func TestSettingsHelp(t *testing.T) {
	t.Parallel()
	p := newFilePlace(t, t.TempDir())
	run := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "signalbox", append([]string{"accounts", "config"}, args...)...)
		cmd.Env = append(os.Environ(), p.environ...)
		out, _ := cmd.CombinedOutput() // an error is part of the output
		return string(out)
	}
	help := map[string]string{}
	for _, m := range settingHelp.FindAllStringSubmatch(run("--help"), -1) {
		help[m[1]] = strings.Join(strings.Fields(m[2]), " ")
	}
	var pool struct{ Settings map[string]any }
	if err := json.Unmarshal([]byte(run("openai", "--json")), &pool); err != nil {
		t.Fatal(err)
	}
	for name, value := range pool.Settings {
		want := fmt.Sprintf("; %v", value)
		if m := rangeIn.FindStringSubmatch(run("openai", name+"=-1e9")); m != nil {
			most := strings.Replace(m[2], "1e+06", "1000000", 1)
			if name == "initial_tokens" {
				most = "max_tokens"
			}
			want = fmt.Sprintf("; %s to %s%s", m[1], most, want)
		} else if name != "strategy" {
			t.Errorf("%s has no range", name)
		}
		if !strings.HasSuffix(help[name], want) {
			t.Errorf("the help of %s is %q, and does not end with %q", name, help[name], want)
		}
	}
	if len(help) != len(pool.Settings) {
		t.Errorf("the help has %d settings, want %d", len(help), len(pool.Settings))
	}
}
