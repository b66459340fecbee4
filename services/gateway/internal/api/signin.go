package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/store"
)

// A provider redirects a browser to CallbackPath with only a state and a code: no token and no
// workspace. Two secrets identify the member: the state, and a cookie that only the browser has
// that started the sign-in. The member must still have the role. Without the cookie, an attacker
// could start a sign-in and have somebody else complete it.
//
// The callback can be repeated: a browser that got no answer, or a 503, presents the same two
// secrets again, and credential-broker answers a completed sign-in as before.

// CallbackPath is where providers redirect browsers, unless the operator has registered another
// page with them.
const CallbackPath = "/api/connections/callback"

// DocumentCallbackPath is where authorization servers that know the client by clientDocument
// redirect browsers. Only the logins of these servers end there.
const DocumentCallbackPath = CallbackPath + "/document"

// Bounds of a provider's parameters.
const (
	maxState     = 500
	maxCode      = 4000
	maxErrorCode = 200
	maxIssuer    = 2048
	maxRedirect  = 2048
)

type redirectKey struct{}

// hideRedirect moves a provider's parameters from the URL to the context, before anything can
// log them.
func hideRedirect(r *http.Request, q url.Values) *http.Request {
	r = r.WithContext(context.WithValue(r.Context(), redirectKey{}, SignInAnswer{State: q.Get("state"), Code: q.Get("code"), Error: q.Get("error"), Iss: q.Get("iss")}))
	u := *r.URL
	u.RawQuery = ""
	r.URL, r.RequestURI = &u, u.RequestURI()
	return r
}

