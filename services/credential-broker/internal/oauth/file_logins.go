package oauth

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

func (t inFile) begin(ctx context.Context, who Who, row loginRow, stateHash []byte, sealed vault.Sealed, life time.Duration) error {
	if !id.IsZero(who.Workspace) {
		return store.ErrOwn
	}
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		now := time.Now().UTC()
		removeExpired(st, now)
		if len(st.Logins) >= maxPending {
			return tooMany(len(st.Logins))
		}
		st.Logins = append(st.Logins, accountfile.Login{
			ID: row.ID, Member: who.Member, Provider: row.Provider, Kind: string(row.Kind), Account: row.Account, Again: row.Again, Label: row.Label,
			Redirect: row.Redirect, StateHash: stateHash, Secret: accountfile.Sealed{KeyVersion: sealed.KeyVersion, Bytes: sealed.Bytes},
			IntervalS: row.IntervalS, PollAt: now.Add(time.Duration(row.IntervalS) * time.Second), ExpiresAt: now.Add(life),
		})
		return nil
	})
}

func removeExpired(st *accountfile.State, now time.Time) {
	st.Logins = slices.DeleteFunc(st.Logins, func(l accountfile.Login) bool { return !l.ExpiresAt.After(now) })
}

// findLogin returns where somebody's login is that fits; -1 where none does.
func findLogin(st *accountfile.State, who Who, fits func(*accountfile.Login) bool) int {
	removeExpired(st, time.Now())
	if !id.IsZero(who.Workspace) {
		return -1
	}
	for i := range st.Logins {
		if l := &st.Logins[i]; l.Member == who.Member && fits(l) {
			return i
		}
	}
	return -1
}

func rowOf(l *accountfile.Login) loginRow {
	return loginRow{
		ID: l.ID, Provider: l.Provider, Kind: Kind(l.Kind), Account: l.Account, Again: l.Again, Label: l.Label, Redirect: l.Redirect,
		Sealed: l.Secret.Bytes, KeyVersion: l.Secret.KeyVersion, IntervalS: l.IntervalS,
	}
}

func (t inFile) take(ctx context.Context, who Who, a Answer) (row loginRow, err error) {
	err = t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		i := findLogin(st, who, func(l *accountfile.Login) bool {
			return l.Kind != string(Device) && (a.State == "" || bytes.Equal(l.StateHash, hash(a.State))) && (a.Login == uuid.Nil || l.ID == a.Login)
		})
		if i < 0 {
			return errStrange
		}
		row = rowOf(&st.Logins[i])
		st.Logins = slices.Delete(st.Logins, i, i+1)
		return nil
	})
	return row, err
}

func (t inFile) turn(ctx context.Context, who Who, asked uuid.UUID) (row loginRow, wait time.Duration, err error) {
	err = t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		i := findLogin(st, who, func(l *accountfile.Login) bool { return l.Kind == string(Device) && l.ID == asked })
		if i < 0 {
			return errStrange
		}
		l := &st.Logins[i]
		if wait = max(time.Until(l.PollAt), 0); wait == 0 {
			row = rowOf(l)
			l.PollAt = time.Now().UTC().Add(t.cfg.PostTimeout)
		}
		return nil
	})
	return row, wait, err
}

func (t inFile) postpone(ctx context.Context, who Who, asked uuid.UUID, interval int, wait time.Duration) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		if i := findLogin(st, who, func(l *accountfile.Login) bool { return l.ID == asked }); i >= 0 {
			st.Logins[i].IntervalS, st.Logins[i].PollAt = interval, time.Now().UTC().Add(wait)
		}
		return nil
	})
}

func (t inFile) drop(ctx context.Context, _ Who, asked uuid.UUID) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		st.Logins = slices.DeleteFunc(st.Logins, func(l accountfile.Login) bool { return l.ID == asked })
		return nil
	})
}

func (t inFile) sweep(ctx context.Context) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		removeExpired(st, time.Now())
		return nil
	})
}
