package store

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// maxInFile bounds the accounts of a file, which is written as a whole.
const maxInFile = 100

// File is a Store in the file of a single user: it has the same methods, and does what
// they say. It has the operator's shared accounts alone: workspaces have none of their own
// and cannot add any. The audit is one chain, the operator's, and what it has is logged too.
type File struct {
	file *accountfile.File
	log  *slog.Logger
}

// InFile returns a Store over a file.
func InFile(file *accountfile.File, log *slog.Logger) *File { return &File{file, log} }

// ErrOwn refuses what only a database has: accounts of workspaces.
var ErrOwn = fault.Coded(fault.Conflict, "NEEDS_DATABASE", "this credential broker keeps the accounts of a single user in a file: workspaces have none of their own without a database (DATABASE_URL)")

// update changes the operator's accounts.
func (s *File) update(ctx context.Context, ws id.Workspace, fn func(*accountfile.State) error) error {
	if !id.IsZero(ws) {
		return ErrOwn
	}
	return s.file.Update(ctx, fn)
}

// change is update for one account, and records what fn says that it changed; nothing
// where it says nothing.
func (s *File) change(ctx context.Context, ws id.Workspace, account id.Account, ev Event, fn func(*accountfile.State, *accountfile.Account) (string, error)) error {
	if !id.IsZero(ws) {
		return noAccount(account)
	}
	err := s.file.Update(ctx, func(st *accountfile.State) (err error) {
		a := st.Account(account)
		if a == nil {
			return noAccount(account)
		}
		ev.Action, ev.Account, ev.Provider = "changed", account, a.Provider
		if ev.Detail, err = fn(st, a); err == nil && ev.Detail != "" {
			RecordIn(st, ev)
		}
		return err
	})
	if err == nil && ev.Detail != "" {
		s.tell(ctx, ev)
	}
	return err
}

// tell logs what the audit has.
func (s *File) tell(ctx context.Context, ev Event) {
	attrs := []any{"action", ev.Action, "account", ev.Account, "provider", ev.Provider, "service", ev.Service}
	if detail := ev.detail(); detail != "" {
		attrs = append(attrs, "detail", detail)
	}
	if ev.Address != "" {
		attrs = append(attrs, "address", ev.Address)
	}
	if !id.IsZero(ev.Session) {
		attrs = append(attrs, "session", ev.Session)
	}
	s.log.InfoContext(ctx, "credential event", attrs...)
}

func fromFile(a *accountfile.Account) Account {
	out := Account{
		ID: a.ID, Provider: a.Provider, Profile: a.Profile, Label: a.Label, Hint: a.Hint, BaseURL: a.BaseURL, Enabled: a.Enabled, FlatRate: a.FlatRate,
		CreatedAt: a.CreatedAt, LastUsedAt: a.LastUsedAt,
	}
	if a.Key != nil {
		out.KeyVersion, out.Sealed = a.Key.KeyVersion, a.Key.Bytes
	}
	return out
}

// Add is Store.Add.
func (s *File) Add(ctx context.Context, a Account, ev Event) (Account, error) {
	return s.add(ctx, a, ev, nil)
}

// Bring is Store.Bring.
func (s *File) Bring(ctx context.Context, a Account, ev Event, b Brought) (Account, error) {
	ev.Detail = b.Detail()
	return s.add(ctx, a, ev, &b)
}

func (s *File) add(ctx context.Context, a Account, ev Event, b *Brought) (Account, error) {
	err := s.update(ctx, a.WorkspaceID, func(st *accountfile.State) error {
		if err := RoomIn(st); err != nil {
			return err
		}
		if st.Account(a.ID) != nil {
			return taken(a.ID)
		}
		a.Enabled, a.CreatedAt = true, time.Now().UTC()
		st.Accounts = append(st.Accounts, accountfile.Account{
			ID: a.ID, Provider: a.Provider, Profile: a.Profile, Label: a.Label, Hint: a.Hint, BaseURL: a.BaseURL, Enabled: true, FlatRate: a.FlatRate,
			Key: &accountfile.Sealed{KeyVersion: a.KeyVersion, Bytes: a.Sealed}, CreatedAt: a.CreatedAt,
		})
		if b != nil {
			if err := b.WriteIn(st, a.ID); err != nil {
				return err
			}
		}
		RecordIn(st, ev)
		return nil
	})
	if err == nil {
		s.tell(ctx, ev)
	}
	return a, err
}

