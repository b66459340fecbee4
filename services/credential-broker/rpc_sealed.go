package credentialbroker

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"unicode/utf8"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/seal"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// GetSealingKey returns the key with which the caller seals what only a broker is to read.
func (s *accountServer) GetSealingKey(ctx context.Context, _ *credentialv1.GetSealingKeyRequest) (*credentialv1.GetSealingKeyResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	if err := scope.Possible(); err != nil {
		return nil, err
	}
	key, err := s.accounts.vault.SealingKey(ctx, scope.workspace)
	if err != nil {
		return nil, err
	}
	return &credentialv1.GetSealingKeyResponse{KeyId: key.ID, PublicKey: key.Public}, nil
}

// unseal opens what was sealed for a workspace; name is what the caller knows it as.
func (s *Scope) unseal(ctx context.Context, name, keyID string, info, sealed []byte) ([]byte, error) {
	text, err := s.accounts.vault.Unseal(ctx, s.workspace, keyID, info, sealed)
	switch {
	case errors.Is(err, vault.ErrSealingKey):
		return nil, fault.Coded(fault.Conflict, "SEALING_KEY_UNKNOWN", "%s: it was sealed with a key that is not in use here, or not any more: fetch the sealing key again (GET /api/accounts/sealing-key), and seal with that", name)
	case errors.Is(err, vault.ErrSealed):
		return nil, fault.New(fault.Invalid, "%s: it does not open: seal it as GET /api/accounts/sealing-key says, for this workspace, provider and base_url", name)
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
}

// newAccount opens and reads the body of a public request.
func (s *Scope) newAccount(ctx context.Context, body *credentialv1.SealedText) (NewAccount, error) {
	text, err := s.unseal(ctx, "body", body.GetKeyId(), seal.Body(s.workspace.String()), body.GetSealed())
	if err != nil {
		return NewAccount{}, err
	}
	defer clear(text)
	b, err := readAccount(text)
	if err != nil {
		return NewAccount{}, err
	}
	if b.Provider == "" {
		return NewAccount{}, fault.New(fault.Invalid, "provider is required")
	}
	switch {
	case b.Sealed != nil && b.Secret != "":
		return NewAccount{}, fault.New(fault.Invalid, "sealed_secret: there is a secret too: send one of the two")
	case b.Sealed != nil:
		secret, err := s.unseal(ctx, "sealed_secret", b.Sealed.KeyID, seal.Secret(s.workspace.String(), b.Provider, b.BaseURL), b.Sealed.Sealed)
		if err != nil {
			return NewAccount{}, err
		}
		b.Secret = conf.Secret(secret)
	case b.Secret == "" && b.BaseURL == "": // a server of one's own may want none
		return NewAccount{}, fault.New(fault.Invalid, "secret is required, or sealed_secret")
	}
	return NewAccount{Provider: b.Provider, Profile: b.Profile, Label: b.Label, BaseURL: b.BaseURL, FlatRate: b.FlatRate, Secret: b.Secret}, nil
}

// readAccount reads a body. Its errors hold nothing of it but the names of fields.
func readAccount(text []byte) (b accountBody, err error) {
	if !utf8.Valid(text) {
		return b, fault.New(fault.Invalid, "the body is not valid UTF-8")
	}
	err = json.Unmarshal(text, &b)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		want := "a string"
		switch e.Type.Kind() {
		case reflect.Bool:
			want = "true or false"
		case reflect.Struct:
			want = "an object"
		}
		return b, fault.New(fault.Invalid, "%s: want %s, got %s", e.Field, want, e.Value)
	} else if ok {
		return b, fault.New(fault.Invalid, "the body must be a JSON object, not %s", e.Value)
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return b, fault.New(fault.Invalid, "the body is not valid JSON (at byte %d)", e.Offset)
	}
	if err != nil { // it may quote the body
		return b, fault.New(fault.Invalid, "the body is not valid JSON, or what is sealed in it is not base64")
	}
	return b, nil
}
