package mcp

import (
	"fmt"
	"net/http"
	"net/url"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
)

// signed sends requests to the credential broker's egress, on behalf of the member who added
// the server: the broker adds the secret.
type signed struct {
	cfg    Config
	server Server
}

// RoundTrip implements http.RoundTripper.
func (s *signed) RoundTrip(req *http.Request) (*http.Response, error) {
	// Whoever may see the server's tools may have its list refreshed, so the caller's own role
	// does not count here; calls were checked before.
	token, err := s.cfg.Signer.Sign(identity.Actor{Workspace: s.server.Workspace, Member: s.server.CreatedBy, Role: identity.Editor}, subject.CredentialBroker)
	if err != nil {
		return nil, fmt.Errorf("sign a request to the credential broker: %w", err)
	}
	out := req.Clone(req.Context())
	out.Header.Set(identity.Header, token)
	// The account of a server that had the name before is not to be used.
	out.Header.Set("X-Signalbox-Server", origin(s.server.URL))
	return s.cfg.Broker.RoundTrip(out)
}

// origin returns the scheme and host of a URL that was checked.
func origin(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
