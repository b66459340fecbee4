// Package target decides which hosts an account's requests may go to. A workspace chooses the
// base URL of its accounts; without checks it could reach into the operator's network. The
// URL is checked when the account is added and when it is read (Policy.Parse, Policy.Check),
// and every address that its name resolves to again on every dial (Policy.Control), so that a
// changed DNS record gains nothing. Package netguard knows which addresses are public.
//
// Allowed are public addresses, ports 80 and 443. An operator who runs model servers of their
// own also allows private addresses and any port; cloud metadata addresses stay out of reach.
// Accounts that the operator shares may use any port, and on a single user's machine they may
// be model servers on that machine (Policy.For).
package target

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"signalbox.dev/pkg/netguard"
)

// Policy says what is allowed.
type Policy struct {
	// AllowPrivate allows loopback and private addresses, plain http to them, and any
	// port: for model servers of the operator's own.
	AllowPrivate bool
	// Loopback allows the operator's shared accounts to be on this machine, over http too.
	// It is for a broker whose users all share the machine.
	Loopback bool
	// AnyPort allows any port, and nothing else.
	AnyPort bool
}

// For returns the policy for a workspace's accounts, or for those that the operator shares.
// Shared accounts may use any port and are not dialled under Control.
func (p Policy) For(shared bool) Policy {
	p.AnyPort, p.Loopback = p.AnyPort || shared, p.Loopback && shared
	return p
}

// CheckBase checks the base URL of an account, which may be shared.
func (p Policy) CheckBase(u *url.URL, shared bool) error { return p.For(shared).Check(u) }

const maxURL = 2048

// ErrAddress is in the chain of a dial error for an address that is not allowed.
var ErrAddress = errors.New("the address is not allowed")

// Parse reads a base URL that a person gave. Its errors are written for them.
func (p Policy) Parse(text string) (*url.URL, error) {
	u, err := ParseURL(text)
	if err != nil {
		return nil, err
	}
	return u, p.Check(u)
}

// ParseURL is Parse for a base URL that may lead anywhere.
func ParseURL(text string) (*url.URL, error) {
	if len(text) > maxURL {
		return nil, fmt.Errorf("the base URL is longer than %d bytes", maxURL)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return nil, errors.New("the base URL is not a URL: use https://host/path")
	}
	if err := checkForm(u); err != nil {
		return nil, err
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// checkForm refuses what no base URL may have, and hosts and ports that nothing can be sent
// to.
func checkForm(u *url.URL) error {
	host, port := u.Hostname(), u.Port()
	switch {
	case u.User != nil:
		return errors.New("the base URL must not contain a user or password: the secret belongs in its own field")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("the base URL must end with the path, without ? or #")
	case host == "":
		return errors.New("the base URL has no host")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("the base URL begins with %q: use https", u.Scheme+":")
	case slices.Contains(strings.Split(u.Path, "/"), ".."):
		return errors.New("the base URL must not hold .. as a segment of its path")
	}
	if _, err := netip.ParseAddr(host); err != nil && !hostForm.MatchString(host) {
		return errors.New("the base URL's host must consist of ASCII letters, digits, dots and dashes: write a name in other letters as xn--…")
	}
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return errors.New("the base URL's port must be a number from 1 to 65535")
	}
	return nil
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// Check refuses a base URL that the policy does not allow.
func (p Policy) Check(u *url.URL) error {
	if err := checkForm(u); err != nil {
		return err
	}
	if p.Loopback && IsLoopback(u.Hostname()) {
		return nil
	}
	private := isPrivateName(u.Hostname())
	if u.Scheme == "http" && (!private || !p.AllowPrivate) {
		return errors.New("the base URL must begin with https (http is for loopback and private addresses, where the operator allows them with CREDENTIAL_BROKER_ALLOW_PRIVATE; `signalbox accounts add` without --gateway and --workspace also accepts loopback addresses, on the machine that runs `signalbox up`)")
	}
	if private && !p.AllowPrivate {
		return errors.New("the base URL names a loopback or private address, which the operator has not allowed (CREDENTIAL_BROKER_ALLOW_PRIVATE)")
	}
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := p.checkAddr(a); err != nil {
			return err
		}
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil && !p.allowsPort(uint16(port)) {
		return errors.New("the base URL's port must be 443 (other ports are for your own model servers, if the operator allows them with CREDENTIAL_BROKER_ALLOW_PRIVATE)")
	}
	return nil
}

// CheckEndpoint refuses the URL of an authorization server's endpoint that the policy does not
// allow. Its errors continue a sentence about the URL.
func (p Policy) CheckEndpoint(u *url.URL) error {
	private := isPrivateName(u.Hostname())
	port, portErr := strconv.ParseUint(u.Port(), 10, 16)
	switch {
	case len(u.String()) > maxURL:
		return fmt.Errorf("is longer than %d bytes", maxURL)
	case u.User != nil || u.Fragment != "":
		return errors.New("holds a user or a fragment")
	case u.Scheme != "https" && (u.Scheme != "http" || !private || !p.AllowPrivate):
		return errors.New("does not begin with https")
	case private && !p.AllowPrivate:
		return errors.New("is at a loopback or private address, which the operator has not allowed (CREDENTIAL_BROKER_ALLOW_PRIVATE)")
	case u.Port() != "" && (portErr != nil || !p.allowsPort(uint16(port))):
		return errors.New("is at another port than 443")
	}
	a, err := netip.ParseAddr(u.Hostname())
	if err == nil {
		return p.checkAddr(a)
	}
	if !hostForm.MatchString(u.Hostname()) {
		return errors.New("has an invalid host")
	}
	return nil
}

func (p Policy) allowsPort(port uint16) bool {
	return p.AllowPrivate || p.AnyPort || port == 80 || port == 443
}

// isPrivateName reports whether a host is, by its name alone, on this machine or the local
// network.
func isPrivateName(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		return !netguard.IsPublic(a)
	}
	if !strings.Contains(host, ".") {
		return true // localhost, or a name in the local network or cluster
	}
	return slices.ContainsFunc([]string{".localhost", ".local", ".internal", ".svc", ".lan", ".home.arpa"}, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

// IsLoopback reports whether a host is this machine, by its name or address.
func IsLoopback(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// Control is a net.Dialer's Control hook: it sees every address after name
// resolution, before the connection is made.
func (p Policy) Control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrAddress, address)
	}
	if !p.allowsPort(ap.Port()) {
		return fmt.Errorf("%w: the port of %s is not 80 or 443", ErrAddress, ap)
	}
	return p.checkAddr(ap.Addr())
}

func (p Policy) checkAddr(a netip.Addr) error {
	if netguard.IsPublic(a) {
		return nil
	}
	a = netguard.Unwrap(a)
	if p.AllowPrivate && a.Zone() == "" && (a.IsLoopback() || a.IsPrivate()) && !netguard.IsMetadata(a) {
		return nil
	}
	return fmt.Errorf("%w: %s is not a public address", ErrAddress, a)
}
