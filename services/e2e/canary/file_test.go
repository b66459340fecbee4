package canary_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
	"signalbox.dev/services/simulator"
)

// single is the setup of a single user without a database: a broker with a file, and the command
// line. The output of a sign-in contains what only that user may see.
type single struct {
	t                           *testing.T
	ctx                         context.Context //nolint:containedctx // the test's, with a deadline
	programs, kept, log, url    string
	secret, passed, token, leak *mark
	marks                       *marks
	provider                    *provider
	environ                     []string
	signer                      *identity.Signer
	actor                       identity.Actor
	http                        *http.Client
}

// awkward follows the mark in keys: characters that JSON, HTML and URLs escape.
const awkward = "/+=<u>&'`\"%5C\\"

func newSingle(ctx context.Context, t *testing.T) *single {
	t.Helper()
	s := &single{
		t: t, ctx: ctx, programs: t.TempDir(), kept: filepath.Join(t.TempDir(), "kept"), log: filepath.Join(t.TempDir(), "log"),
		secret: newMark("canary"), passed: newMark("passed"), leak: newMark("leakage"),
		token: &mark{name: "token", text: tokensBegin(), found: map[string]bool{}},
		actor: identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner, Run: id.New[id.Run](), Session: id.New[id.Session]()},
	}
	s.passed.may, s.passed.must = []string{"output of login"}, []string{"output of login"}
	s.marks = newMarks(s.secret, s.passed, s.leak, s.token)
	s.http = &http.Client{
		Transport:     overhear{s.marks, &http.Transport{DisableKeepAlives: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if err := world.Build(ctx, s.programs); err != nil {
		t.Fatal(err)
	}
	s.provider = newProvider(t, s.marks, s.secret, s.passed)
	sim, err := simulator.New(simulator.Config{Addr: "127.0.0.1:0"}, simulator.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	if err := sim.PutScript("default", "rules: [{then: [{say: 'I say "+s.leak.text+".'}]}]\n"); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(sim)
	t.Cleanup(front.Close)
	s.provider.behind(t, front.URL)
	s.configure()
	return s
}

func (s *single) configure() {
	s.t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		s.t.Fatal(err)
	}
	addr, err := freeport.Addr()
	if err != nil {
		s.t.Fatal(err)
	}
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { collect(s.marks, w, r) }))
	s.t.Cleanup(collector.Close)
	dir := s.t.TempDir()
	writeProviders(s.t, dir, s.provider.URL)
	s.signer, s.url = identity.NewSigner(subject.AgentRunner, key), "http://"+addr
	s.environ = []string{
		"HOME=" + s.t.TempDir(), "CREDENTIAL_BROKER_ADDR=" + addr, "TRUSTED_KEYS=" + subject.AgentRunner + "=" + key.Public(),
		"CREDENTIAL_BROKER_ACCOUNTS_FILE=" + filepath.Join(s.kept, "accounts.json"), "CREDENTIAL_BROKER_KEY_FILE=" + filepath.Join(dir, "key"),
		"CREDENTIAL_BROKER_ALLOW_PRIVATE=true", "CREDENTIAL_BROKER_PROFILES=" + filepath.Join(dir, "profiles"),
		"CREDENTIAL_BROKER_OAUTH_PROVIDERS=" + filepath.Join(dir, "oauth"), "CREDENTIAL_BROKER_OAUTH_CLIENTS=anthropic=them,canary=us:" + clientSecret(s.secret),
		"OPENAI_API_KEY=" + s.secret.text + "-environment-key" + awkward, "OPENAI_BASE_URL=" + s.provider.URL + "/openai/v1",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=100", "LOG_LEVEL=debug",
	}
}

// start starts the broker, and returns a function that stops it.
func (s *single) start() (stop func()) {
	s.t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the broker has inherited it
	cmd := exec.CommandContext(s.ctx, filepath.Join(s.programs, subject.CredentialBroker))
	cmd.Env, cmd.Stdout, cmd.Stderr = s.environ, log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for s.page("/health") != http.StatusOK {
		select {
		case <-s.ctx.Done():
			s.t.Fatal("the broker did not start")
		case <-time.After(20 * time.Millisecond):
		}
	}
	return func() {
		_ = cmd.Process.Signal(os.Interrupt) // Wait returns the result
		if err := cmd.Wait(); err != nil {
			s.t.Errorf("the broker ends with %v", err)
		}
	}
}

