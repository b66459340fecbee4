package netguard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/netguard"
)

// victim is a server on all of this machine's addresses that counts its connections.
type victim struct {
	port     uint16
	accepted atomic.Int64
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{port: l.Addr().(*net.TCPAddr).AddrPort().Port()}
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }),
		ConnState:         func(_ net.Conn, state http.ConnState) { v.count(state) },
		ReadHeaderTimeout: time.Second,
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return v
}

func (v *victim) count(state http.ConnState) {
	if state == http.StateNew {
		v.accepted.Add(1)
	}
}

// hosts are spellings of addresses that nobody outside may reach. Each stands for itself in a
// URL, and names are resolved by the table of names.
func hosts() []string {
	all := []string{
		// Loopback in every spelling that some parser takes.
		"127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.0.0.1", "0x7F.0x0.0x0.0x1",
		"0177.0.0.1", "0177.0.0.01", "0177.00.00.01", "127.0.0.01", "127.000.000.001", "00127.0.0.1", "127.0x1", "0x7f.1", "0177.1", "4294967296", "127.0.0.1.", "127.0.0.256", "383.0.0.1", "127.0.0.4294967297",
		"%31%32%37.0.0.1", "127%2e0%2e0%2e1", "①②⑦.⓪.⓪.①", "127。0。0。1", "127．0．0．1", "１２７.0.0.1", "0", "0.0.0.0", "00.0.0.0", "0x0", "0.0.0.1", "0.1.2.3", "0.255.255.255",
		"[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::0001]", "[::127.0.0.1]", "[::7f00:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::FFFF:7F00:0001]", "[0:0:0:0:0:ffff:127.0.0.1]",
		"[::ffff:0:127.0.0.1]", "[::ffff:0.0.0.0]", "[::1%25lo]", "[::1%25eth0]", "[fe80::1%25lo]", "[fe80::1%25eth0]", "[::ffff:127.0.0.1%25lo]",
		"[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b::169.254.169.254]", "[64:ff9b::192.168.0.1]", "[64:ff9b:1::127.0.0.1]", "[64:ff9b:1::7f00:1]",
		"[2002:7f00:1::]", "[2002:7f00:1::1]", "[2002:a00:1::1]", "[2002:a9fe:a9fe::1]", "[2002:808:808::1]", "[2001:0:7f00:1::]", "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "[2001::1]", "[2001:10::1]", "[2001:20::1]", "[2001:2::1]",
		// Private and shared addresses.
		"10.0.0.1", "10.255.255.255", "10.1", "0xa000001", "167772161", "012.0.0.1", "172.16.0.1", "172.31.255.254", "172.17.0.1", "192.168.0.1", "192.168.255.255", "192.168.1", "3232235521", "0xc0a80001",
		"100.64.0.1", "100.127.255.254", "[fc00::1]", "[fd00::1]", "[fdff:ffff::1]", "[fec0::1]", "[::ffff:10.0.0.1]", "[::ffff:192.168.0.1]", "[::ffff:172.16.0.1]", "[::ffff:100.64.0.1]", "[::10.0.0.1]",
		// Link-local and metadata services.
		"169.254.169.254", "169.254.0.1", "169.254.170.2", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[fe80::1]", "[febf::1]",
		"[fd00:ec2::254]", "[fd20:ce::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192", "metadata.google.internal", "metadata", "instance-data",
		// Multicast, broadcast, benchmarking, documentation and reserved.
		"224.0.0.1", "239.255.255.255", "232.0.0.1", "[ff02::1]", "[ff05::1:3]", "[ff0e::1]", "255.255.255.255", "240.0.0.1", "254.0.0.1", "198.18.0.1", "198.19.255.255",
		"192.0.2.1", "198.51.100.1", "203.0.113.1", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[5f00::1]", "[4000::1]", "[8000::1]", "[e000::1]", "192.0.0.1", "192.0.0.170", "192.88.99.1",
		// Names.
		"localhost", "LOCALHOST", "localhost.", "LocalHost.", "a.localhost", "ip6-localhost", "localhost.localdomain", "loop.example", "loop6.example", "LOOP.example.", "loop.example.", "both.example", "private.example", "mapped.example", "nat64.example",
		"zero.example", "link.example", "rebind.example", "rebind6.example", "xn--ls8h.example", "127.0.0.1.example", "unknown.example", "any", "_.example", "-.example", "a..b", "loop。example", "ｌｏｃａｌｈｏｓｔ",
	}
	// Every address of this machine, which is private unless the machine is on the internet.
	if own, err := net.InterfaceAddrs(); err == nil {
		for _, a := range own {
			p, err := netip.ParsePrefix(a.String())
			switch {
			case err != nil || netguard.IsPublic(p.Addr()):
			case p.Addr().Is6():
				all = append(all, "["+p.Addr().String()+"]")
			default:
				all = append(all, p.Addr().String())
			}
		}
	}
	return all
}

