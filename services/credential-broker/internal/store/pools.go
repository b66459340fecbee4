package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// PoolKey names a pool: a workspace's own accounts for a provider, with the zero
// workspace the operator's.
type PoolKey struct {
	Workspace id.Workspace
	Provider  string
}

// Pool is what is stored of a pool.
type Pool struct {
	Accounts []Account    // enabled ones, in the order in which they were added
	Disabled []id.Account // the others
	// Mark is another one when something has changed (Marks).
	Mark Mark
	// Settings are JSON, empty where the pool has none of its own.
	Settings []byte
	Limits   []Limit
	Health   []Health
	// Current is the account that somebody switched to, and when; zero where nobody has.
	Current   id.Account
	CurrentAt time.Time
}

// Has reports whether an account is among those of the pool.
func (p *Pool) Has(account id.Account) bool {
	return slices.Contains(p.Disabled, account) || slices.ContainsFunc(p.Accounts, func(a Account) bool { return a.ID == account })
}

// Reason says how a request went; package pool lists the reasons.
type Reason = accountfile.Reason

// Limit says until when an account, or a model family of it, gets no requests.
type Limit struct {
	Workspace id.Workspace
	Provider  string
	Account   id.Account
	// Family is empty for the whole account.
	Family string
	// At is when the limit began, or when it was cleared.
	At time.Time
	// Until is when it ends; zero once it is cleared.
	Until time.Time
	// Soon is when it ends for the last usable account of a pool.
	Soon time.Time
	// Step counts consecutive failures.
	Step   int
	Reason Reason
	// Status and Raw are the provider's answer, for operators.
	Status int
	Raw    string
}

// Health is an account's health as it was at a time.
type Health struct {
	Workspace id.Workspace
	Provider  string
	Account   id.Account
	Health    float64
	At        time.Time
	// ResetAt is when somebody made it healthy last; nil for never.
	ResetAt *time.Time
}

const healthColumns = `workspace_id AS workspace, provider, account_id AS account, health, at, reset_at`

// Stat is what an account did that went one way.
type Stat struct {
	Workspace  id.Workspace
	Provider   string
	Account    id.Account
	Reason     Reason
	Requests   int64
	TokensIn   int64
	TokensOut  int64
	CostMicros int64
}

// noSettings is what is stored of a pool that has none.
const noSettings = "{}"

// Pool returns a workspace's own pool for a provider; with the zero workspace the
// operator's, which may hold what is known of an account from the environment.
func (s *Store) Pool(ctx context.Context, ws id.Workspace, provider string) (Pool, error) {
	p := Pool{}
	var marks []poolMark
	var all []Account
	var settings []Settings
	args := pg.Args{"workspace": ws, "provider": provider}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		// First: what changes while the rest is read is found by the next look.
		b.Queue(marksOf, pg.Args{"workspaces": []id.Workspace{ws}}).Query(pg.Collect(&marks))
		b.Queue(`
			SELECT `+columns+` FROM accounts WHERE workspace_id = @workspace AND provider = @provider
			ORDER BY created_at, id`, args).Query(func(rows pgx.Rows) (err error) {
			all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Account])
			return err
		})
		b.Queue(`SELECT workspace_id AS workspace, provider, settings, current_account AS current, current_at FROM pools WHERE workspace_id = @workspace AND provider = @provider`, args).Query(func(rows pgx.Rows) (err error) {
			settings, err = pgx.CollectRows(rows, pgx.RowToStructByName[Settings])
			return err
		})
		b.Queue(`
			SELECT workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw FROM account_limits
			WHERE workspace_id = @workspace AND provider = @provider`, args).Query(func(rows pgx.Rows) (err error) {
			p.Limits, err = pgx.CollectRows(rows, scanLimit)
			return err
		})
		b.Queue(`
			SELECT `+healthColumns+` FROM account_health
			WHERE workspace_id = @workspace AND provider = @provider`, args).Query(func(rows pgx.Rows) (err error) {
			p.Health, err = pgx.CollectRows(rows, pgx.RowToStructByName[Health])
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Pool{}, fmt.Errorf("read accounts: %w", err)
	}
	for _, a := range all {
		if a.Enabled {
			p.Accounts = append(p.Accounts, a)
		} else {
			p.Disabled = append(p.Disabled, a.ID)
		}
	}
	for _, row := range settings {
		if string(row.Settings) != noSettings {
			p.Settings = row.Settings
		}
		if row.Current != nil && row.CurrentAt != nil {
			p.Current, p.CurrentAt = *row.Current, *row.CurrentAt
		}
	}
	for _, m := range marks {
		if m.Provider == provider {
			p.Mark = m.Mark
		}
	}
	return p, nil
}

