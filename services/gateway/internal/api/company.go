package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"net/mail"
	"regexp"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/oidc"
	"signalbox.dev/services/gateway/internal/store"
)

// A person signs in at the company's OpenID Connect provider: OIDCPath sends the browser there
// with a cookie that names the attempt, and the provider sends it back to OIDCCallbackPath, which
// only the browser with the cookie can use. The session's cookie is SameSite=Strict: a browser
// keeps it from the answer to the provider's redirect, and sends it once our page runs.

const (
	// OIDCPath begins a sign-in.
	OIDCPath = "/api/sign-in/oidc"
	// OIDCCallbackPath is where the provider sends the browser back.
	OIDCCallbackPath = OIDCPath + "/callback"
)

// attemptCookie keeps an attempt in the browser that began it. After a refusal it has only the
// prompt of the next attempt, so that the person can choose another account.
const attemptCookie = "signalbox_oidc"

// attemptLifetime is how long a person may take at the provider.
const attemptLifetime = 10 * time.Minute

// Company is the sign-in at an OpenID Connect provider.
type Company struct {
	Name     string // what people call the provider
	Provider *oidc.Provider
	Secure   bool // browsers reach this server over HTTPS
	Domains  []store.Domain
	Lifetime time.Duration // of a session
}

type signInMethodsOutputBody struct {
	Company *CompanySignIn `json:"company" doc:"The sign-in at the company's OpenID Connect provider; null without one."`
}

// CompanySignIn is a link to a company's sign-in page.
type CompanySignIn struct {
	Name string `json:"name" doc:"What people call it."`
	Path string `json:"path" doc:"Where to send the browser; ?return_to= is the path on this server to continue at." example:"/api/sign-in/oidc"`
}

func (a *API) company() {
	const tag = "Signing in"
	handle(a, op("list-sign-ins", "GET /api/sign-in", tag, "Tell how people can sign in, besides a token or a link"), access{open: true},
		func(context.Context, *struct{}) (*signInMethodsOutputBody, error) {
			if a.cfg.Company == nil {
				return &signInMethodsOutputBody{}, nil
			}
			return &signInMethodsOutputBody{&CompanySignIn{a.cfg.Company.Name, OIDCPath}}, nil
		})
	a.browserPage(OIDCPath, a.beginOIDC, huma.Operation{
		OperationID: "begin-oidc-sign-in", Tags: []string{tag}, Summary: "Send the browser to the company's sign-in page",
		Description: "For browsers only. It sets a cookie, without which nobody can complete the sign-in.",
		Parameters:  []*huma.Param{textParam("return_to", "The path on this server to continue at.", maxReturn)},
		Responses: map[string]*huma.Response{
			"303": {Description: "Redirects to the sign-in page."},
			"404": {Description: "This server has no company sign-in."},
			"500": {Description: "An internal error, which is logged and not shown."},
			"503": {Description: "The sign-in page does not answer."},
		},
	})
	a.browserPage(OIDCCallbackPath, a.finishOIDC, huma.Operation{
		OperationID: "finish-oidc-sign-in", Tags: []string{tag}, Summary: "Complete a sign-in: the page to which the company's sign-in page redirects the browser",
		Description: "For browsers only. Instead of a token it requires the cookie of the browser that began the sign-in.",
		Parameters: []*huma.Param{
			textParam("state", "The state that was sent to the provider.", maxState), textParam("code", "The code that the provider issued.", maxCode),
			textParam("error", "The provider's error, if it issued no code.", maxErrorCode), textParam("iss", "The provider's issuer, if it names itself (RFC 9207).", maxIssuer),
		},
		Responses: map[string]*huma.Response{
			"303": {Description: "Signed in: it sets the session's cookie, and redirects to the path that was given at the start."},
			"400": {Description: "The parameters are not those of a provider's redirect."},
			"401": {Description: "This browser did not begin the sign-in, or the provider does not confirm it."},
			"403": {Description: "The person is in no workspace, and nobody has invited them."},
			"404": {Description: "This server has no company sign-in."},
			"500": {Description: "An internal error, which is logged and not shown."},
			"429": {Description: "Too many sign-ins from the address failed; Retry-After says how long to wait."},
			"503": {Description: "The provider or a service is unavailable."},
		},
	})
}

const maxReturn = 500

// returnForm matches paths that a browser resolves on the same host, unlike //host and /\host.
var returnForm = regexp.MustCompile(`^/([A-Za-z0-9._~-][A-Za-z0-9._~/-]*)?(\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~=&-]*)?$`)

