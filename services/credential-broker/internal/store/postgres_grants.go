package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const selectGrant = `
	SELECT g.account_id, g.provider, g.state, g.reason, g.version, g.access_sealed, g.access_key_version, g.refresh_sealed, g.refresh_key_version,
		g.scope, g.issued_at, g.expires_at, g.refresh_at, g.attempt_id, g.lease_until, g.doubtful, g.failures, g.retry_at, g.last_error, g.changed_at,
		g.server, g.client_sealed, g.client_key_version, a.provider AS account_provider
	FROM grants g JOIN accounts a ON a.workspace_id = g.workspace_id AND a.id = g.account_id
	WHERE g.workspace_id = @workspace`

// timed makes a query tell the time too: after it has waited for its locks, for which the CTE
// is needed.
func timed(sql string) string {
	return `WITH found AS (` + sql + `) SELECT *, clock_timestamp() AS now FROM found`
}

// accountGrant is a grant with its account.
type accountGrant struct {
	account id.Account
	Grant
}

func scanGrant(row pgx.CollectableRow) (g accountGrant, err error) {
	var access, refresh, client []byte
	var accessKey, refreshKey, clientKey *int
	var attempt *uuid.UUID
	var lease *time.Time
	err = row.Scan(&g.account, &g.Provider, &g.State, &g.Reason, &g.Version, &access, &accessKey, &refresh, &refreshKey,
		&g.Scope, &g.IssuedAt, &g.ExpiresAt, &g.RefreshAt, &attempt, &lease, &g.Doubtful, &g.Failures, &g.RetryAt, &g.LastError, &g.ChangedAt,
		&g.Server, &client, &clientKey, &g.AccountProvider, &g.Now)
	if accessKey != nil {
		g.Access = &vault.Sealed{KeyVersion: *accessKey, Bytes: access}
	}
	if refreshKey != nil {
		g.Refresh = &vault.Sealed{KeyVersion: *refreshKey, Bytes: refresh}
	}
	if clientKey != nil {
		g.Client = &vault.Sealed{KeyVersion: *clientKey, Bytes: client}
	}
	if attempt != nil && lease != nil {
		g.Attempt = &Attempt{ID: *attempt, LeaseUntil: *lease}
	}
	return g, err
}

func (t pgTx) selectGrants(ctx context.Context, where string, args pg.Args) ([]accountGrant, error) {
	args["workspace"] = t.ws
	rows, err := t.tx.Query(ctx, timed(selectGrant+where), args)
	if err != nil {
		return nil, fmt.Errorf("read grants: %w", err)
	}
	all, err := pgx.CollectRows(rows, scanGrant)
	if err != nil {
		return nil, fmt.Errorf("read grants: %w", err)
	}
	return all, nil
}

func (t pgTx) selectGrant(ctx context.Context, account id.Account, lock string) (*Grant, error) {
	all, err := t.selectGrants(ctx, ` AND g.account_id = @account `+lock, pg.Args{"account": account})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errNoGrant(account)
	}
	return &all[0].Grant, nil
}

func (s postgres) Grant(ctx context.Context, ws id.Workspace, account id.Account) (g Grant, err error) {
	err = s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		found, err := pgTx{tx, ws}.selectGrant(ctx, account, "")
		if err == nil {
			g = *found
		}
		return err
	})
	return g, err
}

func (s postgres) Grants(ctx context.Context, ws id.Workspace) (map[id.Account]Grant, error) {
	all := map[id.Account]Grant{}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		found, err := pgTx{tx, ws}.selectGrants(ctx, "", pg.Args{})
		for _, g := range found {
			all[g.account] = g.Grant
		}
		return err
	})
	return all, err
}

const grantKeyColumns = `workspace_id AS workspace, account_id AS account, provider, version, state`

