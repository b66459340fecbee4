package admin

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
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

// ImportSources are where credentials of a single user may be. Empty sources and missing
// files are skipped.
type ImportSources struct {
	AuthFile     string   // opencode's auth.json
	AccountsFile string   // its file of several Anthropic accounts, version 1
	Environ      []string // variables, as in os.Environ
}

// Import is what an import did, or would do.
type Import struct {
	Imported []ImportedAccount `json:"imported"`
	Skipped  []SkippedAccount  `json:"skipped"`
	Merged   int               `json:"merged"` // duplicates of the same credential
}

// ImportedAccount is a credential that was imported.
type ImportedAccount struct {
	ID       id.Account `json:"id,omitzero"` // zero in a dry run
	Provider string     `json:"provider"`
	Label    string     `json:"label,omitempty"`
	Source   string     `json:"source"`
	Enabled  bool       `json:"enabled"`
}

// SkippedAccount is a credential that was not imported.
type SkippedAccount struct {
	Provider string `json:"provider"`
	Label    string `json:"label,omitempty"`
	Source   string `json:"source"`
	Reason   string `json:"reason"`
	// Here says that the credential is stored already: nothing is missing.
	Here bool `json:"here,omitempty"`
}

// alreadyHere is the reason to skip a credential that is stored already.
const alreadyHere = "it is already stored"

// Import stores the credentials that other programs of a single user keep. It skips those
// that are stored already, even if their tokens have been renewed since. An unreadable file
// ends it before anything is stored; dry stores nothing. Each account is stored with
// everything known of it in one transaction, so that Import can be called again after an
// error or a crash.
func (s *Scope) Import(ctx context.Context, from ImportSources, dry bool) (Import, error) {
	out := Import{Imported: []ImportedAccount{}, Skipped: []SkippedAccount{}}
	if err := s.Possible(); err != nil {
		return out, err // in a dry run too
	}
	found, err := from.read()
	if err != nil {
		return out, err
	}
	found, out.Merged = opencode.Merge(found)
	present, err := s.present(ctx)
	if err != nil {
		return out, err
	}
	for i := range found {
		f := &found[i]
		reason, err := s.whySkip(f, &present)
		if err != nil {
			return out, err
		}
		made := ImportedAccount{Provider: f.Provider, Label: f.Label, Source: f.Source, Enabled: f.Enabled}
		if reason == "" && !dry {
			made.ID, err = s.importOne(ctx, f)
			switch {
			case errors.Is(err, store.ErrImported): // by a concurrent import
				reason = alreadyHere
			case err != nil:
				return out, fmt.Errorf("import the account for %s of %s: %w", f.Provider, f.Source, err)
			}
		}
		if reason != "" {
			out.Skipped = append(out.Skipped, SkippedAccount{Provider: clip(f.Provider), Label: clip(f.Label), Source: f.Source, Reason: reason, Here: reason == alreadyHere})
			continue
		}
		out.Imported = append(out.Imported, made)
	}
	if !dry && len(out.Imported) > 0 {
		s.invalidate()
	}
	return out, nil
}

func (from *ImportSources) read() (all []opencode.Found, err error) {
	for _, file := range []struct {
		path string
		read func(path string) ([]opencode.Found, error)
	}{{from.AuthFile, opencode.ReadAuth}, {from.AccountsFile, opencode.ReadAccounts}} {
		if file.path == "" {
			continue
		}
		some, err := file.read(file.path)
		if err != nil {
			return nil, fault.New(fault.Conflict, "%v", err)
		}
		all = append(all, some...)
	}
	for _, k := range (&Environment{}).Keys() {
		all = append(all, opencode.FromVariable(from.Environ, k.KeyVariable(), k.Provider)...)
	}
	return all, nil
}

// present is what is stored already: the scope's keys, and imported credentials of all
// scopes by their hash.
type present struct {
	keys     map[string][]vault.Secret // by provider
	lost     map[id.Account]bool       // keys that cannot be decrypted
	imported map[string]store.Imported
}

func (s *Scope) present(ctx context.Context) (present, error) {
	p := present{keys: map[string][]vault.Secret{}, lost: map[id.Account]bool{}}
	var err error
	if p.imported, err = s.accounts.Store.FindImported(ctx); err != nil {
		return p, err
	}
	own, _, err := s.rows(ctx)
	if err != nil {
		return p, err
	}
	for i := range own {
		r := &own[i]
		if len(r.Bytes) == 0 {
			continue
		}
		key, err := s.accounts.Vault.Open(ctx, r.Place(), r.Sealed)
		if err != nil {
			p.lost[r.ID] = vault.Lasting(err)
			continue // only its hash can be compared
		}
		p.keys[r.Provider] = append(p.keys[r.Provider], key)
	}
	return p, nil
}

