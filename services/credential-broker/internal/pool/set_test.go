package pool_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/credential-broker/migrations"
)

type world struct {
	t     *testing.T
	db    *pg.DB
	store *store.Store
	vault *vault.Vault
	pool  *pool.Set
	// For other instances on the same database.
	database *pgtest.Database
	config   pool.Config
	keyFile  string
	log      *bytes.Buffer
	actor    identity.Actor
}

func newWorld(t *testing.T, change func(*pool.Config)) *world {
	t.Helper()
	m := pg.Migrations{Schema: "credentials", Role: "signalbox_credentials", FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
	database := pgtest.New(t, m)
	db := database.Open(t, m)
	keyFile := filepath.Join(t.TempDir(), "key")
	key, err := vault.OpenFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profile.Load("1", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(db)
	w := &world{t: t, db: db, store: s, vault: vault.New(key, s), log: &bytes.Buffer{}, actor: identity.Actor{
		Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Session: id.New[id.Session](), Role: identity.Editor, Service: "agent-runner",
	}}
	prices, err := price.Load("")
	if err != nil {
		t.Fatal(err)
	}
	cfg := pool.Config{Store: s, Vault: w.vault, Profiles: profiles, Prices: prices, CheckBase: target.Policy{}.CheckBase, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	if change != nil {
		change(&cfg)
	}
	w.database, w.config, w.keyFile = database, cfg, keyFile
	if w.pool, err = pool.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Wait)
	return w
}

// add stores an account; seal says for whom its secret is sealed.
func (w *world) add(ws id.Workspace, provider, profileName, base, secret string, seal id.Workspace) {
	w.t.Helper()
	a := store.Account{WorkspaceID: ws, ID: id.New[id.Account](), Provider: provider, Profile: profileName, BaseURL: base}
	for _, place := range []id.Workspace{ws, seal} { // so that both have a data key
		sealed, err := w.vault.Seal(w.t.Context(), vault.Place{Workspace: place, Account: a.ID, Field: "secret"}, vault.NewSecret(secret))
		if err != nil {
			w.t.Fatal(err)
		}
		a.Sealed = sealed
	}
	if _, err := w.store.Add(w.t.Context(), a, store.Event{Action: "created", Account: a.ID, Provider: provider, Origin: "workspace", Service: "test"}); err != nil {
		w.t.Fatal(err)
	}
}

type chosen struct{ Origin, Secret, Base string }

// all returns every account that one request would be given, in order.
func (w *world) all(provider string) ([]chosen, error) {
	var out []chosen
	var tried []id.Account
	for {
		a, err := w.pool.Select(w.t.Context(), pool.Request{Actor: w.actor, Provider: provider, Tried: tried})
		if errors.Is(err, pool.ErrExhausted) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		tried = append(tried, a.ID)
		out = append(out, chosen{string(a.Origin), a.Secret.Reveal(), a.Base.Scheme + "://" + a.Base.Host + a.Base.Path})
	}
}

func (w *world) want(provider string, want ...chosen) {
	w.t.Helper()
	got, err := w.all(provider)
	if err != nil {
		w.t.Errorf("Select of %s: %v", provider, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("accounts of %s (-want +got):\n%s", provider, diff)
	}
}

func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}

func TestOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *pool.Config) {
		c.Environment = []pool.EnvironmentAccount{
			{Provider: "openai", Secret: vault.NewSecret("env-key"), BaseURL: mustURL("http://ollama:11434/v1")},
			{Provider: "anthropic", Secret: vault.NewSecret("env-ant")},
		}
		c.Simulator = mustURL("http://127.0.0.1:7070")
	})
	w.want("openai", chosen{"environment", "env-key", "http://ollama:11434/v1"})
	w.want("anthropic", chosen{"environment", "env-ant", "https://api.anthropic.com"})
	w.want("simulator", chosen{"simulator", "signalbox-no-credential", "http://127.0.0.1:7070/anthropic"})
	w.want("simulator-openrouter", chosen{"simulator", "signalbox-no-credential", "http://127.0.0.1:7070/openrouter/api/v1"})
	for _, name := range []string{"mine", "openrouter", "simulator-mine"} { // no other provider answers for these
		if got, err := w.all(name); !errors.Is(err, pool.ErrNone) {
			t.Errorf("Select of a provider without an account = %v, %v, want ErrNone", got, err)
		}
	}

	shared, mine := id.Workspace{}, w.actor.Workspace
	w.add(shared, "openai", "openai", "", "shared-1", shared)
	w.pool.Forget(shared)
	w.want("openai", chosen{"shared", "shared-1", "https://api.openai.com/v1"})
	w.add(shared, "own", "openai", "https://llm.example:8443/v1", "shared-2", shared)
	w.want("own", chosen{"shared", "shared-2", "https://llm.example:8443/v1"}) // at any port
	w.add(mine, "openai", "openai", "", "mine-1", mine)
	w.add(mine, "openai", "openai", "https://other.example/v1", "mine-2", mine)
	w.add(id.New[id.Workspace](), "openai", "openai", "", "not-mine", id.New[id.Workspace]())
	w.want("openai", chosen{"shared", "shared-1", "https://api.openai.com/v1"}) // as read a moment ago
	w.pool.Forget(id.Workspace{})
	w.want("openai", chosen{"workspace", "mine-1", "https://api.openai.com/v1"}, chosen{"workspace", "mine-2", "https://other.example/v1"})

	got, err := w.pool.Providers(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]pool.Route{
		"openai": {Origin: pool.Workspace, Dialect: "openai"}, "own": {Origin: pool.Shared, Dialect: "openai", OwnBase: true},
		"anthropic": {Origin: pool.Environment, Dialect: "anthropic"}, "simulator": {Origin: pool.Simulator, Dialect: "anthropic", OwnBase: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Providers (-want +got):\n%s", diff)
	}
}