func (s postgres) PendingGrants(ctx context.Context, q GrantQuery) ([]GrantKey, error) {
	pending := `state = 'active' AND refresh_at <= now() AND refresh_sealed IS NOT NULL
		AND (retry_at IS NULL OR retry_at <= now() OR retry_at > now() + @pause::interval)`
	if q.Revoking {
		pending = `state = 'revoking'`
	}
	return query[GrantKey](ctx, s, id.Workspace{}, "grants that are due, or being signed out", `
		SELECT workspace, account, provider, version, state, discovered FROM (
			SELECT `+grantKeyColumns+`, server IS NOT NULL AS discovered,
				row_number() OVER (PARTITION BY CASE WHEN server IS NULL THEN provider END ORDER BY refresh_at) AS nth FROM grants
			WHERE (server IS NOT NULL OR provider = ANY (@providers)) AND account_id <> ALL (@except)
				AND (lease_until IS NULL OR lease_until < now() OR lease_until > now() + @lease::interval) AND `+pending+`
		) AS pending WHERE nth <= @most`, pg.Args{
		"providers": q.Providers, "except": append([]id.Account{}, q.Except...), "most": q.Most, "lease": q.LongestLease, "pause": q.LongestPause,
	})
}

func (s postgres) ChangedGrants(ctx context.Context, since time.Duration) (grants []GrantKey, all bool, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT `+grantKeyColumns+`, server IS NOT NULL AS discovered FROM grants WHERE changed_at > now() - @since::interval`, pg.Args{"since": since}).Query(pg.Collect(&grants))
	return grants, false, s.db.ReadAsSystem(ctx, b)
}

func (s postgres) SweepLogins(ctx context.Context, logins, attempts time.Duration) error {
	return s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		t := pgTx{tx: tx}
		if err := t.exec(ctx, "remove logins", `DELETE FROM logins WHERE expires_at < now() - @age::interval`, pg.Args{"age": logins}); err != nil {
			return err
		}
		return t.exec(ctx, "remove attempts", `DELETE FROM grant_attempts WHERE started_at < now() - @age::interval`, pg.Args{"age": attempts})
	})
}

// CanRecord has nothing to check: the audit is where the attempt has just been written.
func (postgres) CanRecord() error { return nil }

func (t pgTx) Grant(ctx context.Context, account id.Account) (*Grant, error) {
	return t.selectGrant(ctx, account, "FOR UPDATE OF g")
}

func grantArgs(account id.Account, g *Grant) pg.Args {
	args := pg.Args{
		"account": account, "provider": g.Provider, "state": string(g.State), "reason": g.Reason, "version": g.Version, "scope": g.Scope,
		"issued_at": g.IssuedAt, "expires_at": g.ExpiresAt, "refresh_at": g.RefreshAt, "attempt": (*uuid.UUID)(nil), "lease_until": (*time.Time)(nil),
		"server": g.Server, "doubtful": g.Doubtful, "failures": g.Failures, "retry_at": g.RetryAt, "last_error": g.LastError, "changed_at": g.ChangedAt,
	}
	if g.Attempt != nil {
		args["attempt"], args["lease_until"] = &g.Attempt.ID, &g.Attempt.LeaseUntil
	}
	for field, sealed := range map[string]*vault.Sealed{"access": g.Access, "refresh": g.Refresh, "client": g.Client} {
		args[field], args[field+"_key"] = []byte(nil), (*int)(nil)
		if sealed != nil {
			args[field], args[field+"_key"] = sealed.Bytes, &sealed.KeyVersion
		}
	}
	return args
}

func (t pgTx) insertGrant(ctx context.Context, account id.Account, g *Grant) error {
	return t.exec(ctx, "insert grant", `
		INSERT INTO grants (workspace_id, account_id, provider, state, version, access_sealed, access_key_version, refresh_sealed, refresh_key_version,
			scope, issued_at, expires_at, refresh_at, changed_at, server, client_sealed, client_key_version)
		VALUES (@workspace, @account, @provider, @state, @version, @access, @access_key, @refresh, @refresh_key,
			@scope, @issued_at, @expires_at, @refresh_at, @changed_at, @server, @client, @client_key)`, grantArgs(account, g))
}

func (t pgTx) UpdateGrant(ctx context.Context, account id.Account, g *Grant) error {
	return t.exec(ctx, "change the grant of account "+account.String(), `
		UPDATE grants SET state = @state, reason = @reason, version = @version, access_sealed = @access, access_key_version = @access_key,
			refresh_sealed = @refresh, refresh_key_version = @refresh_key, scope = @scope, issued_at = @issued_at, expires_at = @expires_at,
			refresh_at = @refresh_at, attempt_id = @attempt, lease_until = @lease_until, doubtful = @doubtful, failures = @failures,
			retry_at = @retry_at, last_error = @last_error, changed_at = @changed_at,
			server = @server, client_sealed = @client, client_key_version = @client_key
		WHERE workspace_id = @workspace AND account_id = @account`, grantArgs(account, g))
}

func (t pgTx) InsertAttempt(ctx context.Context, account id.Account, version int64, a *Attempt) error {
	return t.exec(ctx, "write an attempt", `
		INSERT INTO grant_attempts (workspace_id, id, account_id, kind, version, instance, started_at)
		VALUES (@workspace, @id, @account, @kind, @version, @instance, @started_at)`,
		pg.Args{"id": a.ID, "account": account, "kind": a.Kind, "version": version, "instance": a.Instance, "started_at": a.StartedAt})
}

// EndAttempt gives an attempt that another instance has declared lost its true outcome.
func (t pgTx) EndAttempt(ctx context.Context, _ id.Account, attempt uuid.UUID, outcome string, status int, code string) error {
	return t.exec(ctx, "write the outcome of an attempt", `
		UPDATE grant_attempts SET outcome = @outcome, status = @status, code = @code, ended_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @id`, pg.Args{"id": attempt, "outcome": outcome, "status": status, "code": code})
}

const selectLogins = `
	SELECT id, member_id AS member, provider, kind, purpose, account_id AS account, again, label, redirect, server, state_hash, sealed,
		coalesce(key_version, 0) AS key_version, poll_interval AS interval_s, poll_at, expires_at, ended_at, code, reason
	FROM logins WHERE workspace_id = @workspace AND `

func (t pgTx) Logins(ctx context.Context, member id.Member) ([]Login, error) {
	return queryTx[Login](ctx, t.tx, "logins", timed(selectLogins+`member_id = @member`), pg.Args{"workspace": t.ws, "member": member})
}

func (t pgTx) Login(ctx context.Context, login uuid.UUID) (*Login, error) {
	all, err := queryTx[Login](ctx, t.tx, "a login", timed(selectLogins+`id = @id FOR UPDATE`), pg.Args{"workspace": t.ws, "id": login})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

func (t pgTx) InsertLogin(ctx context.Context, l *Login) (bool, error) {
	n, err := t.execN(ctx, "store a login", `
		INSERT INTO logins (workspace_id, id, member_id, provider, kind, purpose, account_id, again, label, redirect, server, state_hash, sealed, key_version,
			poll_interval, poll_at, expires_at)
		VALUES (@workspace, @id, @member, @provider, @kind, @purpose, @account, @again, @label, @redirect, @server, @state, @sealed, @key_version,
			@interval, @poll_at, @expires_at)
		ON CONFLICT (workspace_id, id) DO NOTHING`, pg.Args{
		"id": l.ID, "member": l.Member, "provider": l.Provider, "kind": string(l.Kind), "purpose": l.Purpose, "account": l.Account, "again": l.Again,
		"label": l.Label, "redirect": l.Redirect, "server": l.Server, "state": l.StateHash, "sealed": l.Bytes, "key_version": l.KeyVersion,
		"interval": l.IntervalS, "poll_at": l.PollAt, "expires_at": l.ExpiresAt,
	})
	return n == 1, err
}

func (t pgTx) UpdateLogin(ctx context.Context, l *Login) error {
	args := pg.Args{
		"id": l.ID, "sealed": l.Bytes, "key_version": &l.KeyVersion, "interval": l.IntervalS, "poll_at": l.PollAt,
		"ended_at": l.EndedAt, "code": l.Code, "reason": l.Reason,
	}
	if l.EndedAt != nil {
		args["sealed"], args["key_version"] = []byte(nil), (*int)(nil)
	}
	return t.exec(ctx, "change a login", `
		UPDATE logins SET sealed = @sealed, key_version = @key_version, poll_interval = @interval, poll_at = @poll_at,
			ended_at = @ended_at, code = @code, reason = @reason
		WHERE workspace_id = @workspace AND id = @id`, args)
}

func (t pgTx) DeleteLogin(ctx context.Context, login uuid.UUID) error {
	return t.exec(ctx, "remove a login", `DELETE FROM logins WHERE workspace_id = @workspace AND id = @id`, pg.Args{"id": login})
}

func (t pgTx) DeleteOtherLogins(ctx context.Context, account id.Account, except uuid.UUID) error {
	return t.exec(ctx, "remove logins", `DELETE FROM logins WHERE workspace_id = @workspace AND account_id = @account AND id <> @id`,
		pg.Args{"account": account, "id": except})
}
