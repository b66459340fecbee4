package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
)

// A request does not wait for the database, even if it hangs and the last request was minutes ago.
func TestSelectDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoom(t, nil)
		mine, other := id.New[id.Workspace](), id.New[id.Workspace]()
		w.memory.put(mine, w.key(mine, "mine"))
		w.memory.put(id.Workspace{}, w.key(id.Workspace{}, "shared"))
		r, second := request(mine), request(other)
		want := func(when string) {
			t.Helper()
			for _, tt := range []struct {
				r      pool.Request
				secret string
			}{{r, "mine"}, {second, "shared"}} {
				a, took, err := w.timed(tt.r)
				if err != nil || a.Secret.Reveal() != tt.secret || took > 0 {
					t.Fatalf("%s: Select = %v after %v, %v, want %s at once", when, a.ID, took, err, tt.secret)
				}
			}
		}
		want("at first")
		for _, idle := range []time.Duration{2 * time.Second, 20 * time.Second, 4 * time.Minute} {
			pass(idle)
			w.memory.hang(true)
			want("the database has begun to hang after " + idle.String())
			w.memory.hang(false)
		}
		w.memory.hang(true)
		for range 14 * 60 {
			pass(time.Second)
			want("while it hangs")
		}
	})
}

// A change counts within a second, and the operator's pool is read once for all workspaces.
func TestChangesAreFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoom(t, nil)
		shared := id.Workspace{}
		w.memory.put(shared, w.key(shared, "first"))
		var all []pool.Request
		for range 50 {
			all = append(all, request(id.New[id.Workspace]()))
		}
		want := func(secret string) {
			t.Helper()
			for _, r := range all {
				if a, _, err := w.timed(r); err != nil || a.Secret.Reveal() != secret {
					t.Fatalf("Select = %q, %v, want %s", a.Secret.Reveal(), err, secret)
				}
			}
		}
		want("first")
		for range 20 {
			pass(300 * time.Millisecond)
			want("first")
		}
		pass(time.Minute)
		w.memory.put(shared, w.key(shared, "second"))
		pass(time.Second)
		want("second")
		w.memory.put(all[0].Actor.Workspace, w.key(all[0].Actor.Workspace, "own"))
		pass(time.Second)
		if a, _, err := w.timed(all[0]); err != nil || a.Secret.Reveal() != "own" {
			t.Errorf("Select = %q, %v, want the workspace's own", a.Secret.Reveal(), err)
		}
		w.memory.mu.Lock()
		for key, n := range w.memory.reads {
			if n > 2 {
				t.Errorf("%+v was read %d times, want once for each change", key, n)
			}
		}
		w.memory.mu.Unlock()

		// Without polls the cache is not trusted.
		w.stop()
		w.memory.put(shared, w.key(shared, "third"))
		pass(10 * time.Second)
		if a, _, err := w.timed(all[1]); err != nil || a.Secret.Reveal() != "third" {
			t.Errorf("Select = %q, %v, want what is stored now", a.Secret.Reveal(), err)
		}
	})
}

// What is learned is written within a second.
func TestWrittenWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoom(t, nil)
		ws := id.New[id.Workspace]()
		w.memory.put(ws, w.key(ws, "a"), w.key(ws, "b"))
		r := request(ws)
		for n := range 50 {
			pass(time.Duration(37*n) * time.Millisecond)
			a, _, err := w.timed(r)
			if err != nil {
				t.Fatal(err)
			}
			out := pool.Outcome{Reason: pool.OK}
			if n == 20 {
				out = pool.Outcome{Reason: pool.RateLimited, RetryAfter: time.Hour}
			}
			w.pool.Report(t.Context(), a, out)
			reported := time.Now()
			pass(time.Second)
			synctest.Wait()
			w.memory.mu.Lock()
			requests, limits := int64(0), 0
			for i, l := range w.memory.learned {
				for _, s := range l.Stats {
					requests += s.Requests
				}
				limits += len(l.Limits)
				if w.memory.when[i].Sub(reported) > time.Second {
					t.Errorf("written after %v", w.memory.when[i].Sub(reported))
				}
			}
			if requests != int64(n+1) || n >= 20 && limits == 0 {
				t.Fatalf("a second after report %d, %d requests and %d limits are written", n+1, requests, limits)
			}
			w.memory.mu.Unlock()
		}
	})
}

