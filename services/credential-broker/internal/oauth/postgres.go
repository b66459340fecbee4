package oauth

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// postgres is the tables of a database that all instances share.
type postgres struct{ cfg *Config }

// in runs fn under the grant's workspace's claim. The operator's rows have no claim
// of their own and need the system's.
func (t postgres) in(ctx context.Context, ws id.Workspace, fn func(context.Context, pgx.Tx) error) error {
	if id.IsZero(ws) {
		return t.cfg.DB.AsSystem(ctx, fn)
	}
	return t.cfg.DB.InWorkspace(ctx, ws, fn)
}

func (t postgres) record(ctx context.Context, tx pgx.Tx, ev Event) error {
	if t.cfg.Record == nil {
		return nil
	}
	return t.cfg.Record(ctx, tx, ev)
}

// canRecord has nothing to look at: the audit is where the attempt was written just now.
func (postgres) canRecord() error { return nil }

// read reads a grant. An account without one is a NotFound fault.
func (t postgres) read(ctx context.Context, ref Ref) (g grant, err error) {
	err = t.in(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		g, err = t.selectGrant(ctx, tx, ref, "")
		return err
	})
	return g, err
}

// Times are measured with the clock, not as of the begin of a transaction that may
// have waited for a lock.
const grantColumns = `provider, state, reason, version, access_sealed, access_key_version, refresh_sealed, refresh_key_version,
	doubtful, failures, last_error, attempt_id,
	extract(epoch FROM clock_timestamp() - issued_at)::float8 AS age_s, extract(epoch FROM expires_at - clock_timestamp())::float8 AS left_s,
	extract(epoch FROM refresh_at - clock_timestamp())::float8 AS due_s, extract(epoch FROM lease_until - clock_timestamp())::float8 AS lease_s,
	extract(epoch FROM retry_at - clock_timestamp())::float8 AS retry_s`

func (t postgres) selectGrant(ctx context.Context, tx pgx.Tx, ref Ref, lock string) (grant, error) {
	began := time.Now()
	rows, err := tx.Query(ctx, `SELECT `+grantColumns+` FROM grants WHERE workspace_id = $1 AND account_id = $2 `+lock, ref.Workspace, ref.Account)
	if err != nil {
		return grant{}, fmt.Errorf("read the grant of account %s: %w", ref.Account, err)
	}
	g, err := pgx.CollectExactlyOneRow(rows, rowToGrant)
	if pg.NoRows(err) {
		return grant{}, noGrant(ref.Account)
	}
	if err != nil {
		return grant{}, fmt.Errorf("read the grant of account %s: %w", ref.Account, err)
	}
	g.read = began
	g.bound(t.cfg.Lease)
	return g, nil
}

func rowToGrant(row pgx.CollectableRow) (grant, error) {
	var g grant
	err := row.Scan(&g.Provider, &g.State, &g.Reason, &g.Version, &g.AccessSealed, &g.AccessKeyVersion, &g.RefreshSealed, &g.RefreshKeyVersion,
		&g.Doubtful, &g.Failures, &g.LastError, &g.AttemptID, &g.AgeS, &g.LeftS, &g.DueS, &g.LeaseS, &g.RetryS)
	return g, err
}

// open begins an attempt: look, again, under the row's lock, decides whether there is
// still a need. The attempt is committed, and the lock gone, before anything is sent.
// ok is false where another instance's attempt is open, or look said no.
func (t postgres) open(ctx context.Context, ref Ref, kind string, look func(*grant) bool) (g grant, a attempt, ok bool, err error) {
	err = t.in(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		g, a, ok, err = t.openIn(ctx, tx, ref, kind, look)
		return err
	})
	return g, a, ok && err == nil, err
}

func (t postgres) openIn(ctx context.Context, tx pgx.Tx, ref Ref, kind string, look func(*grant) bool) (g grant, a attempt, ok bool, err error) {
	a = attempt{ref: ref, id: uuid.Must(uuid.NewV7())}
	if g, err = t.selectGrant(ctx, tx, ref, "FOR UPDATE"); err != nil {
		return g, a, false, err
	}
	if g.stray { // who has it may be at work, and extends it then
		_, err := t.extendIn(ctx, tx, attempt{ref: ref, id: *g.AttemptID})
		return g, a, false, err
	}
	if g.leased() || !look(&g) {
		return g, a, false, nil
	}
	a.base, a.taken = g.Version, time.Now()
	if g.AttemptID != nil {
		// Whoever opened it is gone, and what they sent may have had its effect.
		p, err := t.cfg.Providers.Get(g.Provider)
		g.Doubtful = g.Doubtful || err != nil || p.Rotates
		if err := closeAttempt(ctx, tx, attempt{ref: ref, id: *g.AttemptID}, outcomeLost, nil); err != nil {
			return g, a, false, err
		}
	}
	return g, a, true, t.insertAttempt(ctx, tx, a, kind, &g)
}

