package oauth_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/migrations"
	"signalbox.dev/services/simulator/authserver"
)

// wantAgain wants the same answer of a login that has ended; a file has none of those.
func (w *world) wantAgain(what string, want oauth.Ref, again func() (oauth.Ref, error)) {
	w.t.Helper()
	got, err := again()
	if w.file != nil {
		wantFault(w.t, what+" again", err, fault.Conflict, "LOGIN_UNKNOWN")
		return
	}
	if err != nil || got != want {
		w.t.Errorf("%s again = %v, %v, want %v", what, got, err, want)
	}
}

// ended is the code that a login has answered with, as one hears it when one asks again.
func (w *world) ended(code string) string {
	if w.file != nil {
		return "LOGIN_UNKNOWN"
	}
	return code
}

// behind puts something before the authorization server, for keepers that are made after.
func (w *world) behind(before func(http.Handler) http.Handler) {
	w.t.Helper()
	front := httptest.NewServer(before(w.server))
	w.t.Cleanup(front.Close)
	w.providers = loadProviders(w.t, front.URL, "")
}

// TestLoginSurvivesFailure: what goes wrong without a refusal can be repeated.
func TestLoginSurvivesFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Interval: 1}, "")
	var next func(http.ResponseWriter) // what goes wrong next
	w.behind(func(server http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if wrong := next; r.URL.Path == "/token" && wrong != nil {
				next = nil
				wrong(rw)
				return
			}
			server.ServeHTTP(rw, r)
		})
	})
	status := func(code int, body string) func(http.ResponseWriter) {
		return func(rw http.ResponseWriter) {
			rw.Header().Set("Retry-After", "7")
			rw.WriteHeader(code)
			_, _ = rw.Write([]byte(body))
		}
	}
	k := w.keeper()
	for name, wrong := range map[string]func(http.ResponseWriter){
		"503": status(503, "away"), "429": status(429, `{"error":"rate_limited"}`), "400 that passes": status(400, `{"error":"temporarily_unavailable"}`),
		"nothing": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
		if err != nil {
			t.Fatal(err)
		}
		answer := oauth.Answer{Code: w.authorize(login.URL)}
		next = wrong
		_, err = k.Complete(t.Context(), w.who, answer)
		wantFault(t, "Complete() after "+name, err, fault.Unavailable, "")
		if after := fault.From(err).RetryAfter; name != "nothing" && after != 7*time.Second {
			t.Errorf("after %s one is to wait %s, want what the server asks for", name, after)
		}
		if _, err := k.Complete(t.Context(), w.who, answer); err != nil {
			t.Errorf("Complete() once more after %s = %v", name, err)
		}

		device, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
		if err != nil {
			t.Fatal(err)
		}
		w.server.Decide(device.UserCode, true)
		now := func() { w.logins(`poll_at = now()`, func(l *accountfile.Login, now time.Time) { l.PollAt = now }) }
		now()
		next = wrong
		if got, err := k.Poll(t.Context(), w.who, device.ID); err != nil || got.Done || got.Wait <= 0 {
			t.Errorf("Poll() after %s = %+v, %v, want to wait", name, got, err)
		}
		w.server.Rest()
		now()
		if got, err := k.Poll(t.Context(), w.who, device.ID); err != nil || !got.Done {
			t.Errorf("Poll() once more after %s = %+v, %v", name, got, err)
		}
	}
}

