package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	// tokenWait bounds how long one request waits for access tokens, of all accounts
	// together, or again if others were added to the only one meanwhile. Renewals go on
	// without it.
	tokenWait = 20 * time.Second
	// tokenGrace is how long it waits for one account's token before it tries others.
	tokenGrace = 500 * time.Millisecond
	// How long an account is passed over: if its token takes longer than that, about as long
	// as a slow renewal; if somebody has to sign in again, which ends it (store.Tx.ResetHealth); if it
	// was removed, until the next poll finds that.
	tokenLater   = 30 * time.Second
	signInLater  = time.Minute
	removedLater = time.Second
)

// ErrNone is returned by Select when the workspace has no account for the provider, or for its
// server if the request names one, wherever one could come from.
var ErrNone = errors.New("no account for this provider")

// errOther marks an account that cannot be used while another one may.
var errOther = errors.New("this account cannot be used")

// Tokens gives the access tokens of accounts that somebody signed in to; oauth.Keeper does.
// It is called for each request, with the account that was chosen.
type Tokens interface {
	Token(ctx context.Context, of oauth.Ref) (oauth.Token, error)
	Rejected(ctx context.Context, of oauth.Ref, version int64) (oauth.Token, error)
}

// Select returns an account that the request has not tried. It is to be reported on, once.
// Errors are ErrNone, ErrExhausted (mostly as an *Exhausted), or a fault that says why no
// account can be used now.
func (s *Set) Select(ctx context.Context, r Request) (Account, error) {
	e, err := s.accounts(ctx, r.Actor.Workspace, r.Provider)
	if err != nil {
		return Account{}, err
	}
	a, stale, err := s.selectFrom(ctx, r, e)
	if !stale {
		return a, err
	}
	limited, cancel := context.WithTimeout(ctx, staleTimeout)
	defer cancel()
	if _, err = s.read(limited, poolKey{Workspace: e.owner.workspace, Provider: e.owner.provider}); err != nil {
		return Account{}, err
	}
	if e, err = s.accounts(limited, r.Actor.Workspace, r.Provider); err != nil {
		return Account{}, err
	}
	a, _, err = s.selectFrom(ctx, r, e)
	return a, err
}

// selectFrom selects one of a pool's accounts, in two rounds: accounts whose token takes long
// are left for the second round. If none is left, stale reports whether one was removed since
// the pool was read.
func (s *Set) selectFrom(ctx context.Context, r Request, e entry) (a Account, stale bool, err error) {
	switch {
	case !slices.ContainsFunc(e.accounts, func(a Account) bool { return a.isAt(r.Server) }):
		return Account{}, false, ErrNone
	case e.pool == nil && slices.Contains(r.Tried, e.accounts[0].ID):
		return Account{}, false, ErrExhausted
	case e.pool == nil: // the simulator's
		return e.accounts[0], false, nil
	}
	q := Query{Family: family(e.accounts[0].Profile, r.Provider, r.Model), Session: r.Actor.Session, Tried: r.Tried, Denied: r.Denied}
	if isText(r.Model) { // it is announced and stored
		q.Model = r.Model
	}
	w := wait{end: time.Now().Add(tokenWait), alone: len(e.accounts) == 1}
	for {
		k, err := e.pool.Pick(time.Now(), q)
		if err != nil {
			if w.again() {
				q.Tried = r.Tried
				continue
			}
			return Account{}, w.removed, whyNone(r, e, q.Tried, w.last, err)
		}
		if w.alone && k.Account != e.accounts[0].ID { // it was added meanwhile
			w.alone, w.end = false, time.Now().Add(tokenWait)
		}
		a, err := s.prepare(ctx, r, e, &k, &w)
		if !errors.Is(err, errOther) {
			if a.Origin == Simulator { // which keeps what it is told by secret
				a.Secret = vault.NewSecret(simulated + "-" + r.Actor.Workspace.String())
			}
			return a, false, err
		}
		q.Tried = append(slices.Clip(q.Tried), k.Account)
	}
}

