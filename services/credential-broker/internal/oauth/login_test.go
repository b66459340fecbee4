package oauth_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/simulator/authserver"
)

// authorize does what the person does in a browser and returns what the provider
// shows or sends: code#state.
func (w *world) authorize(page string) string {
	w.t.Helper()
	back := w.sentBack(page)
	return back.Query().Get("code") + "#" + back.Query().Get("state")
}

// sentBack does the same and returns where the provider sends the browser.
func (w *world) sentBack(page string) *url.URL {
	w.t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, page, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	back, err := res.Location()
	if err != nil {
		text, _ := io.ReadAll(res.Body)
		w.t.Fatalf("the browser was not sent back: %s %s", res.Status, text)
	}
	return back
}

func TestLogin(t *testing.T) {
	t.Parallel()
	for _, kind := range []oauth.Kind{oauth.Browser, oauth.Paste} {
		for _, encoding := range []string{"form", "json"} {
			t.Run(string(kind)+" "+encoding, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, authserver.Settings{Rotate: true}, rotating+"\nrequest: {state: true, encoding: "+encoding+", authorize: {prompt: consent}}")
				k := w.keeper()
				login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: kind, Label: "mine"})
				if err != nil {
					t.Fatal(err)
				}
				u, err := url.Parse(login.URL)
				if err != nil || u.Query().Get("scope") != "read write" || u.Query().Get("prompt") != "consent" || u.Query().Get("code_challenge_method") != "S256" {
					t.Errorf("Start() = %s, want scope, parameters and a challenge", login.URL)
				}
				pasted := w.authorize(login.URL)
				answer := oauth.Answer{Code: " " + pasted + "\n"}
				if kind == oauth.Browser {
					answer.Code, answer.State, _ = strings.Cut(pasted, "#")
				}
				ref, err := k.Complete(t.Context(), w.who, answer)
				if err != nil {
					t.Fatal(err)
				}
				w.token(k, ref)
				if err := k.Refresh(t.Context(), w.who, ref); err != nil {
					t.Fatal(err)
				}
				if got := w.token(k, ref); got.Version != 2 {
					t.Errorf("after Refresh the version is %d, want 2", got.Version)
				}
				if w.file == nil {
					if got := w.rows(`SELECT provider || ' ' || profile || ' ' || label FROM credentials.accounts`); got[0] != "sim generic mine" {
						t.Errorf("the account is %q", got)
					}
				}
				w.wantAgain("Complete()", ref, func() (oauth.Ref, error) { return k.Complete(t.Context(), w.who, answer) })
				if got := w.server.Calls().Exchange; got != 1 {
					t.Errorf("the provider was asked %d times for one login", got)
				}
				noTokens(t, "the log", w.log.String())
				if w.file != nil {
					w.noTokensInFile()
					return
				}
				for _, table := range []string{"accounts", "grants", "grant_attempts", "logins", "audit"} {
					for _, row := range w.rows(`SELECT row_to_json(t)::text FROM credentials.` + table + ` t`) {
						noTokens(t, "table "+table, row)
					}
				}
			})
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	if err := k.Refresh(t.Context(), w.who, ref); err != nil {
		t.Fatal(err)
	}
	w.expire(ref, k)
	w.token(k, ref)
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Kind: oauth.Paste, Account: ref.Account})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: w.authorize(login.URL)}); err != nil {
		t.Fatal(err)
	}
	w.server.End(w.token(k, ref).Secret.Reveal())
	if err := k.Refresh(t.Context(), w.who, ref); err == nil {
		t.Error("Refresh() of a grant that was withdrawn worked")
	}
	if _, err := k.Revoke(t.Context(), w.who, ref); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"created sim by us: imported", "refreshed sim by us", "refreshed sim by credential-broker test", "changed sim by us: signed in again",
		"changed sim by credential-broker: somebody must sign in again: sim no longer accepts the sign-in: it was revoked or has expired",
		"changed sim by us: signed out", "changed sim by us: revoked at the provider",
	}
	if diff := cmp.Diff(want, w.events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestLoginBelongsToActor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	start := func() (oauth.Login, string) {
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
		if err != nil {
			t.Fatal(err)
		}
		return login, w.authorize(login.URL)
	}
	login, pasted := start()
	code, state, _ := strings.Cut(pasted, "#")
	other, elsewhere := w.who, w.who
	other.Member, elsewhere.Workspace = id.New[id.Member](), id.New[id.Workspace]()
	for _, tt := range []struct {
		name   string
		who    identity.Actor
		answer oauth.Answer
		kind   fault.Kind
		code   string
	}{
		{"another member", other, oauth.Answer{Code: pasted}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"another workspace", elsewhere, oauth.Answer{Code: pasted}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"another state", w.who, oauth.Answer{Code: code, State: state + "x"}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"two states", w.who, oauth.Answer{Code: pasted, State: "x"}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"another login", w.who, oauth.Answer{Code: pasted, Login: uuid.New()}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"another provider", w.who, oauth.Answer{Code: pasted, Provider: "other"}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"another purpose", w.who, oauth.Answer{Code: pasted, Purpose: oauth.ForConnection}, fault.Conflict, "LOGIN_UNKNOWN"},
		{"no state", w.who, oauth.Answer{Code: code}, fault.Invalid, ""},
		{"nothing", w.who, oauth.Answer{Code: " "}, fault.Invalid, ""},
		{"a novel", w.who, oauth.Answer{Code: strings.Repeat("x", 10_000)}, fault.Invalid, ""},
	} {
		_, err := k.Complete(t.Context(), tt.who, tt.answer)
		wantFault(t, "Complete() with "+tt.name, err, tt.kind, tt.code)
	}
	// None of these has used it up.
	if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Login: login.ID, Code: code}); err != nil {
		t.Errorf("Complete() by the login's id = %v", err)
	}

	_, pasted = start()
	w.logins(`expires_at = now()`, func(l *accountfile.Login, now time.Time) { l.ExpiresAt = now })
	_, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: pasted})
	wantFault(t, "Complete() of an expired login", err, fault.Conflict, "LOGIN_UNKNOWN")

	_, pasted = start()
	_, state, _ = strings.Cut(pasted, "#")
	_, err = k.Complete(t.Context(), w.who, oauth.Answer{State: state, Error: "access_denied"})
	wantFault(t, "Complete() of a declined login", err, fault.Conflict, "LOGIN_DECLINED")
	_, err = k.Complete(t.Context(), w.who, oauth.Answer{Code: pasted})
	wantFault(t, "Complete() after that", err, fault.Conflict, w.ended("LOGIN_DECLINED"))
	_, pasted = start()
	_, state, _ = strings.Cut(pasted, "#")
	_, err = k.Complete(t.Context(), w.who, oauth.Answer{State: state, Code: "code-made-up"})
	wantFault(t, "Complete() with a code that is made up", err, fault.Conflict, "LOGIN_FAILED")
	noTokens(t, "the error", err.Error())
	_, err = k.Complete(t.Context(), w.who, oauth.Answer{Code: pasted})
	wantFault(t, "Complete() with the right code after that", err, fault.Conflict, w.ended("LOGIN_FAILED"))
}

func TestLoginsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	request := oauth.LoginRequest{ID: uuid.New(), Provider: "sim", Kind: oauth.Browser}
	fill := func(who identity.Actor) (n int, last oauth.Login, err error) {
		for n = 0; n <= 100; n++ {
			next, e := k.Start(t.Context(), who, request)
			if e != nil {
				return n, last, e
			}
			last, request.ID = next, uuid.New()
		}
		return n, last, nil
	}
	n, last, err := fill(w.who)
	wantFault(t, "Start() of very many", err, fault.Limited, "")
	if wait := fault.From(err).RetryAfter; n < 2 || n > 20 || wait <= 14*time.Minute || wait > last.Life {
		t.Errorf("after %d logins one waits %s, want until the first expires", n, wait)
	}
	if w.file != nil {
		return // there are no others
	}
	other := w.who
	other.Member = id.New[id.Member]()
	if _, err := k.Start(t.Context(), other, request); err != nil {
		t.Errorf("Start() of another member = %v", err)
	}
	request.ID = last.ID
	if _, err := k.Start(t.Context(), w.who, request); err != nil {
		t.Errorf("Start() of one that has begun = %v", err)
	}
	if _, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: w.authorize(last.URL)}); err != nil {
		t.Fatal(err)
	}
	request.ID = uuid.Nil
	if _, err := k.Start(t.Context(), w.who, request); err != nil {
		t.Errorf("Start() when one is completed = %v", err)
	}

	// All at once are not more.
	crowd := w.who
	crowd.Member = id.New[id.Member]()
	var wg sync.WaitGroup
	var begun atomic.Int32
	come := make(chan struct{})
	for range 3 {
		instance := w.keeper()
		for range n {
			wg.Go(func() {
				<-come
				if _, err := instance.Start(t.Context(), crowd, request); err == nil {
					begun.Add(1)
				}
			})
		}
	}
	close(come)
	wg.Wait()
	if got := int(begun.Load()); got != n {
		t.Errorf("%d logins have begun at once, want %d", got, n)
	}
}

