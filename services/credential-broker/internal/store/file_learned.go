package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// keepWriters is how long it is remembered what an instance wrote last.
const keepWriters = 7 * 24 * time.Hour

// keepLimits is how long it is remembered that an account was parked.
const keepLimits = 7 * 24 * time.Hour

// Stats is Store.Stats.
func (s *File) Stats(ctx context.Context, ws id.Workspace) ([]Stat, error) {
	st, err := s.file.View(ctx)
	if err != nil || !id.IsZero(ws) {
		return nil, err
	}
	var all []Stat
	for _, x := range st.Stats {
		all = append(all, Stat{
			Provider: x.Provider, Account: x.Account, Reason: x.Reason,
			Requests: x.Requests, TokensIn: x.TokensIn, TokensOut: x.TokensOut, CostMicros: x.CostMicros,
		})
	}
	slices.SortFunc(all, func(a, b Stat) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Account.String(), b.Account.String()), cmp.Compare(a.Reason, b.Reason))
	})
	return all, nil
}

// Learn is Store.Learn.
func (s *File) Learn(ctx context.Context, l Learned) error {
	err := s.file.Update(ctx, func(st *accountfile.State) error {
		now := time.Now()
		if len(l.Stats) > 0 && unwritten(st, l) {
			for _, x := range l.Stats {
				if mayWrite(st, l, x.Account) {
					addStat(st, x)
				}
			}
		}
		for _, x := range l.Limits {
			x = dated(x, now)
			if mayWrite(st, l, x.Account) && !resetSince(st, x) {
				setLimit(st, x)
			}
		}
		for _, x := range l.Health {
			if !mayWrite(st, l, x.Account) {
				continue
			}
			if x.At.Sub(now) > ahead {
				x.At = now
			}
			if h := healthOf(st, x.Provider, x.Account); h.At.Before(x.At) || h.At.Sub(now) > ahead {
				h.Health, h.At = x.Health, x.At.UTC()
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write what was learned of accounts: %w", err)
	}
	return nil
}

// mayWrite reports whether something may be written of an account.
func mayWrite(st *accountfile.State, l Learned, account id.Account) bool {
	return st.Account(account) != nil || slices.Contains(l.Unstored, account)
}

// resetSince reports whether somebody has reset an account after a limit was learned.
func resetSince(st *accountfile.State, x Limit) bool {
	return slices.ContainsFunc(st.Health, func(h accountfile.Health) bool {
		return h.Account == x.Account && h.ResetAt != nil && !h.ResetAt.Before(x.At)
	})
}

// unwritten reports whether an instance's statistics were not added before, and notes
// that they are now.
func unwritten(st *accountfile.State, l Learned) bool {
	now := time.Now().UTC()
	st.Writers = slices.DeleteFunc(st.Writers, func(w accountfile.Writer) bool { return now.Sub(w.At) > keepWriters })
	for i := range st.Writers {
		if w := &st.Writers[i]; w.Instance == l.Instance {
			if w.Sequence >= l.Sequence {
				return false
			}
			w.Sequence, w.At = l.Sequence, now
			return true
		}
	}
	st.Writers = append(st.Writers, accountfile.Writer{Instance: l.Instance, Sequence: l.Sequence, At: now})
	// Once for each instance.
	st.Limits = slices.DeleteFunc(st.Limits, func(x accountfile.Limit) bool { return now.Sub(x.At) > keepLimits && now.Sub(x.Until) > keepLimits })
	return true
}

func addStat(st *accountfile.State, x Stat) {
	i := slices.IndexFunc(st.Stats, func(s accountfile.Stat) bool { return s.Account == x.Account && s.Reason == x.Reason })
	if i < 0 {
		i = len(st.Stats)
		st.Stats = append(st.Stats, accountfile.Stat{Provider: x.Provider, Account: x.Account, Reason: x.Reason})
	}
	s := &st.Stats[i]
	s.Requests += x.Requests
	s.TokensIn += x.TokensIn
	s.TokensOut += x.TokensOut
	s.CostMicros += x.CostMicros
}

// dated returns a limit as of now where it was dated by a clock that is far ahead.
func dated(x Limit, now time.Time) Limit {
	early := x.At.Sub(now)
	if early <= ahead {
		return x
	}
	x.At = now
	if !x.Until.IsZero() {
		x.Until, x.Soon = x.Until.Add(-early), x.Soon.Add(-early)
	}
	return x
}

// setLimit replaces a limit by one whose window began later, then by a longer one.
func setLimit(st *accountfile.State, x Limit) {
	next := accountfile.Limit{
		Provider: x.Provider, Account: x.Account, Family: x.Family, At: x.At.UTC(), Until: x.Until.UTC(), Soon: x.Soon.UTC(),
		Step: x.Step, Reason: x.Reason, Status: x.Status, Raw: x.Raw,
	}
	for i := range st.Limits {
		now := &st.Limits[i]
		if now.Account != x.Account || now.Family != x.Family {
			continue
		}
		if now.At.Before(x.At) || now.At.Equal(x.At) && now.Until.Before(x.Until) || time.Until(now.At) > ahead {
			next.Provider = now.Provider
			*now = next
		}
		return
	}
	st.Limits = append(st.Limits, next)
}
