package oauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// ErrCurrent is returned by Rejected if there is no other token than the rejected one, and
// asking for another would not help: the rejection is about the account.
var ErrCurrent = errors.New("the rejected token is the current one")

const (
	defaultLease       = 15 * time.Second
	defaultPostTimeout = time.Minute
	defaultEvery       = 5 * time.Second
	defaultFollow      = time.Second
	flightTimeout      = 3 * time.Minute // for one token, waiting for other instances included
	firstPoll          = 20 * time.Millisecond
	lastPoll           = 500 * time.Millisecond
	recheck            = time.Second // how long an answer about an unusable grant is believed
	cacheFor           = time.Minute // without a request a token leaves the cache
	maxCached          = 10_000      // a full cache is emptied
)

// Config is what a Keeper works with. Zero times are the defaults.
type Config struct {
	Store     *store.Store // has the grants and logins
	Vault     *vault.Vault
	Providers *Providers
	Log       *slog.Logger
	// Instance names this process in attempts.
	Instance string
	// UserAgent is what authorisation servers see.
	UserAgent string
	// Redirect is where providers send browsers back to; empty if there is no such page, and
	// codes are pasted.
	Redirect string
	// Document is the URL of the client id metadata document for MCP servers' authorization
	// servers; empty if there is none. Its redirect pages are Redirect with /document appended and
	// DocumentLoopbackPath, and no others.
	Document string
	// CheckEndpoint refuses the URLs of such servers, and Control, a net.Dialer's hook, their
	// addresses; nil allows public ones only.
	CheckEndpoint func(*url.URL) error
	Control       func(network, address string, c syscall.RawConn) error

	Lease       time.Duration  // how long after an instance died another one takes over
	PostTimeout time.Duration  // how long an authorisation server may take
	Every       time.Duration  // between two searches for tokens that are due
	Follow      time.Duration  // between two searches for grants that others have changed
	Rand        func() float64 // in [0, 1); math/rand's if nil
}

// Token is an access token and the version of the grant that it belongs to.
type Token struct {
	Secret  vault.Secret
	Version int64
}

// Keeper keeps grants alive. It is safe for concurrent use.
type Keeper struct {
	cfg     Config
	client  *http.Client
	guarded *http.Client // to servers that were discovered
	work    sync.WaitGroup
	// closing is done once Close was called.
	closing context.Context
	close   context.CancelFunc

	mu       sync.Mutex // guards what follows
	cache    map[Ref]cached
	flights  map[flightKey]*flight
	noKey    logThrottle
	skipped  map[Ref]time.Time // grants that this instance could not renew, and until when its worker skips them
	rejected map[Ref]rejectionBackoff
}

// flightKey is what callers have in common who share a flight.
type flightKey struct {
	ref      Ref
	rejected int64
	force    bool
}

// flight obtains a token for all who wait for it; token and err are set when done is closed.
type flight struct {
	done  chan struct{}
	token Token
	err   error
}

// cached is a token, or why there is none.
type cached struct {
	token Token
	err   error
	// Until soft the store is not asked. Until hard the token can be sent, while one flight
	// finds out whether there is a newer one.
	soft, hard time.Time
	asked      time.Time // when it was last asked for, or cached
}

// New returns a Keeper. The caller calls Run, and Close after it.
func New(cfg Config) *Keeper {
	if cfg.Lease <= 0 {
		cfg.Lease = defaultLease
	}
	if cfg.PostTimeout <= 0 {
		cfg.PostTimeout = defaultPostTimeout
	}
	if cfg.Every <= 0 {
		cfg.Every = defaultEvery
	}
	if cfg.Follow <= 0 {
		cfg.Follow = defaultFollow
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Float64
	}
	var public target.Policy
	if cfg.CheckEndpoint == nil {
		cfg.CheckEndpoint = public.CheckEndpoint
	}
	if cfg.Control == nil {
		cfg.Control = public.Control
	}
	k := &Keeper{
		cfg: cfg, client: newClient(nil), guarded: newClient(cfg.Control),
		cache: map[Ref]cached{}, flights: map[flightKey]*flight{}, skipped: map[Ref]time.Time{}, rejected: map[Ref]rejectionBackoff{},
	}
	k.closing, k.close = context.WithCancel(context.Background())
	return k
}

// Token returns an access token that can be sent now: a cached one at once; if that has
// expired all callers wait for one renewal, each as long as their ctx. Its errors are faults:
// Conflict with the code ACCOUNT_REAUTHORIZE if somebody must sign in again, Unavailable if
// the provider cannot be asked.
func (k *Keeper) Token(ctx context.Context, ref Ref) (Token, error) {
	now := time.Now()
	c := k.lookup(ref, now)
	switch {
	case now.Before(c.soft):
		return c.token, c.err
	case now.Before(c.hard) && c.err == nil:
		k.start(ctx, ref, 0, nil) // nobody waits for it
		return c.token, nil
	}
	return k.wait(ctx, k.start(ctx, ref, 0, nil))
}