// TestOneAsksForAll: of many calls that complete the same login one asks the provider, and the
// others wait for the same answer.
func TestOneAsksForAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k, other := w.keeper(), w.keeper()
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
	if err != nil {
		t.Fatal(err)
	}
	answer := oauth.Answer{Code: w.authorize(login.URL)}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[oauth.Ref]int{}
	for n := range 10 {
		by := k
		if n%2 == 1 {
			by = other
		}
		wg.Go(func() {
			ref, err := by.Complete(t.Context(), w.who, answer)
			if err != nil && w.file == nil {
				t.Errorf("Complete() = %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			made[ref]++
		})
	}
	wg.Wait()
	want := 1
	if w.file != nil {
		want = 2 // who comes when it has ended finds nothing
	}
	if len(made) > want || w.server.Calls().Exchange != 1 {
		t.Errorf("ten Complete() of one login made %v with %d requests", made, w.server.Calls().Exchange)
	}
}

// TestDeadClaim takes over a login that a dead instance has claimed.
func TestDeadClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
	if err != nil {
		t.Fatal(err)
	}
	answer := oauth.Answer{Code: w.authorize(login.URL)}
	w.logins(`poll_at = now() + interval '1 hour'`, func(l *accountfile.Login, now time.Time) { l.PollAt = now.Add(time.Hour) })
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = k.Complete(gone, w.who, answer)
	if err == nil || w.server.Calls().Exchange != 0 {
		t.Errorf("Complete() while another has the turn = %v, want to wait", err)
	}
	// Who has it may be dead: nobody waits for them to the end of their turn.
	began := time.Now()
	_, err = k.Complete(t.Context(), w.who, answer)
	if f := fault.From(err); f.Kind != fault.Unavailable || f.RetryAfter <= 0 || time.Since(began) > time.Minute {
		t.Errorf("Complete() while another has the turn = %v after %s, want to come again", err, time.Since(began))
	}
	done := make(chan error)
	go func() {
		_, err := k.Complete(t.Context(), w.who, answer)
		done <- err
	}()
	w.logins(`poll_at = now()`, func(l *accountfile.Login, now time.Time) { l.PollAt = now })
	if err := <-done; err != nil {
		t.Errorf("Complete() when the turn is over = %v", err)
	}
}

// TestClaimIsGivenBack: a login whose account could not be read can be completed at once.
func TestClaimIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	ref := w.grant(k)
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Kind: oauth.Paste, Account: ref.Account})
	if err != nil {
		t.Fatal(err)
	}
	answer := oauth.Answer{Code: w.authorize(login.URL)}
	w.change(`ALTER TABLE credentials.grants RENAME TO unreadable`)
	if _, err := k.Complete(t.Context(), w.who, answer); err == nil || fault.KindOf(err) == fault.Conflict {
		t.Errorf("Complete() while the account cannot be read = %v, want a failure", err)
	}
	w.change(`ALTER TABLE credentials.unreadable RENAME TO grants`)
	if got := w.rows(`SELECT id::text FROM credentials.logins WHERE poll_at <= now()`); len(got) != 1 {
		t.Errorf("of the logins %q can be completed, want the one", got)
	}
	if got, err := k.Complete(t.Context(), w.who, answer); err != nil || got != ref {
		t.Errorf("Complete() afterwards = %v, %v, want %v", got, err, ref)
	}
}

