package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/simulator/authserver"
	"signalbox.dev/services/standalone"
)

var update = flag.Bool("update", false, "rewrite the expected output in the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"signalbox": main})
}

// place is a database or a file, and a provider with an authorisation server, for one
// test.
type place struct {
	adminURL string // empty without a database
	server   *authserver.Server
	environ  []string
}

func newPlace(t *testing.T, dir string) *place {
	t.Helper()
	database := pgtest.New(t, standalone.Migrations()...)
	return newPlaceIn(t, dir, database.AdminURL, "DATABASE_URL="+database.AdminURL)
}

// newFilePlace is a place without a database.
func newFilePlace(t *testing.T, dir string) *place {
	t.Helper()
	kept := filepath.Join(dir, "kept")
	if err := os.Mkdir(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	return newPlaceIn(t, dir, "", "CREDENTIAL_BROKER_ACCOUNTS_FILE="+filepath.Join(kept, "accounts.json"))
}

func newPlaceIn(t *testing.T, dir, adminURL, setting string) *place {
	t.Helper()
	server := authserver.New(authserver.Settings{ClientID: "us", Rotate: true, Interval: 1})
	mux := http.NewServeMux()
	mux.Handle("/oauth/", http.StripPrefix("/oauth", server))
	mux.HandleFunc("/", models)
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	for name, text := range map[string]string{
		"profiles/sim.yaml": fmt.Sprintf("name: sim\ndefault_for: sim\ndialect: openai\nbase_url: %s/api\nauth: {header: authorization, scheme: Bearer}\ncheck: {path: /models}\n", front.URL),
		"providers/sim.yaml": fmt.Sprintf("name: sim\nprofile: sim\nendpoints: {authorize: %[1]s/oauth/authorize, token: %[1]s/oauth/token, device: %[1]s/oauth/device, "+
			"revoke: %[1]s/oauth/revoke, code_page: %[1]s/oauth/code}\nclient: {auth: none, loopback: true}\ntokens: {rotate: true}\n", front.URL),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &place{adminURL, server, []string{
		setting, "CREDENTIAL_BROKER_KEY_FILE=" + filepath.Join(dir, "broker.key"),
		"CREDENTIAL_BROKER_PROFILES=" + filepath.Join(dir, "profiles"), "CREDENTIAL_BROKER_OAUTH_PROVIDERS=" + filepath.Join(dir, "providers"),
		"CREDENTIAL_BROKER_OAUTH_CLIENTS=sim=us", "CREDENTIAL_BROKER_ALLOW_PRIVATE=true", "HOME=" + dir, "PROVIDER=" + front.URL,
	}}
}

// models is a provider that requires one key at /api and none at /open, and answers 404
// elsewhere.
func models(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Authorization")
	switch path := r.URL.Path; {
	case path != "/api/models" && path != "/open/v1/models":
		http.NotFound(w, r)
	case path == "/open/v1/models" && key != "", path == "/api/models" && key != "Bearer sk-planted-secret-00000001":
		http.Error(w, "no such key: "+key, http.StatusUnauthorized)
	default:
		fmt.Fprint(w, `{"data":[]}`)
	}
}

// TestAccounts runs the scripts of testdata/accounts.
//
//	plain <from> <to>   writes a file, or stdout, with ids, times and hashes by their names
//	sql <statement>     as the database's administrator, where there is one
//	id <name> <from>    takes the first id of a file, or stdout, into a variable
//	replace <file> a b  the first a in a file by b
//	grant <file>        signs somebody in without the ceremony, for an import of a file
//	status <n> <…>      runs a program and checks its exit code
//	browse <file> <…>   runs a program that signs in at a terminal, and approves in a browser,
//	                    or declines if it is negated; writes to the file what the terminal
//	                    and then the browser showed
//	private <file>      checks that nobody else may read or write it
func TestAccounts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts(t, newPlace, "testdata/accounts/*.txtar"))
}

// TestAccountsInFile runs the scripts of testdata/file, and without a database those of
// testdata/accounts that need none.
func TestAccountsInFile(t *testing.T) {
	t.Parallel()
	testscript.Run(t, scripts(t, newFilePlace, "testdata/accounts/changekey.txtar", "testdata/accounts/import.txtar", "testdata/accounts/loopback.txtar", "testdata/accounts/pools.txtar", "testdata/accounts/signins.txtar", "testdata/accounts/strangekey.txtar", "testdata/accounts/together.txtar", "testdata/file/*.txtar"))
}

