package admin

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	maxSecret = 8 << 10
	maxLabel  = 100
	generic   = "generic" // the request profile of providers that have none of their own
)

// NewAccount is a credential to be stored.
type NewAccount struct {
	// Provider is one of KeyProviders, another one with a request profile, or a name of one's own.
	Provider string
	// Profile is empty for the provider's own.
	Profile string
	Label   string
	// BaseURL is empty for the profile's own.
	BaseURL string
	// FlatRate says that it is paid by the month.
	FlatRate bool
	// Check has Add ask the provider first (Try), and store nothing that it rejects.
	Check  bool
	Secret conf.Secret
	// ID is the id that the account will have; zero for a new one. If the same call has
	// already added the account, Add returns it.
	ID id.Account
}

// Keyless reports whether an account may have no secret: one's own server may need none.
func (n *NewAccount) Keyless() bool { return n.BaseURL != "" }

// Add seals and stores a credential.
func (s *Scope) Add(ctx context.Context, n NewAccount) (Account, error) {
	row, secret, err := s.check(n)
	if err != nil {
		return Account{}, err
	}
	if id.IsZero(row.ID) {
		row.ID = id.New[id.Account]()
	} else if added, err := s.added(ctx, &row, secret); fault.KindOf(err) != fault.NotFound {
		return added, err
	}
	if n.Check {
		if _, err := s.Try(ctx, n); err != nil {
			return Account{}, err
		}
	}
	if row.Sealed, err = s.accounts.Vault.Seal(ctx, row.Place(), secret); err != nil {
		return Account{}, err
	}
	if _, err := s.accounts.Store.Add(ctx, row, s.created(&row)); err != nil {
		if added, again := s.added(ctx, &row, secret); fault.KindOf(again) != fault.NotFound {
			return added, again // a concurrent repeat of the call was faster
		}
		return Account{}, err
	}
	return s.changed(ctx, row.ID, nil)
}

func (s *Scope) created(row *store.Account) store.Event {
	ev := s.event("created")
	ev.Account, ev.Provider = row.ID, row.Provider
	return ev
}

// added returns the account that an earlier attempt of the same call has stored. A call for
// something else under its id is a Conflict fault.
func (s *Scope) added(ctx context.Context, row *store.Account, secret vault.Secret) (Account, error) {
	old, err := s.accounts.Store.Get(ctx, s.by.Workspace, row.ID)
	if err != nil {
		return Account{}, err
	}
	same := len(old.Bytes) > 0 && old.Provider == row.Provider && old.Profile == row.Profile && old.Label == row.Label && old.BaseURL == row.BaseURL
	if same {
		key, err := s.accounts.Vault.Open(ctx, old.Place(), old.Sealed)
		if err != nil && !vault.Lasting(err) {
			return Account{}, err // the key service is unavailable
		}
		same = err == nil && equal(key, secret)
	}
	if !same {
		return Account{}, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key has added another account, %s: use a new key for a new account", row.ID)
	}
	return s.Get(ctx, row.ID)
}

func equal(a, b vault.Secret) bool {
	return subtle.ConstantTimeCompare([]byte(a.Reveal()), []byte(b.Reveal())) == 1
}

// Check says what is wrong with a new account apart from its secret, which a person may
// still have to enter.
func (s *Scope) Check(n NewAccount) error {
	_, err := s.row(n)
	return err
}

// check turns a new account into a row and its secret, or says what is wrong with it.
func (s *Scope) check(n NewAccount) (store.Account, vault.Secret, error) {
	row, err := s.row(n)
	if err != nil {
		return row, vault.Secret{}, err
	}
	text := strings.TrimSpace(n.Secret.Reveal())
	if err := CheckSecret(text); err != nil && (text != "" || !n.Keyless()) {
		return row, vault.Secret{}, fault.New(fault.Invalid, "secret: %v", err)
	}
	secret := vault.NewSecret(text)
	row.Hint = secret.Hint()
	return row, secret, nil
}

func (s *Scope) row(n NewAccount) (store.Account, error) {
	profiles := s.accounts.Profiles
	row := store.Account{WorkspaceID: s.by.Workspace, ID: n.ID, Provider: n.Provider, FlatRate: n.FlatRate}
	if err := checkProvider(n.Provider); err != nil {
		return row, err
	}
	if pool.IsSimulator(n.Provider) {
		return row, fault.New(fault.Invalid, "provider: the name %s is reserved for the simulated provider, which needs no account: choose another one", n.Provider)
	}
	p, ok := profiles.For(n.Provider)
	if n.Profile != "" {
		if p, ok = profiles.Get(n.Profile); !ok {
			return row, fault.New(fault.Invalid, "profile: there is no request profile %q: use one of %s", clip(n.Profile), strings.Join(profiles.Names(), ", "))
		}
	}
	if !ok && n.BaseURL != "" { // most servers speak OpenAI's protocol
		p, ok = profiles.Get(generic)
	}
	if !ok {
		return row, fault.New(fault.Invalid, "base_url: %s is not a known provider (%s): give its URL, such as http://localhost:11434/v1 for Ollama; unless it speaks OpenAI's protocol, name a request profile too (%s)", n.Provider, strings.Join(profiles.Providers(), ", "), strings.Join(profiles.Names(), ", "))
	}
	row.Profile = p.Name
	var err error
	if row.Label, err = checkLabel(n.Label); err != nil {
		return row, err
	}
	switch {
	case n.BaseURL != "":
		u, err := s.accounts.Policy.For(s.shared()).Parse(n.BaseURL)
		if err != nil {
			return row, fault.New(fault.Invalid, "base_url: %v", err)
		}
		row.BaseURL = u.String()
	case p.BaseURL == nil:
		return row, fault.New(fault.Invalid, "base_url: the profile %s has none: give the provider's URL", p.Name)
	}
	return row, nil
}

var providerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

func checkProvider(provider string) error {
	if !providerForm.MatchString(provider) {
		return fault.New(fault.Invalid, "provider: %q is not a provider's name: use lower-case letters, digits and dashes, 32 at most", clip(provider))
	}
	return nil
}

// CheckSecret refuses a secret that cannot be sent in a header. Its errors quote nothing of
// the secret.
func CheckSecret(text string) error {
	if text == "" {
		return errors.New("it is empty")
	}
	if len(text) > maxSecret {
		return fmt.Errorf("it is longer than %d bytes", maxSecret)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("it contains a space, a line break or another character that keys never contain: copy the whole key and nothing else")
	}
	return nil
}

// checkLabel returns a label without surrounding spaces, or an Invalid fault.
func checkLabel(text string) (string, error) {
	label := strings.TrimFunc(text, func(r rune) bool { return unicode.Is(unicode.Zs, r) })
	// Invisible characters can reverse the text after them on a screen, or make two labels
	// look alike.
	invisible := func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }
	switch {
	case utf8.RuneCountInString(label) > maxLabel:
		return "", fault.New(fault.Invalid, "label: it is longer than %d characters", maxLabel)
	case !utf8.ValidString(label) || strings.ContainsFunc(label, invisible):
		return "", fault.New(fault.Invalid, "label: it contains a control character or another invisible character")
	case strings.HasPrefix(label, "sk-"):
		return "", fault.New(fault.Invalid, "label: it looks like a key, which must stay secret: choose another label")
	}
	return label, nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
