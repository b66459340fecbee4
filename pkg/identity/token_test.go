package identity_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
)

const (
	issuer   = "https://project.example/auth/v1"
	audience = "authenticated"
	secret   = conf.Secret("a secret of at least thirty-two bytes")
)

// claims are those of a person's access token, good for an hour.
func claims(member string) jwt.MapClaims {
	return jwt.MapClaims{
		"iss": issuer, "aud": audience, "sub": member, "role": "authenticated",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
}

func accessToken(tb testing.TB, method jwt.SigningMethod, key any, kid string, c jwt.MapClaims) string {
	tb.Helper()
	t := jwt.NewWithClaims(method, c)
	if kid != "" {
		t.Header["kid"] = kid
	}
	s, err := t.SignedString(key)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestNewTokenVerifierRefuses(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]identity.TokenConfig{
		"no key":       {Issuer: issuer, Audience: audience},
		"short secret": {Secret: "short", Issuer: issuer, Audience: audience},
		"no issuer":    {Secret: secret, Audience: audience},
		"no audience":  {Secret: secret, Issuer: issuer},
	} {
		if _, err := identity.NewTokenVerifier(cfg); err == nil {
			t.Errorf("NewTokenVerifier(%s) = nil, want an error", name)
		}
	}
}

func TestAccessTokenBySecret(t *testing.T) {
	t.Parallel()
	v, err := identity.NewTokenVerifier(identity.TokenConfig{Secret: secret, Issuer: issuer, Audience: audience})
	if err != nil {
		t.Fatal(err)
	}
	member := id.New[id.Member]()
	got, err := v.Verify(accessToken(t, jwt.SigningMethodHS256, []byte(secret.Reveal()), "", claims(member.String())))
	if err != nil {
		t.Fatalf("Verify = %v", err)
	}
	if got.Member != member || time.Until(got.Expires) > time.Hour || time.Until(got.Expires) < 59*time.Minute {
		t.Errorf("Verify = %+v, want %v with an hour to go", got, member)
	}

	for want, more := range map[string]map[string]any{
		"":    {"name": 1, "user_metadata": "x"},
		"Ada": {"name": "Ada", "user_metadata": map[string]any{"name": "other"}},
		"Bob": {"user_metadata": map[string]any{"full_name": "Bob", "name": "other"}},
		"Eve": {"user_metadata": map[string]any{"name": "Eve"}},
	} {
		c := claims(member.String())
		maps.Copy(c, more)
		if got, err := v.Verify(accessToken(t, jwt.SigningMethodHS256, []byte(secret.Reveal()), "", c)); err != nil || got.Name != want {
			t.Errorf("Verify with %v = %+v, %v, want the name %q", more, got, err, want)
		}
	}

	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hs := func(k string, value any) string {
		c := claims(member.String())
		if c[k] = value; value == nil {
			delete(c, k)
		}
		return accessToken(t, jwt.SigningMethodHS256, []byte(secret.Reveal()), "", c)
	}
	for name, token := range map[string]string{
		"empty":                    "",
		"another secret":           accessToken(t, jwt.SigningMethodHS256, []byte(strings.Repeat("x", 32)), "", claims(member.String())),
		"another HMAC":             accessToken(t, jwt.SigningMethodHS512, []byte(secret.Reveal()), "", claims(member.String())),
		"ES256 without a key set":  accessToken(t, jwt.SigningMethodES256, ec, "k", claims(member.String())),
		"alg none":                 accessToken(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "", claims(member.String())),
		"anonymous key of project": hs("role", "anon"),
		"service key of project":   hs("role", "service_role"),
		"no role":                  hs("role", nil),
		"another issuer":           hs("iss", "https://other.example/auth/v1"),
		"no issuer":                hs("iss", nil),
		"another audience":         hs("aud", "storage"),
		"no audience":              hs("aud", nil),
		"expired":                  hs("exp", time.Now().Add(-time.Minute).Unix()),
		"never expires":            hs("exp", nil),
		"expires in words":         hs("exp", "tomorrow"),
		"not yet":                  hs("nbf", time.Now().Add(time.Minute).Unix()),
		"no subject":               hs("sub", nil),
		"subject is no id":         hs("sub", "alice"),
		"subject in braces":        hs("sub", "{"+member.String()+"}"),
		"subject is nobody":        hs("sub", "00000000-0000-0000-0000-000000000000"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := v.Verify(token); err == nil || got != (identity.Token{}) {
				t.Errorf("Verify = %+v, %v, want nobody and an error", got, err)
			}
		})
	}
}