func names() *dns {
	loop, loop6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
	doc, doc6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	d := &dns{names: map[string][]answers{
		"loop6.example": {{loop6}}, "both.example": {{doc, loop, doc6, loop6}}, "private.example": {{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}},
		"mapped.example": {{netip.MustParseAddr("::ffff:127.0.0.1")}}, "nat64.example": {{netip.MustParseAddr("64:ff9b::7f00:1")}}, "zero.example": {{netip.IPv4Unspecified(), netip.IPv6Unspecified()}},
		"link.example": {{netip.MustParseAddr("169.254.169.254")}}, "rebind.example": {{doc}, {loop}}, "rebind6.example": {{doc6}, {loop6}, {loop}},
	}}
	// A resolver that takes numbers in other forms for addresses, as getaddrinfo does, and
	// names of the local network that lead to this machine.
	for _, name := range []string{
		"loop.example", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0x7f.0.0.1", "0x7f.0x0.0x0.0x1", "0177.0.0.1", "0177.0.0.01", "0177.00.00.01", "127.0.0.01", "127.000.000.001", "00127.0.0.1",
		"127.0x1", "0x7f.1", "0177.1", "4294967296", "127.0.0.256", "383.0.0.1", "127.0.0.4294967297", "0", "00.0.0.0", "0x0", "10.1", "0xa000001", "167772161", "012.0.0.1", "192.168.1", "3232235521", "0xc0a80001", "2852039166", "0xa9fea9fe",
		"0251.0376.0251.0376", "metadata.google.internal", "metadata", "instance-data", "localhost", "a.localhost", "ip6-localhost", "localhost.localdomain", "xn--ls8h.example", "127.0.0.1.example", "any", "_.example", "-.example", "127.0.0.1",
	} {
		d.names[name] = []answers{{loop, loop6}}
	}
	return d
}

// urls returns URLs that lead, or might lead, to the victim.
func (v *victim) urls() []string {
	port := strconv.Itoa(int(v.port))
	var all []string
	for _, h := range hosts() {
		all = append(all, "http://"+h+":"+port+"/")
	}
	return append(
		all,
		"https://127.0.0.1:"+port, "https://localhost:"+port, "https://[::1]:"+port,
		"http://user@127.0.0.1:"+port, "http://user:pass@127.0.0.1:"+port, "http://public.example@127.0.0.1:"+port, "http://public.example:80@127.0.0.1:"+port, "http://127.0.0.1:"+port+"@public.example",
		"http://public.example#@127.0.0.1:"+port, "http://public.example?@127.0.0.1:"+port, `http://public.example\@127.0.0.1:`+port, "http://127.0.0.1:"+port+"#.public.example", "http://127.0.0.1:"+port+"?.public.example", "http://127.0.0.1:"+port+"/.public.example",
		"http:127.0.0.1:"+port, "http:/127.0.0.1:"+port, "http:///127.0.0.1:"+port, "//127.0.0.1:"+port, "127.0.0.1:"+port, "http://:"+port, "http://[::1]:0"+port, "http://127.0.0.1:0"+port, "http://127.0.0.1:+"+port, "http://127.0.0.1:"+port+":80", "http://127.0.0.1:80:"+port,
		"http://127.0.0.1 :"+port, "http://127.0.0.1\t:"+port, "http://127.0.0.1\r\n:"+port, "http://127.0.0.1\x00:"+port, "http://loop.example\x00.public.example:"+port,
		"ftp://127.0.0.1:"+port, "file://127.0.0.1:"+port, "gopher://127.0.0.1:"+port, "ws://127.0.0.1:"+port, "unix://127.0.0.1:"+port, "data:,127.0.0.1:"+port, "javascript://127.0.0.1:"+port, "HTTP://127.0.0.1:"+port, "hTTp://LOOP.EXAMPLE:"+port,
		"http://127.0.0.1:0", "http://127.0.0.1:65536", "http://127.0.0.1:-1", "http://127.0.0.1:99999999999999999999", "http://127.0.0.1", "http://localhost", "https://localhost", "http://[::1]", "http://[::1", "http://::1:"+port, "http://[[::1]]:"+port, "http://[127.0.0.1]:"+port,
		"http://"+strings.Repeat("a", 5000)+".example:"+port, "http://loop.example:"+port+"/"+strings.Repeat("a", 5000), "http://127.0.0.1:"+port+"/?next=http://127.0.0.1:"+port,
	)
}

