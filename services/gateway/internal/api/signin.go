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

// A provider sends a browser back to CallbackPath with nothing but a state and a code:
// no token, no workspace. Who it is follows from two secrets that only the browser has
// that began the sign-in: the state and a cookie. Together they lead to the member, who
// must still be one. The cookie is what keeps somebody from having another person sign in
// for them: a link to the provider that was begun elsewhere ends at a page that says so.
//
// Nothing is used up here: a browser that comes again, because the answer was lost or said
// that something is away for now, is asked for the same two secrets, and credential-broker
// answers a sign-in that was completed as it did before.

// CallbackPath is where providers send browsers back to, unless the operator has
// registered another page with them.
const CallbackPath = "/api/connections/callback"

// Bounds of what a provider may send.
const (
	maxState     = 500
	maxCode      = 4000
	maxErrorCode = 200
)

type answerKey struct{}

// hideAnswer takes what a provider sends out of the URL, before anything can log it.
func hideAnswer(r *http.Request, q url.Values) *http.Request {
	r = r.WithContext(context.WithValue(r.Context(), answerKey{}, SignInAnswer{State: q.Get("state"), Code: q.Get("code"), Error: q.Get("error")}))
	u := *r.URL
	u.RawQuery = ""
	r.URL, r.RequestURI = &u, u.RequestURI()
	return r
}

// bindBrowser keeps a sign-in for the browser that began it, and returns the cookie that
// the browser is to get. Where the provider sends browsers back to a page that is not
// ours, nothing is kept and there is no cookie.
func (a *API) bindBrowser(ctx context.Context, authorize string, expires time.Time, in store.SignIn) (string, error) {
	u, err := url.Parse(authorize)
	if err != nil {
		return "", errors.New("the address of a sign-in is not a URL")
	}
	back, err := url.Parse(u.Query().Get("redirect_uri"))
	if err != nil || !strings.HasSuffix(back.Path, CallbackPath) {
		return "", nil //nolint:nilerr // a page of the front end's
	}
	state := conf.Secret(u.Query().Get("state"))
	c := http.Cookie{
		Name: cookieName(state.Reveal()), Value: rand.Text(), Path: back.Path, MaxAge: int(time.Until(expires).Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, // Lax: it comes along when the provider sends the browser back
	}
	if back.Scheme == "https" {
		c.Name, c.Path, c.Secure = hostPrefix+c.Name, "/", true
	}
	if err := a.cfg.Store.BeginSignIn(ctx, in, state, bound(&c), expires); err != nil {
		return "", err
	}
	return c.String(), nil
}

// bound is what binds a sign-in to a browser: the cookie with its name, so that one which
// another host of the domain has set, without the prefix, is not taken for it.
func bound(c *http.Cookie) conf.Secret { return conf.Secret(c.Name + "=" + c.Value) }

// hostPrefix keeps other hosts of the domain from setting the cookie.
const hostPrefix = "__Host-"

// cookieName is another one for each sign-in, so that several can be open.
func cookieName(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "signalbox_sign_in_" + hex.EncodeToString(sum[:6])
}

// callback completes a sign-in in the browser that began it.
func (a *API) callback(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet { // a pattern of GET takes HEAD too
		(&Error{status: http.StatusMethodNotAllowed, Message: "use GET", header: http.Header{"Allow": {"GET"}}}).write(w)
		return
	}
	answer, _ := r.Context().Value(answerKey{}).(SignInAnswer)
	in, done, err := a.complete(r, answer)
	if err != nil {
		e := a.failure(r.Context(), "sign-in-callback", err)
		if wait := e.header.Get("Retry-After"); wait != "" {
			w.Header().Set("Retry-After", wait)
		}
		text := sentence(e.Message)
		if e.status == http.StatusTooManyRequests || e.status == http.StatusServiceUnavailable {
			text += " To try again, reload this page."
		}
		show(w, e.status, page{Title: "That did not work", Text: text, Link: in.ReturnTo})
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

// complete ends a sign-in and says so in a sentence.
func (a *API) complete(r *http.Request, answer SignInAnswer) (in store.SignIn, done string, err error) {
	ctx := r.Context()
	if answer == (SignInAnswer{}) {
		return in, "", invalid("this is where a provider sends your browser back to when you have signed in there. There is nothing to see without that")
	}
	if err := answer.check(); err != nil {
		return in, "", err
	}
	name := cookieName(answer.State)
	cookie, err := r.Cookie(hostPrefix + name)
	if err != nil {
		cookie, err = r.Cookie(name)
	}
	if err != nil {
		cookie = &http.Cookie{} // fits no sign-in
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
		in.Provider = cmp.Or(in.Provider, account.GetGrant().GetProvider()) // not named where an account was
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

// sentence makes one of an error's message.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(message[size:], ".") + "."
}

// page is what people see in a browser.
type page struct {
	Title, Text string
	Link        string // where to go on; empty for nowhere
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
	_ = pages.Execute(w, p) // the browser left: nobody to tell
}

// describeCallback mounts the page and describes it.
func (a *API) describeCallback() {
	a.mux.HandleFunc("GET "+CallbackPath, a.callback)
	text := func(name, about string, limit int) *huma.Param {
		return &huma.Param{Name: name, In: "query", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &limit}, Description: about}
	}
	html := map[string]*huma.MediaType{"text/html": {Schema: &huma.Schema{Type: huma.TypeString}}}
	a.huma.OpenAPI().AddOperation(&huma.Operation{
		OperationID: "sign-in-callback", Method: http.MethodGet, Path: CallbackPath,
		Tags: []string{"Connections"}, Summary: "Complete a connection or a sign-in, as the page that a provider sends the browser back to",
		Description: "Not for programs. It needs no token but the cookie of the browser that began the sign-in, whose member must still have the role for it. Loaded again it says the same.",
		Parameters: []*huma.Param{
			text("state", "As the provider got it.", maxState), text("code", "What the provider issued.", maxCode), text("error", "Why it issued none.", maxErrorCode),
		},
		Metadata: map[string]any{accessKey: access{page: true}},
		Responses: map[string]*huma.Response{
			"200": {Description: "Done: a page that says so.", Content: html},
			"303": {Description: "Done: the browser goes on to the path that was named at the beginning, with the parameter connected, or signed_in, and the provider's name."},
			"400": {Description: "Not what a provider sends.", Content: html},
			"403": {Description: "Another browser than the one that began it, or the member has not the role any more.", Content: html},
			"409": {Description: "Declined, expired, or refused by the provider: the page says what to do.", Content: html},
			"429": {Description: "Too many requests; Retry-After says how long to wait before the same page is loaded again.", Content: html},
			"500": {Description: "Our fault; nothing internal is shown.", Content: html},
			"503": {Description: "The provider, or a part of the system, is away: the same page may work later.", Content: html},
		},
	})
}