// openRevocation marks the grant with the row locked since the attempt was opened: an
// answer that comes late is stored before, and is what is taken back, or not at all.
func (t postgres) openRevocation(ctx context.Context, who Who, ref Ref) (g grant, a attempt, ok bool, err error) {
	err = t.in(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if g, a, ok, err = t.openIn(ctx, tx, ref, kindRevoke, unrevoked); err != nil || !ok || g.State == Revoking {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE grants SET state = 'revoking', changed_at = clock_timestamp(), reason = 'it is being signed out'
			WHERE workspace_id = $1 AND account_id = $2`, ref.Workspace, ref.Account)
		if err != nil {
			return fmt.Errorf("mark account %s as signed out: %w", ref.Account, err)
		}
		return t.recordChange(ctx, tx, Event{Ref: ref, Who: who, Detail: signedOut})
	})
	return g, a, ok && err == nil, err
}

func (t postgres) insertAttempt(ctx context.Context, tx pgx.Tx, a attempt, kind string, g *grant) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO grant_attempts (workspace_id, id, account_id, kind, version, instance, started_at)
		VALUES (@workspace, @id, @account, @kind, @version, @instance, clock_timestamp())`, pg.Args{
		"workspace": a.ref.Workspace, "id": a.id, "account": a.ref.Account, "kind": kind, "version": a.base, "instance": t.cfg.Instance,
	})
	if err != nil {
		return fmt.Errorf("write an attempt: %w", err)
	}
	_, err = tx.Exec(ctx, `
		UPDATE grants SET attempt_id = @id, lease_until = clock_timestamp() + @lease::interval, doubtful = @doubtful
		WHERE workspace_id = @workspace AND account_id = @account`, pg.Args{
		"workspace": a.ref.Workspace, "account": a.ref.Account, "id": a.id, "lease": t.cfg.Lease, "doubtful": g.Doubtful,
	})
	if err != nil {
		return fmt.Errorf("take the lease: %w", err)
	}
	return nil
}

// extend keeps others away from an attempt that takes long. It reports whether the
// lease is still the attempt's own.
func (t postgres) extend(ctx context.Context, a attempt) (ours bool, err error) {
	err = t.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		ours, err = t.extendIn(ctx, tx, a)
		return err
	})
	return ours, err
}

func (t postgres) extendIn(ctx context.Context, tx pgx.Tx, a attempt) (ours bool, err error) {
	tag, err := tx.Exec(ctx, `
		UPDATE grants SET lease_until = clock_timestamp() + @lease::interval
		WHERE workspace_id = @workspace AND account_id = @account AND attempt_id = @id`,
		pg.Args{"workspace": a.ref.Workspace, "account": a.ref.Account, "id": a.id, "lease": t.cfg.Lease})
	return tag.RowsAffected() == 1, err
}

// closeAttempt writes an attempt's outcome. One that another instance has declared
// lost gets the true one.
func closeAttempt(ctx context.Context, tx pgx.Tx, a attempt, outcome string, f *failure) error {
	if f == nil {
		f = &failure{}
	}
	_, err := tx.Exec(ctx, `
		UPDATE grant_attempts SET outcome = @outcome, status = @status, code = @code, ended_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @id`, pg.Args{
		"workspace": a.ref.Workspace, "id": a.id, "outcome": outcome, "status": f.Status, "code": f.Code,
	})
	if err != nil {
		return fmt.Errorf("write the outcome of an attempt: %w", err)
	}
	return nil
}

