package credentialbroker_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
	"signalbox.dev/services/credential-broker/admin"
)

// In a Signalbox on one machine, shared accounts may use servers on that machine, which may
// need no key; accounts of workspaces may not.
func TestLocalAccounts(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowLoopback: true})
	ctx, up, owner := t.Context(), provider(t), member(identity.Owner)
	operator, err := admin.Open(admin.Config{DB: b.db, KeyFile: b.keyFile, AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	n := admin.NewAccount{Provider: "ollama", BaseURL: up + "/v1"}
	made, err := operator.Operator(id.Workspace{}).Add(ctx, n)
	if err != nil || made.Profile != "generic" {
		t.Fatalf("Add = %+v, %v, want an account of the profile generic", made, err)
	}
	for path, want := range map[string]string{
		"/egress/ollama/v1/chat/completions": `"path":"/v1/chat/completions","keylen":0`, "/egress/ollama/v1/models": `"path":"/v1/models","keylen":0`,
	} {
		if status, body, err := b.ask(owner, path); status != 200 || err != nil || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, %v, want %s", path, status, body, err, want)
		}
	}
	n.Secret = canary
	if _, err := operator.Operator(owner.Workspace).Add(ctx, n); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Add for a workspace = %v, want Invalid", err)
	}
	_, err = b.client().AddAccount(identity.With(ctx, owner), &credentialv1.AddAccountRequest{Provider: "ollama", Secret: canary, BaseUrl: up + "/v1"})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "base_url: ") {
		t.Errorf("AddAccount = %v, want Invalid", err)
	}
	// A broker of a deployment does not use such an account either.
	strict := start(t, credentialbroker.Config{})
	lax, err := admin.Open(admin.Config{DB: strict.db, KeyFile: strict.keyFile, AllowLoopback: true})
	if err != nil {
		t.Fatal(err)
	}
	defer lax.Close()
	if _, err := lax.Operator(id.Workspace{}).Add(ctx, n); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := strict.ask(owner, "/egress/ollama/v1/chat/completions"); status != 409 {
		t.Errorf("in a deployment: %d %s, want 409", status, body)
	}
}
