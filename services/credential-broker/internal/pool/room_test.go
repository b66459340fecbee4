package pool_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// ram is a database that can hang, for tests on synctest's clock.
type ram struct {
	mu      sync.Mutex // guards what follows
	pools   map[store.PoolKey]store.Pool
	version int
	keys    map[id.Workspace][]vault.WrappedKey
	hangs   bool
	stuck   bool // it answers Marks, and hangs in Pool
	asked   int  // for pools
	reads   map[store.PoolKey]int
	used    int
	learned []store.Learned
	when    []time.Time // of learned
}

func newRAM() *ram {
	return &ram{pools: map[store.PoolKey]store.Pool{}, keys: map[id.Workspace][]vault.WrappedKey{}, reads: map[store.PoolKey]int{}}
}

// answer waits until the database answers.
func (m *ram) answer(ctx context.Context) error {
	m.mu.Lock()
	hangs := m.hangs
	m.mu.Unlock()
	if !hangs {
		return nil
	}
	<-ctx.Done()
	return fault.Wrap(ctx.Err(), fault.Unavailable, "the database does not answer")
}

func (m *ram) hang(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = yes
}

func (m *ram) stick(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck = yes
}

// put replaces a pool.
func (m *ram) put(ws id.Workspace, accounts ...store.Account) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version++
	m.pools[store.PoolKey{Workspace: ws, Provider: "openai"}] = store.Pool{Accounts: accounts, Mark: store.Mark{Accounts: fmt.Sprint(m.version)}}
}

// disable disables all accounts of a pool but the last one.
func (m *ram) disable(ws id.Workspace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := store.PoolKey{Workspace: ws, Provider: "openai"}
	p := m.pools[key]
	for len(p.Accounts) > 1 {
		p.Disabled, p.Accounts = append(p.Disabled, p.Accounts[0].ID), p.Accounts[1:]
	}
	m.version++
	p.Mark.Accounts = fmt.Sprint(m.version)
	m.pools[key] = p
}

// set changes a pool's settings.
func (m *ram) set(ws id.Workspace, settings string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := store.PoolKey{Workspace: ws, Provider: "openai"}
	p := m.pools[key]
	m.version++
	p.Settings, p.Mark.Rest = []byte(settings), fmt.Sprint(m.version)
	m.pools[key] = p
}

func (m *ram) Pool(ctx context.Context, ws id.Workspace, provider string) (store.Pool, error) {
	m.mu.Lock()
	m.asked++
	stuck := m.stuck
	m.mu.Unlock()
	if stuck {
		<-ctx.Done()
		return store.Pool{}, fault.Wrap(ctx.Err(), fault.Unavailable, "the database does not answer")
	}
	if err := m.answer(ctx); err != nil {
		return store.Pool{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := store.PoolKey{Workspace: ws, Provider: provider}
	m.reads[key]++
	return m.pools[key], nil
}

func (m *ram) Marks(ctx context.Context, keys []store.PoolKey) (map[store.PoolKey]store.Mark, error) {
	if err := m.answer(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	marks := map[store.PoolKey]store.Mark{}
	for _, k := range keys {
		if p, ok := m.pools[k]; ok {
			marks[k] = p.Mark
		}
	}
	return marks, nil
}

func (*ram) List(context.Context, id.Workspace) ([]store.Account, error) { return nil, nil }

func (m *ram) Used(ctx context.Context, all []store.Use) error {
	if err := m.answer(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += len(all)
	return nil
}

func (m *ram) Learn(ctx context.Context, l store.Learned) error {
	if err := m.answer(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learned, m.when = append(m.learned, l), append(m.when, time.Now())
	return nil
}

func (m *ram) DataKeys(_ context.Context, ws id.Workspace) ([]vault.WrappedKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys[ws], nil
}

func (m *ram) AddDataKey(_ context.Context, ws id.Workspace, k vault.WrappedKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys[ws] = append(m.keys[ws], k)
	return nil
}

// room is a Set over a ram. Its Run runs until the end of the test.
type room struct {
	t      testing.TB
	memory *ram
	vault  *vault.Vault
	pool   *pool.Set
	stop   func() // Run; again it does nothing
}

func newRoom(t testing.TB, tokens pool.Tokens) *room { return newRoomWith(t, tokens, nil) }

func newRoomWith(t testing.TB, tokens pool.Tokens, counts *pool.Meter) *room {
	t.Helper()
	key, err := vault.OpenFile(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profile.Load("1", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	m := newRAM()
	w := &room{t: t, memory: m, vault: vault.New(key, m)}
	cfg := pool.Config{
		Store: m, Vault: w.vault, Tokens: tokens, Profiles: profiles, Meter: counts, Log: slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)),
	}
	if h, ok := tokens.(*holder); ok {
		cfg.Forget = h.forget
	}
	w.pool, err = pool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.pool.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(func() {
		w.stop()
		w.pool.Wait()
	})
	return w
}

// key returns an account with a key.
func (w *room) key(ws id.Workspace, secret string) store.Account {
	w.t.Helper()
	a := store.Account{WorkspaceID: ws, ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Enabled: true}
	sealed, err := w.vault.Seal(w.t.Context(), a.Place(), vault.NewSecret(secret))
	if err != nil {
		w.t.Fatal(err)
	}
	a.Sealed = sealed
	return a
}

// grants stores n accounts of the operator's that somebody signed in to, and returns them.
func (w *room) grants(n int) []store.Account {
	all := make([]store.Account, n)
	for i := range all {
		all[i] = store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Enabled: true}
	}
	w.memory.put(id.Workspace{}, all...)
	return all
}

func request(ws id.Workspace) pool.Request {
	return pool.Request{Provider: "openai", Model: "gpt-x", Actor: identity.Actor{
		Workspace: ws, Member: id.New[id.Member](), Session: id.New[id.Session](), Role: identity.Editor, Service: "agent-runner",
	}}
}

// timed calls Select, and returns how long that took.
func (w *room) timed(r pool.Request) (pool.Account, time.Duration, error) {
	began := time.Now()
	a, err := w.pool.Select(w.t.Context(), r)
	return a, time.Since(began), err
}

// endpoint returns tokens at once, never, or with an error; none to callers whose time is up.
type endpoint struct {
	mu    sync.Mutex // guards what follows
	hangs map[id.Account]bool
	fails map[id.Account]error
}

func (e *endpoint) Token(ctx context.Context, of oauth.Ref) (oauth.Token, error) {
	e.mu.Lock()
	hangs, err := e.hangs[of.Account], e.fails[of.Account]
	e.mu.Unlock()
	if hangs || ctx.Err() != nil {
		<-ctx.Done()
		return oauth.Token{}, fmt.Errorf("wait for an access token: %w", ctx.Err())
	}
	return oauth.Token{Secret: vault.NewSecret("token-of-" + of.Account.String()), Version: 1}, err
}

func (e *endpoint) Rejected(ctx context.Context, of oauth.Ref, _ int64) (oauth.Token, error) {
	return e.Token(ctx, of)
}

func (e *endpoint) set(a id.Account, hangs bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hangs == nil {
		e.hangs, e.fails = map[id.Account]bool{}, map[id.Account]error{}
	}
	e.hangs[a], e.fails[a] = hangs, err
}

// pass lets time pass on the bubble's clock.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // of the bubble's time
