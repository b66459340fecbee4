package credentialbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// commandLine is who acts, in the audit, when the operator does.
const commandLine = "signalbox accounts"

const (
	maxSecret = 8 << 10
	maxLabel  = 100
)

// AccountsConfig is what Accounts works on.
type AccountsConfig struct {
	// DB is the credentials schema, as the service's role.
	DB *pg.DB
	// KeyFile is the broker's; it is made when it is not there, unless Keys has a URL.
	KeyFile string
	// Keys are those beside the file.
	Keys Keys
	// Profiles is the folder of the operator's own request profiles; empty for none.
	Profiles string
	// AllowPrivate allows base URLs at loopback and private addresses.
	AllowPrivate bool
	// OAuth says how to sign in to providers.
	OAuth OAuth
	// Log is for what goes on at authorisation servers; nil for none.
	Log *slog.Logger
}

// Accounts administers stored credentials directly on the database, with or
// without a running broker, which takes notice within a second. It is the
// operator's, behind `signalbox accounts`: nobody's role is checked. Errors are
// faults whose messages are for people.
type Accounts struct {
	store    *store.Store
	vault    *vault.Vault
	keys     vault.Ring
	rotation *rotation.Rotation
	profiles *profile.Set
	policy   target.Policy
	// providers are those that one can sign in to.
	providers *oauth.Providers
	keeper    *oauth.Keeper
}

// OpenAccounts returns the accounts of a database. The caller closes it, and then the DB.
func OpenAccounts(cfg AccountsConfig) (*Accounts, error) {
	profiles, err := profile.Open(process.Version(), cfg.Profiles)
	if err != nil {
		return nil, fmt.Errorf("load request profiles: %w", err)
	}
	return openAccounts(cfg, profiles)
}

