package credentialbroker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"gocloud.dev/secrets"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
)

func TestMain(m *testing.M) {
	secrets.DefaultURLMux().RegisterKeeper("away", awayKeys{})
	// The test server's own goroutines live as long as the process (package pgtest).
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"), goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).relay"))
}

const canary = "canary-7d31aa-secret-key"

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// broker is a running service and its callers.
type broker struct {
	t       *testing.T
	adminDB string // empty where there is no database
	db      *pg.DB
	keyFile string
	url     string
	log     *lines
	signers map[string]*identity.Signer // by service
	service *credentialbroker.Service
	stop    context.CancelFunc
	done    chan error
	http    *http.Client
}

func start(t *testing.T, cfg credentialbroker.Config) *broker {
	t.Helper()
	b := &broker{t: t, keyFile: filepath.Join(t.TempDir(), "broker.key"), log: &lines{}, done: make(chan error, 1)}
	if cfg.AccountsFile == "" {
		m := credentialbroker.Migrations()
		database := pgtest.New(t, m)
		b.adminDB, b.db = database.AdminURL, database.Open(t, m)
	}
	return b.serve(cfg)
}

// serve starts the service with the broker's database and key file.
func (b *broker) serve(cfg credentialbroker.Config) *broker {
	t := b.t
	t.Helper()
	trusted := map[string]string{}
	b.signers = map[string]*identity.Signer{}
	for _, service := range []string{subject.Gateway, subject.AgentRunner, subject.ToolExecutor, subject.DocumentSync} {
		key, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		b.signers[service], trusted[service] = identity.NewSigner(service, key), key.Public()
	}
	verifier, err := identity.NewVerifier("credential-broker", trusted)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.KeyFile = b.keyFile
	registry := prometheus.NewRegistry()
	b.service, err = credentialbroker.New(cfg, credentialbroker.Deps{
		Log: slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		DB:  b.db, Listener: listener, Verifier: verifier, Registerer: registry, Gatherer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.url = "http://" + listener.Addr().String()
	b.http = rpc.NewHTTPClient(nil)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	b.stop = stop
	go func() { b.done <- b.service.Run(ctx) }()
	t.Cleanup(func() {
		b.http.CloseIdleConnections()
		b.stop()
		if err := <-b.done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return b
}

func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("not reached")
	}
}

func member(role identity.Role) identity.Actor {
	return identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: role, Run: id.New[id.Run](), Session: id.New[id.Session]()}
}

// client calls as the gateway.
func (b *broker) client() credentialv1connect.AccountServiceClient {
	return b.clientOf(subject.Gateway)
}

func (b *broker) clientOf(service string) credentialv1connect.AccountServiceClient {
	opts, err := rpc.Client{Signer: b.signers[service], Audience: "credential-broker"}.ClientOptions()
	if err != nil {
		b.t.Fatal(err)
	}
	return credentialv1connect.NewAccountServiceClient(b.http, b.url, opts...)
}

// ask sends a request through the egress as agent-runner, for the actor.
func (b *broker) ask(a identity.Actor, path string) (status int, body string, err error) {
	return b.askOf(subject.AgentRunner, a, path)
}

func (b *broker) askOf(service string, a identity.Actor, path string) (status int, body string, err error) {
	b.t.Helper()
	return b.askWith(service, a, path, `{"stream":true}`)
}

func (b *broker) askWith(service string, a identity.Actor, path, text string) (status int, body string, err error) {
	b.t.Helper()
	token, err := b.signers[service].Sign(a, "credential-broker")
	if err != nil {
		b.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url+path, strings.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := b.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, string(answer), err
}

// provider is an upstream that returns the key of the request.
func provider(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("X-Api-Key")
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: content_block_start\ndata: {\"path\":%q,\"keylen\":%d}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\ndata: [DONE]\n\n", r.URL.Path, len(key))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

const messages = "/egress/anthropic/v1/messages"

func TestAccountsOverConnect(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	up := provider(t)
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	c := b.client()

	if status, body, _ := b.ask(owner, messages); status != 401 || !strings.Contains(body, "signalbox accounts add anthropic") {
		t.Errorf("without any account: %d %s", status, body)
	}
	added, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "anthropic", Label: "mine", Secret: " sk-" + canary + "\n", BaseUrl: up + "/v1/"})
	if err != nil {
		t.Fatal(err)
	}
	want := &credentialv1.Account{
		Id: added.GetAccount().GetId(), Provider: "anthropic", Profile: "anthropic-api-key", Label: "mine", Hint: "-key", BaseUrl: up + "/v1",
		Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Enabled: true, CreatedAt: added.GetAccount().GetCreatedAt(),
		Status: credentialv1.AccountStatus_ACCOUNT_STATUS_READY, Health: new(float64(100)),
	}
	if diff := cmp.Diff(want, added.GetAccount(), protocmp.Transform()); diff != "" {
		t.Errorf("AddAccount (-want +got):\n%s", diff)
	}
	status, body, err := b.ask(owner, messages)
	if status != 200 || err != nil || !strings.Contains(body, fmt.Sprintf(`"path":"/v1/messages","keylen":%d`, len("sk-"+canary))) {
		t.Errorf("with the account: %d %s, %v", status, body, err)
	}
	if status, _, _ := b.ask(member(identity.Owner), messages); status != 401 {
		t.Errorf("another workspace is answered with %d, want 401", status)
	}
	b.used(owner, 1)
	listed, err := c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(listed.GetAccounts()) != 1 || listed.GetAccounts()[0].GetLastUsedAt() == nil {
		t.Errorf("ListAccounts = %v, %v, want the one account, used", listed, err)
	}
	providers, err := c.ListProviders(ctx, &credentialv1.ListProvidersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantProviders := &credentialv1.ListProvidersResponse{Providers: []*credentialv1.Provider{{Name: "anthropic", Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Dialect: "anthropic", OwnBaseUrl: true}}}
	if diff := cmp.Diff(wantProviders, providers, protocmp.Transform()); diff != "" {
		t.Errorf("ListProviders (-want +got):\n%s", diff)
	}
	if _, err := c.RemoveAccount(identity.With(t.Context(), member(identity.Owner)), &credentialv1.RemoveAccountRequest{Id: want.GetId()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("RemoveAccount by another workspace = %v, want NotFound", err)
	}
	if _, err := c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: want.GetId()}); err != nil {
		t.Errorf("RemoveAccount = %v", err)
	}
	if status, _, _ := b.ask(owner, messages); status != 401 {
		t.Errorf("after the removal: %d, want 401", status)
	}
	b.hides(canary, fmt.Sprint(added, listed, providers, body))
}

// TestLabelOfBlanks: surrounding spaces do not belong to a label.
func TestLabelOfBlanks(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	ctx, c := identity.With(t.Context(), member(identity.Owner)), b.client()
	for label, want := range map[string]string{" ": "", "\u00a0\u3000 ": "", "  of the team ": "of the team"} {
		added, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "openai", Label: label, Secret: "sk-1"})
		if got := added.GetAccount().GetLabel(); err != nil || got != want {
			t.Errorf("AddAccount with the label %q = %q, %v, want %q", label, got, err, want)
		}
	}
}

