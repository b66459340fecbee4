package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

const (
	// tokenWait bounds how long one request waits for access tokens, of all accounts
	// together. Renewals go on without it.
	tokenWait = 20 * time.Second
	// tokenGrace is how long it waits for one account's before others are tried.
	tokenGrace = 500 * time.Millisecond
	// tokenLater is how long others go first then: about as long as a renewal takes that
	// takes long.
	tokenLater = 30 * time.Second
	// absent is how long others go before an account that was not read with the others yet:
	// the next look finds it.
	absent = time.Second
	// signInLater is how long others go first where somebody has to sign in again. Who does
	// ends it (store.AsNew).
	signInLater = time.Minute
)

// Select returns an account that the request has not tried. It is to be reported on,
// once. Select's errors are ErrNone, ErrExhausted (mostly as an *Exhausted), or a fault
// that says why accounts cannot be had now.
func (s *Set) Select(ctx context.Context, r Request) (Account, error) {
	e, err := s.accounts(ctx, r.Actor.Workspace, r.Provider)
	if err != nil {
		return Account{}, err
	}
	a, err := s.selectOf(ctx, r, e)
	if !errors.Is(err, errAbsent) {
		return a, err
	}
	limited, cancel := context.WithTimeout(ctx, staleTimeout)
	defer cancel()
	if e, err = s.read(limited, poolKey{Workspace: e.owner.workspace, Provider: e.owner.provider}); err == nil {
		err = e.err
	}
	if err != nil {
		return Account{}, err
	}
	if a, err = s.selectOf(ctx, r, e); errors.Is(err, errAbsent) {
		err = fault.New(fault.Unavailable, "the accounts for %s are being changed: try again in a moment", r.Provider)
	}
	return a, err
}

// errAbsent says that no account is left but some that the pool has and what was read of
// it has not: somebody has read it anew meanwhile.
var errAbsent = errors.New("the pool's accounts were read anew")

// selectOf chooses from a pool, in two rounds: where an account's token takes long, others
// are tried first; where none is left, those are waited for.
func (s *Set) selectOf(ctx context.Context, r Request, e entry) (Account, error) {
	switch {
	case len(e.accounts) == 0:
		return Account{}, ErrNone
	case e.pool == nil:
		return s.simulated(e.accounts[0], r)
	}
	ask := Query{Family: family(e.accounts[0].Profile, r.Provider, r.Model), Session: r.Actor.Session, Tried: r.Tried, Denied: r.Denied}
	if isText(r.Model) { // it is told to others, and stored
		ask.Model = r.Model
	}
	w := wait{end: time.Now().Add(tokenWait), alone: len(e.accounts) == 1}
	for {
		k, err := e.pool.Pick(time.Now(), ask)
		if err != nil {
			if w.again() {
				ask.Tried = r.Tried
				continue
			}
			if w.absent {
				return Account{}, errAbsent
			}
			return Account{}, whyNone(r, e, ask.Tried, w.last, err)
		}
		a, err := s.prepare(ctx, r, e, &k, &w)
		if !errors.Is(err, errOther) {
			return a, err
		}
		ask.Tried = append(slices.Clip(ask.Tried), k.Account)
	}
}

// wait is how long one request waits for tokens.
type wait struct {
	end    time.Time
	alone  bool // there is but one account
	slow   int  // accounts whose token did not come within the grace
	second bool // round
	absent bool // an account was not read with the others, or is gone since
	last   error
}

// of returns how long to wait for the next account's token.
func (w *wait) of() time.Duration {
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

// simulated returns the simulator's account, which is in no pool.
func (*Set) simulated(a Account, r Request) (Account, error) {
	if slices.Contains(r.Tried, a.ID) {
		return Account{}, ErrExhausted
	}
	return a, nil
}

// errOther marks an error after which another account may do.
var errOther = errors.New("this account cannot be used")

// prepare makes the account that was chosen ready to use, or settles its ticket. Its error
// is errOther where another account may do.
func (s *Set) prepare(ctx context.Context, r Request, e entry, k *Ticket, w *wait) (Account, error) {
	i, ok := e.index[k.Account]
	if !ok {
		w.absent = true
		e.pool.Report(time.Now(), *k, Outcome{Reason: Cancelled, Unsent: true, Later: absent})
		return Account{}, errOther
	}
	a := e.accounts[i]
	if slices.Contains(r.Away, a.Server()) {
		e.pool.Report(time.Now(), *k, Outcome{Reason: Cancelled, Unsent: true})
		return Account{}, errOther
	}
	k.Server = a.server
	a.pool, a.owner, a.ticket = e.pool, e.owner, k // before withToken, whose Renew hands them on
	a, err := withToken(ctx, s.cfg.Tokens, a, w.of())
	if err != nil && ctx.Err() != nil { // the caller went away
		e.pool.Report(time.Now(), *k, Outcome{Reason: Cancelled, Unsent: true})
		return Account{}, err
	}
	if err != nil {
		w.last = err
		e.pool.Report(time.Now(), *k, notReady(err, w))
		return Account{}, errOther
	}
	if a.use, err = s.note(r, a); err != nil {
		e.pool.Report(time.Now(), *k, Outcome{Reason: Cancelled, Unsent: true})
		return Account{}, err
	}
	return a, nil
}

// notReady is the outcome for an account that has no token that could be sent.
func notReady(err error, w *wait) Outcome {
	f := fault.From(err)
	switch {
	case f.Kind == fault.NotFound: // it was removed since the pool was read
		w.absent = true
		return Outcome{Reason: Cancelled, Unsent: true, Later: absent}
	case f.Kind == fault.Conflict: // somebody has to sign in again
		return Outcome{Reason: NoToken, Unsent: true, Later: signInLater}
	case errors.Is(err, context.DeadlineExceeded):
		w.slow++
		return Outcome{Reason: NoToken, Unsent: true, Later: tokenLater}
	}
	return Outcome{Reason: NoToken, Unsent: true, Later: max(f.RetryAfter, time.Second)}
}

// whyNone says why a pool has no account for a request: for its first attempt, what keeps
// the last account from having a token, where that was found out of all of them now.
func whyNone(r Request, e entry, tried []id.Account, last, exhausted error) error {
	if len(r.Tried) > 0 || last == nil {
		return exhausted
	}
	for i := range e.accounts {
		if !slices.Contains(tried, e.accounts[i].ID) {
			return exhausted
		}
	}
	if fault.KindOf(last) == fault.Deadline {
		return fault.Wrap(last, fault.Unavailable, "the access token could not be renewed in time: try again in a moment")
	}
	return last
}
