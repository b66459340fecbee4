package pool_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// holder caches tokens until it is told to forget them, even those of removed accounts.
type holder struct {
	mu   sync.Mutex // guards what follows
	held map[oauth.Ref]bool
	gone map[id.Account]bool
}

func (h *holder) Token(_ context.Context, of oauth.Ref) (oauth.Token, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.held[of] && h.gone[of.Account] {
		return oauth.Token{}, fault.Coded(fault.NotFound, "ACCOUNT_NO_GRANT", "gone")
	}
	h.held[of] = true
	return oauth.Token{Secret: vault.NewSecret("token"), Version: 1}, nil
}

func (h *holder) Rejected(ctx context.Context, of oauth.Ref, _ int64) (oauth.Token, error) {
	return h.Token(ctx, of)
}

func (h *holder) forget(ws id.Workspace) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.held, func(ref oauth.Ref, _ bool) bool { return ref.Workspace == ws })
}

func (h *holder) holds(a id.Account) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[oauth.Ref{Account: a}]
}

func (h *holder) remove(a id.Account) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone[a] = true
}

// The token of an account that another instance has removed is not used a second later, even if
// the rest of the pool takes long to read.
func TestRemovedWhileReadingIsSlow(t *testing.T) {
	t.Parallel()
	for _, left := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			server := &holder{held: map[oauth.Ref]bool{}, gone: map[id.Account]bool{}}
			w := newRoom(t, server)
			accounts := w.grants(1 + left)
			r := request(id.New[id.Workspace]())
			if a, err := w.pool.Select(t.Context(), r); err != nil || a.ID != accounts[0].ID {
				t.Fatalf("Select = %v, %v, want the first account", a.ID, err)
			}
			w.memory.stick(true)
			server.remove(accounts[0].ID)
			w.memory.put(id.Workspace{}, accounts[1:]...)
			pass(time.Second)
			a, took, err := w.timed(r)
			switch {
			case left > 0 && (err != nil || a.ID != accounts[1].ID || took > 0):
				t.Errorf("Select = %v, %v after %s, want the other account", a.ID, err, took)
			case left == 0 && (fault.KindOf(err) != fault.Unavailable || took > 3*time.Second):
				t.Errorf("Select = %v, %v after %s, want to be asked to come again", a.ID, err, took)
			}
			w.memory.stick(false)
			pass(20 * time.Second) // the reading that hangs is over, and there was another one
			if a, err := w.pool.Select(t.Context(), r); (left == 0) != errors.Is(err, pool.ErrNone) {
				t.Errorf("Select of %d accounts = %v, %v", left, a.ID, err)
			}
		})
	}
}

// If the only account was removed elsewhere, a request goes to the one that took its place, or to
// the operator's, without waiting for a poll.
func TestReplaced(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := &holder{held: map[oauth.Ref]bool{}, gone: map[id.Account]bool{}}
			w := newRoom(t, server)
			r := request(id.New[id.Workspace]())
			ws := id.Workspace{}
			if own {
				ws = r.Actor.Workspace
			}
			old := store.Account{WorkspaceID: ws, ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Enabled: true}
			w.memory.put(ws, old)
			server.remove(old.ID)
			if _, _, err := w.timed(r); fault.KindOf(err) != fault.Unavailable {
				t.Errorf("Select = %v, want to be asked to come again", err)
			}
			if own {
				w.memory.put(ws)
			}
			shared := w.grants(1)[0]
			if a, took, err := w.timed(r); err != nil || a.ID != shared.ID || took > 0 {
				t.Errorf("Select = %v, %v after %s, want the account that is left", a.ID, err, took)
			}
		})
	}
}

// Only a change of accounts drops cached tokens; a limit or a setting does not.
func TestTokensAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &holder{held: map[oauth.Ref]bool{}, gone: map[id.Account]bool{}}
		w := newRoom(t, server)
		a := w.grants(1)[0]
		r := request(id.New[id.Workspace]())
		if _, err := w.pool.Select(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		w.memory.set(id.Workspace{}, `{"strategy": "hybrid"}`)
		pass(2 * time.Second)
		if !server.holds(a.ID) {
			t.Error("a token is forgotten because a setting changed")
		}
		w.memory.put(id.Workspace{}, a)
		pass(2 * time.Second)
		if server.holds(a.ID) {
			t.Error("no token is forgotten though accounts changed")
		}
	})
}

// The holder of tokens is told of changes that another instance announces, which a poll may not
// find.
func TestTokensAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	srv := natstest.New(t)
	first := w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	heard := make(chan id.Workspace, 1)
	w.config.Forget = func(ws id.Workspace) {
		select {
		case heard <- ws:
		default: // it is said again
		}
	}
	w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	for _, ws := range []id.Workspace{id.New[id.Workspace](), {}} {
		within(t, soon, "the other instance forgets tokens", func() bool {
			first.Forget(ws) // again, for the other one may not have listened yet
			select {
			case got := <-heard:
				return got == ws
			default:
				return false
			}
		})
	}
}