// TestListOfAll: the longest possible list, of the largest accounts, fits into a response.
func TestListOfAll(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	owner := member(identity.Owner)
	ctx, c := identity.With(t.Context(), owner), b.client()
	added, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "sim", Profile: "generic", Secret: "sk-1", BaseUrl: "https://x.example", Label: strings.Repeat("\U0001f511", 100)})
	if err != nil {
		t.Fatal(err)
	}
	// The copies have no secret, as accounts that somebody signed in to: a copied one does not
	// open, and each would be tried again with the data key from the database.
	const more = `
		INSERT INTO credentials.accounts (workspace_id, id, provider, profile, label, hint, base_url, key_version, sealed)
		SELECT %s, gen_random_uuid(), 'provider-with-a-name-of-32-bytes', profile, label, hint, 'https://x.example/' || repeat('x', 2030), key_version, ''
		FROM credentials.accounts, generate_series(1, $2) WHERE id = $1`
	b.exec(`INSERT INTO credentials.data_keys (workspace_id, version, kek, wrapped) SELECT '00000000-0000-0000-0000-000000000000', version, kek, wrapped FROM credentials.data_keys`)
	b.exec(fmt.Sprintf(more, "workspace_id"), added.GetAccount().GetId(), 9_999)
	b.exec(fmt.Sprintf(more, "'00000000-0000-0000-0000-000000000000'::uuid"), added.GetAccount().GetId(), 10_000)
	b.exec(`
		INSERT INTO credentials.account_limits
		SELECT workspace_id, provider, id, '', now(), now() + interval '1 hour', now(), 2, 'QUOTA_EXHAUSTED', 403, 'retry-after: 3600' FROM credentials.accounts`)
	listed, err := c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if n := len(listed.GetAccounts()); err != nil || n != 20_000 {
		t.Errorf("ListAccounts: %d accounts, %v, want 20000", n, err)
	}
}

