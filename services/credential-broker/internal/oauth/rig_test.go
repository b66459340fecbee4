package oauth_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/credential-broker/migrations"
	"signalbox.dev/services/simulator/authserver"
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "credentials", Role: "signalbox_credentials", FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
}

// providerYAML describes the test server, with more lines for a test.
func providerYAML(url, more string) string {
	return fmt.Sprintf(`
name: sim
profile: generic
endpoints:
  authorize: %[1]s/authorize
  token: %[1]s/token
  device: %[1]s/device
  revoke: %[1]s/revoke
  code_page: %[1]s/code
client:
  auth: body
  loopback: true
scopes: [read, write]
%[2]s`, url, more)
}

const rotating = "tokens: {rotate: true}"

func loadProviders(t testing.TB, url, more string) *oauth.Providers {
	t.Helper()
	all, err := oauth.Load(map[string]oauth.Client{"sim": {ID: "us", Secret: vault.NewSecret("hush")}},
		fstest.MapFS{"sim.yaml": {Data: []byte(providerYAML(url, more))}})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// world is a database, an authorisation server, and one or more keepers.
type world struct {
	t         *testing.T
	db        *pgtest.Database // nil where there is a file
	file      *accountfile.File
	server    *authserver.Server
	url       string
	providers *oauth.Providers
	keyFile   string
	log       *lines
	who       identity.Actor
}

func newWorld(t *testing.T, s authserver.Settings, more string) *world {
	t.Helper()
	w := prepare(t, s, more)
	if strings.HasPrefix(t.Name(), inFile+"/") {
		w.openFile()
	} else {
		w.db = pgtest.New(t, schema())
	}
	return w
}

func prepare(t *testing.T, s authserver.Settings, more string) *world {
	t.Helper()
	s.ClientID, s.ClientSecret = "us", "hush"
	w := &world{
		t: t, server: authserver.New(s), keyFile: filepath.Join(t.TempDir(), "key"), log: &lines{},
		who: identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Service: "gateway"},
	}
	front := httptest.NewServer(w.server)
	t.Cleanup(front.Close)
	w.url = front.URL
	w.providers = loadProviders(t, front.URL, more)
	return w
}

// keeper returns another instance.
func (w *world) keeper(change ...func(*oauth.Config)) *oauth.Keeper {
	w.t.Helper()
	key, err := vault.OpenFile(w.keyFile)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := oauth.Config{
		Providers: w.providers, Log: slog.New(slog.NewTextHandler(w.log, nil)),
		Instance: "test", UserAgent: "signalbox/test", Redirect: "https://console.example/back",
	}
	cfg.Store = w.stored()
	cfg.Vault = vault.New(key, cfg.Store)
	for _, c := range change {
		c(&cfg)
	}
	k := oauth.New(cfg)
	w.t.Cleanup(k.Close)
	return k
}

