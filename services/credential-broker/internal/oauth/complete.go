package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const maxPasted = 8 << 10

// Answer is what came back from the provider. A browser brings the state and the code or the
// error; pasted text is the whole Code, with or without # and the state behind it.
type Answer struct {
	// Login may be zero if State is set.
	Login              uuid.UUID
	State, Code, Error string
	// Issuer is the iss parameter of the provider's redirect (RFC 9207), if it has one.
	Issuer string
	// Redirect is the path of the page that the provider redirected the browser to: all of it, or
	// its end where a proxy removes a prefix. It may be empty except at an MCP server, if there is
	// a Config.Document.
	Redirect string
	// Provider is the login's provider; empty for any.
	Provider string
	// Purpose is the login's purpose; ForAccount if empty.
	Purpose Purpose
	// May is asked, before the code is sent, whether the actor may still do this with the
	// account that the login is for; nil for yes.
	May func(ctx context.Context, account id.Account) error
}

// Complete ends a login with what the provider answered, and returns the account. The
// provider is asked once for each login: a call that is repeated gets the same answer again,
// and waits while another one is under way. A failure for which the provider has not refused
// anything (Unavailable) can be repeated.
func (k *Keeper) Complete(ctx context.Context, by identity.Actor, a Answer) (Ref, error) {
	if err := a.check(); err != nil {
		return Ref{}, err
	}
	l, err := k.awaitLogin(ctx, by, loginQuery{login: a.Login, state: a.State, provider: a.Provider, purpose: a.Purpose})
	if err != nil {
		return Ref{}, err
	}
	if l.EndedAt != nil {
		return outcome(by, &l)
	}
	// The code is good once: the provider's answer counts even if the caller is gone.
	ctx = context.WithoutCancel(ctx)
	if err := k.exchange(ctx, by, l, a); err != nil {
		k.recordFailure(ctx, by, &l, err)
		return Ref{}, err
	}
	return Ref{by.Workspace, l.Account}, nil
}

// check refuses what cannot be an answer, and splits pasted text.
func (a *Answer) check() error {
	if len(a.Code)+len(a.State)+len(a.Error)+len(a.Issuer)+len(a.Redirect) > maxPasted {
		return fault.New(fault.Invalid, "code: it is longer than %d bytes: paste what the provider showed, and nothing else", maxPasted)
	}
	a.Code = strings.TrimSpace(a.Code)
	if code, state, ok := strings.Cut(a.Code, "#"); ok {
		if a.State != "" && a.State != state {
			return errUnknownLogin
		}
		a.Code, a.State = code, state
	}
	if a.Code == "" && a.Error == "" {
		return fault.New(fault.Invalid, "code: it is empty: paste the code that the provider showed")
	}
	if a.State == "" && a.Login == uuid.Nil {
		return fault.New(fault.Invalid, "state: it is missing: paste the whole text that the provider showed")
	}
	if a.Purpose == "" {
		a.Purpose = ForAccount
	}
	return nil
}

// claimWait is how long to wait for a login that somebody else, who may be dead, has claimed.
const claimWait = 10 * time.Second

// awaitLogin claims a login as soon as nobody else has a claim on it, unless it has ended.
func (k *Keeper) awaitLogin(ctx context.Context, by identity.Actor, q loginQuery) (store.Login, error) {
	limited, cancel := context.WithTimeout(ctx, claimWait)
	defer cancel()
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		l, wait, err := k.claimLogin(limited, by, q)
		if err == nil && wait > 0 {
			err = sleep(limited, min(poll, wait))
		} else if err == nil || limited.Err() == nil {
			return l, err
		}
		if err != nil { // the wait is over, perhaps in the middle of a look
			return l, &fault.Error{
				Kind: fault.Unavailable, RetryAfter: claimWait, Err: err,
				Message: "this sign-in is being completed: try again in a moment",
			}
		}
	}
}

// exchange turns the code into tokens and stores them.
func (k *Keeper) exchange(ctx context.Context, by identity.Actor, l store.Login, a Answer) error {
	p, err := k.provider(l.Provider, l.Server)
	if err != nil {
		return err
	}
	if err := k.checkRedirect(p, &l, a.Redirect); err != nil {
		return err
	}
	if err := p.checkIssuer(a.Issuer); err != nil {
		return err
	}
	if a.Error != "" {
		return declined(p, clean(a.Error))
	}
	if a.May != nil {
		if err := a.May(ctx, l.Account); err != nil {
			return err
		}
	}
	verifier, sealer, err := k.openLogin(ctx, by, &l)
	if err != nil {
		return err
	}
	if p.server != nil {
		verifier, p.Client.Secret = splitSecrets(verifier)
	}
	params := parameters{"grant_type": "authorization_code", "code": a.Code, "redirect_uri": l.Redirect, "code_verifier": verifier.Reveal()}
	if p.SendState && a.State != "" {
		params["state"] = a.State
	}
	maps.Copy(params, p.TokenParams)
	object, err := k.post(ctx, p, p.Token, params)
	if err != nil {
		return exchangeFault(p, err)
	}
	l.Purpose = string(a.Purpose) // a row of the version before migration 00008 has none
	return k.storeLogin(ctx, by, p, l, sealer, object)
}

