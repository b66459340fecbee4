package rotation_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/credential-broker/migrations"
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "credentials", Role: "signalbox_credentials", FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
}

// broker is one process's view of the tables.
type broker struct {
	store  *store.Store
	vault  *vault.Vault
	keeper *oauth.Keeper
	*rotation.Rotation
}

// world is a database with brokers on it.
type world struct {
	t        *testing.T
	database *pgtest.Database
	db       *pg.DB
	admin    *pgx.Conn
	dir      string
	account  map[id.Account]account // what is to be found
}

type account struct {
	ws     id.Workspace
	secret string
	grant  bool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	database := pgtest.New(t, schema())
	admin, err := pgx.Connect(t.Context(), database.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(t.Context())) })
	return &world{t: t, database: database, db: database.Open(t, schema()), admin: admin, dir: t.TempDir(), account: map[id.Account]account{}}
}

// key opens a key file of the world's, which is made when it is not there.
func (w *world) key(name string) vault.KEK {
	w.t.Helper()
	k, err := vault.OpenFile(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return k
}

func (w *world) broker(kek vault.KEK, others ...vault.KEK) *broker {
	w.t.Helper()
	s := store.New(w.db)
	v := vault.New(kek, s, others...)
	return &broker{s, v, w.keeper(v), rotation.New(s, v)}
}

const provider = "name: sim\nprofile: sim\nendpoints: {authorize: 'https://sim.example/a', token: 'https://sim.example/t', code_page: 'https://sim.example/c'}\nclient: {id: us, auth: none}\n"

func (w *world) keeper(v *vault.Vault) *oauth.Keeper {
	w.t.Helper()
	dir := w.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sim.yaml"), []byte(provider), 0o600); err != nil {
		w.t.Fatal(err)
	}
	providers, err := oauth.Load(nil, os.DirFS(dir))
	if err != nil {
		w.t.Fatal(err)
	}
	k := oauth.New(oauth.Config{Store: store.New(w.db), Vault: v, Providers: providers, Log: slog.New(slog.DiscardHandler), Instance: "test"})
	w.t.Cleanup(k.Close)
	return k
}