// distant is a key at a service that can become unavailable.
type distant struct {
	vault.KEK
	away atomic.Bool
}

func (d *distant) Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error) {
	if d.away.Load() {
		return nil, fault.Wrap(vault.ErrUnavailable, fault.Unavailable, "the key service is away")
	}
	return d.KEK.Unwrap(ctx, wrapped, bound)
}

// An account whose data key cannot be opened now is skipped and logged once, and the others are
// used. If there is no other, the request can be retried.
func TestKeyAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	present, err := vault.OpenFile(filepath.Join(t.TempDir(), "present"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := vault.OpenFile(filepath.Join(t.TempDir(), "there"))
	if err != nil {
		t.Fatal(err)
	}
	there, mine := &distant{KEK: second}, w.actor.Workspace
	w.vault = vault.New(there, w.store)
	w.add(mine, "openai", "openai", "", "sealed-there", mine)
	w.add(mine, "anthropic", "anthropic-api-key", "", "sealed-there-too", mine)
	w.vault = vault.New(present, w.store, there)
	if _, err := w.vault.NewDataKey(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	w.add(mine, "openai", "openai", "", "sealed-here", mine)

	there.away.Store(true)
	cfg := w.config
	cfg.Vault = vault.New(present, w.store, there)
	if w.pool, err = pool.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Wait)
	for range 2 {
		w.want("openai", chosen{"workspace", "sealed-here", "https://api.openai.com/v1"})
		w.pool.Forget(mine)
	}
	if n := strings.Count(w.log.String(), "account cannot be used"); n != 1 {
		t.Errorf("%d lines say that an account cannot be used, want one:\n%s", n, w.log)
	}
	if _, err := w.all("anthropic"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Select where the only account's key is away = %v, want Unavailable", err)
	}
}

// Providers returns providers of models only.
func TestProvidersOfTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	mine := w.actor.Workspace
	w.add(mine, "github", "github", "", "token", mine)
	w.add(mine, "mine", "generic-header", "https://models.example", "key", mine)
	got, err := w.pool.Providers(t.Context(), mine)
	if _, ok := got["mine"]; err != nil || len(got) != 1 || !ok {
		t.Errorf("Providers = %v, %v, want mine alone", got, err)
	}
	w.want("github", chosen{"workspace", "token", "https://api.github.com"})
}

