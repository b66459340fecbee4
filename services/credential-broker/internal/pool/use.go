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
	waiting map[useKey]store.Use // until they are written

	warned time.Time // only the writer looks at it
}

// errAudit refuses a use that could not be remembered.
var errAudit = fault.Coded(fault.Unavailable, "AUDIT_FULL", "the credential broker cannot write its audit, and as much waits to be written as may: its database is away; try again in a moment")

// note puts the first use of an account in a session on its way to the audit, and about
// once a minute that it was used again. It waits for nobody. Its error means that the
// account must not be used.
func (s *Set) note(r Request, a Account) error {
	if a.Origin == Simulator {
		return nil
	}
	u := &s.uses
	key := useKey{r.Actor.Workspace, a.ID, r.Actor.Session}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	last, known := u.noted[key]
	if known && now.Sub(last) < touchEvery {
		return nil
	}
	if _, waits := u.waiting[key]; !waits {
		if len(u.waiting) >= maxWaiting {
			if known { // only when it was last used would be newer
				return nil
			}
			return errAudit
		}
		u.waiting[key] = store.Use{Workspace: r.Actor.Workspace, At: now, Event: store.Event{
			Account: a.ID, Provider: a.Provider, Origin: string(a.Origin), Member: r.Actor.Member, Service: r.Actor.Service,
			Address: r.Address, Session: r.Actor.Session,
		}}
	}
	if len(u.noted) >= maxEntries {
		clear(u.noted)
	}
	u.noted[key] = now
	return nil
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
		all = append(all, x)
	}
	return all
}

// written forgets uses that are on record.
func (u *uses) written(all []store.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range all {
		delete(u.waiting, useKey{x.Workspace, x.Account, x.Session})
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