// fill gives a workspace n accounts with keys and n that somebody signed in to.
func (w *world) fill(b *broker, ws id.Workspace, n int) {
	w.t.Helper()
	for i := range n {
		secret := fmt.Sprintf("key-%s-%d", ws, i)
		a := store.Account{WorkspaceID: ws, ID: id.New[id.Account](), Provider: "sim", Profile: "sim"}
		sealed, err := b.vault.Seal(w.t.Context(), a.Place(), vault.NewSecret(secret))
		if err != nil {
			w.t.Fatal(err)
		}
		a.Sealed = sealed
		if a, err = b.store.Add(w.t.Context(), a, store.Event{Action: "created", Account: a.ID, Provider: "sim", Origin: "workspace", Service: "test"}); err != nil {
			w.t.Fatal(err)
		}
		w.account[a.ID] = account{ws, secret, false}
		token := fmt.Sprintf("access-%s-%d", ws, i)
		ref, err := b.keeper.Add(w.t.Context(), identity.Actor{Workspace: ws}, oauth.NewGrant{
			Provider: "sim", Access: vault.NewSecret(token), Refresh: vault.NewSecret("refresh-" + token), Life: time.Hour,
		})
		if err != nil {
			w.t.Fatal(err)
		}
		w.account[ref.Account] = account{ws, token, true}
		if _, err := b.keeper.Start(w.t.Context(), identity.Actor{Workspace: ws}, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// wantAll opens every secret with a broker that has only just started.
func (w *world) wantAll(when string, kek vault.KEK, others ...vault.KEK) {
	w.t.Helper()
	b := w.broker(kek, others...)
	all, err := b.store.ListAll(w.t.Context())
	if err != nil || len(all) != len(w.account) {
		w.t.Errorf("%s: %d accounts, %v, want %d", when, len(all), err, len(w.account))
	}
	for _, row := range all {
		want := w.account[row.ID]
		var got vault.Secret
		if want.grant {
			token, e := b.keeper.Token(w.t.Context(), oauth.Ref{Workspace: want.ws, Account: row.ID})
			got, err = token.Secret, e
		} else {
			got, err = b.vault.Open(w.t.Context(), row.Place(), row.Sealed)
		}
		if err != nil || got.Reveal() != want.secret {
			w.t.Errorf("%s: account %s = %q, %v, want %q", when, row.ID, got.Reveal(), err, want.secret)
		}
	}
	w.wantTokens(when, b)
}

// wantTokens opens refresh tokens and the secrets of logins.
func (w *world) wantTokens(when string, b *broker) {
	w.t.Helper()
	rows, err := w.admin.Query(w.t.Context(), `
		SELECT workspace_id, account_id, 'refresh_token', refresh_key_version, refresh_sealed FROM credentials.grants
		UNION ALL SELECT workspace_id, account_id, 'login ' || id, key_version, sealed FROM credentials.logins`)
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	var at vault.Place
	var sealed vault.Sealed
	_, err = pgx.ForEachRow(rows, []any{&at.Workspace, &at.Account, &at.Field, &sealed.KeyVersion, &sealed.Bytes}, func() error {
		n++
		got, err := b.vault.Open(w.t.Context(), at, sealed)
		if err == nil && at.Field == "refresh_token" && got.Reveal() != "refresh-"+w.account[at.Account].secret {
			err = fmt.Errorf("it is %q", got.Reveal())
		}
		return err
	})
	if err != nil || n != len(w.account) {
		w.t.Errorf("%s: opened %d refresh tokens and logins, want %d: %v", when, n, len(w.account), err)
	}
}

// exec changes the tables as their owner.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.admin.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// keys returns the data keys, as version and key-encryption key, and with a * where
// they are retired.
func (w *world) keys(ws id.Workspace) (all []string) {
	w.t.Helper()
	rows, err := w.admin.Query(w.t.Context(), `
		SELECT version || ' ' || kek || CASE WHEN retired_at IS NULL THEN '' ELSE ' *' END FROM credentials.data_keys WHERE workspace_id = $1 ORDER BY version`, ws)
	if err != nil {
		w.t.Fatal(err)
	}
	if all, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		w.t.Fatal(err)
	}
	return all
}

func TestRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	former, present := w.key("former"), w.key("present")
	b := w.broker(former)
	mine, empty := id.New[id.Workspace](), id.New[id.Workspace]()
	w.fill(b, mine, 60) // more than a batch of them: 120 accounts
	w.fill(b, id.Workspace{}, 2)
	if _, err := b.vault.NewDataKey(t.Context(), empty); err != nil {
		t.Fatal(err)
	}

	r := w.broker(present, former)
	var steps []int
	got, err := r.Run(t.Context(), false, func(r rotation.Report) { steps = append(steps, r.Workspaces) })
	want := rotation.Report{Workspaces: 3, Wrapped: 3, Made: 3, Sealed: 62 * (2 + 2 + 1)}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Fatalf("Run: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]int{1, 2, 3}, steps); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	w.wantAll("with the present key alone", present)
	if diff := cmp.Diff([]string{"1 " + present.ID() + " *", "2 " + present.ID()}, w.keys(mine)); diff != "" {
		t.Errorf("data keys (-want +got):\n%s", diff)
	}

	// The former data keys stay for a minute, for those who have just read a row.
	if got, err := r.Sweep(t.Context()); err != nil || got.Removed != 0 {
		t.Errorf("Sweep at once = %+v, %v, want nothing removed", got, err)
	}
	w.exec(`UPDATE credentials.data_keys SET retired_at = retired_at - interval '1 minute'`)
	got, err = r.Sweep(t.Context())
	if diff := cmp.Diff(rotation.Report{Workspaces: 3, Removed: 3}, got); diff != "" || err != nil {
		t.Errorf("Sweep after a minute: %v (-want +got):\n%s", err, diff)
	}
	if got, err := r.Sweep(t.Context()); err != nil || got.Workspaces != 0 {
		t.Errorf("Sweep of nothing = %+v, %v", got, err)
	}
	w.wantAll("without the former data keys", present)

	// The same once more, with a program that has run all the time.
	if _, err := r.Run(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	w.wantAll("after the second rotation", present)
}

func TestWrapOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	former, present := w.key("former"), w.key("present")
	running := w.broker(former)
	ws := id.New[id.Workspace]()
	w.fill(running, ws, 3)
	got, err := w.broker(present, former).Run(t.Context(), true, nil)
	if diff := cmp.Diff(rotation.Report{Workspaces: 1, Wrapped: 1}, got); diff != "" || err != nil {
		t.Fatalf("Run: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff([]string{"1 " + present.ID()}, w.keys(ws)); diff != "" {
		t.Errorf("data keys (-want +got):\n%s", diff)
	}
	w.wantAll("with the present key alone", present)
	if got, err := w.broker(present).Run(t.Context(), true, nil); err != nil || got.Wrapped != 0 {
		t.Errorf("Run once more = %+v, %v", got, err)
	}
}

func TestUndecryptableStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost, present := w.key("lost"), w.key("present")
	ws, other := id.New[id.Workspace](), id.New[id.Workspace]()
	b := w.broker(lost)
	w.fill(b, ws, 1)
	good := w.broker(present)
	w.fill(good, other, 1)
	var damaged id.Account
	for a, v := range w.account {
		if v.ws == other && !v.grant {
			damaged = a
		}
	}
	w.exec(`UPDATE credentials.accounts SET sealed = sealed || '\x00' WHERE id = $1`, damaged)

	got, err := good.Run(t.Context(), false, nil)
	// The lost key: the data key itself, an account, two tokens and a login. Of the other
	// account's row there is nothing to open.
	if err != nil || got.Failed != 5+1 || got.Sealed != 4+1 {
		t.Errorf("Run = %+v, %v, want 6 failures and 5 sealed", got, err)
	}
	for _, f := range got.Failures {
		if !errors.Is(f.Err, vault.ErrKeyLost) && (f.Account != damaged || !errors.Is(f.Err, vault.ErrDamaged)) {
			t.Errorf("failure %+v", f)
		}
	}
	// With the lost key back, what it has sealed opens, and a sweep seals it anew.
	w.exec(`UPDATE credentials.data_keys SET retired_at = retired_at - interval '1 minute'`)
	w.exec(`DELETE FROM credentials.accounts WHERE id = $1`, damaged)
	delete(w.account, damaged)
	both := w.broker(present, lost)
	if got, err := both.Sweep(t.Context()); err != nil || got.Failed != 0 || got.Sealed != 4 || got.Removed != 2 {
		t.Errorf("Sweep with the lost key = %+v, %v", got, err)
	}
	if diff := cmp.Diff([]string{"2 " + present.ID()}, w.keys(ws)); diff != "" {
		t.Errorf("data keys (-want +got):\n%s", diff)
	}
}

// A broker that only has the former key leaves a newer data key to others.
func TestSweepWithoutTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	former, present := w.key("former"), w.key("present")
	b := w.broker(former)
	w.fill(b, id.New[id.Workspace](), 1)
	if _, err := w.broker(present, former).Run(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	got, err := b.Sweep(t.Context())
	if err != nil || got.Failed != 1 || !errors.Is(got.Failures[0].Err, vault.ErrKeyLost) {
		t.Errorf("Sweep = %+v, %v, want one failure", got, err)
	}
}

// distant is a key at a service that may be away.
type distant struct {
	vault.KEK
	away atomic.Bool
}

func (d *distant) Unwrap(ctx context.Context, wrapped, bound []byte) ([]byte, error) {
	if d.away.Load() {
		return nil, fault.Wrap(fmt.Errorf("%w: permission denied", vault.ErrUnavailable), fault.Unavailable, "away")
	}
	return d.KEK.Unwrap(ctx, wrapped, bound)
}

// A data key that its service does not open does not keep others from being replaced.
func TestKeyUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	there, present := &distant{KEK: w.key("there")}, w.key("present")
	other := id.New[id.Workspace]() // behind the operator's
	w.fill(w.broker(there), id.Workspace{}, 1)
	w.fill(w.broker(present), other, 1)
	for ws, k := range map[id.Workspace]vault.KEK{{}: there, other: present} {
		if _, err := w.broker(k).vault.NewDataKey(t.Context(), ws); err != nil { // as a rotation that was killed
			t.Fatal(err)
		}
	}
	there.away.Store(true)
	got, err := w.broker(present, there).Sweep(t.Context())
	if err != nil || got.Failed != 1 || got.Unavailable != 1 || got.Sealed != 4+1 || got.Workspaces != 2 {
		t.Errorf("Sweep = %+v, %v, want one key away and the other workspace's sealed anew", got, err)
	}
	got, err = w.broker(present, there).Run(t.Context(), false, nil)
	// Two data keys, an account, two tokens and a login.
	if err != nil || got.Failed != 2+4 || got.Unavailable != got.Failed || got.Made != 2 || got.Workspaces != 2 {
		t.Errorf("Run = %+v, %v, want 6 away and the rest done", got, err)
	}
	there.away.Store(false)
	got, err = w.broker(present, there).Run(t.Context(), false, nil)
	if err != nil || got.Failed != 0 || got.Unavailable != 0 {
		t.Errorf("Run with the service back = %+v, %v", got, err)
	}
	w.wantAll("at last", present)
}

// Rotations, sweeps and writers at once: nothing is lost, and nothing remains under a
// former key.
func TestAllAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := w.key("key")
	ws := id.New[id.Workspace]()
	first := w.broker(key)
	w.fill(first, ws, 10)
	var over atomic.Bool
	var mu sync.Mutex // guards w.account
	var writers, rotations sync.WaitGroup
	for n := range 4 {
		b := w.broker(key)
		writers.Go(func() {
			for i := 0; !over.Load() && i < 40; i++ {
				token := fmt.Sprintf("access-at-once-%d-%d", n, i)
				ref, err := b.keeper.Add(t.Context(), identity.Actor{Workspace: ws}, oauth.NewGrant{
					Provider: "sim", Access: vault.NewSecret(token), Refresh: vault.NewSecret("refresh-" + token), Life: time.Hour,
				})
				if err != nil {
					t.Errorf("Add: %v", err)
					return
				}
				mu.Lock()
				w.account[ref.Account] = account{ws, token, true}
				mu.Unlock()
			}
		})
	}
	for range 3 {
		b := w.broker(key)
		rotations.Go(func() {
			for range 3 {
				if got, err := b.Run(t.Context(), false, nil); err != nil || got.Failed > 0 {
					t.Errorf("Run = %+v, %v", got, err)
				}
				if got, err := b.Sweep(t.Context()); err != nil || got.Failed > 0 {
					t.Errorf("Sweep = %+v, %v", got, err)
				}
			}
		})
	}
	rotations.Wait()
	over.Store(true)
	writers.Wait()
	if _, err := first.Sweep(t.Context()); err != nil { // what came at the last moment
		t.Fatal(err)
	}
	w.exec(`UPDATE credentials.data_keys SET retired_at = retired_at - interval '1 minute'`)
	if got, err := first.Sweep(t.Context()); err != nil || got.Sealed != 0 || got.Removed == 0 {
		t.Errorf("last Sweep = %+v, %v", got, err)
	}
	if keys := w.keys(ws); len(keys) != 1 {
		t.Errorf("data keys = %q, want one", keys)
	}
	// Ten logins are of the accounts with keys; the others have none.
	w.exec(`DELETE FROM credentials.logins`)
	opened := w.broker(key)
	for ref, want := range w.account {
		if !want.grant {
			continue
		}
		if got, err := opened.keeper.Token(t.Context(), oauth.Ref{Workspace: ws, Account: ref}); err != nil || got.Secret.Reveal() != want.secret {
			t.Errorf("Token = %q, %v, want %q", got.Secret.Reveal(), err, want.secret)
		}
	}
}