// hides looks for a secret in everything that the broker returned, logged or stored.
func (b *broker) hides(secret, told string) {
	b.t.Helper()
	places := map[string]string{"answers": told, "log": b.log.String()}
	conn, err := pgx.Connect(b.t.Context(), b.adminDB)
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(b.t.Context()))
	for _, table := range []string{"accounts", "data_keys", "audit"} {
		rows, err := conn.Query(b.t.Context(), "SELECT to_jsonb(t)::text FROM credentials."+table+" t")
		if err != nil {
			b.t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			b.t.Fatal(err)
		}
		places["table "+table] = strings.Join(all, "\n")
	}
	res, err := b.http.Get(b.url + "/metrics")
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if unused := `signalbox_broker_requests_total{outcome="exhausted",provider="other"} 0`; !bytes.Contains(metrics, []byte(unused)) {
		b.t.Errorf("/metrics has no %s", unused)
	}
	places["metrics"] = string(metrics)
	for place, text := range places {
		for _, form := range []string{secret, fmt.Sprintf("%x", secret)} {
			if strings.Contains(text, form) {
				b.t.Errorf("the secret shows in %s:\n%s", place, text)
			}
		}
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	c := b.client()
	for _, role := range []identity.Role{identity.Viewer, identity.Editor} {
		ctx := identity.With(t.Context(), member(role))
		for name, call := range map[string]func() error{
			"AddAccount": func() error {
				_, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "openai", Secret: "k"})
				return err
			},
			"ListAccounts": func() error { _, err := c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{}); return err },
			"RemoveAccount": func() error {
				_, err := c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: id.New[id.Account]().String()})
				return err
			},
		} {
			if err := call(); fault.KindOf(err) != fault.Forbidden {
				t.Errorf("%s as %s = %v, want Forbidden", name, role, err)
			}
		}
		if _, err := c.ListProviders(ctx, &credentialv1.ListProvidersRequest{}); err != nil {
			t.Errorf("ListProviders as %s = %v", role, err)
		}
	}
	ctx := identity.With(t.Context(), member(identity.Owner))
	if _, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "openai", Secret: canary, Shared: true}); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("AddAccount of a shared one = %v, want Forbidden", err)
	}
	if _, err := c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: "x"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("RemoveAccount(x) = %v, want Invalid", err)
	}
}

// TestCallers: a service can make only the calls that it needs, whatever the role of the member.
func TestCallers(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	if _, err := b.client().AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "anthropic", Secret: canary, BaseUrl: provider(t)}); err != nil {
		t.Fatal(err)
	}
	for service, may := range map[string]struct{ accounts, providers, egress bool }{
		subject.Gateway:      {accounts: true, providers: true},
		subject.AgentRunner:  {providers: true, egress: true},
		subject.ToolExecutor: {egress: true},
		subject.DocumentSync: {},
	} {
		c := b.clientOf(service)
		check := func(what string, allowed bool, err error) {
			if forbidden := fault.KindOf(err) == fault.Forbidden && err != nil; forbidden == allowed {
				t.Errorf("%s by %s = %v, want allowed: %t", what, service, err, allowed)
			}
		}
		_, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "x y", Secret: "k"})
		check("AddAccount", may.accounts, err)
		_, err = c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
		check("ListAccounts", may.accounts, err)
		_, err = c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: id.New[id.Account]().String()})
		check("RemoveAccount", may.accounts, err)
		_, err = c.ListProviders(ctx, &credentialv1.ListProvidersRequest{})
		check("ListProviders", may.providers, err)
		want := http.StatusForbidden
		if may.egress {
			want = http.StatusOK
		}
		if status, body, err := b.askOf(service, owner, messages); err != nil || status != want {
			t.Errorf("egress for %s = %d %s, %v, want %d", service, status, body, err, want)
		}
	}
}

