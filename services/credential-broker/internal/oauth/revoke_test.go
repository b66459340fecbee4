package oauth_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/simulator/authserver"
)

// A provider that does not answer delays a sign-out no longer than the limit, and the account is
// signed out all the same.
func TestRevokeWithin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server notices when the caller goes
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	k := w.keeper(func(c *oauth.Config) {
		c.Providers = loadProviders(t, silent.URL, rotating)
	})
	ref := w.grant(k)
	r, err := k.RevokeWithin(t.Context(), w.who, ref, 2*time.Second)
	if err != nil || r.AtProvider || !strings.Contains(r.Why, "did not answer") {
		t.Errorf("RevokeWithin = %+v, %v, want that the provider did not answer", r, err)
	}
	if s := w.status(ref); s.State != oauth.Revoked || s.Refresh != nil {
		t.Errorf("the grant is %+v, want it revoked", s)
	}
}

// An account that is removed while the provider is told was signed out.
func TestRemovedDuringRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		w.change(`DELETE FROM credentials.accounts`) //nolint:contextcheck // the test's, not the request's
	}))
	t.Cleanup(provider.Close)
	k := w.keeper(func(c *oauth.Config) { c.Providers = loadProviders(t, provider.URL, rotating) })
	if r, err := k.Revoke(t.Context(), w.who, w.grant(k)); err != nil || !r.AtProvider {
		t.Errorf("Revoke() = %+v, %v, want it revoked at the provider", r, err)
	}
}

// A sign-out whose process died is completed by another one: the provider is told, and the tokens
// are erased.
func TestRevokeIsResumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true}, rotating)
	k := w.keeper(fast)
	ref := w.grant(k)
	token := w.token(k, ref)
	w.grants(`state = 'revoking'`, func(g *accountfile.Grant, _ time.Time) { g.State = oauth.Revoking })

	// Who cannot open the tokens leaves it to somebody who can.
	ours := w.keyFile
	w.keyFile += "-other"
	strange := w.keeper(fast)
	w.keyFile = ours
	stopped, stop := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() { gaveUp <- strange.Run(stopped) }()
	eventually(t, "a try without the key", func() bool { return strings.Contains(w.log.String(), "cannot complete an unfinished sign-out") })
	stop()
	if err := <-gaveUp; err != nil {
		t.Errorf("Run() without the key = %v", err)
	}
	if s := w.status(ref); s.State != oauth.Revoking {
		t.Fatalf("after a try without the key the grant is %+v, want it as it was", s)
	}

	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- k.Run(ctx) }()
	eventually(t, "the end of the sign-out", func() bool { return w.status(ref).State == oauth.Revoked })
	cancel()
	if err := <-over; err != nil {
		t.Errorf("Run() = %v", err)
	}
	if w.server.Good(token.Secret.Reveal()) {
		t.Error("the provider takes the token still")
	}
	w.calls(authserver.Calls{Revoke: 1})
	if s := w.status(ref); s.Refresh != nil {
		t.Errorf("the grant is %+v, want its tokens erased", s)
	}
}

// An answer that comes late, while somebody else signs the account out, is stored before
// that or not at all: after a sign-out has returned the account stays signed out.
func TestLateAnswerDuringRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, GraceSeconds: 600}, rotating)
	k := w.keeper()
	for round := range 5 {
		ref := w.grant(k)
		answer, late := w.lateAnswer(k, ref)
		other := w.keeper()
		signedOut := make(chan error)
		go func() { _, err := other.Revoke(t.Context(), w.who, ref); signedOut <- err }()
		close(answer)
		<-late
		if err := <-signedOut; err != nil {
			t.Fatalf("Revoke() = %v", err)
		}
		if s := w.status(ref); s.State != oauth.Revoked {
			t.Fatalf("round %d: the grant is %+v after the sign-out, want it revoked", round, s)
		}
	}
}

// The same, with the answer at the very moment when the sign-out is written.
func TestLateAnswerWithTheMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{Rotate: true, GraceSeconds: 600}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	answer, late := w.lateAnswer(k, ref)
	// An instance that is about to write that the account is being signed out waits for the gate.
	w.change(`CREATE FUNCTION credentials.gate() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`)
	w.change(`CREATE TRIGGER gate BEFORE UPDATE ON credentials.grants FOR EACH ROW WHEN (NEW.state = 'revoking' AND OLD.state <> 'revoking') EXECUTE FUNCTION credentials.gate()`)
	gate, err := pgx.Connect(t.Context(), w.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close(context.WithoutCancel(t.Context()))
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	other := w.keeper()
	signedOut := make(chan error)
	go func() { _, err := other.Revoke(t.Context(), w.who, ref); signedOut <- err }()
	waiting := func(n int) bool {
		return len(w.rows(`SELECT pid::text FROM pg_locks l JOIN pg_database d ON d.oid = l.database OR l.database IS NULL
			WHERE NOT granted AND d.datname = current_database()`)) >= n
	}
	eventually(t, "the sign-out at the gate", func() bool { return waiting(1) })
	close(answer)
	stored := false
	eventually(t, "the answer stored, or waiting for the sign-out", func() bool {
		select {
		case <-late:
			stored = true
		default:
		}
		return stored || waiting(2)
	})
	if _, err := gate.Exec(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	if err := <-signedOut; err != nil {
		t.Errorf("Revoke() = %v", err)
	}
	if !stored {
		<-late
	}
	if s := w.status(ref); s.State != oauth.Revoked {
		t.Errorf("the grant is %+v after the sign-out, want it revoked", s)
	}
	if _, err := other.Token(t.Context(), ref); err == nil {
		t.Error("Token() after the sign-out = a token")
	}
	w.attempts(ref, "superseded", "done")
	if diff := cmp.Diff([]string{"created sim by us: imported", "changed sim by us: signed out", "changed sim by us: revoked at the provider"}, w.events()); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// lateAnswer starts a renewal whose lease ends before its answer, which comes when answer is
// closed; late is closed when the renewal has returned.
func (w *world) lateAnswer(k *oauth.Keeper, ref oauth.Ref) (answer chan struct{}, late <-chan struct{}) {
	w.t.Helper()
	w.expire(ref, k)
	answer = make(chan struct{})
	rotated, done := make(chan struct{}), make(chan struct{})
	w.server.Fail(authserver.Fault{Wait: answer, After: true})
	w.server.Watch(func(stage string) {
		if stage == "rotated" {
			w.server.Watch(nil)
			close(rotated)
		}
	})
	go func() {
		defer close(done)
		_, _ = k.Token(w.t.Context(), ref) // a token, or that it was signed out
	}()
	receive(w.t, rotated)
	w.grants(`lease_until = now()`, func(g *accountfile.Grant, now time.Time) {
		if g.Attempt != nil {
			g.Attempt.LeaseUntil = now
		}
	})
	return answer, done
}

// receive waits a minute for what comes from c.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("not reached")
	}
}

// eventually waits for what another process or the database does.
func eventually(t *testing.T, what string, there func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !there(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
