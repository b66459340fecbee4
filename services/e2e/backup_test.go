package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"

	"signalbox.dev/services/e2e/world"
)

// These tests follow docs/operate.md, "Back up and restore".

// TestRestoreFromFolder copies the data folder of a stopped standalone Signalbox
// and starts another one with the copy.
func TestRestoreFromFolder(t *testing.T) {
	t.Parallel()
	first := newSolo(t, "")
	saved := createUserData(t, first.w, []string{"--data", first.data})
	if err := first.w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := pgtest.Folder(t)
	command(t, nil, "", "cp", "-a", first.data, filepath.Join(dir, "data"))
	second := newSolo(t, dir)
	saved.check(t, second.w, []string{"--data", second.data}, nil)
}

// TestRestoreFromDump dumps the database of a running cluster, restores it in another
// PostgreSQL, and starts a Signalbox there that has only the key file besides.
func TestRestoreFromDump(t *testing.T) {
	t.Parallel()
	dump, restore := clientTool(t, "pg_dump"), clientTool(t, "pg_restore")
	w := cluster.up(t).World
	saved := createUserData(t, w, nil, "DATABASE_URL="+w.Database, "CREDENTIAL_BROKER_KEY_FILE="+filepath.Join(w.Dir, "broker.key"))
	file := filepath.Join(t.TempDir(), "signalbox.dump")
	command(t, nil, "", dump, "--format=custom", "--file="+file, w.Database)

	server, err := pgd.Start(t.Context(), pgd.Config{Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := server.EnsureDatabase(t.Context(), "restored"); err != nil {
		t.Fatal(err)
	}
	database := []string{"DATABASE_URL=" + server.URL("restored")}
	command(t, database, "", filepath.Join(bin, "signalbox"), "migrate") // creates the roles
	command(t, nil, "", restore, "--clean", "--if-exists", "--exit-on-error", "--dbname="+server.URL("restored"), file)

	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(filepath.Join(data, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, nil, "", "cp", filepath.Join(w.Dir, "broker.key"), filepath.Join(data, "keys/broker.key"))
	restored, err := world.StartStandalone(t.Context(), world.Options{
		Dir: t.TempDir(), DataDir: dir, Programs: bin, Env: func(string, int) []string { return database },
	})
	if restored != nil {
		t.Cleanup(func() {
			if err := restored.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	saved.check(t, restored, []string{"--data", data}, database)
}

// clientTool returns the path of a PostgreSQL client program: the one next to the server
// that the tests use, or else one in the PATH that is no older than the server.
func clientTool(t *testing.T, name string) string {
	t.Helper()
	server := pgtest.Bin(t)
	beside := filepath.Join(server, name)
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	major := func(program string) int {
		out, err := exec.CommandContext(t.Context(), program, "--version").Output()
		if err != nil {
			return 0
		}
		n, _ := strconv.Atoi(regexp.MustCompile(`\d+`).FindString(string(out))) // 0 if there is none
		return n
	}
	if want := major(filepath.Join(server, "postgres")); major(name) < want {
		t.Skipf("%s of PostgreSQL %d is not installed: the PostgreSQL packages of npm do not include it", name, want)
	}
	return name
}

// userData is what a member has in a Signalbox: a conversation, a document and an account.
type userData struct {
	member                      world.Member
	session, document, markdown string
	messages                    int
}

// createUserData creates a member with data; flags and environ are for `signalbox accounts`.
func createUserData(t *testing.T, w *world.World, flags []string, environ ...string) userData {
	t.Helper()
	member, err := w.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	b := userData{member: member, markdown: "# Kept\n\nThis is to survive.\n"}
	c := w.Client(0, member)
	if b.session, err = c.NewSession(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	var said struct{ Content string }
	err = c.Call(t.Context(), world.Request{
		Method: http.MethodPost, Path: "/api/sessions/" + b.session + "/messages", Header: http.Header{"Accept": {"application/json"}},
		Body: world.Sending{Content: "hello"},
	}, &said)
	if err != nil || said.Content == "" {
		t.Fatalf("the agent says %q, %v", said.Content, err)
	}
	var made struct {
		Document struct{ ID string }
	}
	err = c.Call(t.Context(), world.Request{
		Method: http.MethodPost, Path: "/api/documents", Body: map[string]string{"name": "kept", "content": b.markdown},
	}, &made)
	if err != nil {
		t.Fatal(err)
	}
	b.document = made.Document.ID
	messages, err := c.Messages(t.Context(), b.session)
	if err != nil {
		t.Fatal(err)
	}
	b.messages = len(messages)
	args := append([]string{"accounts", "add", "anthropic", "--no-check", "--label", "kept", "--workspace", member.Workspace}, flags...)
	command(t, environ, "sk-ant-kept\n", filepath.Join(bin, "signalbox"), args...)
	return b
}

// check checks in another Signalbox that all data is there, that the account's key can be
// decrypted, and that the conversation can continue.
func (b userData) check(t *testing.T, w *world.World, flags, environ []string) {
	t.Helper()
	args := []string{"token", "--json", "--workspace", b.member.Workspace, "--member", b.member.ID}
	var who world.Member
	if err := json.Unmarshal(command(t, environ, "", filepath.Join(bin, "signalbox"), append(args, flags...)...), &who); err != nil {
		t.Fatal(err)
	}
	c := w.Client(0, who)
	messages, err := c.Messages(t.Context(), b.session)
	if err != nil || len(messages) != b.messages {
		t.Errorf("the session has %d messages, %v, want %d", len(messages), err, b.messages)
	}
	var read struct {
		Document struct{ Content string }
	}
	err = c.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/documents/" + b.document}, &read)
	if err != nil || read.Document.Content != b.markdown {
		t.Errorf("the document is %q, %v, want %q", read.Document.Content, err, b.markdown)
	}
	err = c.Call(t.Context(), world.Request{
		Method: http.MethodPost, Path: "/api/sessions/" + b.session + "/messages", Header: http.Header{"Accept": {"application/json"}},
		Body: map[string]string{"content": "hello again", "model": "simulated", "provider": "simulator"},
	}, nil)
	if err != nil {
		t.Errorf("the conversation cannot continue: %v", err)
	}
	var listed struct {
		Accounts []struct{ Label string }
	}
	err = c.Call(t.Context(), world.Request{Method: http.MethodGet, Path: "/api/accounts"}, &listed)
	if err != nil || len(listed.Accounts) != 1 || listed.Accounts[0].Label != "kept" {
		t.Errorf("the accounts are %+v, %v", listed.Accounts, err)
	}
	// Rotating the keys decrypts each secret first.
	var rotated struct{ Sealed, Failed int }
	rotate := append([]string{"accounts", "rotate-keys", "--yes", "--json"}, flags...)
	if err := json.Unmarshal(command(t, environ, "", filepath.Join(bin, "signalbox"), rotate...), &rotated); err != nil {
		t.Fatal(err)
	}
	if rotated.Sealed == 0 || rotated.Failed != 0 {
		t.Errorf("%d secrets were decrypted and %d were not, want at least one and none", rotated.Sealed, rotated.Failed)
	}
}

// command runs a program and returns what it prints.
func command(t *testing.T, environ []string, stdin, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), environ...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("%s %q: %w\n%s%s", filepath.Base(program), args, err, out, &stderr))
	}
	return out
}
