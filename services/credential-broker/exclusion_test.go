package credentialbroker_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/oauth"
)

// skipped waits until the command line reports an account as passed over, or as not.
func (b *broker) skipped(a *admin.Accounts, account string, want bool) []admin.Cooldown {
	b.t.Helper()
	parsed, err := id.Parse[id.Account](account)
	if err != nil {
		b.t.Fatal(err)
	}
	var found admin.Account
	b.eventually(fmt.Sprintf("status has cooldowns: %v", want), func() bool {
		if found, err = a.Find(b.t.Context(), parsed); err != nil {
			b.t.Fatal(err)
		}
		return len(found.Cooldowns) > 0 == want
	})
	return found.Cooldowns
}

// An account whose base URL cannot be reached is passed over after one failure, which no
// caller sees, and status says so until the account is reset.
func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	asked := make(chan struct{}, 100)
	live := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		fmt.Fprint(w, `{}`)
	}))
	t.Cleanup(live.Close)
	gone := httptest.NewServer(nil)
	gone.Close()
	add := func(base string) string {
		res, err := b.client().AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "house", Profile: "generic", BaseUrl: base, Secret: canary})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetAccount().GetId()
	}
	first, second := add(gone.URL), add(gone.URL)
	add(live.URL)
	for n := range 6 {
		if status, body, err := b.ask(owner, "/egress/house/thing"); status != http.StatusOK || err != nil {
			t.Errorf("request %d: %d %s, %v, want the answer of the server that is there", n, status, body, err)
		}
	}
	if len(asked) != 6 {
		t.Errorf("the server that is there was asked %d times, want 6", len(asked))
	}
	a := b.operator(nil)
	for _, account := range []string{first, second} {
		c := b.skipped(a, account, true)
		if len(c) != 1 || !c[0].PassedOver || c[0].Reason != "UNREACHABLE" || c[0].Until.Before(time.Now()) {
			t.Errorf("status says %+v, want that the account is passed over, and until when", c)
		}
	}
	if _, err := b.client().ResetAccount(ctx, &credentialv1.ResetAccountRequest{Id: first}); err != nil {
		t.Fatal(err)
	}
	b.skipped(a, first, false)
}

// A limit for one model shows in status with its end, and reset clears it.
func TestRefusedModelShows(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	first := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Api-Key") == "first-key" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"type":"error","error":{"type":"permission_error","message":"not this model"}}`)
			return
		}
		fmt.Fprint(w, `{}`)
	}))
	t.Cleanup(srv.Close)
	for _, key := range []string{"first-key", "second-key"} {
		res, err := b.client().AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "anthropic", BaseUrl: srv.URL, Secret: key})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = res.GetAccount().GetId()
		}
	}
	if status, body, err := b.askWith(subject.AgentRunner, owner, messages, `{"model":"claude-x"}`); status != http.StatusOK || err != nil {
		t.Fatalf("%d %s, %v, want the second account's answer", status, body, err)
	}
	a := b.operator(nil)
	c := b.skipped(a, first, true)
	if len(c) != 1 || c[0].Family != "claude-x" || !c[0].PassedOver || c[0].Reason != "PERMISSION_DENIED" || c[0].HTTPStatus != 403 || time.Until(c[0].Until) > 10*time.Minute {
		t.Errorf("status says %+v, want that requests for the model pass the account over", c)
	}
	list, err := b.client().ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(list.GetAccounts()) != 2 || !list.GetAccounts()[0].GetCooldowns()[0].GetPassedOver() || list.GetAccounts()[0].GetStatus() != credentialv1.AccountStatus_ACCOUNT_STATUS_READY {
		t.Errorf("ListAccounts = %v, %v, want that the first one is ready, and passed over", list, err)
	}
	if _, err := b.client().ResetAccount(ctx, &credentialv1.ResetAccountRequest{Id: first}); err != nil {
		t.Fatal(err)
	}
	b.skipped(a, first, false)
}

// An account that needs a sign-in loses no health, and is used at once after the sign-in, even
// through another instance.
func TestSignedInAgainIsUsed(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ref := s.add(owner)
	s.wantAnswer("at first", owner, http.StatusOK)
	s.exec(`UPDATE credentials.grants SET state = 'reauthorize', changed_at = clock_timestamp(), reason = 'x', refresh_sealed = NULL, refresh_key_version = NULL`)
	s.eventually("the account waits for a sign-in", func() bool {
		status, _, err := s.ask(owner, "/egress/sim/thing")
		return status == http.StatusConflict && err == nil
	})
	for range 5 {
		s.wantAnswer("waiting for a sign-in", owner, http.StatusConflict)
	}
	found, err := s.operator(nil).Find(t.Context(), ref.Account)
	if err != nil || found.Health != 100 {
		t.Errorf("the account has health %v, %v, want all of it: nothing was sent", found.Health, err)
	}
	// An earlier limit, as after a 401.
	s.exec(`INSERT INTO credentials.account_limits (workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw)
		VALUES ($1, 'sim', $2, '', now(), now() + interval '1 hour', now() + interval '1 hour', 1, 'QUOTA_EXHAUSTED', 403, '')`, ref.Workspace, ref.Account)
	s.eventually("the account is parked", func() bool {
		status, _, err := s.ask(owner, "/egress/sim/thing")
		return status == http.StatusTooManyRequests && err == nil
	})
	s.signInAgain(owner, ref)
	s.eventually("the account is used", func() bool {
		status, _, err := s.ask(owner, "/egress/sim/thing")
		return status == http.StatusOK && err == nil
	})
}

func (b *broker) eventually(what string, is func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("never: %s", what)
		}
	}
}

// signInAgain signs in again for an account at another instance, which does not notify this one.
func (s *signedIn) signInAgain(a identity.Actor, ref oauth.Ref) {
	s.t.Helper()
	who := identity.Actor{Workspace: a.Workspace, Member: a.Member, Service: "gateway"}
	l, err := s.other.Start(s.t.Context(), who, oauth.LoginRequest{Kind: oauth.Browser, Account: ref.Account})
	if err != nil {
		s.t.Fatal(err)
	}
	u, err := url.Parse(l.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	_, code := (&connector{broker: s.broker}).consent(s.t.Context(), l.URL)
	if _, err := s.other.Complete(s.t.Context(), who, oauth.Answer{State: u.Query().Get("state"), Code: code}); err != nil {
		s.t.Fatal(err)
	}
}
