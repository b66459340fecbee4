package credentialbroker_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/seal"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	credentialbroker "signalbox.dev/services/credential-broker"
)

// The sealed body of a public request is opened, read and checked, and a secret sealed in it
// once more opens only for the workspace, provider and base URL of the request.
func TestSealedBody(t *testing.T) {
	t.Parallel()
	b := start(t, credentialbroker.Config{AllowPrivate: true})
	owner := member(identity.Owner)
	ctx := identity.With(t.Context(), owner)
	ws := owner.Workspace.String()
	key, err := b.client().GetSealingKey(ctx, &credentialv1.GetSealingKeyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(info []byte, text string) []byte {
		s, err := seal.Seal(key.GetPublicKey(), info, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	secret := func(keyID string, info []byte) string {
		return fmt.Sprintf(`"sealed_secret":{"key_id":%q,"sealed":%q}`, keyID, base64.StdEncoding.EncodeToString(sealed(info, canary)))
	}
	house := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+canary {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer house.Close()
	own := secret(key.GetKeyId(), seal.Secret(ws, "openai", ""))
	for _, tt := range []struct{ name, body, want string }{
		{"a key", `{"provider":"openai","secret":"` + canary + `","label":"x","flat_rate":true}`, ""},
		{"a sealed key", `{"provider":"openai",` + own + `}`, ""},
		{"for another provider", `{"provider":"anthropic",` + own + `}`, "sealed_secret: it cannot be decrypted"},
		{"for another base URL", `{"provider":"openai","base_url":"https://other.example",` + own + `}`, "sealed_secret: it cannot be decrypted"},
		{"another key", `{"provider":"openai",` + secret("9-0011223344556677", seal.Secret(ws, "openai", "")) + `}`, "fetch the sealing key again (GET /api/accounts/sealing-key)"},
		{"both", `{"provider":"openai","secret":"x",` + own + `}`, "send only one of the two"},
		{"neither", `{"provider":"openai"}`, "secret or sealed_secret is required"},
		{"no provider", `{"secret":"x"}`, "provider is required"},
		{"no object", `["` + canary + `"]`, "the body must be a JSON object, not array"},
		{"no JSON", `{"secret":"` + canary, "the body is not valid JSON"},
		{"another type", `{"provider":"openai","secret":7}`, "secret: want a string, got number"},
		{"yet another", `{"provider":"openai","flat_rate":"x"}`, "flat_rate: want true or false, got string"},
		{"no base64", `{"provider":"openai","sealed_secret":{"key_id":"x","sealed":"` + canary + `"}}`, "base64"},
		{"no text", "{\"provider\":\"\xff\"}", "not valid UTF-8"},
		{"a key that the provider accepts", `{"provider":"house","profile":"generic","base_url":"` + house.URL + `","check":true,"secret":"` + canary + `"}`, ""},
		{"a key that the provider rejects", `{"provider":"house","profile":"generic","base_url":"` + house.URL + `","check":true,"secret":"other-` + canary + `"}`, "the provider house rejected the key: 401"},
		{"a provider that is away", `{"provider":"house","profile":"generic","base_url":"http://127.0.0.1:1","check":true,"secret":"` + canary + `"}`, "could not connect to the provider house"},
	} {
		res, err := b.client().AddAccount(ctx, &credentialv1.AddAccountRequest{Body: &credentialv1.SealedText{KeyId: key.GetKeyId(), Sealed: sealed(seal.Body(ws), tt.body)}})
		switch {
		case tt.want == "" && (err != nil || res.GetAccount().GetHint() != canary[len(canary)-4:]):
			t.Errorf("%s: AddAccount = %v, %v", tt.name, res, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), canary)):
			t.Errorf("%s: AddAccount = %v, want %q", tt.name, err, tt.want)
		}
	}
	list, err := b.client().ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil || len(list.GetAccounts()) != 3 {
		t.Errorf("%d accounts, %v, want the three that were accepted", len(list.GetAccounts()), err)
	}
	stranger := identity.With(t.Context(), member(identity.Owner))
	if _, err := b.client().AddAccount(stranger, &credentialv1.AddAccountRequest{Body: &credentialv1.SealedText{KeyId: key.GetKeyId(), Sealed: sealed(seal.Body(ws), `{}`)}}); fault.KindOf(err) != fault.Conflict && fault.KindOf(err) != fault.Invalid {
		t.Errorf("a body for another workspace: %v", err)
	}
	if strings.Contains(b.log.String(), canary) {
		t.Error("the log holds the secret")
	}
}
