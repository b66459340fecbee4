package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/seal"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

func (a *API) accounts() {
	tags := []string{"Accounts"}
	owners := access{role: identity.Owner}
	handle(a, huma.Operation{
		OperationID: "list-accounts", Method: http.MethodGet, Path: "/api/accounts",
		Tags: tags, Summary: "List the workspace's provider accounts, and that the operator shares some",
		Description: "No secret is shown, to nobody.",
	}, owners, a.listAccounts)
	handle(a, huma.Operation{
		OperationID: "create-account", Method: http.MethodPost, Path: AccountsPath, DefaultStatus: http.StatusCreated, MaxBodyBytes: maxAccount,
		Tags: tags, Summary: "Add an API key of a provider",
		Description: "The key is stored encrypted and never shown again. Who seals it (sealed_secret, see /api/accounts/sealing-key) shows it to the credential broker alone; else the body is handed on unread, and its connection is closed. For accounts that one signs in to see /api/accounts/logins.",
	}, owners, a.createAccount)
	// On a copy: of the operation itself huma would take it to be the one that reads the body.
	create := *a.huma.OpenAPI().Paths[AccountsPath].Post
	create.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[CreateAccount](), true, "CreateAccount")},
	}}
	a.huma.OpenAPI().Paths[AccountsPath].Post = &create
	handle(a, huma.Operation{
		OperationID: "get-sealing-key", Method: http.MethodGet, Path: "/api/accounts/sealing-key",
		Tags: tags, Summary: "Get the public key with which a secret is sealed for the credential broker",
		Description: "HPKE (RFC 9180), base mode, one message, no associated data. The info is five texts with a line feed between them: `signalbox v1`, `account secret`, the workspace's id, and provider and base_url as the request has them (empty where it has none). What is sealed is the secret as it is. Another key is in use after a rotation of keys; one that is not any more is refused: 409, SEALING_KEY_UNKNOWN.",
	}, owners, a.getSealingKey)
	handle(a, huma.Operation{
		OperationID: "list-account-kinds", Method: http.MethodGet, Path: "/api/accounts/kinds",
		Tags: tags, Summary: "List what accounts can be added: as keys, and by signing in",
	}, owners, a.listAccountKinds)
	handle(a, huma.Operation{
		OperationID: "update-account", Method: http.MethodPatch, Path: "/api/accounts/{id}",
		Tags: tags, Summary: "Enable or disable an account, or say how it is paid",
		Description: "Of two changes one can fail alone: the call can be repeated.",
	}, owners, a.updateAccount)
	handle(a, huma.Operation{
		OperationID: "delete-account", Method: http.MethodDelete, Path: "/api/accounts/{id}",
		Tags: tags, Summary: "Remove an account",
		Description: "A sign-in is taken back at the provider too, as far as that can be done. An API key cannot remove an account that somebody signed in to: PERSON_NEEDED.",
	}, owners, a.deleteAccount)
	for _, act := range []struct{ name, summary, about string }{
		{"reset", "Forget an account's limits and make it healthy", ""},
		{"switch", "Make an account the current one of its pool", "A pool that takes its accounts in turn has none: 409."},
		{"refresh", "Renew an account's access token now", "Of an account that somebody signed in to."},
	} {
		handle(a, huma.Operation{
			OperationID: act.name + "-account", Method: http.MethodPost, Path: "/api/accounts/{id}/" + act.name,
			Tags: tags, Summary: act.summary, Description: act.about,
		}, owners, a.accountAction(act.name))
	}
	handle(a, huma.Operation{
		OperationID: "logout-account", Method: http.MethodPost, Path: "/api/accounts/{id}/logout",
		Tags: tags, Summary: "Take a sign-in back, here and at the provider; the account stays and can be signed in to again",
	}, access{role: identity.Owner, people: true}, a.logoutAccount)
	a.logins(tags)
	a.pools(tags, owners)
}

