package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"

	"signalbox.dev/services/gateway/internal/store"
)

// logins are sign-ins for accounts. A sign-in belongs to the member who began it, and
// what it is good for at the provider to a person: it is not for API keys.
func (a *API) logins(tags []string) {
	owners := access{role: identity.Owner, people: true}
	handle(a, huma.Operation{
		OperationID: "start-login", Method: http.MethodPost, Path: "/api/accounts/logins", DefaultStatus: http.StatusCreated,
		Tags: tags, Summary: "Begin to sign in to a provider, for a new account or for one again",
		Description: "browser: the provider sends the browser back to the page that the operator has registered; where that is /api/connections/callback it is completed there, and only in the browser that made this call, which is a page of this server's own origin. " +
			"paste: the provider shows a code. device: a short code is typed in on another device. An account that is signed in to again stays as it is until then; the connection of a member becomes an owner's account with it. " +
			"Who has many sign-ins open waits until one expires (429).",
	}, owners, a.startLogin)
	handle(a, huma.Operation{
		OperationID: "complete-login", Method: http.MethodPost, Path: "/api/accounts/logins/{id}/complete",
		Tags: tags, Summary: "Complete a sign-in with what the provider showed, or sent the browser back with",
		Description: "The provider is asked once: a repeat is answered as the first call was. After 503 it tries again.",
	}, owners, a.completeLogin)
	handle(a, huma.Operation{
		OperationID: "poll-login", Method: http.MethodPost, Path: "/api/accounts/logins/{id}/poll",
		Tags: tags, Summary: "Ask whether a device's code was typed in",
		Description: "When it was, a repeat is answered the same.",
	}, owners, a.pollLogin)
}

var loginKinds = map[string]credentialv1.LoginKind{
	"browser": credentialv1.LoginKind_LOGIN_KIND_BROWSER,
	"paste":   credentialv1.LoginKind_LOGIN_KIND_PASTE,
	"device":  credentialv1.LoginKind_LOGIN_KIND_DEVICE,
}

func loginKindName(k credentialv1.LoginKind) string {
	for name, kind := range loginKinds {
		if kind == k {
			return name
		}
	}
	return ""
}

// CreateLogin is the body of POST /api/accounts/logins.
type CreateLogin struct {
	Provider  string `json:"provider,omitempty" maxLength:"64" doc:"Of the sign-in providers; may be absent with account_id." example:"anthropic"`
	Kind      string `json:"kind" enum:"browser,paste,device"`
	Label     string `json:"label,omitempty" maxLength:"100"`
	AccountID string `json:"account_id,omitempty" format:"uuid" doc:"An account to sign in to again."`
	ReturnTo  string `json:"return_to,omitempty" maxLength:"500" doc:"As of POST /api/connections."`
}

// Login is a sign-in that has begun.
type Login struct {
	ID          string  `json:"id" format:"uuid"`
	Kind        string  `json:"kind" enum:"browser,paste,device"`
	URL         string  `json:"url" format:"uri" doc:"What the person opens. It is for them alone."`
	UserCode    *string `json:"user_code" doc:"What they type in there, with a device."`
	URLWithCode *string `json:"url_with_code" doc:"The same in one, where the provider has it."`
	PollSeconds *int32  `json:"poll_seconds" doc:"How long to wait before each poll of a device."`
	ExpiresAt   string  `json:"expires_at" format:"date-time"`
}

// StartedLogin is the answer to POST /api/accounts/logins.
type StartedLogin struct {
	Login Login `json:"login"`
}

func (a *API) startLogin(ctx context.Context, in *struct {
	Begun
	Body CreateLogin
},
) (*startOutput[StartedLogin], error) {
	actor := principalOf(ctx).Actor
	login, err := in.id(actor, "start-login")
	if err != nil {
		return nil, err
	}
	b := &in.Body
	kind, ok := loginKinds[b.Kind]
	switch {
	case !ok:
		return nil, invalid("kind: say how to sign in: browser, paste or device")
	case b.Provider == "" && b.AccountID == "":
		return nil, invalid("provider is required, or account_id")
	case b.AccountID != "":
		if _, err := parseID[id.Account]("account_id", b.AccountID); err != nil {
			return nil, err
		}
	}
	if err := checkText("label", b.Label, 100); err != nil {
		return nil, err
	}
	returnTo, err := a.returnPath(b.ReturnTo)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Accounts.StartLogin(ctx, &credentialv1.StartLoginRequest{Provider: b.Provider, Kind: kind, Label: b.Label, AccountId: b.AccountID, Id: login})
	if err != nil {
		return nil, err
	}
	out := &startOutput[StartedLogin]{}
	out.Body.Login = Login{
		ID: res.GetId(), Kind: b.Kind, URL: res.GetUrl(), UserCode: orNull(res.GetUserCode()), URLWithCode: orNull(res.GetUrlWithCode()),
		PollSeconds: orNull(res.GetPollSeconds()), ExpiresAt: stamp(res.GetExpiresAt()),
	}
	if kind == credentialv1.LoginKind_LOGIN_KIND_BROWSER {
		out.Cookie, err = a.bindBrowser(ctx, res.GetUrl(), res.GetExpiresAt().AsTime(), store.SignIn{
			Workspace: actor.Workspace, Member: actor.Member, Kind: store.ForAccount, Provider: b.Provider, ReturnTo: returnTo,
		})
	}
	return out, err
}

// LoginPath is the path of one sign-in.
type LoginPath struct {
	ID string `path:"id" format:"uuid" doc:"The sign-in's id."`
}

func (p LoginPath) login() (string, error) {
	login, err := uuid.Parse(p.ID)
	if err != nil {
		return "", invalid("id: %q is not a UUID", clip(p.ID))
	}
	return login.String(), nil
}

func (a *API) completeLogin(ctx context.Context, in *struct {
	LoginPath
	Repeatable
	Body SignInAnswer
},
) (*accountOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	login, err := in.login()
	if err != nil {
		return nil, err
	}
	return showAccount(a.finishLogin(ctx, login, in.Body))
}

// finishLogin completes a sign-in, which may be named by its state alone.
func (a *API) finishLogin(ctx context.Context, login string, answer SignInAnswer) (*credentialv1.Account, error) {
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Accounts.CompleteLogin(ctx, &credentialv1.CompleteLoginRequest{Id: login, State: answer.State, Code: answer.Code, Error: answer.Error})
	return res.GetAccount(), err
}

// PolledLogin says whether a sign-in is done.
type PolledLogin struct {
	Account     *Account `json:"account,omitempty" doc:"Absent until it is done."`
	PollSeconds *int32   `json:"poll_seconds" doc:"How long to wait before the next poll; null when it is done."`
}

func (a *API) pollLogin(ctx context.Context, in *struct {
	LoginPath
	Repeatable
},
) (*struct{ Body PolledLogin }, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	login, err := in.login()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Accounts.PollLogin(ctx, &credentialv1.PollLoginRequest{Id: login})
	if err != nil {
		return nil, err
	}
	out := &struct{ Body PolledLogin }{PolledLogin{PollSeconds: orNull(res.GetPollSeconds())}}
	if res.GetAccount() != nil {
		out.Body.Account = new(viewAccount(res.GetAccount()))
	}
	return out, nil
}
