package auth

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds how many proxies' words are read.
const maxHops = 16

// Address returns from where somebody calls, or the zero address. It is for records, and
// to count failures. A header is believed only of proxies that the operator trusts, which
// append to it.
func (d *Door) Address(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	at := plain(peer.Addr())
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i, hop := range slices.Backward(hops) {
		if !d.trusts(at) || len(hops)-i > maxHops {
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

func (d *Door) trusts(at netip.Addr) bool {
	return slices.ContainsFunc(d.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(at) })
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