// A rotation that is killed (kill -9), wherever it is, leaves everything openable, and
// the next one does it all.
func TestKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	former, present := w.key("former"), w.key("present")
	ws := id.New[id.Workspace]()
	w.fill(w.broker(former), ws, 90) // 450 rows in seven batches
	var before int
	for _, part := range []int{0, 1, 10, 100, 150, 250, 300, 400, 449} {
		w.killAfter(ws, part)
		w.wantAll(fmt.Sprintf("killed after %d rows", part), present, former)
		now := w.keys(ws)
		if len(now) <= before {
			t.Errorf("killed after %d rows: data keys = %q, no more than before", part, now)
		}
		before = len(now)
	}
	b := w.broker(present, former)
	if got, err := b.Run(t.Context(), false, nil); err != nil || got.Sealed != 450 || got.Failed != 0 {
		t.Errorf("Run after the kills = %+v, %v", got, err)
	}
	w.exec(`UPDATE credentials.data_keys SET retired_at = retired_at - interval '1 minute'`)
	if got, err := b.Sweep(t.Context()); err != nil || got.Removed != before {
		t.Errorf("Sweep after the kills = %+v, %v, want %d keys removed", got, err, before)
	}
	w.wantAll("in the end", present)
}

// killAfter starts a rotation in a process of its own and kills it as soon as a number
// of fields have come to its data key, or when it has ended before that is seen.
func (w *world) killAfter(ws id.Workspace, rows int) {
	w.t.Helper()
	var last int
	if err := w.admin.QueryRow(w.t.Context(), `SELECT max(version) FROM credentials.data_keys WHERE workspace_id = $1`, ws).Scan(&last); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ROTATE="+w.database.AdminURL+" "+w.dir)
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		var made bool
		var now int
		err := w.admin.QueryRow(w.t.Context(), `
			SELECT EXISTS (SELECT FROM credentials.data_keys WHERE workspace_id = @ws AND version > @last),
				(SELECT count(*) FROM credentials.accounts WHERE workspace_id = @ws AND key_version > @last)
				+ (SELECT count(*) FILTER (WHERE access_key_version > @last) + count(*) FILTER (WHERE refresh_key_version > @last) FROM credentials.grants WHERE workspace_id = @ws)
				+ (SELECT count(*) FROM credentials.logins WHERE workspace_id = @ws AND key_version > @last)`,
			pgx.NamedArgs{"ws": ws, "last": last}).Scan(&made, &now)
		if err != nil {
			w.t.Fatal(err)
		}
		select {
		case err := <-ended:
			if err != nil {
				w.t.Fatalf("the rotation ended with %v", err)
			}
			return
		default:
		}
		if made && now >= rows {
			_ = cmd.Process.Kill() // it may just have ended
			if err := <-ended; err == nil {
				w.t.Logf("it had ended before it was killed, after %d rows", now)
			}
			return
		}
	}
}

func TestMain(m *testing.M) {
	if where, dir, ok := strings.Cut(os.Getenv("ROTATE"), " "); ok {
		if err := rotate(where, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rotate is the process that is killed.
func rotate(url, dir string) error {
	db, err := pg.Open(context.Background(), pg.Config{URL: conf.Secret(url), Role: schema().Role, Schema: schema().Schema, MaxConns: 2, Application: "rotate"})
	if err != nil {
		return err
	}
	defer db.Close()
	ring, err := vault.OpenRing(context.Background(), vault.RingConfig{File: filepath.Join(dir, "present"), Others: []string{filepath.Join(dir, "former")}})
	if err != nil {
		return err
	}
	s := store.New(db)
	_, err = rotation.New(s, vault.New(ring.KEK, s, ring.Others...)).Run(context.Background(), false, nil)
	return errors.Join(err, ring.Close())
}

// Every column of the schema that holds something sealed is known, and every column
// that names a data key keeps it.
func TestSealedFieldsAreComplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rows, err := w.admin.Query(t.Context(), `
		SELECT c.table_name || '.' || c.column_name FROM information_schema.columns c
		WHERE c.table_schema = 'credentials' AND (c.column_name LIKE '%sealed' OR c.column_name LIKE '%key\_version') ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	var known []string
	for _, f := range store.SealedFields {
		known = append(known, f.Columns()...)
	}
	slices.Sort(known)
	if diff := cmp.Diff(known, got); diff != "" || err != nil {
		t.Errorf("%v; sealed columns (-known +there):\n%s", err, diff)
	}
	rows, err = w.admin.Query(t.Context(), `
		SELECT c.conrelid::regclass || '.' || a.attname FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[2]
		WHERE c.contype = 'f' AND c.confrelid = 'credentials.data_keys'::regclass AND NOT c.condeferrable AND c.confdeltype = 'a'`)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i := range keys {
		keys[i] = strings.TrimPrefix(keys[i], "credentials.")
	}
	want := slices.DeleteFunc(got, func(c string) bool { return !strings.HasSuffix(c, "key_version") })
	slices.Sort(keys)
	if diff := cmp.Diff(want, keys); diff != "" || err != nil {
		t.Errorf("%v; columns that keep a data key (-want +got):\n%s", err, diff)
	}
}
