package identity_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
)

func newKey(tb testing.TB) identity.Key {
	tb.Helper()
	k, err := identity.NewKey()
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// private returns the Ed25519 key of k, for tokens that Sign would never make.
func private(tb testing.TB, k identity.Key) ed25519.PrivateKey {
	tb.Helper()
	seed, err := base64.RawURLEncoding.DecodeString(k.Encode())
	if err != nil {
		tb.Fatal(err)
	}
	return ed25519.NewKeyFromSeed(seed)
}

func newVerifier(tb testing.TB, audience string, trusted map[string]string) *identity.Verifier {
	tb.Helper()
	v, err := identity.NewVerifier(audience, trusted)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func TestSignedContext(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	verifier := newVerifier(t, "agent-runner", map[string]string{"gateway": key.Public()})
	signer := identity.NewSigner("gateway", key)

	person := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
	inRun := person
	inRun.Run, inRun.Session = id.New[id.Run](), id.New[id.Session]()
	from := person
	from.Address = "2001:db8::7"

	byKey := person
	byKey.Key = id.New[id.APIKey]()

	for name, actor := range map[string]identity.Actor{"a person": person, "a run": inRun, "with an address": from, "an API key": byKey} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token, err := signer.Sign(actor, "agent-runner")
			if err != nil {
				t.Fatal(err)
			}
			got, err := verifier.Verify(token)
			if err != nil {
				t.Fatalf("Verify = %v", err)
			}
			want := actor
			want.Service = "gateway"
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("Verify (-want +got):\n%s", d)
			}
		})
	}
}

func TestSignedContextExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		key := newKey(t)
		verifier := newVerifier(t, "b", map[string]string{"a": key.Public()})
		token, err := identity.NewSigner("a", key).Sign(identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Viewer}, "b")
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(89 * time.Second) // 60 s of lifetime and 30 s of leeway
		if _, err := verifier.Verify(token); err != nil {
			t.Errorf("Verify after 89 s = %v, want it to be good", err)
		}
		<-time.After(2 * time.Second)
		if _, err := verifier.Verify(token); err == nil {
			t.Error("Verify after 91 s = nil, want an error")
		}
	})
}

// A context is reused while it is young, and only for the same actor and audience.
func TestContextIsReused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signer := identity.NewSigner("a", newKey(t))
		sign := func(a identity.Actor, audience string) string {
			t.Helper()
			token, err := signer.Sign(a, audience)
			if err != nil {
				t.Fatal(err)
			}
			return token
		}
		person := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
		first := sign(person, "b")
		<-time.After(19 * time.Second)
		if sign(person, "b") != first {
			t.Error("the context after 19 s differs")
		}
		viewer, inRun, elsewhere := person, person, person
		viewer.Role = identity.Viewer
		inRun.Run, inRun.Session = id.New[id.Run](), id.New[id.Session]()
		elsewhere.Address = "192.0.2.7"
		for name, other := range map[string]string{
			"role": sign(viewer, "b"), "run": sign(inRun, "b"), "address": sign(elsewhere, "b"), "audience": sign(person, "c"),
		} {
			if other == first {
				t.Errorf("the context for another %s is the same", name)
			}
		}
		<-time.After(time.Second)
		if sign(person, "b") == first {
			t.Error("the context after 20 s is the same")
		}
	})
}

