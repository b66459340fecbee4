package credentialbroker_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
)

// calls are the calls that owners may make about an account.
func calls(b *broker, service, account string) map[string]func(ctx context.Context) (proto.Message, error) {
	c := b.clientOf(service)
	return map[string]func(ctx context.Context) (proto.Message, error){
		"AddAccount": func(ctx context.Context) (proto.Message, error) {
			return c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "openai", Secret: canary})
		},
		"GetSealingKey": func(ctx context.Context) (proto.Message, error) {
			return c.GetSealingKey(ctx, &credentialv1.GetSealingKeyRequest{})
		},
		"ListAccounts": func(ctx context.Context) (proto.Message, error) {
			return c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
		},
		"EnableAccount": func(ctx context.Context) (proto.Message, error) {
			return c.EnableAccount(ctx, &credentialv1.EnableAccountRequest{Id: account})
		},
		"DisableAccount": func(ctx context.Context) (proto.Message, error) {
			return c.DisableAccount(ctx, &credentialv1.DisableAccountRequest{Id: account})
		},
		"ResetAccount": func(ctx context.Context) (proto.Message, error) {
			return c.ResetAccount(ctx, &credentialv1.ResetAccountRequest{Id: account})
		},
		"SwitchAccount": func(ctx context.Context) (proto.Message, error) {
			return c.SwitchAccount(ctx, &credentialv1.SwitchAccountRequest{Id: account})
		},
		"RemoveAccount": func(ctx context.Context) (proto.Message, error) {
			return c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: account})
		},
		"RefreshAccount": func(ctx context.Context) (proto.Message, error) {
			return c.RefreshAccount(ctx, &credentialv1.RefreshAccountRequest{Id: account})
		},
		"LogoutAccount": func(ctx context.Context) (proto.Message, error) {
			return c.LogoutAccount(ctx, &credentialv1.LogoutAccountRequest{Id: account})
		},
		"StartLogin": func(ctx context.Context) (proto.Message, error) {
			return c.StartLogin(ctx, &credentialv1.StartLoginRequest{AccountId: account, Kind: credentialv1.LoginKind_LOGIN_KIND_BROWSER})
		},
		"CompleteLogin": func(ctx context.Context) (proto.Message, error) {
			return c.CompleteLogin(ctx, &credentialv1.CompleteLoginRequest{Id: account, Code: "code"})
		},
		"PollLogin": func(ctx context.Context) (proto.Message, error) {
			return c.PollLogin(ctx, &credentialv1.PollLoginRequest{Id: account})
		},
		"ListPools": func(ctx context.Context) (proto.Message, error) {
			return c.ListPools(ctx, &credentialv1.ListPoolsRequest{})
		},
		"SetPool": func(ctx context.Context) (proto.Message, error) {
			return c.SetPool(ctx, &credentialv1.SetPoolRequest{Provider: "openai"})
		},
		"GetStats": func(ctx context.Context) (proto.Message, error) {
			return c.GetStats(ctx, &credentialv1.GetStatsRequest{})
		},
		"ResetStats": func(ctx context.Context) (proto.Message, error) {
			return c.ResetStats(ctx, &credentialv1.ResetStatsRequest{Id: account})
		},
		"ListAudit": func(ctx context.Context) (proto.Message, error) {
			return c.ListAudit(ctx, &credentialv1.ListAuditRequest{})
		},
	}
}

