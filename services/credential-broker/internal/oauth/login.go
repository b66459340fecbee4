package oauth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Kind is a way to sign in.
type Kind string

// The ways.
const (
	Browser Kind = "browser" // the provider sends the browser back to the product, or to the command line
	Paste   Kind = "paste"   // the provider shows a code, which is pasted
	Device  Kind = "device"  // a short code is typed in on another device (RFC 8628)
)

// Purpose is what a login is for. It can be completed as that alone: who may do the one
// need not be somebody who may do the other.
type Purpose string

// The purposes.
const (
	ForAccount    Purpose = "account"    // one that owners look after
	ForConnection Purpose = "connection" // what a member connects the workspace's tools to
)

const (
	loginLife   = 15 * time.Minute
	keepLogins  = 15 * time.Minute // how long a login can be asked about after it would have expired
	maxPending  = 10               // logins of one member of a workspace that have begun
	maxOperator = 100              // those of the operator's command line
	maxEnded    = 20               // those of one member that have ended and can be asked about
	maxLabel    = 400              // bytes
)

// Who acts. A login belongs to whoever began it.
type Who struct {
	Workspace id.Workspace // zero for the operator's shared accounts
	Member    id.Member    // zero for the operator's command line
	Key       id.APIKey    // set where an API key spoke for the member
	Service   string       // that vouches for them
	Address   string       // theirs, where it is known
}

// pending returns how many logins may have begun.
func (w Who) pending() int {
	if id.IsZero(w.Member) {
		return maxOperator
	}
	return maxPending
}

// LoginRequest says what to sign in to.
type LoginRequest struct {
	// ID names the login to be, so that beginning it can be repeated; zero for a new one.
	ID uuid.UUID
	// Purpose is ForAccount when empty.
	Purpose Purpose
	// Provider may be empty where there is an Account.
	Provider string
	Kind     Kind
	// Account is one to be authorised again; zero makes a new one.
	Account id.Account
	// Label is for people to tell accounts apart.
	Label string
	// Redirect is where the command line waits for the browser: LoopbackPath at a port of
	// 127.0.0.1 or [::1]. Empty for Config.Redirect; only for Browser, and for a provider
	// with Loopback.
	Redirect string
}

// LoopbackPath is the path of every loopback redirect (RFC 8252, section 7.3).
const LoopbackPath = "/callback"

// checkRedirect refuses a Redirect that the provider may not be given.
func (r *LoginRequest) checkRedirect(p *Provider) error {
	switch {
	case r.Redirect == "":
		return nil
	case r.Kind != Browser:
		return fault.New(fault.Invalid, "redirect: only the kind browser has one, not %q", clip(string(r.Kind)))
	case !p.Loopback:
		return fault.New(fault.Invalid, "redirect: %s sends nobody back to a loopback address: use another of browser, paste and device", p.Name)
	case !isLoopbackRedirect(r.Redirect):
		return fault.New(fault.Invalid, "redirect: want http://127.0.0.1:port%[1]s or http://[::1]:port%[1]s", LoopbackPath)
	}
	return nil
}

// isLoopbackRedirect takes one spelling of each address alone. localhost is none: it may
// resolve to an address at which another machine, or another program, answers.
func isLoopbackRedirect(redirect string) bool {
	text, ok := strings.CutPrefix(redirect, "http://")
	text, hasPath := strings.CutSuffix(text, LoopbackPath)
	at, err := netip.ParseAddrPort(text)
	return ok && hasPath && err == nil && at.String() == text && at.Port() != 0 &&
		(at.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || at.Addr() == netip.IPv6Loopback())
}

// Login is one that has begun.
type Login struct {
	ID   uuid.UUID
	Kind Kind
	// URL is what the person opens; with a device, what they type UserCode into.
	URL string
	// UserCode and URLWithCode are there for a device only, the latter not always.
	UserCode, URLWithCode string
	// Wait is how long to wait before each Poll of a device.
	Wait time.Duration
	// Life is how long there is to complete it.
	Life time.Duration
}

// Start begins a login. What it returns is for the person who acts: the URL holds the
// state, which is good once. With the ID of one that has begun it returns the same one;
// a device's gets new codes, and those before are of no use.
func (k *Keeper) Start(ctx context.Context, who Who, r LoginRequest) (Login, error) {
	if err := k.target(ctx, who, &r); err != nil {
		return Login{}, err
	}
	p, err := k.cfg.Providers.Get(r.Provider)
	if err != nil {
		return Login{}, err
	}
	if err := p.Ready(); err != nil {
		return Login{}, err
	}
	if len(r.Label) > maxLabel {
		return Login{}, fault.New(fault.Invalid, "label: it is longer than %d bytes", maxLabel)
	}
	if err := r.checkRedirect(p); err != nil {
		return Login{}, err
	}
	row := r.row(p)
	switch r.Kind {
	case Browser:
		row.Redirect = cmp.Or(r.Redirect, k.cfg.Redirect)
	case Paste:
		row.Redirect = p.CodePage
	case Device:
		return k.startDevice(ctx, who, p, row)
	default:
		return Login{}, fault.New(fault.Invalid, "kind: %q is not a way to sign in: use browser, paste or device", clip(string(r.Kind)))
	}
	if p.Authorize == "" || row.Redirect == "" {
		return Login{}, fault.New(fault.Invalid, "kind: one cannot sign in to %s that way (%s): use another of browser, paste and device", p.Name, r.Kind)
	}
	verifier := random()
	row.StateHash = hash(stateOf(verifier))
	row, secret, err := k.begin(ctx, who, row, vault.NewSecret(verifier), loginLife)
	if err != nil {
		return Login{}, err
	}
	return Login{ID: row.ID, Kind: r.Kind, URL: authorizeURL(p, row.Redirect, secret.Reveal()), Life: duration(row.LeftS)}, nil
}