// A request for a server is given an account for that one only.
func TestAccountsOfAServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	mine := w.actor.Workspace
	w.add(mine, "mcp-notes", "mcp", "https://old.example", "old", mine)
	w.add(mine, "mcp-notes", "mcp", "https://new.example", "new", mine)
	for server, want := range map[string]string{"https://new.example": "new", "https://NEW.example:443": "new", "https://old.example": "old"} {
		for range 3 {
			a, err := w.pool.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "mcp-notes", Server: server})
			if err != nil || a.Secret.Reveal() != want {
				t.Errorf("Select for %s = %s, %v, want the account %s", server, a.Secret.Reveal(), err, want)
			}
		}
	}
	for _, server := range []string{"https://other.example", "http://new.example", "https://new.example:444"} {
		if a, err := w.pool.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "mcp-notes", Server: server}); !errors.Is(err, pool.ErrNone) {
			t.Errorf("Select for %s = %s, %v, want ErrNone", server, a.Base, err)
		}
	}
}

// An account that cannot be used is skipped and logged. If none is left, no other tier's account
// takes its place.
func TestUnusableAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *pool.Config) {
		c.Environment = []pool.EnvironmentAccount{{Provider: "openai", Secret: vault.NewSecret("env-key")}}
	})
	mine := w.actor.Workspace
	w.add(mine, "openai", "openai", "", "stolen", id.New[id.Workspace]()) // sealed for another row
	w.add(mine, "openai", "no-such-profile", "", "x", mine)
	w.add(mine, "openai", "openai", "http://127.0.0.1:1", "x", mine) // no longer allowed
	_, err := w.all("openai")
	if fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "cannot be used") {
		t.Errorf("Select = %v, want a Conflict that says so", err)
	}
	for _, want := range []string{"the sealed bytes were changed, or belong to another row", `the request profile \"no-such-profile\"`, "must begin with https"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, w.log)
		}
	}
	if got, err := w.pool.Providers(t.Context(), mine); err != nil || len(got) != 1 || !strings.Contains(got["openai"].Problem, "cannot be used") {
		t.Errorf("Providers = %v, %v, want the one with what is wrong", got, err)
	}
	w.add(mine, "openai", "openai", "", "good", mine)
	w.pool.Forget(mine)
	w.want("openai", chosen{"workspace", "good", "https://api.openai.com/v1"})
}

// If all accounts are disabled, the error says so, and neither another tier nor the simulator
// answers.
func TestDisabledAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *pool.Config) {
		c.Environment = []pool.EnvironmentAccount{{Provider: "openai", Secret: vault.NewSecret("env-key")}}
		c.Simulator = mustURL("http://127.0.0.1:7070")
	})
	shared, mine := id.Workspace{}, w.actor.Workspace
	enable := func(ws id.Workspace, yes bool) {
		t.Helper()
		all, err := w.store.List(t.Context(), ws)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a.WorkspaceID != ws {
				continue
			}
			if err := w.store.SetEnabled(t.Context(), ws, a.ID, yes, store.Event{Origin: "workspace", Service: "test"}); err != nil {
				t.Fatal(err)
			}
		}
		w.pool.Forget(ws)
	}
	disabled := func(provider, says string) {
		t.Helper()
		got, err := w.all(provider)
		if f := fault.From(err); f.Kind != fault.Conflict || f.Code != "ACCOUNTS_DISABLED" || !strings.Contains(f.Message, says) {
			t.Errorf("Select of %s = %v, %v, want a Conflict that says %q", provider, got, err, says)
		}
	}
	w.add(mine, "openai", "openai", "", "mine-1", mine)
	w.add(mine, "openai", "openai", "", "mine-2", mine)
	w.add(mine, "openrouter", "openrouter", "", "mine-3", mine)
	w.add(shared, "openai", "openai", "", "shared-1", shared)
	enable(mine, false)
	disabled("openai", "all accounts of this workspace for openai are disabled (2)")
	disabled("openrouter", "of this workspace")
	if got, err := w.pool.Providers(t.Context(), mine); err != nil || len(got) != 3 || got["simulator"].Problem != "" || !strings.Contains(got["openai"].Problem, "disabled (2)") {
		t.Errorf("Providers = %v, %v, want the simulator, and what is wrong with the others", got, err)
	}
	enable(mine, true)
	w.want("openrouter", chosen{"workspace", "mine-3", "https://openrouter.ai/api/v1"})

	w.actor.Workspace = id.New[id.Workspace]()
	w.want("openai", chosen{"shared", "shared-1", "https://api.openai.com/v1"})
	enable(shared, false)
	disabled("openai", "that the operator shares")
}

func TestUseIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *pool.Config) {
		c.Environment = []pool.EnvironmentAccount{{Provider: "openai", Secret: vault.NewSecret("env-key")}}
		c.Simulator = mustURL("http://127.0.0.1:7070")
	})
	w.add(w.actor.Workspace, "anthropic", "anthropic-api-key", "", "k", w.actor.Workspace)
	instance := w.instance(nil)
	second := w.actor
	second.Session = id.New[id.Session]()
	var wg sync.WaitGroup
	for _, actor := range []identity.Actor{w.actor, w.actor, second} {
		for _, provider := range []string{"anthropic", "openai", "simulator"} {
			wg.Go(func() {
				if _, err := instance.Select(t.Context(), pool.Request{Actor: actor, Provider: provider, Address: "10.0.0.1:5"}); err != nil {
					t.Errorf("Select: %v", err)
				}
			})
		}
	}
	wg.Wait()
	instance.stop() // which writes what waits
	var got []string
	err := w.db.InWorkspace(t.Context(), w.actor.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT concat_ws(' ', action, provider, origin, service, address, member_id = $1, count(*)) FROM audit WHERE action = 'used' GROUP BY action, provider, origin, service, address, member_id ORDER BY 1`, w.actor.Member)
		if err != nil {
			return err
		}
		got, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"used anthropic workspace agent-runner 10.0.0.1:5 t 2", "used openai environment agent-runner 10.0.0.1:5 t 2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// An account is not used after its removal, although it was being read for another request then.
func TestForgetWhileReading(t *testing.T) {
	t.Parallel()
	reading, goOn := make(chan struct{}), make(chan struct{})
	w := newWorld(t, func(c *pool.Config) {
		c.CheckBase = func(*url.URL, bool) error {
			close(reading)
			<-goOn
			return nil
		}
	})
	mine := w.actor.Workspace
	w.add(mine, "openai", "openai", "https://models.test", "k", mine)
	var wg sync.WaitGroup
	wg.Go(func() {
		if a, err := w.pool.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "openai"}); err != nil || a.Secret.Reveal() != "k" {
			t.Errorf("Select before = %v, %v, want the account", a, err)
		}
	})
	<-reading
	stored, err := w.store.List(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.Remove(t.Context(), mine, stored[0].ID, store.Event{Origin: "workspace", Service: "test"}); err != nil {
		t.Fatal(err)
	}
	w.pool.Forget(mine)
	if got, err := w.all("openai"); !errors.Is(err, pool.ErrNone) {
		t.Errorf("Select after Forget = %v, %v, want %v", got, err, pool.ErrNone)
	}
	close(goOn)
	wg.Wait()
	if got, err := w.all("openai"); !errors.Is(err, pool.ErrNone) {
		t.Errorf("Select after the old reading = %v, %v, want %v", got, err, pool.ErrNone)
	}
}

// A change made by another process is seen while requests keep coming.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	mine := w.actor.Workspace
	w.add(mine, "openai", "openai", "", "first", mine)
	w.want("openai", chosen{"workspace", "first", "https://api.openai.com/v1"})
	w.add(mine, "openai", "openai", "", "second", mine)
	for {
		got, err := w.all("openai")
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 2 {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("the second account is never seen")
		}
		runtime.Gosched()
	}
}

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.db.Close()
	if _, err := w.all("openai"); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Select without a database = %v, want Unavailable", err)
	}
}
