package oauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
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
	Browser Kind = "browser" // the provider sends the browser back to the product
	Paste   Kind = "paste"   // the provider shows a code, which is pasted
	Device  Kind = "device"  // a short code is typed in on another device (RFC 8628)
)

const (
	loginLife  = 15 * time.Minute
	maxPending = 100 // logins of one workspace that have begun
	maxPasted  = 8 << 10
	maxLabel   = 400 // bytes
)

// Who acts. A login belongs to whoever began it.
type Who struct {
	Workspace id.Workspace // zero for the operator's shared accounts
	Member    id.Member    // zero for the operator's command line
	Service   string       // that vouches for them
	Address   string       // theirs, where it is known
}

// LoginRequest says what to sign in to.
type LoginRequest struct {
	Provider string
	Kind     Kind
	// Account is one to be authorised again; zero makes a new one.
	Account id.Account
	// Label is for people to tell accounts apart.
	Label string
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

// Answer is what came back from the provider: of a browser the state and the code or
// the error; pasted text is the Code, whole, with or without the state behind a #.
type Answer struct {
	// Login may be zero where State is there.
	Login              uuid.UUID
	State, Code, Error string
	// Provider is what the login must be to; empty for any.
	Provider string
}

// Start begins a login. What it returns is for the person who acts: the URL holds the
// state, which is good once.
func (k *Keeper) Start(ctx context.Context, who Who, r LoginRequest) (Login, error) {
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
	row := loginRow{ID: uuid.Must(uuid.NewV7()), Provider: p.Name, Kind: r.Kind, Account: r.Account, Again: !id.IsZero(r.Account), Label: r.Label}
	if err := k.target(ctx, who, &row); err != nil {
		return Login{}, err
	}
	switch r.Kind {
	case Browser:
		row.Redirect = k.cfg.Redirect
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
	state, verifier := random(), random()
	if err := k.begin(ctx, who, row, hash(state), vault.NewSecret(verifier), loginLife); err != nil {
		return Login{}, err
	}
	return Login{ID: row.ID, Kind: r.Kind, URL: authorizeURL(p, row.Redirect, state, verifier), Life: loginLife}, nil
}

// Reauthorize begins a login for an account that is there. Until it is completed the
// account stays as it is.
func (k *Keeper) Reauthorize(ctx context.Context, who Who, account id.Account, kind Kind) (Login, error) {
	g, err := k.tables.read(ctx, Ref{who.Workspace, account})
	if err != nil {
		return Login{}, err
	}
	return k.Start(ctx, who, LoginRequest{Provider: g.Provider, Kind: kind, Account: account})
}

// Complete ends a login with what the provider answered, and returns the account. A
// login can be completed once, by whoever began it, whether that works or not.
func (k *Keeper) Complete(ctx context.Context, who Who, a Answer) (Ref, error) {
	if len(a.Code)+len(a.State)+len(a.Error) > maxPasted {
		return Ref{}, fault.New(fault.Invalid, "code: it is longer than %d bytes: paste what the provider showed, and nothing else", maxPasted)
	}
	a.Code = strings.TrimSpace(a.Code)
	if code, state, ok := strings.Cut(a.Code, "#"); ok {
		if a.State != "" && a.State != state {
			return Ref{}, errStrange
		}
		a.Code, a.State = code, state
	}
	if a.Code == "" && a.Error == "" {
		return Ref{}, fault.New(fault.Invalid, "code: it is empty: paste the code that the provider showed")
	}
	if a.State == "" && a.Login == uuid.Nil {
		return Ref{}, fault.New(fault.Invalid, "state: it is missing: paste the whole text that the provider showed")
	}
	row, err := k.tables.take(ctx, who, a)
	if err != nil {
		return Ref{}, err
	}
	if a.Provider != "" && a.Provider != row.Provider {
		return Ref{}, errStrange
	}
	p, err := k.cfg.Providers.Get(row.Provider)
	if err != nil {
		return Ref{}, err
	}
	if a.Error != "" {
		return Ref{}, declined(p, clean(a.Error))
	}
	// The code is good once: what the provider answers counts, though who asked may be gone.
	ctx = context.WithoutCancel(ctx)
	verifier, err := k.cfg.Vault.Open(ctx, row.place(who), row.sealed())
	if err != nil {
		return Ref{}, err
	}
	params := parameters{"grant_type": "authorization_code", "code": a.Code, "redirect_uri": row.Redirect, "code_verifier": verifier.Reveal()}
	if p.SendState && a.State != "" {
		params["state"] = a.State
	}
	return k.exchange(ctx, who, p, row, params)
}

// errStrange tells nothing of whether somebody else's login would have fitted.
var errStrange = fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "this sign-in is not one that you have open: it has expired, or was completed; start again")

func declined(p *Provider, code string) error {
	if code == "access_denied" {
		return fault.Coded(fault.Conflict, "LOGIN_DECLINED", "the sign-in to %s was declined", p.Name)
	}
	return fault.Coded(fault.Conflict, "LOGIN_FAILED", "%s refused the sign-in (%s): start again", p.Name, code)
}

// exchange turns a code into tokens and stores them.
func (k *Keeper) exchange(ctx context.Context, who Who, p *Provider, row loginRow, params parameters) (Ref, error) {
	maps.Copy(params, p.TokenParams)
	object, err := k.post(ctx, p, p.Token, params)
	var t issued
	if err == nil {
		t, err = tokens(object)
	}
	if err != nil {
		return Ref{}, exchangeFault(p, err)
	}
	ref := Ref{who.Workspace, row.Account}
	return ref, k.admit(context.WithoutCancel(ctx), who, p, row, t)
}

func exchangeFault(p *Provider, err error) error {
	f, ok := errors.AsType[*failure](err)
	switch {
	case !ok:
		return err
	case f.Answered && p.void(f.Code):
		return fault.Coded(fault.Conflict, "LOGIN_FAILED", "%s does not take the code: it has expired, was used, or was not copied whole; start again", p.Name)
	case f.Answered:
		return fault.Wrap(err, fault.Conflict, fmt.Sprintf("%s refused the sign-in: %v; the operator should look at the client's registration", p.Name, f))
	}
	return fault.Wrap(err, fault.Unavailable, fmt.Sprintf("signing in to %s did not work: %v; start again", p.Name, f))
}

// loginRow is a login as it is stored.
type loginRow struct {
	ID         uuid.UUID
	Provider   string
	Kind       Kind
	Account    id.Account
	Again      bool
	Label      string
	Redirect   string
	Sealed     []byte
	KeyVersion int
	IntervalS  int
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

// target names the account that a login is for.
func (k *Keeper) target(ctx context.Context, who Who, row *loginRow) error {
	if !row.Again {
		row.Account = id.New[id.Account]()
		return nil
	}
	g, err := k.tables.read(ctx, Ref{who.Workspace, row.Account})
	if err != nil {
		return err
	}
	if g.Provider != row.Provider {
		return fault.New(fault.Invalid, "account: it belongs to %s and not to %s", g.Provider, row.Provider)
	}
	return nil
}

// begin seals a login's secret and stores it.
func (k *Keeper) begin(ctx context.Context, who Who, row loginRow, stateHash []byte, secret vault.Secret, life time.Duration) error {
	sealed, err := k.cfg.Vault.Seal(ctx, row.place(who), secret)
	if err != nil {
		return err
	}
	return k.tables.begin(ctx, who, row, stateHash, sealed, life)
}

func tooMany(pending int) error {
	return fault.New(fault.Limited, "%d sign-ins have begun and were not completed: wait until they expire, within %s", pending, loginLife)
}

func authorizeURL(p *Provider, redirect, state, verifier string) string {
	q := url.Values{
		"response_type": {"code"}, "client_id": {p.Client.ID}, "redirect_uri": {redirect}, "state": {state},
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

// random returns 256 bits as text: a state, or a PKCE verifier (RFC 7636, 4.1).
func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

func hash(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}
