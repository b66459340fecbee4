package api

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"

	"signalbox.dev/services/gateway/internal/store"
)

// logins are sign-ins for accounts. API keys cannot use them: a sign-in belongs to the
// member who started it, and acts for that person at the provider.
func (a *API) logins(tag string) {
	who := owners.inPerson()
	register(a, op("start-login", "POST /api/accounts/logins", tag, "Start to sign in to a provider, for a new account or again for an existing one", created,
		about("browser: the provider redirects the browser to the page that the operator has registered. If that is /api/connections/callback, the sign-in is completed there, and only in the browser that made this call, from a page of this server's own origin. "+
			"paste: the provider shows a code for the person to paste. device: the person enters a short code on any device. When signing in to an account again, the account stays unchanged until the sign-in is complete; if the account was a member's connection, it then becomes an owner's account. "+
			"With too many open sign-ins the answer is 429 until one expires.")), who, a.startLogin)
	handle(a, op("complete-login", "POST /api/accounts/logins/{id}/complete", tag, "Complete a sign-in with the provider's code, or the parameters of its redirect",
		about("The code is exchanged once: a repeated call returns the first call's answer. After a 503 it tries again.")), who, a.completeLogin)
	handle(a, op("poll-login", "POST /api/accounts/logins/{id}/poll", tag, "Ask whether the code of a device sign-in was entered",
		about("Once it was, repeated calls return the same answer.")), who, a.pollLogin)
}

// CreateLogin is the body of POST /api/accounts/logins.
type CreateLogin struct {
	Provider  string `json:"provider,omitempty" maxLength:"64" doc:"A sign-in provider; may be absent with account_id." example:"anthropic"`
	Kind      string `json:"kind" enum:"browser,paste,device"`
	Label     string `json:"label,omitempty" maxLength:"100"`
	AccountID string `json:"account_id,omitempty" format:"uuid" doc:"An account to sign in to again."`
	ReturnTo  string `json:"return_to,omitempty" maxLength:"500" doc:"As in POST /api/connections."`
}

// Login is a sign-in that was started.
type Login struct {
	ID          string  `json:"id" format:"uuid"`
	Kind        string  `json:"kind" enum:"browser,paste,device"`
	URL         string  `json:"url" format:"uri" doc:"The page for the person to open. It is for this person only."`
	UserCode    *string `json:"user_code" doc:"The code to enter there; only for a device sign-in."`
	URLWithCode *string `json:"url_with_code" doc:"A URL that includes the code, if the provider has one."`
	PollSeconds *int32  `json:"poll_seconds" doc:"Seconds to wait before each poll; only for a device sign-in."`
	ExpiresAt   string  `json:"expires_at" format:"date-time"`
}

// StartedLogin is the answer to POST /api/accounts/logins.
type StartedLogin struct {
	Login Login `json:"login"`
}

func (a *API) startLogin(ctx context.Context, in *struct {
	SignInKey
	Body CreateLogin
},
) (*startOutput[StartedLogin], error) {
	actor := principalOf(ctx).Actor
	b := &in.Body
	kind := credentialv1.LoginKind(credentialv1.LoginKind_value["LOGIN_KIND_"+strings.ToUpper(b.Kind)])
	switch {
	case b.Kind == "", enumName(kind) != b.Kind:
		return nil, invalid("kind: choose how to sign in: browser, paste or device")
	case b.Provider == "" && b.AccountID == "":
		return nil, invalid("provider or account_id is required")
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
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Accounts.StartLogin(ctx, &credentialv1.StartLoginRequest{
		Provider: b.Provider, Kind: kind, Label: b.Label, AccountId: b.AccountID, Id: in.Key.operationText(actor, "start-login"),
	})
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

// loginID is the id of a sign-in.
type loginID struct{ uuid.UUID }

// LoginPath is the path of one sign-in.
type LoginPath struct {
	ID ID[loginID] `path:"id" format:"uuid" doc:"The sign-in's id."`
}

func (a *API) completeLogin(ctx context.Context, in *struct {
	LoginPath
	Repeatable
	Body SignInAnswer
},
) (*accountOutputBody, error) {
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	account, err := a.finishLogin(ctx, in.ID.String(), in.Body)
	return answer(account, err, accountBody)
}

// finishLogin completes a sign-in. If login is empty, the answer's state identifies it.
func (a *API) finishLogin(ctx context.Context, login string, answer SignInAnswer) (*credentialv1.Account, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Accounts.CompleteLogin(ctx, &credentialv1.CompleteLoginRequest{Id: login, State: answer.State, Code: answer.Code, Error: answer.Error, Issuer: answer.Iss, Redirect: answer.Redirect})
	if err == nil {
		a.signedIn(ctx, res.GetAccount())
	}
	return res.GetAccount(), err
}

// PolledLogin reports whether a sign-in is complete.
type PolledLogin struct {
	Account     *Account `json:"account,omitempty" doc:"Absent until the sign-in is complete."`
	PollSeconds *int32   `json:"poll_seconds" doc:"Seconds to wait before the next poll; null when the sign-in is complete."`
}

func (a *API) pollLogin(ctx context.Context, in *struct {
	LoginPath
	Repeatable
},
) (*PolledLogin, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Accounts.PollLogin(ctx, &credentialv1.PollLoginRequest{Id: in.ID.String()})
	out := &PolledLogin{PollSeconds: orNull(res.GetPollSeconds())}
	if res.GetAccount() != nil {
		out.Account = new(viewAccount(res.GetAccount()))
	}
	return out, err
}
