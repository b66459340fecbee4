package credentialbroker_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
)

// TestFileServesWorkspaces: a broker without a database serves the shared accounts to
// everybody, and refuses what needs a database.
func TestFileServesWorkspaces(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "accounts.json")
	b := start(t, credentialbroker.Config{AllowPrivate: true, AccountsFile: path})
	operator, err := admin.Open(admin.Config{File: path, KeyFile: b.keyFile, AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	shared, ctx := operator.Operator(id.Workspace{}), t.Context()
	if _, err := shared.Add(ctx, admin.NewAccount{Provider: "anthropic", BaseURL: provider(t), Secret: conf.Secret(canary)}); err != nil {
		t.Fatal(err)
	}

	owner := member(identity.Owner)
	as := identity.With(ctx, owner)
	list, err := b.client().ListAccounts(as, &credentialv1.ListAccountsRequest{})
	if err != nil || len(list.GetAccounts()) != 1 || list.GetAccounts()[0].GetOrigin() != credentialv1.Origin_ORIGIN_SHARED || list.GetAccounts()[0].GetHint() != "" {
		t.Errorf("ListAccounts = %v, %v, want the shared account and nothing of it", list, err)
	}
	for what, err := range map[string]error{
		"AddAccount": call(b.client().AddAccount(as, &credentialv1.AddAccountRequest{Provider: "anthropic", Secret: canary})),
		"SetPool":    call(b.client().SetPool(as, &credentialv1.SetPoolRequest{Provider: "anthropic", Settings: &credentialv1.PoolSettings{Strategy: new("hybrid")}})),
		"ListAudit":  call(b.client().ListAudit(as, &credentialv1.ListAuditRequest{})),
	} {
		if f := fault.From(err); err == nil || f.Kind != fault.Conflict || !strings.Contains(f.Message, "use a database (DATABASE_URL)") {
			t.Errorf("%s = %v, want a fault that says what is needed", what, err)
		}
	}
	if v, err := operator.VerifyAudit(ctx, nil); err != nil || v.Rows == 0 || len(v.Problems) > 0 {
		t.Errorf("VerifyAudit = %+v, %v, want rows, and nothing wrong", v, err)
	}
	if list, err := b.client().ListPools(as, &credentialv1.ListPoolsRequest{}); err != nil || len(list.GetPools()) != 0 {
		t.Errorf("ListPools = %v, %v, want none", list, err)
	}
	if status, body, err := b.askOf(subject.AgentRunner, owner, messages); err != nil || status != http.StatusOK || !strings.Contains(body, "message_stop") {
		t.Errorf("answer %d %s, %v", status, body, err)
	}
	if page := get(t, b, "/ready"); !strings.Contains(page, "accounts") || strings.Contains(page, "postgres") {
		t.Errorf("/ready: %s", page)
	}

	// Nothing that works on the file reveals the secret.
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), canary) || strings.Contains(b.log.String(), canary) {
		t.Errorf("the file or the log holds the secret (%v)", err)
	}
}

// call returns the error of a call.
func call[T any](_ T, err error) error { return err }

func get(t *testing.T, b *broker, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %d %s, %v", path, res.StatusCode, text, err)
	}
	return string(text)
}

// TestAuditCannotBeWritten: the broker logs it when it starts, and serves anyway.
func TestAuditCannotBeWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "accounts.json")
	if err := os.Mkdir(path+".audit", 0o700); err != nil {
		t.Fatal(err)
	}
	b := start(t, credentialbroker.Config{AllowPrivate: true, AccountsFile: path})
	get(t, b, "/ready")
	if log := b.log.String(); !strings.Contains(log, `"level":"WARN"`) || !strings.Contains(log, path+".audit cannot be written") {
		t.Errorf("the log does not say it: %s", log)
	}
}

// TestFileAndDatabase: exactly one of the two is needed.
func TestFileAndDatabase(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]credentialbroker.Config{
		"both":    {DatabaseURL: "postgres://x", AccountsFile: "y", KeyFile: "z"},
		"neither": {KeyFile: "z"},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "CREDENTIAL_BROKER_ACCOUNTS_FILE") {
			t.Errorf("%s: Validate = %v", name, err)
		}
	}
	// The error of a locked file names it.
	dir := t.TempDir()
	_, err := admin.Open(admin.Config{File: dir, KeyFile: filepath.Join(dir, "k")})
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("OpenAccounts of a folder = %v", err)
	}
}