const setTokens = `version = version + 1, state = 'active', changed_at = clock_timestamp(), reason = '', access_sealed = @access, access_key_version = @access_key,
	refresh_sealed = CASE WHEN @rotated THEN @refresh ELSE refresh_sealed END,
	refresh_key_version = CASE WHEN @rotated THEN @refresh_key ELSE refresh_key_version END,
	scope = CASE WHEN @scope = '' AND NOT @anew THEN scope ELSE @scope END,
	issued_at = clock_timestamp(), expires_at = clock_timestamp() + @life::interval, refresh_at = clock_timestamp() + @due::interval,
	attempt_id = NULL, lease_until = NULL, doubtful = false, failures = 0, retry_at = NULL, last_error = ''`

func (s *sealedTokens) args(ref Ref) pg.Args {
	args := pg.Args{
		"workspace": ref.Workspace, "account": ref.Account, "rotated": s.refresh != nil, "anew": false, "scope": s.scope, "life": s.life, "due": s.due,
	}
	set := func(field string, sealed *vault.Sealed) {
		args[field], args[field+"_key"] = []byte(nil), (*int)(nil)
		if sealed != nil {
			args[field], args[field+"_key"] = sealed.Bytes, &sealed.KeyVersion
		}
	}
	set("access", s.access)
	set("refresh", s.refresh)
	return args
}

// keep stores what an attempt brought, unless the grant has changed since the attempt
// began. An attempt that lost its lease may still store: what the server issued last
// is in its hands.
func (t postgres) keep(ctx context.Context, a attempt, p *Provider, s sealedTokens) (stored bool, err error) {
	err = t.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		args := s.args(a.ref)
		args["base"] = a.base
		tag, err := tx.Exec(ctx, `UPDATE grants SET `+setTokens+`
			WHERE workspace_id = @workspace AND account_id = @account AND version = @base AND state IN ('active', 'reauthorize')`, args)
		if err != nil {
			return fmt.Errorf("store renewed tokens: %w", err)
		}
		if stored = tag.RowsAffected() > 0; !stored {
			return closeAttempt(ctx, tx, a, outcomeSuperseded, nil)
		}
		if err := t.record(ctx, tx, Event{Ref: a.ref, Action: Refreshed, Provider: p.Account, Who: a.by}); err != nil {
			return err
		}
		return closeAttempt(ctx, tx, a, outcomeDone, nil)
	})
	return stored && err == nil, err
}

// fail ends an attempt that brought nothing. The grant is over only where the server
// said so of the very tokens that the row still holds.
func (t postgres) fail(ctx context.Context, a attempt, p *Provider, f *failure) error {
	outcome, over := verdict(p, f)
	return t.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		g, err := t.selectGrant(ctx, tx, a.ref, "FOR UPDATE")
		if err != nil {
			return err
		}
		switch {
		case g.Version != a.base || g.AttemptID == nil || *g.AttemptID != a.id:
			// Somebody else has taken over; theirs is what counts.
			return closeAttempt(ctx, tx, a, outcome, f)
		case over:
			_, err = tx.Exec(ctx, `
				UPDATE grants SET state = 'reauthorize', changed_at = clock_timestamp(), reason = @reason, attempt_id = NULL, lease_until = NULL, last_error = @error
				WHERE workspace_id = @workspace AND account_id = @account`,
				pg.Args{"workspace": a.ref.Workspace, "account": a.ref.Account, "reason": overBecause(p, &g), "error": f.Error()})
			if err == nil {
				err = t.record(ctx, tx, Event{Ref: a.ref, Action: Changed, Provider: p.Account, Detail: refusal(overBecause(p, &g))})
			}
		default:
			doubtful := g.Doubtful || p.Rotates && outcome == outcomeUnknown
			_, err = tx.Exec(ctx, `
				UPDATE grants SET attempt_id = NULL, lease_until = NULL, failures = failures + 1, doubtful = @doubtful,
					retry_at = clock_timestamp() + @pause::interval, last_error = @error
				WHERE workspace_id = @workspace AND account_id = @account`,
				pg.Args{"workspace": a.ref.Workspace, "account": a.ref.Account, "doubtful": doubtful, "pause": max(backoff(g.Failures, t.cfg.Rand()), f.After), "error": f.Error()})
		}
		if err != nil {
			return fmt.Errorf("write that a renewal failed: %w", err)
		}
		return closeAttempt(ctx, tx, a, outcome, f)
	})
}

