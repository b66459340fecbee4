package browser_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	"signalbox.dev/services/tool-executor/internal/browser"
)

// vector is a page that tries to reach TARGET (host:port).
type vector struct {
	name, html string
	// leaves means that the page goes to the target itself, so that it can try only one.
	leaves bool
	// click names an element that has to be clicked first.
	click string
	// silent means that an allowed target need not be reached either, because the browser does
	// not do this at all, or closes the window first.
	silent bool
	// wired means that the browser does this only if it has a network interface.
	wired bool
}

// vectors are ways out of a page. Every one of them is tried with a private target and, to show
// that it would work, with an allowed one.
var vectors = []vector{
	{name: "image", html: `<img src="http://TARGET/x">`},
	{name: "script", html: `<script src="http://TARGET/x"></script>`},
	{name: "stylesheet", html: `<link rel=stylesheet href="http://TARGET/x">`},
	{name: "css import", html: `<style>@import "http://TARGET/x";</style>`},
	{name: "css url", html: `<style>body{background:url(http://TARGET/x)}</style>`},
	{name: "font", html: `<style>@font-face{font-family:f;src:url(http://TARGET/x)}body{font-family:f}</style>text`},
	{name: "iframe", html: `<iframe src="http://TARGET/x"></iframe>`},
	{name: "object", html: `<object data="http://TARGET/x"></object>`},
	{name: "embed", html: `<embed src="http://TARGET/x" type="text/html">`},
	{name: "video", html: `<video src="http://TARGET/x" autoplay muted></video>`},
	{name: "icon", html: `<link rel=icon href="http://TARGET/x">`},
	{name: "prefetch", html: `<link rel=prefetch href="http://TARGET/x">`},
	{name: "preload", html: `<link rel=preload as=fetch crossorigin href="http://TARGET/x">`},
	{name: "modulepreload", html: `<link rel=modulepreload href="http://TARGET/x">`},
	{name: "preconnect", html: `<link rel=preconnect href="http://TARGET/">`, silent: true},
	{name: "DNS prefetch", html: `<link rel=dns-prefetch href="http://TARGET/">`, silent: true},
	{name: "speculation rules", html: `<script type=speculationrules>{"prefetch":[{"urls":["http://TARGET/x"],"eagerness":"immediate"}],"prerender":[{"urls":["http://TARGET/y"],"eagerness":"immediate"}]}</script>`, silent: true},
	{name: "fetch", html: `<script>fetch('http://TARGET/x', {mode: 'no-cors'})</script>`},
	{name: "fetch keepalive", html: `<script>fetch('http://TARGET/x', {mode: 'no-cors', keepalive: true, method: 'POST', body: 'b'})</script>`},
	{name: "XMLHttpRequest", html: `<script>var r = new XMLHttpRequest(); r.open('GET', 'http://TARGET/x'); r.send()</script>`},
	{name: "beacon", html: `<script>navigator.sendBeacon('http://TARGET/x', 'b')</script>`},
	{name: "EventSource", html: `<script>new EventSource('http://TARGET/x')</script>`},
	{name: "WebSocket", html: `<script>new WebSocket('ws://TARGET/x')</script>`},
	{name: "worker", html: `<script>new Worker(URL.createObjectURL(new Blob(["importScripts('http://TARGET/x')"])))</script>`},
	{name: "fetch in a worker", html: `<script>new Worker(URL.createObjectURL(new Blob(["fetch('http://TARGET/x', {mode: 'no-cors'})"])))</script>`},
	{name: "service worker", html: `<script>navigator.serviceWorker.register('/sw.js?TARGET')</script>`},
	{name: "WebRTC over UDP", html: `<script>var c = new RTCPeerConnection({iceServers: [{urls: 'stun:TARGET'}]}); c.createDataChannel('d'); c.createOffer().then(o => c.setLocalDescription(o))</script>`, silent: true},
	{name: "WebRTC over TCP", html: `<script>var c = new RTCPeerConnection({iceServers: [{urls: 'turn:TARGET?transport=tcp', username: 'u', credential: 'p'}]}); c.createDataChannel('d'); c.createOffer().then(o => c.setLocalDescription(o))</script>`, wired: true},
	{name: "WebTransport", html: `<script>try { new WebTransport('https://TARGET/x') } catch {}</script>`, silent: true},
	{name: "redirect of an image", html: `<img src="/redirect?TARGET">`},
	{name: "redirect", html: "redirect", leaves: true},
	{name: "meta refresh", html: `<meta http-equiv=refresh content="0;url=http://TARGET/x">`, leaves: true},
	{name: "location", html: `<script>location = 'http://TARGET/x'</script>`, leaves: true},
	{name: "window.open", html: `<script>window.open('http://TARGET/x')</script>`, silent: true},
	{name: "link", html: `<a href="http://TARGET/x">a</a>`, click: "a", leaves: true},
	{name: "link to a window", html: `<a target=_blank href="http://TARGET/x">a</a>`, click: "a", leaves: true},
	{name: "ping of a link", html: `<a href="/" ping="http://TARGET/x">a</a>`, click: "a", leaves: true, silent: true},
	{name: "form", html: `<form method=post action="http://TARGET/x"><button>b</button></form>`, click: "button", leaves: true},
}

