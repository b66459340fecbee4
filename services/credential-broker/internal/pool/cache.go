package pool

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/credential-broker/internal/store"
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
// where it has any account, else the operator's. The simulator has no pool.
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

// entry returns a pool.
func (s *Set) entry(ctx context.Context, key poolKey) (e entry, err error) {
	e, how := s.cached(key)
	switch how {
	case unknown:
		e, err = s.read(ctx, key)
	case old:
		e, err = s.readOr(ctx, key, e)
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

func (s *Set) cached(key poolKey) (e entry, how belief) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.cache[key]
	if !ok {
		return entry{}, unknown
	}
	now := time.Now()
	k.asked = now
	switch age := passed(k.sure, now); {
	case age >= stale:
		return entry{}, unknown
	case age >= fresh && passed(s.looked, now) >= lookLate:
		return k.entry, old
	}
	return k.entry, believed
}

// passed is how much time has passed from one time to another, also where the machine
// slept meanwhile, which the monotonic clock does not see.
func passed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// readOr reads a pool, or returns what is stale where the database is away.
func (s *Set) readOr(ctx context.Context, key poolKey, e entry) (entry, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now, err := s.read(limited, key)
	if err == nil || ctx.Err() != nil || !isAway(err) {
		return now, err
	}
	return e, nil
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
	// forgotten says that something was forgotten since it began: nobody else waits for it,
	// and it is not kept. The Set's mutex guards it.
	forgotten bool
}

// read reads a pool from the database. One reads for all who wait, under a context
// that none of them can end.
func (s *Set) read(ctx context.Context, key poolKey) (entry, error) {
	f, err := s.board(ctx, key)
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

// board returns the reading of a pool that is under way, else begins one.
func (s *Set) board(ctx context.Context, key poolKey) (*flight, error) {
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		f.err = panics.Try(func() (err error) {
			f.entry, err = s.load(ctx, key)
			return err
		})
		s.land(key, f)
		close(f.done)
	})
	return f, nil
}

// land remembers what was read, unless something was forgotten since.
func (s *Set) land(key poolKey, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.forgotten {
		return
	}
	delete(s.flights, key)
	if f.err != nil {
		return
	}
	asked := f.entry.read
	if k, ok := s.cache[key]; ok {
		asked = k.asked
	} else if len(s.cache) >= maxEntries {
		for other := range s.cache { // any one makes room
			delete(s.cache, other)
			break
		}
	}
	s.cache[key] = &known{entry: f.entry, sure: f.entry.read, asked: asked}
}

// drop forgets pools, and what is being read of them. The mutex is held.
func (s *Set) drop(which func(poolKey) bool) {
	for key := range s.cache {
		if which(key) {
			delete(s.cache, key)
		}
	}
	for key, f := range s.flights {
		if which(key) {
			f.forgotten = true
			delete(s.flights, key)
		}
	}
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
	changed, others := s.compare(began, keys, marks)
	if len(changed) == 0 {
		return
	}
	for _, key := range others { // now, for the reading may take long
		s.cfg.Forget(key.Workspace)
	}
	s.work.Go(func() {
		var g errgroup.Group
		g.SetLimit(readsAtOnce)
		for _, key := range changed {
			g.Go(func() error {
				err := panics.Try(func() error {
					_, err := s.read(ctx, key)
					return err
				})
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

// compare returns the pools that have changed, and of these the ones that have other
// accounts, and notes of the rest that they have not.
func (s *Set) compare(began time.Time, keys []poolKey, marks map[poolKey]store.Mark) (changed, others []poolKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		k, ok := s.cache[key]
		switch {
		case !ok || k.reading:
		case k.mark != marks[key], k.partial && passed(k.read, began) >= flawed:
			k.reading = true
			changed = append(changed, key)
			if k.mark.Accounts != marks[key].Accounts {
				others = append(others, key)
			}
		case k.sure.Before(began):
			k.sure = began
		}
	}
	return changed, others
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
