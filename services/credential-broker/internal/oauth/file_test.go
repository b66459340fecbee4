package oauth_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/simulator/authserver"
)

// inFile is the name of the test that runs others without a database: below it a world
// is a file.
const inFile = "TestInFile"

// TestInFile runs the tests that are not about the tables with a file.
func TestInFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){ //nolint:paralleltest // each of them says so itself
		"OneRefreshForAll": TestOneRefreshForAll, "WaitersLeave": TestWaitersLeave, "Rejected": TestRejected,
		"OthersChangesAreFollowed": TestOthersChangesAreFollowed, "WithoutRefreshToken": TestWithoutRefreshToken,
		"ImportedWithRefreshTokenOnly": TestImportedWithRefreshTokenOnly, "WorkerRenewsAheadOfExpiry": TestWorkerRenewsAheadOfExpiry,
		"ClockSetRight": TestClockSetRight, "StrayLeaseIsNotTakenAtOnce": TestStrayLeaseIsNotTakenAtOnce, "DueIsRenewedInBackground": TestDueIsRenewedInBackground, "InvalidGrantAsksForSignIn": TestInvalidGrantAsksForSignIn,
		"InvalidGrantOfAnOldToken": TestInvalidGrantOfAnOldToken, "FailureDoesNotEndGrant": TestFailureDoesNotEndGrant, "LostAnswer": TestLostAnswer,
		"StoppedBeforeSending": TestStoppedBeforeSending, "Login": TestLogin, "Loopback": TestLoopback, "LoginBelongsToActor": TestLoginBelongsToActor, "LoginsAreBounded": TestLoginsAreBounded,
		"Reauthorize": TestReauthorize, "Device": TestDevice, "Revoke": TestRevoke, "RevokeIsResumed": TestRevokeIsResumed, "RevokeWaitsForRenewal": TestRevokeWaitsForRenewal,
		"LateAnswerDuringRevoke": TestLateAnswerDuringRevoke,
		"RevokeUnsupported":      TestRevokeUnsupported, "ClientMissing": TestClientMissing,
		"LoginSurvivesFailure": TestLoginSurvivesFailure, "OneAsksForAll": TestOneAsksForAll, "DeadClaim": TestDeadClaim, "StartAgain": TestStartAgain,
		"DeviceAgainDuringPoll": TestDeviceAgainDuringPoll, "StartUnderAnothersID": TestStartUnderAnothersID,
	} {
		t.Run(name, test)
	}
}

// The token of an account that another process has removed is dropped from the cache.
func TestRemovalIsFollowedInFile(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, authserver.Settings{}, "")
	w.who.Workspace = id.Workspace{}
	k := w.keeper(func(c *oauth.Config) { c.Follow = 10 * time.Millisecond })
	ref, kept := w.grant(k), w.grant(k)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = k.Run(ctx) })
	w.token(k, ref)
	w.token(k, kept)
	w.update(func(s *accountfile.State) {
		s.Accounts = slices.DeleteFunc(s.Accounts, func(a accountfile.Account) bool { return a.ID == ref.Account })
	})
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		if _, err := k.Token(t.Context(), ref); err != nil {
			wantFault(t, "Token() after it was removed", err, fault.NotFound, "ACCOUNT_NO_GRANT")
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("the token is held still")
		}
	}
	w.token(k, kept)
}

// newWorldIn returns a world with a file.
func newWorldIn(t *testing.T, s authserver.Settings, more string) *world {
	t.Helper()
	w := prepare(t, s, more)
	w.openFile()
	return w
}

// openFile gives the world a file instead of a database.
func (w *world) openFile() {
	w.t.Helper()
	var err error
	if w.file, err = accountfile.Open(w.t.Context(), filepath.Join(w.t.TempDir(), "accounts.json"), slog.New(slog.DiscardHandler)); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.file.Close)
	w.who.Workspace = oauth.Ref{}.Workspace
}

// stored returns a store of its own for a keeper, as in a process of its own.
func (w *world) stored() *store.Store {
	w.t.Helper()
	if w.file != nil {
		log := slog.New(slog.NewTextHandler(w.log, nil))
		f, err := accountfile.Open(w.t.Context(), w.file.Path(), log)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(f.Close)
		return store.InFile(f, log)
	}
	return store.New(w.db.Open(w.t, schema()))
}

// grants changes all grants behind the keepers' backs.
func (w *world) grants(sql string, in func(g *accountfile.Grant, now time.Time)) {
	w.t.Helper()
	if w.file == nil {
		w.change(`UPDATE credentials.grants SET ` + sql)
		return
	}
	w.update(func(s *accountfile.State) {
		for i := range s.Accounts {
			in(s.Accounts[i].Grant, time.Now().UTC())
		}
	})
}

func (w *world) update(fn func(*accountfile.State)) {
	w.t.Helper()
	err := w.file.Update(context.WithoutCancel(w.t.Context()), func(s *accountfile.State) error { fn(s); return nil })
	if err != nil {
		w.t.Fatal(err)
	}
}

// logins changes all logins behind the keepers' backs.
func (w *world) logins(sql string, in func(l *accountfile.Login, now time.Time)) {
	w.t.Helper()
	if w.file == nil {
		w.change(`UPDATE credentials.logins SET ` + sql)
		return
	}
	w.update(func(s *accountfile.State) {
		for i := range s.Logins {
			in(&s.Logins[i], time.Now().UTC())
		}
	})
}