// TestOwnersOnly: others are refused, and owners cannot reach other workspaces' accounts.
func TestOwnersOnly(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{})
	owner := member(identity.Owner)
	added, err := b.client().AddAccount(identity.With(t.Context(), owner), &credentialv1.AddAccountRequest{Provider: "openai", Secret: canary})
	if err != nil {
		t.Fatal(err)
	}
	account := added.GetAccount().GetId()
	editor := owner
	editor.Role = identity.Editor
	for name, call := range calls(b, subject.Gateway, account) {
		if _, err := call(identity.With(t.Context(), editor)); fault.KindOf(err) != fault.Forbidden {
			t.Errorf("%s by an editor = %v, want Forbidden", name, err)
		}
	}
	for _, service := range []string{subject.AgentRunner, subject.ToolExecutor} {
		for name, call := range calls(b, service, account) {
			if _, err := call(identity.With(t.Context(), owner)); fault.KindOf(err) != fault.Forbidden {
				t.Errorf("%s through %s = %v, want Forbidden", name, service, err)
			}
		}
	}
	stranger := identity.With(t.Context(), member(identity.Owner))
	for name, call := range calls(b, subject.Gateway, account) {
		m, err := call(stranger)
		if strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Get") || name == "SetPool" || name == "AddAccount" {
			if text := protojson.Format(m); err != nil || strings.Contains(text, account) || strings.Contains(text, canary) {
				t.Errorf("%s by another workspace's owner = %s, %v, want nothing of the account", name, text, err)
			}
			continue
		}
		if k := fault.KindOf(err); k != fault.NotFound && k != fault.Conflict {
			t.Errorf("%s by another workspace's owner = %v, want NotFound", name, err)
		}
	}
	if _, err := b.client().PollLogin(identity.With(t.Context(), owner), &credentialv1.PollLoginRequest{}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("PollLogin without an id = %v, want Invalid", err)
	}
	if log := b.log.String(); strings.Contains(log, canary) {
		t.Error("the log holds the secret")
	}
}

// used waits until a workspace's audit has some uses, and returns the last one's account.
func (b *broker) used(owner identity.Actor, n int) string {
	b.t.Helper()
	owner.Role = identity.Owner
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(identity.With(b.t.Context(), owner), 30*time.Second)
	defer cancel()
	for {
		page, err := b.client().ListAudit(ctx, &credentialv1.ListAuditRequest{Limit: 100})
		if err != nil {
			b.t.Fatalf("wait for %d uses: %v", n, err)
		}
		last, found := "", 0
		for _, r := range page.GetRows() {
			if r.GetAction() == "used" {
				if found++; last == "" {
					last = r.GetAccountId()
				}
			}
		}
		if found >= n {
			return last
		}
		<-tick.C
	}
}

