package oauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// ErrCurrent is returned by Rejected when there is no other token than the one that
// was rejected, and asking for another would not help: the rejection is the account's.
var ErrCurrent = errors.New("the rejected token is the current one")

const (
	defaultLease       = 15 * time.Second
	defaultPostTimeout = time.Minute
	defaultEvery       = 5 * time.Second
	defaultFollow      = time.Second
	flightTimeout      = 3 * time.Minute // of all that one renewal may take, others' included
	firstLook          = 20 * time.Millisecond
	lastLook           = 500 * time.Millisecond
	youth              = 30 * time.Second // a token that is rejected younger than this is not renewed again
	recheck            = time.Second      // how long an answer about a grant that is not well is believed
	maxHeld            = 10_000           // a full cache is emptied
)

// Config is what a Keeper works with. Zero times are the defaults.
type Config struct {
	// Grants and logins are in the one of the two that is given.
	DB        *pg.DB
	File      *accountfile.File
	Vault     *vault.Vault
	Providers *Providers
	Log       *slog.Logger
	// Instance names this process in the attempts.
	Instance string
	// UserAgent is what authorisation servers see.
	UserAgent string
	// Record writes to the audit of a database, in the transaction of what it is about;
	// nil for none.
	Record func(ctx context.Context, tx pgx.Tx, ev Event) error
	// Redirect is where providers send browsers back to; empty where there is no such
	// page, and codes are pasted.
	Redirect string

	Lease       time.Duration  // how long after an instance died another one takes over
	PostTimeout time.Duration  // how long an authorisation server may take
	Every       time.Duration  // between two looks for what is due
	Follow      time.Duration  // between two looks for what others have changed
	Rand        func() float64 // in [0, 1); math/rand's when nil
}

// Token is an access token and the version of the grant that it belongs to.
type Token struct {
	Secret  vault.Secret
	Version int64
}

// Keeper keeps grants alive. It is safe for concurrent use.
type Keeper struct {
	cfg    Config
	tables tables
	client *http.Client
	work   sync.WaitGroup
	// closing is done when Close was called.
	closing context.Context
	close   context.CancelFunc

	mu      sync.Mutex // guards what follows
	held    map[Ref]held
	flights map[question]*flight
	keyless nuisance
	unable  map[Ref]time.Time // until when this instance does not look again by itself
	vain    map[Ref]vain
}

// question is what several may ask at once, for one answer.
type question struct {
	ref      Ref
	rejected int64
	force    bool
}

// flight is the search for an answer; token and err are there when done is closed.
type flight struct {
	done  chan struct{}
	token Token
	err   error
}

// held is what this instance believes of a grant.
type held struct {
	token Token
	err   error
	// Until soft nothing is asked; until hard the token can be sent, and somebody
	// looks whether there is a newer one.
	soft, hard time.Time
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
	k := &Keeper{cfg: cfg, client: newClient(), held: map[Ref]held{}, flights: map[question]*flight{}, vain: map[Ref]vain{}, unable: map[Ref]time.Time{}}
	k.tables = postgres{&k.cfg}
	if cfg.File != nil {
		k.tables = inFile{&k.cfg}
	}
	k.closing, k.close = context.WithCancel(context.Background())
	return k
}

// Token returns an access token that can be sent now. While one that is known is good
// it returns at once; where it has expired, everybody waits for one renewal, each as
// long as their ctx. Its errors are faults: Conflict with the code ACCOUNT_REAUTHORIZE
// where somebody must sign in again, Unavailable where the provider cannot be asked.
func (k *Keeper) Token(ctx context.Context, ref Ref) (Token, error) {
	k.mu.Lock()
	h := k.held[ref]
	k.mu.Unlock()
	now := time.Now()
	switch {
	case now.Before(h.soft):
		return h.token, h.err
	case now.Before(h.hard) && h.err == nil:
		k.start(ctx, ref, 0, nil) // nobody waits for it
		return h.token, nil
	}
	return k.wait(ctx, k.start(ctx, ref, 0, nil))
}

