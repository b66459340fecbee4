package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// shared is the workspace of the operator's accounts, in SQL.
const shared = `'00000000-0000-0000-0000-000000000000'`

const (
	// maxPool bounds the accounts of one workspace for one provider.
	maxPool = 1000
	// maxAccounts bounds those of one workspace for all, whatever provider names it makes up.
	// A list of as many, each as large as it can be, is one message of package rpc.
	maxAccounts = 10 * maxPool
)

// postgres is the database that all instances share.
type postgres struct {
	db              *pg.DB
	hashchain.Table // the audit
}

// in runs fn under a workspace's claim. The operator's rows have no claim of their own and
// need the system's, and so does what looks at all workspaces.
func (s postgres) in(ctx context.Context, ws id.Workspace, fn func(context.Context, pgx.Tx) error) error {
	if id.IsZero(ws) {
		return s.db.AsSystem(ctx, fn)
	}
	return s.db.InWorkspace(ctx, ws, fn)
}

func (s postgres) Update(ctx context.Context, ws id.Workspace, fn func(context.Context, Tx) error) error {
	return s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, pgTx{tx, ws}) })
}

// query returns rows by the names of their columns; what says in errors what they are.
func query[T any](ctx context.Context, s postgres, ws id.Workspace, what, sql string, args pg.Args) (all []T, err error) {
	err = s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) (err error) {
		all, err = queryTx[T](ctx, tx, what, sql, args)
		return err
	})
	return all, err
}

func queryTx[T any](ctx context.Context, tx pgx.Tx, what, sql string, args pg.Args) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return all, nil
}

const (
	accountColumns = `workspace_id, id, provider, profile, label, hint, base_url, enabled, flat_rate, key_version, sealed, created_at, last_used_at, imported`
	poolColumns    = `workspace_id AS workspace, provider, settings, current_account AS current, current_at`
	// The zero time is in the place of NULL.
	limitColumns = `workspace_id AS workspace, provider, account_id AS account, family, at, coalesce(until, '0001-01-01Z') AS until,
		coalesce(soon, '0001-01-01Z') AS soon, step, reason, status, raw`
	healthColumns = `workspace_id AS workspace, provider, account_id AS account, health, at, reset_at`
)

func (s postgres) accounts(ctx context.Context, ws id.Workspace, where string, args pg.Args) ([]Account, error) {
	return query[Account](ctx, s, ws, "accounts", `SELECT `+accountColumns+` FROM accounts `+where, args)
}

func (s postgres) Get(ctx context.Context, ws id.Workspace, account id.Account) (Account, error) {
	all, err := s.accounts(ctx, ws, `WHERE workspace_id = @workspace AND id = @id`, pg.Args{"workspace": ws, "id": account})
	if err == nil && len(all) == 0 {
		err = errNoAccount(account)
	}
	if err != nil {
		return Account{}, err
	}
	return all[0], nil
}

func (s postgres) List(ctx context.Context, ws id.Workspace) ([]Account, error) {
	return s.accounts(ctx, ws, `WHERE workspace_id IN (@workspace, `+shared+`) ORDER BY workspace_id = `+shared+`, created_at, id`, pg.Args{"workspace": ws})
}

func (s postgres) ListAll(ctx context.Context) ([]Account, error) {
	return s.accounts(ctx, id.Workspace{}, `ORDER BY workspace_id, created_at, id`, pg.Args{})
}

func (s postgres) WorkspaceOf(ctx context.Context, account id.Account) (id.Workspace, error) {
	all, err := s.accounts(ctx, id.Workspace{}, `WHERE id = @id`, pg.Args{"id": account})
	if err == nil && len(all) == 0 {
		err = errNoAccount(account)
	}
	if err != nil {
		return id.Workspace{}, err
	}
	return all[0].WorkspaceID, nil
}

func (s postgres) FindImported(ctx context.Context) (map[string]Imported, error) {
	all, err := s.accounts(ctx, id.Workspace{}, `WHERE imported IS NOT NULL`, pg.Args{})
	return byHash(all), err
}

func byHash(all []Account) map[string]Imported {
	out := map[string]Imported{}
	for _, a := range all {
		if len(a.Imported) > 0 {
			out[string(a.Imported)] = Imported{a.WorkspaceID, a.ID}
		}
	}
	return out
}

