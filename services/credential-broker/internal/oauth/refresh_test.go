package oauth_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/simulator/authserver"
)

func TestInvalidGrantAsksForSignIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.server.End(w.token(k, ref).Secret.Reveal())
	w.expire(ref, k)
	_, err := k.Token(t.Context(), ref)
	wantFault(t, "Token()", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")
	k.Forget(ref)
	_, err = k.Token(t.Context(), ref)
	wantFault(t, "Token() again", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")
	w.calls(authserver.Calls{Refresh: 1})
	w.attempts(ref, "refused")
	if s := w.status(ref); s.State != oauth.Reauthorize || !strings.Contains(s.Reason, "revoked") {
		t.Errorf("status = %+v, want %s with a reason for people", s, oauth.Reauthorize)
	}
	noTokens(t, "the log", w.log.String())
	noTokens(t, "the error", err.Error())
}

// TestInvalidGrantOfAnOldToken has the account authorised again while a refresh is
// refused: the refusal is not about the present token.
func TestInvalidGrantOfAnOldToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.server.End(w.token(k, ref).Secret.Reveal())
	w.expire(ref, k)
	again, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Kind: oauth.Paste, Account: ref.Account})
	if err != nil {
		t.Fatal(err)
	}
	pasted := w.authorize(again.URL)
	w.server.Watch(func(stage string) {
		if stage == "rotated" { // the refusal is on its way
			w.server.Watch(nil)
			if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: pasted}); err != nil {
				t.Errorf("Complete() = %v", err)
			}
		}
	})
	if got := w.token(k, ref); got.Version != 2 {
		t.Errorf("Token() has version %d, want 2", got.Version)
	}
	if s := w.status(ref); s.State != oauth.Active {
		t.Errorf("status = %+v, want %s", s, oauth.Active)
	}
	w.attempts(ref, "refused")
}

func TestFailureDoesNotEndGrant(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		fault   authserver.Fault
		outcome string
	}{
		{"overloaded", authserver.Fault{Status: 503, Code: "temporarily_unavailable"}, "unknown"},
		{"a gateway's error", authserver.Fault{Status: 502}, "unknown"},
		{"a limit", authserver.Fault{Status: 429, RetryAfter: "7"}, "failed"},
		{"a client that is set wrong", authserver.Fault{Status: 401, Code: "invalid_client"}, "failed"},
		{"an error without a code", authserver.Fault{Status: 400}, "failed"},
		{"a cut connection", authserver.Fault{Drop: true}, "unknown"},
		{"invalid_grant of a broken server", authserver.Fault{Status: 500, Code: "invalid_grant"}, "unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
			k := w.keeper()
			ref := w.grant(k)
			w.expire(ref, k)
			w.server.Fail(tt.fault)
			_, err := k.Token(t.Context(), ref)
			wantFault(t, "Token()", err, fault.Unavailable, "")
			noTokens(t, "the error", err.Error())
			_, err = k.Token(t.Context(), ref) // a pause
			wantFault(t, "Token() again", err, fault.Unavailable, "TOKEN_UNAVAILABLE")
			if after := fault.From(err).RetryAfter; tt.fault.RetryAfter != "" && (after <= 5*time.Second || after > 7*time.Second) {
				t.Errorf("Token() may be tried again after %s, want what the server asked for", after)
			}
			if s := w.status(ref); s.State != oauth.Active {
				t.Errorf("status = %+v, want %s", s, oauth.Active)
			}
			w.unpause()
			w.token(k, ref)
			w.attempts(ref, tt.outcome, "done")
			w.calls(authserver.Calls{Refresh: 2, Refreshed: 1})
			noTokens(t, "the log", w.log.String())
		})
	}
}

func TestServerUnreachable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	w.providers = loadProviders(t, gone.URL, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	_, err := k.Token(t.Context(), ref)
	wantFault(t, "Token()", err, fault.Unavailable, "")
	w.attempts(ref, "unsent")
	if got := w.rows(`SELECT doubtful::text FROM credentials.grants`); got[0] != "false" {
		t.Error("a grant whose token was not sent is doubtful")
	}
}

