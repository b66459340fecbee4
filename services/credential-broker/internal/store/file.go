package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// maxInFile bounds the accounts of a file, which is written as a whole.
const maxInFile = 100

// file is the file of a single user.
type file struct {
	*accountfile.File
	log *slog.Logger
}

// Update runs fn under the file's lock. A workspace has no rows in a file: fn sees none and
// what it adds is refused.
func (s file) Update(ctx context.Context, ws id.Workspace, fn func(context.Context, Tx) error) error {
	if !id.IsZero(ws) {
		if err := fn(ctx, &fileTx{State: &accountfile.State{}, log: s.log}); err != nil && !errors.Is(err, errUnchanged) {
			return err
		}
		return ErrNeedsDatabase
	}
	tx := &fileTx{log: s.log}
	err := s.File.Update(ctx, func(st *accountfile.State) error {
		tx.State = st
		return fn(ctx, tx)
	})
	if err != nil {
		return err
	}
	for _, ev := range tx.events {
		s.logEvent(ctx, ev)
	}
	return nil
}

// view returns what a workspace has in the file: only the operator has anything.
func (s file) view(ctx context.Context, ws id.Workspace) (*accountfile.State, error) {
	if !id.IsZero(ws) {
		return &accountfile.State{}, nil
	}
	return s.View(ctx)
}

