package pool

import (
	"context"
	"maps"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/credential-broker/internal/store"
)

const (
	pollEvery    = 500 * time.Millisecond
	pollTimeout  = 2 * time.Second
	pollLate     = 5 * time.Second  // without a poll for so long, the cache is not trusted
	keepFor      = 5 * time.Minute  // without a request a pool leaves the cache
	freshFor     = time.Second      // a pool is trusted although the last poll is late
	staleFor     = 15 * time.Minute // a pool is used if it cannot be read again
	staleTimeout = 2 * time.Second  // for a database that does not answer, if there is a stale pool
	readTimeout  = 10 * time.Second
	partialEvery = 5 * time.Second // a pool with an unusable account is read again
	maxRereads   = 8               // changed pools that are read at a time
)

// cached is a pool that was read.
type cached struct {
	entry
	confirmed time.Time // when it was last known to be unchanged
	asked     time.Time // when a request last asked for it
	rereading bool      // it has changed: reread is about to read it
}

// accounts returns the pool that a workspace's requests for a provider go to: its own if it
// has any account, else the operator's. The simulator has no pool.
func (s *Set) accounts(ctx context.Context, ws id.Workspace, provider string) (entry, error) {
	if IsSimulator(provider) {
		return entry{accounts: s.simulator(provider)}, nil
	}
	if !id.IsZero(ws) {
		e, err := s.entry(ctx, poolKey{Workspace: ws, Provider: provider})
		if err != nil || !e.none {
			return e, err
		}
	}
	return s.entry(ctx, poolKey{Provider: provider})
}

// entry returns a pool: from the cache while polls confirm it, else from the database. A
// stale one does if the database is away.
func (s *Set) entry(ctx context.Context, key poolKey) (entry, error) {
	e, usable, fresh := s.lookup(key)
	if fresh {
		return e, e.err
	}
	limited := ctx
	if usable {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, staleTimeout)
		defer cancel()
	}
	read, err := s.read(limited, key)
	switch {
	case err == nil:
		return read, read.err
	case usable && ctx.Err() == nil && isAway(err):
		return e, e.err
	}
	return entry{}, err
}

// lookup returns a cached pool: whether it may be used at all, and without being read again.
func (s *Set) lookup(key poolKey) (e entry, usable, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.cache[key]
	if !ok {
		return entry{}, false, false
	}
	now := time.Now()
	k.asked = now
	age := elapsed(k.confirmed, now)
	return k.entry, age < staleFor, age < freshFor || age < staleFor && elapsed(s.polled, now) < pollLate
}

// elapsed is how much time has passed, including time that the machine slept, which the
// monotonic clock does not count.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

func isAway(err error) bool {
	k := fault.KindOf(err)
	return k == fault.Unavailable || k == fault.Cancelled || k == fault.Deadline
}

// flight is one reading of a pool, for all who wait for it.
type flight struct {
	done  chan struct{} // closed when the rest is set
	entry entry
	err   error
}

// read reads a pool from the database. Concurrent calls share one reading, which does not
// end with the context of any of them.
func (s *Set) read(ctx context.Context, key poolKey) (entry, error) {
	f, err := s.startRead(ctx, key)
	if err != nil {
		return entry{}, err
	}
	select {
	case <-f.done:
		return f.entry, f.err
	case <-ctx.Done():
		return entry{}, fault.Wrap(ctx.Err(), fault.Unavailable, "the credential broker's database does not answer: try again in a moment")
	}
}

