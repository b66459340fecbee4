package oauth

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/credential-broker/internal/store"
)

const (
	maxPause     = 6   // the longest pause between searches that find nothing due, in Config.Every
	maxDue       = 200 // grants of a provider that one search returns
	maxRenewals  = 8   // of an instance at a provider at a time
	cleanEvery   = 10 * time.Minute
	maxRevoking  = 100 // sign-outs that are resumed at a time
	keepAttempts = 30 * 24 * time.Hour
)

// Run renews what is due until ctx is done, and returns nil. Every instance runs it; the
// lease of each grant decides which one renews. Close waits for what is under way then.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also when the loop below panics, and Run is called again
	for what, loop := range map[string]func(context.Context){"grants changed elsewhere": k.followChanges, "old sign-ins": k.cleanUp} {
		wg.Go(func() {
			_ = panics.Supervise(ctx, k.cfg.Log, what, func(ctx context.Context) error { loop(ctx); return nil })
		})
	}
	w := worker{Keeper: k, wg: &wg, busy: map[string]bool{}}
	var trouble logThrottle
	pause := k.cfg.Every
	for {
		found, err := w.renewDue(ctx)
		if trouble.report(err) && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "cannot search for tokens to renew", "error", err)
		}
		// A token is due minutes before it expires, and any instance renews it.
		pause = min(2*pause, maxPause*k.cfg.Every)
		if found || err != nil {
			pause = k.cfg.Every
		}
		if k.sleepAbout(ctx, pause) != nil {
			return nil
		}
	}
}

// sleepAbout sleeps for about as long, out of step with the other instances.
func (k *Keeper) sleepAbout(ctx context.Context, d time.Duration) error {
	return sleep(ctx, d/2+time.Duration(k.cfg.Rand()*float64(d)))
}

// cleanUp removes old logins and attempts, and resumes sign-outs whose instance died: the
// provider does not know of those, and their tokens are still stored. It leaves those for
// which this instance lacks the key or the provider to another one.
func (k *Keeper) cleanUp(ctx context.Context) {
	for {
		if err := k.cfg.Store.SweepLogins(ctx, keepLogins, keepAttempts); err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "cannot remove old logins and attempts", "error", err)
		}
		if err := k.resumeRevocations(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "cannot search for unfinished sign-outs", "error", err)
		}
		if k.sleepAbout(ctx, cleanEvery) != nil {
			return
		}
	}
}

func (k *Keeper) resumeRevocations(ctx context.Context) error {
	left, err := k.cfg.Store.PendingGrants(ctx, store.GrantQuery{
		Revoking: true, Providers: k.cfg.Providers.Names(), Most: maxRevoking, LongestLease: maxLease(k.cfg.Lease),
	})
	for _, g := range left {
		if ctx.Err() != nil {
			break
		}
		ref := Ref{g.Workspace, g.Account}
		err := k.CheckDecrypt(ctx, ref)
		if err == nil {
			_, err = k.RevokeWithin(ctx, k.itself(), ref, k.cfg.PostTimeout)
		}
		if err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "cannot complete an unfinished sign-out", "account", ref.Account, "error", err)
		}
	}
	return err
}

// worker renews what is due. It waits for no provider: one that hangs only holds up its own
// grants.
type worker struct {
	*Keeper
	wg *sync.WaitGroup

	busy   map[string]bool // the providers whose due grants are being renewed
	busyMu sync.Mutex      // guards busy
}

// renewDue begins to renew what is due at providers that are not busy, and reports whether
// anything is.
func (w *worker) renewDue(ctx context.Context) (found bool, err error) {
	idle := w.idle()
	due, err := w.cfg.Store.PendingGrants(ctx, store.GrantQuery{
		Providers: idle, Except: w.skips(), Most: maxDue, LongestLease: maxLease(w.cfg.Lease), LongestPause: maxWait,
	})
	if err != nil {
		return false, err
	}
	pages := map[string][]Ref{}
	for _, d := range due {
		from := d.Provider
		if d.Discovered { // each has a server of its own, which may be slow
			from = d.Account.String()
		}
		pages[from] = append(pages[from], Ref{d.Workspace, d.Account})
	}
	for provider, page := range pages {
		w.setBusy(provider, true)
		w.wg.Go(func() {
			defer w.setBusy(provider, false)
			panics.Contain(ctx, w.cfg.Log, "token renewal", func() { w.renewAll(ctx, page) })
		})
	}
	return len(due) > 0, nil
}

