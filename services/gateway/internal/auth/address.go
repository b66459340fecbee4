package auth

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds how many entries of X-Forwarded-For are read.
const maxHops = 16

// Address returns the client's address, or the zero address if it is unknown. It serves
// the audit and the count of failures. X-Forwarded-For is read only as far as the
// operator's trusted proxies have appended to it.
func (a *Authenticator) Address(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	at := plain(peer.Addr())
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i, hop := range slices.Backward(hops) {
		if !a.trusts(at) || len(hops)-i > maxHops {
			break
		}
		before, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		at = plain(before)
	}
	return at
}

func (a *Authenticator) trusts(at netip.Addr) bool {
	return slices.ContainsFunc(a.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(at) })
}

func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }
