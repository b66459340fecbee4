package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/simulator"
	"signalbox.dev/services/simulator/authserver"
)

// processVariable makes this test binary a broker.
const processVariable = "CREDENTIAL_BROKER_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(processVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// single is the setup of a single user: a broker without a database, providers, and a command line.
type single struct {
	t       *testing.T
	dir     string
	signer  *identity.Signer
	server  *authserver.Server
	url     string // of the providers
	environ []string
	cfg     admin.Config
	actor   identity.Actor
}

func newSingle(t *testing.T) *single {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	sim, err := simulator.New(simulator.Config{Addr: "127.0.0.1:0"}, simulator.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.PutScript("default", "rules: [{then: [{say: 'Hello, how are you today?'}]}]\n"); err != nil {
		t.Fatal(err)
	}
	s := &single{t: t, dir: t.TempDir(), signer: identity.NewSigner(subject.AgentRunner, key)}
	s.server = authserver.New(authserver.Settings{ClientID: "us", Rotate: true, ReuseEnds: true, EndsAccess: true})
	mux := http.NewServeMux()
	mux.Handle("/anthropic/", sim)
	mux.Handle("/oauth/", http.StripPrefix("/oauth", s.server))
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		if !s.server.Good(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
			http.Error(w, `{"error":{"message":"who are you?","type":"authentication_error"}}`, http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"hello":"you"}`)
	})
	front := httptest.NewServer(mux)
	t.Cleanup(front.Close)
	t.Cleanup(sim.Close)
	s.url = front.URL
	for name, text := range map[string]string{
		"profiles/sim.yaml":  fmt.Sprintf("name: sim\ndefault_for: sim\ndialect: openai\nbase_url: %s/api\nauth: {header: authorization, scheme: Bearer}\n", s.url),
		"providers/sim.yaml": fmt.Sprintf("name: sim\nprofile: sim\nendpoints: {authorize: %[1]s/oauth/authorize, token: %[1]s/oauth/token, code_page: %[1]s/oauth/code}\nclient: {auth: none}\ntokens: {rotate: true}\n", s.url),
	} {
		path := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.cfg = admin.Config{
		File: filepath.Join(s.dir, "kept", "accounts.json"), KeyFile: filepath.Join(s.dir, "kept", "broker.key"), AllowPrivate: true,
		Profiles: filepath.Join(s.dir, "profiles"), OAuth: admin.OAuth{Clients: "sim=us", Providers: filepath.Join(s.dir, "providers")},
	}
	s.environ = []string{
		processVariable + "=1", "CREDENTIAL_BROKER_ADDR=127.0.0.1:0", "TRUSTED_KEYS=" + subject.AgentRunner + "=" + key.Public(),
		"CREDENTIAL_BROKER_ACCOUNTS_FILE=" + s.cfg.File, "CREDENTIAL_BROKER_KEY_FILE=" + s.cfg.KeyFile, "CREDENTIAL_BROKER_ALLOW_PRIVATE=true",
		"CREDENTIAL_BROKER_PROFILES=" + s.cfg.Profiles, "CREDENTIAL_BROKER_OAUTH_PROVIDERS=" + s.cfg.OAuth.Providers, "CREDENTIAL_BROKER_OAUTH_CLIENTS=sim=us",
	}
	s.actor = identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner, Run: id.New[id.Run](), Session: id.New[id.Session]()}
	return s
}

// process is a running broker.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
	log chan string // all of it, when it has ended
}

// start starts a broker and waits until it serves.
func (s *single) start() *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: exec.CommandContext(s.t.Context(), os.Args[0]), log: make(chan string, 1)}
	p.cmd.Env = s.environ
	out, err := p.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	address := make(chan string)
	go func() {
		var all strings.Builder
		defer func() { p.log <- all.String() }()
		lines := bufio.NewScanner(out)
		found := false
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
			var line struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" && !found {
				found = true
				address <- line.Address
			}
		}
		close(address)
	}()
	addr, ok := <-address
	if !ok {
		s.t.Fatalf("the broker has ended: %s", <-p.log)
	}
	p.url = "http://" + addr
	s.t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() }) // in case the test has ended before it
	return p
}

// stop ends the broker and returns what it logged.
func (p *process) stop(how syscall.Signal) string {
	p.t.Helper()
	if err := p.cmd.Process.Signal(how); err != nil {
		p.t.Fatal(err)
	}
	text := <-p.log
	if err := p.cmd.Wait(); err != nil && how != syscall.SIGKILL {
		p.t.Errorf("the broker ended with %v: %s", err, text)
	}
	if strings.Contains(text, "planted") {
		p.t.Errorf("the log holds a secret: %s", text)
	}
	return text
}

// ask sends a request as agent-runner would, for an SDK.
func (s *single) ask(p *process, path, body string) (int, string) {
	s.t.Helper()
	token, err := s.signer.Sign(s.actor, subject.CredentialBroker)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, p.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", token)
	req.Header.Set("Anthropic-Version", "2023-06-01")
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

const question = `{"model":"m","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"hello"}]}`

// answered expects a complete answer within the second that a change takes.
func (s *single) answered(p *process) {
	s.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		status, text := s.ask(p, "/egress/anthropic/v1/messages", question)
		if status == http.StatusOK && strings.Contains(text, "message_stop") {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("answer %d: %.300s", status, text)
		}
	}
}

// commandLine opens the accounts as `signalbox accounts` does, as another process would.
func (s *single) commandLine(do func(ctx context.Context, a *admin.Accounts, shared *admin.Scope) error) {
	s.t.Helper()
	a, err := admin.Open(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	defer a.Close()
	if err := do(s.t.Context(), a, a.Operator(id.Workspace{})); err != nil {
		s.t.Fatal(err)
	}
}

func (s *single) add(label string) (account string) {
	s.t.Helper()
	s.commandLine(func(ctx context.Context, _ *admin.Accounts, shared *admin.Scope) error {
		a, err := shared.Add(ctx, admin.NewAccount{
			Provider: "anthropic", Label: label, BaseURL: s.url + "/anthropic", Secret: conf.Secret("sk-planted-" + label),
		})
		account = a.ID.String()
		return err
	})
	return account
}

// requests returns how many each account has answered.
func (s *single) requests() map[string]int64 {
	s.t.Helper()
	n := map[string]int64{}
	s.commandLine(func(ctx context.Context, _ *admin.Accounts, shared *admin.Scope) error {
		all, err := shared.Stats(ctx)
		for _, x := range all {
			n[x.Account.String()] += x.Requests
		}
		return err
	})
	return n
}

// TestWithoutDatabase adds and changes accounts beside a running broker, which is stopped,
// killed and started again.
func TestWithoutDatabase(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	p := s.start()
	if status, text := s.ask(p, "/egress/anthropic/v1/messages", question); status < 400 || status >= 500 {
		t.Errorf("without an account: %d %s", status, text)
	}
	first := s.add("first")
	s.answered(p)
	second := s.add("second")
	s.commandLine(func(ctx context.Context, _ *admin.Accounts, shared *admin.Scope) error {
		_, err := shared.SetPool(ctx, "anthropic", map[string]any{"strategy": "round-robin"}, false)
		return err
	})
	if log := p.stop(syscall.SIGTERM); strings.Contains(log, "nats") {
		t.Errorf("the broker was on the bus: %s", log)
	}
	before := s.requests()
	if before[first] == 0 {
		t.Errorf("what the accounts did was not written: %v", before)
	}

	// After a restart, all accounts exist.
	p = s.start()
	for range 4 {
		s.answered(p)
	}
	p.stop(syscall.SIGTERM)
	after := s.requests()
	want := map[string]int64{first: before[first] + 2, second: before[second] + 2}
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	// After a kill, the added account exists.
	p = s.start()
	s.answered(p)
	third := s.add("third")
	p.stop(syscall.SIGKILL)
	p = s.start()
	s.answered(p)
	s.commandLine(func(ctx context.Context, a *admin.Accounts, _ *admin.Scope) error {
		all, err := a.List(ctx)
		var ids []string
		for _, x := range all {
			ids = append(ids, x.ID.String())
		}
		if diff := cmp.Diff([]string{first, second, third}, ids); diff != "" {
			t.Errorf("accounts (-want +got):\n%s", diff)
		}
		return err
	})
	p.stop(syscall.SIGTERM)
	text, err := os.ReadFile(s.cfg.File)
	if err != nil || strings.Contains(string(text), "planted") {
		t.Errorf("the file holds a secret, or is not there: %v", err)
	}
	if ignored, err := os.ReadFile(filepath.Join(s.dir, "kept", ".gitignore")); err != nil || string(ignored) != "/accounts.json*\n/broker.key\n" {
		t.Errorf(".gitignore: %q, %v", ignored, err)
	}
}

// TestSignInWithoutDatabase renews a sign-in beside a broker that holds its token.
func TestSignInWithoutDatabase(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	_, refresh := s.server.Grant()
	auth := filepath.Join(s.dir, "auth.json")
	if err := os.WriteFile(auth, fmt.Appendf(nil, `{"sim": {"type": "oauth", "refresh": %q}}`, refresh), 0o600); err != nil {
		t.Fatal(err)
	}
	var account id.Account
	s.commandLine(func(ctx context.Context, _ *admin.Accounts, shared *admin.Scope) error {
		done, err := shared.Import(ctx, admin.ImportSources{AuthFile: auth}, false)
		if err == nil && len(done.Imported) == 1 {
			account = done.Imported[0].ID
		}
		return err
	})
	hello := func(p *process) {
		t.Helper()
		if status, text := s.ask(p, "/egress/sim/hello", `{}`); status != http.StatusOK || text != `{"hello":"you"}` {
			t.Errorf("answer %d %s", status, text)
		}
	}
	p := s.start()
	hello(p)
	s.commandLine(func(ctx context.Context, _ *admin.Accounts, shared *admin.Scope) error {
		_, err := shared.Refresh(ctx, account) // which ends the token that the broker holds
		return err
	})
	hello(p)
	p.stop(syscall.SIGKILL)
	p = s.start()
	hello(p)
	p.stop(syscall.SIGTERM)
	if diff := cmp.Diff(authserver.Calls{Refresh: 2, Refreshed: 2}, s.server.Calls()); diff != "" {
		t.Errorf("calls of the authorization server (-want +got):\n%s", diff)
	}
}

// ready returns the status of /ready.
func (p *process) ready() int {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.url+"/ready", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// TestDamagedAtStart: with a damaged file no other credential is used, the log says where the
// file went, and the broker recovers when it is restored.
func TestDamagedAtStart(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.environ = append(s.environ, "ANTHROPIC_API_KEY=sk-planted-environment", "ANTHROPIC_BASE_URL="+s.url+"/anthropic", "SIMULATOR_URL="+s.url)
	s.add("mine")
	good, err := os.ReadFile(s.cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.cfg.File, good[:len(good)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.start()
	for range 2 {
		status, text := s.ask(p, "/egress/anthropic/v1/messages", question)
		if status != http.StatusConflict || !strings.Contains(text, s.cfg.File+" was damaged and has been set aside as "+s.cfg.File+".damaged-") {
			t.Errorf("answer %d %.300s, want one that says what to do", status, text)
		}
	}
	if status := p.ready(); status != http.StatusServiceUnavailable {
		t.Errorf("/ready: %d, want 503", status)
	}
	log := p.stop(syscall.SIGTERM)
	for _, want := range []string{`"level":"ERROR","msg":"the accounts file was damaged and has been set aside`, s.cfg.File + ".damaged-", `"level":"ERROR","msg":"accounts cannot be used: requests are refused`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %s: %s", want, log)
		}
	}
	p = s.start()
	if err := os.WriteFile(s.cfg.File, good, 0o600); err != nil {
		t.Fatal(err)
	}
	s.answered(p)
	p.stop(syscall.SIGTERM)
	if n := len(s.requests()); n != 1 {
		t.Errorf("%d accounts have answered, want that of the file", n)
	}
}

// TestDamagedMeanwhile: the broker continues with the accounts that it has read.
func TestDamagedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	s.add("mine")
	p := s.start()
	s.answered(p)
	if err := os.WriteFile(s.cfg.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := admin.Open(s.cfg) // which sets it aside
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	s.answered(p)
	if status := p.ready(); status != http.StatusServiceUnavailable {
		t.Errorf("/ready: %d, want 503", status)
	}
	if log := p.stop(syscall.SIGTERM); !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, "was damaged and has been set aside") {
		t.Errorf("the log does not say it: %s", log)
	}
}

// TestSettingsThatDoNotFit: inconsistent settings are refused before anything is opened.
func TestSettingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	s := newSingle(t)
	for name, tt := range map[string]struct{ more, want string }{
		"both":    {"DATABASE_URL=postgres://127.0.0.1:1/none", "DATABASE_URL and CREDENTIAL_BROKER_ACCOUNTS_FILE are both set"},
		"neither": {"CREDENTIAL_BROKER_ACCOUNTS_FILE=", "DATABASE_URL is not set: name a database or, for the accounts of a single user, a file"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(slices.Clone(s.environ), tt.more)
		if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), tt.want) {
			t.Errorf("%s: %v: %s, want %q", name, err, text, tt.want)
		}
	}
}