func TestReauthorize(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.server.End(w.token(k, ref).Secret.Reveal())
	w.expire(ref, k)
	_, err := k.Token(t.Context(), ref)
	wantFault(t, "Token()", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")

	stranger := w.who
	stranger.Workspace = id.New[id.Workspace]()
	_, err = k.Start(t.Context(), stranger, oauth.LoginRequest{Kind: oauth.Paste, Account: ref.Account})
	wantFault(t, "Start() of others' account", err, fault.NotFound, "ACCOUNT_NO_GRANT")

	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Kind: oauth.Paste, Account: ref.Account})
	if err != nil {
		t.Fatal(err)
	}
	again, err := k.Complete(t.Context(), w.who, oauth.Answer{Code: w.authorize(login.URL)})
	if err != nil || again != ref {
		t.Fatalf("Complete() = %v, %v, want %v", again, err, ref)
	}
	w.token(k, ref)
	if s := w.status(ref); s.State != oauth.Active || s.Reason != "" || s.LastError != "" {
		t.Errorf("status = %+v, want %s", s, oauth.Active)
	}
}

func TestDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, Interval: 7}, rotating)
	k := w.keeper()
	start := func() oauth.Login {
		login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
		if err != nil {
			t.Fatal(err)
		}
		return login
	}
	now := func() { w.logins(`poll_at = now()`, func(l *accountfile.Login, now time.Time) { l.PollAt = now }) } // as if the interval were over
	poll := func(login oauth.Login, least, most time.Duration) {
		t.Helper()
		got, err := k.Poll(t.Context(), w.who, login.ID)
		if err != nil || got.Done || got.Wait <= least || got.Wait > most {
			t.Errorf("Poll() = %+v, %v, want to wait %s to %s", got, err, least, most)
		}
	}
	login := start()
	if login.UserCode == "" || login.URLWithCode == "" || login.Wait != 7*time.Second {
		t.Errorf("Start() = %+v, want a code, a page and 7s", login)
	}
	poll(login, 5*time.Second, 7*time.Second) // too early: the provider is not asked
	w.calls(authserver.Calls{Device: 1})
	now()
	poll(login, 6*time.Second, 7*time.Second) // pending
	now()
	poll(login, 11*time.Second, 12*time.Second) // slow_down
	w.calls(authserver.Calls{Device: 1, Poll: 2})

	other := w.who
	other.Member = id.New[id.Member]()
	_, err := k.Poll(t.Context(), other, login.ID)
	wantFault(t, "Poll() by another", err, fault.Conflict, "LOGIN_UNKNOWN")
	if !w.server.Decide(login.UserCode, true) {
		t.Fatal("nobody waits for the code")
	}
	w.server.Rest() // the server's own interval is over too
	now()
	got, err := k.Poll(t.Context(), w.who, login.ID)
	if err != nil || !got.Done {
		t.Fatalf("Poll() = %+v, %v, want it done", got, err)
	}
	w.token(k, got.Account)
	w.wantAgain("Poll()", got.Account, func() (oauth.Ref, error) {
		again, err := k.Poll(t.Context(), w.who, login.ID)
		return again.Account, err
	})

	login = start()
	w.server.Decide(login.UserCode, false)
	now()
	_, err = k.Poll(t.Context(), w.who, login.ID)
	wantFault(t, "Poll() of a declined login", err, fault.Conflict, "LOGIN_DECLINED")
	_, err = k.Poll(t.Context(), w.who, login.ID)
	wantFault(t, "Poll() of a declined login again", err, fault.Conflict, w.ended("LOGIN_DECLINED"))
	noTokens(t, "the log", w.log.String())
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	token := w.token(k, ref)
	got, err := k.Revoke(t.Context(), w.who, ref)
	if err != nil || !got.AtProvider {
		t.Errorf("Revoke() = %+v, %v, want it done at the provider", got, err)
	}
	if w.server.Good(token.Secret.Reveal()) {
		t.Error("the provider takes the token still")
	}
	_, err = k.Token(t.Context(), ref)
	wantFault(t, "Token()", err, fault.Conflict, "ACCOUNT_REAUTHORIZE")
	w.attempts(ref, "done")
	if _, err := k.Revoke(t.Context(), w.who, ref); err != nil {
		t.Errorf("Revoke() again = %v", err)
	}
	w.calls(authserver.Calls{Revoke: 1})
	if w.file != nil {
		w.grants("", func(g *accountfile.Grant, _ time.Time) {
			if g.Access != nil || g.Refresh != nil {
				t.Error("tokens are stored still")
			}
		})
	} else if got := w.rows(`SELECT num_nonnulls(access_sealed, refresh_sealed)::text FROM credentials.grants`); got[0] != "0" {
		t.Errorf("%s tokens are stored still", got[0])
	}
}