func (a *API) beginOIDC(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Company == nil {
		a.refuseSignIn(w, r, noCompany())
		return
	}
	to := r.URL.Query().Get("return_to")
	if !returnForm.MatchString(to) || len(to) > maxReturn {
		to = "/"
	}
	var prompt string
	if c, err := r.Cookie(a.attempt("", 0).Name); err == nil && (c.Value == oidc.SelectAccount || c.Value == oidc.Login) {
		prompt = c.Value
	}
	page, attempt, err := a.cfg.Company.Provider.Begin(r.Context(), prompt)
	if err != nil {
		a.refuseSignIn(w, r, err)
		return
	}
	parts := []string{attempt.State, attempt.Nonce, attempt.Verifier, base64.RawURLEncoding.EncodeToString([]byte(to))}
	if prompt != "" {
		parts = append(parts, prompt) // only then: a gateway of the previous version reads four parts
	}
	value := strings.Join(parts, ".")
	http.SetCookie(w, a.attempt(value, attemptLifetime))
	w.Header().Set("Location", page)
	w.WriteHeader(http.StatusSeeOther)
}

func noCompany() error {
	return fault.New(fault.NotFound, "this server has no company sign-in: sign in with a token or a link")
}

func (a *API) refuseSignIn(w http.ResponseWriter, r *http.Request, err error) {
	a.refusePage(w, r, err, page{Link: "/sign-in", Again: "Go back, and sign in again."})
}