// lookup returns what is cached of a grant, the zero value for nothing.
func (k *Keeper) lookup(ref Ref, now time.Time) cached {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.cache[ref]
	if ok {
		c.asked = now
		k.cache[ref] = c
	}
	return c
}

// Rejected is called when a provider answered 401 to a token of that version. It returns
// another one, with which the request is to be sent once more: one that was renewed
// meanwhile, or else the one that a renewal brings. It returns ErrCurrent if the token is so
// new that the rejection must have another cause.
func (k *Keeper) Rejected(ctx context.Context, ref Ref, version int64) (Token, error) {
	c := k.lookup(ref, time.Now())
	if c.token.Version > version && c.err == nil && time.Now().Before(c.hard) {
		return c.token, nil
	}
	t, err := k.wait(ctx, k.start(ctx, ref, version, nil))
	if err == nil && t.Version <= version {
		return Token{}, ErrCurrent
	}
	return t, err
}

// Refresh renews a grant now, whatever backoff an earlier failure has asked for. Of several
// callers at once the audit names the first. If there is no refresh token the error is a
// Conflict with the code ACCOUNT_NO_REFRESH_TOKEN.
func (k *Keeper) Refresh(ctx context.Context, by identity.Actor, ref Ref) error {
	g, err := k.read(ctx, ref)
	if err != nil {
		return err
	}
	if g.State == Active && g.Refresh == nil {
		return fault.Coded(fault.Conflict, "ACCOUNT_NO_REFRESH_TOKEN", "the access token of account %s cannot be renewed: %s gave no refresh token with it. Sign in again (accounts reauth) for a new one", ref.Account, g.Provider)
	}
	_, err = k.wait(ctx, k.start(ctx, ref, g.Version, &by))
	return err
}

// forget drops a grant from the cache.
func (k *Keeper) forget(ref Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.cache, ref)
}

// ForgetOf drops the grants of a workspace's own accounts from the cache; for the zero
// workspace the operator's.
func (k *Keeper) ForgetOf(ws id.Workspace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.cache, func(ref Ref, _ cached) bool { return ref.Workspace == ws })
}

// Close ends what waits, and returns when what was sent to a server has been answered and
// stored. No other method may be called any more.
func (k *Keeper) Close() {
	k.close()
	k.work.Wait()
}

// start returns the flight for a token, which one goroutine obtains under a context that no
// caller can end. by is who wants a renewal in any case; nil to renew if there is a need.
func (k *Keeper) start(ctx context.Context, ref Ref, rejected int64, by *identity.Actor) *flight {
	key := flightKey{ref, rejected, by != nil}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f, ok := k.flights[key]; ok {
		return f
	}
	f := &flight{done: make(chan struct{})}
	k.flights[key] = f
	k.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flightTimeout)
		defer cancel()
		defer context.AfterFunc(k.closing, cancel)() //nolint:contextcheck // the Keeper's life, not the call's
		f.err = panics.Try(func() (err error) {
			f.token, err = k.obtain(ctx, ref, rejected, by)
			return err
		})
		k.land(key, f)
	})
	return f
}

func (k *Keeper) land(key flightKey, f *flight) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.flights, key)
	close(f.done)
	// An unavailable database is not asked again for each request.
	if c, ok := k.cache[key.ref]; ok && f.err != nil && c.err == nil {
		c.soft = earlier(time.Now().Add(recheck), c.hard)
		k.cache[key.ref] = c
	}
}

func (k *Keeper) wait(ctx context.Context, f *flight) (Token, error) {
	select {
	case <-ctx.Done():
		return Token{}, fmt.Errorf("wait for an access token: %w", ctx.Err())
	case <-f.done:
		return f.token, f.err
	}
}

// need says what is to be done about a grant.
type need int

const (
	useToken need = iota
	refuse        // there is no usable token, and no way to get one
	renewToken
)

// needs decides what a caller needs whose token of a version was rejected; 0 for none.
func (g *grant) needs(rejected int64, force bool) need {
	renewable := g.Refresh != nil
	young := rejected == g.Version && g.age() < minTokenAge && !force
	switch {
	case g.State != Active, !renewable && !g.alive():
		return refuse
	case !renewable, g.alive() && young, g.alive() && g.Version > rejected && !g.due():
		return useToken // if its version was rejected, Rejected says so
	}
	return renewToken
}

