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
)

const (
	dueAtOnce   = 200 // grants of a provider that one look takes on at most
	atOnce      = 8   // renewals of an instance at a provider at a time
	houseEvery  = 10 * time.Minute
	resumeMost  = 100 // sign-outs that are ended at a time
	keepHistory = 30 * 24 * time.Hour
)

// Run renews what is due until ctx is done, and returns nil. Every instance runs it;
// the lease of each grant decides who renews. Close waits for what is under way then.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also when the loop below panics, and Run is called again
	for what, loop := range map[string]func(context.Context){"grants changed elsewhere": k.follow, "old sign-ins": k.keepHouse} {
		wg.Go(func() {
			_ = panics.Supervise(ctx, k.cfg.Log, what, func(ctx context.Context) error { loop(ctx); return nil })
		})
	}
	w := worker{Keeper: k, wg: &wg, busy: map[string]bool{}}
	var trouble nuisance
	for {
		if err := w.renewDue(ctx); trouble.isNews(err) && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "no look for tokens that are due", "error", err)
		}
		if k.rest(ctx, k.cfg.Every) != nil {
			return nil
		}
	}
}

// rest sleeps for about as long, not in step with the other instances.
func (k *Keeper) rest(ctx context.Context, d time.Duration) error {
	return sleep(ctx, d/2+time.Duration(k.cfg.Rand()*float64(d)))
}

// keepHouse removes what is over, and ends the sign-outs whose instance died in them: the
// provider has not heard of those, and the tokens are there still. Of whom it lacks the key
// or the provider it leaves them: with those somebody still can.
func (k *Keeper) keepHouse(ctx context.Context) {
	for {
		if err := k.tables.sweep(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "old logins and attempts not removed", "error", err)
		}
		if err := k.resume(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "no look for sign-outs that were left half done", "error", err)
		}
		if k.rest(ctx, houseEvery) != nil {
			return
		}
	}
}

func (k *Keeper) resume(ctx context.Context) error {
	left, err := k.tables.interrupted(ctx, k.cfg.Providers.Names())
	for _, ref := range left {
		if ctx.Err() != nil {
			break
		}
		err := k.Opens(ctx, ref)
		if err == nil {
			_, err = k.RevokeWithin(ctx, k.itself(), ref, k.cfg.PostTimeout)
		}
		if err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "a sign-out that was left half done is so still", "account", ref.Account, "error", err)
		}
	}
	return err
}

// worker renews what is due. It waits for no provider: one that hangs holds up its own
// grants alone.
type worker struct {
	*Keeper
	wg *sync.WaitGroup

	busy   map[string]bool // the providers whose due grants are being renewed
	busyMu sync.Mutex      // guards busy
}

// dueGrant is a grant that should be renewed.
type dueGrant struct {
	Provider string
	Ref
}

// renewDue begins to renew what is due with providers that it is not at work with.
func (w *worker) renewDue(ctx context.Context) error {
	idle := w.idle()
	if len(idle) == 0 {
		return nil
	}
	due, err := w.tables.due(ctx, idle, w.leftAlone())
	if err != nil {
		return err
	}
	pages := map[string][]Ref{}
	for _, d := range due {
		pages[d.Provider] = append(pages[d.Provider], d.Ref)
	}
	for provider, page := range pages {
		w.setBusy(provider, true)
		w.wg.Go(func() {
			defer w.setBusy(provider, false)
			panics.Contain(ctx, w.cfg.Log, "token renewal", func() { w.renewAll(ctx, page) })
		})
	}
	return nil
}

// leftAlone returns the accounts whose tokens this instance could not renew a while ago.
func (w *worker) leftAlone() []id.Account {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(w.unable, func(_ Ref, until time.Time) bool { return now.After(until) })
	all := make([]id.Account, 0, len(w.unable))
	for ref := range w.unable {
		all = append(all, ref.Account)
	}
	return all
}

func (w *worker) renewAll(ctx context.Context, page []Ref) {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, ref := range page {
		g.Go(func() error {
			panics.Contain(ctx, w.cfg.Log, "token renewal", func() {
				if ctx.Err() == nil {
					// What goes wrong is logged, and written to the grant, where it happens.
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

// overlap is what is looked at again: a change counts from its commit, which is later
// than the time in its row, by no more than a transaction may take.
const overlap = 30 * time.Second

// follow forgets what others have changed: a token that was renewed elsewhere is not
// sent again, and one of an account that was signed out not at all.
func (k *Keeper) follow(ctx context.Context) {
	looked := time.Now() // when the last look began that saw something
	late := false
	var trouble nuisance
	for sleep(ctx, k.cfg.Follow) == nil {
		began := time.Now()
		was := late
		late = missed(looked, began)
		// Twice: who was reading a grant when the machine slept remembers it after.
		err := k.look(ctx, late || was)
		news := trouble.isNews(err)
		if err != nil {
			late = late || was
			if news && ctx.Err() == nil {
				k.cfg.Log.WarnContext(ctx, "no look for grants that others have changed", "error", err)
			}
			continue
		}
		looked = began
	}
}

// nuisance is an error that comes back again and again.
type nuisance struct{ told time.Time }

// isNews reports whether the outcome of a look is an error that is to be logged: the
// first, and then one a minute.
func (n *nuisance) isNews(err error) bool {
	switch {
	case err == nil:
		n.told = time.Time{}
		return false
	case time.Since(n.told) < time.Minute:
		return false
	}
	n.told = time.Now()
	return true
}

// missed reports whether a look may not see all that has changed since the one before:
// the database was away, or the process, or the machine, which the monotonic clock does
// not see.
func missed(looked, now time.Time) bool {
	return max(now.Sub(looked), now.Round(0).Sub(looked.Round(0))) > overlap/2
}

// look forgets what others have changed a short while ago, or all that is held.
func (k *Keeper) look(ctx context.Context, all bool) error {
	changed, whole, err := k.tables.changed(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if all {
		clear(k.held)
	}
	there := map[Ref]bool{}
	for _, c := range changed {
		ref := Ref{c.Workspace, c.Account}
		there[ref] = true
		if h, ok := k.held[ref]; ok && h.err == nil && (h.token.Version < c.Version || c.State != Active) {
			delete(k.held, ref)
		}
	}
	if whole { // the others were removed
		maps.DeleteFunc(k.held, func(ref Ref, _ held) bool { return !there[ref] })
	}
	return nil
}

type change struct {
	Workspace id.Workspace
	Account   id.Account
	Version   int64
	State     State
}
