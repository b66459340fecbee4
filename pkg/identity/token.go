package identity

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
)

// TokenConfig configures which access tokens are accepted. Secret and JWKSURL may both be set:
// each key verifies only its own algorithm.
type TokenConfig struct {
	// Secret verifies HS256; without it no HS256 token is accepted.
	Secret conf.Secret
	// JWKSURL is a JSON Web Key Set (RFC 7517) of ES256 and RS256 keys; may be empty.
	JWKSURL string
	// Issuer and Audience must match exactly.
	Issuer, Audience string
	// HTTP fetches the key set; nil means a client with a timeout of 3 s.
	HTTP *http.Client
	Log  *slog.Logger
}

// TokenVerifier verifies people's access tokens (Supabase's, or those of the development
// issuer). With a JWKSURL, Run has to run. It is safe for concurrent use.
type TokenVerifier struct {
	cfg  TokenConfig
	keys *keySet
}

// NewTokenVerifier returns a verifier.
func NewTokenVerifier(cfg TokenConfig) (*TokenVerifier, error) {
	if cfg.Secret == "" && cfg.JWKSURL == "" {
		return nil, errors.New("no key to verify access tokens with: set the JWT secret, the JWKS URL, or the development issuer")
	}
	if cfg.Secret != "" && len(cfg.Secret) < 32 {
		return nil, errors.New("the JWT secret is shorter than 32 bytes: HS256 needs at least that")
	}
	if cfg.Issuer == "" || cfg.Audience == "" {
		return nil, errors.New("issuer and audience of access tokens must be set")
	}
	v := &TokenVerifier{cfg: cfg}
	if cfg.JWKSURL != "" {
		v.keys = newKeySet(cfg.JWKSURL, cfg.HTTP, cfg.Log)
	}
	return v, nil
}

// Run refreshes the key set until ctx is done. Only Run fetches keys: a request never waits
// for the key server.
func (v *TokenVerifier) Run(ctx context.Context) error {
	if v.keys == nil {
		<-ctx.Done()
		return nil
	}
	return v.keys.run(ctx)
}

// Token is a verified access token.
type Token struct {
	Member  id.Member
	Name    string // what the person is called, as the token has it; not sanitized, may be empty
	Expires time.Time
}

// End returns when Verify stops accepting the token: a little later than Expires, because
// clocks may differ. Connections that depend on the token last until then.
func (t Token) End() time.Time { return t.Expires.Add(leeway) }

type accessClaims struct {
	jwt.RegisteredClaims
	Role string `json:"role"`

	Name    json.RawMessage `json:"name"`
	Profile json.RawMessage `json:"user_metadata"` // Supabase's, which people may change themselves
}

// name returns the person's name. It decides nothing, so what does not parse is no name.
func (c accessClaims) name() (name string) {
	var profile struct {
		FullName string `json:"full_name"`
		Name     string `json:"name"`
	}
	_ = json.Unmarshal(c.Name, &name)
	_ = json.Unmarshal(c.Profile, &profile)
	return cmp.Or(name, profile.FullName, profile.Name)
}

// Verify verifies an access token. The issuer's anonymous and service keys are valid tokens,
// too; only the role "authenticated" is a person.
func (v *TokenVerifier) Verify(token string) (Token, error) {
	var c accessClaims
	err := parse(token, &c, v.methods(), v.key, jwt.WithIssuer(v.cfg.Issuer), jwt.WithAudience(v.cfg.Audience))
	if err != nil {
		return Token{}, err
	}
	if c.Role != "authenticated" {
		return Token{}, errors.New("the token is not a signed-in person's: its role is not authenticated")
	}
	member, err := id.Parse[id.Member](c.Subject)
	if err != nil {
		return Token{}, fmt.Errorf("subject: %w", err)
	}
	return Token{Member: member, Name: c.name(), Expires: c.ExpiresAt.Time}, nil
}

func (v *TokenVerifier) methods() []string {
	var m []string
	if v.cfg.Secret != "" {
		m = append(m, "HS256")
	}
	if v.keys != nil {
		m = append(m, "ES256", "RS256")
	}
	return m
}

// key returns the key for a token and its algorithm, so that an HS256 token is never verified
// with a public key, nor any token with a key for another algorithm.
func (v *TokenVerifier) key(t *jwt.Token) (any, error) {
	alg := t.Method.Alg()
	if alg == "HS256" {
		return []byte(v.cfg.Secret.Reveal()), nil
	}
	kid, _ := t.Header["kid"].(string)
	if kid == "" {
		return nil, errors.New("the token names no key (kid)")
	}
	return v.keys.lookup(kid, alg)
}

// keySet caches a JSON Web Key Set. lookup never waits: for an unknown kid it returns an error
// and asks run for a refresh, which happens at most every 30 seconds. A failed refresh keeps
// the last good keys.
type keySet struct {
	url   string // may contain a password or a key, so logs contain place instead
	place string
	http  *http.Client
	log   *slog.Logger
	want  chan struct{} // capacity 1; holds an element if a refresh is wanted

	mu   sync.RWMutex // guards keys
	keys map[string]publicKey
}