// age makes all tokens a minute old.
func (w *world) age() {
	w.t.Helper()
	w.grants(`issued_at = now() - interval '1 minute'`, func(g *accountfile.Grant, now time.Time) { g.IssuedAt = now.Add(-time.Minute) })
}

// makeDue makes all tokens due.
func (w *world) makeDue() {
	w.t.Helper()
	w.grants(`refresh_at = now() - interval '1 second'`, func(g *accountfile.Grant, now time.Time) { g.RefreshAt = new(now.Add(-time.Second)) })
}

// unpause ends all pauses after failures.
func (w *world) unpause() {
	w.t.Helper()
	w.grants(`retry_at = now()`, func(g *accountfile.Grant, now time.Time) { g.RetryAt = &now })
}

// noTokensInFile checks the bytes of the file.
func (w *world) noTokensInFile() {
	w.t.Helper()
	text, err := os.ReadFile(w.file.Path())
	if err != nil {
		w.t.Fatal(err)
	}
	noTokens(w.t, "the file", string(text))
}

// TestDurableBeforeUse: a rotated token is in the file before anybody gets it, and while the
// file cannot be written nobody does.
func TestDurableBeforeUse(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	old := w.token(k, ref)
	w.expire(ref, k)
	// In the way of the new file there is a folder that is not empty.
	tmp := w.file.Path() + ".tmp"
	w.server.Watch(func(stage string) {
		if stage == "answered" {
			if err := os.MkdirAll(filepath.Join(tmp, "full"), 0o700); err != nil {
				t.Error(err)
			}
		}
	})
	answered := make(chan oauth.Token)
	go func() {
		got, err := k.Token(context.WithoutCancel(t.Context()), ref)
		if err != nil {
			t.Errorf("Token() = %v", err)
		}
		answered <- got
	}()
	eventually(t, "the tokens wait to be stored", func() bool {
		select {
		case got := <-answered:
			t.Fatalf("version %d was handed out and is not stored", got.Version)
		default:
		}
		return strings.Contains(w.log.String(), "renewed tokens not stored yet")
	})
	if err := os.RemoveAll(tmp); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got.Version != old.Version+1 || !w.server.Good(got.Secret.Reveal()) {
		t.Errorf("Token() has version %d, want the next one, which is good", got.Version)
	}
	other := w.keeper() // as after a restart
	if got := w.token(other, ref); got.Version != old.Version+1 {
		t.Errorf("after a restart the version is %d, want %d", got.Version, old.Version+1)
	}
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
}

// TestAuditIsWritableFirst: nothing that is good once is sent while it cannot be recorded.
func TestAuditIsWritableFirst(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, authserver.Settings{Rotate: true, ReuseEnds: true}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Paste})
	if err != nil {
		t.Fatal(err)
	}
	answer := oauth.Answer{Code: w.authorize(login.URL)}
	device, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
	if err != nil {
		t.Fatal(err)
	}
	w.server.Decide(device.UserCode, true)
	now := func() {
		w.logins("", func(l *accountfile.Login, now time.Time) { l.PollAt = now })
		w.unpause()
	}
	now()

	// In the place of the audit there is a folder.
	audit, away := w.file.Path()+".audit", w.file.Path()+".away"
	if err := errors.Join(os.Rename(audit, away), os.Mkdir(audit, 0o700)); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"Token()":    func() error { _, err := k.Token(t.Context(), ref); return err },
		"Complete()": func() error { _, err := k.Complete(t.Context(), w.who, answer); return err },
		"Poll()":     func() error { _, err := k.Poll(t.Context(), w.who, device.ID); return err },
		"Revoke()":   func() error { _, err := k.Revoke(t.Context(), w.who, ref); return err },
	} {
		if err := do(); fault.KindOf(err) != fault.Unavailable || !strings.Contains(fault.From(err).Message, "audit "+audit+" cannot be written") {
			t.Errorf("%s = %v, want a fault Unavailable that names the audit", what, err)
		}
	}
	w.calls(authserver.Calls{Authorize: 1, Device: 1})
	if !strings.Contains(w.log.String(), "access token not renewed") {
		t.Errorf("the log does not say it: %s", w.log)
	}

	if err := errors.Join(os.Remove(audit), os.Rename(away, audit)); err != nil {
		t.Fatal(err)
	}
	now()
	w.token(k, ref)
	if _, err := k.Complete(t.Context(), w.who, answer); err != nil {
		t.Errorf("Complete() when it can be recorded = %v", err)
	}
	if got, err := k.Poll(t.Context(), w.who, device.ID); err != nil || !got.Done {
		t.Errorf("Poll() when it can be recorded = %+v, %v", got, err)
	}
}

// TestDeadProcess takes over from a process that died with an attempt open.
func TestDeadProcess(t *testing.T) {
	t.Parallel()
	w := newWorldIn(t, authserver.Settings{Rotate: true, GraceSeconds: 600}, rotating)
	k := w.keeper()
	ref := w.grant(k)
	w.expire(ref, k)
	w.update(func(s *accountfile.State) {
		s.Accounts[0].Grant.Attempt = &accountfile.Attempt{ID: uuid.New(), Kind: "refresh", Instance: "dead", StartedAt: time.Now(), LeaseUntil: time.Now().Add(300 * time.Millisecond)}
	})
	w.token(k, ref)
	w.calls(authserver.Calls{Refresh: 1, Refreshed: 1})
	if !strings.Contains(w.log.String(), "an attempt has no outcome") || !strings.Contains(w.log.String(), "instance=dead") {
		t.Errorf("the log does not tell of the attempt: %s", w.log)
	}
}
