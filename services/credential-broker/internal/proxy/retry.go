package proxy

import (
	"context"
	"errors"
	"net/http"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// maxDenials is how many accounts are tried if each lacks permission for what the request asks
// for.
const maxDenials = 5

// past is what a request has learned from its attempts.
type past struct {
	attempts    int
	tried       []id.Account
	denied      []id.Account // accounts without permission for what the request asks for
	unreachable []string     // servers, as pool.Account.Server names them
	resent      bool         // the current account was tried twice because there was no connection
	renewed     id.Account   // the account that was last tried with a new access token
}

// decision is what follows an attempt.
type decision int

const (
	deliver       decision = iota // give the caller the provider's answer
	giveUp                        // answer with an error of the proxy's own
	resend                        // the same account once more
	renewToken                    // the same account with a new access token
	switchAccount                 // another account
)

// outcome is what decides how to go on after an attempt.
type outcome struct {
	reason      pool.Reason // of the provider's answer
	failed      bool        // there is no answer that could be delivered
	unconnected bool        // no connection could be made, so that nothing was sent
	resent      bool        // this was the second attempt with the account
	elsewhere   bool        // the pool has accounts at other servers
	renewed     bool        // the access token was renewed for this request, or cannot be
	denials     int         // accounts that lacked permission, including this one; 0 if it did not
	noOther     bool        // the pool has no other account to offer
	waiting     int         // accounts of the pool, if all of them have to wait
}

// next decides what follows an attempt. The first matching row counts:
//
//	no connection, first time                 resend
//	no connection, accounts at other servers  switch account
//	no answer to deliver                      give up
//	authentication failed, token renewable    renew the token
//	not the account's fault                   deliver
//	permission refused maxDenials times       deliver
//	the account's fault                       switch account
//	no other account                          deliver
//	all of several accounts are waiting       give up, and say when to try again; but
//	                                          deliver if two or more refused permission:
//	                                          that is the request's own fault
func next(o outcome) decision {
	switch {
	case o.unconnected && !o.resent:
		return resend
	case o.unconnected && o.elsewhere && !o.noOther:
		return switchAccount
	case o.failed:
		return giveUp
	case o.reason == pool.AuthFailed && !o.renewed:
		return renewToken
	case !pool.Switches(o.reason), o.denials >= maxDenials:
		return deliver
	case !o.noOther:
		return switchAccount
	case o.waiting > 1 && o.denials < 2:
		return giveUp
	}
	return deliver
}

// settle acts on next's decision and reports whether to make another attempt.
func (x *exchange) settle(a *answer, r *refusal) (again bool) {
	o := x.outcomeOf(a, r)
	var exhausted *pool.Exhausted
	for {
		switch next(o) {
		case deliver:
			if exhausted != nil {
				a.addRetryAfter(exhausted.Back)
			}
			x.deliver(a)
			return false
		case giveUp:
			if r != nil {
				x.report(r.reason, r.unsent, a)
			} else {
				a.discard()
				r = x.exhausted(exhausted)
			}
			x.refuse(r)
			return false
		case resend:
			x.past.resent = true
			x.again(pool.Unreachable, x.p.cfg.Meter.Retried)
			return true
		case renewToken:
			// The token may have been replaced or revoked while the request was under way. A
			// new one costs the account nothing.
			if account, ok := x.account.Renewed(x.ctx); ok {
				a.discard()
				x.again(o.reason, x.p.cfg.Meter.Retried)
				x.account, x.past.renewed, x.past.resent = account, account.ID, false
				return true
			}
			o.renewed = true
		case switchAccount:
			// The pool is told of the failure before it chooses. The answer is kept until
			// another account is found.
			if o.failed {
				x.past.unreachable = append(x.past.unreachable, x.account.Server())
			}
			if o.denials > 0 {
				x.past.denied = append(x.past.denied, x.account.ID)
			}
			x.report(o.reason, o.unconnected, a)
			account, err := x.choose()
			if err == nil {
				x.again(o.reason, x.p.cfg.Meter.Switched)
				a.discard()
				x.account = account
				return true
			}
			o.noOther = true
			if exhausted, _ = errors.AsType[*pool.Exhausted](err); exhausted != nil {
				o.waiting = exhausted.Members
			}
		}
	}
}

func (x *exchange) outcomeOf(a *answer, r *refusal) outcome {
	o := outcome{resent: x.past.resent, renewed: x.past.renewed == x.account.ID, elsewhere: x.account.Elsewhere()}
	if r != nil {
		o.reason, o.failed = r.reason, true
		o.unconnected = r.unsent && r.outcome == outcomeUnreachable && !r.final
		return o
	}
	o.reason = a.reason
	if a.denied {
		o.denials = len(x.past.denied) + 1
	}
	return o
}

// choose asks the pool for an account that was not tried yet.
func (x *exchange) choose() (pool.Account, error) {
	a, err := x.p.cfg.Pool.Select(x.ctx, pool.Request{
		Actor: x.actor, Provider: x.provider, Server: x.r.Header.Get(serverHeader), Address: x.r.RemoteAddr, Model: x.model,
		Tried: x.past.tried, Denied: x.past.denied, Away: x.past.unreachable,
	})
	if err != nil {
		return pool.Account{}, err
	}
	x.past.tried = append(x.past.tried, a.ID)
	x.past.resent = false
	x.dialect, x.label = a.Profile.Dialect, x.p.cfg.Profiles.Label(x.provider)
	return a, nil
}

// report tells the pool once how an attempt went. The answer is nil if nothing was sent.
func (x *exchange) report(reason pool.Reason, unsent bool, a *answer) {
	out := pool.Outcome{Reason: reason, Unsent: unsent, Model: x.model, Tokens: x.tally.Sum()}
	if a != nil {
		if a.told {
			return
		}
		a.told = true
		out.Denied = a.denied
	}
	if a != nil && a.res != nil {
		h, now := a.res.Header, time.Now()
		out.Status, out.RetryAfter = a.res.StatusCode, pool.RetryAfter(h, now)
		// A reset time ends a rate limit, and a quota that answers 429. What other statuses
		// miss, such as money, does not come back at that time.
		if out.RetryAfter == 0 && (reason == pool.RateLimited || reason == pool.QuotaExhausted && out.Status == http.StatusTooManyRequests) {
			out.RetryAfter = x.account.Profile.Reset(h, now)
		}
		if reason == pool.OK {
			out.Ends = x.account.Profile.Lapses(h, now)
		}
		if out.RetryAfter > 0 {
			out.Raw = pool.RawWait(h, x.scrub)
		}
	}
	x.p.cfg.Pool.Report(context.WithoutCancel(x.ctx), x.account, out) // even if the caller has gone
}

// again counts and logs another attempt.
func (x *exchange) again(reason pool.Reason, count func(provider string, account id.Account, reason pool.Reason)) {
	count(x.label, x.account.ID, reason)
	x.p.cfg.Log.InfoContext(x.ctx, "answer discarded for another attempt", "provider", x.provider, "account", x.account.ID, "reason", string(reason))
}
