package oauth

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

func (t inFile) begin(ctx context.Context, who Who, row loginRow, sealed vault.Sealed) (there *loginRow, err error) {
	if !id.IsZero(who.Workspace) {
		return nil, store.ErrOwn
	}
	err = t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		there = nil
		now := time.Now().UTC()
		if i := findLogin(st, who, func(l *accountfile.Login) bool { return l.ID == row.ID }); i >= 0 {
			found := rowOf(&st.Logins[i])
			if found.Kind != Device || !found.same(&row) {
				there = &found
				return nil
			}
			st.Logins = slices.Delete(st.Logins, i, i+1)
		}
		if slices.ContainsFunc(st.Logins, func(l accountfile.Login) bool { return l.ID == row.ID }) {
			return errReused
		}
		if len(st.Logins) >= who.pending() {
			first := slices.MinFunc(st.Logins, func(a, b accountfile.Login) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
			return tooMany(len(st.Logins), first.ExpiresAt.Sub(now))
		}
		st.Logins = append(st.Logins, accountfile.Login{
			ID: row.ID, Member: who.Member, Provider: row.Provider, Kind: string(row.Kind), Account: row.Account, Again: row.Again, Label: row.Label,
			Redirect: row.Redirect, StateHash: row.StateHash, Secret: accountfile.Sealed{KeyVersion: sealed.KeyVersion, Bytes: sealed.Bytes},
			IntervalS: row.IntervalS, PollAt: now.Add(time.Duration(row.IntervalS) * time.Second), ExpiresAt: now.Add(duration(row.LeftS)),
		})
		return nil
	})
	return there, err
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
		ID: l.ID, Provider: l.Provider, Kind: Kind(l.Kind), Purpose: ForAccount, Account: l.Account, Again: l.Again, Label: l.Label, Redirect: l.Redirect,
		StateHash: l.StateHash, Sealed: l.Secret.Bytes, KeyVersion: l.Secret.KeyVersion, IntervalS: l.IntervalS, LeftS: time.Until(l.ExpiresAt).Seconds(), WaitS: time.Until(l.PollAt).Seconds(),
	}
}

func (t inFile) turn(ctx context.Context, who Who, w wanted) (row loginRow, wait time.Duration, err error) {
	if w.purpose != ForAccount {
		return row, 0, errStrange // connections are workspaces'
	}
	err = t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		i := findLogin(st, who, func(l *accountfile.Login) bool {
			return (l.Kind == string(Device)) == w.device && (w.provider == "" || l.Provider == w.provider) &&
				(w.state == "" || bytes.Equal(l.StateHash, hash(w.state))) && (w.login == uuid.Nil || l.ID == w.login)
		})
		if i < 0 {
			return errStrange
		}
		l := &st.Logins[i]
		row = rowOf(l)
		if wait = max(duration(row.WaitS), 0); wait == 0 {
			l.PollAt = time.Now().UTC().Add(t.cfg.turn())
			if l.ExpiresAt.Before(l.PollAt) { // what the turn brings finds it still
				l.ExpiresAt = l.PollAt
			}
		}
		return nil
	})
	return row, wait, err
}

func (t inFile) postpone(ctx context.Context, who Who, asked *loginRow, interval int, wait time.Duration) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		if i := findLogin(st, who, asked.is); i >= 0 {
			st.Logins[i].IntervalS, st.Logins[i].PollAt = interval, time.Now().UTC().Add(wait)
		}
		return nil
	})
}

// end removes a login: the command line, whose all of them are, asks once.
func (t inFile) end(ctx context.Context, who Who, asked *loginRow, _ *fault.Error) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		if i := findLogin(st, who, asked.is); i >= 0 {
			st.Logins = slices.Delete(st.Logins, i, i+1)
		}
		return nil
	})
}

// is reports whether a login in the file is this one, and not one that was begun anew under
// its id.
func (l *loginRow) is(in *accountfile.Login) bool {
	return in.ID == l.ID && bytes.Equal(in.StateHash, l.StateHash)
}

func (t inFile) sweep(ctx context.Context) error {
	return t.cfg.File.Update(ctx, func(st *accountfile.State) error {
		removeExpired(st, time.Now())
		return nil
	})
}
