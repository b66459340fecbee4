package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pipe runs a command in a pipe.
func (g *gateway) pipe(t *testing.T, environ []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "signalbox", args...)
	cmd.Env = append(append(append(os.Environ(), "VISUAL="), g.environ()...), environ...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the code tells
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestDocsAndSessions(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	temporary := "TMPDIR=" + t.TempDir()
	for _, tt := range []struct {
		args, editor, stdout, stderr string
		code                         int
	}{
		{args: "sessions list", stdout: "ID\tTITLE\tMODEL\tUPDATED\n" + sessionID + "\tAbout tea\tsim/model-1\t2026-11-23 14:53\n"},
		{args: "sessions show 0001", stdout: "> an earlier question\n\nan **earlier** answer\n"},
		{args: "sessions show 9", stderr: "no id among the 1 newest sessions begins or ends with", code: 1},
		{args: "sessions show", stderr: "usage: show takes one id", code: 2},
		{args: "sessions list --limit 0", stderr: "usage: --limit", code: 2},
		{args: "sessions nope", stderr: "usage: unknown command", code: 2},
		{args: "sesions", stderr: `usage: unknown command "sesions" for signalbox`, code: 2},
		{args: "version nope", stderr: "usage: signalbox version takes no argument", code: 2},
		{args: "help sesions", stderr: `usage: unknown command "sesions" for signalbox`, code: 2},
		{args: "help docs nope", stderr: `usage: unknown command "nope" for signalbox docs`, code: 2},
		{args: "help docs show", stdout: "Shows a document"},
		{args: "completion nope", stderr: `usage: unknown command "nope" for signalbox completion`, code: 2},
		{args: "completion bash nope", stderr: "usage: signalbox completion bash takes no argument", code: 2},
		{args: "completion", stdout: "Generate the autocompletion script for signalbox"},
		{args: "completion bash", stdout: "# bash completion"},
		{args: "__complete docs show 0", stdout: documentID + "\tTea\n", stderr: "ShellCompDirectiveNoFileComp"},
		{args: "__complete chat --session 0", stdout: sessionID + "\tAbout tea\n", stderr: "ShellCompDirectiveNoFileComp"},
		{args: "chat --session 0001 find", stdout: "→ doc_list"},
		{args: "chat --session 9 find", stderr: "no id among the 1 newest sessions begins or ends with", code: 1},
		{args: "models", stdout: "PROVIDER\tMODEL\tCONTEXT\t$ IN\t$ OUT\tABILITIES\nsim\tother\t1000\t0.5\t3\tdefault, simulated, tools\nrouter\tsim/whole\t\t\t\t\n", stderr: "away: does not answer\n"},
		{args: "audit", stdout: "AT\tACTION\tTOOL\tDETAIL\tWHO\tSUBJECT\tSESSION\n2026-11-23 14:53\tcall-expired\tdoc_delete\t\t\tc1\t" + sessionID + "\n"},
		{args: "mcp audit", stdout: "AT\tACTION\tSERVER\tDETAIL\tWHO\n2026-11-23 14:53\tserver-added\twiki\thttps://wiki.example\tm1\n"},
		{args: "audit --limit 0", stderr: "--limit: want at least 1", code: 2},
		{args: "docs list", stdout: "ID\tNAME\tUPDATED\n" + documentID + "\tTea\t2026-11-23 14:53\n"},
		{args: "docs show 00d1", stdout: "# Tea\n\nIt is *hot*.\n"},
		{args: "docs edit 00d1", editor: "true", stdout: "no changes in Tea\n"},
		{args: "docs edit 00d1", editor: "false", stderr: "error: the editor false", code: 1},
		{args: "docs edit 00d1", editor: "kill -INT $$;", stderr: "signal: interrupt", code: 1},
		{args: "docs edit 00d1", editor: "sed -i 's/hot/cold/'", stdout: "saved Tea\n"},
		{args: "docs show 00d1", stdout: "# Tea\n\nIt is *cold*.\n"},
		{args: "docs edit 00d1 --json", editor: "true", stdout: `{"document":{"content":"# Tea`},
		{args: "docs edit 00d1", editor: "sed -i 's/cold/<kbd>cool/'", stdout: "saved Tea\n", stderr: "line 3: the HTML <kbd> is kept as text\n"},
		{args: "docs edit 00d1 --json", editor: "sed -i 's/cool/warm/'", stdout: `{"document":{"id":"` + documentID + `","name":"Tea","sequence":10,"updated_at":"2026-11-23T14:53:21.1Z"},"warnings":[{"kept_as":"text","line":3,"what":"theHTML`, stderr: "line 3: "},
	} {
		stdout, stderr, code := g.pipe(t, []string{temporary, "EDITOR=" + tt.editor}, strings.Fields(tt.args)...)
		if strings.HasSuffix(tt.args, "--json") {
			stdout = strings.Join(strings.Fields(stdout), "")
			tt.stdout = strings.ReplaceAll(tt.stdout, " ", "")
		}
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
			t.Errorf("%s writes %q and %q and ends with %d, want %q, %q, %d", tt.args, stdout, stderr, code, tt.stdout, tt.stderr, tt.code)
		}
	}
	if left, _ := filepath.Glob(strings.TrimPrefix(temporary, "TMPDIR=") + "/*"); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// Text that cannot be saved is not lost: the document changed meanwhile, and this server does
// not merge.
func TestUnsavedEditStays(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	other := "EDITOR='sed -i s/Tea/Theirs/' signalbox docs edit 00d1 >/dev/null; sed -i s/hot/mine/"
	_, stderr, code := g.pipe(t, []string{"TMPDIR=" + t.TempDir(), "EDITOR=" + other}, "docs", "edit", "00d1")
	kept := regexp.MustCompile(`the base is gone; your text is in (\S+)`).FindStringSubmatch(stderr)
	if code != 1 || kept == nil {
		t.Fatalf("ends with %d and %q, want where the text is", code, stderr)
	}
	if b, err := os.ReadFile(kept[1]); err != nil || string(b) != "# Tea\n\nIt is *mine*.\n" {
		t.Errorf("%s has %q, %v", kept[1], b, err)
	}
	if got := g.document(true)["content"]; got != "# Theirs\n\nIt is *hot*.\n" {
		t.Errorf("the document has %q", got)
	}
}

// The text of an editor that fails after writing is not lost either.
func TestFailedEditorKeepsText(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	_, stderr, code := g.pipe(t, []string{"TMPDIR=" + t.TempDir(), "EDITOR=f() { sed -i s/hot/mine/ \"$1\"; return 3; }; f"}, "docs", "edit", "00d1")
	kept := regexp.MustCompile(`exit status 3; .*your text is in (\S+)`).FindStringSubmatch(stderr)
	if code != 1 || kept == nil {
		t.Fatalf("ends with %d and %q, want where the text is", code, stderr)
	}
	if b, err := os.ReadFile(kept[1]); err != nil || string(b) != "# Tea\n\nIt is *mine*.\n" {
		t.Errorf("%s has %q, %v", kept[1], b, err)
	}
	if got := g.document(true)["content"]; got != "# Tea\n\nIt is *hot*.\n" {
		t.Errorf("the document has %q", got)
	}
}

// --model accepts what `sessions list` shows as a session's model.
func TestModelWithProvider(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for name, want := range map[string]string{
		"sim/other":    "sim other",
		"away/x":       "away x",
		"none/x":       " none/x",
		"sim/whole":    " sim/whole", // a model's name
		"other":        " other",
		"sim/other/v1": "sim other/v1",
	} {
		_, stderr, code := g.pipe(t, nil, "chat", "--model", name, "hi")
		if code != 0 {
			t.Errorf("--model %s ends with %d, %s", name, code, stderr)
		}
		if made := g.lastMade(); made != want {
			t.Errorf("--model %s asks for %q, want %q", name, made, want)
		}
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"/var/a_b-c.d": "/var/a_b-c.d", "a b": "'a b'", "it's": `'it'\''s'`, "~x": "'~x'"} {
		if got := quoted(word); got != want {
			t.Errorf("quoted(%q) = %s, want %s", word, got, want)
		}
	}
}
