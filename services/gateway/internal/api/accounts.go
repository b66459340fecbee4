package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/seal"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

func (a *API) accounts() {
	const tag = "Accounts"
	handle(a, op("list-accounts", "GET /api/accounts", tag, "List the workspace's provider accounts, and those that the operator shares",
		about("Secrets are never shown.")), owners, a.listAccounts)
	handle(a, op("create-account", "POST "+AccountsPath, tag, "Add an API key of a provider", created, maxBody(maxAccount),
		about("The key is stored encrypted and never shown again. A client that seals the key (sealed_secret, see /api/accounts/sealing-key) reveals it to the credential broker only; otherwise the gateway forwards the body without parsing it, and closes the connection. For accounts with a sign-in see /api/accounts/logins.")), owners, a.createAccount)
	// In a copy, because huma would read the body if the operation itself described it.
	create := *a.huma.OpenAPI().Paths[AccountsPath].Post
	create.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[CreateAccount](), true, "CreateAccount")},
	}}
	a.huma.OpenAPI().Paths[AccountsPath].Post = &create
	handle(a, op("get-sealing-key", "GET /api/accounts/sealing-key", tag, "Get the public key for sealing a secret for the credential broker",
		about("HPKE (RFC 9180), base mode, one message, no associated data. The info is five texts joined with line feeds: `signalbox v1`, `account secret`, the workspace's id, and provider and base_url as in the request (empty if absent). The plaintext is the secret itself. The key changes with a key rotation; a key that is no longer in use is refused with 409, SEALING_KEY_UNKNOWN.")), owners, a.getSealingKey)
	handle(a, op("list-account-kinds", "GET /api/accounts/kinds", tag, "List the kinds of accounts that can be added: with keys, and with a sign-in"), owners, a.listAccountKinds)
	handle(a, op("update-account", "PATCH /api/accounts/{id}", tag, "Enable or disable an account, or change how it is paid",
		about("If a call makes both changes, one can succeed and the other fail. Repeat the call then.")), owners, a.updateAccount)
	handle(a, op("delete-account", "DELETE /api/accounts/{id}", tag, "Remove an account",
		about("A sign-in is revoked at the provider too, if possible. An API key cannot remove an account with a sign-in (403, PERSON_NEEDED).")), owners, a.deleteAccount)
	handle(a, op("reset-account", "POST /api/accounts/{id}/reset", tag, "Clear an account's cooldowns and make it healthy"), owners,
		accountAction(func(ctx context.Context, account string) (*credentialv1.Account, error) {
			res, err := a.cfg.Accounts.ResetAccount(ctx, &credentialv1.ResetAccountRequest{Id: account})
			return res.GetAccount(), err
		}))
	handle(a, op("switch-account", "POST /api/accounts/{id}/switch", tag, "Make an account the current one of its pool",
		about("A round-robin pool has no current account and answers 409.")), owners,
		accountAction(func(ctx context.Context, account string) (*credentialv1.Account, error) {
			res, err := a.cfg.Accounts.SwitchAccount(ctx, &credentialv1.SwitchAccountRequest{Id: account})
			return res.GetAccount(), err
		}))
	handle(a, op("refresh-account", "POST /api/accounts/{id}/refresh", tag, "Renew an account's access token now",
		about("For an account with a sign-in.")), owners,
		accountAction(func(ctx context.Context, account string) (*credentialv1.Account, error) {
			res, err := a.cfg.Accounts.RefreshAccount(ctx, &credentialv1.RefreshAccountRequest{Id: account})
			return res.GetAccount(), err
		}))
	handle(a, op("logout-account", "POST /api/accounts/{id}/logout", tag, "Revoke a sign-in, here and at the provider; the account stays and can be signed in to again"),
		owners.inPerson(), a.logoutAccount)
	a.logins(tag)
	a.pools(tag)
}