// Account is a credential of a provider, without its secret.
type Account struct {
	ID         string     `json:"id" format:"uuid"`
	Provider   string     `json:"provider" example:"anthropic"`
	Profile    string     `json:"profile" doc:"The request profile." example:"anthropic-api-key"`
	Label      string     `json:"label"`
	Hint       *string    `json:"hint" doc:"The end of the key, for people to tell keys apart." example:"9f3a"`
	BaseURL    *string    `json:"base_url" doc:"Null for the profile's own."`
	Origin     string     `json:"origin" enum:"workspace,shared" doc:"Of a shared account, which is the operator's, only the first lines are told."`
	Enabled    bool       `json:"enabled"`
	FlatRate   bool       `json:"flat_rate" doc:"It is paid by the month: its use costs nothing."`
	CreatedAt  string     `json:"created_at" format:"date-time"`
	LastUsedAt *string    `json:"last_used_at" format:"date-time"`
	Status     *string    `json:"status" enum:"ready,cooling,unhealthy,disabled,reauthorize,signed_out,unusable" doc:"cooling: parked, whole or for some models, or passed over. unhealthy: used when there is no better one. reauthorize: somebody must sign in again. unusable: its stored credential does not open. Null for shared accounts, as what follows."`
	Reason     *string    `json:"reason" doc:"For people: why it is unusable; null where it is not."`
	Health     *float64   `json:"health" doc:"From 0 to 100."`
	Tokens     *float64   `json:"tokens" doc:"What is left of the account's requests, as the server counts that answers; null where it does not."`
	Cooldowns  []Cooldown `json:"cooldowns" nullable:"false"`
	Grant      *Grant     `json:"grant,omitempty" doc:"The sign-in; absent where the account is a key."`
}

// Cooldown is why, and until when, requests do not go to an account.
type Cooldown struct {
	Family     *string `json:"family" doc:"Of models; null for the account as a whole."`
	Since      string  `json:"since" format:"date-time"`
	Until      string  `json:"until" format:"date-time"`
	Reason     string  `json:"reason" example:"RATE_LIMIT_EXCEEDED"`
	PassedOver bool    `json:"passed_over" doc:"The account is not parked: others go first, for the model that family names, or for all."`
	HTTPStatus *int32  `json:"http_status" doc:"Of the provider's answer."`
	RetryAfter *string `json:"retry_after" doc:"The header that asked for it, as the provider sent it."`
	Step       int32   `json:"step" doc:"How often in a row the quota was used up."`
}

// Grant is a sign-in at a provider.
type Grant struct {
	Provider  string  `json:"provider" doc:"Of the sign-in providers."`
	State     string  `json:"state" enum:"active,reauthorize,revoking,revoked"`
	Reason    *string `json:"reason" doc:"For people: why it is not active."`
	LastError *string `json:"last_error" doc:"For people: what went wrong last while it is."`
	Scope     *string `json:"scope"`
	IssuedAt  string  `json:"issued_at" format:"date-time"`
	ExpiresAt *string `json:"expires_at" format:"date-time" doc:"Of the access token; null for never."`
	RefreshAt *string `json:"refresh_at" format:"date-time"`
	Renewable bool    `json:"renewable" doc:"There is a refresh token."`
}

var accountStatuses = map[credentialv1.AccountStatus]string{
	credentialv1.AccountStatus_ACCOUNT_STATUS_READY:       "ready",
	credentialv1.AccountStatus_ACCOUNT_STATUS_COOLING:     "cooling",
	credentialv1.AccountStatus_ACCOUNT_STATUS_UNHEALTHY:   "unhealthy",
	credentialv1.AccountStatus_ACCOUNT_STATUS_DISABLED:    "disabled",
	credentialv1.AccountStatus_ACCOUNT_STATUS_REAUTHORIZE: "reauthorize",
	credentialv1.AccountStatus_ACCOUNT_STATUS_SIGNED_OUT:  "signed_out",
	credentialv1.AccountStatus_ACCOUNT_STATUS_UNUSABLE:    "unusable",
}