// What an attacker, or a service with a bug, might send.
func TestForgedContext(t *testing.T) {
	t.Parallel()
	key, other := newKey(t), newKey(t)
	verifier := newVerifier(t, "agent-runner", map[string]string{"gateway": key.Public(), "tool-executor": other.Public()})

	now := time.Now()
	good := func() jwt.MapClaims {
		return jwt.MapClaims{
			"iss": "gateway", "aud": []string{"agent-runner"}, "sub": id.New[id.Member]().String(),
			"iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
			"ws": id.New[id.Workspace]().String(), "role": "editor",
		}
	}
	sign := func(method jwt.SigningMethod, with any, c jwt.MapClaims, header map[string]any) string {
		tok := jwt.NewWithClaims(method, c)
		maps.Copy(tok.Header, header)
		s, err := tok.SignedString(with)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ed := func(change func(jwt.MapClaims)) string {
		c := good()
		change(c)
		return sign(jwt.SigningMethodEdDSA, private(t, key), c, nil)
	}
	set := func(k string, v any) func(jwt.MapClaims) { return func(c jwt.MapClaims) { c[k] = v } }
	drop := func(k string) func(jwt.MapClaims) { return func(c jwt.MapClaims) { delete(c, k) } }

	if _, err := verifier.Verify(ed(func(jwt.MapClaims) {})); err != nil {
		t.Fatalf("Verify(the good one) = %v: the table below would prove nothing", err)
	}
	valid := ed(func(jwt.MapClaims) {})
	signature := valid[strings.LastIndexByte(valid, '.')+1:]

	tests := map[string]string{
		"empty":                    "",
		"no token":                 "hello",
		"too long":                 ed(set("pad", strings.Repeat("x", 9<<10))),
		"another audience":         ed(set("aud", "gateway")),
		"no audience":              ed(drop("aud")),
		"unknown issuer":           ed(set("iss", "console")),
		"no issuer":                ed(drop("iss")),
		"issuer of another key":    ed(set("iss", "tool-executor")),
		"expired":                  ed(func(c jwt.MapClaims) { c["iat"], c["exp"] = now.Unix()-200, now.Unix()-100 }),
		"never expires":            ed(drop("exp")),
		"no issue time":            ed(drop("iat")),
		"issued in the future":     ed(set("iat", now.Add(45*time.Second).Unix())),
		"lives for an hour":        ed(set("exp", now.Add(time.Hour).Unix())),
		"expires in the far":       ed(set("exp", 1e300)),
		"not yet":                  ed(set("nbf", now.Add(45*time.Second).Unix())),
		"no workspace":             ed(drop("ws")),
		"workspace is no id":       ed(set("ws", "../other")),
		"workspace is a number":    ed(set("ws", 7)),
		"no subject":               ed(drop("sub")),
		"no role":                  ed(drop("role")),
		"unknown role":             ed(set("role", "root")),
		"run is no id":             ed(set("run", "1")),
		"address is none":          ed(set("addr", "somewhere")),
		"address with a port":      ed(set("addr", "192.0.2.7:80")),
		"run without a session":    ed(set("run", id.New[id.Run]().String())),
		"signed by a stranger":     sign(jwt.SigningMethodEdDSA, private(t, newKey(t)), good(), nil),
		"alg none":                 sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good(), nil),
		"HMAC with the public key": sign(jwt.SigningMethodHS256, []byte(private(t, key).Public().(ed25519.PublicKey)), good(), nil),
		"critical extension":       sign(jwt.SigningMethodEdDSA, private(t, key), good(), map[string]any{"crit": []string{"b64"}, "b64": false}),
		"signature cut":            valid[:len(valid)-4],
		"no signature":             valid[:len(valid)-len(signature)],
		"payload of another":       splice(ed(set("role", "owner")), valid),
		"loose base64":             looseBase64(valid),
		"padded base64":            valid + "==",
		"with a newline":           valid + "\n",
	}
	for name, token := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := verifier.Verify(token)
			if err == nil || got != (identity.Actor{}) {
				t.Fatalf("Verify = %+v, %v, want no actor and an error", got, err)
			}
			if len(token) > 40 && strings.Contains(err.Error(), token[:40]) {
				t.Errorf("Verify's error repeats the token: %v", err)
			}
		})
	}
}

// splice returns the header and payload of a with the signature of b.
func splice(a, b string) string {
	return a[:strings.LastIndexByte(a, '.')] + b[strings.LastIndexByte(b, '.'):]
}

// looseBase64 changes the unused bits of the signature's last character: the same
// bytes to a lenient decoder, another token to a cache or a log.
func looseBase64(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	return token[:len(token)-1] + string(alphabet[last^1]) // 64 bytes: the last 4 bits are unused
}

func TestKeyText(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	again, err := identity.ParseKey(k.Encode())
	if err != nil || again.Public() != k.Public() {
		t.Fatalf("ParseKey(Encode()) = %v, %v, want the same key", again, err)
	}
	for _, in := range []string{"", "x", k.Encode() + "A", k.Encode()[1:], k.Encode() + "=", strings.Repeat("A", 44)} {
		if _, err := identity.ParseKey(in); err == nil {
			t.Errorf("ParseKey(%d characters) = nil, want an error", len(in))
		} else if in != "" && in != "x" && strings.Contains(err.Error(), in) {
			t.Errorf("ParseKey's error repeats the key: %v", err)
		}
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(format, k); got != "[redacted]" {
			t.Errorf("Sprintf(%q, key) = %q, want it hidden", format, got)
		}
	}
}