// TestNothingPrivateIsReached asks for many URLs whose hosts are this machine or another
// private place, directly and by redirects of a server that may be reached, over a server
// that is really there.
func TestNothingPrivateIsReached(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	urls := v.urls()
	if len(urls) < 150 {
		t.Fatalf("there are only %d URLs", len(urls))
	}
	reached := func(t *testing.T, g *netguard.Guard, ask string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		before := v.accepted.Load()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, ask, nil)
		if err != nil {
			return
		}
		res, err := g.Client(0).Do(req)
		if err == nil {
			res.Body.Close()
			t.Errorf("GET %.100q = %s, want an error", ask, res.Status)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("GET %.100q waits for a connection: %v", ask, err)
		}
		if n := v.accepted.Load() - before; n != 0 {
			t.Errorf("GET %.100q reached the server %d times", ask, n)
		}
	}
	t.Run("directly", func(t *testing.T) { //nolint:paralleltest // the connections are counted by URL
		g := netguard.New(netguard.Config{Resolver: names().resolver()})
		g.AllowPort(v.port)
		for _, u := range urls {
			reached(t, g, u)
			reached(t, g, u) // a name may have another address now
		}
	})
	t.Run("by redirect", func(t *testing.T) { //nolint:paralleltest // likewise
		var place atomic.Value
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.URL.Query().Get("status"))
			w.Header()["Location"] = []string{place.Load().(string)}
			w.WriteHeader(status)
		}))
		defer front.Close()
		g := netguard.New(netguard.Config{Allowed: allow(t, strings.TrimPrefix(front.URL, "http://")), Resolver: names().resolver()})
		g.AllowPort(v.port)
		for i, u := range urls {
			if !strings.Contains(u, "://") || strings.ContainsAny(u, "\r\n\x00") {
				continue // a relative reference leads to the front itself
			}
			if p, err := url.Parse(u); err == nil && p.Host == "" {
				continue
			}
			place.Store(u)
			reached(t, g, front.URL+"/?status="+strconv.Itoa([]int{301, 302, 303, 307, 308}[i%5]))
		}
	})
	if n := v.accepted.Load(); n != 0 {
		t.Errorf("the server was reached %d times", n)
	}
	// The server is there, and the names lead to it.
	g := netguard.New(netguard.Config{Allowed: allow(t, "127.0.0.0/8, ::/0"), Resolver: names().resolver()})
	for _, host := range []string{"127.0.0.1", "loop.example", "0x7f.1"} {
		if body, err := get(t, g, fmt.Sprintf("http://%s:%d/", host, v.port)); err != nil || body != "secret" {
			t.Errorf("without the guard: GET %s = %q, %v", host, body, err)
		}
	}
}