func TestBadAccounts(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	c := b.client()
	ctx := identity.With(t.Context(), member(identity.Owner))
	good := &credentialv1.AddAccountRequest{Provider: "openai", Secret: canary}
	for _, tt := range []struct {
		name   string
		change func(*credentialv1.AddAccountRequest)
		want   string
	}{
		{"no provider", func(r *credentialv1.AddAccountRequest) { r.Provider = "" }, "provider: "},
		{"odd provider", func(r *credentialv1.AddAccountRequest) { r.Provider = "../x" }, "provider: "},
		{"provider without profile", func(r *credentialv1.AddAccountRequest) { r.Provider = "mine" }, "base_url: mine is not a known provider (anthropic, github, google, notion, openai, openrouter): give its URL"},
		{"unknown profile", func(r *credentialv1.AddAccountRequest) { r.Profile = "x" }, `profile: there is no request profile "x"`},
		{"generic without base URL", func(r *credentialv1.AddAccountRequest) { r.Provider, r.Profile = "mine", "generic" }, "base_url: the profile generic has none"},
		{"no secret", func(r *credentialv1.AddAccountRequest) { r.Secret = " \n" }, "secret: it is empty"},
		{"two lines", func(r *credentialv1.AddAccountRequest) { r.Secret = canary + "\r\nx: y" }, "secret: it contains a space, a line break"},
		{"long secret", func(r *credentialv1.AddAccountRequest) { r.Secret = strings.Repeat("x", 9000) }, "secret: it is longer than 8192 bytes"},
		{"long label", func(r *credentialv1.AddAccountRequest) { r.Label = strings.Repeat("ä", 101) }, "label: it is longer than 100 characters"},
		{"label that turns round", func(r *credentialv1.AddAccountRequest) { r.Label = "x\u202ey" }, "label: it contains a control character or another invisible character"},
		{"label with nothing in it", func(r *credentialv1.AddAccountRequest) { r.Label = "ma\u200bin" }, "label: it contains a control character or another invisible character"},
		{"label of two lines", func(r *credentialv1.AddAccountRequest) { r.Label = "a\u2028b" }, "label: it contains a control character or another invisible character"},
		{"label that is a key", func(r *credentialv1.AddAccountRequest) { r.Label = "sk-" + canary }, "label: it looks like a key, which must stay secret: choose another label"},
		{"label with controls", func(r *credentialv1.AddAccountRequest) { r.Label = "a\x1b[31m" }, "label: it contains a control character"},
		{"http", func(r *credentialv1.AddAccountRequest) { r.BaseUrl = "http://api.example.com" }, "base_url: the base URL must begin with https"},
		{"private", func(r *credentialv1.AddAccountRequest) { r.BaseUrl = "https://10.0.0.1" }, "base_url: the base URL names a loopback or private address, which the operator has not allowed (CREDENTIAL_BROKER_ALLOW_PRIVATE)"},
		{"userinfo", func(r *credentialv1.AddAccountRequest) { r.BaseUrl = "https://u:" + canary + "@x.example" }, "base_url: the base URL must not contain a user or password"},
	} {
		req := &credentialv1.AddAccountRequest{Provider: good.GetProvider(), Secret: good.GetSecret()}
		tt.change(req)
		_, err := c.AddAccount(ctx, req)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: AddAccount = %v, want Invalid with %q", tt.name, err, tt.want)
		}
	}
	if res, err := c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{}); err != nil || len(res.GetAccounts()) != 0 {
		t.Errorf("ListAccounts = %v, %v, want none", res, err)
	}
	if strings.Contains(b.log.String(), canary) {
		t.Errorf("the secret shows in the log:\n%s", b.log)
	}
}