// RoomIn is Room for the State of a file.
func RoomIn(st *accountfile.State) error {
	if n := len(st.Accounts); n >= maxInFile {
		return fault.New(fault.Conflict, "there are %d accounts already, the most there can be without a database: remove one first", n)
	}
	return nil
}

// Get is Store.Get.
func (s *File) Get(ctx context.Context, ws id.Workspace, account id.Account) (Account, error) {
	st, err := s.file.View(ctx)
	if err != nil {
		return Account{}, err
	}
	a := st.Account(account)
	if a == nil || !id.IsZero(ws) {
		return Account{}, noAccount(account)
	}
	return fromFile(a), nil
}

// List is Store.List: what a workspace has are the shared accounts.
func (s *File) List(ctx context.Context, _ id.Workspace) ([]Account, error) { return s.ListAll(ctx) }

// ListAll is Store.ListAll.
func (s *File) ListAll(ctx context.Context) ([]Account, error) {
	st, err := s.file.View(ctx)
	if err != nil {
		return nil, err
	}
	var all []Account
	for i := range st.Accounts {
		all = append(all, fromFile(&st.Accounts[i]))
	}
	return all, nil
}

// WorkspaceOf is Store.WorkspaceOf.
func (s *File) WorkspaceOf(ctx context.Context, account id.Account) (id.Workspace, error) {
	_, err := s.Get(ctx, id.Workspace{}, account)
	return id.Workspace{}, err
}

// SetEnabled is Store.SetEnabled.
func (s *File) SetEnabled(ctx context.Context, ws id.Workspace, account id.Account, enabled bool, ev Event) error {
	return s.change(ctx, ws, account, ev, func(_ *accountfile.State, a *accountfile.Account) (string, error) {
		was := a.Enabled
		a.Enabled = enabled
		switch {
		case was == enabled:
			return "", nil
		case enabled:
			return "enabled", nil
		}
		return "disabled", nil
	})
}

// SetFlatRate is Store.SetFlatRate.
func (s *File) SetFlatRate(ctx context.Context, ws id.Workspace, account id.Account, flat bool, ev Event) error {
	return s.change(ctx, ws, account, ev, func(_ *accountfile.State, a *accountfile.Account) (string, error) {
		if a.FlatRate == flat {
			return "", nil
		}
		a.FlatRate = flat
		return rateDetail(flat), nil
	})
}

// Switch is Store.Switch.
func (s *File) Switch(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.change(ctx, ws, account, ev, func(st *accountfile.State, a *accountfile.Account) (string, error) {
		if !a.Enabled {
			return "", fault.New(fault.Conflict, "account %s is disabled: enable it first", account)
		}
		p := poolOf(st, a.Provider)
		p.Current, p.CurrentAt = &a.ID, new(time.Now().UTC())
		return "made the current one", nil
	})
}

// FindImported is Store.FindImported.
func (s *File) FindImported(ctx context.Context) (map[string]Imported, error) {
	all := map[string]Imported{}
	st, err := s.file.View(ctx)
	if err != nil {
		return nil, err
	}
	for i := range st.Accounts {
		if a := &st.Accounts[i]; len(a.Imported) > 0 {
			all[string(a.Imported)] = Imported{Account: a.ID}
		}
	}
	return all, nil
}

// Remove is Store.Remove.
func (s *File) Remove(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	err := s.change(ctx, ws, account, ev, func(st *accountfile.State, a *accountfile.Account) (string, error) {
		ev.Account, ev.Provider, ev.Action = a.ID, a.Provider, "removed"
		st.Accounts = slices.DeleteFunc(st.Accounts, func(a accountfile.Account) bool { return a.ID == account })
		st.Limits = slices.DeleteFunc(st.Limits, func(l accountfile.Limit) bool { return l.Account == account })
		st.Health = slices.DeleteFunc(st.Health, func(h accountfile.Health) bool { return h.Account == account })
		st.Stats = slices.DeleteFunc(st.Stats, func(x accountfile.Stat) bool { return x.Account == account })
		RecordIn(st, ev)
		return "", nil
	})
	if err == nil {
		s.tell(ctx, ev)
	}
	return err
}

// DataKeys is Store.DataKeys.
func (s *File) DataKeys(ctx context.Context, ws id.Workspace) ([]vault.WrappedKey, error) {
	st, err := s.file.View(ctx)
	if err != nil || !id.IsZero(ws) {
		return nil, err
	}
	var keys []vault.WrappedKey
	for _, k := range st.Keys {
		keys = append(keys, vault.WrappedKey{Version: k.Version, KEK: k.KEK, Wrapped: k.Wrapped})
	}
	return keys, nil
}