// While a token endpoint hangs, accounts with a valid token are found at once; if there is none, the
// error comes within one deadline.
func TestTokenEndpointHangs(t *testing.T) {
	t.Parallel()
	const deadline = 20 * time.Second
	for _, tt := range []struct {
		name         string
		expired, all int
	}{
		{"some", 3, 5},
		{"all but one", 9, 10},
		{"all", 10, 10},
		{"a thousand", 1000, 1000},
		{"the only one", 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &endpoint{}
				w := newRoom(t, server)
				accounts := w.grants(tt.all)
				for _, a := range accounts[:tt.expired] {
					server.set(a.ID, true, nil)
				}
				ws := id.New[id.Workspace]()
				for n := range 10 {
					a, took, err := w.timed(request(ws))
					if tt.expired == tt.all {
						if took > deadline || fault.KindOf(err) != fault.Unavailable {
							t.Fatalf("request %d: %v after %v, want Unavailable within %v", n, err, took, deadline)
						}
						continue
					}
					if err != nil || took > time.Duration(tt.expired)*500*time.Millisecond || n > 0 && took > 0 {
						t.Fatalf("request %d: Select = %v after %v, want a good account, at once but for the first", n, err, took)
					}
					w.pool.Report(t.Context(), a, pool.Outcome{Reason: pool.OK})
				}
				states, err := w.pool.States(t.Context(), ws, "openai")
				if err != nil {
					t.Fatal(err)
				}
				passedOver := 0
				for _, s := range states {
					if s.Health < 100 || parks(s) {
						t.Errorf("an account has health %v and limits %+v for want of a token", s.Health, s.Limits)
					}
					if slices.ContainsFunc(s.Limits, func(l pool.Limit) bool { return l.Until.After(time.Now()) }) {
						passedOver++
					}
				}
				if passedOver > 100 {
					t.Errorf("%d accounts are passed over, most of which no request has waited for", passedOver)
				}
				for _, a := range accounts {
					server.set(a.ID, false, nil)
				}
				if _, took, err := w.timed(request(ws)); err != nil || took > 0 {
					t.Errorf("when the server is back: %v after %v", err, took)
				}
			})
		})
	}
}

// An account that was read while a request waited for the token of another one can serve it:
// the request does not wait for the database, and for a token only while it knows no other.
func TestReadMeanwhile(t *testing.T) {
	t.Parallel()
	for _, others := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			server := &endpoint{}
			w := newRoom(t, server)
			accounts := w.grants(1 + others)
			server.set(accounts[0].ID, true, nil)
			r := request(id.New[id.Workspace]())
			a, took, err := pool.Account{}, time.Duration(0), error(nil)
			done := make(chan struct{})
			go func() { // it waits for the first account's token
				defer close(done)
				a, took, err = w.timed(r)
			}()
			synctest.Wait()
			more := []store.Account{accounts[0]}
			for range 3 {
				more = append(more, store.Account{ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Enabled: true})
			}
			w.memory.put(id.Workspace{}, append(more, accounts[1:]...)...)
			w.pool.Forget(id.Workspace{})
			if _, _, err := w.timed(request(id.New[id.Workspace]())); err != nil { // which reads them
				t.Errorf("meanwhile: %v", err)
			}
			w.memory.hang(true)
			w.pool.Forget(id.Workspace{})
			<-done
			most := time.Second
			if others == 0 {
				most = 20 * time.Second
			}
			if err != nil || a.ID == accounts[0].ID || a.Secret.Reveal() != "token-of-"+a.ID.String() || took > most {
				t.Errorf("with %d others: Select = %v after %v, %v, want another account within %v", others, a.ID, took, err, most)
			}
			w.memory.hang(false)
		})
	}
}

// Wait waits for readings under way, even if the requests that started them are gone. Requests that
// come later, or just then, get an error.
func TestEndsWhileReading(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newRoom(t, nil)
			w.stop()
			w.memory.hang(true)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			unavailable := func() {
				if _, err := w.pool.Select(gone, request(id.New[id.Workspace]())); fault.KindOf(err) != fault.Unavailable {
					t.Errorf("Select = %v, want Unavailable", err)
				}
			}
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(unavailable)
			}
			if !meanwhile {
				wg.Wait()
			}
			w.pool.Wait()
			reads := func() int {
				w.memory.mu.Lock()
				defer w.memory.mu.Unlock()
				return w.memory.asked
			}
			before := reads()
			wg.Wait()
			unavailable()
			synctest.Wait()
			if after := reads(); after != before {
				t.Errorf("%d pools were read after Wait", after-before)
			}
			w.memory.hang(false)
		})
	}
}

// Changed pools whose reading hangs delay no request for another pool, nor for their own after
// Forget, and those that still wait to be read are not read once the Set ends.
func TestRereadsHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoom(t, nil)
		changed := make([]id.Workspace, 50)
		for i := range changed {
			changed[i] = id.New[id.Workspace]()
			w.memory.put(changed[i], w.key(changed[i], "old"))
			if _, _, err := w.timed(request(changed[i])); err != nil {
				t.Fatal(err)
			}
		}
		w.memory.stick(true)
		for _, ws := range changed {
			w.memory.put(ws, w.key(ws, "new"))
		}
		pass(time.Second)
		w.memory.stick(false) // what is being read still hangs
		cold := id.New[id.Workspace]()
		w.memory.put(cold, w.key(cold, "new"))
		w.pool.Forget(id.Workspace{})
		for _, ws := range append(changed, cold) {
			if a, took, err := w.timed(request(ws)); err != nil || a.Secret.Reveal() != "new" || took > 0 {
				t.Fatalf("Select = %q after %v, %v, want the new account at once", a.Secret.Reveal(), took, err)
			}
		}
		pass(20 * time.Second)
		w.memory.stick(true)
		for _, ws := range changed {
			w.memory.put(ws, w.key(ws, "newer"))
		}
		pass(time.Second)
		asked := func() int {
			w.memory.mu.Lock()
			defer w.memory.mu.Unlock()
			return w.memory.asked
		}
		before := asked()
		w.stop()
		w.pool.Wait()
		if n := asked() - before; n > 0 {
			t.Errorf("%d pools were read while the Set ended", n)
		}
	})
}

