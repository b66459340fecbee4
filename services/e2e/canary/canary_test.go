package canary_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/e2e/world"
)

// rig is a cluster whose connections are all tapped.
type rig struct {
	*world.World
	t        *testing.T
	ctx      context.Context //nolint:containedctx // the test's, with a deadline
	programs string
	data     string
	provider *provider
	env      map[string][]string // of each service
	signer   *identity.Signer    // the gateway's
	runner   *identity.Signer    // an agent-runner's
	owner    world.Member

	marks *marks
	// secret belongs to the broker. passed is in codes that people see and send back through a
	// gateway, and in credentials of members. own are the services' secrets by name. token begins
	// every signed identity. handed is like secret, but passes through a gateway in clear if a
	// client does not seal it.
	secret, handed, passed, token *mark
	own                           map[string]*mark
	leak                          *mark
}

// mark defines the marks and the places where each may be.
func (r *rig) mark() {
	const tokens = "memory of *-[0-9]"
	broker := "memory of " + subject.CredentialBroker + "-"
	r.leak, r.secret, r.handed, r.passed = newMark("leakage"), newMark("canary"), newMark("handed"), newMark("passed")
	r.secret.may = []string{broker + "[0-9]"}
	r.handed.may = r.secret.may
	r.passed.may = []string{
		broker + "[0-9]", "memory of gateway-[0-9]", "wire gateway-[0-9] > credential-broker-[0-9]", "wire credential-broker-[0-9] > gateway-[0-9]",
		"answer to POST /api/accounts/logins", "answer to POST /api/connections", "answer to POST /api/keys", "responses of the broker to sign-ins",
	}
	r.passed.must = []string{"answer to POST /api/accounts/logins", "wire gateway-", "wire credential-broker-"}
	r.token = &mark{name: "token", text: tokensBegin(), found: map[string]bool{}}
	r.token.may = []string{tokens, "wire *-[0-9] > *-[0-9]"}
	r.token.must = []string{"wire " + subject.AgentRunner}
	r.own = map[string]*mark{}
	all := []*mark{r.leak, r.secret, r.handed, r.passed, r.token}
	for _, s := range world.Services() {
		m := newMark("own" + strings.ReplaceAll(s, "-", ""))
		m.may = []string{"memory of " + s + "-[0-9]", "memory of nats", "wire " + s + "-[0-9] > nats"}
		m.must = []string{"wire " + s}
		all, r.own[s] = append(all, m), m
	}
	if readsBroker {
		r.secret.must = append(r.secret.must, broker+"1", broker+"2")
		r.handed.must = append(r.handed.must, broker) // any broker that a gateway called
	}
	if readsMemory {
		r.token.must = append(r.token.must, "memory of gateway-1")
		for s, m := range r.own {
			m.must = append(m.must, "memory of nats")
			if s != subject.CredentialBroker || readsBroker {
				m.must = append(m.must, "memory of "+s+"-1")
			}
		}
	}
	r.marks = newMarks(all...)
}

