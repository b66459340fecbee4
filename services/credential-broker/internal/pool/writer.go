package pool

import (
	"context"
	"sync"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/store"
)

const (
	writeEvery   = 500 * time.Millisecond
	writeTimeout = 5 * time.Second
)

// statKey is what statistics are kept by.
type statKey struct {
	owner   owner
	account id.Account
	reason  Reason
}

// stats are statistics that are not written yet. They grow with accounts and reasons, not
// with requests.
type stats struct {
	mu      sync.Mutex // guards pending
	pending map[statKey]*store.Stat

	// The batch that is being written, until that has succeeded. Only the writer uses it.
	batch    []store.Stat
	sequence int64
}

func (s *stats) add(k statKey, u price.Tokens, micros int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.pending[k]
	if x == nil {
		x = &store.Stat{Workspace: k.owner.workspace, Provider: k.owner.provider, Account: k.account, Reason: k.reason}
		s.pending[k] = x
	}
	x.Requests++
	x.TokensIn += u.Input
	x.TokensOut += u.Output
	x.CostMicros += micros
}

// next returns the statistics to write. A batch that failed comes before anything newer.
func (s *stats) next() []store.Stat {
	if s.batch != nil {
		return s.batch
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.pending {
		s.batch = append(s.batch, *x)
	}
	clear(s.pending)
	if s.batch != nil {
		s.sequence++
	}
	return s.batch
}

// write writes what was learned since the last call, if anything. What fails is written the
// next time.
func (s *Set) write(ctx context.Context) {
	now := time.Now()
	stats := s.stats.next()
	l := store.Learned{Instance: s.instance, Stats: stats, Sequence: s.stats.sequence, Unstored: make([]id.Account, 0, len(s.env))}
	for _, a := range s.env {
		l.Unstored = append(l.Unstored, a.ID)
	}
	from := map[*Pool][]State{}
	for o, p := range s.all() {
		from[p] = p.Changes(now, ToStore)
		for _, x := range from[p] {
			l.Health = append(l.Health, store.Health{Workspace: o.workspace, Provider: o.provider, Account: x.Account, Health: x.Health, At: now})
			for _, limit := range x.Limits {
				limit.Workspace, limit.Provider, limit.Account = o.workspace, o.provider, x.Account
				l.Limits = append(l.Limits, limit)
			}
		}
	}
	if len(l.Stats)+len(l.Limits)+len(l.Health) == 0 {
		return
	}
	l.Sort()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := s.cfg.Store.Learn(ctx, l); err != nil {
		for p, states := range from {
			p.Mark(ToStore, states)
		}
		if s.mayWarn("write") {
			s.cfg.Log.WarnContext(ctx, "cannot write limits, health and statistics of accounts: will retry", "error", err)
		}
		return
	}
	s.stats.batch = nil
}
