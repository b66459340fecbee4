package credentialbroker

import (
	"context"
	"crypto/subtle"
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
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/rotation"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// commandLine is through what the operator acts, in the audit.
const commandLine = "cli"

const (
	maxSecret = 8 << 10
	maxLabel  = 100
)

// AccountsConfig is what Accounts works on.
type AccountsConfig struct {
	// DB is the credentials schema, as the service's role; nil where there is a File.
	DB *pg.DB
	// File keeps the accounts of a single user in place of a database; empty for none.
	File string
	// KeyFile is the broker's. Where it is not there, and Keys has no URL, OpenAccounts
	// has it made when something is sealed for the first time.
	KeyFile string
	// Keys are those beside the file.
	Keys Keys
	// Profiles is the folder of the operator's own request profiles; empty for none.
	Profiles string
	// AllowPrivate allows base URLs at loopback and private addresses.
	AllowPrivate bool
	// AllowLoopback allows those at loopback addresses for shared accounts alone.
	AllowLoopback bool
	// OAuth says how to sign in to providers.
	OAuth OAuth
	// Operator is who acts, for the audit: a user of the operating system, and where.
	Operator string
	// Log is for what goes on at authorisation servers; nil for none.
	Log *slog.Logger

	later bool // the key file is made later
}

// Accounts administers stored credentials directly on the database, or on the file that
// is there instead of one, with or without a running broker, which takes notice within a
// second. It is the
// operator's, behind `signalbox accounts`: nobody's role is checked. Errors are
// faults whose messages are for people.
type Accounts struct {
	store    tables
	file     *accountfile.File // nil where there is a database
	vault    *vault.Vault
	keys     vault.Ring
	rotation *rotation.Rotation
	profiles *profile.Set
	policy   target.Policy
	// providers are those that one can sign in to, and redirect is where they send
	// browsers back to.
	providers *oauth.Providers
	redirect  string
	keeper    *oauth.Keeper
	operator  string
	log       *slog.Logger
}

// OpenAccounts returns the accounts of a database or of a file. The caller closes it, and
// then the DB.
func OpenAccounts(cfg AccountsConfig) (*Accounts, error) {
	profiles, err := profile.Open(process.Version(), cfg.Profiles)
	if err != nil {
		return nil, fmt.Errorf("load request profiles: %w", err)
	}
	cfg.later = true
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
	file, err := openFile(&cfg) // first: it makes the folder, in which the key may be too
	if err != nil {
		return nil, err
	}
	keys, err := cfg.Keys.open(cfg.KeyFile, cfg.later)
	if err != nil {
		file.Close()
		return nil, err
	}
	a := &Accounts{
		file: file, keys: keys, profiles: profiles, providers: providers,
		policy: target.Policy{AllowPrivate: cfg.AllowPrivate, Loopback: cfg.AllowLoopback}, redirect: cfg.OAuth.Redirect, operator: cfg.Operator, log: cfg.Log,
	}
	a.openTables(&cfg)
	a.keeper = newKeeper(cfg, a)
	return a, nil
}

// Close returns when nothing is sent or written any more.
func (a *Accounts) Close() {
	a.keeper.Close()
	a.closeKeys()
	a.file.Close()
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
	BaseURL string `json:"base_url,omitempty"`
	Enabled bool   `json:"enabled"`
	// FlatRate says that it is paid by the month, and its use costs nothing.
	FlatRate   bool       `json:"flat_rate,omitempty"`
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
	// FlatRate says that it is paid by the month.
	FlatRate bool
	Secret   conf.Secret
	// ID is that of the account to be; zero for a new one. Where the same call has added one
	// already, it is what Add returns.
	ID id.Account
}

// List returns every account, shared ones first, then by workspace.
func (a *Accounts) List(ctx context.Context) ([]Account, error) {
	rows, err := a.store.ListAll(ctx)
	if err != nil {
		return nil, err
	}
	var out []Account
	look := a.vault.Look()
	for len(rows) > 0 {
		ws, n := rows[0].WorkspaceID, 1
		for n < len(rows) && rows[n].WorkspaceID == ws {
			n++
		}
		some, err := a.Operator(ws).describe(ctx, rows[:n], nil, look)
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
	row, secret, err := s.check(n)
	if err != nil {
		return Account{}, err
	}
	row.WorkspaceID, row.ID = s.workspace, n.ID
	if id.IsZero(n.ID) {
		row.ID = id.New[id.Account]()
	} else if made, err := s.made(ctx, &row, secret); fault.KindOf(err) != fault.NotFound {
		return made, err
	}
	sealed, err := a.vault.Seal(ctx, row.Place(), secret)
	if err != nil {
		return Account{}, err
	}
	row.KeyVersion, row.Sealed = sealed.KeyVersion, sealed.Bytes
	if _, err := a.store.Add(ctx, row, s.created(&row)); err != nil {
		if made, again := s.made(ctx, &row, secret); fault.KindOf(again) != fault.NotFound {
			return made, again // the same call, which was faster
		}
		return Account{}, err
	}
	s.changed()
	return s.Get(ctx, row.ID)
}

func (s *Scope) created(row *store.Account) store.Event {
	ev := s.event("created")
	ev.Account, ev.Provider = row.ID, row.Provider
	return ev
}

// made returns the account that the same call has made before. A call for something else
// under its id is a Conflict fault.
func (s *Scope) made(ctx context.Context, row *store.Account, secret vault.Secret) (Account, error) {
	there, err := s.accounts.store.Get(ctx, s.workspace, row.ID)
	if err != nil {
		return Account{}, err
	}
	same := len(there.Sealed) > 0 && there.Provider == row.Provider && there.Profile == row.Profile &&
		there.Label == row.Label && there.BaseURL == row.BaseURL
	if same {
		key, err := s.accounts.vault.Open(ctx, there.Place(), vault.Sealed{KeyVersion: there.KeyVersion, Bytes: there.Sealed})
		switch {
		case err == nil:
			same = subtle.ConstantTimeCompare([]byte(key.Reveal()), []byte(secret.Reveal())) == 1
		case !vault.Lasting(err):
			return Account{}, err // the key service is away
		}
	}
	if !same {
		return Account{}, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key has added another account, %s: use a new key for a new account", row.ID)
	}
	return s.Get(ctx, row.ID)
}

// generic is the request profile of providers that have none of their own.
const generic = "generic"

var providerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Keyless reports whether an account may have no secret: a server of one's own may want none.
func (n *NewAccount) Keyless() bool { return n.BaseURL != "" }

// Check says what is wrong with a new account but for its secret, which somebody may have
// to be asked for.
func (s *Scope) Check(n NewAccount) error {
	_, err := s.rowOf(n)
	return err
}

// check turns a new account into a row, or says what is wrong with it.
func (s *Scope) check(n NewAccount) (store.Account, vault.Secret, error) {
	row, err := s.rowOf(n)
	if err != nil {
		return store.Account{}, vault.Secret{}, err
	}
	text := strings.TrimSpace(n.Secret.Reveal())
	if err := checkSecret(text); err != nil && (text != "" || !n.Keyless()) {
		return store.Account{}, vault.Secret{}, fault.New(fault.Invalid, "secret: %v", err)
	}
	secret := vault.NewSecret(text)
	row.Hint = secret.Hint()
	return row, secret, nil
}

func (s *Scope) rowOf(n NewAccount) (store.Account, error) {
	a := s.accounts
	none := store.Account{}
	if err := checkProvider(n.Provider); err != nil {
		return none, err
	}
	if pool.IsSimulator(n.Provider) {
		return none, fault.New(fault.Invalid, "provider: the name %s is kept for the simulated provider, which needs no account: choose another one", n.Provider)
	}
	p, ok := a.profiles.For(n.Provider)
	if n.Profile != "" {
		if p, ok = a.profiles.Get(n.Profile); !ok {
			return none, fault.New(fault.Invalid, "profile: there is no request profile %q: use one of %s", clip(n.Profile), strings.Join(a.profiles.Names(), ", "))
		}
	}
	if !ok && n.BaseURL != "" { // most that is there speaks OpenAI's protocol
		p, ok = a.profiles.Get(generic)
	}
	if !ok {
		return none, fault.New(fault.Invalid, "base_url: %s is not a provider that this program knows (%s): say where it is, such as http://localhost:11434/v1 for Ollama, if it speaks OpenAI's protocol; else name a request profile too (%s)", n.Provider, strings.Join(a.profiles.Providers(), ", "), strings.Join(a.profiles.Names(), ", "))
	}
	label, err := labelOf(n.Label)
	if err != nil {
		return none, fault.New(fault.Invalid, "label: %v", err)
	}
	row := store.Account{Provider: n.Provider, Profile: p.Name, Label: label, FlatRate: n.FlatRate}
	switch {
	case n.BaseURL != "":
		u, err := a.policy.For(id.IsZero(s.workspace)).Parse(n.BaseURL)
		if err != nil {
			return none, fault.New(fault.Invalid, "base_url: %v", err)
		}
		row.BaseURL = u.String()
	case p.BaseURL == nil:
		return none, fault.New(fault.Invalid, "base_url: the profile %s has none: say where the provider is", p.Name)
	}
	return row, nil
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

// labelOf returns a label without the blanks around it, or says what is wrong with it.
func labelOf(text string) (string, error) {
	label := strings.TrimFunc(text, func(r rune) bool { return unicode.Is(unicode.Zs, r) })
	if utf8.RuneCountInString(label) > maxLabel {
		return "", fmt.Errorf("it is longer than %d characters", maxLabel)
	}
	// Of the characters that are not seen, some turn round what follows on a screen, and
	// others make two labels look alike.
	if !utf8.ValidString(label) || strings.ContainsFunc(label, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }) {
		return "", errors.New("it holds a control character, or another one that is not seen")
	}
	if strings.HasPrefix(label, "sk-") {
		return "", errors.New("it looks like a key, which nobody is to see: name the account otherwise")
	}
	return label, nil
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
		BaseURL: a.BaseURL, Enabled: a.Enabled, FlatRate: a.FlatRate, CreatedAt: a.CreatedAt, LastUsedAt: a.LastUsedAt,
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