// openLogin decrypts a login's secret, and makes sure that what comes of it can be recorded
// and sealed: the code is good once.
func (k *Keeper) openLogin(ctx context.Context, by identity.Actor, l *store.Login) (secret vault.Secret, sealer vault.Sealer, err error) {
	if err = k.cfg.Store.CanRecord(); err != nil {
		return secret, sealer, err
	}
	if secret, err = k.cfg.Vault.Open(ctx, loginPlace(by, l), l.Sealed); err != nil {
		return secret, sealer, err
	}
	sealer, err = k.cfg.Vault.Sealer(ctx, by.Workspace)
	return secret, sealer, err
}

// storeLogin stores the tokens of a login. If they are refused, because another login was
// first (the same person's in another window, too) or because there is no room, the provider
// has a grant that is not used here. It is not revoked: at providers with one grant for a
// person and a client, such as Google, that would end the grant of the login that was first.
// It is logged, and ends at the provider when it is not used for long, or is withdrawn there.
func (k *Keeper) storeLogin(ctx context.Context, by identity.Actor, p *Provider, l store.Login, sealer vault.Sealer, object map[string]json.RawMessage) error {
	t, err := tokens(object)
	if err != nil {
		return exchangeFault(p, err)
	}
	err = k.admit(ctx, by, p, l, nil, sealer, t)
	if err != nil {
		k.cfg.Log.InfoContext(ctx, "tokens of a sign-in could not be stored: the grant stays valid at the provider",
			"login", l.ID, "provider", p.Name, "workspace", by.Workspace, "member", by.Member, "error", err)
	}
	return err
}

// recordFailure writes what an error means for a login: a refusal ends it, and after anything
// else it can be tried again. If that cannot be written, the claim ends by itself.
func (k *Keeper) recordFailure(ctx context.Context, by identity.Actor, l *store.Login, err error) {
	var unwritten error
	if f := fault.From(err); f.Kind == fault.Conflict {
		unwritten = k.failLogin(ctx, by, l, f)
	} else {
		unwritten = k.postpone(ctx, by, l, l.IntervalS, time.Duration(l.IntervalS)*time.Second)
	}
	if unwritten != nil {
		k.cfg.Log.WarnContext(ctx, "cannot record the outcome of a sign-in", "login", l.ID, "error", unwritten)
	}
}

// outcome is the outcome of a login that has ended.
func outcome(by identity.Actor, l *store.Login) (Ref, error) {
	if l.Reason != "" {
		return Ref{}, fault.Coded(fault.Conflict, l.Code, "%s", l.Reason)
	}
	return Ref{by.Workspace, l.Account}, nil
}

// errUnknownLogin does not tell whether a login of somebody else would have fitted.
var errUnknownLogin = fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "you have no such sign-in open: it has expired, or its account has changed since; start again")

// ConnectedMeanwhile is the fault of connecting a provider that has been connected since the
// login began, possibly by the same member.
func ConnectedMeanwhile(p *Provider, themselves bool) error {
	if themselves {
		return fault.Coded(fault.Conflict, "CONNECTED_MEANWHILE", "you have connected %s in another window in the meantime", p.Title)
	}
	return fault.Coded(fault.Conflict, "CONNECTED_MEANWHILE", "somebody else has connected %s in the meantime", p.Title)
}

func declined(p *Provider, code string) error {
	if code == "access_denied" {
		return fault.Coded(fault.Conflict, "LOGIN_DECLINED", "the sign-in to %s was declined", p.Name)
	}
	return fault.Coded(fault.Conflict, "LOGIN_FAILED", "%s refused the sign-in (%s): start again", p.Name, code)
}

// exchangeFault tells a refusal, which is final, from a failure after which the request can be
// repeated.
func exchangeFault(p *Provider, err error) error {
	f, ok := errors.AsType[*failure](err)
	switch {
	case !ok:
		return err
	case f.Answered && p.void(f.Code):
		return fault.Coded(fault.Conflict, "LOGIN_FAILED", "%s did not accept the code: it has expired, was already used, or is incomplete; start again", p.Name)
	case f.Answered && !f.temporary():
		return fault.Wrap(err, fault.Conflict, fmt.Sprintf("%s refused the sign-in: %v; the operator should check the client's registration", p.Name, f))
	}
	unavailable := fault.Wrap(err, fault.Unavailable, fmt.Sprintf("signing in to %s failed: %v; try again", p.Name, f))
	unavailable.RetryAfter = f.After
	return unavailable
}

// temporary reports whether the server only asks to repeat the request later.
func (f *failure) temporary() bool {
	return f.Status == http.StatusTooManyRequests || f.Code == "temporarily_unavailable"
}