func allow(t *testing.T, list string) []netguard.Allowed {
	t.Helper()
	all, err := netguard.ParseAllowed(list)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func get(t *testing.T, g *netguard.Guard, address string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	res, err := g.Client(0).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "8.8.8.8": true, "2606:4700:4700::1111": true, "::ffff:8.8.8.8": true, "64:ff9b::8.8.8.8": true, "172.15.0.1": true, "172.32.0.1": true, "100.63.255.255": true, "100.128.0.1": true,
		"2606:4700:4700::1111%eth0": false, "64:ff9b::10.0.0.1": false, "::ffff:127.0.0.1": false, "2002:808:808::1": false, "168.63.129.16": false, "255.255.255.255": false,
	} {
		if got := netguard.IsPublic(netip.MustParseAddr(text)); got != want {
			t.Errorf("IsPublic(%s) = %t, want %t", text, got, want)
		}
	}
	if netguard.IsPublic(netip.Addr{}) {
		t.Error("no address at all is public")
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	port := strconv.Itoa(int(v.port))
	for _, tt := range []struct {
		allowed, host string
		want          bool
	}{
		{"127.0.0.0/8", "127.0.0.1", true},
		{"127.0.0.1:" + port, "127.0.0.1", true},
		{"127.0.0.1:" + port, "[::ffff:127.0.0.1]", true},
		{"127.0.0.1:" + port, "loop.example", true},
		{"loop.example:" + port, "LOOP.example.", true},
		{"10.0.0.0/8 loop.example:" + port, "loop.example", true},
		{"127.0.0.1:1", "127.0.0.1", false},
		{"loop.example:1", "loop.example", false},
		{"loop.example:" + port, "127.0.0.1", false},
		{"other.example:" + port, "loop.example", false},
		{"10.0.0.0/8", "127.0.0.1", false},
		{"link.example:" + port, "link.example", false}, // a name for a metadata address
	} {
		g := netguard.New(netguard.Config{Allowed: allow(t, tt.allowed), Resolver: names().resolver()})
		_, err := get(t, g, "http://"+tt.host+":"+port+"/")
		if (err == nil) != tt.want || err != nil && !errors.Is(err, netguard.ErrRefused) {
			t.Errorf("allowed %s: GET %s: %v, want success: %t", tt.allowed, tt.host, err, tt.want)
		}
	}
	for _, bad := range []string{"127.0.0.1", "10.0.0.0/33", "host", ":80", "host:0", "host:x", "[fe80::1%eth0]:80", "http://host:80"} {
		if _, err := netguard.ParseAllowed(bad); err == nil {
			t.Errorf("ParseAllowed(%q) succeeds", bad)
		}
	}
}

func TestMayBePrivate(t *testing.T) {
	t.Parallel()
	for allow, want := range map[string]map[string]bool{
		"": {"https://example.com": false, "https://8.8.8.8": false, "http://10.0.0.1": true, "http://[::ffff:10.0.0.1]": true},
		// What a name resolves to is not known yet.
		"10.0.0.0/8":       {"https://example.com": true, "https://8.8.8.8": false, "http://10.0.0.1": true, "http://wiki.internal:8080": true},
		"wiki.internal:80": {"https://example.com": false, "http://wiki.internal": true, "http://WIKI.internal./x": true, "https://wiki.internal": false},
		"10.1.2.3:8080":    {"https://example.com": false, "http://example.com:8080": true},
	} {
		allowed, err := netguard.ParseAllowed(allow)
		if err != nil {
			t.Fatal(err)
		}
		g := netguard.New(netguard.Config{Allowed: allowed})
		for text, private := range want {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := g.MayBePrivate(u); got != private {
				t.Errorf("with %q allowed, MayBePrivate(%s) = %v", allow, text, got)
			}
		}
	}
}

func TestPublicPorts(t *testing.T) {
	t.Parallel()
	g := netguard.New(netguard.Config{})
	for address, want := range map[string]bool{"1.1.1.1:80": true, "1.1.1.1:443": true, "[2606:4700:4700::1111]:443": true, "1.1.1.1:22": false, "1.1.1.1:8080": false, "1.1.1.1:0": false, "nonsense": false} {
		if err := g.Control("tcp", address, nil); (err == nil) != want {
			t.Errorf("Control(%s) = %v, want success: %t", address, err, want)
		}
	}
	if _, err := g.DialContext(t.Context(), "unix", "/tmp/x"); !errors.Is(err, netguard.ErrRefused) {
		t.Errorf("dial a Unix socket: %v", err)
	}
}

// TestRedirects follows redirects between two allowed servers.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var seen atomic.Pointer[http.Header] // of the latest request
	see := func(r *http.Request) { h := r.Header.Clone(); seen.Store(&h) }
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { see(r) }))
	defer other.Close()
	mux := http.NewServeMux()
	first := httptest.NewTLSServer(mux)
	defer first.Close()
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	mux.HandleFunc("/body", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/chain", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		if n > 0 {
			http.Redirect(w, r, "/chain?n="+strconv.Itoa(n-1), http.StatusFound)
		}
		see(r)
	})
	client := first.Client() // trusts the server's certificate
	client.CheckRedirect = netguard.CheckRedirect
	do := func(method, path string, secrets ...string) error {
		var body io.Reader
		if method == http.MethodPost {
			body = strings.NewReader("body")
		}
		req, err := http.NewRequestWithContext(t.Context(), method, first.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/plain")
		for _, name := range secrets {
			req.Header.Set(name, "canary")
		}
		seen.Store(nil)
		res, err := client.Do(req)
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	if err := do(http.MethodGet, "/chain?n=3", "Authorization", "X-Api-Key"); err != nil || seen.Load().Get("X-Api-Key") != "canary" {
		t.Errorf("three redirects on one host: %v, headers %v", err, seen.Load())
	}
	if err := do(http.MethodGet, "/chain?n=4"); !errors.Is(err, netguard.ErrRefused) {
		t.Errorf("four redirects: %v", err)
	}
	if err := do(http.MethodGet, "/elsewhere"); err != nil || seen.Load() == nil {
		t.Errorf("from https to http without secrets: %v", err)
	}
	for _, name := range []string{"Authorization", "Cookie", "X-Api-Key", "Mcp-Session-Id"} {
		if err := do(http.MethodGet, "/elsewhere", name); !errors.Is(err, netguard.ErrRefused) || seen.Load() != nil {
			t.Errorf("from https to http with %s: %v, reached: %t", name, err, seen.Load() != nil)
		}
	}
	if err := do(http.MethodPost, "/body"); !errors.Is(err, netguard.ErrRefused) || seen.Load() != nil {
		t.Errorf("a body to another host: %v, reached: %t", err, seen.Load() != nil)
	}
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) }))
	defer plain.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, plain.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Authorization", "Cookie", "X-Api-Key", "Mcp-Session-Id"} {
		req.Header.Set(name, "canary")
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	for name, values := range *seen.Load() {
		if slices.Contains(values, "canary") {
			t.Errorf("%s went to another host", name)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		if r.URL.Path == "/head" {
			w.Header().Set("X-Large", strings.Repeat("a", n))
			return
		}
		if r.URL.Path == "/chunked" {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, strings.Repeat("a", n))
	}))
	defer s.Close()
	g := netguard.New(netguard.Config{Allowed: allow(t, "127.0.0.0/8"), MaxBody: 1000})
	for path, want := range map[string]error{
		"/?n=1000": nil, "/?n=1001": netguard.ErrTooLarge, "/chunked?n=1000": nil, "/chunked?n=1001": netguard.ErrTooLarge, "/chunked?n=100000": netguard.ErrTooLarge, "/head?n=1000": nil,
	} {
		if body, err := get(t, g, s.URL+path); !errors.Is(err, want) || len(body) > 1000 {
			t.Errorf("GET %s = %d bytes, %v, want %v", path, len(body), err, want)
		}
	}
	if _, err := get(t, g, s.URL+"/head?n=100000"); err == nil {
		t.Error("a head of 100 KB is read")
	}
}

func TestNoProxy(t *testing.T) {
	v := newVictim(t)
	t.Setenv("HTTP_PROXY", fmt.Sprintf("http://127.0.0.1:%d", v.port))
	g := netguard.New(netguard.Config{Resolver: names().resolver()})
	if _, err := get(t, g, "http://private.example/"); !errors.Is(err, netguard.ErrRefused) || v.accepted.Load() != 0 {
		t.Errorf("GET with a proxy in the environment: %v", err)
	}
}