// Rejected is called when a provider answered 401 to a token of that version. It
// returns another one, with which the request is to be sent once more: what others
// have renewed meanwhile, else what one renewal brings. It returns ErrCurrent where
// the token is so new that the rejection must have another cause.
func (k *Keeper) Rejected(ctx context.Context, ref Ref, version int64) (Token, error) {
	k.mu.Lock()
	h := k.held[ref]
	k.mu.Unlock()
	if now := time.Now(); h.token.Version > version && h.err == nil && now.Before(h.hard) {
		return h.token, nil
	}
	t, err := k.wait(ctx, k.start(ctx, ref, version, nil))
	if err == nil && t.Version <= version {
		return Token{}, ErrCurrent
	}
	return t, err
}

// Refresh renews a grant now, because somebody wants it to be, whatever pause an
// earlier failure has asked for. Of several who want it at once the audit names the first.
// Where there is no refresh token the error is a Conflict with the code
// ACCOUNT_NO_REFRESH_TOKEN.
func (k *Keeper) Refresh(ctx context.Context, who Who, ref Ref) error {
	g, err := k.tables.read(ctx, ref)
	if err != nil {
		return err
	}
	if g.State == Active && g.RefreshKeyVersion == nil {
		return fault.Coded(fault.Conflict, "ACCOUNT_NO_REFRESH_TOKEN", "the access token of account %s cannot be renewed: %s gave no refresh token with it. Sign in again (accounts reauth) for a new one", ref.Account, g.Provider)
	}
	_, err = k.wait(ctx, k.start(ctx, ref, g.Version, &who))
	return err
}

// forget makes the next question about a grant go to the database.
func (k *Keeper) forget(ref Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, ref)
}

// ForgetOf makes the next question about each grant of a workspace's own accounts go to the
// database; with the zero workspace of the operator's.
func (k *Keeper) ForgetOf(ws id.Workspace) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.held, func(ref Ref, _ held) bool { return ref.Workspace == ws })
}

// Close ends what waits, and returns when what was sent to a server has been answered
// and stored. Nobody may ask any more.
func (k *Keeper) Close() {
	k.close()
	k.work.Wait()
}

// start lets one goroutine find a token for all who ask for the same, under a context
// that none of them can end. by is who wants a renewal in any case; nil where it is done
// if there is a need.
func (k *Keeper) start(ctx context.Context, ref Ref, rejected int64, by *Who) *flight {
	q := question{ref, rejected, by != nil}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f, ok := k.flights[q]; ok {
		return f
	}
	f := &flight{done: make(chan struct{})}
	k.flights[q] = f
	k.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flightTimeout)
		defer cancel()
		defer context.AfterFunc(k.closing, cancel)() //nolint:contextcheck // the Keeper's life, not the call's
		f.err = panics.Try(func() (err error) {
			f.token, err = k.obtain(ctx, ref, rejected, by)
			return err
		})
		k.landed(q, f)
	})
	return f
}

func (k *Keeper) landed(q question, f *flight) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.flights, q)
	close(f.done)
	// Where the database is away, it is not asked again for each request.
	if h, ok := k.held[q.ref]; ok && f.err != nil && h.err == nil {
		h.soft = earlier(time.Now().Add(recheck), h.hard)
		k.held[q.ref] = h
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
	nothing need = iota // what is there is good
	refused             // what is there is all there is, and of no use
	renewal
)

// needs decides what somebody needs who was rejected with a version; 0 for nobody.
func (g *grant) needs(rejected int64, force bool) need {
	renewable := g.RefreshKeyVersion != nil
	young := rejected == g.Version && duration(g.AgeS) < youth && !force
	switch {
	case g.State != Active, !renewable && !g.alive():
		return refused
	case !renewable, g.alive() && young, g.alive() && g.Version > rejected && !g.due():
		return nothing // for a version that was rejected, Rejected says so
	}
	return renewal
}