// whySkip says why a credential is not imported; it is empty if it is.
func (s *Scope) whySkip(f *opencode.Found, present *present) (reason string, err error) {
	if f.Skip != "" {
		return f.Skip, nil
	}
	f.Label, _ = checkLabel(f.Label) // an invalid label is dropped
	if f.Key.IsZero() {
		if reason := s.duplicateGrant(f, present); reason != "" {
			return reason, nil
		}
		p, err := s.accounts.providers.Get(f.Provider)
		if err != nil {
			return "signing in to this provider is not supported here", nil
		}
		if err := p.Ready(); err != nil {
			return fault.From(err).Message, nil // its tokens could not be renewed
		}
		return "", nil
	}
	if slices.ContainsFunc(present.keys[f.Provider], func(key vault.Secret) bool { return equal(key, f.Key) }) {
		return alreadyHere, nil
	}
	hash, err := s.keyHash(f)
	if err != nil {
		return "", err
	}
	if a, ok := present.imported[string(hash)]; ok {
		if present.lost[a.Account] {
			return fmt.Sprintf("%s, but cannot be decrypted: remove %s first", alreadyHere, a.Account), nil
		}
		return alreadyHere, nil
	}
	if _, _, err := s.check(keyOf(f)); err != nil {
		return fault.From(err).Message, nil
	}
	return "", nil
}

func keyOf(f *opencode.Found) NewAccount {
	return NewAccount{Provider: f.Provider, Label: f.Label, Secret: conf.Secret(f.Key.Reveal())}
}

// duplicateGrant says which account, in any workspace, has the same refresh token: of two
// such accounts, each renewal of one would end the other. It is empty if there is none.
func (s *Scope) duplicateGrant(f *opencode.Found, present *present) string {
	found, ok := present.imported[string(grantHash(id.Workspace{}, f))]
	for _, a := range present.imported { // earlier versions hashed the workspace too
		if old, is := present.imported[string(grantHash(a.Workspace, f))]; is && (!ok || old.Workspace == s.by.Workspace) {
			found, ok = old, true
		}
	}
	switch {
	case !ok:
		return ""
	case found.Workspace == s.by.Workspace:
		return alreadyHere
	case id.IsZero(found.Workspace):
		return fmt.Sprintf("%s, for all workspaces: a sign-in can belong to only one account, so remove %s first to store it for one workspace", alreadyHere, found.Account)
	}
	return fmt.Sprintf("%s, for workspace %s: a sign-in can belong to only one account, so remove %s there first", alreadyHere, found.Workspace, found.Account)
}

// grantHash identifies a refresh token without revealing it; refresh tokens are random. The
// stored hash is that of the zero workspace, whatever workspace the account belongs to.
func grantHash(ws id.Workspace, f *opencode.Found) []byte {
	sum := sha256.Sum256([]byte("signalbox.credential.v1 imported\x00" + ws.String() + "\x00" + f.Provider + "\x00" + f.Refresh.Reveal()))
	return sum[:]
}

// keyHashRounds make a self-chosen key as expensive to guess from the stored hash as a
// password (OWASP, PBKDF2 with SHA-256).
const keyHashRounds = 600_000

// keyHash identifies a key within the scope: several scopes may have the same key. It takes
// a tenth of a second.
func (s *Scope) keyHash(f *opencode.Found) ([]byte, error) {
	salt := "signalbox.credential.v1 imported key\x00" + s.by.Workspace.String() + "\x00" + f.Provider
	return pbkdf2.Key(sha256.New, f.Key.Reveal(), []byte(salt), keyHashRounds, sha256.Size)
}

// importOne stores one credential.
func (s *Scope) importOne(ctx context.Context, f *opencode.Found) (id.Account, error) {
	if !f.Key.IsZero() {
		return s.importKey(ctx, f)
	}
	n := oauth.NewGrant{
		Provider: f.Provider, Label: f.Label, Refresh: f.Refresh,
		Import: store.Import{Hash: grantHash(id.Workspace{}, f), Disabled: !f.Enabled, Current: f.Enabled && f.Current, Used: f.Used},
	}
	if life := time.Until(f.Expires); life > 0 && !f.Access.IsZero() {
		n.Access, n.Life = f.Access, life
	}
	if now := time.Now(); f.Limited.After(now) {
		until := now.Add(pool.Clamp(pool.RateLimited, f.Limited.Sub(now))) // as for a limit that the broker meets
		n.Import.Limit = &store.Limit{At: now, Until: until, Soon: until, Reason: pool.RateLimited}
	}
	ref, err := s.accounts.Keeper.Add(ctx, s.by, n)
	return ref.Account, err
}

func (s *Scope) importKey(ctx context.Context, f *opencode.Found) (id.Account, error) {
	row, secret, err := s.check(keyOf(f))
	if err != nil {
		return id.Account{}, err
	}
	row.ID = id.New[id.Account]()
	if row.Sealed, err = s.accounts.Vault.Seal(ctx, row.Place(), secret); err != nil {
		return id.Account{}, err
	}
	hash, err := s.keyHash(f)
	if err != nil {
		return id.Account{}, err
	}
	_, err = s.accounts.Store.Import(ctx, row, s.created(&row), store.Import{Hash: hash})
	return row.ID, err
}
