package gateway_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway"
)

// dial opens a socket as a browser does, with the token in the URL.
func (in *instance) dial(t testing.TB, p person, path string, header http.Header) *websocket.Conn {
	t.Helper()
	q := url.Values{}
	if p.token != "" {
		q.Set("token", p.token)
	}
	if !id.IsZero(p.workspace) {
		q.Set("workspace_id", p.workspace.String())
	}
	return in.dialURL(t, path+"?"+q.Encode(), header)
}

func (in *instance) dialURL(t testing.TB, target string, header http.Header) *websocket.Conn {
	t.Helper()
	dialer := websocket.Dialer{EnableCompression: true} // as browsers offer it
	c, res, err := dialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(in.url, "http")+target, header)
	if err != nil {
		if res != nil {
			b, _ := io.ReadAll(res.Body)
			t.Fatalf("open a socket: %v: %s %s", err, res.Status, b)
		}
		t.Fatalf("open a socket: %v", err)
	}
	res.Body.Close()
	t.Cleanup(func() { c.Close() })
	return c
}

func someDocument() string { return "/ws/documents/" + uuid.NewString() }

// receive returns the next message.
func receive(t testing.TB, c *websocket.Conn) []byte {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, msg, err := c.ReadMessage()
	if err != nil {
		t.Fatalf("next message: %v", err)
	}
	return msg
}

func transmit(t testing.TB, c *websocket.Conn, msg string) {
	t.Helper()
	if err := c.WriteMessage(websocket.BinaryMessage, []byte(msg)); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// closing returns the code and the reason of a socket's close frame, or 1006 without one.
func closing(t testing.TB, c *websocket.Conn) (code int, reason string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	for {
		_, _, err := c.ReadMessage()
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[*websocket.CloseError](err); ok {
			return e.Code, e.Text
		}
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Fatalf("not closed in %s", patience)
		}
		return websocket.CloseAbnormalClosure, err.Error()
	}
}

// wantClosed fails unless a socket is closed with the code and a reason that contains says.
func wantClosed(t testing.TB, what string, c *websocket.Conn, want int, says string) {
	t.Helper()
	if got, reason := closing(t, c); got != want || !strings.Contains(reason, says) {
		t.Errorf("%s: closed with %d %q, want %d that says %q", what, got, reason, want, says)
	}
}

// seat returns the next socket that arrives at document-sync.
func (f *fakeSync) seat(t testing.TB) *seat {
	t.Helper()
	select {
	case s := <-f.seats:
		return s
	case <-time.After(patience):
		t.Fatal("no socket arrived at document-sync")
		return nil
	}
}

// left waits for the end of a socket at document-sync.
func (s *seat) left(t testing.TB) left {
	t.Helper()
	select {
	case l := <-s.ended:
		return l
	case <-time.After(patience):
		t.Fatal("the socket at document-sync did not end")
		return left{}
	}
}

// connected opens a socket and waits until it is relayed.
func (in *instance) connected(t testing.TB, p person) (*websocket.Conn, *seat) {
	t.Helper()
	c := in.dial(t, p, someDocument(), nil)
	if got := string(receive(t, c)); got != hello {
		t.Fatalf("first message = %q, want %q", got, hello)
	}
	return c, in.w.sync.seat(t)
}

func TestSocketIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	viewer := w.join(t, w.workspace, identity.Viewer)
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	key := call[map[string]any](t, in, w.owner, "POST", "/api/keys", `{"name":"k","role":"editor"}`, http.StatusCreated)
	secret, _ := key["secret"].(string)
	if secret == "" {
		t.Fatalf("create a key = %v, want a secret", key)
	}
	made, _ := key["key"].(map[string]any)
	keyID := id.Must[id.APIKey](fmt.Sprint(made["id"]))
	ws, doc := w.workspace.String(), someDocument()
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

	letIn := func() {
		for name, tt := range map[string]struct {
			target string
			header http.Header
			want   identity.Actor
			ends   bool
		}{
			"URL":             {doc + "?token=" + w.owner.token + "&workspace_id=" + ws, nil, identity.Actor{Member: w.owner.member, Role: identity.Owner}, true},
			"headers":         {doc, http.Header{"Authorization": {"Bearer " + viewer.token}, "X-Workspace-Id": {ws}}, identity.Actor{Member: viewer.member, Role: identity.Viewer}, true},
			"key in a header": {doc, bearer(secret), identity.Actor{Member: w.owner.member, Role: identity.Editor, Key: keyID}, false},
			"key in the URL":  {doc + "?workspace_id=" + ws + "&token=" + secret, nil, identity.Actor{Member: w.owner.member, Role: identity.Editor, Key: keyID}, false},
			"Hocuspocus":      {"/ws/hocuspocus?token=" + w.owner.token + "&workspace_id=" + ws, nil, identity.Actor{Member: w.owner.member, Role: identity.Owner}, true},
		} {
			c := in.dialURL(t, tt.target, tt.header)
			if got := string(receive(t, c)); got != hello {
				t.Errorf("%s: first message = %q, want %q", name, got, hello)
			}
			s := w.sync.seat(t)
			tt.want.Workspace, tt.want.Service = w.workspace, gateway.Name
			if diff := cmp.Diff(tt.want, s.actor); diff != "" {
				t.Errorf("%s: actor (-want +got):\n%s", name, diff)
			}
			expires := s.opening.Expires
			if left := time.Until(time.Unix(expires, 0)); tt.ends && (left < 50*time.Minute || left > 70*time.Minute) {
				t.Errorf("%s: the token expires at %d, in %s, want about an hour from now", name, expires, left)
			}
			if !tt.ends && expires != 0 {
				t.Errorf("%s: the token expires at %d, want never", name, expires)
			}
			wantPath, _, _ := strings.Cut(tt.target, "?")
			if s.opening.Path != wantPath {
				t.Errorf("%s: document-sync was asked for %s, want %s", name, s.opening.Path, wantPath)
			}
			c.Close()
		}
	}
	refused := func() {
		for name, tt := range map[string]struct {
			target string
			header http.Header
			code   int
			says   string
		}{
			"no token":           {doc + "?workspace_id=" + ws, nil, 4401, "no token"},
			"bad token":          {doc + "?workspace_id=" + ws + "&token=x", nil, 4401, "sign in again"},
			"expired token":      {doc + "?workspace_id=" + ws + "&token=" + devToken(t, w.owner.member, -time.Minute), nil, 4401, "expired"},
			"no such key":        {doc + "?workspace_id=" + ws + "&token=sb_none", nil, 4401, "revoked"},
			"header over URL":    {doc + "?workspace_id=" + ws + "&token=" + w.owner.token, bearer("x"), 4401, "sign in again"},
			"stranger":           {doc + "?workspace_id=" + ws + "&token=" + stranger.token, nil, 4403, "not a member"},
			"key of elsewhere":   {doc + "?workspace_id=" + stranger.workspace.String() + "&token=" + secret, nil, 4403, "another workspace"},
			"no workspace":       {doc + "?token=" + w.owner.token, nil, 4400, "X-Workspace-Id"},
			"bad workspace":      {doc + "?workspace_id=x&token=" + w.owner.token, nil, 4400, "X-Workspace-Id"},
			"no such document":   {"/ws/documents/" + absentDocument + "?workspace_id=" + ws + "&token=" + w.owner.token, nil, 4404, "no such document"},
			"no document's id":   {"/ws/documents/x?workspace_id=" + ws + "&token=" + w.owner.token, nil, 4404, "no such document"},
			"Hocuspocus, bad":    {"/ws/hocuspocus?workspace_id=" + ws + "&token=x", nil, 4401, "sign in again"},
			"Hocuspocus, no one": {"/ws/hocuspocus?token=" + w.owner.token, nil, 4400, "X-Workspace-Id"},
		} {
			wantClosed(t, name, in.dialURL(t, tt.target, tt.header), tt.code, tt.says)
		}
	}
	letIn()
	refused()
	for _, secret := range []string{w.owner.token, viewer.token, stranger.token, secret, "token="} {
		if strings.Contains(in.log.String(), secret) {
			t.Errorf("log of the gateway holds %q", secret)
		}
	}
	metrics := in.metrics(t)
	for _, want := range []string{
		`gateway_sockets_closed_total{code="4401"} 6`, `gateway_sockets_closed_total{code="4403"} 2`, `gateway_sockets_closed_total{code="4400"} 3`,
		`gateway_http_requests_total{route="GET /ws/documents/{id}",status="101"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(metrics, "4404 ") || strings.Contains(metrics, w.owner.token) {
		t.Error("metrics hold more than they should")
	}
}

func (in *instance) metrics(t testing.TB) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	return in.send(t, req).body
}

// TestSocketRequestIsRebuilt checks that document-sync gets only what the gateway writes.
func TestSocketRequestIsRebuilt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	viewer := w.join(t, w.workspace, identity.Viewer)
	forged, err := identity.NewSigner(gateway.Name, w.key).Sign(identity.Actor{Workspace: w.workspace, Member: w.owner.member, Role: identity.Owner}, "document-sync")
	if err != nil {
		t.Fatal(err)
	}
	path := someDocument()
	c := in.dial(t, viewer, path, http.Header{
		identity.Header: {forged}, "Signalbox-Token-Expires": {"99999999999"}, "X-Forwarded-For": {"10.0.0.1"}, "Forwarded": {"for=10.0.0.1"},
		"Cookie": {"a=b"}, "Authorization": {"Bearer " + viewer.token}, "X-Workspace-Id": {w.workspace.String()}, "Origin": {in.url},
		"Sec-Websocket-Protocol": {"token." + viewer.token}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	})
	receive(t, c)
	s := w.sync.seat(t)
	if s.actor.Role != identity.Viewer || s.actor.Member != viewer.member {
		t.Errorf("actor = %+v, want the viewer", s.actor)
	}
	if s.opening.Expires == 99999999999 || s.opening.Path != path {
		t.Errorf("document-sync was asked %+v, want %s with the token's own end", s.opening, path)
	}
	w.sync.mu.Lock()
	defer w.sync.mu.Unlock()
	for _, r := range w.sync.asks { // for mux
		got := slices.Sorted(maps.Keys(r.Header))
		if diff := cmp.Diff([]string{"Connection", identity.Header, "Upgrade", "User-Agent"}, got); diff != "" || r.RequestURI != "/trunk" {
			t.Errorf("headers at document-sync of %s (-want +got):\n%s", r.RequestURI, diff)
		}
		if r.Header.Get(identity.Header) == forged {
			t.Error("the client's context came through")
		}
	}
}

func TestSocketOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.CORSOrigins = []string{" https://page.example/ "} })
	for _, origin := range []string{in.url, strings.ToUpper(in.url), "https://page.example", ""} {
		h := http.Header{}
		if origin != "" {
			h.Set("Origin", origin)
		}
		c := in.dial(t, w.owner, someDocument(), h)
		receive(t, c)
		c.Close()
	}
	for _, origin := range []string{"https://elsewhere.example", "https://page.example.elsewhere.example", "null", "file://"} {
		got := in.handshake(t, someDocument()+"?token="+w.owner.token, func(r *http.Request) { r.Header.Set("Origin", origin) })
		if got.status != http.StatusForbidden || !strings.Contains(got.body, "ORIGIN_NOT_ALLOWED") {
			t.Errorf("origin %s: %d %s, want 403", origin, got.status, got.body)
		}
	}
	all := w.gateway(t, func(c *gateway.Config) { c.CORSOrigins = []string{"*"} })
	receive(t, all.dial(t, w.owner, someDocument(), http.Header{"Origin": {"https://elsewhere.example"}}))
}

// handshake sends a WebSocket handshake that is refused, and returns the answer.
func (in *instance) handshake(t testing.TB, path string, change func(*http.Request)) answer {
	t.Helper()
	return in.send(t, in.request(t, person{}, "GET", path, "", func(r *http.Request) {
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}}
		change(r)
	}))
}

func TestSocketHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	wantError := func(what string, got answer, status int) {
		t.Helper()
		var e struct{ Error, Code string }
		if err := json.Unmarshal([]byte(got.body), &e); err != nil || e.Error == "" || got.status != status || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s = %d %v %s, want %d with our error", what, got.status, got.header, got.body, status)
		}
	}
	for _, path := range []string{someDocument(), "/ws/hocuspocus"} {
		wantError("GET "+path, in.send(t, in.request(t, w.owner, "GET", path, "", nil)), http.StatusUpgradeRequired)
	}
	wantError("another version", in.handshake(t, someDocument(), func(r *http.Request) { r.Header.Set("Sec-Websocket-Version", "8") }), http.StatusBadRequest)
	wantError("no key", in.handshake(t, someDocument(), func(r *http.Request) { r.Header.Del("Sec-Websocket-Key") }), http.StatusBadRequest)
	wantError("POST", in.send(t, in.request(t, w.owner, "POST", someDocument(), "", nil)), http.StatusNotFound)
}

func TestSocketRelays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	c, s := in.connected(t, w.owner)
	for _, n := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20} {
		msg := bytes.Repeat([]byte{byte(n), 7}, (n+1)/2)[:n]
		transmit(t, c, string(msg))
		if got := receive(t, c); !bytes.Equal(got, msg) {
			t.Fatalf("%d bytes came back as %d", n, len(got))
		}
	}
	const many = 1000
	var writes sync.WaitGroup
	writes.Go(func() {
		for i := range many {
			_ = c.WriteMessage(websocket.BinaryMessage, fmt.Append(nil, i)) // a missing message is noticed below
		}
	})
	for i := range many {
		if got := string(receive(t, c)); got != strconv.Itoa(i) {
			t.Fatalf("message %d = %q", i, got)
		}
	}
	writes.Wait()
	pongs := make(chan string, 1)
	c.SetPongHandler(func(data string) error { pongs <- data; return nil })
	if err := c.WriteControl(websocket.PingMessage, []byte("are you there"), time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	transmit(t, c, "x")
	receive(t, c) // the pong may come after it
	transmit(t, c, "y")
	receive(t, c)
	if got := <-pongs; got != "are you there" {
		t.Errorf("pong = %q", got)
	}
	if err := c.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(4200, "enough")); err != nil {
		t.Fatal(err)
	}
	if l := s.left(t); l.code != 4200 {
		t.Errorf("document-sync saw the end %+v, want 4200", l)
	}
	wantClosed(t, "the client's own close", c, 4200, "")
	for _, want := range []string{`gateway_sockets_closed_total{code="other"} 1`, "gateway_sockets_open 0"} {
		eventually(t, want, func() bool { return strings.Contains(in.metrics(t), want) })
	}
	if m := in.metrics(t); !strings.Contains(m, `gateway_sockets_bytes_total{direction="down"} 1.`) || !strings.Contains(m, `gateway_sockets_bytes_total{direction="up"} 1.`) {
		t.Errorf("metrics do not count the bytes:\n%s", m)
	}
}

// TestSocketSidesEndTogether checks how each side of a socket ends when the other side does.
func TestSocketSidesEndTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for does, want := range map[string]struct {
		code int
		says string
	}{
		"close":          {4404, "deleted"},
		"die":            {1013, "try again"},
		"reset":          {1013, "try again"},
		"die in a frame": {1006, ""},
	} {
		c, _ := in.connected(t, w.owner)
		transmit(t, c, does)
		wantClosed(t, does, c, want.code, want.says)
	}
	for what, leave := range map[string]func(*net.TCPConn) error{
		"closes":          (*net.TCPConn).Close,
		"resets":          func(c *net.TCPConn) error { _ = c.SetLinger(0); return c.Close() },
		"closes its side": (*net.TCPConn).CloseWrite,
	} {
		c, s := in.connected(t, w.owner)
		tcp, ok := c.NetConn().(*net.TCPConn)
		if !ok {
			t.Fatal("not a TCP connection")
		}
		if err := leave(tcp); err != nil {
			t.Fatal(err)
		}
		if l := s.left(t); l.code != 1006 {
			t.Errorf("client %s: document-sync saw the end %+v, want 1006", what, l)
		}
	}
}

func TestSocketWithoutDocumentSync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusNotFound, http.StatusUnauthorized, http.StatusOK} {
		w.sync.set(status, nil)
		wantClosed(t, http.StatusText(status), in.dial(t, w.owner, someDocument(), nil), 1013, "try again")
	}
	alone := w.gateway(t, func(c *gateway.Config) { c.DocumentSyncURL = "http://127.0.0.1:1" })
	wantClosed(t, "nobody listens", alone.dial(t, w.owner, someDocument(), nil), 1013, "try again")
}

// TestSocketsEndWithThePermission checks that sockets end with the token and with the membership.
func TestSocketsEndWithThePermission(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	leaver := w.join(t, w.workspace, identity.Editor)
	stays, _ := in.connected(t, w.owner)
	c, s := in.connected(t, leaver)
	expiring := leaver
	// Tokens are accepted for another 30 s, because clocks differ.
	expiring.member, expiring.token = w.owner.member, devToken(t, w.owner.member, -26*time.Second)
	late, _ := in.connected(t, expiring)
	demoted := w.join(t, w.workspace, identity.Editor)
	writes, _ := in.connected(t, demoted)
	got := in.send(t, in.request(t, w.owner, "PATCH", "/api/workspaces/"+demoted.workspace.String()+"/members/"+demoted.member.String(), `{"role":"viewer"}`, nil))
	if got.status != http.StatusOK {
		t.Fatalf("make an editor a viewer = %d %s", got.status, got.body)
	}
	wantClosed(t, "an editor's who is a viewer now", writes, 4403, "membership")
	in.remove(t, w.owner, leaver)
	wantClosed(t, "a removed member's", c, 4403, "membership")
	_ = s.left(t)
	wantClosed(t, "an expired token's", late, 4401, "expired")
	transmit(t, stays, "still here")
	if got := string(receive(t, stays)); got != "still here" {
		t.Errorf("the owner's socket = %q", got)
	}
}

// remove ends a membership.
func (in *instance) remove(t testing.TB, by, who person) {
	t.Helper()
	got := in.send(t, in.request(t, by, "DELETE", "/api/workspaces/"+who.workspace.String()+"/members/"+who.member.String(), "", nil))
	if got.status != http.StatusOK {
		t.Fatalf("remove a member = %d %s", got.status, got.body)
	}
}

// TestPermissionEndsWhileASocketOpens checks that a membership that ends while the socket is being
// opened ends it.
func TestPermissionEndsWhileASocketOpens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	begin := make(chan struct{})
	defer close(begin)
	w.sync.set(0, begin)
	leaver := w.join(t, w.workspace, identity.Editor)
	c := in.dial(t, leaver, someDocument(), nil)
	<-w.sync.asked
	in.remove(t, w.owner, leaver)
	wantClosed(t, "a removed member's", c, 4403, "membership")
}

func TestSocketLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.join(t, w.workspace, identity.Editor)
	in := w.gateway(t, func(c *gateway.Config) { c.MemberSockets, c.WorkspaceSockets = 1, 2 })
	first, _ := in.connected(t, w.owner)
	wantClosed(t, "their second", in.dial(t, w.owner, someDocument(), nil), 1013, "close one first")
	in.connected(t, other)
	wantClosed(t, "the workspace's third", in.dial(t, w.join(t, w.workspace, identity.Viewer), someDocument(), nil), 1013, "this workspace")
	first.Close()
	eventually(t, "room for another one", func() bool {
		c := in.dial(t, w.owner, someDocument(), nil)
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, _, err := c.ReadMessage()
		return err == nil
	})
	full := w.gateway(t, func(c *gateway.Config) { c.Sockets = 1 })
	full.connected(t, w.owner)
	wantClosed(t, "the gateway's second", full.dial(t, other, someDocument(), nil), 1013, "too many open sockets")
	slow := w.gateway(t, func(c *gateway.Config) { c.MemberPerMinute, c.MemberBurst = 1, 1 })
	slow.connected(t, w.owner)
	wantClosed(t, "too many requests", slow.dial(t, w.owner, someDocument(), nil), 1013, "too many requests")
}

func TestSocketsDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.DrainWindow = 200 * time.Millisecond })
	var open []*websocket.Conn
	for range 10 {
		c, _ := in.connected(t, w.owner)
		open = append(open, c)
	}
	begin := make(chan struct{})
	defer close(begin)
	w.sync.set(0, begin)
	fresh := w.gateway(t) // without a connection
	asking := fresh.dial(t, w.owner, someDocument(), nil)
	<-w.sync.asked
	silent := in.dial(t, person{workspace: w.workspace}, "/ws/hocuspocus", nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		go fresh.stop()
		in.stop()
	}()
	for i, c := range append(open, asking, silent) {
		wantClosed(t, "socket "+strconv.Itoa(i), c, 1012, "connect again")
	}
	<-done
}

// TestSilentDocumentSync checks that a document-sync that hangs is detected in time for editors to
// reconnect elsewhere within 10 s.
func TestSilentDocumentSync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sync.ignorePings()
	in := w.gateway(t)
	c, s := in.connected(t, w.owner)
	begin := time.Now()
	wantClosed(t, "after silence", c, 1013, "does not answer")
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("a silent document-sync was noticed after %v, want 8s at most", took)
	}
	_ = s.left(t)
}

// TestSlowSocketIsCut checks that a client that does not read does not block document-sync.
func TestSlowSocketIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.WriteTimeout = time.Second })
	c, s := in.connected(t, w.owner)
	transmit(t, c, "flood")
	_ = s.left(t)
	wantClosed(t, "the slow client's", c, 1006, "")
}