// TestManageAccount goes through an account's life as the console does.
func TestManageAccount(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	c := s.client()
	ref := s.add(owner)
	account := ref.Account.String()
	s.wantAnswer("at first", owner, http.StatusOK)
	s.used(owner, 1)

	want := func(when string, m interface{ GetAccount() *credentialv1.Account }, err error, status credentialv1.AccountStatus) *credentialv1.Account {
		t.Helper()
		if err != nil || m.GetAccount().GetStatus() != status || m.GetAccount().GetId() != account {
			t.Fatalf("%s: %v, %v, want %s", when, m.GetAccount(), err, status)
		}
		return m.GetAccount()
	}
	disabled, err := c.DisableAccount(ctx, &credentialv1.DisableAccountRequest{Id: account})
	want("disabled", disabled, err, credentialv1.AccountStatus_ACCOUNT_STATUS_DISABLED)
	if status, _, _ := s.ask(owner, "/egress/sim/thing"); status == http.StatusOK {
		t.Error("a disabled account was used")
	}
	enabled, err := c.EnableAccount(ctx, &credentialv1.EnableAccountRequest{Id: account})
	want("enabled", enabled, err, credentialv1.AccountStatus_ACCOUNT_STATUS_READY)
	s.wantAnswer("enabled", owner, http.StatusOK)
	refreshed, err := c.RefreshAccount(ctx, &credentialv1.RefreshAccountRequest{Id: account})
	a := want("refreshed", refreshed, err, credentialv1.AccountStatus_ACCOUNT_STATUS_READY)
	if g := a.GetGrant(); g.GetState() != "active" || !g.GetRenewable() || g.GetExpiresAt() == nil || a.GetHealth() != 100 {
		t.Errorf("the account is %v, want it healthy, with an active grant", a)
	}
	list, err := c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(list.GetAccounts()) != 1 || list.GetAccounts()[0].Tokens == nil {
		t.Errorf("ListAccounts = %v, %v, want one, with tokens", list, err)
	}
	switched, err := c.SwitchAccount(ctx, &credentialv1.SwitchAccountRequest{Id: account})
	want("switched", switched, err, credentialv1.AccountStatus_ACCOUNT_STATUS_READY)

	pool, err := c.SetPool(ctx, &credentialv1.SetPoolRequest{Provider: "sim", Settings: &credentialv1.PoolSettings{Strategy: new("hybrid"), MaxTokens: new(float64(60))}})
	if err != nil || pool.GetPool().GetSettings().GetMaxTokens() != 60 || pool.GetPool().GetAccounts() != 1 || !pool.GetPool().GetChanged() {
		t.Errorf("SetPool = %v, %v, want hybrid with 60 tokens", pool, err)
	}
	if _, err := c.SetPool(ctx, &credentialv1.SetPoolRequest{Provider: "sim", Settings: &credentialv1.PoolSettings{Strategy: new("best")}}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("SetPool with a strategy that is none = %v, want Invalid", err)
	}
	// Settings of a newer broker are kept, and the known ones apply.
	var kept string
	err = s.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE pools SET settings = settings || '{"of_tomorrow": 7}'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetPool(ctx, &credentialv1.SetPoolRequest{Provider: "sim", Settings: &credentialv1.PoolSettings{Stickiness: new(float64(10))}}); err != nil {
		t.Errorf("SetPool beside a newer broker's setting: %v", err)
	}
	err = s.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT settings::text FROM pools`).Scan(&kept)
	})
	if want := `{"strategy": "hybrid", "max_tokens": 60, "stickiness": 10, "of_tomorrow": 7}`; err != nil || len(kept) != len(want) || !strings.Contains(kept, `"of_tomorrow": 7`) {
		t.Errorf("stored are %s, %v, want %s", kept, err, want)
	}
	pools, err := c.ListPools(ctx, &credentialv1.ListPoolsRequest{})
	if err != nil || len(pools.GetPools()) != 1 || pools.GetPools()[0].GetSettings().GetStrategy() != "hybrid" || pools.GetPools()[0].GetSettings().GetMaxTokens() != 60 {
		t.Errorf("ListPools = %v, %v, want one, hybrid", pools, err)
	}

	out, err := c.LogoutAccount(ctx, &credentialv1.LogoutAccountRequest{Id: account})
	want("signed out", out, err, credentialv1.AccountStatus_ACCOUNT_STATUS_SIGNED_OUT)
	if out.GetAtProvider() || out.GetReason() == "" {
		t.Errorf("LogoutAccount = %v, want the reason why the provider was not told", out)
	}
	if _, err := c.ResetStats(ctx, &credentialv1.ResetStatsRequest{}); err != nil {
		t.Errorf("ResetStats = %v", err)
	}
	if _, err := c.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: account}); err != nil {
		t.Errorf("RemoveAccount = %v", err)
	}

	var did []string
	for before := int64(0); ; {
		page, err := c.ListAudit(ctx, &credentialv1.ListAuditRequest{Before: before, Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.GetRows() {
			did = append(did, strings.TrimSpace(r.GetAction()+" "+r.GetDetail()))
			if r.GetMemberId() != owner.Member.String() && r.GetAction() != "refreshed" || len(r.GetHash()) != 64 {
				t.Errorf("row %v, want the member's, with a hash", r)
			}
		}
		if before = page.GetNextBefore(); before == 0 {
			break
		}
	}
	wanted := []string{
		"removed already signed out", "changed statistics reset",
		"changed not revoked at the provider: sim offers no revocation: remove the access in the account's settings there", "changed signed out",
		`changed settings {"max_tokens":60,"of_tomorrow":7,"stickiness":10,"strategy":"hybrid"}`, `changed settings {"max_tokens":60,"strategy":"hybrid"}`, "changed made the current one",
		"refreshed", "changed enabled", "changed disabled", "used", "created imported",
	}
	if diff := cmp.Diff(wanted, did); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
	for _, req := range []*credentialv1.ListAuditRequest{{Query: "Statistics"}, {Query: "nothing", QueryMembers: []string{owner.Member.String()}, Limit: 1}} {
		if page, err := c.ListAudit(ctx, req); err != nil || len(page.GetRows()) != 1 {
			t.Errorf("ListAudit(%v) has %d rows (%v), want one", req, len(page.GetRows()), err)
		}
	}
	for _, req := range []*credentialv1.ListAuditRequest{{Query: strings.Repeat("x", 201)}, {Query: "x", QueryMembers: []string{"x"}}} {
		if _, err := c.ListAudit(ctx, req); fault.KindOf(err) != fault.Invalid {
			t.Errorf("ListAudit(%v) = %v, want it invalid", req, err)
		}
	}
}

// TestResetReachesBrokers resets an account at the command line: a broker that has parked it
// uses it again.
func TestResetReachesBrokers(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ref := s.add(owner)
	conn, err := pgx.Connect(t.Context(), s.adminDB)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `INSERT INTO credentials.account_limits VALUES ($1, 'sim', $2, '', now(), now() + interval '1 hour', now() + interval '1 hour', 1, 'QUOTA_EXHAUSTED', 403, 'retry-after: 3600')`, ref.Workspace, ref.Account)
	if err != nil {
		t.Fatal(err)
	}
	s.wantAnswer("parked", owner, http.StatusTooManyRequests)
	list, err := s.client().ListAccounts(identity.With(t.Context(), owner), &credentialv1.ListAccountsRequest{})
	if err != nil || len(list.GetAccounts()) != 1 {
		t.Fatalf("ListAccounts = %v, %v", list, err)
	}
	if c := list.GetAccounts()[0].GetCooldowns(); len(c) != 1 || c[0].GetReason() != "QUOTA_EXHAUSTED" || c[0].GetRetryAfter() != "retry-after: 3600" || c[0].GetStatus() != 403 {
		t.Errorf("cooldowns %v, want the one with its header", c)
	}
	operator, err := admin.Open(admin.Config{DB: s.db, KeyFile: s.keyFile})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	if a, err := operator.Operator(owner.Workspace).Reset(t.Context(), ref.Account); err != nil || len(a.Cooldowns) != 0 || a.Health != 100 {
		t.Errorf("Reset = %+v, %v, want no cooldown", a, err)
	}
	// The broker reads accounts again after a second.
	for deadline := time.Now().Add(10 * time.Second); ; {
		status, _, err := s.ask(owner, "/egress/sim/thing")
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the account is parked still: %d", status)
		}
	}
	if _, err := operator.Operator(id.Workspace{}).Reset(t.Context(), ref.Account); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Reset of a workspace's account among the shared ones = %v, want NotFound", err)
	}
}

// TestSwitch moves the requests of a session to another account.
func TestSwitch(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	s.add(owner)
	second := s.add(owner).Account.String()
	s.wantAnswer("at first", owner, http.StatusOK)
	if first := s.used(owner, 1); first == second {
		t.Errorf("at first %s is used, want the other one", first)
	}
	if _, err := s.client().SwitchAccount(ctx, &credentialv1.SwitchAccountRequest{Id: second}); err != nil {
		t.Fatal(err)
	}
	s.wantAnswer("after the switch", owner, http.StatusOK)
	if now := s.used(owner, 2); now != second {
		t.Errorf("after the switch %s is used, want %s", now, second)
	}
	if _, err := s.client().SetPool(ctx, &credentialv1.SetPoolRequest{Provider: "sim", Settings: &credentialv1.PoolSettings{Strategy: new("round-robin")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client().SwitchAccount(ctx, &credentialv1.SwitchAccountRequest{Id: second}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("SwitchAccount among accounts that take turns = %v, want Conflict", err)
	}
}
