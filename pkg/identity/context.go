package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/recent"
)

// Header carries a signed context between services over HTTP.
const Header = "Signalbox-Context"

// contextLifetime limits how long a leaked context can be used.
const contextLifetime = 60 * time.Second

// contextReuse is how old a context may be to be sent again: the rest of its lifetime is
// enough for a call to arrive.
const contextReuse = 20 * time.Second

// leeway is how far the clocks of two machines may differ.
const leeway = 30 * time.Second

// maxToken limits the size of tokens.
const maxToken = 8 << 10

type contextClaims struct {
	jwt.RegisteredClaims
	Workspace string `json:"ws"`
	Role      string `json:"role"`
	Run       string `json:"run,omitempty"`
	Session   string `json:"session,omitempty"`
	Address   string `json:"addr,omitempty"`
	Key       string `json:"key,omitempty"`
}

// Key is a service's private Ed25519 key.
type Key struct{ private ed25519.PrivateKey }

// NewKey generates a key.
func NewKey() (Key, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return Key{}, fmt.Errorf("generate a service key: %w", err)
	}
	return Key{private}, nil
}

// ParseKey parses the result of Encode: the key's 32-byte seed in base64url without padding.
func ParseKey(s string) (Key, error) {
	seed, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(seed) != ed25519.SeedSize {
		return Key{}, errors.New("a service key is 32 bytes in base64url without padding: generate one with `signalbox keygen`")
	}
	return Key{ed25519.NewKeyFromSeed(seed)}, nil
}

// Encode returns the key's secret text.
func (k Key) Encode() string { return base64.RawURLEncoding.EncodeToString(k.private.Seed()) }

// Public returns the public key's text, for the other services' lists of trusted keys.
func (k Key) Public() string {
	return base64.RawURLEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
}

// String hides the key.
func (Key) String() string { return "[redacted]" }

// GoString hides the key from %#v.
func (Key) GoString() string { return "[redacted]" }

// Signer signs contexts as one service. It is safe for concurrent use.
type Signer struct {
	service string
	key     Key

	mu     sync.Mutex // guards signed
	signed recent.Map[subject, signedContext]
}

type (
	subject struct {
		actor    Actor
		audience string
	}
	signedContext struct {
		token string
		at    time.Time
	}
)

// maxRecent is how many contexts are remembered at least, in a few MB.
const maxRecent = 4096

// NewSigner returns a signer for service.
func NewSigner(service string, key Key) *Signer { return &Signer{service: service, key: key} }

// Sign returns a token that tells a service, the audience, that a is acting. It is valid for
// at least half a minute. A token of the last 20 seconds is reused, which saves a signature
// here and its verification there.
func (s *Signer) Sign(a Actor, audience string) (string, error) {
	now := time.Now().Round(0) // wall clock: the monotonic clock may stop while a machine sleeps
	key := subject{a, audience}
	s.mu.Lock()
	known, ok := s.signed.Get(key)
	s.mu.Unlock()
	if age := now.Sub(known.at); ok && 0 <= age && age < contextReuse {
		return known.token, nil
	}
	token, err := s.sign(now, a, audience)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signed.Put(key, signedContext{token, now}, maxRecent)
	return token, nil
}

func (s *Signer) sign(now time.Time, a Actor, audience string) (string, error) {
	c := contextClaims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    s.service,
			Audience:  jwt.ClaimStrings{audience},
			IssuedAt:  jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(now.Add(contextLifetime)),
			Subject:   a.Member.String(),
		},
		Workspace: a.Workspace.String(),
		Role:      a.Role.String(),
		Address:   a.Address,
	}
	if !id.IsZero(a.Run) {
		c.Run, c.Session = a.Run.String(), a.Session.String()
	}
	if !id.IsZero(a.Key) {
		c.Key = a.Key.String()
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c).SignedString(s.key.private)
	if err != nil {
		return "", fmt.Errorf("sign a context for %s: %w", audience, err)
	}
	return token, nil
}

// Verifier verifies signed contexts for one service, the audience. It is safe for concurrent
// use.
type Verifier struct {
	audience string
	trusted  map[string]jwt.VerificationKeySet // by service

	mu    sync.Mutex                              // guards known
	known recent.Map[[sha256.Size]byte, verified] // by the token's hash
}

// verified is the content of a verified token, and when it is valid.
type verified struct {
	actor       Actor
	from, until time.Time
}

func (v *verified) isValid(now time.Time) bool {
	return !now.Before(v.from.Add(-leeway)) && now.Before(v.until.Add(leeway))
}

// NewVerifier returns a verifier for audience. trusted maps the names of trusted services to
// their public keys, as of Key.Public.
func NewVerifier(audience string, trusted map[string]string) (*Verifier, error) {
	all := make(map[string][]string, len(trusted))
	for name, key := range trusted {
		all[name] = []string{key}
	}
	return newVerifier(audience, all)
}

func newVerifier(audience string, trusted map[string][]string) (*Verifier, error) {
	v := &Verifier{audience: audience, trusted: make(map[string]jwt.VerificationKeySet, len(trusted))}
	for name, texts := range trusted {
		var set jwt.VerificationKeySet
		for _, text := range texts {
			b, err := base64.RawURLEncoding.Strict().DecodeString(text)
			if err != nil || len(b) != ed25519.PublicKeySize {
				return nil, fmt.Errorf("the public key of %s is not 32 bytes in base64url without padding", name)
			}
			set.Keys = append(set.Keys, ed25519.PublicKey(b))
		}
		v.trusted[name] = set
	}
	return v, nil
}

