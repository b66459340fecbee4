package store_test

import (
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/store"
)

// Uses of many workspaces are written together, by several instances at once, once each.
func TestUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shared := w.add(id.Workspace{}, "openai", "shared")
	workspaces := []id.Workspace{id.New[id.Workspace](), id.New[id.Workspace](), id.New[id.Workspace]()}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	var all []store.Use
	for _, ws := range workspaces {
		mine := w.add(ws, "openai", "mine")
		for range 5 {
			session := id.New[id.Session]()
			for _, a := range []store.Account{mine, shared} {
				origin := "workspace"
				if a.Shared() {
					origin = "shared"
				}
				all = append(all, store.Use{Workspace: ws, At: at, Event: store.Event{
					Account: a.ID, Provider: "openai", Origin: origin, Service: "agent-runner", Session: session,
				}})
			}
		}
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			mine := append(append([]store.Use{}, all[n*5:]...), all[:n*5]...)
			for range 3 {
				if err := w.store.Used(t.Context(), mine); err != nil {
					t.Errorf("Used = %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, ws := range workspaces {
		rows, err := w.store.Audit(t.Context(), ws, audit.Query{Limit: 100})
		if err != nil || len(rows) != 11 {
			t.Fatalf("%d rows, %v, want the account's and 10 uses", len(rows), err)
		}
		for _, r := range rows[:10] {
			if r.Action != "used" || r.Detail != "at "+at.UTC().Format(time.RFC3339) || time.Since(r.At) > time.Minute {
				t.Errorf("row %+v, want a use that says when it was", r)
			}
		}
		if problems, _, err := w.store.VerifyAudit(t.Context(), ws, hashchain.New(ws)); err != nil || len(problems) > 0 {
			t.Errorf("VerifyAudit = %v, %v", problems, err)
		}
	}
	stored, err := w.store.List(t.Context(), workspaces[0])
	if err != nil || len(stored) != 2 {
		t.Fatal(stored, err)
	}
	for _, a := range stored {
		if a.LastUsedAt == nil || !a.LastUsedAt.Equal(at) {
			t.Errorf("account %s was last used at %v, want %v", a.Label, a.LastUsedAt, at)
		}
	}
	// What is written in time needs no words.
	now := store.Use{Workspace: workspaces[0], At: time.Now(), Event: all[0].Event}
	now.Session = id.New[id.Session]()
	if err := w.store.Used(t.Context(), []store.Use{now}); err != nil {
		t.Fatal(err)
	}
	if rows, err := w.store.Audit(t.Context(), workspaces[0], audit.Query{Limit: 1}); err != nil || rows[0].Detail != "" {
		t.Errorf("row %+v, %v, want one without details", rows, err)
	}
	// A later use is none for the audit.
	now.Again, now.At, now.Session = true, time.Now(), id.New[id.Session]()
	if err := w.store.Used(t.Context(), []store.Use{now}); err != nil {
		t.Fatal(err)
	}
	if rows, err := w.store.Audit(t.Context(), workspaces[0], audit.Query{Limit: 1}); err != nil || rows[0].Session == now.Session {
		t.Errorf("row %+v, %v, want none of a later use", rows, err)
	}
	if a, err := w.store.Get(t.Context(), workspaces[0], now.Account); err != nil || a.LastUsedAt.Before(now.At.Truncate(time.Millisecond)) {
		t.Errorf("Get = %+v, %v, want that it was used later", a, err)
	}
}