// TestLostAnswer has the server rotate and the answer get lost.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		settings authserver.Settings
		more     string
		lost     authserver.Fault
		want     authserver.Calls
		state    oauth.State
	}{
		{
			"no rotation",
			authserver.Settings{},
			"",
			authserver.Fault{Drop: true, After: true},
			authserver.Calls{Refresh: 2, Refreshed: 2},
			oauth.Active,
		},
		{
			"rotation with grace",
			authserver.Settings{Rotate: true, GraceSeconds: 600, ReuseEnds: true},
			rotating,
			authserver.Fault{Drop: true, After: true},
			authserver.Calls{Refresh: 2, Refreshed: 2, Graced: 1},
			oauth.Active,
		},
		{
			"rotation without grace",
			authserver.Settings{Rotate: true},
			rotating,
			authserver.Fault{Drop: true, After: true},
			authserver.Calls{Refresh: 2, Refreshed: 1, Reused: 1},
			oauth.Reauthorize,
		},
		{
			"a family that ends",
			authserver.Settings{Rotate: true, ReuseEnds: true},
			rotating,
			authserver.Fault{Drop: true, After: true},
			authserver.Calls{Refresh: 2, Refreshed: 1, Reused: 1, Ended: 1},
			oauth.Reauthorize,
		},
		{
			"an answer that makes no sense",
			authserver.Settings{Rotate: true, GraceSeconds: 600},
			rotating,
			authserver.Fault{Garbage: true},
			authserver.Calls{Refresh: 2, Refreshed: 2, Graced: 1},
			oauth.Active,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tt.settings, tt.more)
			k := w.keeper()
			ref := w.grant(k)
			w.expire(ref, k)
			w.server.Fail(tt.lost)
			_, err := k.Token(t.Context(), ref)
			wantFault(t, "Token()", err, fault.Unavailable, "")
			w.unpause()
			k.Forget(ref)
			if _, err = k.Token(t.Context(), ref); (err == nil) != (tt.state == oauth.Active) {
				t.Errorf("Token() again = %v", err)
			}
			w.calls(tt.want)
			s := w.status(ref)
			if s.State != tt.state || s.State != oauth.Active && !strings.Contains(s.Reason, "lost") {
				t.Errorf("status = %+v, want %s, with the reason that an answer was lost if not active", s, tt.state)
			}
		})
	}
}

// TestDeadInstance has an instance take the lease and die.
func TestDeadInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, GraceSeconds: 600}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	w.change(`WITH a AS (
			INSERT INTO credentials.grant_attempts (workspace_id, id, account_id, kind, version, instance)
			SELECT workspace_id, gen_random_uuid(), account_id, 'refresh', version, 'dead' FROM credentials.grants RETURNING id)
		UPDATE credentials.grants SET attempt_id = a.id, lease_until = now() + interval '300 ms' FROM a`)
	w.token(k, ref)
	w.attempts(ref, "lost", "done")
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
}

// TestZombie has an instance get its answer after another one has taken over.
func TestZombie(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		grace    float64
		outcomes []string
		version  int64
	}{
		// Both got tokens; the first to store wins.
		{"both answers are good", 600, []string{"superseded", "done"}, 2},
		// The other was refused, and the one who was given up has the good ones.
		{"only the late one is", 0, []string{"done", "refused"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true, GraceSeconds: tt.grace}, rotating)
			k, other := w.keeper(), w.keeper()
			ref := w.grant(k)
			w.expire(ref, k, other)
			answer, rotated := make(chan struct{}), make(chan struct{})
			w.server.Fail(authserver.Fault{Wait: answer, After: true})
			w.server.Watch(func(stage string) {
				if stage == "rotated" {
					w.server.Watch(nil)
					close(rotated)
				}
			})
			late := make(chan error)
			go func() {
				_, err := k.Token(t.Context(), ref)
				late <- err
			}()
			receive(t, rotated)
			w.change(`UPDATE credentials.grants SET lease_until = now()`) // as if it had been stopped
			_, err := other.Token(t.Context(), ref)
			if (err == nil) != (tt.grace > 0) {
				t.Errorf("Token() of the one who took over = %v", err)
			}
			close(answer)
			if err := receive(t, late); err != nil {
				t.Errorf("Token() of the late one = %v", err)
			}
			other.Forget(ref)
			if got := w.token(other, ref); got.Version != tt.version {
				t.Errorf("Token() has version %d, want %d", got.Version, tt.version)
			}
			w.attempts(ref, tt.outcomes...)
			if n := strings.Count(w.log.String(), "access token renewed"); n != 1 {
				t.Errorf("the log says %d times that a token was renewed, want once, of the one that was stored:\n%s", n, w.log)
			}
		})
	}
}

// TestSlowServer has the lease extended for as long as the server takes.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	short := func(c *oauth.Config) { c.Lease = 1500 * time.Millisecond }
	k, other := w.keeper(short), w.keeper(short)
	ref := w.grant(k)
	w.expire(ref, k, other)
	answer, arrived := make(chan struct{}), make(chan struct{}, 2)
	w.server.Fail(authserver.Fault{Wait: answer})
	w.server.Watch(func(stage string) {
		if stage == "arrived" {
			arrived <- struct{}{}
		}
	})
	done := make(chan error, 2)
	for _, k := range []*oauth.Keeper{k, other} {
		go func() {
			_, err := k.Token(t.Context(), ref)
			done <- err
		}()
	}
	receive(t, arrived)
	// Three times the lease is extended, by the database's own clock.
	lease := func() string { return w.rows(`SELECT lease_until::text FROM credentials.grants`)[0] }
	for range 3 {
		before := lease()
		eventually(t, "the lease is extended", func() bool { return lease() != before })
	}
	close(answer)
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("Token() = %v", err)
		}
	}
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
}

