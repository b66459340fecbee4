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
	writeBatch   = 1000 // accounts of one pool that one transaction writes
	quiet        = time.Minute
)

// statKey is what statistics are kept by.
type statKey struct {
	workspace id.Workspace
	account   id.Account
	reason    Reason
}

type tally struct {
	provider string
	requests int64
	in, out  int64 // tokens
	micros   int64
}

// behind is what is still to be written to the statistics. It grows with accounts and
// reasons, not with requests.
type behind struct {
	mu      sync.Mutex // guards pending
	pending map[statKey]tally

	// What is being written, until it is known to be: only the writer looks at it.
	sequence int64
	batch    []store.Stat
	warned   time.Time
}

func (b *behind) add(k statKey, provider string, u price.Tokens, micros int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.pending[k]
	t.provider = provider
	t.requests++
	t.in += u.Input
	t.out += u.Output
	t.micros += micros
	b.pending[k] = t
}

// next returns the statistics to write: those of a try that failed before anything
// newer.
func (b *behind) next() []store.Stat {
	if b.batch != nil {
		return b.batch
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, t := range b.pending {
		b.batch = append(b.batch, store.Stat{
			Workspace: k.workspace, Provider: t.provider, Account: k.account, Reason: k.reason,
			Requests: t.requests, TokensIn: t.in, TokensOut: t.out, CostMicros: t.micros,
		})
	}
	clear(b.pending)
	if b.batch != nil {
		b.sequence++
	}
	return b.batch
}

// write writes what was learned since it was last called, if anything. What fails is
// written the next time.
func (s *Set) write(ctx context.Context) {
	now := time.Now()
	stats := s.behind.next()
	l := store.Learned{Instance: s.instance, Stats: stats, Sequence: s.behind.sequence, Unstored: s.unstoredIDs()}
	type wrote struct {
		pool   *Pool
		states []State
	}
	var from []wrote
	for o, p := range s.all() {
		if !p.Changed(ToStore) {
			continue
		}
		states, _ := p.Changes(now, ToStore, writeBatch)
		for _, x := range states {
			l.Health = append(l.Health, store.Health{Workspace: o.workspace, Provider: o.provider, Account: x.Account, Health: x.Health, At: now})
			for _, limit := range x.Limits {
				limit.Workspace, limit.Provider, limit.Account = o.workspace, o.provider, x.Account
				l.Limits = append(l.Limits, limit)
			}
		}
		from = append(from, wrote{p, states})
	}
	if len(l.Stats)+len(l.Limits)+len(l.Health) == 0 {
		return
	}
	l.Sort()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := s.cfg.Store.Learn(ctx, l); err != nil {
		for _, w := range from {
			w.pool.Mark(ToStore, w.states)
		}
		if now.Sub(s.behind.warned) >= quiet {
			s.behind.warned = now
			s.cfg.Log.WarnContext(ctx, "what was learned of accounts is not written: it is tried again", "error", err)
		}
		return
	}
	s.behind.batch = nil
}
