package pool

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/store"
)

const (
	touchEvery    = time.Minute // how often an account's last use is written
	maxWaiting    = 10_000      // uses that wait to be written
	useBatch      = 200         // uses that one transaction writes
	recordLastFor = 5 * time.Second
	recordWait    = 250 * time.Millisecond // for a first use to be recorded before its answer is shown
)

type useKey struct {
	workspace id.Workspace
	account   id.Account
	session   id.Session
}

// uses are the first uses of accounts in sessions, on their way to the audit.
type uses struct {
	mu      sync.Mutex           // guards noted and waiting
	noted   map[useKey]time.Time // when a use was last put among those that wait
	waiting map[useKey]*use      // until they are written

	late atomic.Bool   // writing takes long, or fails: nobody waits for it
	wake chan struct{} // a first use waits
}

// use is a use that waits to be written.
type use struct {
	store.Use
	written chan struct{} // closed when it is; nil if nobody waits for that
}

var errAuditFull = fault.Coded(fault.Unavailable, "AUDIT_FULL", "the credential broker's audit buffer is full because its database is unavailable: try again in a moment")

// note puts the first use of an account in a session on its way to the audit, and about once
// a minute that it was used again. It does not wait. It returns what is still to be written,
// nil for nothing. On an error the account must not be used.
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
		if known { // only the time of the last use would be newer
			return nil, nil //nolint:nilnil // there is nothing to write
		}
		return nil, errAuditFull
	}
	waits = &use{Use: store.Use{Workspace: r.Actor.Workspace, At: now, Again: known, Event: store.Event{
		Account: a.ID, Provider: a.Provider, Origin: string(a.Origin), Member: r.Actor.Member, Service: r.Actor.Service,
		Address: r.Address, Session: r.Actor.Session,
	}}}
	u.waiting[key] = waits
	makeRoom(u.noted)
	u.noted[key] = now
	if !known && !s.cfg.UsesBehind {
		waits.written = make(chan struct{})
		signal(u.wake)
	}
	return waits, nil
}

// awaitRecord waits until a first use is written, which began when the request went out. If
// the database is slow or away it waits for RecordWait at most, and not at all until the
// database has recovered.
func (s *Set) awaitRecord(u *use) {
	if u == nil || u.written == nil {
		return
	}
	select {
	case <-u.written:
		return
	default:
	}
	if s.uses.late.Load() {
		return
	}
	t := time.NewTimer(s.cfg.RecordWait)
	defer t.Stop()
	select {
	case <-u.written:
	case <-t.C:
		s.uses.late.Store(true)
	}
}

// next returns some of the uses that wait, and how many there are.
func (u *uses) next() (batch []store.Use, all int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range u.waiting {
		if len(batch) == useBatch {
			break
		}
		batch = append(batch, x.Use)
	}
	return batch, len(u.waiting)
}

// done removes uses that were written.
func (u *uses) done(batch []store.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.late.Store(false)
	for _, x := range batch {
		key := useKey{x.Workspace, x.Account, x.Session}
		if waits := u.waiting[key]; waits != nil && waits.written != nil {
			close(waits.written)
		}
		delete(u.waiting, key)
	}
}

// record writes the uses that wait, and returns how many are left if that fails.
func (s *Set) record(ctx context.Context) (left int, err error) {
	for batch, all := s.uses.next(); all > 0; batch, all = s.uses.next() {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		err := s.cfg.Store.Used(ctx, batch)
		cancel()
		if err != nil {
			s.uses.late.Store(true)
			if s.mayWarn("record") {
				s.cfg.Log.WarnContext(ctx, "cannot write first uses of accounts to the audit: will retry", "waiting", all, "error", err)
			}
			return all, err
		}
		s.uses.done(batch)
	}
	return 0, nil
}

// recordAll writes uses until ctx is done: first ones at once, others every WriteEvery. After
// a failure first ones wait for that too.
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
		if _, err := s.record(context.WithoutCancel(ctx)); err != nil { // which is logged
			wake = nil
		}
	}
}

// recordLast writes the uses that wait before the process ends, and retries for a while.
func (s *Set) recordLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recordLastFor)
	defer cancel()
	again := time.NewTicker(recordLastFor / 50)
	defer again.Stop()
	for {
		left, err := s.record(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.cfg.Log.ErrorContext(ctx, "first uses of accounts are missing from the audit: the database was unavailable at shutdown", "lost", left, "error", err)
			return
		}
	}
}