func TestTrustedText(t *testing.T) {
	t.Parallel()
	want := map[string]string{"gateway": newKey(t).Public(), "agent-runner": newKey(t).Public()}
	text := identity.FormatTrusted(want)
	if !strings.HasPrefix(text, "agent-runner=") {
		t.Errorf("FormatTrusted = %q, want the names in order", text)
	}
	got, err := identity.ParseTrusted(" " + strings.ReplaceAll(text, ",", " , ") + ",")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string][]string{"gateway": {want["gateway"]}, "agent-runner": {want["agent-runner"]}}, got); d != "" {
		t.Errorf("ParseTrusted(FormatTrusted(x)) (-want +got):\n%s", d)
	}
	if _, err := identity.OpenVerifier("x", text); err != nil {
		t.Errorf("OpenVerifier = %v", err)
	}
	if got, err := identity.ParseTrusted(""); err != nil || len(got) != 0 {
		t.Errorf("ParseTrusted of nothing = %v, %v, want nobody", got, err)
	}
	if got, err := identity.ParseTrusted("a=1,a=2,a=2"); err != nil || len(got["a"]) != 2 {
		t.Errorf("ParseTrusted of a key twice = %v, %v, want two keys", got, err)
	}
	for _, in := range []string{"gateway", "=key", "gateway=", "a=1,a=2,a=3"} {
		if _, err := identity.ParseTrusted(in); err == nil {
			t.Errorf("ParseTrusted(%q) = nil, want an error", in)
		}
		private := newKey(t).Encode()
		if _, err := identity.ParseTrusted(in + "," + private); err == nil || strings.Contains(err.Error(), private) {
			t.Errorf("ParseTrusted of a private key = %v, want an error without it", err)
		}
	}
	for _, key := range []string{"", "abc", newKey(t).Public() + "AA", strings.Repeat("!", 43)} {
		if _, err := identity.NewVerifier("x", map[string]string{"a": key}); err == nil {
			t.Errorf("NewVerifier(%q) = nil, want an error", key)
		}
	}
}

// TestTwoKeys accepts the old and the new key of a service, and neither as another service's.
func TestTwoKeys(t *testing.T) {
	t.Parallel()
	before, after, other := newKey(t), newKey(t), newKey(t)
	verifier, err := identity.OpenVerifier("b", fmt.Sprintf("a=%s,c=%s,a=%s", before.Public(), other.Public(), after.Public()))
	if err != nil {
		t.Fatal(err)
	}
	actor := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
	for _, tt := range []struct {
		service string
		key     identity.Key
		ok      bool
	}{{"a", before, true}, {"a", after, true}, {"a", other, false}, {"c", other, true}, {"c", after, false}} {
		token, err := identity.NewSigner(tt.service, tt.key).Sign(actor, "b")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := verifier.Verify(token); (err == nil) != tt.ok {
			t.Errorf("a token of %s: %v, want accepted %t", tt.service, err, tt.ok)
		}
	}
}

func FuzzVerify(f *testing.F) {
	key := newKey(f)
	verifier := newVerifier(f, "b", map[string]string{"a": key.Public()})
	token, err := identity.NewSigner("a", key).Sign(identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner}, "b")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add(token + "=")
	f.Add("e30.e30.")
	f.Add("eyJhbGciOiJFZERTQSIsImNyaXQiOltdfQ.e30.AAAA")
	f.Fuzz(func(t *testing.T, s string) {
		if a, err := verifier.Verify(s); err == nil && s != token {
			t.Errorf("Verify(%q) = %v: only the signed one is valid", s, a)
		}
	})
}

// BenchmarkVerify verifies the first context of a run, and one that was verified before.
func BenchmarkVerify(b *testing.B) {
	key := newKey(b)
	token, err := identity.NewSigner("a", key).Sign(identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner}, "b")
	if err != nil {
		b.Fatal(err)
	}
	trusted := map[string]string{"a": key.Public()}
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			verifier := newVerifier(b, "b", trusted)
			if _, err := verifier.Verify(token); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		b.ReportAllocs()
		verifier := newVerifier(b, "b", trusted)
		for b.Loop() {
			if _, err := verifier.Verify(token); err != nil {
				b.Fatal(err)
			}
		}
	})
}