func (s postgres) Settings(ctx context.Context, ws id.Workspace) ([]Settings, error) {
	return query[Settings](ctx, s, ws, "the settings of pools", `SELECT `+poolColumns+` FROM pools WHERE workspace_id = @workspace ORDER BY provider`,
		pg.Args{"workspace": ws})
}

func (s postgres) Known(ctx context.Context, ws id.Workspace) (Known, error) {
	var limits []Limit
	var health []Health
	args := pg.Args{"workspace": ws}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`SELECT `+limitColumns+` FROM account_limits WHERE workspace_id = @workspace AND until > now() ORDER BY account_id, family`, args).
			Query(pg.Collect(&limits))
		b.Queue(`SELECT `+healthColumns+` FROM account_health WHERE workspace_id = @workspace`, args).Query(pg.Collect(&health))
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Known{}, fmt.Errorf("read the limits and health of accounts: %w", err)
	}
	return newKnown(limits, health), nil
}

func (s postgres) Pool(ctx context.Context, ws id.Workspace, provider string) (Pool, error) {
	var p Pool
	var marks []poolMark
	var accounts []Account
	var settings []Settings
	args := pg.Args{"workspace": ws, "provider": provider}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		const ofPool = ` WHERE workspace_id = @workspace AND provider = @provider`
		b := &pgx.Batch{}
		// First: the next look finds what changes while the rest is read.
		b.Queue(marksOf, pg.Args{"workspaces": []id.Workspace{ws}}).Query(pg.Collect(&marks))
		b.Queue(`SELECT `+accountColumns+` FROM accounts`+ofPool+` ORDER BY created_at, id`, args).Query(pg.Collect(&accounts))
		b.Queue(`SELECT `+poolColumns+` FROM pools`+ofPool, args).Query(pg.Collect(&settings))
		b.Queue(`SELECT `+limitColumns+` FROM account_limits`+ofPool, args).Query(pg.Collect(&p.Limits))
		b.Queue(`SELECT `+healthColumns+` FROM account_health`+ofPool, args).Query(pg.Collect(&p.Health))
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Pool{}, fmt.Errorf("read accounts: %w", err)
	}
	p.fill(accounts, settings)
	for _, m := range marks {
		if m.Provider == provider {
			p.Mark = m.Mark
		}
	}
	return p, nil
}

type poolMark struct {
	Workspace id.Workspace
	Provider  string
	Mark
}

// marksOf is a digest of the versions of a pool's rows: of its accounts except for their
// last use, and of its settings, limits and resets, but not of health. A version belongs to
// one state of one row for ever (migrations), and they are sorted: no two changes can cancel
// each other out, as in a sum of the rows' hashes.
const marksOf = `
	SELECT workspace_id AS workspace, provider,
		coalesce(md5(string_agg(version::text, ' ' ORDER BY version) FILTER (WHERE account)), '') AS accounts,
		coalesce(md5(string_agg(version::text, ' ' ORDER BY version) FILTER (WHERE NOT account)), '') AS rest
	FROM (
		SELECT workspace_id, provider, true AS account, version FROM accounts WHERE workspace_id = ANY (@workspaces)
		UNION ALL
		SELECT workspace_id, provider, false, version FROM pools WHERE workspace_id = ANY (@workspaces)
		UNION ALL
		SELECT workspace_id, provider, false, version FROM account_limits WHERE workspace_id = ANY (@workspaces)
		UNION ALL
		SELECT workspace_id, provider, false, version FROM account_health WHERE workspace_id = ANY (@workspaces) AND reset_at IS NOT NULL
	) known GROUP BY workspace_id, provider`

func (s postgres) Marks(ctx context.Context, keys []PoolKey) (map[PoolKey]Mark, error) {
	var workspaces []id.Workspace
	for _, k := range keys {
		workspaces = append(workspaces, k.Workspace)
	}
	slices.SortFunc(workspaces, func(a, b id.Workspace) int { return bytes.Compare(a.UUID[:], b.UUID[:]) })
	var all []poolMark
	b := &pgx.Batch{}
	b.Queue(marksOf, pg.Args{"workspaces": slices.Compact(workspaces)}).Query(pg.Collect(&all))
	if err := s.db.ReadAsSystem(ctx, b); err != nil {
		return nil, fmt.Errorf("look for changes of accounts: %w", err)
	}
	marks := make(map[PoolKey]Mark, len(all))
	for _, m := range all {
		marks[PoolKey{m.Workspace, m.Provider}] = m.Mark
	}
	return marks, nil
}

