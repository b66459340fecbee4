package credentialbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

const (
	tryDial = 5 * time.Second
	tryTime = 15 * time.Second
)

// Try asks the provider whether it takes the credential of a new account, with one request
// that costs nothing. It returns why that cannot be told, for people: empty when the provider
// takes it. A provider that refuses it, or that cannot be reached, is a Conflict fault.
func (s *Scope) Try(ctx context.Context, n NewAccount) (doubt string, err error) {
	row, secret, err := s.check(n)
	if err != nil {
		return "", err
	}
	p, _ := s.accounts.profiles.Get(row.Profile)
	if p.Check == nil {
		return fmt.Sprintf("the request profile %s does not say how to", p.Name), nil
	}
	var own *url.URL
	if row.BaseURL != "" {
		if own, err = url.Parse(row.BaseURL); err != nil {
			return "", err
		}
	}
	a := pool.Account{Provider: row.Provider, Profile: p, Base: p.Base(own), Own: own != nil, Secret: secret}
	status, err := s.ask(ctx, &a)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", err
	case err != nil:
		why := proxy.WhyUnreachable(err)
		if why == "" {
			why = "the connection failed"
		}
		return "", fault.New(fault.Conflict, "could not connect to the provider %s at %s: %s", n.Provider, a.Base.Host, why)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "", fault.New(fault.Conflict, "the provider %s refuses the key: %d %s", n.Provider, status, http.StatusText(status))
	case status/100 == 2:
		return "", nil
	}
	return fmt.Sprintf("%s answers %d", n.Provider, status), nil
}

// ask makes the request that a profile tries credentials with.
func (s *Scope) ask(ctx context.Context, a *pool.Account) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, checkURL(a.Profile, a.Base).String(), nil)
	if err != nil {
		return 0, err
	}
	for name, value := range a.Profile.Check.Headers {
		req.Header.Set(name, value)
	}
	a.Profile.Apply(req.Header, a.Secret.Reveal())
	dialer := &net.Dialer{Timeout: tryDial}
	if !id.IsZero(s.workspace) {
		dialer.Control = s.accounts.policy.Control
	}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: tryDial, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

func checkURL(p *profile.Profile, base *url.URL) *url.URL {
	path := p.Check.Path
	if len(p.Mounts) > 0 {
		path = p.Mounts[0] + path
	}
	below, _ := p.Below(base, path)
	u := *base
	u.Path += below
	return &u
}