// spellings are ways to write an address of the loopback interface.
var spellings = []string{
	"127.0.0.1", "localhost", "a.localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "0.0.0.0", "127.255.0.1", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
	"private.test", "rebinding.test", "private.test.", "①②⑦.⓪.⓪.①", "127。0。0。1",
}

// files are addresses of another kind that a page tries to show in a frame or by a script.
var files = []string{"file:///etc/passwd", "view-source:file:///etc/passwd", "view-source:http://TARGET/", "chrome://version", "devtools://devtools/bundled/inspector.html", "filesystem:http://TARGET/x", "ftp://TARGET/x"}

// canary counts who connects, over TCP and UDP, IPv4 and IPv6, all at one port.
type canary struct {
	hits atomic.Int64
	mu   sync.Mutex // guards said
	said []string   // first lines
	port string
}

func (c *canary) hit(from string) {
	c.hits.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, from)
}

// counting is a listener that tells the canary.
type counting struct {
	net.Listener

	c *canary
}

// Accept implements net.Listener.
func (l counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.c.hit("a connection to " + conn.LocalAddr().String())
	}
	return conn, err
}

// listen starts a canary on all loopback addresses.
func listen(t *testing.T) *canary {
	t.Helper()
	c := &canary{}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.hit(r.Method + " " + r.Host + r.URL.String())
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_, _ = fmt.Fprint(w, "the secret")
	})}
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, c.port, _ = net.SplitHostPort(l.Addr().String())
	all := []net.Listener{l}
	if six, err := config.Listen(t.Context(), "tcp6", "[::]:"+c.port); err == nil {
		all = append(all, six)
	}
	for _, l := range all {
		go func() { _ = server.Serve(counting{l, c}) }()
	}
	udp, err := config.ListenPacket(t.Context(), "udp", ":"+c.port)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 1500)
		for {
			if _, from, err := udp.ReadFrom(buf); err != nil {
				return
			} else {
				c.hit("a packet from " + from.String())
			}
		}
	}()
	t.Cleanup(func() { _, _ = server.Close(), udp.Close() })
	return c
}

// names resolves every name to a loopback address, one of them only from the second time on, and
// remembers what it was asked.
type names struct {
	mu    sync.Mutex // guards asked
	asked map[string]int
}

func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go n.serve(ours)
		return theirs, nil
	}}
}

func (n *names) serve(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		b := make([]byte, int(size[0])<<8|int(size[1]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b) != nil {
			return
		}
		q := m.Questions[0]
		name := strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")
		n.mu.Lock()
		n.asked[name]++
		times := n.asked[name]
		n.mu.Unlock()
		m.Response, m.Additionals = true, nil
		address := netip.MustParseAddr("127.0.0.1")
		if strings.HasPrefix(name, "rebinding") && times == 1 {
			address = netip.MustParseAddr("198.51.100.1") // of nobody
		}
		if q.Type == dnsmessage.TypeA {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: address.As4()},
			})
		}
		out, err := m.Pack()
		if err != nil {
			return
		}
		if _, err := c.Write(append([]byte{byte(len(out) >> 8), byte(len(out))}, out...)); err != nil {
			return
		}
	}
}

// TestNothingLeaks opens pages that try every way to a private address, in every spelling. The
// servers there see nothing. Servers that the operator has allowed see the same attempts.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	needChromium(t)
	for _, namespace := range []bool{true, false} {
		t.Run(fmt.Sprintf("namespace=%v", namespace), func(t *testing.T) {
			t.Parallel()
			leak(t, namespace)
		})
	}
}