// obtain looks, renews if need be, and looks again, until there is a token or a
// reason why there is none.
func (k *Keeper) obtain(ctx context.Context, ref Ref, rejected int64, by *Who) (Token, error) {
	force := by != nil
	var tried int64 // with what version
	for look := firstLook; ; look = min(2*look, lastLook) {
		g, err := k.tables.read(ctx, ref)
		if err != nil {
			return Token{}, err
		}
		p, err := k.cfg.Providers.Get(g.Provider)
		if err != nil {
			return Token{}, fault.Coded(fault.Conflict, "ACCOUNT_UNUSABLE", "account %s belongs to the sign-in provider %q, which is not configured any more", ref.Account, g.Provider)
		}
		good := g.alive() && g.Version > rejected
		switch n := g.needs(rejected, force); {
		case n == nothing:
			return k.hold(ctx, ref, p, &g)
		case n == refused:
			return Token{}, k.refuse(ctx, ref, &g)
		case tried > 0 && g.Version > tried && g.AccessKeyVersion != nil:
			return k.hold(ctx, ref, p, &g) // as new as can be, however short its life
		case g.leased() && good && !p.KillsAccess:
			return k.hold(ctx, ref, p, &g) // it will be renewed, and is good until then
		case g.leased():
			if err := sleep(ctx, min(look, duration(*g.LeaseS)+firstLook)); err != nil {
				return Token{}, unavailable(p, err)
			}
			continue
		case tried == 0 && !force && g.Version == rejected && g.alive() && !g.due() && k.inVain(ref):
			return k.hold(ctx, ref, p, &g)
		case g.pause() > 0 && !force && good:
			return k.hold(ctx, ref, p, &g)
		case g.pause() > 0 && !force:
			return Token{}, &fault.Error{
				Kind: fault.Unavailable, Code: "TOKEN_UNAVAILABLE", RetryAfter: g.pause(),
				Message: fmt.Sprintf("the access token for %s could not be renewed yet (%s); it is tried again", p.Name, g.LastError),
			}
		}
		tried = max(tried, g.Version)
		switch stored, err := k.renew(ctx, ref, p, &g, rejected, by); {
		case err != nil && good:
			return k.hold(ctx, ref, p, &g)
		case err != nil:
			return Token{}, err
		case stored && !force && g.Version == rejected:
			k.afterRejection(ref)
		}
	}
}

func unavailable(p *Provider, err error) error {
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("the access token for %s could not be renewed in time; try again", p.Name))
}

// hold opens a good token and remembers it.
func (k *Keeper) hold(ctx context.Context, ref Ref, p *Provider, g *grant) (Token, error) {
	secret, err := k.cfg.Vault.Open(ctx, ref.place(accessField), g.access())
	if err != nil {
		return Token{}, unopened(ref, err)
	}
	h := held{token: Token{Secret: secret, Version: g.Version}}
	const long = 24 * time.Hour
	h.soft, h.hard = g.read.Add(long), g.read.Add(long)
	if g.LeftS != nil {
		h.hard = g.read.Add(min(long, duration(*g.LeftS-g.margin())))
	}
	if g.DueS != nil {
		// Past that moment others may have renewed it: look, but not all the time.
		h.soft = g.read.Add(min(long, max(recheck, duration(*g.DueS))))
	}
	if p.KillsAccess && g.DueS != nil && *g.DueS > 0 {
		h.hard = earlier(h.hard, h.soft)
	}
	h.soft = earlier(h.soft, h.hard)
	k.remember(ref, h)
	return h.token, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// refuse says why there is no token, and remembers it for a moment.
func (k *Keeper) refuse(ctx context.Context, ref Ref, g *grant) error {
	reason := g.Reason
	switch g.State {
	case Reauthorize:
	case Revoking, Revoked:
		reason = "it was signed out"
	case Active:
		reason = fmt.Sprintf("the access token for %s has expired or was withdrawn, and there is no refresh token", g.Provider)
		if err := k.tables.giveUp(ctx, ref, g.Version, reason); err != nil {
			return err
		}
	}
	err := fault.Coded(fault.Conflict, "ACCOUNT_REAUTHORIZE", "account %s cannot be used: %s; sign in again", ref.Account, reason)
	k.remember(ref, held{err: err, soft: time.Now().Add(recheck)})
	return err
}

func (k *Keeper) remember(ref Ref, h held) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) >= maxHeld {
		clear(k.held)
	}
	if h.err == nil && k.held[ref].token.Version > h.token.Version {
		return // a look that took longer than the next one
	}
	k.held[ref] = h
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