func TestDevToken(t *testing.T) {
	t.Parallel()
	v, err := identity.NewTokenVerifier(identity.TokenConfig{Secret: secret, Issuer: identity.DevIssuer, Audience: identity.DevAudience})
	if err != nil {
		t.Fatal(err)
	}
	member := id.New[id.Member]()
	token, expires, err := identity.DevToken(secret, member, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	got, err := v.Verify(token)
	if err != nil || got.Member != member || !got.Expires.Equal(expires) {
		t.Errorf("Verify(DevToken) = %+v, %v, want %v until %v", got, err, member, expires)
	}
	late, expired, err := identity.DevToken(secret, member, -20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Verify(late); err != nil || !got.Expires.Equal(expired) || !got.End().After(time.Now()) {
		t.Errorf("Verify of a token that expired 20 s ago = %+v until %v, %v, want it good for a while", got, got.End(), err)
	}
	if _, err := v.Verify(accessToken(t, jwt.SigningMethodHS256, []byte(secret.Reveal()), "", claims(member.String()))); err == nil {
		t.Error("a token of another issuer is taken by the development verifier")
	}
}

// keyServer is a JSON Web Key Set that changes; it counts how often it is read.
type keyServer struct {
	mu     sync.Mutex // guards the rest
	keys   []map[string]any
	body   string // if set, sent instead of keys
	status int
	err    error
	reads  int
	// redirect, if set, is where all other requests are redirected to.
	redirect string
}

func (s *keyServer) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.err != nil {
		return nil, s.err
	}
	if s.redirect != "" && s.redirect != req.URL.String() {
		return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {s.redirect}}, Body: http.NoBody, Request: req}, nil
	}
	body := s.body
	if body == "" {
		b, err := json.Marshal(map[string]any{"keys": s.keys})
		if err != nil {
			return nil, err
		}
		body = string(b)
	}
	status := s.status
	if status == 0 {
		status = http.StatusOK
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

func (s *keyServer) change(f func(*keyServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *keyServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

func b64(n *big.Int, size int) string {
	return base64.RawURLEncoding.EncodeToString(n.FillBytes(make([]byte, size)))
}

func ecJWK(tb testing.TB, kid string, k *ecdsa.PrivateKey) map[string]any {
	tb.Helper()
	point, err := k.PublicKey.Bytes()
	if err != nil {
		tb.Fatal(err)
	}
	enc := base64.RawURLEncoding.EncodeToString
	return map[string]any{"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "alg": "ES256", "x": enc(point[1:33]), "y": enc(point[33:])}
}

func rsaJWK(kid string, k *rsa.PrivateKey) map[string]any {
	return map[string]any{"kty": "RSA", "kid": kid, "n": b64(k.N, k.Size()), "e": b64(big.NewInt(int64(k.E)), 3)}
}

func newEC(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func newRSA(tb testing.TB) *rsa.PrivateKey {
	tb.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// running starts a verifier of server's keys, in a synctest bubble. Its Run ends with the test.
func running(t *testing.T, server *keyServer) *identity.TokenVerifier {
	t.Helper()
	v, err := identity.NewTokenVerifier(identity.TokenConfig{
		Secret: secret, JWKSURL: "https://project.example/jwks.json", Issuer: issuer, Audience: audience, HTTP: &http.Client{Transport: server},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	synctest.Wait()
	return v
}

func TestAccessTokenByKeySet(t *testing.T) {
	t.Parallel()
	ec, rs := newEC(t), newRSA(t)
	synctest.Test(t, func(t *testing.T) {
		server := &keyServer{keys: []map[string]any{ecJWK(t, "ec", ec), rsaJWK("rsa", rs)}}
		v := running(t, server)
		member := id.New[id.Member]()
		c := claims(member.String())
		for name, token := range map[string]string{
			"ES256": accessToken(t, jwt.SigningMethodES256, ec, "ec", c),
			"RS256": accessToken(t, jwt.SigningMethodRS256, rs, "rsa", c),
			"HS256": accessToken(t, jwt.SigningMethodHS256, []byte(secret.Reveal()), "", c),
		} {
			if got, err := v.Verify(token); err != nil || got.Member != member {
				t.Errorf("Verify(%s) = %+v, %v, want %v", name, got, err, member)
			}
		}
		public, err := ec.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		for name, token := range map[string]string{
			"no kid":                   accessToken(t, jwt.SigningMethodES256, ec, "", c),
			"unknown kid":              accessToken(t, jwt.SigningMethodES256, ec, "other", c),
			"kid of another algorithm": accessToken(t, jwt.SigningMethodES256, ec, "rsa", c),
			"RSA with PSS":             accessToken(t, jwt.SigningMethodPS256, rs, "rsa", c),
			"key of a stranger":        accessToken(t, jwt.SigningMethodES256, newEC(t), "ec", c),
			"HMAC with a public key":   accessToken(t, jwt.SigningMethodHS256, public, "ec", c),
		} {
			if got, err := v.Verify(token); err == nil {
				t.Errorf("Verify(%s) = %+v, want an error", name, got)
			}
		}
	})
}

// The URL of a key set may contain a key, and must not be logged.
func TestKeySetHidesItsURL(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"https://u:hunter2@project.example/jwks", "https://project.example/jwks?apikey=hunter2", "https://u:hunter2 %zz@project.example"} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			v, err := identity.NewTokenVerifier(identity.TokenConfig{
				JWKSURL: address, Issuer: issuer, Audience: audience, HTTP: &http.Client{Transport: nobody{}}, Log: slog.New(slog.NewTextHandler(&out, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := v.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
			if got := out.String(); !strings.Contains(got, "cannot refresh") || strings.Contains(got, "hunter2") {
				t.Errorf("with %s it logs %s", address, got)
			}
		})
	}
}

// nobody answers.
type nobody struct{}

func (nobody) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("nobody is there")
}

// The owner of a redirect's target could supply keys.
func TestKeySetFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	key := newEC(t)
	synctest.Test(t, func(t *testing.T) {
		server := &keyServer{keys: []map[string]any{ecJWK(t, "1", key)}, redirect: "https://elsewhere.example/jwks.json"}
		v := running(t, server)
		if _, err := v.Verify(accessToken(t, jwt.SigningMethodES256, key, "1", claims(id.New[id.Member]().String()))); err == nil {
			t.Error("Verify by a key behind a redirect = nil, want an error")
		}
		server.mu.Lock()
		defer server.mu.Unlock()
		if server.reads != 1 {
			t.Errorf("the key set was asked for %d times, want once", server.reads)
		}
	})
}

func TestKeySetRotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newEC(t), newEC(t)
		server := &keyServer{keys: []map[string]any{ecJWK(t, "1", first)}}
		v := running(t, server)
		byFirst := func() error {
			_, err := v.Verify(accessToken(t, jwt.SigningMethodES256, first, "1", claims(id.New[id.Member]().String())))
			return err
		}
		bySecond := func() error {
			_, err := v.Verify(accessToken(t, jwt.SigningMethodES256, second, "2", claims(id.New[id.Member]().String())))
			return err
		}
		if err := byFirst(); err != nil {
			t.Fatalf("Verify by the first key = %v", err)
		}
		server.change(func(s *keyServer) { s.keys = append(s.keys, ecJWK(t, "2", second)) })
		for range 1000 { // a flood of unknown keys causes no requests to the key server
			if bySecond() == nil {
				t.Fatal("Verify by a key that was not fetched = nil, want an error")
			}
		}
		if n := server.count(); n != 1 {
			t.Errorf("the key set was read %d times within 30 s, want once", n)
		}
		<-time.After(30*time.Second + time.Millisecond)
		synctest.Wait()
		if n := server.count(); n != 2 {
			t.Errorf("the key set was read %d times after 30 s, want twice", n)
		}
		if err := errors.Join(byFirst(), bySecond()); err != nil {
			t.Errorf("Verify after the rotation = %v", err)
		}

		// However the key server fails, the last good keys stay.
		for _, broken := range []func(*keyServer){
			func(s *keyServer) { s.err = errors.New("no route") },
			func(s *keyServer) { s.err, s.status = nil, http.StatusBadGateway },
			func(s *keyServer) { s.status, s.body = 0, "<html>" },
			func(s *keyServer) { s.body = `{"keys":[]}` },
			func(s *keyServer) { s.body = `{"keys":[],"pad":"` + strings.Repeat("x", 64<<10) + `"}` },
		} {
			server.change(broken)
			before := server.count()
			<-time.After(10 * time.Minute)
			synctest.Wait()
			if server.count() == before {
				t.Error("the key set was not read for 10 minutes")
			}
			if err := errors.Join(byFirst(), bySecond()); err != nil {
				t.Errorf("Verify while the key server is broken = %v", err)
			}
		}

		// A withdrawn key is accepted for ten minutes at most.
		server.change(func(s *keyServer) { s.body, s.keys = "", s.keys[1:] })
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if err := byFirst(); err == nil {
			t.Error("Verify by a withdrawn key = nil, want an error")
		}
		if err := bySecond(); err != nil {
			t.Errorf("Verify by the key that stays = %v", err)
		}
	})
}

// Keys that must not verify anything are skipped, and the good key beside them works.
func TestKeySetSkips(t *testing.T) {
	t.Parallel()
	good, bad, weak := newEC(t), newEC(t), newRSA(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	change := func(k string, v any) map[string]any {
		jwk := ecJWK(t, "bad", bad)
		jwk[k] = v
		return jwk
	}
	short := rsaJWK("bad", weak)
	short["n"] = b64(new(big.Int).Rsh(weak.N, 1024), 256) // leading zeros do not make it a 2048-bit key
	huge := rsaJWK("bad", weak)
	huge["e"] = b64(new(big.Int).Lsh(big.NewInt(1), 70), 9)
	one := rsaJWK("bad", weak)
	one["e"] = "AQ"
	for name, jwk := range map[string]any{
		"symmetric":               map[string]any{"kty": "oct", "kid": "bad", "k": base64.RawURLEncoding.EncodeToString([]byte(secret.Reveal())), "alg": "HS256"},
		"for encryption":          change("use", "enc"),
		"no kid":                  change("kid", ""),
		"for another algorithm":   change("alg", "ES384"),
		"another curve":           change("crv", "P-384"),
		"not on the curve":        change("y", b64(big.NewInt(5), 32)),
		"short coordinate":        change("x", "AQ"),
		"no base64":               change("x", "!"),
		"kid is a number":         change("kid", 7),
		"x is an object":          change("x", map[string]any{}),
		"a string":                "key",
		"null":                    nil,
		"weak RSA":                short,
		"RSA of a huge exponent":  huge,
		"RSA of the exponent one": one,
		"RSA for PSS":             func() any { k := rsaJWK("bad", weak); k["alg"] = "PS256"; return k }(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				body, err := json.Marshal(map[string]any{"keys": []any{jwk, ecJWK(t, "good", good)}})
				if err != nil {
					t.Fatal(err)
				}
				v := running(t, &keyServer{body: string(body)})
				c := claims(id.New[id.Member]().String())
				if _, err := v.Verify(accessToken(t, jwt.SigningMethodES256, good, "good", c)); err != nil {
					t.Errorf("Verify by the good key = %v", err)
				}
				for _, token := range []string{
					accessToken(t, jwt.SigningMethodES256, bad, "bad", c),
					accessToken(t, jwt.SigningMethodRS256, weak, "bad", c),
					accessToken(t, jwt.SigningMethodES384, p384, "bad", c),
				} {
					if got, err := v.Verify(token); err == nil {
						t.Errorf("Verify by a key to be skipped = %+v, want an error", got)
					}
				}
			})
		})
	}
}

func TestRunWithoutKeySet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v, err := identity.NewTokenVerifier(identity.TokenConfig{Secret: secret, Issuer: issuer, Audience: audience})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- v.Run(ctx) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Run = %v before its context ended", err)
		default:
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func FuzzKeySet(f *testing.F) {
	ec := newEC(f)
	body, err := json.Marshal(map[string]any{"keys": []any{ecJWK(f, "k", ec)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(body))
	f.Add(`{"keys":[{"kty":"RSA","kid":"k","n":"AQAB","e":"AQAB"}]}`)
	f.Add(`{"keys":[null,1,"x",{}]}`)
	stranger := accessToken(f, jwt.SigningMethodES256, newEC(f), "k", claims(id.New[id.Member]().String()))
	f.Fuzz(func(t *testing.T, body string) {
		synctest.Test(t, func(t *testing.T) {
			v := running(t, &keyServer{body: body})
			if got, err := v.Verify(stranger); err == nil {
				t.Errorf("Verify = %+v, want an error", got)
			}
		})
	})
}