func viewAccount(m *credentialv1.Account) Account {
	v := Account{
		ID: m.GetId(), Provider: m.GetProvider(), Profile: m.GetProfile(), Label: m.GetLabel(), Hint: orNull(m.GetHint()), BaseURL: orNull(m.GetBaseUrl()),
		Origin: "workspace", Enabled: m.GetEnabled(), FlatRate: m.GetFlatRate(), CreatedAt: stamp(m.GetCreatedAt()), LastUsedAt: stampOrNull(m.GetLastUsedAt()),
		Status: orNull(accountStatuses[m.GetStatus()]), Reason: orNull(m.GetReason()), Health: m.Health, Tokens: m.Tokens, Cooldowns: make([]Cooldown, len(m.GetCooldowns())),
	}
	if m.GetOrigin() == credentialv1.Origin_ORIGIN_SHARED {
		v.Origin = "shared"
	}
	for i, c := range m.GetCooldowns() {
		v.Cooldowns[i] = Cooldown{
			Family: orNull(c.GetFamily()), Since: stamp(c.GetSince()), Until: stamp(c.GetUntil()), Reason: c.GetReason(),
			HTTPStatus: orNull(c.GetStatus()), RetryAfter: orNull(c.GetRetryAfter()), Step: c.GetStep(), PassedOver: c.GetPassedOver(),
		}
	}
	if g := m.GetGrant(); g != nil {
		v.Grant = &Grant{
			Provider: g.GetProvider(), State: g.GetState(), Reason: orNull(g.GetReason()), LastError: orNull(g.GetLastError()), Scope: orNull(g.GetScope()),
			IssuedAt: stamp(g.GetIssuedAt()), ExpiresAt: stampOrNull(g.GetExpiresAt()), RefreshAt: stampOrNull(g.GetRefreshAt()), Renewable: g.GetRenewable(),
		}
	}
	return v
}

// AccountPath is the path of one account.
type AccountPath struct {
	ID string `path:"id" format:"uuid" doc:"The account's id."`
}

func (p AccountPath) account() (string, error) {
	account, err := parseID[id.Account]("id", p.ID)
	return account.String(), err
}

type accountOutput struct {
	Body struct {
		Account Account `json:"account"`
	}
}

func showAccount(m *credentialv1.Account, err error) (*accountOutput, error) {
	if err != nil {
		return nil, err
	}
	out := &accountOutput{}
	out.Body.Account = viewAccount(m)
	return out, nil
}