// AddDataKey is Store.AddDataKey.
func (s *File) AddDataKey(ctx context.Context, ws id.Workspace, k vault.WrappedKey) error {
	return s.update(ctx, ws, func(st *accountfile.State) error {
		for i := range st.Keys {
			if st.Keys[i].Version == k.Version {
				return nil
			}
		}
		for i := range st.Keys {
			if st.Keys[i].Version < k.Version && st.Keys[i].RetiredAt == nil {
				st.Keys[i].RetiredAt = new(time.Now().UTC())
			}
		}
		st.Keys = append(st.Keys, accountfile.DataKey{Version: k.Version, KEK: k.KEK, Wrapped: k.Wrapped})
		return nil
	})
}

// Rewrap is Store.Rewrap.
func (s *File) Rewrap(ctx context.Context, ws id.Workspace, old, k vault.WrappedKey) (done bool, err error) {
	err = s.update(ctx, ws, func(st *accountfile.State) error {
		for i := range st.Keys {
			if now := &st.Keys[i]; now.Version == k.Version && now.KEK == old.KEK && bytes.Equal(now.Wrapped, old.Wrapped) {
				now.KEK, now.Wrapped, done = k.KEK, k.Wrapped, true
			}
		}
		return nil
	})
	return done && err == nil, err
}

// Keyed is Store.Keyed: the operator's, where there is a key.
func (s *File) Keyed(ctx context.Context, retired bool, after *id.Workspace, _ int) ([]id.Workspace, error) {
	st, err := s.file.View(ctx)
	if err != nil || after != nil {
		return nil, err
	}
	for i := range st.Keys {
		if !retired || st.Keys[i].RetiredAt != nil {
			return []id.Workspace{{}}, nil
		}
	}
	return nil, nil
}

// poolOf returns what is set for a provider's accounts, which is made where there is
// nothing yet.
func poolOf(st *accountfile.State, provider string) *accountfile.Pool {
	for i := range st.Pools {
		if st.Pools[i].Provider == provider {
			return &st.Pools[i]
		}
	}
	st.Pools = append(st.Pools, accountfile.Pool{Provider: provider})
	return &st.Pools[len(st.Pools)-1]
}

// Settings is Store.Settings.
func (s *File) Settings(ctx context.Context, ws id.Workspace) ([]Settings, error) {
	st, err := s.file.View(ctx)
	if err != nil || !id.IsZero(ws) {
		return nil, err
	}
	var all []Settings
	for _, p := range st.Pools {
		settings := Settings{Provider: p.Provider, Settings: p.Settings, Current: p.Current, CurrentAt: p.CurrentAt}
		if len(p.Settings) == 0 {
			settings.Settings = []byte(noSettings)
		}
		all = append(all, settings)
	}
	return all, nil
}

// ChangeSettings is Store.ChangeSettings.
func (s *File) ChangeSettings(ctx context.Context, ws id.Workspace, provider string, ev Event, change func(now []byte) (next []byte, detail string, err error)) error {
	detail := ""
	err := s.update(ctx, ws, func(st *accountfile.State) error {
		var now []byte
		for _, p := range st.Pools {
			if p.Provider == provider {
				now = p.Settings
			}
		}
		next, said, err := change(now)
		if err == nil && said != "" { // else nothing is made either
			poolOf(st, provider).Settings, detail = next, said
			ev.Action, ev.Provider, ev.Detail = "changed", provider, detail
			RecordIn(st, ev)
		}
		return err
	})
	if err == nil && detail != "" {
		s.tell(ctx, ev)
	}
	return err
}

// Reset is Store.Reset.
func (s *File) Reset(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.change(ctx, ws, account, ev, func(st *accountfile.State, a *accountfile.Account) (string, error) {
		AsNewIn(st, a.Provider, account)
		return "limits and health reset", nil
	})
}