// startRead returns the reading of a pool that is under way, else starts one.
func (s *Set) startRead(ctx context.Context, key poolKey) (*flight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flights[key]; ok {
		return f, nil
	}
	if s.ended {
		return nil, fault.New(fault.Unavailable, "the credential broker is shutting down: try again in a moment")
	}
	f := &flight{done: make(chan struct{})}
	s.flights[key] = f
	s.work.Go(func() {
		defer close(f.done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		f.err = panics.Try(func() (err error) {
			f.entry, err = s.load(ctx, key)
			return err
		})
		s.finishRead(ctx, key, f)
	})
	return f, nil
}

// finishRead caches what was read, unless the pool was dropped meanwhile.
func (s *Set) finishRead(ctx context.Context, key poolKey, f *flight) {
	if f.err != nil {
		s.warnUnread(ctx, f.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[key] != f {
		return
	}
	delete(s.flights, key)
	if f.err != nil {
		return
	}
	asked := f.entry.read
	if k, ok := s.cache[key]; ok {
		asked = k.asked
	} else {
		makeRoom(s.cache)
	}
	s.cache[key] = &cached{entry: f.entry, confirmed: f.entry.read, asked: asked}
}

// makeRoom removes any one entry of a map that has as many as it may.
func makeRoom[K comparable, V any](m map[K]V) {
	if len(m) < maxEntries {
		return
	}
	for k := range m {
		delete(m, k)
		return
	}
}

// drop removes pools from the cache; readings of them that are under way are not cached.
// The caller holds the mutex.
func (s *Set) drop(which func(poolKey) bool) {
	maps.DeleteFunc(s.cache, func(key poolKey, _ *cached) bool { return which(key) })
	maps.DeleteFunc(s.flights, func(key poolKey, _ *flight) bool { return which(key) })
}

// poll finds out which cached pools have changed and has them read again, so that requests
// need not wait for the database.
func (s *Set) poll(ctx context.Context) {
	began, keys := s.pollKeys()
	// Last: until then, what was read before the machine slept is not trusted.
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.polled = time.Now()
	}()
	if len(keys) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	marks, err := s.cfg.Store.Marks(limited, keys)
	if err != nil {
		s.warnUnread(ctx, err)
		return
	}
	changed, others := s.compare(began, keys, marks)
	for _, key := range others { // at once, for reading may take long
		s.cfg.Forget(key.Workspace)
	}
	for _, key := range changed {
		s.work.Go(func() { s.reread(ctx, key) })
	}
}

// reread reads a pool that a poll found changed, when a slot is free. Requests read at once.
func (s *Set) reread(ctx context.Context, key poolKey) {
	s.rereads <- struct{}{}
	defer func() { <-s.rereads }()
	if ctx.Err() == nil {
		_, _ = s.read(ctx, key) // if that fails, the next poll finds it changed again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.cache[key]; ok {
		k.rereading = false
	}
}

// pollKeys returns the pools to poll, and drops those that were not asked for in a while.
func (s *Set) pollKeys() (began time.Time, keys []poolKey) {
	began = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range s.cache {
		if elapsed(k.asked, began) > keepFor {
			delete(s.cache, key)
			continue
		}
		keys = append(keys, key)
	}
	return began, keys
}

// compare returns the pools that have changed and, of these, the ones that have other
// accounts. It confirms the rest.
func (s *Set) compare(began time.Time, keys []poolKey, marks map[poolKey]store.Mark) (changed, others []poolKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		k, ok := s.cache[key]
		switch {
		case !ok || k.rereading:
		case k.mark != marks[key], k.partial && elapsed(k.read, began) >= partialEvery:
			k.rereading = true
			changed = append(changed, key)
			if k.mark.Accounts != marks[key].Accounts {
				others = append(others, key)
			}
		case k.confirmed.Before(began):
			k.confirmed = began
		}
	}
	return changed, others
}

func (s *Set) warnUnread(ctx context.Context, err error) {
	if s.mayWarn("read") {
		s.cfg.Log.WarnContext(ctx, "cannot read accounts from the database: using the last ones read", "error", err)
	}
}

// mayWarn reports whether operators may be warned of something: once a minute.
func (s *Set) mayWarn(of string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.warned[of]) < time.Minute {
		return false
	}
	s.warned[of] = now
	return true
}