func (s postgres) Stats(ctx context.Context, ws id.Workspace) ([]Stat, error) {
	return query[Stat](ctx, s, ws, "the statistics of accounts", `
		SELECT workspace_id AS workspace, provider, account_id AS account, reason, requests, tokens_in, tokens_out, cost_micros
		FROM account_stats WHERE workspace_id = @workspace ORDER BY provider, account_id, reason`, pg.Args{"workspace": ws})
}

func (s postgres) Connections(ctx context.Context, ws id.Workspace) (map[string]Connection, error) {
	found, err := query[Connection](ctx, s, ws, "connections", `
		SELECT provider, account_id AS account, member_id AS member, subject, connected_at FROM connections WHERE workspace_id = @workspace`, pg.Args{"workspace": ws})
	all := map[string]Connection{}
	for _, c := range found {
		all[c.Provider] = c
	}
	return all, err
}

func (s postgres) NameConnection(ctx context.Context, ws id.Workspace, c Connection) error {
	return s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		return pgTx{tx, ws}.exec(ctx, "name a connection", `
			UPDATE connections SET subject = @subject
			WHERE workspace_id = @workspace AND provider = @provider AND account_id = @account AND member_id = @member`,
			pg.Args{"provider": c.Provider, "account": c.Account, "member": c.Member, "subject": c.Subject})
	})
}

func (s postgres) DataKeys(ctx context.Context, ws id.Workspace) ([]vault.WrappedKey, error) {
	return query[vault.WrappedKey](ctx, s, ws, "data keys", `SELECT version, kek, wrapped FROM data_keys WHERE workspace_id = @workspace ORDER BY version`,
		pg.Args{"workspace": ws})
}

func (s postgres) AddDataKey(ctx context.Context, ws id.Workspace, k vault.WrappedKey) error {
	return s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		t, args := pgTx{tx, ws}, pg.Args{"version": k.Version, "kek": k.KEK, "wrapped": k.Wrapped}
		err := t.exec(ctx, "store a data key", `
			INSERT INTO data_keys (workspace_id, version, kek, wrapped) VALUES (@workspace, @version, @kek, @wrapped) ON CONFLICT DO NOTHING`, args)
		if err != nil {
			return err
		}
		return t.exec(ctx, "retire data keys", `
			UPDATE data_keys SET retired_at = now() WHERE workspace_id = @workspace AND version < @version AND retired_at IS NULL`, args)
	})
}

func (s postgres) Rewrap(ctx context.Context, ws id.Workspace, old, k vault.WrappedKey) (done bool, err error) {
	err = s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		n, err := pgTx{tx, ws}.execN(ctx, "wrap a data key anew", `
			UPDATE data_keys SET kek = @kek, wrapped = @wrapped
			WHERE workspace_id = @workspace AND version = @version AND kek = @old_kek AND wrapped = @old`,
			pg.Args{"version": k.Version, "kek": k.KEK, "wrapped": k.Wrapped, "old_kek": old.KEK, "old": old.Wrapped})
		done = n == 1
		return err
	})
	return done && err == nil, err
}

func (s postgres) Keyed(ctx context.Context, retired bool, after *id.Workspace, n int) ([]id.Workspace, error) {
	args := pg.Args{"after": nil, "retired": retired, "n": n}
	if after != nil {
		args["after"] = *after
	}
	found, err := query[struct{ Workspace id.Workspace }](ctx, s, id.Workspace{}, "data keys", `
		SELECT DISTINCT workspace_id AS workspace FROM data_keys
		WHERE (@after::uuid IS NULL OR workspace_id > @after) AND (NOT @retired OR retired_at IS NOT NULL)
		ORDER BY workspace_id LIMIT @n`, args)
	var all []id.Workspace
	for _, w := range found {
		all = append(all, w.Workspace)
	}
	return all, err
}

