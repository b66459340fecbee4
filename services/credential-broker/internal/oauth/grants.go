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
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Ref names a grant: it belongs to an account.
type Ref struct {
	Workspace id.Workspace // zero for the operator's shared accounts
	Account   id.Account
}

func (r Ref) place(field string) vault.Place {
	return vault.Place{Workspace: r.Workspace, Account: r.Account, Field: field}
}

// The fields that tokens are sealed to.
const (
	accessField  = "access_token"
	refreshField = "refresh_token"
)

// State is what a grant is good for.
type State string

// The states.
const (
	Active      State = "active"
	Reauthorize State = "reauthorize" // somebody must sign in again
	Revoking    State = "revoking"    // of no use any more; the provider may not know yet
	Revoked     State = "revoked"
)

// The outcomes of an attempt. An open one has none.
const (
	outcomeDone       = "done"
	outcomeSuperseded = "superseded" // the grant had changed when the answer came
	outcomeRefused    = "refused"    // the grant is over
	outcomeFailed     = "failed"     // the server said no to the request, not to the grant
	outcomeUnsent     = "unsent"     // the server was not reached
	outcomeUnknown    = "unknown"    // sent, and no answer that says what became of it
	outcomeLost       = "lost"       // whoever sent it is gone
)

// grant is a row, with its times as what was left of them when it was read: of the
// database's clock nothing else is used.
type grant struct {
	Provider          string
	State             State
	Reason            string
	Version           int64
	AccessSealed      []byte
	AccessKeyVersion  *int
	RefreshSealed     []byte
	RefreshKeyVersion *int
	Doubtful          bool
	Failures          int
	LastError         string
	AttemptID         *uuid.UUID
	AgeS              float64  // since the tokens were issued
	LeftS             *float64 // until they expire; nil for never
	DueS              *float64 // until they should be renewed
	LeaseS            *float64 // of the attempt that is open
	RetryS            *float64

	read time.Time // on our clock, before the database was asked
}

// Times are measured with the clock, not as of the begin of a transaction that may
// have waited for a lock.
const grantColumns = `provider, state, reason, version, access_sealed, access_key_version, refresh_sealed, refresh_key_version,
	doubtful, failures, last_error, attempt_id,
	extract(epoch FROM clock_timestamp() - issued_at)::float8 AS age_s, extract(epoch FROM expires_at - clock_timestamp())::float8 AS left_s,
	extract(epoch FROM refresh_at - clock_timestamp())::float8 AS due_s, extract(epoch FROM lease_until - clock_timestamp())::float8 AS lease_s,
	extract(epoch FROM retry_at - clock_timestamp())::float8 AS retry_s`

func (g *grant) access() vault.Sealed  { return sealedOf(g.AccessSealed, g.AccessKeyVersion) }
func (g *grant) refresh() vault.Sealed { return sealedOf(g.RefreshSealed, g.RefreshKeyVersion) }

func sealedOf(bytes []byte, version *int) vault.Sealed {
	if version == nil {
		return vault.Sealed{}
	}
	return vault.Sealed{KeyVersion: *version, Bytes: bytes}
}

// margin is how long before its expiry an access token is not sent any more.
func (g *grant) margin() float64 { return min(30, (g.AgeS+*g.LeftS)/10) }

// alive reports whether the access token can still be sent.
func (g *grant) alive() bool {
	return g.AccessKeyVersion != nil && (g.LeftS == nil || *g.LeftS > g.margin())
}

func (g *grant) due() bool    { return g.DueS != nil && *g.DueS <= 0 }
func (g *grant) leased() bool { return g.AttemptID != nil && g.LeaseS != nil && *g.LeaseS > 0 }

// pause returns for how long no attempt is made after one that failed.
func (g *grant) pause() time.Duration {
	if g.RetryS == nil || *g.RetryS <= 0 {
		return 0
	}
	return duration(*g.RetryS)
}

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// in runs fn under the grant's workspace's claim. The operator's rows have no claim
// of their own and need the system's.
func (k *Keeper) in(ctx context.Context, ws id.Workspace, fn func(context.Context, pgx.Tx) error) error {
	if id.IsZero(ws) {
		return k.cfg.DB.AsSystem(ctx, fn)
	}
	return k.cfg.DB.InWorkspace(ctx, ws, fn)
}

// read reads a grant. An account without one is a NotFound fault.
func (k *Keeper) read(ctx context.Context, ref Ref) (g grant, err error) {
	err = k.in(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		g, err = selectGrant(ctx, tx, ref, "")
		return err
	})
	return g, err
}