// TestManyAtOnce: the server answers after all renewals have arrived, of which none holds one of
// the eight database connections while it waits.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k := w.keeper()
	const accounts = 100
	var refs []oauth.Ref
	var faults []authserver.Fault
	answer := make(chan struct{})
	for range accounts {
		refs = append(refs, w.grant(k))
		faults = append(faults, authserver.Fault{Wait: answer})
	}
	w.change(`UPDATE credentials.grants SET expires_at = now(), refresh_at = now()`)
	w.server.Fail(faults...)
	var asked atomic.Int64
	w.server.Watch(func(stage string) {
		if stage == "arrived" && asked.Add(1) == accounts {
			close(answer)
		}
	})
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() {
			if got, err := k.Token(t.Context(), ref); err != nil || got.Version != 2 {
				t.Errorf("Token() = version %d, %v, want 2", got.Version, err)
			}
		})
	}
	wg.Wait()
	w.calls(authserver.Calls{Refresh: accounts, Refreshed: accounts})
}

// TestStoppedBeforeSending has an instance find that its lease is old when it is about
// to send: another may have taken over, and nothing is sent.
func TestStoppedBeforeSending(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper(func(c *oauth.Config) { c.Lease = 2 })
	ref := w.grant(k)
	w.expire(ref, k)
	_, err := k.Token(t.Context(), ref)
	wantFault(t, "Token()", err, fault.Unavailable, "")
	w.calls(authserver.Calls{})
}

// TestOthersDuringARenewal: if a refresh ends the former access token, that token is not returned
// during a renewal; otherwise it is.
func TestOthersDuringARenewal(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("a refresh ends the former token: %v", ends), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true, EndsAccess: ends}, fmt.Sprintf("tokens: {rotate: true, refresh_ends_access: %v}", ends))
			k, other := w.keeper(), w.keeper()
			ref := w.grant(k)
			w.change(`UPDATE credentials.grants SET refresh_at = now()`) // and good for an hour
			answer, arrived := make(chan struct{}), make(chan struct{})
			w.server.Fail(authserver.Fault{Wait: answer})
			w.server.Watch(func(stage string) {
				if stage == "arrived" {
					close(arrived)
				}
			})
			first := make(chan error)
			go func() { first <- k.Refresh(t.Context(), w.who, ref) }()
			receive(t, arrived)
			version := make(chan int64)
			go func() {
				got, err := other.Token(t.Context(), ref)
				if err != nil {
					t.Errorf("Token() = %v", err)
				}
				version <- got.Version
			}()
			want := int64(1)
			if ends {
				close(answer)
				want = 2
			}
			if got := <-version; got != want {
				t.Errorf("Token() has version %d, want %d", got, want)
			}
			if !ends {
				close(answer)
			}
			if err := <-first; err != nil {
				t.Errorf("Refresh() = %v", err)
			}
		})
	}
}

// TestRemovedDuringRenewal: the token of an account that is removed while it is being renewed is
// not used any more, although it is good for an hour, and the removal is no error.
func TestRemovedDuringRenewal(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]authserver.Fault{"new tokens": {}, "a failure": {Status: 503}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
			k := w.keeper()
			ref := w.grant(k)
			w.makeDue()
			release, arrived := make(chan struct{}), make(chan struct{})
			answer.Wait = release
			w.server.Fail(answer)
			w.server.Watch(func(stage string) {
				if stage == "arrived" {
					close(arrived)
				}
			})
			got := make(chan error)
			go func() { _, err := k.Token(t.Context(), ref); got <- err }()
			receive(t, arrived)
			w.change(`DELETE FROM credentials.accounts WHERE id = $1`, ref.Account)
			close(release)
			wantFault(t, "Token()", <-got, fault.NotFound, "ACCOUNT_NO_GRANT")
			if strings.Contains(w.log.String(), "level=ERROR") {
				t.Errorf("an error is logged: %s", w.log)
			}
		})
	}
}

// An instance that could not search for changes for long sends no cached token of an account that
// was signed out, or signed in to again, meanwhile.
func TestMissedChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	first, second := w.keeper(), w.keeper()
	ref := w.grant(second)
	w.token(first, ref)
	if _, err := second.Revoke(t.Context(), w.who, ref); err != nil {
		t.Fatal(err)
	}
	w.change(`UPDATE credentials.grants SET changed_at = now() - interval '40 seconds'`)
	if err := first.DropChanged(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Token(t.Context(), ref); err != nil {
		t.Fatalf("Token = %v before the look that was late: the test shows nothing", err)
	}
	if err := first.DropChanged(t.Context(), 35*time.Second); err != nil {
		t.Fatal(err)
	}
	_, err := first.Token(t.Context(), ref)
	wantFault(t, "Token after a sign-out that no look saw", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")
}