func (s postgres) SealedBefore(ctx context.Context, ws id.Workspace, f SealedField, version int, after uuid.UUID, n int) ([]SealedRow, error) {
	type row struct {
		Key     uuid.UUID
		Account id.Account
		vault.Sealed
	}
	found, err := query[row](ctx, s, id.Workspace{}, "what is sealed in "+f.table, fmt.Sprintf(`
		SELECT %[2]s AS key, %[3]s AS account, %[4]s AS sealed, %[5]s AS key_version FROM %[1]s
		WHERE workspace_id = @workspace AND %[5]s < @version AND %[2]s > @after
		ORDER BY %[2]s LIMIT @n`, f.table, f.key, f.account, f.sealed, f.version), pg.Args{"workspace": ws, "version": version, "after": after, "n": n})
	var all []SealedRow
	for _, r := range found {
		all = append(all, SealedRow{r.Key, vault.Place{Workspace: ws, Account: r.Account, Field: f.place(r.Key)}, r.Sealed})
	}
	return all, err
}

func (s postgres) Reseal(ctx context.Context, ws id.Workspace, f SealedField, rows []Resealed) (written int, err error) {
	n := len(rows)
	keys, olds, versions, nexts, next := make([]uuid.UUID, n), make([][]byte, n), make([]int, n), make([][]byte, n), make([]int, n)
	for i, r := range rows {
		keys[i], olds[i], versions[i], nexts[i], next[i] = r.Key, r.Bytes, r.KeyVersion, r.Next.Bytes, r.Next.KeyVersion
	}
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		t := pgTx{tx, ws}
		// Two rotations could lock the same rows in different orders.
		if err := t.Lock(ctx, "key rotation "+ws.String()); err != nil {
			return err
		}
		written, err = t.execN(ctx, "store what was sealed anew in "+f.table, fmt.Sprintf(`
			UPDATE %[1]s AS t SET %[3]s = n.new, %[4]s = n.new_version
			FROM unnest(@keys::uuid[], @olds::bytea[], @versions::integer[], @nexts::bytea[], @next::integer[]) AS n(key, old, version, new, new_version)
			WHERE t.workspace_id = @workspace AND t.%[2]s = n.key AND t.%[4]s = n.version AND t.%[3]s = n.old`, f.table, f.key, f.sealed, f.version),
			pg.Args{"keys": keys, "olds": olds, "versions": versions, "nexts": nexts, "next": next})
		return err
	})
	return written, err
}

func (s postgres) RemoveDataKeys(ctx context.Context, ws id.Workspace, grace time.Duration) (removed int, err error) {
	unused := []string{`DELETE FROM data_keys AS k WHERE workspace_id = @workspace AND retired_at <= now() - @grace::interval`}
	for _, f := range SealedFields {
		unused = append(unused, fmt.Sprintf(`NOT EXISTS (SELECT FROM %[1]s AS t WHERE t.workspace_id = k.workspace_id AND t.%[2]s = k.version)`, f.table, f.version))
	}
	err = s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		removed, err = pgTx{tx, ws}.execN(ctx, "remove retired data keys", strings.Join(unused, " AND "), pg.Args{"grace": grace})
		return err
	})
	if pg.IsForeignKeyViolation(err, "") { // a row has just come to use it: it is removed later
		return 0, nil
	}
	return removed, err
}

// pgTx is a Tx in the database.
type pgTx struct {
	tx pgx.Tx
	ws id.Workspace
}

// exec runs a statement; what says in errors what it was to do. The workspace is added to
// the arguments.
func (t pgTx) exec(ctx context.Context, what, sql string, args pg.Args) error {
	_, err := t.execN(ctx, what, sql, args)
	return err
}

// execN is exec that returns how many rows were affected.
func (t pgTx) execN(ctx context.Context, what, sql string, args pg.Args) (int, error) {
	args["workspace"] = t.ws
	tag, err := t.tx.Exec(ctx, sql, args)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return int(tag.RowsAffected()), nil
}