// attempt returns the cookie of an attempt. Lax: it is sent with the provider's redirect.
func (a *API) attempt(value string, lifetime time.Duration) *http.Cookie {
	c := http.Cookie{Name: attemptCookie, Value: value, Path: OIDCPath, MaxAge: int(lifetime.Seconds()), HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if a.cfg.Company.Secure {
		c.Name, c.Path, c.Secure = hostPrefix+c.Name, "/", true
	}
	return &c
}

func (a *API) finishOIDC(w http.ResponseWriter, r *http.Request) {
	if a.cfg.Company == nil {
		a.refuseSignIn(w, r, noCompany())
		return
	}
	attempt, to := a.begun(r)
	answer, _ := r.Context().Value(redirectKey{}).(SignInAnswer)
	secret, err := a.companySignIn(r, attempt, answer)
	if err != nil {
		if prompt := nextPrompt(attempt, answer, err); prompt != "" {
			http.SetCookie(w, a.attempt(prompt, attemptLifetime))
		}
		a.refuseSignIn(w, r, err)
		return
	}
	http.SetCookie(w, a.attempt("", -time.Second)) // it is used up
	w.Header().Add("Set-Cookie", sessionCookieFor(a.cfg.Company.Secure, secret, a.cfg.Company.Lifetime))
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// begun returns the attempt of the browser's cookie, and the path to continue at. Without one, the
// attempt is zero.
func (a *API) begun(r *http.Request) (attempt oidc.Attempt, to string) {
	c, err := r.Cookie(a.attempt("", 0).Name)
	if err != nil {
		return attempt, ""
	}
	parts := strings.Split(c.Value, ".")
	if len(parts) < 4 {
		return attempt, ""
	}
	attempt = oidc.Attempt{State: parts[0], Nonce: parts[1], Verifier: parts[2]}
	if len(parts) > 4 {
		attempt.Prompt = parts[4]
	}
	path, err := base64.RawURLEncoding.DecodeString(parts[3])
	if to = string(path); err != nil || !returnForm.MatchString(to) {
		to = "/"
	}
	return attempt, to
}

// nextPrompt returns the prompt of the attempt that follows a refused one: it has the provider
// ask for the account. It is empty if the same account may do, and if the answer is not that of
// the attempt.
func nextPrompt(begun oidc.Attempt, answer SignInAnswer, err error) string {
	switch code := fault.From(err).Code; {
	case code == "SIGN_IN_REFUSED" && answer.Error != "" && answer.Error != "access_denied" && begun.Prompt == oidc.SelectAccount:
		return oidc.Login // the provider does not know the other prompt
	case code == "NOT_INVITED", code == "SIGN_IN_REFUSED" && answer.Error == "access_denied":
		return cmp.Or(begun.Prompt, oidc.SelectAccount)
	default:
		return ""
	}
}

// companySignIn completes a sign-in and returns the secret of a browser session.
func (a *API) companySignIn(r *http.Request, attempt oidc.Attempt, answer SignInAnswer) (secret string, err error) {
	ctx := r.Context()
	if answer == (SignInAnswer{}) {
		return "", invalid("your company's sign-in page redirects your browser to this page. It cannot be opened by itself")
	}
	if err := answer.check(); err != nil {
		return "", err
	}
	who, err := a.cfg.Company.Provider.Finish(ctx, attempt, oidc.Answer{State: answer.State, Code: answer.Code, Error: answer.Error, Iss: answer.Iss})
	if err != nil {
		return "", a.cfg.Authenticator.Failed(a.cfg.Authenticator.Address(r), true, err)
	}
	if err := a.cfg.Store.Admit(ctx, store.Person(who), a.cfg.Company.Domains); err != nil {
		return "", err
	}
	_, key, err := a.cfg.Store.SignIn(ctx, who.Member, strings.ToValidUTF8(clip(r.UserAgent()), ""), time.Now().Add(a.cfg.Company.Lifetime))
	return key.Reveal(), err
}

// InvitationPath is the path of one invitation.
type InvitationPath struct {
	WorkspacePath
	Email string `path:"email" maxLength:"254" doc:"The e-mail address."`
}

// Invitation makes whoever signs in with an e-mail address a member.
type Invitation struct {
	Email     string `json:"email"`
	Role      string `json:"role" enum:"owner,editor,viewer"`
	CreatedBy string `json:"created_by" format:"uuid"`
	CreatedAt string `json:"created_at" format:"date-time"`
	ExpiresAt string `json:"expires_at" format:"date-time"`
}

func viewInvitation(i store.Invitation) Invitation {
	return Invitation{i.Email, i.Role.String(), i.CreatedBy.String(), timeStamp(i.CreatedAt), timeStamp(i.CreatedAt.AddDate(0, 0, store.InvitationDays))}
}

// Invite is the body of POST /api/workspaces/{id}/invitations.
type Invite struct {
	Email string `json:"email" maxLength:"254" example:"ines@example.com"`
	Role  string `json:"role" enum:"owner,editor,viewer"`
}

type (
	invitationOutputBody struct {
		Invitation Invitation `json:"invitation"`
	}
	invitationsOutputBody struct {
		Invitations []Invitation `json:"invitations" nullable:"false"`
	}
)

func (a *API) invitations() {
	const tag = "Workspaces"
	who := access{role: identity.Owner, workspace: fromPath}.inPerson()
	handle(a, op("list-invitations", "GET /api/workspaces/{id}/invitations", tag, "List a workspace's open invitations"), who, a.listInvitations)
	handle(a, op("invite", "POST /api/workspaces/{id}/invitations", tag, "Invite a person by e-mail address", created,
		about("Whoever signs in at the company's OpenID Connect provider with this address, verified, becomes a member. No e-mail is sent. An invitation is valid for 30 days; inviting again renews it, with the new role. The address of a member is refused with 409 and the code ALREADY_MEMBER.")),
		who, a.invite)
	handle(a, op("withdraw-invitation", "DELETE /api/workspaces/{id}/invitations/{email}", tag, "Withdraw an invitation"), who, a.withdraw)
}

func (a *API) listInvitations(ctx context.Context, _ *WorkspacePath) (*invitationsOutputBody, error) {
	found, err := a.cfg.Store.Invitations(ctx, principalOf(ctx).Actor.Workspace)
	return &invitationsOutputBody{each(found, viewInvitation)}, err
}

func (a *API) invite(ctx context.Context, in *struct {
	WorkspacePath
	Repeatable
	Body Invite
},
) (*invitationOutputBody, error) {
	if a.cfg.Company == nil {
		return nil, fault.Coded(fault.Conflict, "NO_COMPANY_SIGN_IN", "this server has no OpenID Connect provider, so nobody could accept an invitation: add people by their ids")
	}
	email := strings.TrimSpace(in.Body.Email)
	if parsed, err := mail.ParseAddress(email); err != nil || parsed.Address != email || len(email) > 254 {
		return nil, invalid("email: want an address such as ines@example.com")
	}
	role, err := parseRole(in.Body.Role)
	if err != nil {
		return nil, err
	}
	actor := principalOf(ctx).Actor
	made, err := a.cfg.Store.Invite(ctx, actor.Workspace, store.Invitation{Email: email, Role: role, CreatedBy: actor.Member})
	return &invitationOutputBody{viewInvitation(made)}, err
}

func (a *API) withdraw(ctx context.Context, in *struct {
	InvitationPath
	Repeatable
},
) (*Success, error) {
	return succeeded(), a.cfg.Store.Withdraw(ctx, principalOf(ctx).Actor.Workspace, in.Email)
}