func start(ctx context.Context, t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, ctx: ctx, programs: t.TempDir(), env: map[string][]string{}}
	r.mark()
	r.provider = newProvider(t, r.marks, r.secret, r.passed)
	r.trust()
	r.configure()
	if err := world.Build(ctx, r.programs); err != nil {
		t.Fatal(err)
	}
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { collect(r.marks, w, req) }))
	t.Cleanup(collector.Close)
	// A short path that the database's user can access.
	data, err := os.MkdirTemp("", "canary")
	if err == nil {
		err = os.Chmod(data, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(data) })
	r.data = data
	taps := &taps{marks: r.marks}
	r.World, err = world.Start(ctx, world.Options{
		Dir: t.TempDir(), Programs: r.programs, DataDir: data, LogLevel: "debug", Traces: collector.URL, Via: taps.via, Partitions: 2,
		Env: func(service string, _ int) []string { return r.env[service] },
	})
	if r.World != nil {
		t.Cleanup(func() { //nolint:contextcheck // it has to end whatever became of the test
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			taps.close()
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.HTTP.Transport = overhear{r.marks, r.HTTP.Transport}
	r.provider.behind(t, r.Simulator)
	r.databasePasswords()
	if r.owner, err = r.NewMember(ctx, "", "owner"); err != nil {
		t.Fatal(err)
	}
	return r
}

// tokensBegin is the beginning of all signed tokens.
func tokensBegin() string { return base64.RawURLEncoding.EncodeToString([]byte(`{"alg"`)) }

// trust makes the services trust keys of the test, so that it can call them as the gateway, and sets
// their passwords.
func (r *rig) trust() {
	r.t.Helper()
	trusted := map[string]string{}
	for _, s := range world.Services() {
		key, err := identity.ParseKey(base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%-32.32s", r.own[s].text)))
		if err != nil {
			r.t.Fatal(err)
		}
		trusted[s] = key.Public()
		r.env[s] = append(r.env[s], "NATS_PASSWORD="+r.own[s].text)
		r.env[world.NATSName] = append(r.env[world.NATSName], subject.PasswordVariable(s)+"="+r.own[s].text)
		r.env[s] = append(r.env[s], "SERVICE_KEY="+key.Encode())
		switch s {
		case subject.Gateway:
			r.signer = identity.NewSigner(s, key)
		case subject.AgentRunner:
			r.runner = identity.NewSigner(s, key)
		}
	}
	for _, s := range world.Services() {
		r.env[s] = append(r.env[s], "TRUSTED_KEYS="+identity.FormatTrusted(trusted))
	}
	r.env[subject.Gateway] = append(r.env[subject.Gateway], "GATEWAY_JWT_ISSUER=https://project.example", "GATEWAY_JWT_SECRET="+r.own[subject.Gateway].text+" of the access tokens")
	// Every other process certainly has this in its memory.
	for _, s := range append(world.Services(), world.NATSName, world.SimulatorName) {
		if s != subject.CredentialBroker {
			r.env[s] = append(r.env[s], "CANARY_LEAK="+r.leak.text)
		}
	}
}

// configure sets the brokers' secrets and a custom provider.
func (r *rig) configure() {
	r.t.Helper()
	dir := r.t.TempDir()
	writeProviders(r.t, dir, r.provider.URL)
	r.env[subject.CredentialBroker] = append(r.env[subject.CredentialBroker],
		"CREDENTIAL_BROKER_ALLOW_PRIVATE=true",
		"CREDENTIAL_BROKER_PROFILES="+filepath.Join(dir, "profiles"),
		"CREDENTIAL_BROKER_OAUTH_PROVIDERS="+filepath.Join(dir, "oauth"),
		"CREDENTIAL_BROKER_OAUTH_REDIRECT=http://signalbox.example/api/connections/callback",
		"CREDENTIAL_BROKER_OAUTH_CLIENTS=canary=us:"+clientSecret(r.secret),
		"OPENAI_API_KEY="+r.secret.text+"-environment-key", "OPENAI_BASE_URL="+r.provider.URL+"/openai/v1",
		"CREDENTIAL_BROKER_KEY_URL="+r.keyURL("former"),
		"CREDENTIAL_BROKER_OTHER_KEYS="+r.keyURL("present"),
	)
}

// writeProviders writes request profiles and an OAuth provider with an address.
func writeProviders(t *testing.T, dir, address string) {
	t.Helper()
	for name, text := range map[string]string{
		"profiles/keyed.yaml":  "name: keyed\ndialect: openai\nmounts: [/v1]\nauth: {header: x-house-key}\nroutes: [{path: /chat/completions, wait: 1m, wait_stream: 1m, stream: {events: chat}}]\n",
		"profiles/canary.yaml": "name: canary\ndialect: openai\nbase_url: URL/openrouter/api/v1\nmounts: [/api/v1, /v1]\nauth: {header: authorization, scheme: Bearer}\n",
		"oauth/canary.yaml": "name: canary\naccount: openrouter\nprofile: canary\nclient: {auth: body}\ntokens: {rotate: true, refresh_ends_access: true}\n" +
			"endpoints: {authorize: URL/oauth/authorize, token: URL/oauth/token, device: URL/oauth/device, code_page: URL/oauth/code, revoke: URL/oauth/revoke}\n" +
			"connection: {title: Canary, whoami: {url: URL/oauth/whoami, at: [name, login]}}\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.ReplaceAll(text, "URL", address)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// keyURL returns a key-encryption key of 32 bytes that contains the mark.
func (r *rig) keyURL(name string) string {
	key := fmt.Sprintf("%-32s", r.secret.text+" "+name)
	return "base64key://" + base64.URLEncoding.EncodeToString([]byte(key[:32]))
}

// collect receives traces.
func collect(all *marks, _ http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		var err error
		if body, err = gzip.NewReader(body); err != nil {
			return
		}
	}
	_, _ = io.Copy(&stream{marks: all, place: "traces"}, body) // fails if the service leaves
}

// accounts returns a client of a broker with the gateway's identity.
func (r *rig) accounts(replica int) credentialv1connect.AccountServiceClient {
	r.t.Helper()
	opts, err := rpc.Client{Signer: r.signer, Audience: subject.CredentialBroker}.ClientOptions()
	if err != nil {
		r.t.Fatal(err)
	}
	return credentialv1connect.NewAccountServiceClient(r.HTTP, "http://"+r.Replica(subject.CredentialBroker, replica).Addr, opts...)
}

// as returns the context for the owner's calls.
func (r *rig) as() context.Context {
	r.t.Helper()
	ws, err1 := id.Parse[id.Workspace](r.owner.Workspace)
	member, err2 := id.Parse[id.Member](r.owner.ID)
	if err1 != nil || err2 != nil {
		r.t.Fatal(err1, err2)
	}
	return identity.With(r.ctx, identity.Actor{Workspace: ws, Member: member, Role: identity.Owner})
}

// must fails the test on an error. It searches the response, which callers see.
func (r *rig) must(v any, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	r.marks.look("answers of the broker", fmt.Append(nil, v))
}

// refused expects an error and searches it.
func (r *rig) refused(what string, err error) {
	r.t.Helper()
	if err == nil {
		r.t.Fatalf("%s succeeded", what)
	}
	r.marks.look("errors of the broker", []byte(err.Error()))
}

// signIn signs in with a pasted code, and returns the account.
func (r *rig) signIn() string {
	r.t.Helper()
	login, err := r.accounts(1).StartLogin(r.as(), &credentialv1.StartLoginRequest{Provider: "canary", Kind: credentialv1.LoginKind_LOGIN_KIND_PASTE})
	if err != nil {
		r.t.Fatal(err)
	}
	r.marks.look("responses of the broker to sign-ins", fmt.Append(nil, login))
	done, err := r.accounts(2).CompleteLogin(r.as(), &credentialv1.CompleteLoginRequest{Id: login.GetId(), Code: r.code(login.GetUrl())})
	r.must(done, err)
	return done.GetAccount().GetId()
}

const script = `
rules:
  - when: {user: '^say (?P<text>\w+)$'}
    then: [{say: {text: '{{.match.text}}', chunk: all}}]
`

// ask makes a model of a provider say the leak, and returns the run's state and error.
func (r *rig) ask(gateway int, provider string) string {
	r.t.Helper()
	c := r.Client(gateway, r.owner)
	var made struct{ Session struct{ ID string } }
	if err := c.Call(r.ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions", Body: map[string]any{"model": "sim/say", "provider": provider}}, &made); err != nil {
		r.t.Fatal(err)
	}
	s, err := c.Send(r.ctx, made.Session.ID, world.Sending{Content: "say " + r.leak.text})
	if err != nil {
		r.t.Fatal(err)
	}
	defer s.Close()
	for err == nil {
		_, err = s.Next()
	}
	run, err := c.Run(r.ctx, s.Run)
	if err != nil {
		r.t.Fatal(err)
	}
	if run.Error != nil {
		return run.Error.Code
	}
	return run.State
}

func (r *rig) wantAnswers(when string) {
	r.t.Helper()
	for i, provider := range []string{"anthropic", "openai", "openrouter"} {
		for gateway := range 2 { // each uses another broker
			if got := r.ask(gateway, provider); got != "done" {
				r.t.Errorf("%s: a run with %s (%d) = %s, want done", when, provider, i, got)
			}
		}
	}
}

// rotate runs the operator's command with one of the brokers' keys.
func (r *rig) rotate(args ...string) []byte {
	r.t.Helper()
	cmd := exec.CommandContext(r.ctx, filepath.Join(r.programs, "signalbox"), append([]string{"accounts", "rotate-keys", "--yes", "--json"}, args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+r.Database, "CREDENTIAL_BROKER_KEY_URL="+r.keyURL("present"), "CREDENTIAL_BROKER_OTHER_KEYS="+r.keyURL("former"))
	out, err := cmd.CombinedOutput()
	r.marks.look("output of commands", out)
	if err != nil {
		r.t.Fatalf("rotate-keys: %v\n%.2000s", err, out)
	}
	return out
}

func TestSecretsStayWithTheBroker(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*world.Timeout)
	defer cancel()
	r := start(ctx, t)
	if err := r.PutScript(ctx, "say", script); err != nil {
		t.Fatal(err)
	}
	r.use()
	r.searchAll()
	r.check()
}

// use uses every secret, with success and with failure.
func (r *rig) use() {
	r.t.Helper()
	r.connectTool()
	r.gateways()
	added, err := r.accounts(1).AddAccount(r.as(), &credentialv1.AddAccountRequest{
		Provider: "anthropic", Label: "mine", Secret: r.secret.text + "-apikey-of-a-workspace", BaseUrl: r.provider.URL + "/anthropic",
	})
	r.must(added, err)
	account := r.signIn()
	r.wantAnswers("at first")
	renewed, err := r.accounts(2).RefreshAccount(r.as(), &credentialv1.RefreshAccountRequest{Id: account})
	r.must(renewed, err)
	r.wantAnswers("with a renewed token")

	keyed, err := r.accounts(2).AddAccount(r.as(), &credentialv1.AddAccountRequest{
		Provider: "house", Profile: "keyed", Secret: r.secret.text + "-header-of-a-house", BaseUrl: r.provider.URL + "/house",
	})
	r.must(keyed, err)
	r.strange()
	r.logins()
	r.members()
	_, err = r.accounts(1).CompleteLogin(r.as(), &credentialv1.CompleteLoginRequest{State: "strange", Code: r.secret.text})
	r.refused("a strange code", err)
	listed, err := r.accounts(2).ListAccounts(r.as(), &credentialv1.ListAccountsRequest{})
	r.must(listed, err)
	audit, err := r.accounts(2).ListAudit(r.as(), &credentialv1.ListAuditRequest{})
	r.must(audit, err)

	r.rotateAll()
	r.wantAnswers("after the rotation")
	again, err := r.accounts(1).RefreshAccount(r.as(), &credentialv1.RefreshAccountRequest{Id: account})
	r.must(again, err)
	r.wantAnswers("with a token renewed after the rotation")

	r.quotes()
	r.provider.refuse.Store(true)
	for _, provider := range []string{"anthropic", "openai", "openrouter"} {
		if got := r.ask(0, provider); got == "done" {
			r.t.Errorf("a run with a refused credential of %s = %s", provider, got)
		}
	}
	for _, kind := range []string{"apikey", "environment", "access"} { // runs do not use house
		if r.provider.noted(kind+" true") == 0 || r.provider.noted(kind+" false") == 0 {
			r.t.Errorf("credentials of the kind %s were accepted %d times and refused %d times", kind, r.provider.noted(kind+" true"), r.provider.noted(kind+" false"))
		}
	}
}

// quotes makes providers quote the key of a request wherever a response can contain it: to runs, and
// to a caller that reads everything.
func (r *rig) quotes() {
	r.t.Helper()
	for _, place := range quoting {
		r.provider.quote.Store(&place)
		for i, provider := range []string{"anthropic", "openai", "openrouter"} {
			if got := r.ask(i%2, provider); (got == "done") != (place == "text") {
				r.t.Errorf("a run with a provider %s that quotes its key in %s = %s", provider, place, got)
			}
		}
		r.egress("/anthropic/v1/messages")
		r.egress("/openai/v1/chat/completions")
		r.egress("/openrouter/v1/chat/completions")
		r.egress("/house/v1/chat/completions")
		for kind, want := range map[string]int{"apikey": 2, "environment": 2, "access": 2, "header": 1} {
			if n := r.provider.noted(kind + " in " + place); n < want {
				r.t.Errorf("credentials of the kind %s were quoted %d times in %s, want some", kind, n, place)
			}
		}
	}
	r.provider.quote.Store(nil)
}

// egress sends a request to a broker like agent-runner, and reads the response to its end.
func (r *rig) egress(path string) {
	r.t.Helper()
	actor, _ := identity.From(r.as())
	token, err := r.runner.Sign(actor, subject.CredentialBroker)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, "http://"+r.Replica(subject.CredentialBroker, 1).Addr+"/egress"+path, strings.NewReader(`{"model":"m","messages":[]}`))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", token)
	res, err := r.HTTP.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body) // a response that ends with an error event is cut
	if !strings.Contains(string(body), "[redacted]") {
		r.t.Errorf("%s: the response has no place-holder for the key: %.300q", path, body)
	}
}

// rotateAll replaces all keys, including the key-encryption key, and checks that nothing is sealed
// with the old ones.
func (r *rig) rotateAll() {
	r.t.Helper()
	r.rotate("--wrap-only")
	var got struct{ Workspaces, Made, Sealed, Failed int }
	if err := json.Unmarshal(r.rotate(), &got); err != nil || got.Made != 1 || got.Sealed < 4 || got.Failed != 0 {
		r.t.Errorf("rotate-keys = %+v, %v, want one new data key and all sealed anew", got, err)
	}
	db := r.connect()
	defer func() { _ = db.Close(r.ctx) }()
	var behind int
	err := db.QueryRow(r.ctx, `
		SELECT count(*) FROM credentials.data_keys k WHERE retired_at IS NOT NULL AND (
			EXISTS (SELECT FROM credentials.accounts t WHERE t.workspace_id = k.workspace_id AND t.key_version = k.version)
			OR EXISTS (SELECT FROM credentials.grants t WHERE t.workspace_id = k.workspace_id AND k.version IN (t.access_key_version, t.refresh_key_version)))`).Scan(&behind)
	if err != nil || behind != 0 {
		r.t.Errorf("%d retired data keys are in use, %v", behind, err)
	}
}

func (r *rig) connect() *pgx.Conn {
	r.t.Helper()
	db, err := pgx.Connect(r.ctx, r.Database)
	if err != nil {
		r.t.Fatal(err)
	}
	return db
}

// searchAll searches everything that remains afterwards. Before that it puts the leak into the places
// that do not contain it by themselves.
func (r *rig) searchAll() {
	r.t.Helper()
	r.plant()
	r.pages()
	for _, p := range r.Procs() {
		r.file("log of "+p.Name(), p.LogFile())
	}
	r.tables()
	memories(r.t, r.marks, r.World)
	// Last: the database writes its memory to disk.
	r.stored()
}

// plant puts the leak into places that would not contain it otherwise.
func (r *rig) plant() {
	r.t.Helper()
	for _, p := range r.Procs() {
		f, err := os.OpenFile(p.LogFile(), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = fmt.Fprintln(f, r.leak.text)
		if err2 := f.Close(); err != nil || err2 != nil {
			r.t.Fatal(err, err2)
		}
	}
	collect(r.marks, nil, httptest.NewRequestWithContext(r.ctx, http.MethodPost, "/v1/traces", strings.NewReader("span "+r.leak.text)))
	cmd := exec.CommandContext(r.ctx, filepath.Join(r.programs, "signalbox"), r.leak.text)
	out, _ := cmd.CombinedOutput() // the command does not exist
	r.marks.look("output of commands", out)
	for _, replica := range []int{1, 2} {
		_, err := r.accounts(replica).AddAccount(r.as(), &credentialv1.AddAccountRequest{Provider: "P " + r.leak.text, Secret: "x"})
		r.refused("a provider with a space", err)
	}
	named, err := r.accounts(1).AddAccount(r.as(), &credentialv1.AddAccountRequest{Provider: "anthropic", Label: r.leak.text, Secret: "another-key"})
	r.must(named, err)
}

// pages reads the operators' pages, and the responses to strangers.
func (r *rig) pages() {
	r.t.Helper()
	for _, p := range r.Procs() {
		if p.Service == world.NATSName || p.Service == world.SimulatorName {
			continue
		}
		for _, path := range []string{"/metrics", "/ready", "/health", "/egress/anthropic/v1/messages", "/debug/pprof/goroutine?debug=2", "/debug/vars"} {
			req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, p.Ops+path, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			res, err := r.HTTP.Do(req)
			if err != nil {
				r.t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, res.Body) // overhear searches it
			_ = res.Body.Close()
			if err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func (r *rig) file(place, name string) {
	r.t.Helper()
	f, err := os.Open(name)
	if err != nil {
		return // the database has deleted it
	}
	defer f.Close()
	if _, err := io.Copy(&stream{marks: r.marks, place: place}, f); err != nil {
		r.t.Errorf("read %s: %v", name, err)
	}
}

// tables reads every table of the database, of all schemas.
func (r *rig) tables() {
	r.t.Helper()
	db := r.connect()
	defer func() { _ = db.Close(r.ctx) }()
	rows, err := db.Query(r.ctx, `
		SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1`)
	if err != nil {
		r.t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	for _, name := range append(names, "pg_stat_activity") {
		rows, err := db.Query(r.ctx, `SELECT t::text FROM `+name+` AS t`)
		if err != nil {
			r.t.Fatal(err)
		}
		s := &stream{marks: r.marks, place: "table " + name}
		var line string
		if _, err := pgx.ForEachRow(rows, []any{&line}, func() error { _, err := io.WriteString(s, line); return err }); err != nil {
			r.t.Errorf("read %s: %v", name, err)
		}
	}
	if !slices.Contains(names, "credentials.grants") || !slices.Contains(names, "gateway.members") {
		r.t.Errorf("the tables are %q", names)
	}
}

// stored reads the files of the database and the bus, including overwritten and deleted data and
// messages in transit.
func (r *rig) stored() {
	r.t.Helper()
	db := r.connect()
	if _, err := db.Exec(r.ctx, "CHECKPOINT"); err != nil {
		r.t.Error(err)
	}
	_ = db.Close(r.ctx)
	for _, of := range []string{"pg", "nats"} {
		err := filepath.WalkDir(filepath.Join(r.data, of), func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				r.file("files of "+of, name)
			}
			return nil // files come and go
		})
		if err != nil {
			r.t.Error(err)
		}
	}
}

// check expects the leak in every place, and the secrets only where they may be.
func (r *rig) check() {
	r.t.Helper()
	kinds := []string{
		"log of ", "wire gateway", "wire agent-runner", "wire nats", "wire postgres", "wire credential-broker", "table agent.", "table credentials.accounts",
		"answer to GET /api/", "answer to POST /api/", "answers of the broker", "errors of the broker", "output of commands", "traces", "files of pg", "files of nats",
	}
	if readsMemory {
		for _, p := range r.Procs() {
			if p.Service != subject.CredentialBroker {
				kinds = append(kinds, "memory of "+p.Name())
			}
		}
		kinds = append(kinds, "memory of postgres")
	}
	for _, kind := range kinds {
		if len(r.leak.places(kind)) == 0 {
			r.t.Errorf("the leak is not found in: %s", kind)
		}
	}
	for _, m := range append(slices.Collect(maps.Values(r.own)), r.secret, r.handed, r.passed, r.token) {
		m.check(r.t)
	}
}

// TestMark checks that a mark is found in every encoding, at every offset, and in pieces.
func TestMark(t *testing.T) {
	t.Parallel()
	m := &mark{text: "canary0123456789abcd", found: map[string]bool{}}
	for shift := range 7 {
		for _, tail := range []string{"", "?", "??", "???"} {
			text := strings.Repeat("~", shift) + m.text + tail
			for name, encoded := range map[string]string{
				"plain": text, "hex": fmt.Sprintf("%x", text), "HEX": fmt.Sprintf("%X", text),
				"base64": base64.StdEncoding.EncodeToString([]byte(text)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(text)),
			} {
				for cut := range encoded {
					place := fmt.Sprint(name, shift, tail, cut)
					s := &stream{marks: newMarks(newMark("other"), m), place: place}
					_, _ = s.Write([]byte(encoded[:cut])) // s accepts everything
					_, _ = s.Write([]byte(encoded[cut:]))
					if !m.found[place] {
						t.Fatalf("%s: not found in %q, cut at %d", name, encoded, cut)
					}
				}
			}
		}
	}
	s := &stream{marks: newMarks(newMark("other"), m), place: "elsewhere"}
	_, _ = s.Write(bytes.Repeat([]byte(m.text[:len(m.text)-1]), 100))
	if m.found["elsewhere"] {
		t.Error("a part of the mark was found")
	}
}