func (t pgTx) Lock(ctx context.Context, name string) error {
	if _, err := t.tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended(@name, 0))`, pg.Args{"name": name}); err != nil {
		return fmt.Errorf("wait for the lock of %s: %w", name, err)
	}
	return nil
}

func (t pgTx) Now(ctx context.Context) (now time.Time, err error) {
	if err := t.tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

func (t pgTx) Account(ctx context.Context, account id.Account) (*Account, error) {
	all, err := queryTx[Account](ctx, t.tx, "account "+account.String(), `SELECT `+accountColumns+` FROM accounts WHERE workspace_id = @workspace AND id = @id FOR UPDATE`,
		pg.Args{"workspace": t.ws, "id": account})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errNoAccount(account)
	}
	return &all[0], nil
}

func (t pgTx) Room(ctx context.Context, provider string) error {
	if err := t.Lock(ctx, "accounts of "+t.ws.String()); err != nil {
		return err
	}
	var all, pool int
	err := t.tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE provider = @provider) FROM accounts WHERE workspace_id = @workspace`,
		pg.Args{"workspace": t.ws, "provider": provider}).Scan(&all, &pool)
	switch {
	case err != nil:
		return fmt.Errorf("count accounts: %w", err)
	case pool >= maxPool:
		return fault.New(fault.Conflict, "there are already %d accounts for %s, the maximum for one provider: remove one first", pool, provider)
	case all >= maxAccounts:
		return fault.New(fault.Conflict, "there are already %d accounts, the maximum for all providers together: remove one first", all)
	}
	return nil
}

