package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	tryDial    = 5 * time.Second
	tryTimeout = 15 * time.Second

	notAccepted = "KEY_NOT_ACCEPTED"
)

// Try asks the provider whether it accepts the credential of a new account, with one request
// that costs nothing. It returns why that could not be determined, for people; it is empty
// if the provider accepts it. A provider that refuses it, or cannot be reached, is a
// Conflict fault with the code KEY_NOT_ACCEPTED.
func (s *Scope) Try(ctx context.Context, n NewAccount) (doubt string, err error) {
	row, secret, err := s.check(n)
	if err != nil {
		return "", err
	}
	p, _ := s.accounts.Profiles.Get(row.Profile)
	if p.Check == nil {
		return fmt.Sprintf("the request profile %s does not say how", p.Name), nil
	}
	var own *url.URL
	if row.BaseURL != "" {
		if own, err = url.Parse(row.BaseURL); err != nil {
			return "", err
		}
	}
	base := p.Base(own)
	status, err := s.tryRequest(ctx, p, base, secret)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", err
	case err != nil:
		return "", fault.Coded(fault.Conflict, notAccepted, "could not connect to the provider %s at %s: %s", n.Provider, base.Host, cmp.Or(proxy.WhyUnreachable(err), "the connection failed"))
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "", fault.Coded(fault.Conflict, notAccepted, "the provider %s rejected the key: %d %s", n.Provider, status, http.StatusText(status))
	case status/100 == 2:
		return "", nil
	}
	return fmt.Sprintf("%s answers %d", n.Provider, status), nil
}

// tryRequest makes the request that a profile has for trying credentials.
func (s *Scope) tryRequest(ctx context.Context, p *profile.Profile, base *url.URL, secret vault.Secret) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	path := p.Check.Path
	if len(p.Mounts) > 0 {
		path = p.Mounts[0] + path
	}
	below, _ := p.Below(base, path)
	u := *base
	u.Path += below
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	for name, value := range p.Check.Headers {
		req.Header.Set(name, value)
	}
	p.Apply(req.Header, secret.Reveal())
	dialer := &net.Dialer{Timeout: tryDial}
	if !s.shared() {
		dialer.Control = s.accounts.Policy.Control
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