// grant signs in without the ceremony.
func (w *world) grant(k *oauth.Keeper) oauth.Ref {
	w.t.Helper()
	a, r := w.server.Grant()
	ref, err := k.Add(w.t.Context(), w.who, oauth.NewGrant{Provider: "sim", Access: vault.NewSecret(a), Refresh: vault.NewSecret(r), Life: time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// change changes rows behind the keepers' backs.
func (w *world) change(sql string, args ...any) {
	w.t.Helper()
	admin, err := pgx.Connect(w.t.Context(), w.db.AdminURL)
	if err != nil {
		w.t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(w.t.Context()))
	if _, err := admin.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// expire makes the token expired in the store, and keepers read it.
func (w *world) expire(ref oauth.Ref, keepers ...*oauth.Keeper) {
	w.t.Helper()
	if w.file != nil {
		w.update(func(s *accountfile.State) {
			g, now := s.Account(ref.Account).Grant, time.Now().UTC()
			g.IssuedAt, g.ExpiresAt, g.RefreshAt = now.Add(-time.Hour), new(now.Add(-time.Second)), new(now.Add(-time.Minute))
		})
	} else {
		w.change(`UPDATE credentials.grants SET issued_at = now() - interval '1 hour', expires_at = now() - interval '1 second', refresh_at = now() - interval '1 minute'
			WHERE account_id = $1`, ref.Account)
	}
	for _, k := range keepers {
		k.Forget(ref)
	}
}

// rows returns one text column.
func (w *world) rows(sql string, args ...any) []string {
	w.t.Helper()
	admin, err := pgx.Connect(w.t.Context(), w.db.AdminURL)
	if err != nil {
		w.t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(w.t.Context()))
	rows, err := admin.Query(w.t.Context(), sql, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// attempts checks the outcomes of attempts, which a file does not have.
func (w *world) attempts(ref oauth.Ref, want ...string) {
	w.t.Helper()
	if w.file != nil {
		return
	}
	got := w.rows(`SELECT coalesce(outcome, 'open') FROM credentials.grant_attempts WHERE account_id = $1 ORDER BY started_at`, ref.Account)
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		w.t.Errorf("attempts (-want +got):\n%s", diff)
	}
}

// events returns what the audit of our workspace has.
func (w *world) events() (all []string) {
	w.t.Helper()
	rows, err := w.stored().Audit(w.t.Context(), w.who.Workspace, audit.Query{Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range slices.Backward(rows) {
		by := strings.TrimSpace(r.Service + " " + r.Address)
		if r.Member != nil && *r.Member == w.who.Member && by == w.who.Service {
			by = "us"
		}
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s by %s: %s", r.Action, r.Provider, by, r.Detail), ": "))
	}
	return all
}

func (w *world) calls(want authserver.Calls) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.server.Calls()); diff != "" {
		w.t.Errorf("calls of the authorization server (-want +got):\n%s", diff)
	}
}

// token returns a token that the provider takes.
func (w *world) token(k *oauth.Keeper, ref oauth.Ref) oauth.Token {
	w.t.Helper()
	got, err := k.Token(w.t.Context(), ref)
	if err != nil {
		w.t.Fatalf("Token() = %v", err)
	}
	if !w.server.Good(got.Secret.Reveal()) {
		w.t.Errorf("Token() of version %d is not taken by the provider", got.Version)
	}
	return got
}

func (w *world) status(ref oauth.Ref) store.Grant {
	w.t.Helper()
	all, err := w.stored().Grants(w.t.Context(), ref.Workspace)
	if err != nil {
		w.t.Fatal(err)
	}
	return all[ref.Account]
}

func wantFault(t *testing.T, what string, err error, kind fault.Kind, code string) {
	t.Helper()
	if f := fault.From(err); err == nil || f.Kind != kind || f.Code != code {
		t.Errorf("%s = %v, want a fault %v %s", what, err, kind, code)
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestMain(m *testing.M) {
	if child := os.Getenv(childVariable); child != "" {
		os.Exit(runChild(child))
	}
	os.Exit(m.Run())
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, schema())
	problems, err := pgtest.CheckCatalogue(t.Context(), db.AdminURL, nil, schema())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue = %q, %v", problems, err)
	}
}

// noTokens fails if anything that the test server issues is in a text.
func noTokens(t *testing.T, what, text string) {
	t.Helper()
	for _, mark := range []string{"access-", "refresh-", "code-", "device-", "hush"} {
		if i := strings.Index(text, mark); i >= 0 {
			t.Errorf("%s holds a secret: …%s…", what, text[max(0, i-40):min(len(text), i+20)])
		}
	}
}

// TestMigrationDown goes back and forth once.
func TestMigrationDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	w.grant(w.keeper())
	text, err := migrations.FS.ReadFile("00003_oauth.sql")
	if err != nil {
		t.Fatal(err)
	}
	up, down, ok := strings.Cut(string(text), "-- +goose Down")
	if !ok {
		t.Fatal("there is no way down")
	}
	w.change("SET search_path = credentials; " + down)
	w.change("SET search_path = credentials; " + up)
}
