package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	deviceGrant     = "urn:ietf:params:oauth:grant-type:device_code"
	defaultInterval = 5 // seconds; RFC 8628, 3.2
	slowDown        = 5 // seconds more after slow_down; 3.5
	maxInterval     = 60
	maxDeviceLife   = time.Hour
)

// Polled is the result of a Poll: an account, or how long to wait.
type Polled struct {
	Done    bool
	Account Ref
	Wait    time.Duration
}

func (k *Keeper) startDevice(ctx context.Context, by identity.Actor, p *Provider, l store.Login) (Login, error) {
	if p.Device == "" {
		return Login{}, fault.New(fault.Invalid, "kind: %s does not offer device sign-in: use browser or paste", p.Name)
	}
	params := parameters{"client_id": p.Client.ID}
	if len(p.Scopes) > 0 {
		params["scope"] = strings.Join(p.Scopes, " ")
	}
	object, err := k.post(ctx, p, p.Device, params)
	if err != nil {
		return Login{}, exchangeFault(p, err)
	}
	var d struct {
		DeviceCode string          `json:"device_code"`
		UserCode   string          `json:"user_code"`
		URI        string          `json:"verification_uri"`
		URL        string          `json:"verification_url"` // Google's name for it
		Complete   string          `json:"verification_uri_complete"`
		Interval   json.RawMessage `json:"interval"`
		Life       json.RawMessage `json:"expires_in"`
	}
	for name, into := range map[string]any{
		"device_code": &d.DeviceCode, "user_code": &d.UserCode, "verification_uri": &d.URI, "verification_url": &d.URL,
		"verification_uri_complete": &d.Complete, "interval": &d.Interval, "expires_in": &d.Life,
	} {
		if raw, ok := object[name]; ok && json.Unmarshal(raw, into) != nil {
			return Login{}, fault.New(fault.Unavailable, "%s sent an invalid %s; try again", p.Name, name)
		}
	}
	if d.URI == "" {
		d.URI = d.URL
	}
	if sendable(d.DeviceCode) != nil || d.DeviceCode == "" || d.UserCode == "" || d.UserCode != printable(d.UserCode) || len(d.UserCode) > 64 || !openable(d.URI) {
		return Login{}, fault.New(fault.Unavailable, "%s sent no usable device code; try again", p.Name)
	}
	if !openable(d.Complete) {
		d.Complete = ""
	}
	l.IntervalS = min(int(seconds(d.Interval).Seconds()), maxInterval)
	if l.IntervalS <= 0 {
		l.IntervalS = defaultInterval
	}
	life := min(seconds(d.Life), maxDeviceLife)
	if life <= 0 {
		life = loginLife
	}
	l.StateHash = hash(random())
	if _, _, _, err := k.begin(ctx, by, l, vault.NewSecret(d.DeviceCode), life); err != nil {
		return Login{}, err
	}
	return Login{
		ID: l.ID, Kind: Device, URL: d.URI, UserCode: d.UserCode, URLWithCode: d.Complete,
		Wait: time.Duration(l.IntervalS) * time.Second, Life: life,
	}, nil
}

// openable reports whether a page that a server names can be shown as a link.
func openable(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= 2048 && text == printable(text) && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// Poll asks whether the person has typed the code in. It asks the provider no more often than
// the provider wants, however often it is called. After the login has ended it gives the same
// answer again.
func (k *Keeper) Poll(ctx context.Context, by identity.Actor, login uuid.UUID) (Polled, error) {
	if login == uuid.Nil {
		return Polled{}, errUnknownLogin // it would fit any of theirs
	}
	l, wait, err := k.claimLogin(ctx, by, loginQuery{login: login, device: true, purpose: ForAccount})
	switch {
	case err != nil || wait > 0:
		return Polled{Wait: wait}, err
	case l.EndedAt != nil:
		ref, err := outcome(by, &l)
		return Polled{Done: err == nil, Account: ref}, err
	}
	// The provider's answer counts even if the caller is gone.
	ctx = context.WithoutCancel(ctx)
	wait, err = k.pollDevice(ctx, by, l)
	switch {
	case err != nil:
		k.recordFailure(ctx, by, &l, err)
		return Polled{}, err
	case wait > 0:
		return Polled{Wait: wait}, nil
	}
	return Polled{Done: true, Account: Ref{by.Workspace, l.Account}}, nil
}

// pollDevice asks the provider, and stores the tokens if there are any; otherwise it returns
// how long to wait.
func (k *Keeper) pollDevice(ctx context.Context, by identity.Actor, l store.Login) (wait time.Duration, err error) {
	p, err := k.cfg.Providers.Get(l.Provider)
	if err != nil {
		return 0, err
	}
	code, sealer, err := k.openLogin(ctx, by, &l)
	if err != nil {
		return 0, err
	}
	params := parameters{"grant_type": deviceGrant, "device_code": code.Reveal()}
	maps.Copy(params, p.TokenParams)
	object, err := k.post(ctx, p, p.Token, params)
	if err != nil {
		return k.pending(ctx, by, p, &l, err)
	}
	l.Purpose = string(ForAccount) // a row of the version before migration 00008 has none
	return 0, k.storeLogin(ctx, by, p, l, sealer, object)
}

// pending handles an answer without tokens.
func (k *Keeper) pending(ctx context.Context, by identity.Actor, p *Provider, l *store.Login, err error) (wait time.Duration, _ error) {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return 0, err
	}
	interval := l.IntervalS
	switch {
	case f.Code == "slow_down":
		interval = min(interval+slowDown, maxInterval)
	case f.Code == "authorization_pending":
	case !f.Answered, f.temporary(), f.Code == "": // a network failure, or a gateway's: RFC 8628 wants slower polling
		interval = min(2*interval, maxInterval)
	case f.Code == "expired_token" || p.void(f.Code):
		return 0, fault.Coded(fault.Conflict, "LOGIN_FAILED", "the code for %s was not entered in time: start again", p.Name)
	default:
		return 0, declined(p, f.Code)
	}
	wait = max(time.Duration(interval)*time.Second, f.After)
	return wait, k.postpone(ctx, by, l, interval, wait)
}