// AsNewIn is AsNew.
func AsNewIn(st *accountfile.State, provider string, account id.Account) {
	now := time.Now().UTC()
	// A clearing is dated after what it replaces, whatever the clocks say.
	after := func(at time.Time) time.Time {
		if now.After(at) {
			return now
		}
		return at.Add(time.Microsecond)
	}
	whole := false
	for i := range st.Limits {
		if l := &st.Limits[i]; l.Account == account {
			*l = accountfile.Limit{Provider: l.Provider, Account: account, Family: l.Family, At: after(l.At)}
			whole = whole || l.Family == ""
		}
	}
	if !whole { // its limit may not have been written yet
		st.Limits = append(st.Limits, accountfile.Limit{Provider: provider, Account: account, At: now})
	}
	h := healthOf(st, provider, account)
	h.Health, h.At, h.ResetAt = 100, after(h.At), &now
}

func healthOf(st *accountfile.State, provider string, account id.Account) *accountfile.Health {
	for i := range st.Health {
		if st.Health[i].Account == account {
			return &st.Health[i]
		}
	}
	st.Health = append(st.Health, accountfile.Health{Provider: provider, Account: account})
	return &st.Health[len(st.Health)-1]
}

// ResetStats is Store.ResetStats.
func (s *File) ResetStats(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	err := s.update(ctx, ws, func(st *accountfile.State) error {
		if !id.IsZero(account) {
			a := st.Account(account)
			if a == nil {
				return noAccount(account)
			}
			ev.Provider = a.Provider
		}
		st.Stats = slices.DeleteFunc(st.Stats, func(x accountfile.Stat) bool { return id.IsZero(account) || x.Account == account })
		ev.Action, ev.Account, ev.Detail = "changed", account, "statistics reset"
		RecordIn(st, ev)
		return nil
	})
	if err == nil {
		s.tell(ctx, ev)
	}
	return err
}

// Known is Store.Known.
func (s *File) Known(ctx context.Context, ws id.Workspace) (Known, error) {
	k := Known{Limits: map[id.Account][]Limit{}, Health: map[id.Account]Health{}}
	st, err := s.file.View(ctx)
	if err != nil || !id.IsZero(ws) {
		return k, err
	}
	for i := range st.Limits {
		if l := limitOf(&st.Limits[i]); l.Until.After(time.Now()) {
			k.Limits[l.Account] = append(k.Limits[l.Account], l)
		}
	}
	for _, h := range st.Health {
		k.Health[h.Account] = Health{Provider: h.Provider, Account: h.Account, Health: h.Health, At: h.At, ResetAt: h.ResetAt}
	}
	return k, nil
}

func limitOf(l *accountfile.Limit) Limit {
	return Limit{
		Provider: l.Provider, Account: l.Account, Family: l.Family, At: l.At, Until: l.Until, Soon: l.Soon,
		Step: l.Step, Reason: l.Reason, Status: l.Status, Raw: l.Raw,
	}
}

// Pool is Store.Pool.
func (s *File) Pool(ctx context.Context, ws id.Workspace, provider string) (Pool, error) {
	st, err := s.file.View(ctx)
	if err != nil {
		return Pool{}, fmt.Errorf("read accounts: %w", err)
	}
	p := Pool{}
	if !id.IsZero(ws) {
		return p, nil
	}
	p.Mark = readFrom
	for i := range st.Accounts {
		switch a := &st.Accounts[i]; {
		case a.Provider != provider:
		case a.Enabled:
			p.Accounts = append(p.Accounts, fromFile(a))
		default:
			p.Disabled = append(p.Disabled, a.ID)
		}
	}
	for _, x := range st.Pools {
		if x.Provider != provider {
			continue
		}
		p.Settings = x.Settings
		if x.Current != nil && x.CurrentAt != nil {
			p.Current, p.CurrentAt = *x.Current, *x.CurrentAt
		}
	}
	for i := range st.Limits {
		if st.Limits[i].Provider == provider {
			p.Limits = append(p.Limits, limitOf(&st.Limits[i]))
		}
	}
	for _, h := range st.Health {
		if h.Provider == provider {
			p.Health = append(p.Health, Health{Provider: h.Provider, Account: h.Account, Health: h.Health, At: h.At, ResetAt: h.ResetAt})
		}
	}
	return p, nil
}

// readFrom is the mark of what was read from a file, and no mark that there is now.
var readFrom = Mark{Rest: "file"}

// Marks is Store.Marks. It says of each pool of the operator's that it has changed: it is
// in memory, and costs nothing to read.
func (s *File) Marks(_ context.Context, keys []PoolKey) (map[PoolKey]Mark, error) {
	marks := map[PoolKey]Mark{}
	for _, k := range keys {
		if id.IsZero(k.Workspace) {
			marks[k] = Mark{}
		}
	}
	return marks, nil
}