// Account is a credential of a provider, without its secret.
type Account struct {
	ID         string     `json:"id" format:"uuid"`
	Provider   string     `json:"provider" example:"anthropic"`
	Profile    string     `json:"profile" doc:"The request profile." example:"anthropic-api-key"`
	Label      string     `json:"label"`
	Hint       *string    `json:"hint" doc:"The end of the key, to tell keys apart." example:"9f3a"`
	BaseURL    *string    `json:"base_url" doc:"Null: the profile's base URL."`
	Origin     string     `json:"origin" enum:"workspace,shared" doc:"shared: the operator's account, whose fields from status on are null or empty."`
	Enabled    bool       `json:"enabled"`
	FlatRate   bool       `json:"flat_rate" doc:"The account has a flat rate: requests cost nothing."`
	CreatedAt  string     `json:"created_at" format:"date-time"`
	LastUsedAt *string    `json:"last_used_at" format:"date-time"`
	Status     *string    `json:"status" enum:"ready,cooling,unhealthy,disabled,reauthorize,signed_out,unusable" doc:"cooling: parked for some or all models, or passed over. unhealthy: used only if no better account is available. reauthorize: an owner must sign in again. unusable: its stored credential cannot be decrypted. Null for shared accounts."`
	Reason     *string    `json:"reason" doc:"Explains why the account is unusable; null if it is usable."`
	Health     *float64   `json:"health" doc:"From 0 to 100."`
	Tokens     *float64   `json:"tokens" doc:"Requests that the account may still make at once, as counted by the answering server; null if it does not count them."`
	Cooldowns  []Cooldown `json:"cooldowns" nullable:"false"`
	Grant      *Grant     `json:"grant,omitempty" doc:"The sign-in; absent if the account is a key."`
}

// Cooldown is the reason why an account gets no requests, and its end.
type Cooldown struct {
	Family     *string `json:"family" doc:"The model family; null for all models."`
	Since      string  `json:"since" format:"date-time"`
	Until      string  `json:"until" format:"date-time"`
	Reason     string  `json:"reason" example:"RATE_LIMIT_EXCEEDED"`
	PassedOver bool    `json:"passed_over" doc:"The account is not parked, but used only if no other account is available, for the family or for all models."`
	HTTPStatus *int32  `json:"http_status" doc:"Status of the provider's answer."`
	RetryAfter *string `json:"retry_after" doc:"The provider's Retry-After header."`
	Step       int32   `json:"step" doc:"How often in a row the quota was exhausted."`
}

// Grant is a sign-in at a provider.
type Grant struct {
	Provider  string  `json:"provider" doc:"The sign-in provider."`
	State     string  `json:"state" enum:"active,reauthorize,revoking,revoked"`
	Reason    *string `json:"reason" doc:"Explains why it is not active."`
	LastError *string `json:"last_error" doc:"The last failure while it is active."`
	Scope     *string `json:"scope"`
	IssuedAt  string  `json:"issued_at" format:"date-time"`
	ExpiresAt *string `json:"expires_at" format:"date-time" doc:"Expiry of the access token; null if it does not expire."`
	RefreshAt *string `json:"refresh_at" format:"date-time"`
	Renewable bool    `json:"renewable" doc:"Whether there is a refresh token."`
}

