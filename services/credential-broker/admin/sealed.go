package admin

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"unicode/utf8"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/seal"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// SealingKey returns the key with which callers seal what only a broker may read.
func (s *Scope) SealingKey(ctx context.Context) (vault.SealingKey, error) {
	if err := s.Possible(); err != nil {
		return vault.SealingKey{}, err
	}
	return s.accounts.Vault.SealingKey(ctx, s.by.Workspace)
}

// unseal opens what was sealed for the workspace; name is the field for error messages.
func (s *Scope) unseal(ctx context.Context, name, keyID string, info, sealed []byte) ([]byte, error) {
	text, err := s.accounts.Vault.Unseal(ctx, s.by.Workspace, keyID, info, sealed)
	switch {
	case errors.Is(err, vault.ErrSealingKey):
		return nil, fault.Coded(fault.Conflict, "SEALING_KEY_UNKNOWN", "%s: it was sealed with a key that this server does not use, or no longer uses: fetch the sealing key again (GET /api/accounts/sealing-key) and seal with that one", name)
	case errors.Is(err, vault.ErrSealed):
		return nil, fault.New(fault.Invalid, "%s: it cannot be decrypted: seal it as GET /api/accounts/sealing-key says, for this workspace, provider and base_url", name)
	}
	return text, err
}

// accountBody is the body of POST /api/accounts.
type accountBody struct {
	Provider string      `json:"provider"`
	Profile  string      `json:"profile"`
	Label    string      `json:"label"`
	Secret   conf.Secret `json:"secret"`
	Sealed   *struct {
		KeyID  string `json:"key_id"`
		Sealed []byte `json:"sealed"`
	} `json:"sealed_secret"`
	BaseURL  string `json:"base_url"`
	FlatRate bool   `json:"flat_rate"`
	Check    bool   `json:"check"`
}

// Unseal opens and reads the sealed body of a public request to add an account.
func (s *Scope) Unseal(ctx context.Context, keyID string, sealed []byte) (NewAccount, error) {
	text, err := s.unseal(ctx, "body", keyID, seal.Body(s.by.Workspace.String()), sealed)
	if err != nil {
		return NewAccount{}, err
	}
	defer clear(text)
	var b accountBody
	if err := b.parse(text); err != nil {
		return NewAccount{}, err
	}
	switch {
	case b.Provider == "":
		return NewAccount{}, fault.New(fault.Invalid, "provider is required")
	case b.Sealed != nil && b.Secret != "":
		return NewAccount{}, fault.New(fault.Invalid, "sealed_secret: secret is set too: send only one of the two")
	case b.Sealed != nil:
		secret, err := s.unseal(ctx, "sealed_secret", b.Sealed.KeyID, seal.Secret(s.by.Workspace.String(), b.Provider, b.BaseURL), b.Sealed.Sealed)
		if err != nil {
			return NewAccount{}, err
		}
		b.Secret = conf.Secret(secret)
	case b.Secret == "" && b.BaseURL == "": // one's own server may need none
		return NewAccount{}, fault.New(fault.Invalid, "secret or sealed_secret is required")
	}
	return NewAccount{Provider: b.Provider, Profile: b.Profile, Label: b.Label, BaseURL: b.BaseURL, FlatRate: b.FlatRate, Check: b.Check, Secret: b.Secret}, nil
}

// parse reads a body. Its errors quote nothing of it but the names of fields.
func (b *accountBody) parse(text []byte) error {
	if !utf8.Valid(text) {
		return fault.New(fault.Invalid, "the body is not valid UTF-8")
	}
	err := json.Unmarshal(text, b)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return fault.New(fault.Invalid, "the body must be a JSON object, not %s", e.Value)
		}
		want := "a string"
		switch e.Type.Kind() {
		case reflect.Bool:
			want = "true or false"
		case reflect.Struct:
			want = "an object"
		}
		return fault.New(fault.Invalid, "%s: want %s, got %s", e.Field, want, e.Value)
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fault.New(fault.Invalid, "the body is not valid JSON (at byte %d)", e.Offset)
	}
	if err != nil { // it may quote the body
		return fault.New(fault.Invalid, "the body is not valid JSON, or the sealed secret is not base64")
	}
	return nil
}
