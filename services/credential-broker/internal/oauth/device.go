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
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	deviceGrant     = "urn:ietf:params:oauth:grant-type:device_code"
	defaultInterval = 5 // seconds; RFC 8628, 3.2
	slower          = 5 // seconds more after slow_down; 3.5
	maxInterval     = 60
	maxDeviceLife   = time.Hour
)

// Polled is what a Poll brought: an account, or for how long to wait.
type Polled struct {
	Done    bool
	Account Ref
	Wait    time.Duration
}

func (k *Keeper) startDevice(ctx context.Context, who Who, p *Provider, row loginRow) (Login, error) {
	if p.Device == "" {
		return Login{}, fault.New(fault.Invalid, "kind: %s does not let devices sign in: use browser or paste", p.Name)
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
			return Login{}, fault.New(fault.Unavailable, "%s answered with a %s that makes no sense; try again", p.Name, name)
		}
	}
	if d.URI == "" {
		d.URI = d.URL
	}
	if sendable(d.DeviceCode) != nil || d.DeviceCode == "" || d.UserCode == "" || d.UserCode != shown(d.UserCode) || len(d.UserCode) > 64 || !openable(d.URI) {
		return Login{}, fault.New(fault.Unavailable, "%s gave no device code that could be used; try again", p.Name)
	}
	if !openable(d.Complete) {
		d.Complete = ""
	}
	row.IntervalS = min(int(seconds(d.Interval).Seconds()), maxInterval)
	if row.IntervalS <= 0 {
		row.IntervalS = defaultInterval
	}
	life := min(seconds(d.Life), maxDeviceLife)
	if life <= 0 {
		life = loginLife
	}
	row.StateHash = hash(random())
	if _, _, err := k.begin(ctx, who, row, vault.NewSecret(d.DeviceCode), life); err != nil {
		return Login{}, err
	}
	return Login{
		ID: row.ID, Kind: Device, URL: d.URI, UserCode: d.UserCode, URLWithCode: d.Complete,
		Wait: time.Duration(row.IntervalS) * time.Second, Life: life,
	}, nil
}

// openable reports whether a page that a server names can be shown to people as a link.
func openable(text string) bool {
	u, err := url.Parse(text)
	return err == nil && len(text) <= 2048 && text == shown(text) && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// Poll asks whether the person has typed the code in. It asks the provider no more
// often than the provider wants, however often and by whomever it is called. When they
// have, or will not, it says so again.
func (k *Keeper) Poll(ctx context.Context, who Who, login uuid.UUID) (Polled, error) {
	if login == uuid.Nil {
		return Polled{}, errStrange // it would be any of theirs
	}
	row, wait, err := k.tables.turn(ctx, who, wanted{login: login, device: true, purpose: ForAccount})
	switch {
	case err != nil || wait > 0:
		return Polled{Wait: wait}, err
	case row.Ended:
		ref, err := row.outcome(who)
		return Polled{Done: err == nil, Account: ref}, err
	}
	// What the provider answers counts, though the one who polled may be gone.
	ctx = context.WithoutCancel(ctx)
	wait, err = k.ask(ctx, who, row)
	switch {
	case err != nil:
		k.settle(ctx, who, row, err)
		return Polled{}, err
	case wait > 0:
		return Polled{Wait: wait}, nil
	}
	return Polled{Done: true, Account: Ref{who.Workspace, row.Account}}, nil
}

// ask asks the provider, and stores the tokens if there are any; else it returns for how
// long to wait.
func (k *Keeper) ask(ctx context.Context, who Who, row loginRow) (wait time.Duration, err error) {
	p, err := k.cfg.Providers.Get(row.Provider)
	if err != nil {
		return 0, err
	}
	if err := k.tables.canRecord(); err != nil {
		return 0, err
	}
	code, err := k.cfg.Vault.Open(ctx, row.place(who), row.sealed())
	if err != nil {
		return 0, err
	}
	sealer, err := k.cfg.Vault.Sealer(ctx, who.Workspace) // the code is good once
	if err != nil {
		return 0, err
	}
	params := parameters{"grant_type": deviceGrant, "device_code": code.Reveal()}
	maps.Copy(params, p.TokenParams)
	object, err := k.post(ctx, p, p.Token, params)
	if err != nil {
		return k.pending(ctx, who, p, row, err)
	}
	t, err := tokens(object)
	if err != nil {
		return 0, exchangeFault(p, err)
	}
	row.Purpose = ForAccount // a row of the version before does not say
	return 0, k.bring(ctx, who, p, row, sealer, t)
}

// pending handles an answer without tokens.
func (k *Keeper) pending(ctx context.Context, who Who, p *Provider, row loginRow, err error) (wait time.Duration, _ error) {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return 0, err
	}
	interval := row.IntervalS
	switch {
	case f.Code == "slow_down":
		interval = min(interval+slower, maxInterval)
	case f.Code == "authorization_pending":
	case !f.Answered, f.passes(), f.Code == "": // of the network, or of what stands before the server: RFC 8628 wants slower polling
		interval = min(2*interval, maxInterval)
	case f.Code == "expired_token" || p.void(f.Code):
		return 0, fault.Coded(fault.Conflict, "LOGIN_FAILED", "the code for %s was not typed in in time: start again", p.Name)
	default:
		return 0, declined(p, f.Code)
	}
	wait = max(time.Duration(interval)*time.Second, f.After)
	return wait, k.tables.postpone(ctx, who, &row, interval, wait)
}