func viewAccount(m *credentialv1.Account) Account {
	v := Account{
		ID: m.GetId(), Provider: m.GetProvider(), Profile: m.GetProfile(), Label: m.GetLabel(), Hint: orNull(m.GetHint()), BaseURL: orNull(m.GetBaseUrl()),
		Origin: "workspace", Enabled: m.GetEnabled(), FlatRate: m.GetFlatRate(), CreatedAt: stamp(m.GetCreatedAt()), LastUsedAt: stampOrNull(m.GetLastUsedAt()),
		Status: orNull(enumName(m.GetStatus())), Reason: orNull(m.GetReason()), Health: m.Health, Tokens: m.Tokens, Cooldowns: each(m.GetCooldowns(), viewCooldown),
	}
	if m.GetOrigin() == credentialv1.Origin_ORIGIN_SHARED {
		v.Origin = "shared"
	}
	if g := m.GetGrant(); g != nil {
		v.Grant = &Grant{
			Provider: g.GetProvider(), State: g.GetState(), Reason: orNull(g.GetReason()), LastError: orNull(g.GetLastError()), Scope: orNull(g.GetScope()),
			IssuedAt: stamp(g.GetIssuedAt()), ExpiresAt: stampOrNull(g.GetExpiresAt()), RefreshAt: stampOrNull(g.GetRefreshAt()), Renewable: g.GetRenewable(),
		}
	}
	return v
}

func viewCooldown(c *credentialv1.AccountCooldown) Cooldown {
	return Cooldown{
		Family: orNull(c.GetFamily()), Since: stamp(c.GetSince()), Until: stamp(c.GetUntil()), Reason: c.GetReason(),
		HTTPStatus: orNull(c.GetStatus()), RetryAfter: orNull(c.GetRetryAfter()), Step: c.GetStep(), PassedOver: c.GetPassedOver(),
	}
}

type accountOutputBody struct {
	Account Account `json:"account"`
}

func accountBody(m *credentialv1.Account) accountOutputBody { return accountOutputBody{viewAccount(m)} }