func TestOperatorsAccounts(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	up := provider(t)
	ctx := t.Context()
	accounts, err := admin.Open(admin.Config{DB: b.db, KeyFile: b.keyFile, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer accounts.Close()
	owner := member(identity.Owner)
	shared, err := accounts.Operator(id.Workspace{}).Add(ctx, admin.NewAccount{Provider: "openai", Label: "team", BaseURL: up, Secret: conf.Secret("sk-" + canary)})
	if err != nil {
		t.Fatal(err)
	}
	own, err := accounts.Operator(owner.Workspace).Add(ctx, admin.NewAccount{Provider: "mine", Profile: "generic", BaseURL: up, Secret: "short"})
	if err != nil {
		t.Fatal(err)
	}
	if own.Hint != "" || !shared.Shared || own.Shared || own.Workspace != owner.Workspace || shared.Workspace != (id.Workspace{}) {
		t.Errorf("Add = %+v and %+v", shared, own)
	}
	for _, path := range []string{"/egress/openai/v1/chat/completions", "/egress/mine/v1/chat/completions"} {
		if status, body, err := b.ask(owner, path); status != 200 || err != nil || !strings.Contains(body, `"path":"/v1/chat/completions"`) {
			t.Errorf("%s: %d %s, %v", path, status, body, err)
		}
	}
	b.used(owner, 2)
	all, err := accounts.List(ctx)
	if err != nil || len(all) != 2 || all[0].ID != shared.ID || all[1].ID != own.ID {
		t.Errorf("List = %+v, %v", all, err)
	}
	asJSON, err := json.Marshal(all)
	if err != nil || !strings.Contains(string(asJSON), `"label":"team"`) || !strings.Contains(string(asJSON), `"last_used_at":"`) {
		t.Errorf("as JSON: %s, %v", asJSON, err)
	}
	// A tenant learns only that the shared account exists, and cannot remove it.
	c, asOwner := b.client(), identity.With(ctx, owner)
	res, err := c.ListAccounts(asOwner, &credentialv1.ListAccountsRequest{})
	if err != nil || len(res.GetAccounts()) != 2 {
		t.Fatalf("ListAccounts = %v, %v", res, err)
	}
	want := &credentialv1.Account{Id: shared.ID.String(), Provider: "openai", Profile: "openai", Origin: credentialv1.Origin_ORIGIN_SHARED, Enabled: true, CreatedAt: res.GetAccounts()[1].GetCreatedAt()}
	if diff := cmp.Diff(want, res.GetAccounts()[1], protocmp.Transform()); diff != "" {
		t.Errorf("the shared account, to a tenant (-want +got):\n%s", diff)
	}
	if _, err := c.RemoveAccount(asOwner, &credentialv1.RemoveAccountRequest{Id: shared.ID.String()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("RemoveAccount of a shared one = %v, want NotFound", err)
	}
	remove := func(account id.Account) error {
		a, err := accounts.Find(ctx, account)
		if err != nil {
			return err
		}
		_, err = accounts.Operator(a.Workspace).Remove(ctx, account)
		return err
	}
	for _, a := range all {
		if err := remove(a.ID); err != nil {
			t.Errorf("Remove(%s) = %v", a.ID, err)
		}
	}
	if err := remove(own.ID); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Remove again = %v, want NotFound", err)
	}
	b.hides(canary, string(asJSON)+fmt.Sprint(res, shared, own))
}

// A row that was copied into another workspace or account cannot be decrypted, and no other
// credential takes its place.
func TestCopiedRows(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true, SimulatorURL: provider(t)})
	c := b.client()
	victim, thief := member(identity.Owner), member(identity.Owner)
	for _, who := range []identity.Actor{victim, thief} {
		if _, err := c.AddAccount(identity.With(t.Context(), who), &credentialv1.AddAccountRequest{Provider: "anthropic", Secret: canary, BaseUrl: provider(t)}); err != nil {
			t.Fatal(err)
		}
	}
	// Nor can it in another row of its own workspace.
	mover := member(identity.Owner)
	for _, provided := range []string{"anthropic", "openai"} {
		if _, err := c.AddAccount(identity.With(t.Context(), mover), &credentialv1.AddAccountRequest{Provider: provided, Secret: canary, BaseUrl: provider(t)}); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), b.adminDB)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), `UPDATE credentials.accounts a SET sealed = v.sealed FROM credentials.accounts v
		WHERE v.provider = 'anthropic' AND (a.workspace_id = $1 AND v.workspace_id = $2 OR a.workspace_id = $3 AND v.workspace_id = $3 AND a.provider = 'openai')`,
		thief.Workspace, victim.Workspace, mover.Workspace); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := b.ask(mover, "/egress/openai/v1/chat/completions"); status != 409 || !strings.Contains(body, "cannot be used") {
		t.Errorf("with a row copied in the workspace: %d %s", status, body)
	}
	if status, body, _ := b.ask(thief, messages); status != 409 || !strings.Contains(body, "cannot be used") {
		t.Errorf("with a copied row: %d %s", status, body)
	}
	if status, _, _ := b.ask(victim, messages); status != 200 {
		t.Errorf("the victim: %d", status)
	}
	if !strings.Contains(b.log.String(), "the sealed bytes were changed, or belong to another row") {
		t.Errorf("the log does not say why:\n%s", b.log)
	}
}

