package api

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds how many proxies' words are read.
const maxHops = 16

// address returns from where somebody calls, for records: nothing is decided by it. A
// header is believed only of proxies that the operator trusts, which append to it.
func (a *API) address(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
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
	return at.String()
}

func (a *API) trusts(at netip.Addr) bool {
	return slices.ContainsFunc(a.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(at) })
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