func openAccounts(cfg AccountsConfig, profiles *profile.Set) (*Accounts, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	providers, err := cfg.OAuth.providers(profiles)
	if err != nil {
		return nil, err
	}
	keys, err := cfg.Keys.open(cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	s := store.New(cfg.DB)
	v := vault.New(keys.KEK, s, keys.Others...)
	a := &Accounts{
		store: s, vault: v, keys: keys, rotation: rotation.New(cfg.DB, s, v), profiles: profiles, providers: providers,
		policy: target.Policy{AllowPrivate: cfg.AllowPrivate},
	}
	a.keeper = newKeeper(cfg, a.providers, a.vault)
	return a, nil
}

// Close returns when nothing is sent or written any more.
func (a *Accounts) Close() {
	a.keeper.Close()
	a.closeKeys()
}

// Account is a stored credential without its secret.
type Account struct {
	ID string `json:"id"`
	// Workspace is empty for an account shared with all of them.
	Workspace string `json:"workspace_id,omitempty"`
	Shared    bool   `json:"shared"`
	Provider  string `json:"provider"`
	Profile   string `json:"profile"`
	Label     string `json:"label,omitempty"`
	// Hint is the end of the secret, for people to tell keys apart.
	Hint string `json:"hint,omitempty"`
	// BaseURL is empty for the profile's own.
	BaseURL    string     `json:"base_url,omitempty"`
	Enabled    bool       `json:"enabled"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	State
}

// NewAccount is a credential to be stored.
type NewAccount struct {
	// Provider is anthropic, openai, openrouter, or a name of one's own.
	Provider string
	// Profile is empty for the provider's own.
	Profile string
	Label   string
	// BaseURL is empty for the profile's own.
	BaseURL string
	Secret  conf.Secret
}

// List returns every account, shared ones first, then by workspace.
func (a *Accounts) List(ctx context.Context) ([]Account, error) {
	rows, err := a.store.ListAll(ctx)
	if err != nil {
		return nil, err
	}
	var out []Account
	for len(rows) > 0 {
		ws, n := rows[0].WorkspaceID, 1
		for n < len(rows) && rows[n].WorkspaceID == ws {
			n++
		}
		some, err := a.Operator(ws).describe(ctx, rows[:n], nil)
		if err != nil {
			return nil, err
		}
		out, rows = append(out, some...), rows[n:]
	}
	return out, nil
}

// Find returns the account of that id, whosever it is. One that is not there is a
// NotFound fault.
func (a *Accounts) Find(ctx context.Context, account id.Account) (Account, *Scope, error) {
	ws, err := a.store.WorkspaceOf(ctx, account)
	if err != nil {
		return Account{}, nil, err
	}
	s := a.Operator(ws)
	found, err := s.Get(ctx, account)
	return found, s, err
}

// Providers returns the names of the providers that need no profile or base URL.
func (a *Accounts) Providers() []string { return a.profiles.Providers() }

// Add seals and stores a credential.
func (s *Scope) Add(ctx context.Context, n NewAccount) (Account, error) {
	a := s.accounts
	row, secret, err := a.check(n)
	if err != nil {
		return Account{}, err
	}
	row.WorkspaceID, row.ID = s.workspace, id.New[id.Account]()
	sealed, err := a.vault.Seal(ctx, row.Place(), secret)
	if err != nil {
		return Account{}, err
	}
	row.KeyVersion, row.Sealed = sealed.KeyVersion, sealed.Bytes
	ev := s.event("created")
	ev.Account, ev.Provider = row.ID, row.Provider
	if row, err = a.store.Add(ctx, row, ev); err != nil {
		return Account{}, err
	}
	s.changed()
	return s.Get(ctx, row.ID)
}

var providerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// check turns a new account into a row, or says what is wrong with it.
func (a *Accounts) check(n NewAccount) (store.Account, vault.Secret, error) {
	none := vault.Secret{}
	if !providerForm.MatchString(n.Provider) {
		return store.Account{}, none, fault.New(fault.Invalid, "provider: %q is not a provider's name: use lower-case letters, digits and dashes, 32 at most", clip(n.Provider))
	}
	p, ok := a.profiles.For(n.Provider)
	if n.Profile != "" {
		if p, ok = a.profiles.Get(n.Profile); !ok {
			return store.Account{}, none, fault.New(fault.Invalid, "profile: there is no request profile %q: use one of %s", clip(n.Profile), strings.Join(a.profiles.Names(), ", "))
		}
	}
	if !ok {
		return store.Account{}, none, fault.New(fault.Invalid, "profile: the provider %s has none of its own: use one of %s (generic for a bearer token)", n.Provider, strings.Join(a.profiles.Names(), ", "))
	}
	if err := checkLabel(n.Label); err != nil {
		return store.Account{}, none, fault.New(fault.Invalid, "label: %v", err)
	}
	text := strings.TrimSpace(n.Secret.Reveal())
	if err := checkSecret(text); err != nil {
		return store.Account{}, none, fault.New(fault.Invalid, "secret: %v", err)
	}
	secret := vault.NewSecret(text)
	row := store.Account{Provider: n.Provider, Profile: p.Name, Label: n.Label, Hint: secret.Hint()}
	switch {
	case n.BaseURL != "":
		u, err := a.policy.Parse(n.BaseURL)
		if err != nil {
			return store.Account{}, none, fault.New(fault.Invalid, "base_url: %v", err)
		}
		row.BaseURL = u.String()
	case p.BaseURL == nil:
		return store.Account{}, none, fault.New(fault.Invalid, "base_url: the profile %s has none: say where the provider is", p.Name)
	}
	return row, secret, nil
}

// checkSecret refuses what cannot be sent in a header. Its errors hold nothing of
// the secret.
func checkSecret(text string) error {
	if text == "" {
		return errors.New("it is empty")
	}
	if len(text) > maxSecret {
		return fmt.Errorf("it is longer than %d bytes", maxSecret)
	}
	for _, b := range []byte(text) {
		if b <= ' ' || b > '~' {
			return errors.New("it holds a space, a line break or another character that no key has: was it copied whole, and alone?")
		}
	}
	return nil
}

func checkLabel(label string) error {
	if utf8.RuneCountInString(label) > maxLabel {
		return fmt.Errorf("it is longer than %d characters", maxLabel)
	}
	if !utf8.ValidString(label) || strings.ContainsFunc(label, unicode.IsControl) {
		return errors.New("it holds a control character")
	}
	return nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

func describe(a *store.Account) Account {
	out := Account{
		ID: a.ID.String(), Shared: a.Shared(), Provider: a.Provider, Profile: a.Profile, Label: a.Label, Hint: a.Hint,
		BaseURL: a.BaseURL, Enabled: a.Enabled, CreatedAt: a.CreatedAt, LastUsedAt: a.LastUsedAt,
	}
	if !a.Shared() {
		out.Workspace = a.WorkspaceID.String()
	}
	return out
}

// LogValue tells logs which account it is and no more.
func (a Account) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", a.ID), slog.String("provider", a.Provider))
}