func TestEnvironmentAndSimulator(t *testing.T) {
	t.Parallel()
	up := provider(t)
	b := start(t, credentialbroker.Config{
		SimulatorURL: up,
		Environment:  admin.Environment{OpenAIKey: conf.Secret(canary), OpenAIURL: up + "/local/v1"},
	})
	a := member(identity.Editor)
	for path, want := range map[string]string{
		"/egress/simulator/v1/messages":                `"path":"/anthropic/v1/messages","keylen":23`,
		"/egress/simulator-openai/v1/chat/completions": `"path":"/openai/v1/chat/completions","keylen":23`,
		"/egress/openai/v1/chat/completions":           fmt.Sprintf(`"path":"/local/v1/chat/completions","keylen":%d`, len(canary)),
	} {
		if status, body, err := b.ask(a, path); status != 200 || err != nil || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, %v, want %s", path, status, body, err, want)
		}
	}
	// The simulator answers in place of no other provider.
	if status, body, _ := b.ask(a, messages); status != 401 || !strings.Contains(body, "signalbox accounts add anthropic") {
		t.Errorf("a provider without an account: %d %s, want 401 and how to add one", status, body)
	}
	if _, err := b.client().AddAccount(identity.With(t.Context(), member(identity.Owner)), &credentialv1.AddAccountRequest{Provider: "simulator", Profile: "generic", Secret: canary, BaseUrl: "https://llm.example"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("AddAccount for the provider simulator = %v, want Invalid", err)
	}
	res, err := b.client().ListProviders(identity.With(t.Context(), a), &credentialv1.ListProvidersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*credentialv1.Provider{
		{Name: "openai", Origin: credentialv1.Origin_ORIGIN_ENVIRONMENT, Dialect: "openai", OwnBaseUrl: true},
		{Name: "simulator", Origin: credentialv1.Origin_ORIGIN_SIMULATOR, Dialect: "anthropic", OwnBaseUrl: true},
	}
	if diff := cmp.Diff(want, res.GetProviders(), protocmp.Transform()); diff != "" {
		t.Errorf("ListProviders (-want +got):\n%s", diff)
	}
	b.hides(canary, res.String())
}

// A broker that is told to stop lets open streams continue for a while, then ends them with an
// error event and a broken connection.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		drain      time.Duration
		finishes   bool
	}{
		{"a stream that can finish", messages, time.Minute, true},
		{"a stream that cannot", "/egress/openai/v1/chat/completions", 10 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			arrived, release := make(chan struct{}), make(chan struct{})
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, "event: content_block_start\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
				_ = http.NewResponseController(w).Flush()
				close(arrived)
				if tt.finishes {
					select {
					case <-release:
					case <-r.Context().Done():
					}
					fmt.Fprint(w, "event: message_stop\ndata: {}\n\n")
					return
				}
				<-r.Context().Done()
			}))
			t.Cleanup(up.Close)
			b := start(t, credentialbroker.Config{
				Drain:       tt.drain,
				Environment: admin.Environment{AnthropicURL: up.URL, OpenAIURL: up.URL + "/v1"},
			})
			var body string
			ended := make(chan error, 1)
			go func() {
				var err error
				_, body, err = b.ask(member(identity.Editor), tt.path)
				ended <- err
			}()
			receive(t, arrived)
			b.stop()
			close(release)
			err := receive(t, ended)
			if tt.finishes && (err != nil || !strings.HasSuffix(body, "event: message_stop\ndata: {}\n\n")) {
				t.Errorf("it ended with %q, %v, want the provider's end", body, err)
			}
			if !tt.finishes && (err == nil || !strings.Contains(body, "shutting down")) {
				t.Errorf("it ended with %q, %v, want to be told of the shutdown", body, err)
			}
		})
	}
}

