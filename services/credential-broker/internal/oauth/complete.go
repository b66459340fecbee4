package oauth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const maxPasted = 8 << 10

// Answer is what came back from the provider: of a browser the state and the code or
// the error; pasted text is the Code, whole, with or without the state behind a #.
type Answer struct {
	// Login may be zero where State is there.
	Login              uuid.UUID
	State, Code, Error string
	// Provider is what the login must be to; empty for any.
	Provider string
	// Purpose is what the login must be for; ForAccount when empty.
	Purpose Purpose
	// May is asked, before the code is sent, whether who acts may still do this with the
	// account that the login is for; nil for yes.
	May func(ctx context.Context, account id.Account) error
}

// wanted says which of somebody's logins is meant.
type wanted struct {
	login    uuid.UUID // zero for any with the state
	state    string    // empty for any with the id
	device   bool
	provider string // empty for any
	purpose  Purpose
}

// Complete ends a login with what the provider answered, and returns the account. The
// provider is asked once for each login: whoever began it gets the same answer again, and
// who asks while another call does waits for it. What fails without the provider having
// refused anything (Unavailable) can be repeated.
func (k *Keeper) Complete(ctx context.Context, who Who, a Answer) (Ref, error) {
	if err := a.check(); err != nil {
		return Ref{}, err
	}
	row, err := k.turn(ctx, who, wanted{login: a.Login, state: a.State, provider: a.Provider, purpose: a.Purpose})
	if err != nil {
		return Ref{}, err
	}
	if row.Ended {
		return row.outcome(who)
	}
	// The code is good once: what the provider answers counts, though who asked may be gone.
	ctx = context.WithoutCancel(ctx)
	if err := k.exchange(ctx, who, row, a); err != nil {
		k.settle(ctx, who, row, err)
		return Ref{}, err
	}
	return Ref{who.Workspace, row.Account}, nil
}

