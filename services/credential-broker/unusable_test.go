package credentialbroker_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gocloud.dev/gcerrors"
	"gocloud.dev/secrets"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// awayKeys is the driver of an unavailable key service.
type awayKeys struct{}

func (awayKeys) OpenKeeperURL(context.Context, *url.URL) (*secrets.Keeper, error) {
	return secrets.NewKeeper(awayKeys{}), nil
}

func (awayKeys) Encrypt(context.Context, []byte) ([]byte, error) { return nil, http.ErrServerClosed }

func (awayKeys) Decrypt(context.Context, []byte) ([]byte, error) { return nil, http.ErrServerClosed }
func (awayKeys) Close() error                                    { return nil }
func (awayKeys) ErrorAs(error, any) bool                         { return false }
func (awayKeys) ErrorCode(error) gcerrors.ErrorCode              { return gcerrors.Unknown }

// TestUnusable: exactly the accounts whose credentials cannot be decrypted are reported as unusable.
func TestUnusable(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	ctx, c := identity.With(t.Context(), owner), s.client()
	const changed = "unusable: its sealed bytes were changed, or belong to another account"
	want := map[string]string{}
	key := func(status string) id.Account {
		t.Helper()
		a, err := c.AddAccount(ctx, &credentialv1.AddAccountRequest{Provider: "sim", Secret: fmt.Sprint("sk-", len(want))})
		if err != nil {
			t.Fatal(err)
		}
		want[a.GetAccount().GetId()] = status
		account, err := id.Parse[id.Account](a.GetAccount().GetId())
		if err != nil {
			t.Fatal(err)
		}
		return account
	}
	grant := func(status string) id.Account {
		t.Helper()
		account := s.add(owner).Account
		want[account.String()] = status
		return account
	}
	key("ready: ")
	grant("ready: ")
	s.exec(`UPDATE credentials.accounts SET sealed = sealed || 'x' WHERE id = $1`, key(changed))
	s.exec(`UPDATE credentials.grants SET access_sealed = access_sealed || 'x' WHERE account_id = $1`, grant(changed))
	s.exec(`UPDATE credentials.grants SET refresh_sealed = refresh_sealed || 'x' WHERE account_id = $1`, grant(changed))
	disabled := key("disabled: ")
	s.exec(`UPDATE credentials.accounts SET sealed = sealed || 'x' WHERE id = $1`, disabled)
	out := grant("signed_out: ")
	for _, err := range []error{
		call(c.DisableAccount(ctx, &credentialv1.DisableAccountRequest{Id: disabled.String()})),
		call(c.LogoutAccount(ctx, &credentialv1.LogoutAccountRequest{Id: out.String()})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	got := map[string]string{}
	listed, err := c.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	for _, a := range listed.GetAccounts() {
		got[a.GetId()] = strings.ToLower(strings.TrimPrefix(a.GetStatus().String(), "ACCOUNT_STATUS_")) + ": " + a.GetReason()
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ListAccounts: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff(want, statuses(t, s.operator(nil))); diff != "" {
		t.Errorf("for the operator (-want +got):\n%s", diff)
	}

	open := func(keys admin.Keys) *admin.Accounts {
		t.Helper()
		a, err := admin.Open(admin.Config{DB: s.db, KeyFile: filepath.Join(t.TempDir(), "other.key"), Keys: keys, AllowPrivate: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		return a
	}
	const lost = "unusable: it was sealed with a key other than those in CREDENTIAL_BROKER_KEY_FILE, CREDENTIAL_BROKER_KEY_URL and CREDENTIAL_BROKER_OTHER_KEYS"
	for account, status := range want {
		if status == "ready: " || status == changed {
			want[account] = lost
		}
	}
	if diff := cmp.Diff(want, statuses(t, open(admin.Keys{}))); diff != "" {
		t.Errorf("with another key (-want +got):\n%s", diff)
	}

	// If the key service is unavailable, nothing is reported.
	away, err := vault.OpenURL(t.Context(), "away://key")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	s.exec(`UPDATE credentials.data_keys SET kek = $1`, away.ID())
	for account, status := range want {
		if status == lost {
			want[account] = "ready: "
		}
	}
	if diff := cmp.Diff(want, statuses(t, open(admin.Keys{URL: "away://key"}))); diff != "" {
		t.Errorf("while the key service is away (-want +got):\n%s", diff)
	}
}

// Requests use the accounts that can be decrypted.
func TestUnusableIsLeftOut(t *testing.T) {
	t.Parallel()
	s := startSignedIn(t)
	owner := member(identity.Owner)
	s.add(owner)
	s.exec(`UPDATE credentials.grants SET access_sealed = refresh_sealed`)
	if _, err := s.client().AddAccount(identity.With(t.Context(), owner), &credentialv1.AddAccountRequest{Provider: "sim", Secret: "sk-1"}); err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE credentials.accounts SET sealed = 'x' WHERE sealed <> ''`)
	s.add(owner)
	for range 3 {
		s.wantAnswer("beside two accounts that do not open", owner, http.StatusOK)
	}
}

// statuses returns the status and reason of all accounts, by their ids.
func statuses(t *testing.T, accounts *admin.Accounts) map[string]string {
	t.Helper()
	all, err := accounts.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range all {
		got[a.ID.String()] = string(a.Status) + ": " + a.Reason
	}
	return got
}

// A connection whose tokens cannot be decrypted must be made again, and anybody may do so.
func TestUnusableConnection(t *testing.T) {
	t.Parallel()
	c := startConnector(t, consolePage)
	ctx, gate := identity.With(t.Context(), member(identity.Editor)), c.connections(subject.Gateway)
	state, code := c.begin(ctx, gate)
	if _, err := complete(ctx, gate, state, code); err != nil {
		t.Fatal(err)
	}
	c.exec(`UPDATE credentials.grants SET access_sealed = refresh_sealed`)
	if got := c.of(ctx, subject.Gateway); got.GetState() != credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE || !strings.Contains(got.GetReason(), "sealed bytes were changed") {
		t.Errorf("a connection that does not open is %v", got)
	}
	state, code = c.begin(ctx, gate)
	if _, err := complete(ctx, gate, state, code); err != nil {
		t.Fatal(err)
	}
	if got := c.of(ctx, subject.Gateway); got.GetState() != credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED || got.GetReason() != "" {
		t.Errorf("made again it is %v", got)
	}
}

// The same with the file of a single user.
func TestUnusableInFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(key string) *admin.Accounts {
		t.Helper()
		a, err := admin.Open(admin.Config{File: filepath.Join(dir, "accounts.json"), KeyFile: filepath.Join(dir, key), AllowPrivate: true})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	mine := open("mine.key")
	added, err := mine.Operator(id.Workspace{}).Add(t.Context(), admin.NewAccount{Provider: "openai", Secret: conf.Secret(canary)})
	if err != nil || added.Status != admin.Ready {
		t.Fatalf("Add = %+v, %v", added, err)
	}
	mine.Close()
	other := open("other.key")
	defer other.Close()
	if got := statuses(t, other)[added.ID.String()]; !strings.HasPrefix(got, "unusable: it was sealed with a key other than") {
		t.Errorf("with another key the account is %s", got)
	}
}
