package credentialbroker

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/opencode"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// ImportSources are where credentials of a single user may be. What is empty is left
// out, as are files that are not there.
type ImportSources struct {
	// AuthFile is opencode's auth.json.
	AuthFile string
	// AccountsFile is its file of several Anthropic accounts, version 1.
	AccountsFile string
	// Environ has variables, as in os.Environ.
	Environ []string
}

// Import is what an import did, or would do.
type Import struct {
	Imported []ImportedAccount `json:"imported"`
	Skipped  []SkippedAccount  `json:"skipped"`
	// Merged is how many were the same credential as another one.
	Merged int `json:"merged"`
}

// ImportedAccount is a credential that was brought along.
type ImportedAccount struct {
	// ID is empty where nothing was done.
	ID       string `json:"id,omitempty"`
	Provider string `json:"provider"`
	Label    string `json:"label,omitempty"`
	Source   string `json:"source"`
	Enabled  bool   `json:"enabled"`
}

// SkippedAccount is a credential that was not brought along.
type SkippedAccount struct {
	Provider string `json:"provider"`
	Label    string `json:"label,omitempty"`
	Source   string `json:"source"`
	Reason   string `json:"reason"`
	// Here says that it is here already: nothing is missing.
	Here bool `json:"here,omitempty"`
}

// known is why a credential is left out that is here.
const known = "it is here already"

// Import brings credentials along that other programs of a single user keep. Those that
// are there already are left out, also when their tokens have been renewed since. A file
// that cannot be read ends it before anything is stored; dry stores nothing. An account
// and all that is known of it are stored in one transaction, so that after an error, or a
// death, it can be called again.
func (s *Scope) Import(ctx context.Context, from ImportSources, dry bool) (Import, error) {
	out := Import{Imported: []ImportedAccount{}, Skipped: []SkippedAccount{}}
	if err := s.Possible(); err != nil {
		return out, err // also where it is only asked what would be done
	}
	found, err := from.read()
	if err != nil {
		return out, err
	}
	found, out.Merged = opencode.Merge(found)
	there, err := s.present(ctx)
	if err != nil {
		return out, err
	}
	for i := range found {
		f := &found[i]
		reason := f.Skip
		if reason == "" {
			if reason, err = s.refuse(f, there); err != nil {
				return out, err
			}
		}
		if reason != "" {
			out.Skipped = append(out.Skipped, SkippedAccount{Provider: clip(f.Provider), Label: clip(f.Label), Source: f.Source, Reason: reason, Here: reason == known})
			continue
		}
		made := ImportedAccount{Provider: f.Provider, Label: f.Label, Source: f.Source, Enabled: f.Enabled}
		if !dry {
			account, err := s.bring(ctx, f)
			if errors.Is(err, store.ErrBrought) { // by somebody else, meanwhile
				out.Skipped = append(out.Skipped, SkippedAccount{Provider: f.Provider, Label: f.Label, Source: f.Source, Reason: known, Here: true})
				continue
			}
			if err != nil {
				return out, fmt.Errorf("import the account for %s of %s: %w", f.Provider, f.Source, err)
			}
			made.ID = account.String()
		}
		out.Imported = append(out.Imported, made)
	}
	if !dry && len(out.Imported) > 0 {
		s.changed()
	}
	return out, nil
}

func (from *ImportSources) read() (all []opencode.Found, err error) {
	var some []opencode.Found
	if from.AuthFile != "" {
		if all, err = opencode.ReadAuth(from.AuthFile); err != nil {
			return nil, fault.New(fault.Conflict, "%v", err)
		}
	}
	if from.AccountsFile != "" {
		if some, err = opencode.ReadAccounts(from.AccountsFile); err != nil {
			return nil, fault.New(fault.Conflict, "%v", err)
		}
		all = append(all, some...)
	}
	return append(all, opencode.FromEnvironment(from.Environ)...), nil
}

// present is what is there already: keys of the scope, and sign-ins of all.
type present struct {
	keys     map[string][]vault.Secret // by provider
	lost     map[id.Account]bool       // keys that do not open
	imported map[string]store.Imported
}

func (s *Scope) present(ctx context.Context) (present, error) {
	p := present{keys: map[string][]vault.Secret{}, lost: map[id.Account]bool{}}
	var err error
	if p.imported, err = s.accounts.store.FindImported(ctx); err != nil {
		return p, err
	}
	rows, err := s.accounts.store.List(ctx, s.workspace)
	if err != nil {
		return p, err
	}
	for i := range rows {
		r := &rows[i]
		if r.WorkspaceID != s.workspace || len(r.Sealed) == 0 {
			continue
		}
		key, err := s.accounts.vault.Open(ctx, r.Place(), vault.Sealed{KeyVersion: r.KeyVersion, Bytes: r.Sealed})
		if err != nil {
			p.lost[r.ID] = vault.Lasting(err)
			continue // of one that cannot be opened only the hash tells
		}
		p.keys[r.Provider] = append(p.keys[r.Provider], key)
	}
	return p, nil
}

