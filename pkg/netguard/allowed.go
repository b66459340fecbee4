package netguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Allowed is a private target that the operator has allowed.
type Allowed struct {
	host   string       // a name, whatever it resolves to; empty: the prefix counts
	prefix netip.Prefix // where host is empty
	port   uint16       // 0: any
}

// ParseAllowed reads a list of private targets, separated by commas or spaces: ranges of
// addresses (10.1.0.0/16, any port), and hosts with a port (10.1.2.3:8080, tools.internal:80).
// A name means whatever it resolves to, except for metadata and link-local addresses.
func ParseAllowed(list string) (all []Allowed, err error) {
	for _, text := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		x, err := parseAllowed(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		all = append(all, x)
	}
	return all, nil
}

func parseAllowed(text string) (Allowed, error) {
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return Allowed{}, errors.New("not a range of addresses, such as 10.1.0.0/16")
		}
		return Allowed{prefix: p.Masked()}, nil
	}
	host, portText, err := net.SplitHostPort(text)
	if err != nil || host == "" {
		return Allowed{}, errors.New("neither a range of addresses (10.1.0.0/16) nor a host with a port (10.1.2.3:8080)")
	}
	port, err := parsePort(portText)
	if err != nil {
		return Allowed{}, errors.New("the port must be a number from 1 to 65535")
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return Allowed{host: canonical(host), port: port}, nil
	}
	if a.Zone() != "" {
		return Allowed{}, errors.New("the address must have no zone")
	}
	a = Unwrap(a)
	return Allowed{prefix: netip.PrefixFrom(a, a.BitLen()), port: port}, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("not a port")
	}
	return uint16(n), nil
}

// canonical returns a host's name without differences that do not matter.
func canonical(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }
