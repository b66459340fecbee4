package pool

import (
	"context"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/store"
)

const (
	touchEvery = time.Minute // how often an account's last use is written
	maxWaiting = 10_000      // uses that wait to be written
	useBatch   = 200         // uses that one transaction writes
	farewell   = 5 * time.Second
	recordWait = 250 * time.Millisecond // for a first use to be on record, before its answer is shown
)

type useKey struct {
	workspace id.Workspace
	account   id.Account
	session   id.Session
}

// uses are the first uses of accounts in sessions, on their way to the audit.
type uses struct {
	mu      sync.Mutex           // guards what follows
	noted   map[useKey]time.Time // when a use was last put among those that wait
	waiting map[useKey]*use      // until they are written
	late    bool                 // writing takes long, or fails: nobody waits for it

	wake   chan struct{} // a first use waits
	warned time.Time     // only the writer looks at it
}

// use is one that waits to be written.
type use struct {
	store.Use
	written chan struct{} // closed when it is; nil where nobody waits for that
}

// errAudit refuses a use that could not be remembered.
var errAudit = fault.Coded(fault.Unavailable, "AUDIT_FULL", "the credential broker cannot write its audit, and as much waits to be written as may: its database is away; try again in a moment")

// note puts the first use of an account in a session on its way to the audit, and about
// once a minute that it was used again. It waits for nobody, and returns what is still to
// be written. Its error means that the account must not be used.
func (s *Set) note(r Request, a Account) (*use, error) {
	if a.Origin == Simulator {
		return nil, nil //nolint:nilnil // there is nothing to write
	}
	u := &s.uses
	key := useKey{r.Actor.Workspace, a.ID, r.Actor.Session}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	last, known := u.noted[key]
	waits := u.waiting[key]
	if known && now.Sub(last) < touchEvery || waits != nil {
		return waits, nil
	}
	if len(u.waiting) >= maxWaiting {
		if known { // only when it was last used would be newer
			return nil, nil //nolint:nilnil // there is nothing to write
		}
		return nil, errAudit
	}
	waits = &use{Use: store.Use{Workspace: r.Actor.Workspace, At: now, Again: known, Event: store.Event{
		Account: a.ID, Provider: a.Provider, Origin: string(a.Origin), Member: r.Actor.Member, Service: r.Actor.Service,
		Address: r.Address, Session: r.Actor.Session,
	}}}
	u.waiting[key] = waits
	if len(u.noted) >= maxEntries {
		for other := range u.noted { // any one makes room
			delete(u.noted, other)
			break
		}
	}
	u.noted[key] = now
	if known || s.cfg.UsesBehind {
		return waits, nil
	}
	waits.written = make(chan struct{})
	select {
	case u.wake <- struct{}{}:
	default: // whoever writes them is awake
	}
	return waits, nil
}

// onRecord waits until a first use is written: since it was noted there was as much time
// for it as the provider took to answer. Where the database is slow or away, that holds
// nobody up for longer than RecordWait, and nobody else until it is well again.
func (s *Set) onRecord(u *use) {
	if u == nil || u.written == nil {
		return
	}
	select {
	case <-u.written:
		return
	default:
	}
	if s.uses.isLate() {
		return
	}
	t := time.NewTimer(s.cfg.RecordWait)
	defer t.Stop()
	select {
	case <-u.written:
	case <-t.C:
		s.uses.setLate(true)
	}
}

func (u *uses) isLate() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.late
}

func (u *uses) setLate(late bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.late = late
}

// batch returns some of the uses that wait.
func (u *uses) batch() []store.Use {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]store.Use, 0, min(len(u.waiting), useBatch))
	for _, x := range u.waiting {
		if len(all) == useBatch {
			break
		}
		all = append(all, x.Use)
	}
	return all
}

// written forgets uses that are on record.
func (u *uses) written(all []store.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.late = false
	for _, x := range all {
		key := useKey{x.Workspace, x.Account, x.Session}
		if waits := u.waiting[key]; waits != nil && waits.written != nil {
			close(waits.written)
		}
		delete(u.waiting, key)
	}
}

// left returns how many uses wait.
func (u *uses) left() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.waiting)
}

// record writes the uses that wait. What fails waits on.
func (s *Set) record(ctx context.Context) error {
	for all := s.uses.batch(); len(all) > 0; all = s.uses.batch() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		err := s.cfg.Store.Used(ctx, all)
		cancel()
		if err != nil {
			s.uses.setLate(true)
			if now := time.Now(); now.Sub(s.uses.warned) >= quiet {
				s.uses.warned = now
				s.cfg.Log.WarnContext(ctx, "first uses of accounts are not in the audit yet: it is tried again", "waiting", s.uses.left(), "error", err)
			}
			return err
		}
		s.uses.written(all)
	}
	return nil
}

// recordAll writes uses until ctx is done: first ones at once, others now and then. What
// fails waits until then too.
func (s *Set) recordAll(ctx context.Context) {
	tick := time.NewTicker(s.cfg.WriteEvery)
	defer tick.Stop()
	wake := s.uses.wake
	for {
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		wake = s.uses.wake
		if s.record(context.WithoutCancel(ctx)) != nil { // which is logged
			wake = nil
		}
	}
}

// recordLast writes the uses that wait before the process ends, and insists for a while.
func (s *Set) recordLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	again := time.NewTicker(farewell / 50)
	defer again.Stop()
	for {
		err := s.record(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.cfg.Log.ErrorContext(ctx, "first uses of accounts are lost to the audit: the database was away until the end", "lost", s.uses.left(), "error", err)
			return
		}
	}
}