// maxKeys is how many keys of a service are trusted: one, and a new one while keys are rotated.
const maxKeys = 2

// ParseTrusted parses "name=publickey" pairs separated by commas. A name may have two keys.
func ParseTrusted(s string) (map[string][]string, error) {
	out := map[string][]string{}
	for i, pair := range strings.Split(s, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, key, ok := strings.Cut(pair, "=")
		if !ok || name == "" || key == "" { // without the text, which may be a private key
			return nil, fmt.Errorf("trusted key %d is not of the form service=publickey", i+1)
		}
		if slices.Contains(out[name], key) {
			continue
		}
		if len(out[name]) == maxKeys {
			return nil, fmt.Errorf("the service %s has more than %d trusted keys: remove the oldest", name, maxKeys)
		}
		out[name] = append(out[name], key)
	}
	return out, nil
}

// FormatTrusted formats keys for ParseTrusted, sorted by name.
func FormatTrusted(trusted map[string]string) string {
	var b strings.Builder
	for i, name := range slices.Sorted(maps.Keys(trusted)) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(name + "=" + trusted[name])
	}
	return b.String()
}

// Verify returns the actor of a token. It remembers recently verified tokens. Its errors are
// for logs; callers respond with "unauthenticated".
func (v *Verifier) Verify(token string) (Actor, error) {
	if len(token) > maxToken {
		return Actor{}, errTokenSize(token)
	}
	hash := sha256.Sum256([]byte(token))
	v.mu.Lock()
	known, ok := v.known.Get(hash)
	v.mu.Unlock()
	if ok && known.isValid(time.Now()) {
		return known.actor, nil
	}
	known, err := v.verify(token)
	if err != nil {
		return Actor{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known.Put(hash, known, maxRecent)
	return known.actor, nil
}

func (v *Verifier) verify(token string) (verified, error) {
	var c contextClaims
	err := parse(token, &c, []string{"EdDSA"}, func(t *jwt.Token) (any, error) {
		issuer, err := t.Claims.GetIssuer()
		if err != nil {
			return nil, err
		}
		keys, ok := v.trusted[issuer]
		if !ok {
			return nil, errors.New("the issuing service is not trusted here")
		}
		return keys, nil
	}, jwt.WithAudience(v.audience), jwt.WithIssuedAt())
	if err != nil {
		return verified{}, err
	}
	if c.IssuedAt == nil {
		return verified{}, errors.New("the context does not say when it was issued")
	}
	if c.ExpiresAt.Sub(c.IssuedAt.Time) > contextLifetime {
		return verified{}, errors.New("the context's lifetime is too long")
	}
	a := Actor{Service: c.Issuer, Address: c.Address}
	if c.Address != "" {
		if _, err := netip.ParseAddr(c.Address); err != nil {
			return verified{}, fmt.Errorf("address: %w", err)
		}
	}
	if a.Workspace, err = id.Parse[id.Workspace](c.Workspace); err != nil {
		return verified{}, fmt.Errorf("workspace: %w", err)
	}
	if a.Member, err = id.Parse[id.Member](c.Subject); err != nil {
		return verified{}, fmt.Errorf("subject: %w", err)
	}
	if a.Role, err = ParseRole(c.Role); err != nil {
		return verified{}, err
	}
	if c.Run != "" {
		if a.Run, err = id.Parse[id.Run](c.Run); err != nil {
			return verified{}, fmt.Errorf("run: %w", err)
		}
		if a.Session, err = id.Parse[id.Session](c.Session); err != nil {
			return verified{}, fmt.Errorf("session: %w", err)
		}
	}
	if c.Key != "" {
		if a.Key, err = id.Parse[id.APIKey](c.Key); err != nil {
			return verified{}, fmt.Errorf("key: %w", err)
		}
	}
	known := verified{actor: a, from: c.IssuedAt.Time, until: c.ExpiresAt.Time}
	if c.NotBefore != nil && c.NotBefore.After(known.from) {
		known.from = c.NotBefore.Time
	}
	return known, nil
}

// parse parses all tokens: with a size limit, strict base64, a required exp, and without crit
// (RFC 7515, 4.1.11: we support no extension).
func parse(token string, claims jwt.Claims, methods []string, key jwt.Keyfunc, opts ...jwt.ParserOption) error {
	if len(token) > maxToken {
		return errTokenSize(token)
	}
	if strings.ContainsAny(token, "\r\n") { // which even a strict base64 decoder ignores
		return errors.New("token contains a line break")
	}
	opts = append(opts, jwt.WithValidMethods(methods), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithStrictDecoding())
	_, err := jwt.NewParser(opts...).ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		if _, ok := t.Header["crit"]; ok {
			return nil, errors.New("critical header extensions are not supported")
		}
		return key(t)
	})
	if err != nil {
		return fmt.Errorf("verify token: %w", err)
	}
	return nil
}

func errTokenSize(token string) error {
	return fmt.Errorf("token of %d bytes is over the limit of %d", len(token), maxToken)
}

// OpenSigner returns a signer for service with a key of Key.Encode.
func OpenSigner(service, key string) (*Signer, error) {
	k, err := ParseKey(key)
	if err != nil {
		return nil, err
	}
	return NewSigner(service, k), nil
}

// OpenVerifier returns a verifier for audience with the keys of ParseTrusted.
func OpenVerifier(audience, trusted string) (*Verifier, error) {
	keys, err := ParseTrusted(trusted)
	if err != nil {
		return nil, err
	}
	return newVerifier(audience, keys)
}