// check refuses what cannot be an answer, and takes pasted text apart.
func (a *Answer) check() error {
	if len(a.Code)+len(a.State)+len(a.Error) > maxPasted {
		return fault.New(fault.Invalid, "code: it is longer than %d bytes: paste what the provider showed, and nothing else", maxPasted)
	}
	a.Code = strings.TrimSpace(a.Code)
	if code, state, ok := strings.Cut(a.Code, "#"); ok {
		if a.State != "" && a.State != state {
			return errStrange
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

// turnWait is how long a login is waited for that somebody else works on, who may be dead.
const turnWait = 10 * time.Second

// turn returns a login when nobody else works on it, or when it has ended.
func (k *Keeper) turn(ctx context.Context, who Who, w wanted) (loginRow, error) {
	ctx, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	for look := firstLook; ; look = min(2*look, lastLook) {
		row, wait, err := k.tables.turn(ctx, who, w)
		if err != nil || wait <= 0 {
			return row, err
		}
		if err := sleep(ctx, min(look, wait)); err != nil {
			return row, &fault.Error{
				Kind: fault.Unavailable, RetryAfter: turnWait, Err: err,
				Message: "this sign-in is being completed: try again in a moment",
			}
		}
	}
}

// exchange turns the code into tokens and stores them.
func (k *Keeper) exchange(ctx context.Context, who Who, row loginRow, a Answer) error {
	p, err := k.cfg.Providers.Get(row.Provider)
	if err != nil {
		return err
	}
	if a.Error != "" {
		return declined(p, clean(a.Error))
	}
	if a.May != nil {
		if err := a.May(ctx, row.Account); err != nil {
			return err
		}
	}
	if err := k.tables.canRecord(); err != nil {
		return err
	}
	verifier, err := k.cfg.Vault.Open(ctx, row.place(who), row.sealed())
	if err != nil {
		return err
	}
	sealer, err := k.cfg.Vault.Sealer(ctx, who.Workspace) // the code is good once
	if err != nil {
		return err
	}
	params := parameters{"grant_type": "authorization_code", "code": a.Code, "redirect_uri": row.Redirect, "code_verifier": verifier.Reveal()}
	if p.SendState && a.State != "" {
		params["state"] = a.State
	}
	maps.Copy(params, p.TokenParams)
	object, err := k.post(ctx, p, p.Token, params)
	var t issued
	if err == nil {
		t, err = tokens(object)
	}
	if err != nil {
		return exchangeFault(p, err)
	}
	row.Purpose = a.Purpose // a row of the version before does not say
	return k.bring(ctx, who, p, row, sealer, t)
}

// bring stores the tokens of a login. Where they are refused, because somebody else was
// first (the same person in another window, too) or for want of room, the provider has a
// grant that nobody has here. It is not revoked: at providers where a grant is of a person
// and a client, as Google's are, that would end the one of whoever was first. It is logged,
// and ends at the provider when it is not used, or when the person takes it back there.
func (k *Keeper) bring(ctx context.Context, who Who, p *Provider, row loginRow, sealer vault.Sealer, t issued) error {
	err := k.admit(ctx, who, p, row, sealer, t)
	if err != nil {
		k.cfg.Log.InfoContext(ctx, "tokens of a sign-in are not kept: the grant is left with the provider",
			"login", row.ID, "provider", p.Name, "workspace", who.Workspace, "member", who.Member, "error", err)
	}
	return err
}

// turn is how long somebody works on a login at most: if they have not said what became of
// it by then, they are gone.
func (c *Config) turn() time.Duration { return c.PostTimeout + c.Lease }

// settle writes what an error means for a login: a refusal ends it, and after anything
// else it can be tried again. If that cannot be written it can be later.
func (k *Keeper) settle(ctx context.Context, who Who, row loginRow, err error) {
	var wrote error
	if f := fault.From(err); f.Kind == fault.Conflict {
		wrote = k.tables.end(ctx, who, &row, f)
	} else {
		wrote = k.tables.postpone(ctx, who, &row, row.IntervalS, time.Duration(row.IntervalS)*time.Second)
	}
	if wrote != nil {
		k.cfg.Log.WarnContext(ctx, "what became of a login is not written", "login", row.ID, "error", wrote)
	}
}

// outcome is what became of a login that has ended.
func (l *loginRow) outcome(who Who) (Ref, error) {
	if l.Reason != "" {
		return Ref{}, fault.Coded(fault.Conflict, l.Code, "%s", l.Reason)
	}
	return Ref{who.Workspace, l.Account}, nil
}

// errStrange tells nothing of whether somebody else's login would have fitted.
var errStrange = fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "this sign-in is not one that you have open: it has expired, or what it was for has changed since; start again")

// Meanwhile is the fault of whoever connects a provider that has been connected since they
// began, be it by themselves.
func Meanwhile(p *Provider, themselves bool) error {
	if themselves {
		return fault.Coded(fault.Conflict, "CONNECTED_MEANWHILE", "%s was connected by you meanwhile, in another window", p.Title)
	}
	return fault.Coded(fault.Conflict, "CONNECTED_MEANWHILE", "%s was connected by somebody else meanwhile", p.Title)
}

func declined(p *Provider, code string) error {
	if code == "access_denied" {
		return fault.Coded(fault.Conflict, "LOGIN_DECLINED", "the sign-in to %s was declined", p.Name)
	}
	return fault.Coded(fault.Conflict, "LOGIN_FAILED", "%s refused the sign-in (%s): start again", p.Name, code)
}

// exchangeFault tells a refusal, after which there is nothing to repeat, from what passes.
func exchangeFault(p *Provider, err error) error {
	f, ok := errors.AsType[*failure](err)
	switch {
	case !ok:
		return err
	case f.Answered && p.void(f.Code):
		return fault.Coded(fault.Conflict, "LOGIN_FAILED", "%s does not take the code: it has expired, was used, or was not copied whole; start again", p.Name)
	case f.Answered && !f.passes():
		return fault.Wrap(err, fault.Conflict, fmt.Sprintf("%s refused the sign-in: %v; the operator should look at the client's registration", p.Name, f))
	}
	away := fault.Wrap(err, fault.Unavailable, fmt.Sprintf("signing in to %s did not work: %v; try again", p.Name, f))
	away.RetryAfter = f.After
	return away
}

// passes reports whether the server has only put the request off.
func (f *failure) passes() bool {
	return f.Status == http.StatusTooManyRequests || f.Code == "temporarily_unavailable"
}
