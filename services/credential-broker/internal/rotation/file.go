package rotation

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// inFile is the sealed fields in the file of a single user, all of which are the
// operator's.
type inFile struct{ file *accountfile.File }

// held is a sealed field where it is.
type held struct {
	row    row
	sealed *accountfile.Sealed
}

// holds returns what a State has of a field.
func (f *field) holds(st *accountfile.State) (all []held) {
	add := func(key uuid.UUID, account id.Account, s *accountfile.Sealed) {
		if s != nil {
			all = append(all, held{row{Key: key, Account: account, Sealed: s.Bytes, Version: s.KeyVersion}, s})
		}
	}
	for i := range st.Accounts {
		a := &st.Accounts[i]
		switch {
		case f.table == "accounts":
			add(a.ID.UUID, a.ID, a.Key)
		case f.sealed == "access_sealed" && a.Grant != nil:
			add(a.ID.UUID, a.ID, a.Grant.Access)
		case f.sealed == "refresh_sealed" && a.Grant != nil:
			add(a.ID.UUID, a.ID, a.Grant.Refresh)
		}
	}
	if f.table == "logins" {
		for i := range st.Logins {
			add(st.Logins[i].ID, st.Logins[i].Account, &st.Logins[i].Secret)
		}
	}
	return all
}

func (t inFile) read(ctx context.Context, ws id.Workspace, f *field, version int, after uuid.UUID) (all []row, err error) {
	st, err := t.file.View(ctx)
	if err != nil || !id.IsZero(ws) {
		return nil, err
	}
	for _, h := range f.holds(st) {
		if h.row.Version < version && bytes.Compare(h.row.Key[:], after[:]) > 0 {
			all = append(all, h.row)
		}
	}
	slices.SortFunc(all, func(a, b row) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	return all[:min(len(all), batch)], nil
}

func (t inFile) write(ctx context.Context, _ id.Workspace, f *field, version int, rows []resealed) (written int, err error) {
	err = t.file.Update(ctx, func(st *accountfile.State) error {
		for _, h := range f.holds(st) {
			i := slices.IndexFunc(rows, func(r resealed) bool { return r.Key == h.row.Key })
			if i >= 0 && rows[i].Version == h.row.Version && bytes.Equal(rows[i].Sealed, h.row.Sealed) {
				h.sealed.KeyVersion, h.sealed.Bytes = version, rows[i].now
				written++
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("write what was sealed anew: %w", err)
	}
	return written, nil
}

func (t inFile) remove(ctx context.Context, _ id.Workspace, grace time.Duration) (removed int, err error) {
	err = t.file.Update(ctx, func(st *accountfile.State) error {
		used := map[int]bool{}
		for i := range fields {
			for _, h := range fields[i].holds(st) {
				used[h.row.Version] = true
			}
		}
		before := len(st.Keys)
		st.Keys = slices.DeleteFunc(st.Keys, func(k accountfile.DataKey) bool {
			return !used[k.Version] && k.RetiredAt != nil && time.Since(*k.RetiredAt) >= grace
		})
		removed = before - len(st.Keys)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("remove retired data keys: %w", err)
	}
	return removed, nil
}