// wait is how long one request waits for tokens.
type wait struct {
	end     time.Time
	alone   bool  // there is only one account
	slow    int   // accounts whose token did not come within the grace
	second  bool  // round
	last    error // of a token
	removed bool  // an account was removed since the pool was read
}

// next returns how long to wait for the next account's token.
func (w *wait) next() time.Duration {
	left := time.Until(w.end)
	switch {
	case w.alone:
	case !w.second:
		return min(tokenGrace, left)
	case w.slow > 1:
		return left / 2 // so that something is left for the others
	}
	return left
}

// again begins the second round, if there is one.
func (w *wait) again() bool {
	if w.second || w.alone || w.slow == 0 || time.Until(w.end) <= 0 {
		return false
	}
	w.second = true
	return true
}

// failed notes why an account has no token after so long, and returns for how long it is
// passed over.
func (w *wait) failed(err error, waited time.Duration, provider string) time.Duration {
	w.last = err
	f := fault.From(err)
	switch {
	case f.Kind == fault.NotFound:
		w.removed = true
		w.last = fault.New(fault.Unavailable, "the accounts for %s are being changed: try again in a moment", provider)
		return removedLater
	case f.Kind == fault.Conflict:
		return signInLater
	case errors.Is(err, context.DeadlineExceeded) && waited < tokenGrace:
		return 0 // the other accounts left it no time
	case errors.Is(err, context.DeadlineExceeded):
		w.slow++
		return tokenLater
	}
	return max(f.RetryAfter, time.Second)
}

// prepare makes the account of a ticket ready to use, or settles the ticket. The error is
// errOther if another account may do.
func (s *Set) prepare(ctx context.Context, r Request, e entry, k *Ticket, w *wait) (Account, error) {
	unused := Outcome{Reason: Cancelled, Unsent: true}
	a := *k.account
	a.pool, a.owner, a.ticket = e.pool, e.owner, k
	if slices.Contains(r.Away, a.Server()) || !a.isAt(r.Server) {
		e.pool.Report(time.Now(), *k, unused)
		return Account{}, errOther
	}
	if !id.IsZero(a.Grant.Account) {
		most := w.next()
		limited, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		t, err := s.cfg.Tokens.Token(limited, a.Grant)
		switch {
		case err == nil:
			a.Secret, a.tokens, a.version = t.Secret, s.cfg.Tokens, t.Version
		case ctx.Err() != nil: // the caller went away
			e.pool.Report(time.Now(), *k, unused)
			return Account{}, err
		default:
			e.pool.Report(time.Now(), *k, Outcome{Reason: NoToken, Unsent: true, Later: w.failed(err, most, r.Provider)})
			return Account{}, errOther
		}
	}
	var err error
	if a.use, err = s.note(r, a); err != nil {
		e.pool.Report(time.Now(), *k, unused)
		return Account{}, err
	}
	return a, nil
}

// whyNone says why a pool has no account for a request. For a first attempt that has just
// found all accounts without a token, that is what the last one lacks.
func whyNone(r Request, e entry, tried []id.Account, last, exhausted error) error {
	if len(r.Tried) > 0 || last == nil {
		return exhausted
	}
	if slices.ContainsFunc(e.accounts, func(a Account) bool { return !slices.Contains(tried, a.ID) }) {
		return exhausted
	}
	if fault.KindOf(last) == fault.Deadline {
		return fault.Wrap(last, fault.Unavailable, "the access token could not be renewed in time: try again in a moment")
	}
	return last
}

// Renewed is called once after a 401. It returns the account with another access token,
// with which the request is sent again and the 401 counts for nothing; or false if the 401
// is the account's.
func (a Account) Renewed(ctx context.Context) (Account, bool) {
	if a.tokens == nil {
		return a, false
	}
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	t, err := a.tokens.Rejected(ctx, a.Grant, a.version)
	if err != nil {
		return a, false
	}
	a.Secret, a.version = t.Secret, t.Version
	return a, true
}