func leak(t *testing.T, namespace bool) {
	private, allowed := listen(t), listen(t)
	target := make(chan string, 1) // of the next page
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "http://"+r.URL.RawQuery+"/x", http.StatusFound)
		case "/sw.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = fmt.Fprintf(w, `fetch('http://%s/x', {mode: 'no-cors'})`, r.URL.RawQuery)
		case "/page":
			w.Header().Set("Content-Type", "text/html")
			select {
			case html := <-target:
				_, _ = fmt.Fprint(w, "<!doctype html><title>page</title>", html)
			case <-r.Context().Done(): // asked for again
			}
		case "/favicon.ico":
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(site.Close) // after the browser
	dns := &names{asked: map[string]int{}}
	// The range lets every port through, so that only its address keeps a page from the canary.
	cfg := settings(t, site.Listener.Addr().String()+",127.0.0.1:"+allowed.port+",10.254.0.0/16")
	service, err := browser.NewWith(cfg, natstest.Log(t), dns.resolver(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	run(t, service)
	w := &world{t: t, service: service, web: site}
	w.newSession(id.New[id.Workspace]())

	visit := func(v vector, html string) {
		t.Helper()
		path := "/page"
		if v.html == "redirect" {
			path = "/redirect?" + html
		} else {
			target <- html
		}
		// A page that goes to a private address cannot be loaded.
		if _, err := w.open(path); err == nil && v.click != "" {
			_, _ = w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: v.click, Origin: site.URL})
		}
		select {
		case <-target: // the page was not asked for
		default:
		}
	}
	for _, v := range vectors {
		html := func(to string) string {
			if v.html == "redirect" {
				return to
			}
			return strings.ReplaceAll(v.html, "TARGET", to)
		}
		before := allowed.hits.Load()
		if v.leaves {
			visit(v, html("127.0.0.1:"+private.port))
			visit(v, html("127.0.0.1:"+allowed.port))
		} else {
			visit(v, html("127.0.0.1:"+private.port)+html("127.0.0.1:"+allowed.port))
		}
		if !v.silent && (!v.wired || !service.Isolated()) {
			waitFor(t, v.name+" reaches an allowed server", func() bool { return allowed.hits.Load() > before })
		}
	}
	if namespace && !service.Isolated() {
		t.Log("NOT TESTED: the network namespace, because bubblewrap does not work here")
	}
	for _, host := range spellings {
		before := allowed.hits.Load()
		visit(vector{}, fmt.Sprintf(`<img src="http://%[1]s:%[2]s/x"><script>fetch('http://%[1]s:%[2]s/x',{mode:'no-cors'});new WebSocket('ws://%[1]s:%[2]s/x')</script><img src="http://127.0.0.1:%[3]s/x">`, host, private.port, allowed.port))
		waitFor(t, host+" was tried", func() bool { return allowed.hits.Load() > before })
		// What is no URL is refused before; the browser must never get there either.
		_, _ = w.service.Open(w.ctx, &browserv1.OpenRequest{Url: "http://" + host + ":" + private.port + "/x", Private: true})
	}
	for _, url := range files {
		url = strings.ReplaceAll(url, "TARGET", "127.0.0.1:"+private.port)
		visit(vector{}, fmt.Sprintf(`<iframe src="%[1]s"></iframe><script>fetch('%[1]s').then(r => r.text()).then(s => document.body.append(s), () => {});window.open('%[1]s');location = '%[1]s'</script><p>x`, url))
		if res, err := w.service.Read(w.ctx, &browserv1.ReadRequest{}); err == nil && (strings.Contains(res.GetMarkdown(), "root:") || strings.HasPrefix(res.GetPage().GetUrl(), url)) {
			t.Errorf("%s was shown: %v", url, res)
		}
	}
	if n := private.hits.Load(); n != 0 {
		private.mu.Lock()
		defer private.mu.Unlock()
		t.Errorf("the private server saw %d: %q", n, private.said)
	}
	dns.mu.Lock()
	defer dns.mu.Unlock()
	if dns.asked["private.test"] == 0 || dns.asked["rebinding.test"] == 0 {
		t.Errorf("the proxy did not look up the names that pages used: %v", dns.asked)
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Errorf("not seen: %s", what)
			return
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // nothing announces it
	}
}
