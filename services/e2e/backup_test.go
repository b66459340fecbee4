package e2e_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

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
	restored := startRestored(t, world.Options{DataDir: dir, Env: func(string, int) []string { return database }})
	saved.check(t, restored, []string{"--data", data}, database)
}

// TestBackupCommand backs up a cluster while its agents work, and restores it under another name on
// another server, whose owner is no superuser.
func TestBackupCommand(t *testing.T) {
	t.Parallel()
	w := cluster.up(t).World
	key := filepath.Join(w.Dir, "broker.key")
	saved := createUserData(t, w, nil, "DATABASE_URL="+w.Database, "CREDENTIAL_BROKER_KEY_FILE="+key)
	busy := startTraffic(t, w)
	dir := t.TempDir()
	backup := func(from, name string) (file string, rows map[string]string) {
		t.Helper()
		file = filepath.Join(dir, name)
		command(t, []string{"DATABASE_URL=" + from}, "", filepath.Join(bin, "signalbox"), "backup", file)
		return file, hashRows(t, file)
	}
	file, first := backup(w.Database, "first.zip")
	busy.stop(t)

	server, err := pgd.Start(t.Context(), pgd.Config{Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	root, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close(t.Context())
	for _, sql := range []string{"CREATE ROLE keeper LOGIN CREATEROLE", "CREATE DATABASE elsewhere OWNER keeper"} {
		if _, err := root.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := strings.Replace(server.URL("elsewhere"), "postgres@", "keeper@", 1)
	database := []string{"DATABASE_URL=" + elsewhere}
	command(t, append(database, "CREDENTIAL_BROKER_KEY_FILE="+key), "", filepath.Join(bin, "signalbox"), "restore", file)
	_, second := backup(elsewhere, "second.zip")
	if diff := cmp.Diff(first, second); diff != "" || len(first) < 20 {
		t.Errorf("what was restored differs (-first backup +second)\n%s", diff)
	}

	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(filepath.Join(data, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, nil, "", "cp", key, filepath.Join(data, "keys/broker.key"))
	restored := startRestored(t, world.Options{DataDir: dir, Env: func(string, int) []string { return database }})
	busy.check(t, restored, data, database)
	saved.check(t, restored, []string{"--data", data}, database)
}

// hashRows returns a hash of the rows of each table in a backup. PostgreSQL returns them in any order.
func hashRows(t *testing.T, file string) map[string]string {
	t.Helper()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = z.Close() }() // it was only read
	tables := map[string]string{}
	for _, f := range z.File {
		if filepath.Ext(f.Name) != ".copy" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		rows := bytes.Split(text, []byte("\n"))
		slices.SortFunc(rows, bytes.Compare)
		tables[f.Name] = fmt.Sprintf("%d rows, %x", len(rows)-1, sha256.Sum256(bytes.Join(rows, []byte("\n"))))
	}
	return tables
}

// TestRestoreEarlier restores a backup of an earlier version, with the key that sealed its account.
//
// testdata/backup has both. For a new release, make them with the programs of the one before: run
// signalbox up, say something with signalbox chat, create a document over HTTP and an account with
// signalbox accounts add, run signalbox backup, and copy keys/broker.key.
func TestRestoreEarlier(t *testing.T) {
	t.Parallel()
	dir := pgtest.Folder(t)
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(filepath.Join(data, "keys"), 0o711); err != nil {
		t.Fatal(err)
	}
	command(t, nil, "", "install", "-m", "600", "testdata/backup/earlier.key", filepath.Join(data, "keys/broker.key"))
	command(t, nil, "", filepath.Join(bin, "signalbox"), "restore", "--data", data, "testdata/backup/earlier.zip")
	saved := userData{
		member:  world.Member{Workspace: "01a21fdd-82e5-7d93-b3e4-415c7c5de2d1", ID: "01a21fdd-82e5-7d95-9930-f985ef1a411b"},
		session: "01a21fdd-bc37-70d7-ad63-51d9d3d6b416", document: "01a21fdd-cd33-7df8-925c-99956759af13",
		markdown: "# Kept\n\nThis is to survive.\n", messages: 4, shared: true,
	}
	restored := startRestored(t, world.Options{DataDir: dir})
	saved.check(t, restored, []string{"--data", data}, nil)
	// A token without --workspace is for the same member as before.
	var who world.Member
	if err := json.Unmarshal(command(t, nil, "", filepath.Join(bin, "signalbox"), "token", "--json", "--data", data), &who); err != nil || who.Workspace != saved.member.Workspace {
		t.Errorf("the folder's workspace is %s, %v, want %s", who.Workspace, err, saved.member.Workspace)
	}
}

// startRestored starts a standalone Signalbox, which is stopped with the test.
func startRestored(t *testing.T, o world.Options) *world.World {
	t.Helper()
	o.Dir, o.Programs = t.TempDir(), bin
	w, err := world.StartStandalone(t.Context(), o)
	return started(t, w, err)
}

// traffic is a member who keeps sending messages.
type traffic struct {
	member  world.Member
	session string
	cancel  context.CancelFunc
	ended   chan error
}

// startTraffic returns when an answer is under way.
func startTraffic(t *testing.T, w *world.World) *traffic {
	t.Helper()
	member, err := w.NewMember(t.Context(), "", "owner")
	if err != nil {
		t.Fatal(err)
	}
	c := w.Client(0, member)
	b := &traffic{member: member, ended: make(chan error, 1)}
	if b.session, err = c.NewSession(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.cancel = cancel
	t.Cleanup(cancel)
	begun := make(chan struct{}, 100)
	go func() {
		for range 30 { // fewer than may wait, and more than are answered during the backup
			if _, err := c.Submit(ctx, b.session, world.Sending{Content: "create a document about tea"}); err != nil {
				b.ended <- err
				return
			}
			begun <- struct{}{}
		}
		b.ended <- nil
	}()
	for range 3 {
		select {
		case <-begun:
		case err := <-b.ended:
			t.Fatalf("send messages: %v", err)
		}
	}
	return b
}

// stop ends the sending, which must not have failed before.
func (b *traffic) stop(t *testing.T) {
	t.Helper()
	select {
	case err := <-b.ended:
		if err != nil {
			t.Errorf("send messages during the backup: %v", err)
		}
	default:
		b.cancel()
		<-b.ended //nolint:errcheck // of the cancellation
	}
}

// check waits until the agent of another Signalbox has answered every message that it has.
func (b *traffic) check(t *testing.T, w *world.World, data string, environ []string) {
	t.Helper()
	var who world.Member
	out := command(t, environ, "", filepath.Join(bin, "signalbox"), "token", "--json", "--data", data, "--workspace", b.member.Workspace, "--member", b.member.ID)
	if err := json.Unmarshal(out, &who); err != nil {
		t.Fatal(err)
	}
	c := w.Client(0, who)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for {
		messages, err := c.Messages(ctx, b.session)
		asked, answered := 0, 0
		for _, m := range messages {
			switch m.Role {
			case "user":
				asked++
			case "assistant":
				if m.Text() != "" {
					answered++
				}
			}
		}
		if err == nil && asked > 0 && answered >= asked {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d messages are answered, %v", answered, asked, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
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
	shared                      bool // the account is of all workspaces
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
	if !b.shared && (err != nil || len(listed.Accounts) != 1 || listed.Accounts[0].Label != "kept") {
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
