package pool

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

const (
	lookEvery   = 500 * time.Millisecond
	lookTimeout = 2 * time.Second
	lookLate    = 5 * time.Second  // without a look for so long, nobody looks
	warm        = 5 * time.Minute  // how long after it was asked for a pool is looked after
	fresh       = time.Second      // how long what was read is believed where nobody looks
	stale       = 15 * time.Minute // how long it is believed while the database is away
	patience    = 2 * time.Second  // for a database that does not answer, where there is something to believe
	loadTimeout = 10 * time.Second
	flawed      = 5 * time.Second // how often a pool is read of which an account does not open
	readsAtOnce = 4               // of pools that have changed
)

// known is a pool that was read, and what is known of the reading.
type known struct {
	entry
	sure    time.Time // when the last look found it unchanged
	asked   time.Time
	reading bool // it has changed, and is being read
}

// accounts returns the pool that a workspace's requests for a provider go to: its own
// where it has any account, else the operator's.
func (s *Set) accounts(ctx context.Context, ws id.Workspace, provider string) (entry, error) {
	if !id.IsZero(ws) {
		e, err := s.entry(ctx, poolKey{Workspace: ws, Provider: provider})
		if err != nil || !e.none {
			return e, err
		}
	}
	return s.entry(ctx, poolKey{Provider: provider})
}

// entry returns a pool.
func (s *Set) entry(ctx context.Context, key poolKey) (e entry, err error) {
	e, epoch, how := s.cached(key)
	switch how {
	case unknown:
		e, err = s.read(ctx, key, epoch)
	case old:
		e, err = s.readOr(ctx, key, epoch, e)
	case believed:
	}
	if err == nil {
		err = e.err
	}
	return e, err
}

// belief is how far what is cached counts.
type belief int

const (
	unknown  belief = iota
	believed        // it counts
	old             // it counts if it cannot be read again
)

func (s *Set) cached(key poolKey) (e entry, epoch int, how belief) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.cache[key]
	if !ok {
		return entry{}, s.epoch, unknown
	}
	now := time.Now()
	k.asked = now
	switch age := passed(k.sure, now); {
	case age >= stale:
		return entry{}, s.epoch, unknown
	case age >= fresh && passed(s.looked, now) >= lookLate:
		return k.entry, s.epoch, old
	}
	return k.entry, s.epoch, believed
}

// passed is how much time has passed from one time to another, also where the machine
// slept meanwhile, which the monotonic clock does not see.
func passed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// readOr reads a pool, or returns what is stale where the database is away.
func (s *Set) readOr(ctx context.Context, key poolKey, epoch int, e entry) (entry, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now, err := s.read(limited, key, epoch)
	if err == nil || ctx.Err() != nil || !isAway(err) {
		return now, err
	}
	return e, nil
}

func isAway(err error) bool {
	k := fault.KindOf(err)
	return k == fault.Unavailable || k == fault.Cancelled || k == fault.Deadline
}

// read reads a pool from the database. One reads for all who wait, under a context
// that none of them can end.
func (s *Set) read(ctx context.Context, key poolKey, epoch int) (entry, error) {
	ch := s.flight.DoChan(fmt.Sprint(key.Workspace, key.Provider, epoch), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		s.work.Add(1)
		defer s.work.Done()
		e, err := s.load(ctx, key)
		if err == nil {
			s.keep(key, epoch, e)
		}
		return e, err
	})
	select {
	case r := <-ch:
		if r.Err != nil {
			return entry{}, r.Err
		}
		return r.Val.(entry), nil
	case <-ctx.Done():
		return entry{}, fault.Wrap(ctx.Err(), fault.Unavailable, "the credential broker's database does not answer: try again in a moment")
	}
}

// keep remembers what was read, unless something was forgotten since.
func (s *Set) keep(key poolKey, epoch int, e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch {
		return
	}
	asked := e.read
	if k, ok := s.cache[key]; ok {
		if k.read.After(e.read) {
			return
		}
		asked = k.asked
	} else if len(s.cache) >= maxEntries {
		clear(s.cache)
	}
	s.cache[key] = &known{entry: e, sure: e.read, asked: asked}
}

// look finds out which pools have changed, of those that were asked for in the last
// minutes, and has them read again: whoever selects need not wait for the database.
func (s *Set) look(ctx context.Context) {
	began, keys := s.lookedAfter()
	defer s.hasLooked() // not before: what was read before a sleep is not believed until then
	if len(keys) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	marks, err := s.cfg.Store.Marks(limited, keys)
	if err != nil {
		s.blind(ctx, began, err)
		return
	}
	changed := s.compare(began, keys, marks)
	if len(changed) == 0 {
		return
	}
	s.work.Go(func() {
		var g errgroup.Group
		g.SetLimit(readsAtOnce)
		for key, epoch := range changed {
			g.Go(func() error {
				_, err := s.read(ctx, key, epoch)
				if err != nil && ctx.Err() == nil {
					s.blind(ctx, time.Now(), err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if k, ok := s.cache[key]; ok {
					k.reading = false
				}
				return nil
			})
		}
		_ = g.Wait() // what fails is found changed again
	})
}

// lookedAfter returns the pools to look after, and forgets the others.
func (s *Set) lookedAfter() (began time.Time, keys []poolKey) {
	began = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.cache {
		if passed(k.asked, began) > warm {
			delete(s.cache, key)
			continue
		}
		keys = append(keys, key)
	}
	return began, keys
}

func (s *Set) hasLooked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = time.Now()
}

// compare returns the pools that have changed, and notes of the others that they have
// not.
func (s *Set) compare(began time.Time, keys []poolKey, marks map[poolKey]string) map[poolKey]int {
	changed := map[poolKey]int{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		k, ok := s.cache[key]
		switch {
		case !ok || k.reading:
		case k.mark != marks[key], k.partial && passed(k.read, began) >= flawed:
			k.reading = true
			changed[key] = s.epoch
		case k.sure.Before(began):
			k.sure = began
		}
	}
	return changed
}

// blind tells operators that pools are believed as they were, once in a while. Only who
// looks calls it.
func (s *Set) blind(ctx context.Context, now time.Time, err error) {
	s.mu.Lock()
	quietly := now.Sub(s.blindly) < quiet
	if !quietly {
		s.blindly = now
	}
	s.mu.Unlock()
	if !quietly && ctx.Err() == nil {
		s.cfg.Log.WarnContext(ctx, "accounts are believed as they were: the database does not say whether they have changed", "error", err)
	}
}