// logEvent logs what the audit has.
func (s file) logEvent(ctx context.Context, ev Event) {
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

func (s file) Get(ctx context.Context, ws id.Workspace, account id.Account) (Account, error) {
	st, err := s.view(ctx, ws)
	if err != nil {
		return Account{}, err
	}
	if a := st.Account(account); a != nil {
		return *a, nil
	}
	return Account{}, errNoAccount(account)
}

func (s file) List(ctx context.Context, _ id.Workspace) ([]Account, error) { return s.ListAll(ctx) }

func (s file) ListAll(ctx context.Context) ([]Account, error) {
	st, err := s.View(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(st.Accounts), nil
}

func (s file) WorkspaceOf(ctx context.Context, account id.Account) (id.Workspace, error) {
	_, err := s.Get(ctx, id.Workspace{}, account)
	return id.Workspace{}, err
}

func (s file) FindImported(ctx context.Context) (map[string]Imported, error) {
	all, err := s.ListAll(ctx)
	return byHash(all), err
}

func (s file) Settings(ctx context.Context, ws id.Workspace) ([]Settings, error) {
	st, err := s.view(ctx, ws)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(st.Pools)
	for i := range all {
		if len(all[i].Settings) == 0 {
			all[i].Settings = []byte(noSettings)
		}
	}
	return all, nil
}

func (s file) Known(ctx context.Context, ws id.Workspace) (Known, error) {
	st, err := s.view(ctx, ws)
	if err != nil {
		return Known{}, err
	}
	return newKnown(filter(st.Limits, func(l *Limit) bool { return l.Until.After(time.Now()) }), st.Health), nil
}

func (s file) Pool(ctx context.Context, ws id.Workspace, provider string) (p Pool, err error) {
	st, err := s.view(ctx, ws)
	if err != nil || !id.IsZero(ws) {
		return p, err
	}
	p.Mark = Mark{Rest: "file"} // which Marks never returns
	p.fill(filter(st.Accounts, func(a *Account) bool { return a.Provider == provider }),
		filter(st.Pools, func(s *Settings) bool { return s.Provider == provider }))
	p.Limits = filter(st.Limits, func(l *Limit) bool { return l.Provider == provider })
	p.Health = filter(st.Health, func(h *Health) bool { return h.Provider == provider })
	return p, nil
}

func filter[T any](all []T, keep func(*T) bool) (out []T) {
	for i := range all {
		if keep(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

// Marks says that every pool of the operator's has changed: they are in memory, and cost
// nothing to read.
func (file) Marks(_ context.Context, keys []PoolKey) (map[PoolKey]Mark, error) {
	marks := map[PoolKey]Mark{}
	for _, k := range keys {
		if id.IsZero(k.Workspace) {
			marks[k] = Mark{}
		}
	}
	return marks, nil
}

func (s file) Stats(ctx context.Context, ws id.Workspace) ([]Stat, error) {
	st, err := s.view(ctx, ws)
	if err != nil {
		return nil, err
	}
	return slices.SortedFunc(slices.Values(st.Stats), func(a, b Stat) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Account.String(), b.Account.String()), cmp.Compare(a.Reason, b.Reason))
	}), nil
}

// Connections returns none: only members of workspaces connect accounts.
func (file) Connections(context.Context, id.Workspace) (map[string]Connection, error) {
	return nil, nil
}

func (file) NameConnection(context.Context, id.Workspace, Connection) error {
	return ErrNeedsDatabase
}

func (s file) DataKeys(ctx context.Context, ws id.Workspace) ([]vault.WrappedKey, error) {
	st, err := s.view(ctx, ws)
	if err != nil {
		return nil, err
	}
	var keys []vault.WrappedKey
	for _, k := range st.Keys {
		keys = append(keys, k.WrappedKey)
	}
	return keys, nil
}

// updateKeys changes the data keys.
func (s file) updateKeys(ctx context.Context, ws id.Workspace, fn func(*accountfile.State)) error {
	if !id.IsZero(ws) {
		return ErrNeedsDatabase
	}
	return s.File.Update(ctx, func(st *accountfile.State) error { fn(st); return nil })
}

func (s file) AddDataKey(ctx context.Context, ws id.Workspace, k vault.WrappedKey) error {
	return s.updateKeys(ctx, ws, func(st *accountfile.State) {
		if slices.ContainsFunc(st.Keys, func(x accountfile.DataKey) bool { return x.Version == k.Version }) {
			return
		}
		for i := range st.Keys {
			if x := &st.Keys[i]; x.Version < k.Version && x.RetiredAt == nil {
				x.RetiredAt = new(time.Now().UTC())
			}
		}
		st.Keys = append(st.Keys, accountfile.DataKey{WrappedKey: k})
	})
}

func (s file) Rewrap(ctx context.Context, ws id.Workspace, old, k vault.WrappedKey) (done bool, err error) {
	err = s.updateKeys(ctx, ws, func(st *accountfile.State) {
		for i := range st.Keys {
			if x := &st.Keys[i]; x.Version == k.Version && x.KEK == old.KEK && bytes.Equal(x.Wrapped, old.Wrapped) {
				x.WrappedKey, done = k, true
			}
		}
	})
	return done && err == nil, err
}

func (s file) Keyed(ctx context.Context, retired bool, after *id.Workspace, _ int) ([]id.Workspace, error) {
	st, err := s.View(ctx)
	if err != nil || after != nil || !slices.ContainsFunc(st.Keys, func(k accountfile.DataKey) bool { return !retired || k.RetiredAt != nil }) {
		return nil, err
	}
	return []id.Workspace{{}}, nil
}

// SealedBefore returns all fields at once, as if they were of the first kind.
func (s file) SealedBefore(ctx context.Context, ws id.Workspace, f SealedField, version int, after uuid.UUID, _ int) (all []SealedRow, err error) {
	st, err := s.view(ctx, ws)
	if err != nil || f.table != SealedFields[0].table || after != uuid.Nil {
		return nil, err
	}
	for place, sealed := range st.SealedFields() {
		if sealed.KeyVersion < version {
			all = append(all, SealedRow{place.Account.UUID, place, *sealed})
		}
	}
	return all, nil
}

func (s file) Reseal(ctx context.Context, ws id.Workspace, _ SealedField, rows []Resealed) (written int, err error) {
	err = s.updateKeys(ctx, ws, func(st *accountfile.State) {
		for place, sealed := range st.SealedFields() {
			for i := range rows {
				if r := &rows[i]; r.Place == place && r.KeyVersion == sealed.KeyVersion && bytes.Equal(r.Bytes, sealed.Bytes) {
					*sealed = r.Next
					written++
					break
				}
			}
		}
	})
	return written, err
}

func (s file) RemoveDataKeys(ctx context.Context, ws id.Workspace, grace time.Duration) (removed int, err error) {
	err = s.updateKeys(ctx, ws, func(st *accountfile.State) {
		used := map[int]bool{}
		for _, sealed := range st.SealedFields() {
			used[sealed.KeyVersion] = true
		}
		before := len(st.Keys)
		st.Keys = slices.DeleteFunc(st.Keys, func(k accountfile.DataKey) bool {
			return !used[k.Version] && k.RetiredAt != nil && time.Since(*k.RetiredAt) >= grace
		})
		removed = before - len(st.Keys)
	})
	return removed, err
}

// fileTx is a Tx on what is in the file; the file's lock is the one of all rows. The rows
// that it returns are copies.
type fileTx struct {
	*accountfile.State
	log    *slog.Logger
	events []Event // that are logged once they are written
}

func (*fileTx) Lock(context.Context, string) error     { return nil }
func (*fileTx) Now(context.Context) (time.Time, error) { return time.Now().UTC(), nil }

func (t *fileTx) Account(_ context.Context, account id.Account) (*Account, error) {
	if a := t.State.Account(account); a != nil {
		return new(*a), nil
	}
	return nil, errNoAccount(account)
}

func (t *fileTx) Room(context.Context, string) error {
	if n := len(t.Accounts); n >= maxInFile {
		return fault.New(fault.Conflict, "there are already %d accounts, the maximum without a database: remove one first", n)
	}
	return nil
}

func (t *fileTx) HasAccount(_ context.Context, provider string) (bool, error) {
	return slices.ContainsFunc(t.Accounts, func(x Account) bool { return x.Provider == provider }), nil
}

func (t *fileTx) InsertAccount(_ context.Context, a *Account) error {
	switch {
	case t.State.Account(a.ID) != nil:
		return errIDTaken(a.ID)
	case len(a.Imported) > 0 && slices.ContainsFunc(t.Accounts, func(x Account) bool { return bytes.Equal(x.Imported, a.Imported) }):
		return ErrImported
	}
	a.CreatedAt = time.Now().UTC()
	row := *a
	if a.Grant != nil {
		row.Sealed = vault.Sealed{}
	}
	t.Accounts = append(t.Accounts, row)
	return nil
}

func (t *fileTx) UpdateAccount(_ context.Context, a *Account) error {
	if x := t.State.Account(a.ID); x != nil {
		x.Enabled, x.FlatRate = a.Enabled, a.FlatRate
	}
	return nil
}

func (t *fileTx) DeleteAccount(ctx context.Context, account id.Account) error {
	t.Accounts = slices.DeleteFunc(t.Accounts, func(a Account) bool { return a.ID == account })
	t.Limits = slices.DeleteFunc(t.Limits, func(l Limit) bool { return l.Account == account })
	t.Health = slices.DeleteFunc(t.Health, func(h Health) bool { return h.Account == account })
	return t.DeleteStats(ctx, account)
}

func (t *fileTx) InsertLimit(_ context.Context, l Limit) error {
	l.At, l.Until, l.Soon = l.At.UTC(), l.Until.UTC(), l.Soon.UTC()
	t.Limits = append(t.Limits, l)
	return nil
}

func (t *fileTx) ResetHealth(_ context.Context, provider string, account id.Account) error {
	now := time.Now().UTC()
	// A clearing is dated after what it replaces, whatever the clocks say.
	after := func(at time.Time) time.Time {
		if now.After(at) {
			return now
		}
		return at.Add(time.Microsecond)
	}
	whole := false
	for i := range t.Limits {
		if l := &t.Limits[i]; l.Account == account {
			*l = Limit{Provider: l.Provider, Account: account, Family: l.Family, At: after(l.At)}
			whole = whole || l.Family == ""
		}
	}
	if !whole { // its limit may not have been written yet
		t.Limits = append(t.Limits, Limit{Provider: provider, Account: account, At: now})
	}
	h := healthOf(t.State, provider, account)
	h.Health, h.At, h.ResetAt = 100, after(h.At), &now
	return nil
}

// healthOf returns an account's health, which is added if it is not there.
func healthOf(st *accountfile.State, provider string, account id.Account) *Health {
	i := slices.IndexFunc(st.Health, func(h Health) bool { return h.Account == account })
	if i < 0 {
		i = len(st.Health)
		st.Health = append(st.Health, Health{Provider: provider, Account: account})
	}
	return &st.Health[i]
}

func (t *fileTx) DeleteStats(_ context.Context, account id.Account) error {
	t.Stats = slices.DeleteFunc(t.Stats, func(x Stat) bool { return id.IsZero(account) || x.Account == account })
	return nil
}

func (t *fileTx) Pool(_ context.Context, provider string) (*Settings, error) {
	for _, p := range t.Pools {
		if p.Provider == provider {
			return &p, nil
		}
	}
	return &Settings{Provider: provider}, nil
}

func (t *fileTx) UpdatePool(_ context.Context, s *Settings) error {
	i := slices.IndexFunc(t.Pools, func(p Settings) bool { return p.Provider == s.Provider })
	if i < 0 {
		t.Pools = append(t.Pools, *s)
	} else {
		t.Pools[i] = *s
	}
	return nil
}

func (*fileTx) Connect(context.Context, Connection) (by id.Member, ok bool, err error) {
	return by, false, ErrNeedsDatabase
}

// Disconnect does nothing: no account of a file is connected.
func (*fileTx) Disconnect(context.Context, id.Account) error { return nil }