type accountsOutput struct {
	Body struct {
		Accounts   []Account `json:"accounts" nullable:"false"`
		NextCursor *string   `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listAccounts(ctx context.Context, in *WindowInput) (*accountsOutput, error) {
	res, err := a.cfg.Accounts.ListAccounts(ctx, &credentialv1.ListAccountsRequest{})
	if err != nil {
		return nil, err
	}
	out := &accountsOutput{}
	found, next := window(*in, res.GetAccounts(), func(m *credentialv1.Account) string { return stamp(m.GetCreatedAt()) + "~" + m.GetId() })
	out.Body.Accounts, out.Body.NextCursor = make([]Account, len(found)), next
	for i, m := range found {
		out.Body.Accounts[i] = viewAccount(m)
	}
	return out, nil
}

// AccountsPath is where secrets come in: see package gateway, forgetBodies.
const AccountsPath = "/api/accounts"

// maxAccount bounds the body of POST /api/accounts.
const maxAccount = 64 << 10

// CreateAccount is the body of POST /api/accounts. The credential broker reads it.
type CreateAccount struct {
	Provider string        `json:"provider" minLength:"1" maxLength:"32" doc:"A provider that needs nothing else, or a name of your own." example:"anthropic"`
	Profile  string        `json:"profile,omitempty" maxLength:"64" doc:"The request profile; the provider's own when absent."`
	Label    string        `json:"label,omitempty" maxLength:"100"`
	Secret   conf.Secret   `json:"secret,omitempty" minLength:"1" maxLength:"8192" writeOnly:"true" doc:"The key; or sealed_secret."`
	Sealed   *SealedSecret `json:"sealed_secret,omitempty" writeOnly:"true" doc:"The key, sealed for the credential broker; or secret."`
	BaseURL  string        `json:"base_url,omitempty" maxLength:"2000" doc:"Where the provider is; the profile's own when absent."`
	FlatRate bool          `json:"flat_rate,omitempty" doc:"It is paid by the month: its use costs nothing."`
}

// SealedSecret is a secret that only the credential broker opens.
type SealedSecret struct {
	KeyID  string `json:"key_id" doc:"Of the key at /api/accounts/sealing-key."`
	Sealed []byte `json:"sealed" doc:"The encapsulated key (enc, 32 bytes), and behind it the ciphertext; base64."`
}

// createAccountInput is a body that nobody here parses: read into one buffer, which is
// cleared when its text has been sealed.
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
		return []error{&Error{status: http.StatusRequestEntityTooLarge}} // transformError says the rest
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || n == 0 {
		clear(buffer)
		return []error{&Error{status: http.StatusBadRequest, Message: "the body did not come, or not whole"}}
	}
	return nil
}

// createAccount hands a body on, sealed: in clear it is in no buffer but the one that it was
// read into, which nothing of what carries a call could promise.
func (a *API) createAccount(ctx context.Context, in *createAccountInput) (*accountOutput, error) {
	defer clear(in.body)
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	if json.Valid(in.body) { // what is not, the broker says; neither look copies a value
		if err := checkBody(in.body, reflect.TypeFor[CreateAccount]()); err != nil {
			return nil, invalid("%v", err)
		}
	}
	req := &credentialv1.AddAccountRequest{Id: operationKey(principalOf(ctx).Actor, "create-account", key)}
	sealing, err := a.cfg.Accounts.GetSealingKey(ctx, &credentialv1.GetSealingKeyRequest{})
	switch {
	case connect.CodeOf(err) == connect.CodeUnimplemented: // a broker of the version before
		err = readAccount(in.body, req)
	case err == nil:
		req.Body = &credentialv1.SealedText{KeyId: sealing.GetKeyId()}
		req.Body.Sealed, err = seal.Seal(sealing.GetPublicKey(), seal.Body(principalOf(ctx).Actor.Workspace.String()), in.body)
	}
	if err != nil {
		return nil, err
	}
	clear(in.body)
	res, err := a.cfg.Accounts.AddAccount(ctx, req)
	return showAccount(res.GetAccount(), err)
}

// readAccount reads a body for a broker that does not.
func readAccount(body []byte, req *credentialv1.AddAccountRequest) error {
	var b CreateAccount
	if err := decodeJSON(body, &b); err != nil {
		return invalid("%v", err)
	}
	req.Provider, req.Profile, req.Label, req.BaseUrl = b.Provider, b.Profile, b.Label, b.BaseURL
	req.FlatRate, req.Secret = b.FlatRate, b.Secret.Reveal()
	return nil
}

// SealingKey is a public key.
type SealingKey struct {
	ID        string `json:"id"`
	PublicKey []byte `json:"public_key" doc:"Of X25519, 32 bytes; base64."`
	KEM       string `json:"kem" example:"DHKEM(X25519, HKDF-SHA256)"`
	KDF       string `json:"kdf" example:"HKDF-SHA256"`
	AEAD      string `json:"aead" example:"AES-256-GCM"`
}

type sealingKeyOutput struct {
	Body struct {
		SealingKey SealingKey `json:"sealing_key"`
	}
}

func (a *API) getSealingKey(ctx context.Context, _ *struct{}) (*sealingKeyOutput, error) {
	res, err := a.cfg.Accounts.GetSealingKey(ctx, &credentialv1.GetSealingKeyRequest{})
	if err != nil {
		return nil, err
	}
	out := &sealingKeyOutput{}
	out.Body.SealingKey = SealingKey{ID: res.GetKeyId(), PublicKey: res.GetPublicKey(), KEM: seal.KEM, KDF: seal.KDF, AEAD: seal.AEAD}
	return out, nil
}

// AccountKinds are what accounts can be added.
type AccountKinds struct {
	Providers []string        `json:"providers" nullable:"false" doc:"Whose keys need neither a profile nor a base URL."`
	Profiles  []string        `json:"profiles" nullable:"false" doc:"Request profiles, for others."`
	Logins    []LoginProvider `json:"logins" nullable:"false"`
}

// LoginProvider is a provider that one can sign in to.
type LoginProvider struct {
	Name     string   `json:"name" example:"github"`
	Provider string   `json:"provider" doc:"The provider that the account will be of."`
	Kinds    []string `json:"kinds" nullable:"false" enum:"browser,paste,device"`
	Reason   *string  `json:"reason" doc:"For people: why nobody can sign in to it now. Null where they can."`
}

func (a *API) listAccountKinds(ctx context.Context, _ *struct{}) (*struct{ Body AccountKinds }, error) {
	res, err := a.cfg.Accounts.ListAccountKinds(ctx, &credentialv1.ListAccountKindsRequest{})
	if err != nil {
		return nil, err
	}
	out := &struct{ Body AccountKinds }{AccountKinds{
		Providers: append([]string{}, res.GetKeyProviders()...), Profiles: append([]string{}, res.GetProfiles()...), Logins: make([]LoginProvider, len(res.GetLogins())),
	}}
	for i, l := range res.GetLogins() {
		v := LoginProvider{Name: l.GetName(), Provider: l.GetProvider(), Kinds: []string{}, Reason: orNull(l.GetReason())}
		for _, k := range l.GetKinds() {
			v.Kinds = append(v.Kinds, loginKindName(k))
		}
		out.Body.Logins[i] = v
	}
	return out, nil
}

// UpdateAccount is the body of PATCH /api/accounts/{id}.
type UpdateAccount struct {
	Enabled  *bool `json:"enabled,omitempty" doc:"Whether requests go out under the account."`
	FlatRate *bool `json:"flat_rate,omitempty" doc:"Whether it is paid by the month."`
}

func (a *API) updateAccount(ctx context.Context, in *struct {
	AccountPath
	Repeatable
	Body UpdateAccount
},
) (*accountOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	account, err := in.account()
	if err != nil {
		return nil, err
	}
	if in.Body.Enabled == nil && in.Body.FlatRate == nil {
		return nil, invalid("enabled is required, or flat_rate")
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
		if changed, err = a.enable(ctx, account, *enabled); err != nil {
			return nil, err
		}
	}
	return showAccount(changed, nil)
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
	AccountPath
	Keep bool `query:"keep_at_provider" doc:"Leave a sign-in as it is at the provider."`
	Repeatable
},
) (*struct{ Body Taken }, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	account, err := in.account()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Accounts.RemoveAccount(ctx, &credentialv1.RemoveAccountRequest{Id: account, KeepAtProvider: in.Keep})
	if err != nil {
		return nil, err
	}
	return &struct{ Body Taken }{Taken{true, res.GetAtProvider(), orNull(res.GetReason())}}, nil
}

type accountInput struct {
	AccountPath
	Repeatable
}

// accountAction returns what is done with an account that is only named.
func (a *API) accountAction(name string) func(context.Context, *accountInput) (*accountOutput, error) {
	act := map[string]func(context.Context, string) (*credentialv1.Account, error){
		"reset": func(ctx context.Context, account string) (*credentialv1.Account, error) {
			res, err := a.cfg.Accounts.ResetAccount(ctx, &credentialv1.ResetAccountRequest{Id: account})
			return res.GetAccount(), err
		},
		"switch": func(ctx context.Context, account string) (*credentialv1.Account, error) {
			res, err := a.cfg.Accounts.SwitchAccount(ctx, &credentialv1.SwitchAccountRequest{Id: account})
			return res.GetAccount(), err
		},
		"refresh": func(ctx context.Context, account string) (*credentialv1.Account, error) {
			res, err := a.cfg.Accounts.RefreshAccount(ctx, &credentialv1.RefreshAccountRequest{Id: account})
			return res.GetAccount(), err
		},
	}[name]
	return func(ctx context.Context, in *accountInput) (*accountOutput, error) {
		if err := in.check(); err != nil {
			return nil, err
		}
		account, err := in.account()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, callsOut)
		defer cancel()
		return showAccount(act(ctx, account))
	}
}

// LoggedOut is an account after its sign-in was taken back.
type LoggedOut struct {
	Account    Account `json:"account"`
	AtProvider bool    `json:"at_provider" doc:"The provider took it back too."`
	Reason     *string `json:"reason" doc:"For people: why the provider did not."`
}

func (a *API) logoutAccount(ctx context.Context, in *accountInput) (*struct{ Body LoggedOut }, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	account, err := in.account()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Accounts.LogoutAccount(ctx, &credentialv1.LogoutAccountRequest{Id: account})
	if err != nil {
		return nil, err
	}
	return &struct{ Body LoggedOut }{LoggedOut{viewAccount(res.GetAccount()), res.GetAtProvider(), orNull(res.GetReason())}}, nil
}

// WindowInput is the query of a list that a service hands over whole.
type WindowInput struct {
	Cursor string `query:"cursor" maxLength:"200" doc:"next_cursor of the page before."`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"20"`
}

// window returns a page of what there is, in the order of its keys, and the cursor of
// the next one, nil at the end. Keys are texts of which no two are the same.
func window[T any](in WindowInput, all []T, key func(T) string) ([]T, *string) {
	all = slices.DeleteFunc(slices.Clone(all), func(v T) bool { return key(v) <= in.Cursor })
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if len(all) <= in.Limit {
		return all, nil
	}
	return all[:in.Limit], new(key(all[in.Limit-1]))
}