// obtain reads the grant, renews it if need be, and reads it again, until there is a token or
// a reason why there is none.
func (k *Keeper) obtain(ctx context.Context, ref Ref, rejected int64, by *identity.Actor) (Token, error) {
	force := by != nil
	var tried int64 // the newest version that a renewal was tried with
	for poll := firstPoll; ; poll = min(2*poll, lastPoll) {
		g, err := k.read(ctx, ref)
		if err != nil {
			return Token{}, err
		}
		p, err := k.provider(g.Provider, g.Server)
		if err != nil {
			return Token{}, fault.Coded(fault.Conflict, "ACCOUNT_UNUSABLE", "account %s belongs to the sign-in provider %q, which is no longer configured", ref.Account, g.Provider)
		}
		good := g.alive() && g.Version > rejected
		switch n := g.needs(rejected, force); {
		case n == useToken:
			return k.openToken(ctx, ref, p, &g)
		case n == refuse:
			return Token{}, k.refuse(ctx, ref, &g)
		case tried > 0 && g.Version > tried && g.Access != nil:
			return k.openToken(ctx, ref, p, &g) // as new as can be, however short its life
		case g.leased() && good && !p.KillsAccess:
			return k.openToken(ctx, ref, p, &g) // it is being renewed, and is good until then
		case g.leased():
			if err := sleep(ctx, min(poll, g.lease()+firstPoll)); err != nil {
				return Token{}, unavailable(p, err)
			}
			continue
		case tried == 0 && !force && g.Version == rejected && g.alive() && !g.due() && k.backsOff(ref):
			return k.openToken(ctx, ref, p, &g)
		case g.backoff() > 0 && !force && good:
			return k.openToken(ctx, ref, p, &g)
		case g.backoff() > 0 && !force:
			return Token{}, &fault.Error{
				Kind: fault.Unavailable, Code: "TOKEN_UNAVAILABLE", RetryAfter: g.backoff(),
				Message: fmt.Sprintf("the access token for %s could not be renewed yet (%s); the broker will try again", p.Name, g.LastError),
			}
		}
		tried = max(tried, g.Version)
		switch stored, err := k.renew(ctx, ref, p, &g, rejected, by); {
		case err != nil && good && fault.KindOf(err) != fault.NotFound: // an account that was removed is not used
			return k.openToken(ctx, ref, p, &g)
		case err != nil:
			return Token{}, err
		case stored && !force && g.Version == rejected:
			k.renewedAfterRejection(ref)
		}
	}
}

func unavailable(p *Provider, err error) error {
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the access token for %s could not be renewed in time; try again", p.Name))
}

// openToken decrypts a good token and caches it.
func (k *Keeper) openToken(ctx context.Context, ref Ref, p *Provider, g *grant) (Token, error) {
	secret, err := k.cfg.Vault.Open(ctx, ref.place(store.AccessField), *g.Access)
	if err != nil {
		return Token{}, undecryptable(ref, err)
	}
	c := cached{token: Token{Secret: secret, Version: g.Version}}
	const long = 24 * time.Hour
	c.soft, c.hard = g.read.Add(long), g.read.Add(long)
	if g.ExpiresAt != nil {
		c.hard = g.read.Add(min(long, g.until(g.ExpiresAt)-g.margin()))
	}
	if g.RefreshAt != nil {
		// Others may have renewed it after that: ask the store, but not all the time.
		c.soft = g.read.Add(min(long, max(recheck, g.until(g.RefreshAt))))
	}
	if p.KillsAccess && g.RefreshAt != nil && !g.due() {
		c.hard = earlier(c.hard, c.soft)
	}
	c.soft = earlier(c.soft, c.hard)
	k.put(ref, c)
	return c.token, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// refuse says why there is no token, and caches that for a moment.
func (k *Keeper) refuse(ctx context.Context, ref Ref, g *grant) error {
	reason := g.Reason
	switch g.State {
	case Reauthorize:
	case Revoking, Revoked:
		reason = "it was signed out"
	case Active:
		reason = fmt.Sprintf("the access token for %s has expired or was revoked, and there is no refresh token", g.Provider)
		if err := k.giveUp(ctx, ref, g.Version, reason); err != nil {
			return err
		}
	}
	err := fault.Coded(fault.Conflict, "ACCOUNT_REAUTHORIZE", "account %s cannot be used: %s; sign in again", ref.Account, reason)
	k.put(ref, cached{err: err, soft: time.Now().Add(recheck)})
	return err
}

// put caches a token, unless a newer one was read meanwhile.
func (k *Keeper) put(ref Ref, c cached) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c.asked = time.Now()
	if len(k.cache) >= maxCached {
		clear(k.cache)
	}
	if c.err != nil || k.cache[ref].token.Version <= c.token.Version {
		k.cache[ref] = c
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