// bindBrowser stores a sign-in and returns the cookie for the browser that started it. If the
// provider redirects browsers to another server's page, it does nothing and returns "".
func (a *API) bindBrowser(ctx context.Context, authorize string, expires time.Time, in store.SignIn) (string, error) {
	u, err := url.Parse(authorize)
	if err != nil {
		return "", errors.New("the address of a sign-in is not a URL")
	}
	back, err := url.Parse(u.Query().Get("redirect_uri"))
	if err != nil || !strings.HasSuffix(back.Path, CallbackPath) && !strings.HasSuffix(back.Path, DocumentCallbackPath) {
		return "", nil //nolint:nilerr // another page completes it
	}
	state := conf.Secret(u.Query().Get("state"))
	c := http.Cookie{
		Name: cookieName(state.Reveal()), Value: rand.Text(), Path: back.Path, MaxAge: int(time.Until(expires).Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, // Lax: it is sent with the provider's redirect
	}
	if back.Scheme == "https" {
		c.Name, c.Path, c.Secure = hostPrefix+c.Name, "/", true
	}
	if err := a.cfg.Store.BeginSignIn(ctx, in, state, bound(&c), expires); err != nil {
		return "", err
	}
	return c.String(), nil
}

// bound returns the secret that binds a sign-in to a browser: the cookie with its name, so that
// a cookie without the prefix, set by another host of the domain, is not accepted.
func bound(c *http.Cookie) conf.Secret { return conf.Secret(c.Name + "=" + c.Value) }

// hostPrefix prevents other hosts of the domain from setting the cookie.
const hostPrefix = "__Host-"

// cookieName returns a name for each sign-in, so that several can be open.
func cookieName(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "signalbox_sign_in_" + hex.EncodeToString(sum[:6])
}

// callback completes a sign-in in the browser that started it.
func (a *API) callback(w http.ResponseWriter, r *http.Request) {
	answer, _ := r.Context().Value(redirectKey{}).(SignInAnswer)
	in, done, err := a.complete(r, answer)
	if err != nil {
		a.refusePage(w, r, err, page{Link: in.ReturnTo, Again: "To try again, reload this page."})
		return
	}
	if in.ReturnTo != "" {
		name := "connected"
		if in.Kind == store.ForAccount {
			name = "signed_in"
		}
		w.Header().Set("Location", in.ReturnTo+"?"+url.Values{name: {in.Provider}}.Encode())
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	show(w, http.StatusOK, page{Title: "Done", Text: done + " You can close this page."})
}

// refusePage shows an error. Of the page it uses where to go on, and what may help later.
func (a *API) refusePage(w http.ResponseWriter, r *http.Request, err error, p page) {
	e := a.failure(r.Context(), "sign-in-callback", err)
	if wait := e.header.Get("Retry-After"); wait != "" {
		w.Header().Set("Retry-After", wait)
	}
	p.Title, p.Text = "That did not work", sentence(e.Message)
	if e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable {
		p.Text += " " + p.Again
	}
	show(w, e.status, p)
}

// complete completes a sign-in and returns the sentence to show.
func (a *API) complete(r *http.Request, answer SignInAnswer) (in store.SignIn, done string, err error) {
	ctx := r.Context()
	if answer == (SignInAnswer{}) {
		return in, "", invalid("a provider redirects your browser to this page after you have signed in there. It cannot be opened by itself")
	}
	if err := answer.check(); err != nil {
		return in, "", err
	}
	if answer.Redirect = r.URL.Path; answer.Redirect == DocumentCallbackPath && answer.Iss == "" {
		return in, "", invalid("the answer to the sign-in does not say which server it is from (iss), which is required here: start again, and if that repeats, do not trust the server")
	}
	name := cookieName(answer.State)
	cookie, err := r.Cookie(hostPrefix + name)
	if err != nil {
		cookie, err = r.Cookie(name)
	}
	if err != nil {
		cookie = &http.Cookie{} // matches no sign-in
	}
	if in, err = a.cfg.Store.FindSignIn(ctx, conf.Secret(answer.State), bound(cookie)); err != nil {
		return in, "", err
	}
	principal, err := a.cfg.Authenticator.Authorize(ctx, auth.Caller{Member: in.Member}, in.Workspace.String())
	if err != nil {
		return in, "", err
	}
	principal.Actor.Address = a.address(r)
	ctx = identity.With(ctx, principal.Actor)
	if in.Kind == store.ForAccount {
		account, err := a.finishLogin(ctx, "", answer)
		in.Provider = cmp.Or(in.Provider, account.GetGrant().GetProvider()) // absent if the sign-in was for an existing account
		return in, "You are signed in.", err
	}
	c, err := a.finishConnection(ctx, in.Provider, answer)
	return in, connected(c), err
}

func connected(c *credentialv1.Connection) string {
	if c.GetSubject() == "" {
		return c.GetTitle() + " is connected."
	}
	return c.GetTitle() + " is connected as " + c.GetSubject() + "."
}

// sentence formats an error's message as a sentence.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(message[size:], ".") + "."
}

// page is an HTML page that reports a result.
type page struct {
	Title, Text string
	Link        string // where to continue; may be empty
	Again       string // what to do if the cause passes
}

var pages = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}: Signalbox</title>
<h1>{{.Title}}</h1>
<p>{{.Text}}</p>
{{with .Link}}<p><a href="{{.}}">Go back</a></p>
{{end}}</html>
`))

func show(w http.ResponseWriter, status int, p page) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = pages.Execute(w, p) // fails if the browser has left
}

// describeCallback mounts the pages and adds them to the OpenAPI document.
func (a *API) describeCallback() {
	a.describeCallbackAt(CallbackPath, "sign-in-callback", "Complete a connection or a sign-in: the page to which a provider redirects the browser", "")
	a.describeCallbackAt(DocumentCallbackPath, "document-sign-in-callback", "Complete a sign-in to an MCP server: the page in the client id metadata document", "It requires `iss`, and completes no sign-in that began with another page. ")
}

func (a *API) describeCallbackAt(path, operation, summary, more string) {
	a.browserPage(path, a.callback, huma.Operation{
		OperationID: operation,
		Tags:        []string{"Connections"}, Summary: summary,
		Description: "For browsers only. " + more + "Instead of a token it requires the cookie of the browser that started the sign-in. The member must still have the role. Reloading the page repeats the answer.",
		Parameters: []*huma.Param{
			textParam("state", "The state that was sent to the provider.", maxState), textParam("code", "The code that the provider issued.", maxCode), textParam("error", "The provider's error, if it issued no code.", maxErrorCode),
			textParam("iss", "The authorization server's issuer, if it names itself (RFC 9207).", maxIssuer),
		},
		Responses: map[string]*huma.Response{
			"200": {Description: "Complete; the page says so."},
			"303": {Description: "Complete; redirects to the path that was given at the start, with the provider's name in the parameter connected or signed_in."},
			"400": {Description: "The parameters are not those of a provider's redirect."},
			"403": {Description: "This browser did not start the sign-in, or the member no longer has the role."},
			"409": {Description: "Declined, expired, or refused by the provider; the page says what to do."},
			"429": {Description: "Too many requests; Retry-After says how long to wait before reloading the page."},
			"500": {Description: "An internal error, which is logged and not shown."},
			"503": {Description: "The provider or a service is unavailable; reloading the page may work later."},
		},
	})
}

func textParam(name, about string, limit int) *huma.Param {
	return &huma.Param{Name: name, In: "query", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &limit}, Description: about}
}

// browserPage mounts a page that a browser is sent to, and adds it to the OpenAPI document.
func (a *API) browserPage(path string, h http.HandlerFunc, op huma.Operation) {
	a.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet { // the pattern GET matches HEAD too
			(&Error{status: http.StatusMethodNotAllowed, Message: "use GET", header: http.Header{"Allow": {"GET"}}}).write(w)
			return
		}
		h(w, r)
	})
	op.Method, op.Path = http.MethodGet, path
	op.Metadata = map[string]any{accessKey: access{page: true}}
	for status, answer := range op.Responses {
		if status != "303" {
			answer.Content = map[string]*huma.MediaType{"text/html": {Schema: &huma.Schema{Type: huma.TypeString}}}
		}
	}
	a.huma.OpenAPI().AddOperation(&op)
}
