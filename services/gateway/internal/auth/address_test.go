package auth

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	t.Parallel()
	a := &Authenticator{cfg: Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::1/128")}}}
	for _, tt := range []struct{ name, peer, header, want string }{
		{"direct", "192.0.2.7:1234", "", "192.0.2.7"},
		{"direct over IPv6", "[2001:db8::7]:1234", "", "2001:db8::7"},
		{"a mapped one", "[::ffff:192.0.2.7]:1234", "", "192.0.2.7"},
		{"a stranger's header", "192.0.2.7:1234", "198.51.100.1", "192.0.2.7"},
		{"behind a proxy", "10.1.2.3:1234", "198.51.100.1", "198.51.100.1"},
		{"behind two", "10.1.2.3:1234", "198.51.100.1, 10.9.9.9", "198.51.100.1"},
		{"behind two that are apart", "[2001:db8::1]:1234", "198.51.100.1,10.9.9.9", "198.51.100.1"},
		{"what a client has made up", "10.1.2.3:1234", "203.0.113.9, 198.51.100.1", "198.51.100.1"},
		{"no address in the header", "10.1.2.3:1234", "unknown", "10.1.2.3"},
		{"a proxy without a header", "10.1.2.3:1234", "", "10.1.2.3"},
		{"very many hops", "10.1.2.3:1234", "198.51.100.1" + strings.Repeat(",10.0.0.1", 100), "10.0.0.1"},
		{"no peer", "@", "198.51.100.1", ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr = tt.peer
		if tt.header != "" {
			r.Header.Set("X-Forwarded-For", tt.header)
		}
		var want netip.Addr
		if tt.want != "" {
			want = netip.MustParseAddr(tt.want)
		}
		if got := a.Address(r); got != want {
			t.Errorf("%s: Address() = %v, want %v", tt.name, got, want)
		}
	}
}