func selectGrant(ctx context.Context, tx pgx.Tx, ref Ref, lock string) (grant, error) {
	began := time.Now()
	rows, err := tx.Query(ctx, `SELECT `+grantColumns+` FROM grants WHERE workspace_id = $1 AND account_id = $2 `+lock, ref.Workspace, ref.Account)
	if err != nil {
		return grant{}, fmt.Errorf("read the grant of account %s: %w", ref.Account, err)
	}
	g, err := pgx.CollectExactlyOneRow(rows, rowToGrant)
	if pg.NoRows(err) {
		return grant{}, fault.Coded(fault.NotFound, "ACCOUNT_NO_GRANT", "account %s is not one that somebody signed in to", ref.Account)
	}
	if err != nil {
		return grant{}, fmt.Errorf("read the grant of account %s: %w", ref.Account, err)
	}
	g.read = began
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
func (k *Keeper) open(ctx context.Context, ref Ref, kind string, look func(*grant) bool) (g grant, a attempt, ok bool, err error) {
	a = attempt{ref: ref, id: uuid.Must(uuid.NewV7())}
	err = k.in(ctx, ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if g, err = selectGrant(ctx, tx, ref, "FOR UPDATE"); err != nil {
			return err
		}
		if ok = !g.leased() && look(&g); !ok {
			return nil
		}
		a.base, a.taken = g.Version, time.Now()
		if g.AttemptID != nil {
			// Whoever opened it is gone, and what they sent may have had its effect.
			p, err := k.cfg.Providers.Get(g.Provider)
			g.Doubtful = g.Doubtful || err != nil || p.Rotates
			if err := closeAttempt(ctx, tx, attempt{ref: ref, id: *g.AttemptID}, outcomeLost, nil); err != nil {
				return err
			}
		}
		return k.insertAttempt(ctx, tx, a, kind, &g)
	})
	return g, a, ok && err == nil, err
}

// attempt is one that this instance has open.
type attempt struct {
	ref   Ref
	id    uuid.UUID
	base  int64     // the version of the grant that it began with
	taken time.Time // on our clock, not later than the lease began
}

func (k *Keeper) insertAttempt(ctx context.Context, tx pgx.Tx, a attempt, kind string, g *grant) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO grant_attempts (workspace_id, id, account_id, kind, version, instance, started_at)
		VALUES (@workspace, @id, @account, @kind, @version, @instance, clock_timestamp())`, pg.Args{
		"workspace": a.ref.Workspace, "id": a.id, "account": a.ref.Account, "kind": kind, "version": a.base, "instance": k.cfg.Instance,
	})
	if err != nil {
		return fmt.Errorf("write an attempt: %w", err)
	}
	_, err = tx.Exec(ctx, `
		UPDATE grants SET attempt_id = @id, lease_until = clock_timestamp() + @lease::interval, doubtful = @doubtful
		WHERE workspace_id = @workspace AND account_id = @account`, pg.Args{
		"workspace": a.ref.Workspace, "account": a.ref.Account, "id": a.id, "lease": k.cfg.Lease, "doubtful": g.Doubtful,
	})
	if err != nil {
		return fmt.Errorf("take the lease: %w", err)
	}
	return nil
}

// extend keeps others away from an attempt that takes long. It reports whether the
// lease is still the attempt's own.
func (k *Keeper) extend(ctx context.Context, a attempt) (ours bool, err error) {
	err = k.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE grants SET lease_until = clock_timestamp() + @lease::interval
			WHERE workspace_id = @workspace AND account_id = @account AND attempt_id = @id`,
			pg.Args{"workspace": a.ref.Workspace, "account": a.ref.Account, "id": a.id, "lease": k.cfg.Lease})
		ours = tag.RowsAffected() == 1
		return err
	})
	return ours, err
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

// sealedTokens are tokens as they are stored.
type sealedTokens struct {
	access  *vault.Sealed // nil where only a refresh token is known
	refresh *vault.Sealed // nil where the former one stays
	// The rest of their lives, as of now; nil for ever.
	life, due *time.Duration
	scope     string
}

func (k *Keeper) seal(ctx context.Context, ref Ref, p *Provider, t issued, taken time.Duration) (s sealedTokens, err error) {
	if s.access, err = k.sealOne(ctx, ref.place(accessField), t.Access); err != nil {
		return s, err
	}
	if s.refresh, err = k.sealOne(ctx, ref.place(refreshField), t.Refresh); err != nil {
		return s, err
	}
	s.scope = t.Scope
	s.life, s.due = k.schedule(p, t, taken)
	return s, nil
}

func (k *Keeper) sealOne(ctx context.Context, at vault.Place, secret vault.Secret) (*vault.Sealed, error) {
	if secret.IsZero() {
		return nil, nil
	}
	sealed, err := k.cfg.Vault.Seal(ctx, at, secret)
	return &sealed, err
}