type accountsOutputBody struct {
	Accounts   []Account `json:"accounts" nullable:"false"`
	NextCursor *string   `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listAccounts(ctx context.Context, in *SlicePage) (*accountsOutputBody, error) {
	res, err := a.cfg.Accounts.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	found, next := pageOf(*in, res.GetAccounts(), func(m *credentialv1.Account) string { return stamp(m.GetCreatedAt()) + "~" + m.GetId() })
	return &accountsOutputBody{each(found, viewAccount), next}, err
}

// AccountsPath is the path that receives secrets; see clearBodies in package gateway.
const AccountsPath = "/api/accounts"

// maxAccount bounds the body of POST /api/accounts.
const maxAccount = 64 << 10

// CreateAccount is the body of POST /api/accounts. The credential broker parses it.
type CreateAccount struct {
	Provider string        `json:"provider" minLength:"1" maxLength:"32" doc:"A provider that needs neither profile nor base_url, or a name of your choice." example:"anthropic"`
	Profile  string        `json:"profile,omitempty" maxLength:"64" doc:"The request profile; the provider's default if absent."`
	Label    string        `json:"label,omitempty" maxLength:"100"`
	Secret   conf.Secret   `json:"secret,omitempty" minLength:"1" maxLength:"8192" writeOnly:"true" doc:"The key; alternatively sealed_secret."`
	Sealed   *SealedSecret `json:"sealed_secret,omitempty" writeOnly:"true" doc:"The key, sealed for the credential broker; alternatively secret."`
	BaseURL  string        `json:"base_url,omitempty" maxLength:"2000" doc:"The provider's base URL; the profile's default if absent."`
	FlatRate bool          `json:"flat_rate,omitempty" doc:"The account has a flat rate: requests cost nothing."`
	Check    bool          `json:"check,omitempty" doc:"First ask the provider, with a request that costs nothing. If it rejects the key or cannot be reached, nothing is stored: 409, KEY_NOT_ACCEPTED."`
}

// SealedSecret is a secret that only the credential broker can decrypt.
type SealedSecret struct {
	KeyID  string `json:"key_id" doc:"The id of the key from /api/accounts/sealing-key."`
	Sealed []byte `json:"sealed" doc:"The encapsulated key (enc, 32 bytes) followed by the ciphertext; base64."`
}

// createAccountInput holds a body that the gateway does not parse. It is read into one
// buffer, which is cleared once its content is sealed.
type createAccountInput struct {
	Idempotent
	body []byte
}

// Resolve implements huma.Resolver.
func (in *createAccountInput) Resolve(hc huma.Context) []error {
	buffer := make([]byte, maxAccount+1)
	n, err := io.ReadFull(hc.BodyReader(), buffer)
	in.body = buffer[:n]
	if err == nil {
		clear(buffer)
		return []error{&Error{status: http.StatusRequestEntityTooLarge}} // transformError sets the message
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || n == 0 {
		clear(buffer)
		return []error{&Error{status: http.StatusBadRequest, Message: "the body is missing or incomplete"}}
	}
	return nil
}

// createAccount seals a body and forwards it. The plaintext exists only in the buffer that
// it was read into: the layers that carry a call could not guarantee that.
func (a *API) createAccount(ctx context.Context, in *createAccountInput) (*accountOutputBody, error) {
	defer clear(in.body)
	if json.Valid(in.body) { // the broker reports invalid JSON; neither check copies a value
		if err := checkBody(in.body, reflect.TypeFor[CreateAccount]()); err != nil {
			return nil, invalid("%v", err)
		}
	}
	key, err := a.cfg.Accounts.GetSealingKey(ctx, &credentialv1.GetSealingKeyRequest{})
	if err != nil {
		return nil, err
	}
	actor := principalOf(ctx).Actor
	sealed, err := seal.Seal(key.GetPublicKey(), seal.Body(actor.Workspace.String()), in.body)
	if err != nil {
		return nil, err
	}
	clear(in.body)
	ctx, cancel := context.WithTimeout(ctx, providerTimeout) // the broker may ask the provider
	defer cancel()
	res, err := a.cfg.Accounts.AddAccount(ctx, &credentialv1.AddAccountRequest{
		Id: in.Key.operationText(actor, "create-account"), Body: &credentialv1.SealedText{KeyId: key.GetKeyId(), Sealed: sealed},
	})
	return answer(res.GetAccount(), err, accountBody)
}

// SealingKey is a public key.
type SealingKey struct {
	ID        string `json:"id"`
	PublicKey []byte `json:"public_key" doc:"An X25519 public key, 32 bytes; base64."`
	KEM       string `json:"kem" example:"DHKEM(X25519, HKDF-SHA256)"`
	KDF       string `json:"kdf" example:"HKDF-SHA256"`
	AEAD      string `json:"aead" example:"AES-256-GCM"`
}

type sealingKeyOutputBody struct {
	SealingKey SealingKey `json:"sealing_key"`
}

func (a *API) getSealingKey(ctx context.Context, _ *struct{}) (*sealingKeyOutputBody, error) {
	res, err := a.cfg.Accounts.GetSealingKey(ctx, &credentialv1.GetSealingKeyRequest{})
	return &sealingKeyOutputBody{SealingKey{ID: res.GetKeyId(), PublicKey: res.GetPublicKey(), KEM: seal.KEM, KDF: seal.KDF, AEAD: seal.AEAD}}, err
}

// AccountKinds are the kinds of accounts that can be added.
type AccountKinds struct {
	Providers []string        `json:"providers" nullable:"false" doc:"Providers whose keys need neither a profile nor a base URL."`
	Profiles  []string        `json:"profiles" nullable:"false" doc:"Request profiles for other providers."`
	Logins    []LoginProvider `json:"logins" nullable:"false"`
}

// LoginProvider is a provider with a sign-in.
type LoginProvider struct {
	Name     string   `json:"name" example:"github"`
	Provider string   `json:"provider" doc:"The provider of the resulting account."`
	Kinds    []string `json:"kinds" nullable:"false" enum:"browser,paste,device"`
	Reason   *string  `json:"reason" doc:"Explains why signing in is not possible now; null if it is."`
}

func (a *API) listAccountKinds(ctx context.Context, _ *struct{}) (*AccountKinds, error) {
	res, err := a.cfg.Accounts.ListAccountKinds(ctx, &credentialv1.ListAccountKindsRequest{})
	return &AccountKinds{
		Providers: append([]string{}, res.GetKeyProviders()...), Profiles: append([]string{}, res.GetProfiles()...),
		Logins: each(res.GetLogins(), func(l *credentialv1.LoginProvider) LoginProvider {
			return LoginProvider{l.GetName(), l.GetProvider(), each(l.GetKinds(), func(k credentialv1.LoginKind) string { return enumName(k) }), orNull(l.GetReason())}
		}),
	}, err
}

// UpdateAccount is the body of PATCH /api/accounts/{id}.
type UpdateAccount struct {
	Enabled  *bool `json:"enabled,omitempty" doc:"Whether the account is used for requests."`
	FlatRate *bool `json:"flat_rate,omitempty" doc:"Whether the account has a flat rate."`
}

func (a *API) updateAccount(ctx context.Context, in *struct {
	AccountInput
	Body UpdateAccount
},
) (*accountOutputBody, error) {
	account := in.ID.String()
	if in.Body.Enabled == nil && in.Body.FlatRate == nil {
		return nil, invalid("enabled or flat_rate is required")
	}
	var changed *credentialv1.Account
	if flat := in.Body.FlatRate; flat != nil {
		res, err := a.cfg.Accounts.SetFlatRate(ctx, &credentialv1.SetFlatRateRequest{Id: account, FlatRate: *flat})
		if err != nil {
			return nil, err
		}
		changed = res.GetAccount()
	}
	if enabled := in.Body.Enabled; enabled != nil {
		var err error
		if changed, err = a.enable(ctx, account, *enabled); err != nil {
			return nil, err
		}
	}
	return &accountOutputBody{viewAccount(changed)}, nil
}

func (a *API) enable(ctx context.Context, account string, enabled bool) (*credentialv1.Account, error) {
	if enabled {
		res, err := a.cfg.Accounts.EnableAccount(ctx, &credentialv1.EnableAccountRequest{Id: account})
		return res.GetAccount(), err
	}
	res, err := a.cfg.Accounts.DisableAccount(ctx, &credentialv1.DisableAccountRequest{Id: account})
	return res.GetAccount(), err
}

func (a *API) deleteAccount(ctx context.Context, in *struct {
	AccountInput
	Keep bool `query:"keep_at_provider" doc:"Do not revoke a sign-in at the provider."`
},
) (*Taken, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Accounts.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: in.ID.String(), KeepAtProvider: in.Keep})
	return &Taken{true, res.GetAtProvider(), orNull(res.GetReason())}, err
}

// AccountInput is the path of one account, and the header of a write to it.
type AccountInput struct {
	ID ID[id.Account] `path:"id" format:"uuid" doc:"The account's id."`
	Repeatable
}

// accountAction returns the handler of an action that needs nothing but the account.
func accountAction(act func(context.Context, string) (*credentialv1.Account, error)) func(context.Context, *AccountInput) (*accountOutputBody, error) {
	return func(ctx context.Context, in *AccountInput) (*accountOutputBody, error) {
		ctx, cancel := context.WithTimeout(ctx, providerTimeout)
		defer cancel()
		account, err := act(ctx, in.ID.String())
		return answer(account, err, accountBody)
	}
}

// LoggedOut is an account whose sign-in was revoked.
type LoggedOut struct {
	Account    Account `json:"account"`
	AtProvider bool    `json:"at_provider" doc:"The provider revoked it too."`
	Reason     *string `json:"reason" doc:"Explains why the provider did not revoke it."`
}

func (a *API) logoutAccount(ctx context.Context, in *AccountInput) (*LoggedOut, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Accounts.LogoutAccount(ctx, &credentialv1.LogoutAccountRequest{Id: in.ID.String()})
	if err != nil {
		return nil, err
	}
	return &LoggedOut{viewAccount(res.GetAccount()), res.GetAtProvider(), orNull(res.GetReason())}, nil
}