func TestOperatorPages(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	for path, want := range map[string]string{"/health": `"ok"`, "/ready": `"postgres":"ok"`} {
		res, err := b.http.Get(b.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	status, body, _ := b.ask(member(identity.Editor), "/egress/anthropic/v1/../../health")
	if status != 400 || !strings.Contains(body, "invalid_request_error") {
		t.Errorf("a path with dots: %d %s", status, body)
	}
}

func TestDamagedKeyFile(t *testing.T) {
	t.Parallel()
	m := credentialbroker.Migrations()
	db := pgtest.New(t, m).Open(t, m)
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("signalbox-credential-key-v1:damaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := admin.Open(admin.Config{DB: db, KeyFile: path})
	if err == nil || !strings.Contains(err.Error(), path+" is damaged: put the file back from a backup") {
		t.Errorf("OpenAccounts = %v", err)
	}
	if text, _ := os.ReadFile(path); string(text) != "signalbox-credential-key-v1:damaged\n" {
		t.Errorf("the file was changed to %q", text)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	needed := []string{"DATABASE_URL=postgres://x", "TRUSTED_KEYS=gateway=x", "CREDENTIAL_BROKER_KEY_FILE=/k"}
	for _, tt := range []struct{ env, want string }{
		{"ANTHROPIC_API_KEY=sk-x", ""},
		{"OPENAI_BASE_URL=http://ollama:11434/v1", ""},
		{"OPENAI_BASE_URL=ollama:11434", "OPENAI_BASE_URL is not a base URL"},
		{"OPENAI_BASE_URL=https://u:p@x", "OPENAI_BASE_URL is not a base URL"},
		{"ANTHROPIC_BASE_URL=http://127.0.0.1:8084/egress/anthropic", "is a credential broker's"},
		{"ANTHROPIC_API_KEY=" + canary + " two", "ANTHROPIC_API_KEY: it contains a space"},
		{"SIMULATOR_URL=x", "SIMULATOR_URL is not a base URL"},
		{"CREDENTIAL_BROKER_IDLE_TIMEOUT=-1s", "CREDENTIAL_BROKER_IDLE_TIMEOUT is -1s"},
		{"CREDENTIAL_BROKER_MAX_REQUESTS=-1", "must not be negative"},
	} {
		var cfg credentialbroker.Config
		err := conf.Load(&cfg, append([]string{tt.env}, needed...))
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), canary)) {
			t.Errorf("%s: Load = %v, want %q", tt.env, err, tt.want)
		}
	}
	if _, err := credentialbroker.New(credentialbroker.Config{}, credentialbroker.Deps{}); err == nil {
		t.Error("New without dependencies works")
	}
	if err := conf.Load(new(credentialbroker.Config), nil); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("Load of nothing = %v", err)
	}
}