// tail returns the end of the broker's log.
func (s *single) tail() string {
	log, _ := os.ReadFile(s.log) // there is none if it was not started
	return string(log[max(0, len(log)-2000):])
}

// page returns a page's status, or 0.
func (s *single) page(path string) int {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, res.Body) // it is searched
	_ = res.Body.Close()
	return res.StatusCode
}

// command runs an accounts command with an input, and searches its output.
func (s *single) command(in string, args ...string) (out string, err error) {
	s.t.Helper()
	cmd := exec.CommandContext(s.ctx, filepath.Join(s.programs, "signalbox"), append([]string{"accounts"}, args...)...)
	cmd.Env, cmd.Stdin = s.environ, strings.NewReader(in)
	b, err := cmd.CombinedOutput()
	s.marks.look("output of "+args[0], b)
	return string(b), err
}

func (s *single) works(in string, args ...string) string {
	s.t.Helper()
	out, err := s.command(in, args...)
	if err != nil {
		s.t.Errorf("accounts %q: %v\n%.2000s", args, err, out)
	}
	return out
}

func (s *single) fails(in string, args ...string) {
	s.t.Helper()
	if out, err := s.command(in, args...); err == nil {
		s.t.Errorf("accounts %q succeeded: %.2000s", args, out)
	}
}

// login signs in with the command line, like a person with a browser.
func (s *single) login(how, label string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.ctx, filepath.Join(s.programs, "signalbox"), "accounts", "login", "canary", how, "--label", label, "--json")
	cmd.Env = s.environ
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		s.t.Fatal(err)
	}
	docs := json.NewDecoder(io.TeeReader(out, &stream{marks: s.marks, place: "output of login"}))
	var begun struct {
		URL         string
		URLWithCode string `json:"url_with_code"`
	}
	var account struct{ ID string }
	if err := docs.Decode(&begun); err != nil {
		s.t.Fatalf("login %s: %v %s", how, err, said.String())
	}
	r := &rig{t: s.t, ctx: s.ctx}
	if how == "--device" {
		r.get(http.DefaultClient, begun.URLWithCode)
	} else {
		fmt.Fprintln(in, r.code(begun.URL))
	}
	err := docs.Decode(&account)
	if err := errors.Join(err, in.Close(), cmd.Wait()); err != nil || account.ID == "" {
		s.t.Fatalf("login %s: %v %s", how, err, said.String())
	}
	s.marks.look("errors of login", said.Bytes())
}

