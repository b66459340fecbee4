package pool

import (
	"context"
	"fmt"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
)

const touchEvery = time.Minute // how often an account's last use is written

type useKey struct {
	workspace id.Workspace
	account   id.Account
	session   id.Session
}

// note writes the first use of an account in a session to the audit, and about once
// a minute when it was last used.
func (s *Set) note(ctx context.Context, r Request, a Account) error {
	if a.Origin == Simulator {
		return nil
	}
	key := useKey{r.Actor.Workspace, a.ID, r.Actor.Session}
	known, due := s.due(key)
	switch {
	case !known:
		if err := s.cfg.Store.Use(ctx, r.Actor.Workspace, use(r.Actor, a, r.Address)); err != nil {
			return fmt.Errorf("record the use of account %s: %w", a.ID, err)
		}
		s.noted(key)
	case due:
		ctx := context.WithoutCancel(ctx)
		s.work.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, loadTimeout)
			defer cancel()
			if err := s.cfg.Store.Use(ctx, r.Actor.Workspace, use(r.Actor, a, r.Address)); err != nil {
				s.cfg.Log.WarnContext(ctx, "last use of an account not written", "account", a.ID, "error", err)
			}
		})
	}
	return nil
}

// due reports whether a use is on record, and whether it is time to date it anew,
// which it says to one caller.
func (s *Set) due(key useKey) (known, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.used[key]
	if due = known && time.Since(last) >= touchEvery; due {
		s.used[key] = time.Now()
	}
	return known, due
}

func (s *Set) noted(key useKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.used) >= maxEntries {
		clear(s.used)
	}
	s.used[key] = time.Now()
}

func use(actor identity.Actor, a Account, address string) store.Event {
	return store.Event{Account: a.ID, Provider: a.Provider, Origin: string(a.Origin), Member: actor.Member, Service: actor.Service, Address: address, Session: actor.Session}
}