type publicKey struct {
	alg string
	key any
}

const (
	minRefresh   = 30 * time.Second // between two refreshes, even if a key is unknown
	maxRefresh   = 10 * time.Minute // between two refreshes, even if all keys are known
	maxKeySet    = 64 << 10
	fetchTimeout = 3 * time.Second
)

func newKeySet(address string, client *http.Client, log *slog.Logger) *keySet {
	if client == nil {
		client = &http.Client{Timeout: fetchTimeout}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	// Without redirects: an attacker with an open redirect on the key server could supply keys.
	direct := *client
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &keySet{url: address, place: place(address), http: &direct, log: log, want: make(chan struct{}, 1)}
}

// place returns a URL without its secrets, "" if it is not valid.
func place(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

func (s *keySet) lookup(kid, alg string) (any, error) {
	s.mu.RLock()
	k, ok := s.keys[kid]
	s.mu.RUnlock()
	if !ok {
		select {
		case s.want <- struct{}{}:
		default: // a refresh is already wanted
		}
		return nil, errors.New("the token's key is unknown, or not known yet")
	}
	if k.alg != alg {
		return nil, fmt.Errorf("the token's key is for %s, not %s", k.alg, alg)
	}
	return k.key, nil
}

func (s *keySet) run(ctx context.Context) error {
	for {
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "cannot refresh the key set: using the last good keys", "url", s.place, "error", err)
		}
		pause := time.NewTimer(minRefresh)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		due := time.NewTimer(maxRefresh - minRefresh)
		select {
		case <-ctx.Done():
			due.Stop()
			return nil
		case <-s.want:
		case <-due.C:
		}
		due.Stop()
	}
}

func (s *keySet) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return errors.New("the key set's URL is not valid")
	}
	res, err := s.http.Do(req)
	if f, ok := errors.AsType[*url.Error](err); ok {
		err = f.Err // f quotes the URL
	}
	if err != nil {
		return fmt.Errorf("fetch key set: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch key set: status %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxKeySet+1))
	if err != nil {
		return fmt.Errorf("read key set: %w", err)
	}
	if len(body) > maxKeySet {
		return fmt.Errorf("key set is over %d bytes", maxKeySet)
	}
	keys, err := parseKeySet(body)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return errors.New("key set has no usable key (ES256 or RS256 with a kid)")
	}
	s.mu.Lock()
	s.keys = keys
	s.mu.Unlock()
	return nil
}

// parseKeySet parses a key set of RFC 7517. It skips keys that it does not use, as section 5
// asks for: symmetric keys (an oct key in a public set must never verify anything), encryption
// keys, other curves, and unknown types.
func parseKeySet(body []byte) (map[string]publicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("parse key set: %w", err)
	}
	keys := map[string]publicKey{}
	for _, raw := range set.Keys {
		var k struct {
			Kty, Kid, Use, Alg, Crv, X, Y, N, E string
		}
		if json.Unmarshal(raw, &k) != nil || k.Kid == "" || (k.Use != "" && k.Use != "sig") {
			continue
		}
		switch {
		case k.Kty == "EC" && k.Crv == "P-256" && (k.Alg == "" || k.Alg == "ES256"):
			if key, err := ecKey(k.X, k.Y); err == nil {
				keys[k.Kid] = publicKey{"ES256", key}
			}
		case k.Kty == "RSA" && (k.Alg == "" || k.Alg == "RS256"):
			if key, err := rsaKey(k.N, k.E); err == nil {
				keys[k.Kid] = publicKey{"RS256", key}
			}
		}
	}
	return keys, nil
}

func ecKey(x, y string) (*ecdsa.PublicKey, error) {
	bx, err1 := base64.RawURLEncoding.DecodeString(x)
	by, err2 := base64.RawURLEncoding.DecodeString(y)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if len(bx) != 32 || len(by) != 32 {
		return nil, errors.New("P-256 coordinates are 32 bytes each")
	}
	point := append(append([]byte{4}, bx...), by...) // uncompressed, SEC 1, 2.3.3
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
}

func rsaKey(n, e string) (*rsa.PublicKey, error) {
	bn, err1 := base64.RawURLEncoding.DecodeString(n)
	be, err2 := base64.RawURLEncoding.DecodeString(e)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	mod, exp := new(big.Int).SetBytes(bn), new(big.Int).SetBytes(be)
	// BitLen, not the length of the text, which may have leading zeros.
	if mod.BitLen() < 2048 || mod.BitLen() > 8192 || !exp.IsInt64() || exp.Int64() < 3 || exp.Int64() > 1<<31-1 {
		return nil, errors.New("RSA key of an unusable size")
	}
	return &rsa.PublicKey{N: mod, E: int(exp.Int64())}, nil
}