// schedule returns how long tokens live from now on, when it took a while to get and
// to store them, and when they should be renewed: somewhat before, each grant at a
// moment of its own, and long before a refresh token dies of not being used.
func (k *Keeper) schedule(p *Provider, t issued, taken time.Duration) (life, due *time.Duration) {
	soonest := func(d time.Duration) {
		if due == nil || d < *due {
			due = &d
		}
	}
	jitter := func(d time.Duration) time.Duration { return time.Duration(k.cfg.Rand() * float64(d)) }
	if t.Access.IsZero() {
		soonest(0)
	}
	if t.Life > 0 {
		left := max(t.Life-taken, 0)
		life = &left
		ahead := min(p.Ahead, t.Life/3)
		soonest(max(left-ahead-jitter(ahead/2), 0))
	}
	idle := t.RefreshLife
	if p.Idle > 0 && (idle == 0 || p.Idle < idle) {
		idle = p.Idle
	}
	if idle > 0 {
		soonest(idle/2 - jitter(idle/10))
	}
	return life, due
}

const setTokens = `version = version + 1, state = 'active', changed_at = clock_timestamp(), reason = '', access_sealed = @access, access_key_version = @access_key,
	refresh_sealed = CASE WHEN @rotated THEN @refresh ELSE refresh_sealed END,
	refresh_key_version = CASE WHEN @rotated THEN @refresh_key ELSE refresh_key_version END,
	scope = CASE WHEN @scope = '' THEN scope ELSE @scope END,
	issued_at = clock_timestamp(), expires_at = clock_timestamp() + @life::interval, refresh_at = clock_timestamp() + @due::interval,
	attempt_id = NULL, lease_until = NULL, doubtful = false, failures = 0, retry_at = NULL, last_error = ''`

func (s *sealedTokens) args(ref Ref) pg.Args {
	args := pg.Args{
		"workspace": ref.Workspace, "account": ref.Account, "rotated": s.refresh != nil, "scope": s.scope, "life": s.life, "due": s.due,
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
func (k *Keeper) keep(ctx context.Context, a attempt, p *Provider, s sealedTokens) error {
	return k.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		args := s.args(a.ref)
		args["base"] = a.base
		tag, err := tx.Exec(ctx, `UPDATE grants SET `+setTokens+`
			WHERE workspace_id = @workspace AND account_id = @account AND version = @base AND state IN ('active', 'reauthorize')`, args)
		if err != nil {
			return fmt.Errorf("store renewed tokens: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return closeAttempt(ctx, tx, a, outcomeSuperseded, nil)
		}
		if err := k.record(ctx, tx, Event{Ref: a.ref, Action: Refreshed, Provider: p.Account}); err != nil {
			return err
		}
		return closeAttempt(ctx, tx, a, outcomeDone, nil)
	})
}

// fail ends an attempt that brought nothing. The grant is over only where the server
// said so of the very tokens that the row still holds.
func (k *Keeper) fail(ctx context.Context, a attempt, p *Provider, f *failure) error {
	outcome, over := verdict(p, f)
	return k.in(ctx, a.ref.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		g, err := selectGrant(ctx, tx, a.ref, "FOR UPDATE")
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
				err = k.record(ctx, tx, Event{Ref: a.ref, Action: Changed, Provider: p.Account})
			}
		default:
			doubtful := g.Doubtful || p.Rotates && outcome == outcomeUnknown
			_, err = tx.Exec(ctx, `
				UPDATE grants SET attempt_id = NULL, lease_until = NULL, failures = failures + 1, doubtful = @doubtful,
					retry_at = clock_timestamp() + @pause::interval, last_error = @error
				WHERE workspace_id = @workspace AND account_id = @account`,
				pg.Args{"workspace": a.ref.Workspace, "account": a.ref.Account, "doubtful": doubtful, "pause": max(k.backoff(g.Failures), f.After), "error": f.Error()})
		}
		if err != nil {
			return fmt.Errorf("write that a renewal failed: %w", err)
		}
		return closeAttempt(ctx, tx, a, outcome, f)
	})
}

// verdict says what a failure means for the attempt, and whether the grant is over.
func verdict(p *Provider, f *failure) (outcome string, over bool) {
	switch {
	case f.Answered && p.void(f.Code):
		return outcomeRefused, true
	case f.Answered:
		return outcomeFailed, false
	case f.Sent:
		return outcomeUnknown, false
	}
	return outcomeUnsent, false
}

func overBecause(p *Provider, g *grant) string {
	if g.Doubtful {
		return fmt.Sprintf("the answer to an earlier renewal was lost, and %s does not take the former token any more", p.Name)
	}
	return fmt.Sprintf("%s does not accept the sign-in any more: it was withdrawn, or has expired", p.Name)
}

const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// backoff returns how long to wait after the nth failure in a row, from half of a
// doubling time up.
func (k *Keeper) backoff(n int) time.Duration {
	d := min(firstPause<<min(n, 20), lastPause)
	return d/2 + time.Duration(k.cfg.Rand()*float64(d/2))
}