// A first use is recorded before its answer is shown. A slow database delays one answer for a moment,
// and none after it.
func TestAnswerWaitsForTheRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoom(t, nil)
		ws := id.New[id.Workspace]()
		w.memory.put(ws, w.key(ws, "mine"))
		began := func(r pool.Request) time.Duration {
			t.Helper()
			a, _, err := w.timed(r)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Now()
			w.pool.Began(a)
			return time.Since(at)
		}
		used := func() int {
			w.memory.mu.Lock()
			defer w.memory.mu.Unlock()
			return w.memory.used
		}
		first := request(ws)
		if took := began(first); took > 0 || used() != 1 {
			t.Errorf("%d uses are recorded after %v, want it at once", used(), took)
		}
		w.memory.hang(true)
		if took := began(first); took > 0 {
			t.Errorf("a later use waits %v", took)
		}
		if took := began(request(ws)); took == 0 || took > 300*time.Millisecond {
			t.Errorf("while the database hangs an answer waits %v", took)
		}
		for range 3 {
			if took := began(request(ws)); took > 0 {
				t.Errorf("and the next one %v", took)
			}
		}
		w.memory.hang(false)
		pass(time.Minute)
		if used() != 5 {
			t.Errorf("%d uses are recorded when it is back, want 5", used())
		}
		if took := began(request(ws)); took > 0 || used() != 6 {
			t.Errorf("%d uses are recorded after %v, want the last one at once", used(), took)
		}
	})
}

// parks reports whether a limit parks the account.
func parks(s pool.State) bool {
	return slices.ContainsFunc(s.Limits, func(l pool.Limit) bool {
		return !l.Until.IsZero() && !strings.HasPrefix(l.Family, pool.PassedOver)
	})
}

// If somebody has to sign in again, each error says so. Nothing was sent with these accounts, so
// their health stays.
func TestSignInAgainIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &endpoint{}
		w := newRoom(t, server)
		for _, a := range w.grants(2) {
			server.set(a.ID, false, fault.Coded(fault.Conflict, "ACCOUNT_REAUTHORIZE", "sign in again"))
		}
		ws := id.New[id.Workspace]()
		for n := range 20 {
			if _, _, err := w.timed(request(ws)); fault.From(err).Code != "ACCOUNT_REAUTHORIZE" {
				t.Errorf("request %d: %v, want that somebody has to sign in again", n, err)
			}
			pass(time.Second)
		}
		states, err := w.pool.States(t.Context(), ws, "openai")
		if err != nil || len(states) != 2 {
			t.Fatalf("states %v, %v, want two", states, err)
		}
		for _, s := range states {
			if s.Health < 100 || parks(s) {
				t.Errorf("waiting for a sign-in, an account has health %v and limits %+v", s.Health, s.Limits)
			}
		}
		accounts := w.grants(2)
		pass(time.Second)
		if _, _, err := w.timed(request(ws)); err != nil {
			t.Errorf("with other accounts: %v", err)
		}
		server.set(accounts[0].ID, false, fault.Coded(fault.Conflict, "ACCOUNT_REAUTHORIZE", "sign in again"))
		a, _, err := w.timed(request(ws))
		if err != nil {
			t.Fatal(err)
		}
		w.pool.Report(t.Context(), a, pool.Outcome{Reason: pool.RateLimited, RetryAfter: time.Hour})
		if _, _, err := w.timed(request(ws)); !errors.Is(err, pool.ErrExhausted) {
			t.Errorf("with one at its limit: %v, want when it is back", err)
		}
	})
}

// BenchmarkSelect selects an account and reports success, as a request does.
func BenchmarkSelect(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newRoom(b, nil)
			all := make([]store.Account, n)
			for i := range all {
				all[i] = w.key(id.Workspace{}, fmt.Sprint("key-", i))
			}
			w.memory.put(id.Workspace{}, all...)
			w.memory.set(id.Workspace{}, `{"strategy": "hybrid"}`)
			r := request(id.New[id.Workspace]())
			b.ReportAllocs()
			for b.Loop() {
				a, err := w.pool.Select(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				w.pool.Report(b.Context(), a, pool.Outcome{Reason: pool.OK})
			}
		})
	}
}