func scripts(t *testing.T, newPlace func(t *testing.T, dir string) *place, patterns ...string) testscript.Params {
	t.Helper()
	var files []string
	for _, pattern := range patterns {
		some, err := filepath.Glob(pattern)
		if err != nil || len(some) == 0 {
			t.Fatalf("%s: no scripts, %v", pattern, err)
		}
		files = append(files, some...)
	}
	postgres := pgtest.Bin(t)
	return testscript.Params{
		Files: files, UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			p := newPlace(t, env.WorkDir)
			env.Vars = append(env.Vars, p.environ...)
			pgtest.LetIn(t, env.WorkDir)
			env.Setenv("SIGNALBOX_PG_BIN", postgres)
			env.Values["place"] = p
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"plain": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(plainText(ts.ReadFile(args[0]), ts.Getenv("WORK"))), 0o600))
			},
			"sql": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(ts.Value("place").(*place).exec(t.Context(), args[0]))
			},
			"status": func(ts *testscript.TestScript, _ bool, args []string) {
				code := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					exit, ok := errors.AsType[*exec.ExitError](err)
					if !ok {
						ts.Fatalf("%v", err)
					}
					code = exit.ExitCode()
				}
				if fmt.Sprint(code) != args[0] {
					ts.Fatalf("%s ended with %d, want %s", strings.Join(args[1:], " "), code, args[0])
				}
			},
			"browse": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(ts.Value("place").(*place).browse(t, neg, args[1:]...)), 0o600))
			},
			"private": func(ts *testscript.TestScript, _ bool, args []string) {
				info, err := os.Stat(ts.MkAbs(args[0]))
				ts.Check(err)
				if info.Mode() != 0o600 {
					ts.Fatalf("%s has the mode %v, want 0600", args[0], info.Mode())
				}
			},
			"replace": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Replace(ts.ReadFile(args[0]), args[1], args[2], 1)), 0o600))
			},
			"id": func(ts *testscript.TestScript, _ bool, args []string) {
				found := uuidForm.FindString(ts.ReadFile(args[1]))
				ts.Setenv(args[0], found)
				ts.Setenv(args[0]+"_BEGIN", found[:max(len(found)-4, 0)])
				ts.Setenv(args[0]+"_END", found[max(len(found)-12, 0):])
			},
			"grant": func(ts *testscript.TestScript, _ bool, args []string) {
				_, refresh := ts.Value("place").(*place).server.Grant()
				text := fmt.Sprintf(`{"sim": {"type": "oauth", "refresh": %q}}`, refresh)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
		},
	}
}

var (
	uuidForm = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timeForm = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	hashForm = regexp.MustCompile(`[0-9a-f]{64}`)
)

// plainText replaces values that differ in each run by names.
func plainText(text, work string) string {
	known := map[string]string{}
	text = uuidForm.ReplaceAllStringFunc(text, func(id string) string {
		if known[id] == "" {
			known[id] = fmt.Sprintf("ID%d", len(known)+1)
		}
		return known[id]
	})
	text = timeForm.ReplaceAllString(text, "TIME")
	text = hashForm.ReplaceAllString(text, "HASH")
	return strings.NewReplacer(work, "WORK", operator(), "OPERATOR").Replace(text)
}

// exec runs a statement as the database's administrator.
func (p *place) exec(ctx context.Context, sql string) error {
	admin, err := pgx.Connect(ctx, p.adminURL)
	if err != nil {
		return err
	}
	defer admin.Close(ctx)
	_, err = admin.Exec(ctx, "SET search_path TO credentials; "+sql)
	return err
}

// program is a running signalbox with pipes.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err *bytes.Buffer
}

func (p *place) start(t *testing.T, args ...string) *program {
	t.Helper()
	r := &program{t: t, cmd: exec.CommandContext(t.Context(), "signalbox", args...), err: &bytes.Buffer{}}
	r.cmd.Env = append(os.Environ(), p.environ...)
	r.cmd.Stderr = r.err
	in, err := r.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in, r.out = in, bufio.NewReader(out)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *program) wait() {
	r.t.Helper()
	if err := r.cmd.Wait(); err != nil {
		r.t.Fatalf("signalbox: %v: %s", err, r.err)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %v %s", url, res.StatusCode, err, b)
	}
	return strings.TrimSpace(string(b))
}

func TestLogin(t *testing.T) {
	t.Parallel()
	for name, newPlace := range map[string]func(*testing.T, string) *place{"database": newPlace, "file": newFilePlace} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLogin(t, newPlace(t, t.TempDir()))
		})
	}
}

func testLogin(t *testing.T, p *place) {
	t.Helper()
	var account id.Account
	for _, way := range []struct {
		args     []string
		complete func(r *program, l admin.Login)
	}{
		{[]string{"login", "sim", "--paste", "--label", " mine "}, func(r *program, l admin.Login) {
			_, code, _ := strings.Cut(get(t, l.URL), "<code>")
			code, _, _ = strings.Cut(code, "</code>")
			fmt.Fprintln(r.in, code)
		}},
		{[]string{"reauth", "mine", "--device"}, func(_ *program, l admin.Login) {
			get(t, l.URLWithCode)
		}},
	} {
		r := p.start(t, append(append([]string{"accounts"}, way.args...), "--json")...)
		out := json.NewDecoder(r.out)
		var l admin.Login
		if err := out.Decode(&l); err != nil {
			t.Fatalf("%v: %v: %s", way.args, err, r.err)
		}
		way.complete(r, l)
		var a admin.Account
		if err := out.Decode(&a); err != nil {
			t.Fatalf("%v: %v: %s", way.args, err, r.err)
		}
		r.wait()
		if a.Label != "mine" || a.Status != admin.Ready || a.Grant == nil || !a.Grant.Renewable || account != (id.Account{}) && a.ID != account {
			t.Errorf("%v: %+v, want the account %s, ready", way.args, a, account)
		}
		account = a.ID
	}
	if calls := p.server.Calls(); calls.Exchange != 1 || calls.Device != 1 {
		t.Errorf("calls %+v, want one exchange and one device", calls)
	}
}

// TestLoginLeft: an interrupted sign-in says that a later approval is lost.
func TestLoginLeft(t *testing.T) {
	t.Parallel()
	r := newFilePlace(t, t.TempDir()).start(t, "accounts", "login", "sim", "--device", "--json")
	var l admin.Login
	if err := json.NewDecoder(r.out).Decode(&l); err != nil {
		t.Fatalf("%v: %s", err, r.err)
	}
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	const want = "error: the sign-in was interrupted: start again\n"
	if err := r.cmd.Wait(); err == nil || r.err.String() != want {
		t.Errorf("%v, %q, want %q", err, r.err, want)
	}
}