// skips returns the accounts whose tokens this instance recently could not renew.
func (w *worker) skips() []id.Account {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(w.skipped, func(_ Ref, until time.Time) bool { return now.After(until) })
	all := make([]id.Account, 0, len(w.skipped))
	for ref := range w.skipped {
		all = append(all, ref.Account)
	}
	return all
}

func (w *worker) renewAll(ctx context.Context, page []Ref) {
	var g errgroup.Group
	g.SetLimit(maxRenewals)
	for _, ref := range page {
		g.Go(func() error {
			panics.Contain(ctx, w.cfg.Log, "token renewal", func() {
				if ctx.Err() == nil {
					// Errors are logged, and written to the grant, by what they happen to.
					_, _ = w.wait(ctx, w.start(ctx, ref, 0, nil))
				}
			})
			return nil
		})
	}
	_ = g.Wait() // none returns an error
}

func (w *worker) idle() []string {
	w.busyMu.Lock()
	defer w.busyMu.Unlock()
	return slices.DeleteFunc(w.cfg.Providers.Names(), func(name string) bool { return w.busy[name] })
}

func (w *worker) setBusy(provider string, busy bool) {
	w.busyMu.Lock()
	defer w.busyMu.Unlock()
	w.busy[provider] = busy
}

// overlap is how far back each search for changes goes. A change can be seen from its commit
// on, which is later than the time in its row by no more than a transaction may take.
const overlap = 30 * time.Second

// followChanges drops from the cache what others have changed: a token that was renewed
// elsewhere is not sent again, and one of an account that was signed out not at all.
func (k *Keeper) followChanges(ctx context.Context) {
	last := time.Now() // when the last successful search began
	late := false
	var trouble logThrottle
	for sleep(ctx, k.cfg.Follow) == nil {
		began := time.Now()
		was := late
		late = missed(last, began)
		if !was && !late && k.cachesNothing(began) {
			last = began
			continue
		}
		// Twice: a read that was under way while the machine slept is cached after it.
		err := k.dropChanged(ctx, late || was)
		report := trouble.report(err)
		if err != nil {
			late = late || was
			if report && ctx.Err() == nil {
				k.cfg.Log.WarnContext(ctx, "cannot search for grants that other instances have changed", "error", err)
			}
			continue
		}
		last = began
	}
}

// cachesNothing drops tokens that nobody has asked for in a while, and reports whether the cache
// is empty and stays so for the moment: an instance without traffic need not search for changes.
func (k *Keeper) cachesNothing(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.cache, func(_ Ref, c cached) bool { return now.Sub(c.asked) > cacheFor })
	return len(k.cache) == 0 && len(k.flights) == 0
}

// logThrottle limits the logging of an error that comes back again and again.
type logThrottle struct{ reported time.Time }

// report reports whether an outcome is an error to be logged: the first, and then one a
// minute.
func (l *logThrottle) report(err error) bool {
	switch {
	case err == nil:
		l.reported = time.Time{}
		return false
	case time.Since(l.reported) < time.Minute:
		return false
	}
	l.reported = time.Now()
	return true
}

// missed reports whether a search may not see all changes since the last one: the database
// was unavailable, or the process was stopped, or the machine, which the monotonic clock does
// not count.
func missed(last, now time.Time) bool {
	return max(now.Sub(last), now.Round(0).Sub(last.Round(0))) > overlap/2
}

// dropChanged drops from the cache what others have changed recently, or everything.
func (k *Keeper) dropChanged(ctx context.Context, everything bool) error {
	changed, all, err := k.cfg.Store.ChangedGrants(ctx, overlap)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if everything {
		clear(k.cache)
	}
	stored := map[Ref]bool{}
	for _, g := range changed {
		ref := Ref{g.Workspace, g.Account}
		stored[ref] = true
		if c, ok := k.cache[ref]; ok && c.err == nil && (c.token.Version < g.Version || g.State != Active) {
			delete(k.cache, ref)
		}
	}
	if all { // the others were removed
		maps.DeleteFunc(k.cache, func(ref Ref, _ cached) bool { return !stored[ref] })
	}
	return nil
}