// refuse says why a credential is not brought along; empty where it is.
func (s *Scope) refuse(f *opencode.Found, there present) (reason string, err error) {
	f.Label, _ = labelOf(f.Label) // one that cannot be kept is left out
	if f.Key.IsZero() {
		if reason := s.brought(f, there); reason != "" {
			return reason, nil
		}
		p, err := s.accounts.providers.Get(f.Provider)
		if err != nil {
			return "one cannot sign in to this provider here", nil
		}
		if err := p.Ready(); err != nil {
			return fault.From(err).Message, nil // its tokens could not be renewed
		}
		return "", nil
	}
	for _, key := range there.keys[f.Provider] {
		if subtle.ConstantTimeCompare([]byte(key.Reveal()), []byte(f.Key.Reveal())) == 1 {
			return known, nil
		}
	}
	hash, err := s.keyprint(f)
	if err != nil {
		return "", err
	}
	if a, ok := there.imported[string(hash)]; ok {
		if there.lost[a.Account] {
			return fmt.Sprintf("%s, and does not open: remove %s first", known, a.Account), nil
		}
		return known, nil
	}
	if _, _, err := s.check(keyOf(f)); err != nil {
		return fault.From(err).Message, nil
	}
	return "", nil
}

func keyOf(f *opencode.Found) NewAccount {
	return NewAccount{Provider: f.Provider, Label: f.Label, Secret: conf.Secret(f.Key.Reveal())}
}

// brought says that there is an account with the same refresh token, whosever it is: as
// two accounts each renewal of the one would end the other. Empty where there is none.
func (s *Scope) brought(f *opencode.Found, there present) string {
	found, ok := there.imported[string(fingerprint(id.Workspace{}, f))]
	for _, a := range there.imported { // what earlier versions brought has the workspace in its hash
		if old, is := there.imported[string(fingerprint(a.Workspace, f))]; is && (!ok || old.Workspace == s.workspace) {
			found, ok = old, true
		}
	}
	switch {
	case !ok:
		return ""
	case found.Workspace == s.workspace:
		return known
	case id.IsZero(found.Workspace):
		return fmt.Sprintf("%s, for all workspaces: a sign-in is one account, so remove %s first to have it for one workspace alone", known, found.Account)
	}
	return fmt.Sprintf("%s, for workspace %s: a sign-in is one account, so remove %s there first", known, found.Workspace, found.Account)
}

// fingerprint tells refresh tokens apart, which are random, and tells nothing of them. What
// is stored is that of the zero workspace, whosever the account is.
func fingerprint(ws id.Workspace, f *opencode.Found) []byte {
	sum := sha256.Sum256([]byte("signalbox.credential.v1 imported\x00" + ws.String() + "\x00" + f.Provider + "\x00" + f.Refresh.Reveal()))
	return sum[:]
}

// keyprintRounds make a key that somebody has made up as dear to guess from what is stored
// as a password is (OWASP, PBKDF2 with SHA-256).
const keyprintRounds = 600_000

// keyprint does for keys what fingerprint does for refresh tokens, within the scope:
// several may have the same key. It takes a tenth of a second.
func (s *Scope) keyprint(f *opencode.Found) ([]byte, error) {
	salt := "signalbox.credential.v1 imported key\x00" + s.workspace.String() + "\x00" + f.Provider
	return pbkdf2.Key(sha256.New, f.Key.Reveal(), []byte(salt), keyprintRounds, sha256.Size)
}

// bring stores one credential.
func (s *Scope) bring(ctx context.Context, f *opencode.Found) (id.Account, error) {
	if !f.Key.IsZero() {
		return s.bringKey(ctx, f)
	}
	n := oauth.NewGrant{
		Provider: f.Provider, Label: f.Label, Refresh: f.Refresh,
		Brought: store.Brought{Hash: fingerprint(id.Workspace{}, f), Disabled: !f.Enabled, Current: f.Enabled && f.Current, Used: f.Used},
	}
	if life := time.Until(f.Expires); life > 0 && !f.Access.IsZero() {
		n.Access, n.Life = f.Access, life
	}
	if now := time.Now(); f.Limited.After(now) {
		// No longer than a limit that was found out here would be.
		until := now.Add(pool.Clamp(pool.RateLimited, f.Limited.Sub(now)))
		n.Brought.Limit = &store.Limit{At: now, Until: until, Soon: until, Reason: pool.RateLimited}
	}
	ref, err := s.accounts.keeper.Add(ctx, s.who(), n)
	return ref.Account, err
}

func (s *Scope) bringKey(ctx context.Context, f *opencode.Found) (id.Account, error) {
	row, secret, err := s.check(keyOf(f))
	if err != nil {
		return id.Account{}, err
	}
	row.WorkspaceID, row.ID = s.workspace, id.New[id.Account]()
	sealed, err := s.accounts.vault.Seal(ctx, row.Place(), secret)
	if err != nil {
		return id.Account{}, err
	}
	row.KeyVersion, row.Sealed = sealed.KeyVersion, sealed.Bytes
	hash, err := s.keyprint(f)
	if err != nil {
		return id.Account{}, err
	}
	_, err = s.accounts.store.Bring(ctx, row, s.created(&row), store.Brought{Hash: hash})
	return row.ID, err
}