// TestRevokeWaitsForRenewal: the token that a renewal brings is the one to be revoked.
func TestRevokeWaitsForRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k, other := w.keeper(), w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	answer, arrived := make(chan struct{}), make(chan struct{})
	w.server.Fail(authserver.Fault{Wait: answer})
	w.server.Watch(func(stage string) {
		if stage == "arrived" {
			close(arrived)
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = k.Token(t.Context(), ref) }) // a token, or that it was signed out
	receive(t, arrived)
	wg.Go(func() {
		if got, err := other.Revoke(t.Context(), w.who, ref); err != nil || !got.AtProvider {
			t.Errorf("Revoke() = %+v, %v", got, err)
		}
	})
	close(answer)
	wg.Wait()
	if s := w.status(ref); s.State != oauth.Revoked || s.Version != 3 {
		t.Errorf("status = %+v, want %s, version 3: renewed, then erased", s, oauth.Revoked)
	}
	w.attempts(ref, "done", "done")
}

func TestRevokeUnsupported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	ref := w.grant(k)
	w.grants(`provider = 'gone'`, func(g *accountfile.Grant, _ time.Time) { g.Provider = "gone" })
	got, err := k.Revoke(t.Context(), w.who, ref)
	if err != nil || got.AtProvider || got.Why == "" {
		t.Errorf("Revoke() = %+v, %v, want that it is done here alone, and why", got, err)
	}
}

func TestClientMissing(t *testing.T) {
	t.Parallel()
	all, err := oauth.Load(nil, oauth.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, authserver.Settings{}, "")
	w.providers = all
	k := w.keeper()
	for _, name := range []string{"anthropic", "google", "notion", "github"} {
		_, err = k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: name, Kind: oauth.Browser})
		wantFault(t, fmt.Sprintf("Start(%s)", name), err, fault.Conflict, "OAUTH_CLIENT_MISSING")
	}
	_, err = k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "nobody", Kind: oauth.Browser})
	wantFault(t, "Start(nobody)", err, fault.Invalid, "")
}

// TestRoom: of many sign-ins for the last account that a pool has room for one succeeds. Accounts
// of other providers do not count.
func TestRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	k := w.keeper()
	w.grant(k)
	w.change(`INSERT INTO credentials.accounts (workspace_id, id, provider, profile, key_version, sealed)
		SELECT workspace_id, gen_random_uuid(), provider, profile, key_version, sealed FROM credentials.accounts, generate_series(3, 1000)`)
	w.change(`INSERT INTO credentials.accounts (workspace_id, id, provider, profile, key_version, sealed)
		SELECT workspace_id, gen_random_uuid(), 'other', profile, key_version, sealed FROM credentials.accounts`)
	var wg sync.WaitGroup
	var added atomic.Int32
	come := make(chan struct{})
	for range 8 {
		a, r := w.server.Grant()
		wg.Go(func() {
			<-come
			_, err := k.Add(t.Context(), w.who, oauth.NewGrant{Provider: "sim", Access: vault.NewSecret(a), Refresh: vault.NewSecret(r), Life: time.Hour})
			if err == nil {
				added.Add(1)
				return
			}
			wantFault(t, "Add()", err, fault.Conflict, "")
		})
	}
	close(come)
	wg.Wait()
	if n := added.Load(); n != 1 {
		t.Errorf("%d were added at once where there was room for 1", n)
	}
}