// recordChange records a change of an account whose provider is still to be looked up.
func (t postgres) recordChange(ctx context.Context, tx pgx.Tx, ev Event) error {
	err := tx.QueryRow(ctx, `SELECT provider FROM accounts WHERE workspace_id = $1 AND id = $2`, ev.Workspace, ev.Account).Scan(&ev.Provider)
	if err != nil && !pg.NoRows(err) {
		return fmt.Errorf("read account %s: %w", ev.Account, err)
	}
	ev.Action = Changed
	return t.record(ctx, tx, ev)
}

// giveUp says that somebody must sign in again, unless the grant has changed.
func (t postgres) giveUp(ctx context.Context, ref Ref, version int64, reason string) error {
	return t.in(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE grants SET state = 'reauthorize', changed_at = clock_timestamp(), reason = @reason
			WHERE workspace_id = @workspace AND account_id = @account AND version = @version AND state = 'active'`,
			pg.Args{"workspace": ref.Workspace, "account": ref.Account, "version": version, "reason": reason})
		if err != nil {
			return fmt.Errorf("mark account %s for signing in again: %w", ref.Account, err)
		}
		if tag.RowsAffected() == 0 {
			return nil
		}
		return t.recordChange(ctx, tx, Event{Ref: ref, Detail: refusal(reason)})
	})
}

// admit stores what a login or an import brought.
func (t postgres) admit(ctx context.Context, who Who, p *Provider, l loginRow, s *sealedTokens) error {
	ref := Ref{who.Workspace, l.Account}
	return t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		ev := Event{Ref: ref, Action: Changed, Provider: p.Account, Who: who}
		if l.Again {
			ev.Detail = signedInAgain
			if err := replace(ctx, tx, ref, p, s); err != nil {
				return err
			}
			// What kept it from being used was about the former sign-in.
			if err := store.AsNew(ctx, tx, ref.Workspace, p.Account, ref.Account); err != nil {
				return err
			}
		} else {
			ev.Action = Created
			if err := insert(ctx, tx, ref, p, l.Label, s); err != nil {
				return err
			}
		}
		if l.Brought != nil {
			ev.Detail = l.Brought.Detail()
			if err := l.Brought.Write(ctx, tx, ref.Workspace, p.Account, ref.Account); err != nil {
				return err
			}
		}
		if l.ID != uuid.Nil {
			if err := t.finish(ctx, tx, who, p, &l); err != nil {
				return err
			}
		}
		return t.record(ctx, tx, ev)
	})
}

func insert(ctx context.Context, tx pgx.Tx, ref Ref, p *Provider, label string, s *sealedTokens) error {
	if err := store.Room(ctx, tx, ref.Workspace, p.Account); err != nil {
		return err
	}
	args := s.args(ref)
	args["provider"], args["profile"], args["label"] = p.Account, p.Profile, label
	args["key"] = args["access_key"]
	if s.access == nil {
		args["key"] = args["refresh_key"]
	}
	// Of the secret the account's row has nothing: it is the grant's.
	_, err := tx.Exec(ctx, `
		INSERT INTO accounts (workspace_id, id, provider, profile, label, key_version, sealed)
		VALUES (@workspace, @account, @provider, @profile, @label, @key, ''::bytea)`, args)
	if err != nil {
		return fmt.Errorf("insert account: %w", err)
	}
	args["provider"] = p.Name
	_, err = tx.Exec(ctx, `
		INSERT INTO grants (workspace_id, account_id, provider, access_sealed, access_key_version, refresh_sealed, refresh_key_version,
			scope, issued_at, expires_at, refresh_at)
		VALUES (@workspace, @account, @provider, @access, @access_key, @refresh, @refresh_key,
			@scope, clock_timestamp(), clock_timestamp() + @life::interval, clock_timestamp() + @due::interval)`, args)
	if err != nil {
		return fmt.Errorf("insert grant: %w", err)
	}
	return nil
}

func replace(ctx context.Context, tx pgx.Tx, ref Ref, p *Provider, s *sealedTokens) error {
	args := s.args(ref)
	args["rotated"], args["anew"] = true, true // the former refresh token and scope belong to the former sign-in
	args["provider"] = p.Name
	tag, err := tx.Exec(ctx, `UPDATE grants SET `+setTokens+`
		WHERE workspace_id = @workspace AND account_id = @account AND provider = @provider`, args)
	if err != nil {
		return fmt.Errorf("replace the tokens of account %s: %w", ref.Account, err)
	}
	if tag.RowsAffected() == 0 {
		return fault.New(fault.NotFound, "account %s is not there any more", ref.Account)
	}
	return nil
}

func (t postgres) statuses(ctx context.Context, ws id.Workspace) (map[id.Account]Status, error) {
	all := map[id.Account]Status{}
	err := t.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT account_id, provider, state, reason, last_error, version, scope, issued_at, expires_at, refresh_at,
				access_sealed, coalesce(access_key_version, 0), refresh_sealed, coalesce(refresh_key_version, 0)
			FROM grants WHERE workspace_id = $1`, ws)
		if err != nil {
			return err
		}
		var account id.Account
		var s Status
		_, err = pgx.ForEachRow(rows, []any{
			&account, &s.Provider, &s.State, &s.Reason, &s.LastError, &s.Version, &s.Scope, &s.IssuedAt, &s.ExpiresAt, &s.RefreshAt,
			&s.access.Bytes, &s.access.KeyVersion, &s.refresh.Bytes, &s.refresh.KeyVersion,
		}, func() error {
			s.Renewable = s.refresh.Bytes != nil
			all[account] = s
			s.ExpiresAt, s.RefreshAt = nil, nil
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read grants: %w", err)
	}
	return all, nil
}

// erase ends a revocation.
func (t postgres) erase(ctx context.Context, a attempt, r Revocation, f *failure) error {
	return t.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE grants SET state = 'revoked', changed_at = clock_timestamp(), reason = 'it was signed out', version = version + 1, attempt_id = NULL, lease_until = NULL,
				access_sealed = NULL, access_key_version = NULL, refresh_sealed = NULL, refresh_key_version = NULL, refresh_at = NULL
			WHERE workspace_id = $1 AND account_id = $2 AND version = $3 AND state = 'revoking'`, a.ref.Workspace, a.ref.Account, a.base)
		if err != nil {
			return fmt.Errorf("erase the tokens of account %s: %w", a.ref.Account, err)
		}
		if err := closeAttempt(ctx, tx, a, revoked(f), f); err != nil || tag.RowsAffected() == 0 {
			return err
		}
		return t.recordChange(ctx, tx, Event{Ref: a.ref, Who: a.by, Detail: r.detail()})
	})
}

// due looks at all workspaces, which is why it needs the system's claim. Who renews does
// not hurry, and takes the oldest of each provider first.
func (t postgres) due(ctx context.Context, providers []string, except []id.Account) ([]dueGrant, error) {
	var all []dueGrant
	err := t.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT provider, workspace, account FROM (
				SELECT provider, workspace_id AS workspace, account_id AS account, row_number() OVER (PARTITION BY provider ORDER BY refresh_at) AS nth
				FROM grants
				WHERE state = 'active' AND refresh_at <= now() AND refresh_sealed IS NOT NULL AND provider = ANY (@providers) AND account_id <> ALL (@except)
					AND (lease_until IS NULL OR lease_until < now() OR lease_until > now() + @stray::interval)
					AND (retry_at IS NULL OR retry_at <= now() OR retry_at > now() + @longest::interval)
			) AS d WHERE nth <= @most`, pg.Args{"providers": providers, "except": except, "most": dueAtOnce, "stray": stray(t.cfg.Lease), "longest": maxWait})
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[dueGrant])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for tokens that are due: %w", err)
	}
	return all, nil
}

// interrupted looks in all workspaces, which is why it needs the system's claim.
func (t postgres) interrupted(ctx context.Context, providers []string) ([]Ref, error) {
	var all []Ref
	err := t.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT workspace_id AS workspace, account_id AS account FROM grants
			WHERE state = 'revoking' AND provider = ANY (@providers) AND (lease_until IS NULL OR lease_until < now() OR lease_until > now() + @stray::interval)
			LIMIT @most`, pg.Args{"providers": providers, "most": resumeMost, "stray": stray(t.cfg.Lease)})
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Ref])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for sign-outs that were left half done: %w", err)
	}
	return all, nil
}

// changed returns what has changed a short while ago, in all workspaces, which is why
// it needs the system's claim.
func (t postgres) changed(ctx context.Context) (grants []change, all bool, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT workspace_id AS workspace, account_id AS account, version, state FROM grants WHERE changed_at > now() - $1::interval`, overlap).
		Query(pg.Collect(&grants))
	return grants, false, t.cfg.DB.ReadAsSystem(ctx, b)
}
