package vault_test

import (
	"bytes"
	"errors"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/seal"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// A sealed text opens in every instance, after a restart and after a rotation as long as the
// former data key is there, and nowhere else.
func TestSealing(t *testing.T) {
	t.Parallel()
	path, ws, other := t.TempDir()+"/key", id.New[id.Workspace](), id.New[id.Workspace]()
	keys := &memory{}
	open := func() *vault.Vault { return vault.New(openFile(t, path), keys) }
	v := open()
	key, err := v.SealingKey(t.Context(), ws)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := open().SealingKey(t.Context(), ws); err != nil || again.ID != key.ID || !bytes.Equal(again.Public, key.Public) {
		t.Errorf("another instance has the key %v, %v, want %v", again, err, key)
	}
	strangers, err := v.SealingKey(t.Context(), other)
	if err != nil || bytes.Equal(strangers.Public, key.Public) {
		t.Errorf("another workspace has the key %v, %v, want one of its own", strangers, err)
	}
	info := seal.Secret(ws.String(), "openai", "")
	sealed, err := seal.Seal(key.Public, info, []byte(canary))
	if err != nil || bytes.Contains(sealed, []byte(canary)) {
		t.Fatalf("Seal = %q, %v", sealed, err)
	}
	damaged := bytes.Clone(sealed)
	damaged[len(damaged)-1]++
	for name, tt := range map[string]struct {
		workspace id.Workspace
		key       string
		info      []byte
		sealed    []byte
		want      error
	}{
		"as it is":           {ws, key.ID, info, sealed, nil},
		"another base URL":   {ws, key.ID, seal.Secret(ws.String(), "openai", "https://evil.example"), sealed, vault.ErrSealed},
		"another purpose":    {ws, key.ID, seal.Body(ws.String()), sealed, vault.ErrSealed},
		"damaged":            {ws, key.ID, info, damaged, vault.ErrSealed},
		"nothing":            {ws, key.ID, info, nil, vault.ErrSealed},
		"another workspace":  {other, key.ID, info, sealed, vault.ErrSealingKey},
		"a key of no number": {ws, "x", info, sealed, vault.ErrSealingKey},
		"no such version":    {ws, "7" + key.ID[1:], info, sealed, vault.ErrSealingKey},
		"another key":        {ws, key.ID + "0", info, sealed, vault.ErrSealingKey},
	} {
		text, err := open().Unseal(t.Context(), tt.workspace, tt.key, tt.info, tt.sealed)
		if !errors.Is(err, tt.want) || (tt.want == nil) != (string(text) == canary) {
			t.Errorf("%s: Unseal = %q, %v, want %v", name, text, err, tt.want)
		}
	}
	if _, err := v.NewDataKey(t.Context(), ws); err != nil {
		t.Fatal(err)
	}
	next, err := v.SealingKey(t.Context(), ws)
	if err != nil || next.ID == key.ID {
		t.Errorf("after a rotation the key is %v, %v, want another", next, err)
	}
	if text, err := v.Unseal(t.Context(), ws, key.ID, info, sealed); err != nil || string(text) != canary {
		t.Errorf("after a rotation the former key opens %q, %v", text, err)
	}
}