// TestStartAgainWhileEnding: a login that has expired and whose exchange is being committed has
// ended: it is not begun anew.
func TestStartAgainWhileEnding(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	r := oauth.LoginRequest{ID: uuid.New(), Provider: "sim", Kind: oauth.Paste}
	if _, err := k.Start(t.Context(), w.who, r); err != nil {
		t.Fatal(err)
	}
	w.change(`UPDATE credentials.logins SET expires_at = now() - interval '1 minute'`)
	admin, err := pgx.Connect(t.Context(), w.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(t.Context()))
	ending, err := admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ending.Exec(t.Context(), `UPDATE credentials.logins SET ended_at = now(), sealed = NULL, key_version = NULL`); err != nil {
		t.Fatal(err)
	}
	again := make(chan error)
	go func() { _, err := k.Start(t.Context(), w.who, r); again <- err }()
	eventually(t, "the one who waits for the login", func() bool {
		return len(w.rows(`SELECT pid::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)) > 0
	})
	if err := ending.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantFault(t, "Start() of one that has ended", <-again, fault.Conflict, "LOGIN_ENDED")
}

// TestFirstToReturn: of two logins for the same account the first to return
// succeeds, also while the other is at the provider.
func TestFirstToReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	arrived, answer := make(chan struct{}), make(chan struct{})
	var held string // the code whose exchange waits
	w.behind(func(server http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if form, _ := url.ParseQuery(string(body)); held != "" && form.Get("code") == held {
				close(arrived)
				select {
				case <-answer:
				case <-t.Context().Done():
				}
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			server.ServeHTTP(rw, r)
		})
	})
	k := w.keeper()
	ref := w.grant(k)
	other := w.who
	other.Member = id.New[id.Member]()
	begin := func(who identity.Actor) oauth.Answer {
		t.Helper()
		login, err := k.Start(t.Context(), who, oauth.LoginRequest{Kind: oauth.Paste, Account: ref.Account})
		if err != nil {
			t.Fatal(err)
		}
		return oauth.Answer{Code: w.authorize(login.URL)}
	}
	late, slow, first := begin(other), begin(other), begin(w.who)
	held, _, _ = strings.Cut(slow.Code, "#")
	ended := make(chan error)
	go func() {
		_, err := k.Complete(t.Context(), other, slow)
		ended <- err
	}()
	receive(t, arrived)
	if _, err := k.Complete(t.Context(), w.who, first); err != nil {
		t.Fatal(err)
	}
	theirs := w.token(k, ref)
	close(answer)
	wantFault(t, "Complete() of who was with the provider", receive(t, ended), fault.Conflict, "LOGIN_UNKNOWN")
	if !strings.Contains(w.log.String(), "stays valid at the provider") || w.server.Calls().Revoke > 0 {
		t.Errorf("the log does not tell of the grant that nobody has, or it was revoked: %s", w.log)
	}
	exchanged := w.server.Calls().Exchange
	_, err := k.Complete(t.Context(), other, late)
	wantFault(t, "Complete() of who comes later", err, fault.Conflict, "LOGIN_UNKNOWN")
	if w.server.Calls().Exchange != exchanged {
		t.Error("the code of who comes later was sent")
	}
	if got := w.token(k, ref); got.Version != theirs.Version {
		t.Errorf("the token is of version %d, want that of the first, %d", got.Version, theirs.Version)
	}
	if got, err := k.Complete(t.Context(), w.who, first); err != nil || got != ref {
		t.Errorf("Complete() of the first again = %v, %v", got, err)
	}
}

// TestStartAgain begins a login twice under one id.
func TestStartAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k, other := w.keeper(), w.keeper()
	for _, kind := range []oauth.Kind{oauth.Browser, oauth.Paste} {
		r := oauth.LoginRequest{ID: uuid.New(), Provider: "sim", Kind: kind, Label: "mine"}
		first, err := k.Start(t.Context(), w.who, r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := other.Start(t.Context(), w.who, r)
		if err != nil || again.ID != first.ID || again.URL != first.URL || again.Life > first.Life || again.Life < first.Life-time.Minute {
			t.Errorf("Start() again = %+v, %v, want %+v", again, err, first)
		}
		changed := r
		changed.Label = "yours"
		_, err = k.Start(t.Context(), w.who, changed)
		wantFault(t, "Start() of another one with the same id", err, fault.Conflict, "IDEMPOTENCY_KEY_REUSED")
		answer := oauth.Answer{Code: w.authorize(again.URL)}
		if _, err := k.Complete(t.Context(), w.who, answer); err != nil {
			t.Fatal(err)
		}
		if w.file != nil {
			continue
		}
		_, err = k.Start(t.Context(), w.who, r)
		wantFault(t, "Start() of one that has ended", err, fault.Conflict, "LOGIN_ENDED")
		page, _ := url.Parse(again.URL)
		for _, row := range w.rows(`SELECT row_to_json(l)::text FROM credentials.logins l`) {
			if strings.Contains(row, page.Query().Get("state")) {
				t.Error("a login's row holds the state")
			}
		}
	}
	r := oauth.LoginRequest{ID: uuid.New(), Provider: "sim", Kind: oauth.Device}
	first, err := k.Start(t.Context(), w.who, r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := k.Start(t.Context(), w.who, r)
	if err != nil || again.ID != first.ID || again.UserCode == first.UserCode {
		t.Errorf("Start() of a device again = %+v, %v, want the login with new codes", again, err)
	}
	w.server.Decide(again.UserCode, true)
	w.logins(`poll_at = now()`, func(l *accountfile.Login, now time.Time) { l.PollAt = now })
	if got, err := k.Poll(t.Context(), w.who, first.ID); err != nil || !got.Done {
		t.Errorf("Poll() = %+v, %v, want it done with the codes that came last", got, err)
	}
}

// TestDeviceAgainDuringPoll: the provider's answer about former codes is not taken for one about
// the new codes.
func TestDeviceAgainDuringPoll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Interval: 1}, "")
	arrived, answer := make(chan struct{}), make(chan struct{})
	var held atomic.Bool // whether the next poll waits
	w.behind(func(server http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" && held.CompareAndSwap(true, false) {
				arrived <- struct{}{}
				select {
				case <-answer:
				case <-t.Context().Done():
				}
			}
			server.ServeHTTP(rw, r)
		})
	})
	k, other := w.keeper(), w.keeper()
	now := func() { w.logins(`poll_at = now()`, func(l *accountfile.Login, now time.Time) { l.PollAt = now }) }
	for name, tt := range map[string]struct {
		decide func(code string)
		want   func(p oauth.Polled, err error)
	}{
		"declined": {
			func(code string) { w.server.Decide(code, false) },
			func(_ oauth.Polled, err error) { wantFault(t, "Poll()", err, fault.Conflict, "LOGIN_DECLINED") },
		},
		"pending": {
			func(string) {},
			func(p oauth.Polled, err error) {
				if err != nil || p.Done || p.Wait <= 0 {
					t.Errorf("Poll() = %+v, %v, want to wait", p, err)
				}
			},
		},
		"allowed": {
			func(code string) { w.server.Decide(code, true) },
			func(_ oauth.Polled, err error) { wantFault(t, "Poll()", err, fault.Conflict, "LOGIN_UNKNOWN") },
		},
	} {
		r := oauth.LoginRequest{ID: uuid.New(), Provider: "sim", Kind: oauth.Device}
		first, err := k.Start(t.Context(), w.who, r)
		if err != nil {
			t.Fatal(err)
		}
		tt.decide(first.UserCode)
		now()
		held.Store(true)
		polled := make(chan struct{})
		go func() {
			defer close(polled)
			tt.want(k.Poll(t.Context(), w.who, first.ID))
		}()
		receive(t, arrived)
		again, err := other.Start(t.Context(), w.who, r)
		if err != nil {
			t.Fatal(err)
		}
		now()
		answer <- struct{}{}
		receive(t, polled)
		w.server.Decide(again.UserCode, true)
		w.server.Rest()
		got, err := other.Poll(t.Context(), w.who, again.ID)
		if err != nil || !got.Done {
			t.Errorf("%s: Poll() of the codes that came last = %+v, %v, want it done", name, got, err)
			continue
		}
		w.token(other, got.Account)
	}
	if all, err := w.stored().Grants(t.Context(), w.who.Workspace); err != nil || len(all) != 3 {
		t.Errorf("there are %d accounts, %v, want one of each login", len(all), err)
	}
}

// TestStartUnderAnothersID neither shows nor ends the login of another member, nor of
// another workspace.
func TestStartUnderAnothersID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	other := w.who
	other.Member = id.New[id.Member]()
	for _, kind := range []oauth.Kind{oauth.Browser, oauth.Paste, oauth.Device} {
		r := oauth.LoginRequest{ID: uuid.New(), Provider: "sim", Kind: kind}
		mine, err := k.Start(t.Context(), w.who, r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = k.Start(t.Context(), other, r)
		wantFault(t, "Start() under the id of another member's", err, fault.Conflict, "IDEMPOTENCY_KEY_REUSED")
		if w.file == nil {
			elsewhere := w.who
			elsewhere.Workspace = id.New[id.Workspace]()
			if theirs, err := k.Start(t.Context(), elsewhere, r); err != nil || theirs.URL == mine.URL && kind != oauth.Device {
				t.Errorf("Start() under the same id elsewhere = %+v, %v, want one of their own", theirs, err)
			}
		}
		if kind != oauth.Device {
			if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: w.authorize(mine.URL)}); err != nil {
				t.Errorf("Complete() of one's own = %v", err)
			}
			continue
		}
		w.server.Decide(mine.UserCode, true)
		w.logins(`poll_at = now()`, func(l *accountfile.Login, now time.Time) { l.PollAt = now })
		_, err = k.Poll(t.Context(), w.who, uuid.Nil)
		wantFault(t, "Poll() of no login", err, fault.Conflict, "LOGIN_UNKNOWN")
		if got, err := k.Poll(t.Context(), w.who, mine.ID); err != nil || !got.Done {
			t.Errorf("Poll() of one's own = %+v, %v, want it done", got, err)
		}
	}
}

// TestEndedLogins: an ended login holds no secret, is removed with its account, and after a while.
func TestEndedLogins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	complete := func() (oauth.Ref, oauth.Answer) {
		t.Helper()
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
		if err != nil {
			t.Fatal(err)
		}
		answer := oauth.Answer{Code: w.authorize(login.URL)}
		ref, err := k.Complete(t.Context(), w.who, answer)
		if err != nil {
			t.Fatal(err)
		}
		return ref, answer
	}
	ref, answer := complete()
	if got := w.rows(`SELECT num_nonnulls(sealed, key_version)::text FROM credentials.logins`); len(got) != 1 || got[0] != "0" {
		t.Errorf("of an ended login there is %q", got)
	}
	w.change(`UPDATE credentials.logins SET expires_at = now() - interval '1 minute'`)
	w.wantAgain("Complete()", ref, func() (oauth.Ref, error) { return k.Complete(t.Context(), w.who, answer) })
	w.change(`DELETE FROM credentials.accounts WHERE id = $1`, ref.Account)
	_, err := k.Complete(t.Context(), w.who, answer)
	wantFault(t, "Complete() when the account was removed", err, fault.Conflict, "LOGIN_UNKNOWN")

	w.change(`UPDATE credentials.logins SET expires_at = now() - interval '1 hour'`)
	ref, answer = complete()
	if got := w.rows(`SELECT id::text FROM credentials.logins`); len(got) != 1 {
		t.Errorf("there are %d logins, want the last one", len(got))
	}

	// Who signs in all the time is told of the last ones.
	for range 30 {
		w.wantAgain("Complete()", ref, func() (oauth.Ref, error) { return k.Complete(t.Context(), w.who, answer) })
		ref, answer = complete()
	}
	if got := len(w.rows(`SELECT id::text FROM credentials.logins`)); got > 25 {
		t.Errorf("there are %d logins, want some of the last ones", got)
	}
}

// TestLoginsMigrationDown goes back and forth once, with rows of both kinds.
func TestLoginsMigrationDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	start := func() oauth.Login {
		t.Helper()
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
		if err != nil {
			t.Fatal(err)
		}
		return login
	}
	start()
	if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: w.authorize(start().URL)}); err != nil {
		t.Fatal(err)
	}
	text, err := migrations.FS.ReadFile("00008_logins.sql")
	if err != nil {
		t.Fatal(err)
	}
	up, down, ok := strings.Cut(string(text), "-- +goose Down")
	if !ok {
		t.Fatal("there is no way down")
	}
	w.change("SET search_path = credentials; " + down)
	w.change("SET search_path = credentials; " + up)
	start()
}

// TestLoginOfPreviousVersion completes one whose row has no purpose.
func TestLoginOfPreviousVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	for _, purpose := range []oauth.Purpose{oauth.ForAccount, oauth.ForConnection} {
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
		if err != nil {
			t.Fatal(err)
		}
		w.change(`UPDATE credentials.logins SET purpose = '' WHERE ended_at IS NULL`)
		if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: w.authorize(login.URL), Purpose: purpose}); err != nil {
			t.Errorf("Complete() for %s = %v", purpose, err)
		}
	}
	if got := w.rows(`SELECT provider FROM credentials.connections`); len(got) != 1 {
		t.Errorf("there are the connections %q, want one", got)
	}
}