func (t pgTx) HasAccount(ctx context.Context, provider string) (has bool, err error) {
	err = t.tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM accounts WHERE workspace_id = @workspace AND provider = @provider)`,
		pg.Args{"workspace": t.ws, "provider": provider}).Scan(&has)
	if err != nil {
		return false, fmt.Errorf("look for an account: %w", err)
	}
	return has, nil
}

func (t pgTx) InsertAccount(ctx context.Context, a *Account) error {
	err := t.tx.QueryRow(ctx, `
		INSERT INTO accounts (workspace_id, id, provider, profile, label, hint, base_url, enabled, flat_rate, key_version, sealed, last_used_at, imported)
		VALUES (@workspace, @id, @provider, @profile, @label, @hint, @base_url, @enabled, @flat_rate, @key_version, coalesce(@sealed, ''::bytea), @last_used_at, @imported)
		RETURNING created_at`, pg.Args{
		"workspace": t.ws, "id": a.ID, "provider": a.Provider, "profile": a.Profile, "label": a.Label, "hint": a.Hint, "base_url": a.BaseURL,
		"enabled": a.Enabled, "flat_rate": a.FlatRate, "key_version": a.KeyVersion, "sealed": a.Bytes, "last_used_at": a.LastUsedAt, "imported": a.Imported,
	}).Scan(&a.CreatedAt)
	switch {
	case pg.IsUniqueViolation(err, "accounts_imported"):
		return ErrImported
	case pg.IsUniqueViolation(err, ""):
		return errIDTaken(a.ID)
	case err != nil:
		return fmt.Errorf("insert account: %w", err)
	case a.Grant != nil:
		return t.insertGrant(ctx, a.ID, a.Grant)
	}
	return nil
}

func (t pgTx) UpdateAccount(ctx context.Context, a *Account) error {
	return t.exec(ctx, "change account "+a.ID.String(), `
		UPDATE accounts SET enabled = @enabled, flat_rate = @flat_rate WHERE workspace_id = @workspace AND id = @id`,
		pg.Args{"id": a.ID, "enabled": a.Enabled, "flat_rate": a.FlatRate})
}

func (t pgTx) DeleteAccount(ctx context.Context, account id.Account) error {
	// The grant, its attempts and the connection go with the account.
	if err := t.exec(ctx, "delete account", `DELETE FROM accounts WHERE workspace_id = @workspace AND id = @account`, pg.Args{"account": account}); err != nil {
		return err
	}
	for _, table := range []string{"account_limits", "account_health", "account_stats"} {
		if err := t.exec(ctx, "delete from "+table, `DELETE FROM `+table+` WHERE workspace_id = @workspace AND account_id = @account`, pg.Args{"account": account}); err != nil {
			return err
		}
	}
	return nil
}

func (t pgTx) InsertLimit(ctx context.Context, l Limit) error {
	return t.exec(ctx, "store a limit", `
		INSERT INTO account_limits (workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw)
		VALUES (@workspace, @provider, @account, @family, @at, @until, @soon, @step, @reason, @status, @raw)`, limitArgs(&l))
}

func limitArgs(l *Limit) pg.Args {
	return pg.Args{
		"workspace": l.Workspace, "provider": l.Provider, "account": l.Account, "family": l.Family, "at": l.At,
		"until": orNull(l.Until, l.Until.IsZero()), "soon": orNull(l.Soon, l.Soon.IsZero()), "step": l.Step, "reason": string(l.Reason), "status": l.Status, "raw": l.Raw,
	}
}

func (t pgTx) ResetHealth(ctx context.Context, provider string, account id.Account) error {
	args := pg.Args{"provider": provider, "account": account}
	// A clearing is dated after what it replaces, whatever the clocks say. The account as a
	// whole is always cleared: its limit may not have been written yet.
	if err := t.exec(ctx, "clear limits", `
		INSERT INTO account_limits (workspace_id, provider, account_id, family, at, step, reason, status, raw)
		SELECT @workspace, @provider, @account, family, clock_timestamp(), 0, '', 0, ''
		FROM (SELECT family FROM account_limits WHERE workspace_id = @workspace AND account_id = @account UNION SELECT '') f
		ON CONFLICT (workspace_id, account_id, family) DO UPDATE SET
			at = greatest(EXCLUDED.at, account_limits.at + interval '1 microsecond'),
			until = NULL, soon = NULL, step = 0, reason = '', status = 0, raw = ''`, args); err != nil {
		return err
	}
	return t.exec(ctx, "reset health", `
		INSERT INTO account_health (workspace_id, provider, account_id, health, at, reset_at)
		VALUES (@workspace, @provider, @account, 100, clock_timestamp(), clock_timestamp())
		ON CONFLICT (workspace_id, account_id) DO UPDATE SET health = 100,
			at = greatest(EXCLUDED.at, account_health.at + interval '1 microsecond'), reset_at = EXCLUDED.reset_at`, args)
}

func (t pgTx) DeleteStats(ctx context.Context, account id.Account) error {
	return t.exec(ctx, "delete statistics", `DELETE FROM account_stats WHERE workspace_id = @workspace AND (@all OR account_id = @account)`,
		pg.Args{"all": id.IsZero(account), "account": account})
}

// Pool makes the row if it is not there, to have something to lock.
func (t pgTx) Pool(ctx context.Context, provider string) (*Settings, error) {
	args := pg.Args{"provider": provider}
	if err := t.exec(ctx, "lock a pool", `INSERT INTO pools (workspace_id, provider) VALUES (@workspace, @provider) ON CONFLICT DO NOTHING`, args); err != nil {
		return nil, err
	}
	all, err := queryTx[Settings](ctx, t.tx, "a pool", `SELECT `+poolColumns+` FROM pools WHERE workspace_id = @workspace AND provider = @provider FOR UPDATE`, args)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read a pool: %w", pgx.ErrNoRows)
	}
	return &all[0], nil
}

func (t pgTx) UpdatePool(ctx context.Context, s *Settings) error {
	return t.exec(ctx, "change a pool", `
		UPDATE pools SET settings = @settings, current_account = @current, current_at = @current_at, changed_at = now()
		WHERE workspace_id = @workspace AND provider = @provider`,
		pg.Args{"provider": s.Provider, "settings": []byte(s.Settings), "current": s.Current, "current_at": s.CurrentAt})
}

func (t pgTx) Connect(ctx context.Context, c Connection) (by id.Member, ok bool, err error) {
	args := pg.Args{"provider": c.Provider, "account": c.Account, "member": c.Member, "subject": c.Subject}
	n, err := t.execN(ctx, "connect an account", `
		INSERT INTO connections (workspace_id, provider, account_id, member_id, subject)
		VALUES (@workspace, @provider, @account, @member, @subject)
		ON CONFLICT (workspace_id, provider) DO UPDATE SET
			member_id = EXCLUDED.member_id, subject = EXCLUDED.subject, connected_at = EXCLUDED.connected_at
		WHERE connections.account_id = EXCLUDED.account_id`, args)
	if err != nil || n == 1 {
		return c.Member, err == nil, err
	}
	err = t.tx.QueryRow(ctx, `SELECT member_id FROM connections WHERE workspace_id = @workspace AND provider = @provider`, args).Scan(&by)
	if err != nil {
		return by, false, fmt.Errorf("read who connected an account: %w", err)
	}
	return by, false, nil
}

func (t pgTx) Disconnect(ctx context.Context, account id.Account) error {
	return t.exec(ctx, "disconnect an account", `DELETE FROM connections WHERE workspace_id = @workspace AND account_id = @account`, pg.Args{"account": account})
}

// orNull returns NULL in the place of a zero value.
func orNull[T any](v T, zero bool) any {
	if zero {
		return nil
	}
	return v
}