// ask calls a model, and returns the response's status and text.
func (s *single) ask(path string) (status int, text string) {
	s.t.Helper()
	token, err := s.signer.Sign(s.actor, subject.CredentialBroker)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.url+"/egress/"+path, strings.NewReader(`{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", token)
	req.Header.Set("Anthropic-Version", "2023-06-01")
	res, err := s.http.Do(req)
	if err != nil {
		return 0, err.Error() // a response that was cut
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body) // likewise
	return res.StatusCode, string(body)
}

// TestSecretsStayWithTheFile checks a single user's broker: see the package comment.
func TestSecretsStayWithTheFile(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*world.Timeout)
	defer cancel()
	s := newSingle(ctx, t)
	house := s.leak.text // a provider of that name is counted, listed and recorded everywhere
	s.works(s.secret.text+"-apikey-mine"+awkward+"\n", "add", "anthropic", "--no-check", "--label", "mine", "--base-url", s.provider.URL+"/anthropic")
	s.works(s.secret.text+"-header-ours"+awkward+"\n", "add", house, "--no-check", "--profile", "keyed", "--base-url", s.provider.URL+"/openrouter/api/v1", "--json")
	s.login("--paste", "pasted")
	s.importAll() // before the broker starts: imported accounts are for real providers
	stop := s.start()
	paths := []string{"anthropic/v1/messages", "openai/v1/chat/completions", "openrouter/v1/chat/completions", house + "/v1/chat/completions"}
	answered := func(when string) {
		t.Helper()
		for _, path := range paths {
			if status, text := s.ask(path); status != http.StatusOK || !strings.Contains(text, s.leak.text) {
				t.Errorf("%s: %s answers %d %.300q\n%s", when, path, status, text, s.tail())
			}
		}
	}
	answered("at first")
	s.login("--device", "by device")
	s.works("", "refresh", "pasted")
	answered("with a renewed token")
	s.mistakes()
	s.works("", "rotate-keys", "--yes", "--json")
	answered("after the rotation")

	s.show()

	for _, place := range quoting {
		s.provider.quote.Store(&place)
		for _, path := range paths {
			s.ask(path)
		}
	}
	s.provider.quote.Store(nil)
	s.wrecked(paths)
	for _, kind := range []string{"apikey", "environment", "access", "header"} {
		if s.provider.noted(kind+" true") == 0 || s.provider.noted(kind+" in a wreck") == 0 {
			t.Errorf("credentials of the kind %s were not used and quoted", kind)
		}
	}
	s.pages()
	s.show()
	s.works("", "logout", "by device", "--yes")
	s.works("", "remove", "by device", "--yes", "--json")
	stop()
	s.damage()
	s.search()
	s.secret.check(t)
	s.passed.check(t)
	s.token.check(t)
}

// mistakes passes secrets where they are not accepted.
func (s *single) mistakes() {
	s.t.Helper()
	key := s.secret.text
	s.fails(key+"\nx\n", "add", "anthropic")
	s.fails(key+" x\n", "add", "anthropic")
	s.fails("x\n", "add", "sk-"+key)
	s.fails("x\n", "add", "house", "--profile", "keyed", "--base-url", "https://u:"+key+"@house.example")
	s.fails("x\n", "add", "house", "--profile", "keyed", "--base-url", "https://house.example?key="+key)
	s.fails(key+"#strange\n", "reauth", "pasted", "--paste", "--json")
}

// importAll imports other programs' credentials, valid and damaged.
func (s *single) importAll() {
	s.t.Helper()
	dir := s.t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
		return name
	}
	key, expires := s.secret.text, time.Now().Add(time.Hour).UnixMilli()
	auth := write("auth.json", fmt.Sprintf(`{"openrouter":{"type":"api","key":"%[1]s-brought"},"anthropic":{"type":"oauth","refresh":"%[1]s-refresh-x","access":"%[1]s-access-x","expires":%[2]d}}`, key, expires))
	many := write("many.json", fmt.Sprintf(`{"version":1,"accounts":[{"email":"a@example.org","refreshToken":"%s-refresh-y","addedAt":1,"lastUsed":1,"enabled":false}],"activeIndex":0}`, key))
	before := s.accounts()
	s.works("", "import", "--source", "auth,accounts", "--auth-file", auth, "--accounts-file", many, "--dry-run", "--json")
	s.works("", "import", "--source", "auth,accounts,env", "--auth-file", auth, "--accounts-file", many, "--json")
	brought := slices.DeleteFunc(s.accounts(), func(id string) bool { return slices.Contains(before, id) })
	if len(brought) != 4 {
		s.t.Errorf("%d accounts are imported, want 4", len(brought))
	}
	for _, id := range brought {
		s.works("", "remove", id, "--yes", "--no-revoke")
	}
	for i, text := range []string{`{"anthropic":{"type":"oauth","refresh":"` + key, `{"anthropic":"` + key + `"}`, `{"anthropic":{"type":"` + key + `"}}`, `{"anthropic":{"type":"oauth","expires":"` + key + `"}}`, key} {
		// The result may be an error, or that there is nothing to import.
		_, _ = s.command("", "import", "--source", "auth", "--auth-file", write(fmt.Sprint("auth-", i), text))
		_, _ = s.command("", "import", "--source", "accounts", "--accounts-file", write(fmt.Sprint("many-", i), text), "--json")
	}
}

// accounts returns the ids of all accounts.
func (s *single) accounts() (ids []string) {
	s.t.Helper()
	var listed struct{ Accounts []struct{ ID string } }
	if err := json.Unmarshal([]byte(s.works("", "list", "--json")), &listed); err != nil {
		s.t.Fatal(err)
	}
	for _, a := range listed.Accounts {
		ids = append(ids, a.ID)
	}
	return ids
}

// wrecks are invalid responses, in which KEY is replaced by the credential, and JSON by its JSON
// form.
var wrecks = []string{
	"KEY\r\n\r\n",
	"HTTP/1.1 KEY\r\n\r\n",
	"HTTP/1.1 200 OK\r\nno colon KEY\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: KEY\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: KEY\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nKEY\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n2\r\n{}\r\n0\r\nKEY\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nevent: KEY\ndata: {\"JSON",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{\"access_token\":\"JSON",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"access_token\":\"JSON\\n\",\"refresh_token\":\"JSON\",\"expires_in\":\"JSON\"}",
	"HTTP/1.1 302 Found\r\nLocation: https://house.example/?key=KEY\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 400 KEY\r\nContent-Type: application/json\r\nX-Request-Id: KEY\r\nConnection: close\r\n\r\n{\"error\":\"JSON\",\"error_description\":\"JSON\"}",
	"HTTP/1.1 400 Bad Request\r\nContent-Type: KEY\r\nSet-Cookie: session=KEY\r\nConnection: close\r\n\r\n{\"error\":{\"type\":\"JSON\",\"code\":\"JSON\",\"message\":\"JSON\"}}",
	"HTTP/1.1 503 Service Unavailable\r\nRetry-After: KEY\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<html><body>KEY is not served now</body></html>",
	"HTTP/1.1 429 Too Many Requests\r\nRetry-After: KEY\r\nX-Ratelimit-Reset: KEY\r\nAnthropic-Ratelimit-Unified-Status: KEY\r\nAnthropic-Ratelimit-Requests-Reset: KEY\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"error\":{\"type\":\"rate_limit_error\",\"message\":\"JSON\"}}",
	"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer error=\"KEY\"\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"error\":{\"type\":\"authentication_error\",\"message\":\"JSON\"}}",
}

// wrecked makes models and the authorization server respond with wrecks.
func (s *single) wrecked(paths []string) {
	s.t.Helper()
	for _, wreck := range wrecks {
		s.provider.wreck.Store(&wreck)
		for _, path := range paths {
			s.ask(path)
		}
		_, _ = s.command("", "refresh", "by device", "--json") // with any result
		s.works("", "status")
		s.works("", "status", "--json")
		s.provider.wreck.Store(nil)
		for _, label := range []string{"mine", "pasted", "by device"} {
			s.works("", "reset", label, "--yes")
		}
	}
	if n := s.provider.noted("refresh in a wreck"); n < len(wrecks)/2 {
		s.t.Errorf("%d renewals got an invalid response, want %d", n, len(wrecks))
	}
}

func (s *single) pages() {
	s.t.Helper()
	for path, want := range map[string]int{
		"/metrics": http.StatusOK, "/ready": http.StatusOK, "/health": http.StatusOK, "/debug/pprof/goroutine?debug=2": http.StatusNotFound,
		"/egress/anthropic/v1/messages?key=" + s.secret.text: http.StatusUnauthorized,
	} {
		if got := s.page(path); got != want {
			s.t.Errorf("GET %.30s = %d, want %d", path, got, want)
		}
	}
}

// show prints everything that the command line can show.
func (s *single) show() {
	s.t.Helper()
	for _, args := range [][]string{{"list"}, {"status"}, {"stats"}, {"audit", "list"}, {"audit", "verify"}, {"strategy"}, {"config", "anthropic"}} {
		s.works("", args...)
		s.works("", append(args, "--json")...)
	}
}

// damage makes the broker set the file aside, with content that only its owner can have written.
func (s *single) damage() {
	s.t.Helper()
	name := filepath.Join(s.kept, "accounts.json")
	good, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, text := range []string{string(good[:len(good)/2]), strings.Replace(string(good), `"version"`, `"`+s.leak.text+`"`, 1)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
		s.fails("", "list")
		stop := s.start()
		s.ask("anthropic/v1/messages")
		s.page("/ready")
		stop()
	}
}

// search searches the files, expects all kinds of them, and expects the leak everywhere.
func (s *single) search() {
	s.t.Helper()
	var names []string
	err := filepath.WalkDir(s.kept, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, d.Name())
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			s.marks.look("file "+d.Name(), text)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, want := range []string{"accounts.json", "accounts.json.audit", "accounts.json.lock", "accounts.json.damaged-", ".gitignore"} {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, want) }) {
			s.t.Errorf("the files are %q, without %s", names, want)
		}
	}
	log, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	s.marks.look("log", log)
	for _, place := range []string{
		"log", "traces", "file accounts.json", "file accounts.json.audit", "file accounts.json.damaged-", "answer to POST /egress/",
		"output of add", "output of list", "output of status", "output of stats", "output of audit",
	} {
		if len(s.leak.places(place)) == 0 {
			s.t.Errorf("the leak is not found in: %s", place)
		}
	}
}
