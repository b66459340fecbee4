package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway"
	"signalbox.dev/services/gateway/internal/store"
)

const (
	testIssuer = "https://project.example/auth/v1"
	testSecret = "the project's secret, 32 bytes long!"
)

// keyServer serves a key set with one key of each kind.
type keyServer struct {
	url string
	ec  *ecdsa.PrivateKey
	rsa *rsa.PrivateKey
}

func newKeyServer(t *testing.T) keyServer {
	t.Helper()
	var k keyServer
	var err error
	if k.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	if k.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	point, err := k.ec.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(map[string]any{"keys": []map[string]string{
		{"kty": "EC", "crv": "P-256", "kid": "ec", "x": b64(point[1:33]), "y": b64(point[33:])},
		{"kty": "RSA", "kid": "rsa", "n": b64(k.rsa.N.Bytes()), "e": b64(big.NewInt(int64(k.rsa.E)).Bytes())},
		{"kty": "oct", "kid": "oct", "k": b64([]byte(testSecret))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(srv.Close)
	k.url = srv.URL
	return k
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := newKeyServer(t)
	in := w.gateway(t, func(c *gateway.Config) {
		c.JWT = gateway.JWTConfig{Secret: testSecret, JWKSURL: keys.url, Issuer: testIssuer, Audience: "authenticated"}
		c.TrustedProxies = []string{"127.0.0.0/8"}
	})
	member := w.owner.member.String()
	claims := func(change func(jwt.MapClaims)) jwt.MapClaims {
		c := jwt.MapClaims{
			"iss": testIssuer, "aud": "authenticated", "sub": member, "role": "authenticated",
			"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		}
		if change != nil {
			change(c)
		}
		return c
	}
	sign := func(method jwt.SigningMethod, key any, kid string, change func(jwt.MapClaims)) string {
		tok := jwt.NewWithClaims(method, claims(change))
		if kid != "" {
			tok.Header["kid"] = kid
		}
		s, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	hs := func(change func(jwt.MapClaims)) string {
		return sign(jwt.SigningMethodHS256, []byte(testSecret), "", change)
	}
	set := func(k string, v any) func(jwt.MapClaims) { return func(c jwt.MapClaims) { c[k] = v } }
	public, err := x509.MarshalPKIXPublicKey(&keys.rsa.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	critical := jwt.NewWithClaims(jwt.SigningMethodHS256, claims(nil))
	critical.Header["crit"] = []string{"b64"}
	crit, err := critical.SignedString([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims(nil)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	good := hs(nil)

	asked := 0
	ask := func(token string) answer {
		asked++
		return in.send(t, in.request(t, person{workspace: w.workspace}, "GET", "/api/sessions", "", func(r *http.Request) {
			r.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", asked%200)) // because failures per address are limited
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
		}))
	}
	// A browser's sign-in takes the person's name from the token, and keeps it if there is none.
	named := hs(set("user_metadata", map[string]any{"full_name": " Ada\u202e Lovelace\n"}))
	for _, token := range []string{named, good} {
		cookie := in.signIn(t, fmt.Sprintf(`{"token":%q}`, token), func(r *http.Request) {
			r.Header.Set("User-Agent", strings.Repeat("x", 99)+"é") // whose second byte is cut off
		})
		if me := call[object](t, in, person{}, "GET", "/api/me", "", http.StatusOK, withCookie(cookie)); me["name"] != "Ada Lovelace" || me["email"] != nil {
			t.Errorf("me = %v, want the name Ada Lovelace", me)
		}
	}
	// The key set is fetched in the background.
	eventually(t, "the key set is there", func() bool {
		return ask(sign(jwt.SigningMethodES256, keys.ec, "ec", nil)).status == http.StatusOK
	})
	for name, token := range map[string]string{
		"HS256": good, "ES256": sign(jwt.SigningMethodES256, keys.ec, "ec", nil), "RS256": sign(jwt.SigningMethodRS256, keys.rsa, "rsa", nil),
		"development": w.owner.token, "within the leeway": hs(set("exp", time.Now().Add(-10*time.Second).Unix())),
		"audience in a list": hs(set("aud", []string{"other", "authenticated"})),
	} {
		if got := ask(token); got.status != http.StatusOK {
			t.Errorf("%s token = %d %s, want 200", name, got.status, got.body)
		}
	}
	for name, token := range map[string]string{
		"none":                             "",
		"no JWT":                           "abc",
		"unsigned":                         none,
		"signature of another":             good[:len(good)-8] + "AAAAAAAA",
		"expired":                          hs(set("exp", time.Now().Add(-time.Minute).Unix())),
		"without expiry":                   hs(func(c jwt.MapClaims) { delete(c, "exp") }),
		"not yet valid":                    hs(set("nbf", time.Now().Add(time.Hour).Unix())),
		"of another issuer":                hs(set("iss", "https://evil.example")),
		"for another audience":             hs(set("aud", "other")),
		"the anonymous key":                hs(set("role", "anon")),
		"the service key":                  hs(set("role", "service_role")),
		"subject is no UUID":               hs(set("sub", "admin")),
		"subject is nobody":                hs(set("sub", "00000000-0000-0000-0000-000000000000")),
		"without subject":                  hs(func(c jwt.MapClaims) { delete(c, "sub") }),
		"HS256 with the public RSA key":    sign(jwt.SigningMethodHS256, asPEM, "rsa", nil),
		"RS256 key named by an ES256":      sign(jwt.SigningMethodES256, keys.ec, "rsa", nil),
		"HS512":                            sign(jwt.SigningMethodHS512, []byte(testSecret), "", nil),
		"unknown kid":                      sign(jwt.SigningMethodES256, keys.ec, "other", nil),
		"symmetric key of the set":         sign(jwt.SigningMethodES256, keys.ec, "oct", nil),
		"critical extension":               crit,
		"huge":                             hs(set("x", strings.Repeat("x", 9<<10))),
		"padded":                           good + "=",
		"development secret, other issuer": sign(jwt.SigningMethodHS256, []byte(devSecret), "", nil),
		"unknown API key":                  "sb_" + strings.Repeat("A", 43),
		"API key by its hint":              "sb_",
	} {
		got := ask(token)
		if got.status != http.StatusUnauthorized || got.header.Get("Www-Authenticate") != "Bearer" {
			t.Errorf("%s token = %d %s, want 401", name, got.status, got.body)
		}
		if token != "" && (strings.Contains(got.body, token) || strings.Contains(in.log.String(), token)) {
			t.Errorf("%s token is repeated in the answer or the log", name)
		}
	}
	if got := in.send(t, in.request(t, w.owner, "GET", "/api/sessions", "", func(r *http.Request) { r.Header.Set("Authorization", "Basic "+w.owner.token) })); got.status != http.StatusUnauthorized {
		t.Errorf("another scheme = %d, want 401", got.status)
	}
	if got := in.send(t, in.request(t, person{workspace: w.workspace}, "GET", "/api/sessions?token="+w.owner.token, "", nil)); got.status != http.StatusUnauthorized {
		t.Errorf("token in the URL of no stream = %d, want 401", got.status)
	}
}

func TestKeySetUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) {
		c.JWT = gateway.JWTConfig{JWKSURL: "http://127.0.0.1:1/jwks.json", Issuer: testIssuer, Audience: "authenticated"}
	})
	eventually(t, "the log tells", func() bool { return strings.Contains(in.log.String(), "cannot refresh the key set") })
}

func TestWorkspaceOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	with := func(ws string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-Workspace-Id", ws) }
	}
	for _, tt := range []struct {
		name   string
		p      person
		path   string
		change func(*http.Request)
		want   int
		says   string
	}{
		{"missing", w.owner, "/api/sessions", func(r *http.Request) { r.Header.Del("X-Workspace-Id") }, 400, "X-Workspace-Id"},
		{"not a UUID", w.owner, "/api/sessions", with("7"), 400, "X-Workspace-Id"},
		{"braces", w.owner, "/api/sessions", with("{" + w.workspace.String() + "}"), 400, "X-Workspace-Id"},
		{"not a member", stranger, "/api/sessions", with(w.workspace.String()), 403, "not a member"},
		{"no such workspace", w.owner, "/api/sessions", with(id.New[id.Workspace]().String()), 403, "not a member"},
		{"in the query", w.owner, "/api/sessions?workspace_id=" + w.workspace.String(), func(r *http.Request) { r.Header.Del("X-Workspace-Id") }, 200, ""},
		{"an operation without a workspace", w.owner, "/api/workspaces", func(r *http.Request) { r.Header.Del("X-Workspace-Id") }, 200, ""},
	} {
		got := in.send(t, in.request(t, tt.p, "GET", tt.path, "", tt.change))
		if got.status != tt.want || !strings.Contains(got.body, tt.says) {
			t.Errorf("%s = %d %s, want %d with %q", tt.name, got.status, got.body, tt.want, tt.says)
		}
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	people := map[identity.Role]person{identity.Owner: w.owner}
	for _, r := range []identity.Role{identity.Viewer, identity.Editor} {
		people[r] = w.join(t, w.workspace, r)
	}
	for _, tt := range []struct {
		method, path, body string
		least              identity.Role
	}{
		{"GET", "/api/sessions", "", identity.Viewer},
		{"GET", "/api/sessions/" + session, "", identity.Viewer},
		{"GET", "/api/tools", "", identity.Viewer},
		{"GET", "/api/models", "", identity.Viewer},
		{"GET", "/api/presets", "", identity.Viewer},
		{"PUT", "/api/presets/mine", `{"max_steps":5}`, identity.Owner},
		{"DELETE", "/api/presets/mine", "", identity.Owner},
		{"GET", "/api/usage", "", identity.Viewer},
		{"GET", "/api/budgets", "", identity.Viewer},
		{"PUT", "/api/budgets", `{"scope":"run","steps":5}`, identity.Owner},
		{"DELETE", "/api/budgets/" + id.New[id.Operation]().String(), "", identity.Owner},
		{"GET", "/api/audit", "", identity.Owner},
		{"GET", "/api/mcp-servers/audit", "", identity.Owner},
		{"GET", "/api/documents", "", identity.Viewer},
		{"GET", "/api/workspaces/" + w.workspace.String() + "/members", "", identity.Viewer},
		{"POST", "/api/sessions", "{}", identity.Editor},
		{"PATCH", "/api/sessions/" + session, "{}", identity.Editor},
		{"POST", "/api/sessions/" + session + "/cancel", "", identity.Editor},
		{"POST", "/api/sessions/" + session + "/compact", "", identity.Editor},
		{"POST", "/api/documents", `{"name":"n"}`, identity.Editor},
		{"GET", "/api/keys", "", identity.Owner},
		{"POST", "/api/keys", `{"name":"n"}`, identity.Owner},
		{"POST", "/api/workspaces/" + w.workspace.String() + "/members", `{"member_id":"` + id.New[id.Member]().String() + `","role":"viewer"}`, identity.Owner},
	} {
		for role, p := range people {
			got := in.send(t, in.request(t, p, tt.method, tt.path, tt.body, nil))
			if allowed := got.status < 300; allowed != (role >= tt.least) || !allowed && got.status != http.StatusForbidden {
				t.Errorf("%s %s as %s = %d %s, want allowed from %s on", tt.method, tt.path, role, got.status, got.body, tt.least)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) {
		c.MemberPerMinute, c.MemberBurst, c.MemberStreams = 1, 5, 1
	})
	session := in.newSession(t, w.owner)
	in.open(t, w.owner, "GET", eventsOf(session), "")
	got := in.send(t, in.request(t, w.owner, "GET", eventsOf(session), "", nil))
	if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "TOO_MANY_STREAMS") {
		t.Errorf("second stream = %d %v %s, want 429", got.status, got.header, got.body)
	}
	for range 2 {
		in.send(t, in.request(t, w.owner, "GET", "/api/sessions", "", nil))
	}
	got = in.send(t, in.request(t, w.owner, "GET", "/api/sessions", "", nil))
	seconds, _ := strconv.Atoi(got.header.Get("Retry-After")) // 0 if it is not a number
	if got.status != http.StatusTooManyRequests || seconds < 1 || seconds > 60 || !strings.Contains(got.body, "RATE_LIMITED") {
		t.Errorf("sixth request = %d %v %s, want 429", got.status, got.header, got.body)
	}
	other := w.join(t, w.workspace, identity.Viewer)
	if got := in.send(t, in.request(t, other, "GET", "/api/sessions", "", nil)); got.status != http.StatusOK {
		t.Errorf("somebody else's request = %d, want 200", got.status)
	}
}

// A client that tries keys gets 429. Clients with valid keys at the same address do not, nor,
// behind a trusted proxy, clients at other addresses.
func TestFailedKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.TrustedProxies = []string{"127.0.0.0/8"} })
	guess := func(from, token string) answer {
		r := in.request(t, w.owner, "GET", "/api/sessions", "", nil)
		r.Header.Set("X-Forwarded-For", from)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		return in.send(t, r)
	}
	for i := range 20 {
		token := "sb_wrong"
		if i%2 == 0 {
			token = "no.such.token"
		}
		if got := guess("192.0.2.1", token); got.status != http.StatusUnauthorized {
			t.Fatalf("failure %d = %d %s, want 401", i+1, got.status, got.body)
		}
	}
	got := guess("192.0.2.1", "sb_wrong")
	if wait, _ := strconv.Atoi(got.header.Get("Retry-After")); got.status != http.StatusTooManyRequests || wait < 1 {
		t.Errorf("failure 21 = %d %v %s, want 429 with Retry-After", got.status, got.header, got.body)
	}
	if got := guess("192.0.2.1", ""); got.status != http.StatusOK {
		t.Errorf("a good token from there = %d %s, want 200", got.status, got.body)
	}
	if got := guess("192.0.2.1", store.SessionPrefix+"of_yesterday"); got.status != http.StatusUnauthorized || !strings.Contains(got.body, "SIGNED_OUT") {
		t.Errorf("a browser's session that has ended = %d %s, want 401, so that its page signs in again", got.status, got.body)
	}
	if got := guess("192.0.2.2", "sb_wrong"); got.status != http.StatusUnauthorized {
		t.Errorf("a first failure from elsewhere = %d %s, want 401", got.status, got.body)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	load := func(env ...string) error {
		var c gateway.Config
		return conf.Load(&c, append(env, "DATABASE_URL=postgres://x", "SERVICE_KEY=x"))
	}
	if err := load("GATEWAY_DEV_SECRET=" + devSecret.Reveal()); err != nil {
		t.Errorf("Load with a development secret = %v, want nil", err)
	}
	for name, tt := range map[string]struct {
		env  []string
		says string
	}{
		"nobody":      {nil, "nobody could sign in"},
		"short":       {[]string{"GATEWAY_DEV_SECRET=short"}, "32 bytes"},
		"no issuer":   {[]string{"GATEWAY_JWT_SECRET=" + testSecret}, "GATEWAY_JWT_ISSUER"},
		"bad URL":     {[]string{"GATEWAY_DEV_SECRET=" + devSecret.Reveal(), "AGENT_RUNNER_URL=runner"}, "AGENT_RUNNER_URL"},
		"bad origin":  {[]string{"GATEWAY_DEV_SECRET=" + devSecret.Reveal(), "GATEWAY_CORS_ORIGINS=localhost"}, "GATEWAY_CORS_ORIGINS"},
		"no requests": {[]string{"GATEWAY_DEV_SECRET=" + devSecret.Reveal(), "GATEWAY_MEMBER_STREAMS=0"}, "GATEWAY_MEMBER_STREAMS"},
		"drain":       {[]string{"GATEWAY_DEV_SECRET=" + devSecret.Reveal(), "GATEWAY_DRAIN_LIMIT=1s"}, "GATEWAY_DRAIN_LIMIT"},
	} {
		if err := load(tt.env...); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: Load = %v, want an error about %s", name, err, tt.says)
		}
	}
}