// Mark is what a pool's rows come to; the zero one where there are none.
type Mark struct {
	// Accounts are the accounts themselves, which no other change gives another mark.
	Accounts string
	// Rest is their limits, and the pool's settings and orders.
	Rest string
}

type poolMark struct {
	Workspace id.Workspace
	Provider  string
	Mark
}

// marksOf is a digest of the versions of a pool's rows: of its accounts, where all but their
// last use counts, and of its settings, limits and orders, where health does not. A version
// belongs to one state of one row for ever (migrations), and they are put in order: no two
// changes can cancel out, as they did in a sum of the rows' hashes.
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

// Marks returns the marks of pools of which something is stored: of a pool that has the
// mark that it was read with, nothing has changed. It looks at many workspaces at once,
// which is why it needs the system's claim.
func (s *Store) Marks(ctx context.Context, keys []PoolKey) (map[PoolKey]Mark, error) {
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

func scanLimit(row pgx.CollectableRow) (l Limit, err error) {
	var until, soon *time.Time
	err = row.Scan(&l.Workspace, &l.Provider, &l.Account, &l.Family, &l.At, &until, &soon, &l.Step, &l.Reason, &l.Status, &l.Raw)
	if until != nil && soon != nil {
		l.Until, l.Soon = *until, *soon
	}
	return l, err
}

// Stats returns what a workspace's accounts did; for the zero workspace, the
// operator's.
func (s *Store) Stats(ctx context.Context, ws id.Workspace) ([]Stat, error) {
	var all []Stat
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT workspace_id AS workspace, provider, account_id AS account, reason, requests, tokens_in, tokens_out, cost_micros
			FROM account_stats WHERE workspace_id = $1 ORDER BY provider, account_id, reason`, ws)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Stat])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what accounts did: %w", err)
	}
	return all, nil
}

// Learned is what one instance has to write behind.
type Learned struct {
	// Stats are added, once for each Sequence of an Instance.
	Instance uuid.UUID
	Sequence int64
	Stats    []Stat
	// Limits replace older ones, unless somebody has reset the account since; Health
	// what was there. What was dated by a clock that is far ahead began just now, and what
	// such a clock has left behind is older than anything.
	Limits []Limit
	Health []Health
	// Unstored are accounts that are nowhere else. Of others that are not there (any more)
	// nothing is written.
	Unstored []id.Account
}

// isThere is that an account is one of Learned.Unstored, or stored; then it stays so until
// the transaction ends.
const isThere = `(@account::uuid = ANY (@unstored::uuid[]) OR EXISTS (SELECT FROM accounts a WHERE a.workspace_id = @workspace AND a.id = @account FOR KEY SHARE))`

// Sort brings the rows into the order in which all instances write them, so that two
// do not wait for each other.
func (l *Learned) Sort() {
	slices.SortFunc(l.Stats, func(a, b Stat) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(l.Limits, func(a, b Limit) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), cmp.Compare(a.Family, b.Family))
	})
	slices.SortFunc(l.Health, func(a, b Health) int { return bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]) })
}

// ahead is how far a date may be in the future for it to be believed: as far as those who
// read it believe it (package pool). They would not have what is dated later, and nobody
// would have what came before that date.
const (
	ahead    = 10 * time.Minute
	aheadSQL = `now() + interval '10 minutes'`
)

// Learn writes what an instance learned, in one transaction. Writing it again changes
// nothing.
func (s *Store) Learn(ctx context.Context, l Learned) error {
	// As the system: it is about accounts of many workspaces.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if len(l.Stats) > 0 {
			if err := addStats(ctx, tx, l); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		for _, x := range l.Limits {
			b.Queue(`
				INSERT INTO account_limits (workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw)
				SELECT @workspace, @provider, @account, @family, @at - early, @until::timestamptz - early, @soon::timestamptz - early, @step, @reason, @status, @raw
				FROM (SELECT CASE WHEN @at::timestamptz > `+aheadSQL+` THEN @at - now() ELSE '0' END AS early) clock
				WHERE NOT EXISTS (SELECT FROM account_health h WHERE h.workspace_id = @workspace AND h.account_id = @account AND h.reset_at >= @at - early) AND `+isThere+`
				ON CONFLICT (workspace_id, account_id, family) DO UPDATE SET at = EXCLUDED.at, until = EXCLUDED.until, soon = EXCLUDED.soon,
					step = EXCLUDED.step, reason = EXCLUDED.reason, status = EXCLUDED.status, raw = EXCLUDED.raw
				WHERE account_limits.at > `+aheadSQL+` OR (account_limits.at, coalesce(account_limits.until, '-infinity')) < (EXCLUDED.at, coalesce(EXCLUDED.until, '-infinity'))`, pg.Args{
				"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "family": x.Family, "at": x.At,
				"until": orNothing(x.Until), "soon": orNothing(x.Soon), "step": x.Step, "reason": string(x.Reason), "status": x.Status, "raw": x.Raw,
				"unstored": l.Unstored,
			})
		}
		for _, x := range l.Health {
			b.Queue(`
				INSERT INTO account_health (workspace_id, provider, account_id, health, at)
				SELECT @workspace, @provider, @account, @health, CASE WHEN @at::timestamptz > `+aheadSQL+` THEN now() ELSE @at END WHERE `+isThere+`
				ON CONFLICT (workspace_id, account_id) DO UPDATE SET health = EXCLUDED.health, at = EXCLUDED.at
				WHERE account_health.at > `+aheadSQL+` OR account_health.at < EXCLUDED.at`, pg.Args{
				"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "health": x.Health, "at": x.At, "unstored": l.Unstored,
			})
		}
		if b.Len() == 0 {
			return nil
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("write what was learned of accounts: %w", err)
	}
	return nil
}

// addStats adds to the statistics unless it was done before.
func addStats(ctx context.Context, tx pgx.Tx, l Learned) error {
	tag, err := tx.Exec(ctx, `
		INSERT INTO stat_writers (workspace_id, instance, sequence) VALUES (`+shared+`, @instance, @sequence)
		ON CONFLICT (workspace_id, instance) DO UPDATE SET sequence = EXCLUDED.sequence, at = now()
		WHERE stat_writers.sequence < EXCLUDED.sequence`, pg.Args{"instance": l.Instance, "sequence": l.Sequence})
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	b := &pgx.Batch{}
	if l.Sequence == 1 { // once for each instance
		b.Queue(`DELETE FROM stat_writers WHERE at < now() - interval '7 days'`)
		b.Queue(`DELETE FROM account_limits WHERE greatest(at, until) < now() - interval '7 days'`)
	}
	for _, x := range l.Stats {
		b.Queue(`
			INSERT INTO account_stats (workspace_id, provider, account_id, reason, requests, tokens_in, tokens_out, cost_micros)
			SELECT @workspace, @provider, @account, @reason, @requests, @in, @out, @cost WHERE `+isThere+`
			ON CONFLICT (workspace_id, account_id, reason) DO UPDATE SET
				requests = account_stats.requests + EXCLUDED.requests, tokens_in = account_stats.tokens_in + EXCLUDED.tokens_in,
				tokens_out = account_stats.tokens_out + EXCLUDED.tokens_out, cost_micros = account_stats.cost_micros + EXCLUDED.cost_micros`, pg.Args{
			"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "reason": string(x.Reason),
			"requests": x.Requests, "in": x.TokensIn, "out": x.TokensOut, "cost": x.CostMicros, "unstored": l.Unstored,
		})
	}
	return tx.SendBatch(ctx, b).Close()
}

func orNothing(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
