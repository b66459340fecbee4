package store

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
)

// PoolKey names a pool: a workspace's own accounts for a provider; for the zero workspace
// the operator's.
type PoolKey struct {
	Workspace id.Workspace
	Provider  string
}

// Pool is what is stored of a pool.
type Pool struct {
	Accounts []Account    // enabled ones, in the order in which they were added
	Disabled []id.Account // the others
	// Mark changes whenever the pool does (Marks).
	Mark Mark
	// Settings are JSON, empty if the pool has none of its own.
	Settings []byte
	Limits   []Limit
	Health   []Health
	// Current is the account that was made the current one, and when; zero if none was.
	Current   id.Account
	CurrentAt time.Time
}

// Has reports whether an account is in the pool, enabled or not.
func (p *Pool) Has(account id.Account) bool {
	return slices.Contains(p.Disabled, account) || slices.ContainsFunc(p.Accounts, func(a Account) bool { return a.ID == account })
}

// fill sorts accounts and settings into a Pool.
func (p *Pool) fill(accounts []Account, settings []Settings) {
	for _, a := range accounts {
		if a.Enabled {
			p.Accounts = append(p.Accounts, a)
		} else {
			p.Disabled = append(p.Disabled, a.ID)
		}
	}
	for _, s := range settings {
		if string(s.Settings) != noSettings {
			p.Settings = s.Settings
		}
		if s.Current != nil && s.CurrentAt != nil {
			p.Current, p.CurrentAt = *s.Current, *s.CurrentAt
		}
	}
}

// noSettings is what is stored for a pool that has none.
const noSettings = "{}"

// Mark is a digest of a pool's rows; the zero one if there are none.
type Mark struct {
	// Accounts is of the accounts alone, and changes with nothing else.
	Accounts string
	// Rest is of their limits, and of the pool's settings and current account.
	Rest string
}

// Known is what instances have written about a workspace's accounts.
type Known struct {
	Limits map[id.Account][]Limit // that are not over
	Health map[id.Account]Health
}

func newKnown(limits []Limit, health []Health) Known {
	k := Known{Limits: map[id.Account][]Limit{}, Health: map[id.Account]Health{}}
	for _, l := range limits {
		k.Limits[l.Account] = append(k.Limits[l.Account], l)
	}
	for _, h := range health {
		k.Health[h.Account] = h
	}
	return k
}

// Learned is what one instance writes behind.
type Learned struct {
	// Stats are added, once for each Sequence of an Instance.
	Instance uuid.UUID
	Sequence int64
	Stats    []Stat
	// Limits replace those whose window began earlier, or ends earlier, unless the account
	// was reset since; Health replaces earlier health. What a clock that is ahead has dated
	// began just now, and what such a clock has left behind is older than anything.
	Limits []Limit
	Health []Health
	// Unstored are accounts that are not stored, such as the environment's. Of others that
	// are not stored (any more) nothing is written.
	Unstored []id.Account
}

// Sort puts the rows in the order in which all instances write them, so that two do not wait
// for each other.
func (l *Learned) Sort() {
	slices.SortFunc(l.Stats, func(a, b Stat) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(l.Limits, func(a, b Limit) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), cmp.Compare(a.Family, b.Family))
	})
	slices.SortFunc(l.Health, func(a, b Health) int { return bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]) })
}

const (
	// maxAhead is how far in the future a date is believed, here and by package pool. A
	// later one would hide everything until then.
	maxAhead = 10 * time.Minute
	// keepLearned is how long limits that are over, and the sequence numbers of instances, are
	// kept.
	keepLearned = 7 * 24 * time.Hour
)

// Use is one use of an account in a session.
type Use struct {
	Workspace id.Workspace // that used it
	At        time.Time
	// Again says that the first use in the session is on record: only the time counts.
	Again bool
	// Of the Event, Action and Detail are set.
	Event
}

// lateUse is how long after a use its row is written for the row to say when it was: the
// row's own time is when it was written.
const lateUse = 2 * time.Second

// happened says when a use was, if that was not just now.
func (u *Use) happened() string {
	if time.Since(u.At) <= lateUse {
		return ""
	}
	return "at " + u.At.UTC().Format(time.RFC3339)
}
