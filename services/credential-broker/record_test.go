package credentialbroker_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/simulator/authserver"
)

// operator opens the accounts as the command line does, beside the broker.
func (b *broker) operator(change func(*admin.Config)) *admin.Accounts {
	b.t.Helper()
	cfg := admin.Config{DB: b.db, KeyFile: b.keyFile, AllowPrivate: true, Operator: "ann@desk"}
	if change != nil {
		change(&cfg)
	}
	a, err := admin.Open(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(a.Close)
	return a
}

// audit returns a workspace's rows, newest first: action, service, address.
func audit(t *testing.T, s *admin.Scope) []string {
	t.Helper()
	rows, _, err := s.Audit(t.Context(), admin.AuditQuery{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range rows {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s by %s from %s: %s", r.Action, r.Service, r.Address, r.Detail)))
	}
	return out
}

// Changes are recorded with the actor and their address.
func TestAuditSaysFromWhere(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	owner := member(identity.Owner)
	owner.Address = "2001:db8::7"
	added, err := b.client().AddAccount(identity.With(t.Context(), owner), &credentialv1.AddAccountRequest{Provider: "openai", Secret: "sk-one"})
	if err != nil {
		t.Fatal(err)
	}
	account := added.GetAccount().GetId()
	owner.Address = ""
	if _, err := b.client().DisableAccount(identity.With(t.Context(), owner), &credentialv1.DisableAccountRequest{Id: account}); err != nil {
		t.Fatal(err)
	}
	scope := b.operator(nil).Operator(owner.Workspace)
	if _, err := scope.Enable(t.Context(), id.Must[id.Account](account)); err != nil {
		t.Fatal(err)
	}
	owner.Address, owner.Key = "2001:db8::7", id.New[id.APIKey]()
	if _, err := b.client().SetFlatRate(identity.With(t.Context(), owner), &credentialv1.SetFlatRateRequest{Id: account, FlatRate: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.client().RemoveAccount(identity.With(t.Context(), owner), &credentialv1.RemoveAccountRequest{Id: account}); err != nil {
		t.Fatal(err)
	}
	got := audit(t, scope)
	if key := ", by API key " + owner.Key.String(); strings.HasSuffix(got[1], key) && strings.HasSuffix(got[0], ": "+key[2:]) {
		got = got[2:]
	} else {
		t.Errorf("%q and %q do not name the API key", got[0], got[1])
	}
	// If the gateway does not pass on the address, its own is recorded.
	if before, _, ok := strings.Cut(got[1], ":"); ok && strings.HasPrefix(got[1], "changed by gateway from 127.0.0.1:") {
		got[1] = before + ": disabled"
	}
	want := []string{"changed by cli from ann@desk: enabled", "changed by gateway from 127.0.0.1: disabled", "created by gateway from 2001:db8::7:"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

// A requested renewal is recorded as the requester's.
func TestAuditSaysWhoRenewed(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	owner.Address = "2001:db8::7"
	ref := s.add(owner)
	if _, err := s.client().RefreshAccount(identity.With(t.Context(), owner), &credentialv1.RefreshAccountRequest{Id: ref.Account.String()}); err != nil {
		t.Fatal(err)
	}
	rows, _, err := s.operator(nil).Operator(owner.Workspace).Audit(t.Context(), admin.AuditQuery{Limit: 1})
	if err != nil || len(rows) != 1 || rows[0].Action != "refreshed" || rows[0].Member != owner.Member || rows[0].Service != "gateway" || rows[0].Address != owner.Address {
		t.Errorf("the audit ends with %+v, %v, want the owner's renewal, from their address", rows, err)
	}
}

// Removing an account with a sign-in revokes it at the provider.
func TestRemoveTellsProvider(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, endpoint string
		forget         bool
		want           string
		revoked        int
	}{
		{"told", ", revoke: $FRONT/oauth/revoke", false, "revoked at the provider", 1},
		{"not to be told", ", revoke: $FRONT/oauth/revoke", true, "still valid at the provider", 0},
		{"refused", ", revoke: $FRONT/api/nobody", false, "not revoked at the provider: the authorization server answered 401 authentication_error", 0},
		{"cannot be told", "", false, "not revoked at the provider: sim offers no revocation: remove the access in the account's settings there", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := startSignedIn(t, tt.endpoint)
			owner := member(identity.Owner)
			ref := s.add(owner)
			scope := s.operator(nil).Operator(owner.Workspace)
			if tt.forget {
				if err := scope.Forget(t.Context(), ref.Account); err != nil {
					t.Fatal(err)
				}
			} else if _, err := s.client().RemoveAccount(identity.With(t.Context(), owner), &credentialv1.RemoveAccountRequest{Id: ref.Account.String()}); err != nil {
				t.Fatal(err)
			}
			if n := s.server.Calls().Revoke; n != tt.revoked {
				t.Errorf("the provider was told %d times, want %d", n, tt.revoked)
			}
			if all, err := scope.List(t.Context()); err != nil || len(all) > 0 {
				t.Errorf("List = %v, %v, want nothing", all, err)
			}
			if rows := audit(t, scope); !strings.HasPrefix(rows[0], "removed by ") || !strings.HasSuffix(rows[0], ": "+tt.want) {
				t.Errorf("the audit ends with %q, want that it was removed, and %q", rows[0], tt.want)
			}
		})
	}
}

// TestAPIKeyRemovesNoSignIn: an API key can remove keys, but no account that a person signed
// in to.
func TestAPIKeyRemovesNoSignIn(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t, ", revoke: $FRONT/oauth/revoke")
	person := member(identity.Owner)
	byKey := person
	byKey.Key = id.New[id.APIKey]()
	remove := func(a identity.Actor, account string, keep bool) error {
		_, err := s.client().RemoveAccount(identity.With(t.Context(), a), &credentialv1.RemoveAccountRequest{Id: account, KeepAtProvider: keep})
		return err
	}
	ref := s.add(person)
	for _, keep := range []bool{false, true} {
		if f := fault.From(remove(byKey, ref.Account.String(), keep)); f.Kind != fault.Forbidden || f.Code != "PERSON_NEEDED" {
			t.Errorf("RemoveAccount() by a key, keep_at_provider %t = %v, want PERSON_NEEDED", keep, f)
		}
	}
	if n := s.server.Calls().Revoke; n != 0 {
		t.Errorf("the provider was told %d times", n)
	}
	added, err := s.client().AddAccount(identity.With(t.Context(), byKey), &credentialv1.AddAccountRequest{Provider: "openai", Secret: "sk-one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := remove(byKey, added.GetAccount().GetId(), false); err != nil {
		t.Errorf("RemoveAccount() of a key by a key = %v", err)
	}
	if err := remove(person, ref.Account.String(), false); err != nil || s.server.Calls().Revoke != 1 {
		t.Errorf("RemoveAccount() by a person = %v, and the provider was told %d times", err, s.server.Calls().Revoke)
	}
}

// Concurrent imports store each account once, with everything known of it.
func TestImportAtOnce(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	path := filepath.Join(t.TempDir(), "accounts.json")
	text := fmt.Sprintf(`{"version": 1, "activeIndex": 1, "accounts": [
		{"email": "off@x", "refreshToken": "rt-one", "enabled": false, "lastUsed": 1700000000000, "rateLimitResetTimes": {"opus": %d}},
		{"email": "on@x", "refreshToken": "rt-two", "enabled": true}]}`, time.Now().Add(time.Hour).UnixMilli())
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ws := id.New[id.Workspace]()
	scope := b.operator(func(c *admin.Config) { c.OAuth.Clients = "anthropic=us" }).Operator(ws)
	var mu sync.Mutex // guards imported and skipped
	imported, skipped := 0, 0
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			done, err := scope.Import(t.Context(), admin.ImportSources{AccountsFile: path}, false)
			if err != nil {
				t.Errorf("Import = %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			imported, skipped = imported+len(done.Imported), skipped+len(done.Skipped)
			for _, s := range done.Skipped {
				if s.Reason != "it is already stored" {
					t.Errorf("left out because %s", s.Reason)
				}
			}
		})
	}
	wg.Wait()
	if imported != 2 || skipped != 10 {
		t.Errorf("%d imported and %d left out, want 2 and 10", imported, skipped)
	}
	all, err := scope.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("List = %+v, %v, want two", all, err)
	}
	for _, a := range all {
		if off := a.Label == "off@x"; a.Enabled == off || (len(a.Cooldowns) == 1) != off {
			t.Errorf("%+v: want off@x disabled and parked, and on@x as new", a)
		} else if (a.LastUsedAt != nil) != off || off && a.LastUsedAt.UnixMilli() != 1700000000000 {
			t.Errorf("%s was used last at %v, want that of the file", a.Label, a.LastUsedAt)
		}
	}
	want := map[string]int{"created by cli from ann@desk: imported, disabled": 1, "created by cli from ann@desk: imported, made the current one": 1}
	got := map[string]int{}
	for _, row := range audit(t, scope) {
		got[row]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

// TestImportKeysAtOnce: concurrent imports store a key once in each scope.
func TestImportKeysAtOnce(t *testing.T) {
	t.Parallel()
	const times = 3 // each costs two slow hashes per key
	for _, tt := range []struct {
		name   string
		scopes []id.Workspace
		open   func(t *testing.T) func() *admin.Accounts
	}{
		{"in a database", []id.Workspace{{}, id.New[id.Workspace](), id.New[id.Workspace]()}, func(t *testing.T) func() *admin.Accounts {
			b := start(t, credentialbroker.Config{})
			return func() *admin.Accounts { return b.operator(nil) }
		}},
		{"in a file", []id.Workspace{{}}, func(t *testing.T) func() *admin.Accounts {
			b := &broker{t: t, keyFile: filepath.Join(t.TempDir(), "key")}
			path := filepath.Join(t.TempDir(), "accounts.json")
			return func() *admin.Accounts {
				return b.operator(func(c *admin.Config) { c.File = path })
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			open := tt.open(t)
			from := admin.ImportSources{Environ: []string{"OPENAI_API_KEY=" + canary, "ANTHROPIC_API_KEY=" + canary}}
			var mu sync.Mutex // guards got
			got := map[string]int{}
			var wg sync.WaitGroup
			come := make(chan struct{})
			for _, ws := range tt.scopes {
				for range times {
					scope := open().Operator(ws)
					wg.Go(func() {
						<-come
						done, err := scope.Import(t.Context(), from, false)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							t.Errorf("Import = %v", err)
						}
						for _, a := range done.Imported {
							got[ws.String()+" imported "+a.Provider]++
						}
						for _, a := range done.Skipped {
							got[ws.String()+" left out "+a.Provider+": "+a.Reason]++
						}
					})
				}
			}
			close(come)
			wg.Wait()
			want := map[string]int{}
			for _, ws := range tt.scopes {
				for _, provider := range []string{"openai", "anthropic"} {
					want[ws.String()+" imported "+provider], want[ws.String()+" left out "+provider+": it is already stored"] = 1, times-1
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("imported (-want +got):\n%s", diff)
			}
			accounts := open()
			for _, ws := range tt.scopes {
				all, err := accounts.Operator(ws).List(t.Context())
				if err != nil || len(all) != 2 {
					t.Errorf("List = %+v, %v, want two", all, err)
				}
				for _, a := range all {
					if !a.Enabled || a.Status != admin.Ready || a.LastUsedAt != nil {
						t.Errorf("brought along is %+v", a)
					}
				}
				for _, row := range audit(t, accounts.Operator(ws)) {
					if row != "created by cli from ann@desk: imported" {
						t.Errorf("the audit has %q", row)
					}
				}
			}
		})
	}
}

// TestImportLost: a stored key that cannot be decrypted is not imported again until it is removed.
func TestImportLost(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	from := admin.ImportSources{Environ: []string{"OPENAI_API_KEY=" + canary}}
	done, err := b.operator(nil).Operator(id.Workspace{}).Import(t.Context(), from, false)
	if err != nil || len(done.Imported) != 1 {
		t.Fatalf("Import = %+v, %v", done, err)
	}
	other := b.operator(func(c *admin.Config) { c.KeyFile = filepath.Join(t.TempDir(), "other") }).Operator(id.Workspace{})
	account := done.Imported[0].ID
	again, err := other.Import(t.Context(), from, false)
	if want := "it is already stored, but cannot be decrypted: remove " + account.String() + " first"; err != nil || len(again.Skipped) != 1 || again.Skipped[0].Reason != want {
		t.Errorf("Import with another key = %+v, %v, want it left out: %s", again, err, want)
	}
	if err := other.Forget(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	if again, err := other.Import(t.Context(), from, false); err != nil || len(again.Imported) != 1 {
		t.Errorf("Import after the removal = %+v, %v", again, err)
	}
}

// TestImportForAnother: a sign-in that is an account already, in any workspace, is not imported,
// because renewals of one would end the other; a key can have several accounts.
func TestImportForAnother(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		first, second  id.Workspace
		earlierVersion bool
		want           string
	}{
		{"shared, then a workspace's", id.Workspace{}, id.New[id.Workspace](), false, "it is already stored, for all workspaces: "},
		{"a workspace's, then shared", id.New[id.Workspace](), id.Workspace{}, false, "it is already stored, for workspace "},
		{"another's, from an earlier version", id.New[id.Workspace](), id.New[id.Workspace](), true, "it is already stored, for workspace "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, credentialbroker.Config{})
			path := filepath.Join(t.TempDir(), "auth.json")
			if err := os.WriteFile(path, []byte(`{"anthropic": {"type": "oauth", "refresh": "rt-one"}, "openai": {"type": "api", "key": "sk-one"}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			accounts := b.operator(func(c *admin.Config) { c.OAuth.Clients = "anthropic=us" })
			bring := func(ws id.Workspace) admin.Import {
				t.Helper()
				done, err := accounts.Operator(ws).Import(t.Context(), admin.ImportSources{AuthFile: path}, false)
				if err != nil {
					t.Fatal(err)
				}
				return done
			}
			if done := bring(tt.first); len(done.Imported) != 2 {
				t.Fatalf("Import = %+v, want both", done)
			}
			if tt.earlierVersion {
				sum := sha256.Sum256([]byte("signalbox.credential.v1 imported\x00" + tt.first.String() + "\x00anthropic\x00rt-one"))
				err := b.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `UPDATE accounts SET imported = $1 WHERE provider = 'anthropic'`, sum[:])
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			done := bring(tt.second)
			if len(done.Imported) != 1 || done.Imported[0].Provider != "openai" || len(done.Skipped) != 1 || !strings.HasPrefix(done.Skipped[0].Reason, tt.want) {
				t.Errorf("Import for another = %+v, want the key alone, and of the sign-in %q", done, tt.want)
			}
			if again := bring(tt.first); len(again.Skipped) != 2 || again.Skipped[0].Reason != "it is already stored" {
				t.Errorf("Import again = %+v, want nothing, and no more words", again)
			}
		})
	}
}

// post sends a body through the egress and returns the status of the answer.
func (b *broker) post(a identity.Actor, path, body string) int {
	b.t.Helper()
	token, err := b.signers[subject.AgentRunner].Sign(a, "credential-broker")
	if err != nil {
		b.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// A reset at the command line clears what a broker has just learned and not yet written,
// including limits of models.
func TestResetWins(t *testing.T) {
	t.Parallel()
	var limited atomic.Bool
	limited.Store(true)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if limited.Load() {
			w.Header().Set("Retry-After", "3600")
			http.Error(w, `{"type":"error","error":{"type":"rate_limit_error","message":"slower"}}`, http.StatusTooManyRequests)
			return
		}
		fmt.Fprint(w, `{"type":"message"}`)
	}))
	t.Cleanup(up.Close)
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	owner := member(identity.Owner)
	scope := b.operator(nil).Operator(owner.Workspace)
	a, err := scope.Add(t.Context(), admin.NewAccount{Provider: "anthropic", BaseURL: up.URL, Secret: "sk-one"})
	if err != nil {
		t.Fatal(err)
	}
	const opus = `{"model":"claude-opus-4-1"}`
	if status := b.post(owner, messages, opus); status != http.StatusTooManyRequests {
		t.Fatalf("answered with %d, want the provider's 429", status)
	}
	limited.Store(false)
	if _, err := scope.Reset(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for b.post(owner, messages, opus) != http.StatusOK {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("the account is not used a minute after the reset")
		}
	}
	for { // until what the broker had to write is written
		stored, err := scope.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(stored) >= 2 {
			break
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("after a minute, what was written is %v", stored)
		}
	}
	if now, err := scope.Get(t.Context(), a.ID); err != nil || len(now.Cooldowns) > 0 {
		t.Errorf("after the reset: %+v, %v, want no cooldown", now.Cooldowns, err)
	}
}

// TestCost follows what a request costs from the provider's answer to the statistics and
// the metrics.
func TestCost(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":100,"prompt_tokens_details":{"cached_tokens":400}}}`)
	}))
	t.Cleanup(up.Close)
	prices := filepath.Join(t.TempDir(), "prices.json")
	if err := os.WriteFile(prices, []byte(`{"prices": [{"provider": "openai", "model": "mine-*", "input": 2, "output": 8, "cache_read": 0.5}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	b := start(t, credentialbroker.Config{AllowPrivate: true, ModelPrices: prices})
	owner := member(identity.Owner)
	scope := b.operator(nil).Operator(owner.Workspace)
	a, err := scope.Add(t.Context(), admin.NewAccount{Provider: "openai", Label: "a name for people", BaseURL: up.URL, Secret: "sk-" + canary})
	if err != nil {
		t.Fatal(err)
	}
	account := a.ID
	ask := func() {
		t.Helper()
		if status := b.post(owner, "/egress/openai/v1/chat/completions", `{"model":"mine-1"}`); status != http.StatusOK {
			t.Fatalf("answered with %d", status)
		}
	}
	// stats waits until so many requests are counted.
	stats := func(n int64) admin.Stat {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			all, err := scope.Stats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(all) == 1 && all[0].Requests == n {
				return all[0]
			}
			<-tick.C
		}
	}
	ask()
	const cost = 600*2 + 400/2 + 100*8
	if s := stats(1); s.CostMicros != cost || s.TokensIn != 1000 || s.TokensOut != 100 {
		t.Errorf("after a request: %+v, want a cost of %d", s, cost)
	}
	if flat, err := scope.SetFlatRate(t.Context(), account, true); err != nil || !flat.FlatRate {
		t.Fatalf("SetFlatRate = %+v, %v", flat, err)
	}
	// The broker notices when it reads the accounts again.
	n := int64(1)
	for before := int64(-1); ; {
		ask()
		n++
		now := stats(n).CostMicros
		if now == before {
			break
		}
		before = now
	}
	res, err := b.http.Get(b.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf(`signalbox_broker_account_requests_total{account=%q,provider="openai",reason="OK"} %d`, a.ID, n),
		fmt.Sprintf(`signalbox_broker_account_tokens_total{account=%q,kind="cache_read",provider="openai"} %d`, a.ID, 400*n),
		fmt.Sprintf(`signalbox_broker_account_cost_dollars_total{account=%q,provider="openai"} `, a.ID),
		`signalbox_broker_added_seconds_count{provider="openai"}`,
		fmt.Sprintf(`signalbox_broker_account_added_seconds_total{account=%q,provider="openai"} `, a.ID),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
	for _, secret := range []string{canary, "a name for people"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("/metrics says %q", secret)
		}
	}
}

// TestRemoveDuringRenewal: an account whose token is being renewed cannot be removed until it
// is known which token to revoke.
func TestRemoveDuringRenewal(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t, ", revoke: $FRONT/oauth/revoke")
	owner := member(identity.Owner)
	ref := s.add(owner)
	answer, asked := make(chan struct{}), make(chan struct{})
	s.server.Fail(authserver.Fault{Wait: answer, After: true})
	s.server.Watch(func(stage string) {
		if stage == "rotated" {
			s.server.Watch(nil)
			close(asked)
		}
	})
	renewed := make(chan error)
	go func() { renewed <- s.other.Refresh(t.Context(), identity.Actor{}, ref) }()
	receive(t, asked)
	remove := func() error {
		_, err := s.client().RemoveAccount(identity.With(t.Context(), owner), &credentialv1.RemoveAccountRequest{Id: ref.Account.String()})
		return err
	}
	if f := fault.From(remove()); f.Kind != fault.Unavailable || f.RetryAfter <= 0 {
		t.Errorf("RemoveAccount() during a renewal = %v, want to be asked to come again", f)
	}
	close(answer)
	if err := receive(t, renewed); err != nil {
		t.Fatal(err)
	}
	token, err := s.other.Token(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Errorf("RemoveAccount() after the renewal = %v", err)
	}
	if n := s.server.Calls().Revoke; n != 1 || s.server.Good(token.Secret.Reveal()) {
		t.Errorf("the provider was told %d times, and takes the token: %t", n, s.server.Good(token.Secret.Reveal()))
	}
}

// TestSignInDuringRenewal: the tokens of a renewal do not replace those of a sign-in that was
// completed meanwhile.
func TestSignInDuringRenewal(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ref := s.add(owner)
	s.exec(`UPDATE credentials.grants SET expires_at = now() - interval '1 second', refresh_at = now() - interval '1 second'`)
	answer, asked, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.server.Fail(authserver.Fault{Wait: answer, After: true})
	s.server.Watch(func(stage string) {
		if stage == "rotated" {
			s.server.Watch(nil)
			close(asked)
		}
	})
	go func() {
		defer close(done)
		s.wantAnswer("during the renewal", owner, http.StatusOK)
	}()
	receive(t, asked)
	s.signInAgain(owner, ref)
	signedIn, err := s.other.Token(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	close(answer)
	receive(t, done)
	// From now on the provider refuses the token of the sign-in, and accepts the renewed one.
	s.server.End(signedIn.Secret.Reveal())
	s.wantAnswer("the token of the sign-in, which is withdrawn", owner, http.StatusUnauthorized)
}

// TestSameAccountAgain: a call is a repeat only if everything in it is the same.
func TestSameAccountAgain(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	ctx := identity.With(t.Context(), member(identity.Owner))
	req := &credentialv1.AddAccountRequest{Id: id.New[id.Account]().String(), Provider: "openai", Label: "mine", Secret: "sk-one"}
	add := func(change func(*credentialv1.AddAccountRequest)) error {
		again := &credentialv1.AddAccountRequest{Id: req.GetId(), Provider: req.GetProvider(), Label: req.GetLabel(), Secret: req.GetSecret()}
		change(again)
		_, err := b.client().AddAccount(ctx, again)
		return err
	}
	for range 2 {
		if err := add(func(*credentialv1.AddAccountRequest) {}); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(*credentialv1.AddAccountRequest){
		"secret":   func(r *credentialv1.AddAccountRequest) { r.Secret = "sk-two" },
		"provider": func(r *credentialv1.AddAccountRequest) { r.Provider = "openrouter" },
		"profile":  func(r *credentialv1.AddAccountRequest) { r.Profile = "openrouter" },
		"label":    func(r *credentialv1.AddAccountRequest) { r.Label = "yours" },
		"base URL": func(r *credentialv1.AddAccountRequest) { r.BaseUrl = "https://example.com" },
	} {
		if f := fault.From(add(change)); f.Kind != fault.Conflict || f.Code != "IDEMPOTENCY_KEY_REUSED" {
			t.Errorf("AddAccount() under the same id with another %s = %v, want IDEMPOTENCY_KEY_REUSED", name, f)
		}
	}
}

// TestStrangersID: the id of another workspace's account is unusable, and nothing about that
// account is revealed.
func TestStrangersID(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	theirs, shared := id.New[id.Account](), id.New[id.Account]()
	if _, err := b.client().AddAccount(identity.With(t.Context(), member(identity.Owner)), &credentialv1.AddAccountRequest{Id: theirs.String(), Provider: "openai", Label: "theirs", Secret: canary}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.operator(nil).Operator(id.Workspace{}).Add(t.Context(), admin.NewAccount{ID: shared, Provider: "openai", Label: "shared", Secret: canary}); err != nil {
		t.Fatal(err)
	}
	ctx := identity.With(t.Context(), member(identity.Owner))
	for _, account := range []id.Account{theirs, shared} {
		_, err := b.client().AddAccount(ctx, &credentialv1.AddAccountRequest{Id: account.String(), Provider: "openai", Label: "theirs", Secret: canary})
		f := fault.From(err)
		if want := fmt.Sprintf("the id %s is in use: use another one for a new account", account); err == nil || f.Kind != fault.Conflict || f.Code != "ACCOUNT_ID_TAKEN" || f.Message != want {
			t.Errorf("AddAccount() under somebody else's id = %v, want ACCOUNT_ID_TAKEN: %s", err, want)
		}
	}
	if log := b.log.String(); strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("the log has errors: %s", log)
	}
}