// Reauthorize begins a login for an account that is there. Until it is completed the
// account stays as it is.
func (k *Keeper) Reauthorize(ctx context.Context, who Who, account id.Account, kind Kind) (Login, error) {
	return k.Start(ctx, who, LoginRequest{Kind: kind, Account: account})
}

// target looks at the account that is to be authorised again, if one is.
func (k *Keeper) target(ctx context.Context, who Who, r *LoginRequest) error {
	if id.IsZero(r.Account) {
		return nil
	}
	g, err := k.tables.read(ctx, Ref{who.Workspace, r.Account})
	if err != nil {
		return err
	}
	if r.Provider = cmp.Or(r.Provider, g.Provider); r.Provider != g.Provider {
		return fault.New(fault.Invalid, "account: it belongs to %s and not to %s", clip(g.Provider), clip(r.Provider))
	}
	return nil
}

func (r *LoginRequest) row(p *Provider) loginRow {
	row := loginRow{
		ID: r.ID, Purpose: cmp.Or(r.Purpose, ForAccount), Provider: p.Name, Kind: r.Kind,
		Account: r.Account, Again: !id.IsZero(r.Account), Label: r.Label,
	}
	if row.ID == uuid.Nil {
		row.ID = uuid.Must(uuid.NewV7())
	}
	if !row.Again {
		row.Account = id.New[id.Account]()
	}
	return row
}

// loginRow is a login as it is stored.
type loginRow struct {
	ID       uuid.UUID
	Provider string
	Kind     Kind
	Purpose  Purpose
	Account  id.Account // that it will make, or authorise again
	Again    bool
	Label    string
	Redirect string
	// StateHash is of the state, or of nothing for a device. It tells this beginning of the
	// login from others under the same id, and stays when its secret is sealed anew.
	StateHash  []byte
	Sealed     []byte // the PKCE verifier, or the device code; nil when it has ended
	KeyVersion int
	IntervalS  int
	// Ended says that it was completed, or refused: then Reason says why, and Code to
	// programs.
	Ended        bool
	Code, Reason string
	LeftS        float64 // until it expires
	WaitS        float64 // until it is the turn of whoever asks
	// Brought is of a grant that is brought along; nil of a login.
	Brought *store.Brought `db:"-"`
}

// place is where the login's secret is sealed to.
func (l *loginRow) place(who Who) vault.Place {
	return vault.Place{Workspace: who.Workspace, Account: l.Account, Field: "login " + l.ID.String()}
}

func (l *loginRow) sealed() vault.Sealed {
	return vault.Sealed{KeyVersion: l.KeyVersion, Bytes: l.Sealed}
}

// same reports whether another one was asked for with the same words.
func (l *loginRow) same(other *loginRow) bool {
	return l.Provider == other.Provider && l.Kind == other.Kind && l.Purpose == other.Purpose && l.Label == other.Label &&
		l.Again == other.Again && (!l.Again || l.Account == other.Account)
}

// begin seals a login's secret and stores it. Where one has begun with the same id, it
// returns that one, and its secret.
func (k *Keeper) begin(ctx context.Context, who Who, row loginRow, secret vault.Secret, life time.Duration) (loginRow, vault.Secret, error) {
	sealed, err := k.cfg.Vault.Seal(ctx, row.place(who), secret)
	if err != nil {
		return row, secret, err
	}
	row.LeftS = life.Seconds()
	there, err := k.tables.begin(ctx, who, row, sealed)
	switch {
	case err != nil || there == nil:
		return row, secret, err
	case !there.same(&row):
		return row, secret, errReused
	case there.Ended:
		return row, secret, fault.Coded(fault.Conflict, "LOGIN_ENDED", "the sign-in that was begun with this key has been completed, or has failed: use a new key for a new one")
	}
	secret, err = k.cfg.Vault.Open(ctx, there.place(who), there.sealed())
	return *there, secret, err
}

// errReused tells nothing of the other one, which may be somebody else's.
var errReused = fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this key has begun another sign-in: use a new key for a new one")

func tooMany(pending int, wait time.Duration) error {
	f := fault.New(fault.Limited, "you have begun %d sign-ins that are not completed: complete one, or wait %s until one expires", pending, wait.Round(time.Second))
	f.RetryAfter = wait
	return f
}

func authorizeURL(p *Provider, redirect, verifier string) string {
	q := url.Values{
		"response_type": {"code"}, "client_id": {p.Client.ID}, "redirect_uri": {redirect}, "state": {stateOf(verifier)},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(hash(verifier))}, "code_challenge_method": {"S256"},
	}
	if len(p.Scopes) > 0 {
		q.Set("scope", strings.Join(p.Scopes, " "))
	}
	for name, value := range p.AuthorizeParams {
		q.Set(name, value)
	}
	sep := "?"
	if strings.Contains(p.Authorize, "?") {
		sep = "&"
	}
	return p.Authorize + sep + q.Encode()
}

// random returns 256 bits as text: a PKCE verifier (RFC 7636, 4.1).
func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

// stateOf returns the state that goes with a verifier, so that only one of the two is
// stored. Neither from it nor from the challenge, which is another hash of the verifier,
// can anybody tell one of the others.
func stateOf(verifier string) string {
	return base64.RawURLEncoding.EncodeToString(hash("state of " + verifier))
}

func hash(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}
