package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

func (s file) Learn(ctx context.Context, l Learned) error {
	err := s.File.Update(ctx, func(st *accountfile.State) error {
		now := time.Now()
		stored := func(account id.Account) bool {
			return st.Account(account) != nil || slices.Contains(l.Unstored, account)
		}
		if len(l.Stats) > 0 && firstTime(st, l, now.UTC()) {
			for _, x := range l.Stats {
				if stored(x.Account) {
					addStat(st, x)
				}
			}
		}
		for _, x := range l.Limits {
			if early := x.At.Sub(now); early > maxAhead {
				x.At = now
				if !x.Until.IsZero() {
					x.Until, x.Soon = x.Until.Add(-early), x.Soon.Add(-early)
				}
			}
			reset := func(h Health) bool { return h.Account == x.Account && h.ResetAt != nil && !h.ResetAt.Before(x.At) }
			if stored(x.Account) && !slices.ContainsFunc(st.Health, reset) {
				setLimit(st, x, now)
			}
		}
		for _, x := range l.Health {
			if !stored(x.Account) {
				continue
			}
			if x.At.Sub(now) > maxAhead {
				x.At = now
			}
			if h := healthOf(st, x.Provider, x.Account); h.At.Before(x.At) || h.At.Sub(now) > maxAhead {
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

// firstTime reports whether an instance's statistics were not added before, and notes that
// they are now.
func firstTime(st *accountfile.State, l Learned, now time.Time) bool {
	st.Writers = slices.DeleteFunc(st.Writers, func(w accountfile.Writer) bool { return now.Sub(w.At) > keepLearned })
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
	st.Limits = slices.DeleteFunc(st.Limits, func(x Limit) bool { return now.Sub(x.At) > keepLearned && now.Sub(x.Until) > keepLearned })
	return true
}

func addStat(st *accountfile.State, x Stat) {
	i := slices.IndexFunc(st.Stats, func(s Stat) bool { return s.Account == x.Account && s.Reason == x.Reason })
	if i < 0 {
		x.Workspace = id.Workspace{}
		st.Stats = append(st.Stats, x)
		return
	}
	s := &st.Stats[i]
	s.Requests += x.Requests
	s.TokensIn += x.TokensIn
	s.TokensOut += x.TokensOut
	s.CostMicros += x.CostMicros
}

// setLimit replaces a limit by one whose window began later, or ends later.
func setLimit(st *accountfile.State, x Limit, now time.Time) {
	x.At, x.Until, x.Soon = x.At.UTC(), x.Until.UTC(), x.Soon.UTC()
	i := slices.IndexFunc(st.Limits, func(l Limit) bool { return l.Account == x.Account && l.Family == x.Family })
	if i < 0 {
		st.Limits = append(st.Limits, x)
		return
	}
	l := &st.Limits[i]
	if l.At.Before(x.At) || l.At.Equal(x.At) && l.Until.Before(x.Until) || l.At.Sub(now) > maxAhead {
		x.Provider = l.Provider
		*l = x
	}
}

// Used records in the one chain that there is, whose rows say which workspace it was. When
// an account was last used is written once a minute.
func (s file) Used(ctx context.Context, all []Use) error {
	return s.Update(ctx, id.Workspace{}, func(ctx context.Context, tx Tx) error {
		st := tx.(*fileTx)
		for _, u := range all {
			if a := st.State.Account(u.Account); a != nil && (a.LastUsedAt == nil || u.At.Sub(*a.LastUsedAt) >= time.Minute) {
				a.LastUsedAt = new(u.At.UTC().Truncate(time.Microsecond))
			}
			if u.Again {
				continue
			}
			u.Action, u.Detail = "used", "in workspace "+u.Workspace.String()
			if when := u.happened(); when != "" {
				u.Detail += " " + when
			}
			if err := tx.Record(ctx, u.Event); err != nil {
				return err
			}
		}
		return nil
	})
}
