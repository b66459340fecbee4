package api

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"

	"signalbox.dev/services/gateway/internal/store"
)

// A browser exchanges a token or the key of a link for a session, whose secret is in a cookie
// that no script can read. The cookie counts only for requests of our own pages: it is not sent
// by other sites (SameSite=Strict), and Cookies ignores it on requests that a browser marks as
// coming from another origin.

// sessionCookie is the name of the cookie over HTTP, and without its prefix over HTTPS.
const sessionCookie = "signalbox_session"

// sessionLifetime is how long a person stays signed in.
const sessionLifetime = 30 * 24 * time.Hour

// Cookies turns the cookie of a browser session into an Authorization header, if the request has
// no token of its own and comes from our own pages.
func Cookies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if secret := sessionSecret(r); secret != "" && r.Header.Get("Authorization") == "" && urlToken(r) == "" && sameOrigin(r) {
			r.Header.Set("Authorization", "Bearer "+secret)
		}
		next.ServeHTTP(w, r)
	})
}

func sessionSecret(r *http.Request) string {
	names := []string{hostPrefix + sessionCookie}
	if r.TLS == nil && r.Header.Get("X-Forwarded-Proto") != "https" {
		names = append(names, sessionCookie) // which over HTTPS another host of the domain may have set
	}
	for _, name := range names {
		if c, err := r.Cookie(name); err == nil && strings.HasPrefix(c.Value, store.SessionPrefix) {
			return c.Value
		}
	}
	return ""
}

// sameOrigin reports whether a request comes from our own pages, or from no page: see Fetch
// Metadata Request Headers (W3C) and RFC 6454.
func sameOrigin(r *http.Request) bool {
	return fromOurPages(r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin"), r.Host)
}

func fromOurPages(site, origin, host string) bool {
	if site != "" {
		return site == "same-origin" || site == "none"
	}
	u, err := url.Parse(origin)
	return origin == "" || err == nil && u.Host == host
}

// BrowserSession is a person who is signed in with a browser.
type BrowserSession struct {
	ID        string `json:"id" format:"uuid"`
	Browser   string `json:"browser" doc:"What the browser called itself (User-Agent)."`
	Current   bool   `json:"current" doc:"It is the session of this request."`
	CreatedAt string `json:"created_at" format:"date-time"`
	SeenAt    string `json:"seen_at" format:"date-time" doc:"When it was last used, to five minutes."`
	ExpiresAt string `json:"expires_at" format:"date-time"`
}

func (a *API) browser() {
	const tag = "Signing in"
	anybody := access{open: true}
	person := access{workspace: fromNowhere, people: true}
	register(a, op("sign-in", "POST /api/sign-in", tag, "Sign in with a browser: exchange an access token or a link's key for a session cookie"), anybody, a.signIn)
	register(a, op("sign-out", "POST /api/sign-out", tag, "Sign out with the browser that sends this"), person, a.signOut)
	handle(a, op("get-me", "GET /api/me", tag, "Tell who is signed in"), access{workspace: fromNowhere}, a.me)
	handle(a, op("list-browser-sessions", "GET /api/browser-sessions", tag, "List the browsers with which the caller is signed in, newest first"), person, a.browserSessions)
	handle(a, op("delete-browser-session", "DELETE /api/browser-sessions/{id}", tag, "Sign a browser out; its streams and sockets end within seconds"), person, a.deleteBrowserSession)
}

// SignInBody is the body of POST /api/sign-in.
type SignInBody struct {
	Token string `json:"token,omitempty" maxLength:"16384" doc:"An access token of the identity provider, or a development token."`
	Key   string `json:"key,omitempty" maxLength:"200" doc:"The key of a sign-in link, which is valid once."`
}

type cookieOutput[B any] struct {
	SetCookie string `header:"Set-Cookie"`
	Body      B
}

type signedInOutputBody struct {
	MemberID  string `json:"member_id" format:"uuid"`
	ExpiresAt string `json:"expires_at" format:"date-time"`
}

// PageInput tells about the page that makes a request.
type PageInput struct {
	Agent  string `header:"User-Agent" hidden:"true"`
	Origin string `header:"Origin" hidden:"true"`
	Site   string `header:"Sec-Fetch-Site" hidden:"true"`
	host   string
}

// Resolve implements huma.Resolver.
func (p *PageInput) Resolve(hc huma.Context) []error {
	p.host = hc.Host()
	return nil
}

// cookie returns a cookie for the page's host alone. Over HTTPS its name has the prefix that keeps
// other hosts of the domain from setting it; a browser always tells the origin of a POST.
func (p PageInput) cookie(value string, lifetime time.Duration) string {
	return sessionCookieFor(strings.HasPrefix(p.Origin, "https://"), value, lifetime)
}

func sessionCookieFor(https bool, value string, lifetime time.Duration) string {
	c := http.Cookie{Name: sessionCookie, Value: value, Path: "/", MaxAge: int(lifetime.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode}
	if https {
		c.Name, c.Secure = hostPrefix+c.Name, true
	}
	return c.String()
}

func (a *API) signIn(ctx context.Context, in *struct {
	PageInput
	Body SignInBody
},
) (*cookieOutput[signedInOutputBody], error) {
	if !fromOurPages(in.Site, in.Origin, in.host) {
		return nil, fault.Coded(fault.Forbidden, "OTHER_ORIGIN", "a page of another origin cannot sign its visitors in: open the console and sign in there")
	}
	var member id.Member
	switch {
	case in.Body.Key != "" && in.Body.Token == "":
		m, err := a.cfg.Authenticator.UseLink(ctx, addressOf(ctx), conf.Secret(in.Body.Key))
		if err != nil {
			return nil, err
		}
		member = m
	case in.Body.Token != "" && in.Body.Key == "":
		caller, err := a.cfg.Authenticator.Authenticate(ctx, addressOf(ctx), in.Body.Token)
		if err != nil {
			return nil, err
		}
		if caller.IsKey() || caller.Session() != (store.BrowserSessionID{}) {
			return nil, fault.Coded(fault.Forbidden, "PERSON_NEEDED", "neither an API key nor a browser session signs anybody in: use a person's token")
		}
		member = caller.Member
		if err := a.cfg.Store.SetName(ctx, member, caller.Name); err != nil {
			return nil, err
		}
	default:
		return nil, invalid("send a token or a key")
	}
	made, secret, err := a.cfg.Store.SignIn(ctx, member, strings.ToValidUTF8(clip(in.Agent), ""), time.Now().Add(sessionLifetime))
	if err != nil {
		return nil, err
	}
	return &cookieOutput[signedInOutputBody]{in.cookie(secret.Reveal(), sessionLifetime), signedInOutputBody{member.String(), timeStamp(made.ExpiresAt)}}, nil
}

func (a *API) signOut(ctx context.Context, in *PageInput) (*cookieOutput[Success], error) {
	caller := callerOf(ctx)
	if session := caller.Session(); session != (store.BrowserSessionID{}) {
		if err := a.cfg.Store.SignOut(ctx, caller.Member, session); err != nil && fault.KindOf(err) != fault.NotFound {
			return nil, err
		}
	}
	return &cookieOutput[Success]{in.cookie("", -time.Second), *succeeded()}, nil
}

type meOutputBody struct {
	MemberID string `json:"member_id" format:"uuid"`
	Browser  bool   `json:"browser" doc:"The caller is signed in with a browser."`
	Name     string `json:"name,omitempty" doc:"As the company's sign-in page or the access token has it."`
	Email    string `json:"email,omitempty"`
}

func (a *API) me(ctx context.Context, _ *struct{}) (*meOutputBody, error) {
	caller := callerOf(ctx)
	p, err := a.cfg.Store.Person(ctx, caller.Member)
	return &meOutputBody{caller.Member.String(), caller.Session() != store.BrowserSessionID{}, p.Name, p.Email}, err
}

type browserSessionsOutputBody struct {
	Sessions []BrowserSession `json:"sessions" nullable:"false"`
}

func (a *API) browserSessions(ctx context.Context, _ *struct{}) (*browserSessionsOutputBody, error) {
	caller := callerOf(ctx)
	found, err := a.cfg.Store.BrowserSessions(ctx, caller.Member)
	return &browserSessionsOutputBody{each(found, func(s store.BrowserSession) BrowserSession {
		return BrowserSession{s.ID.String(), s.UserAgent, s.ID == caller.Session(), timeStamp(s.CreatedAt), timeStamp(s.SeenAt), timeStamp(s.ExpiresAt)}
	})}, err
}

func (a *API) deleteBrowserSession(ctx context.Context, in *struct {
	ID ID[store.BrowserSessionID] `path:"id" format:"uuid" doc:"The browser session's id."`
	Repeatable
},
) (*Success, error) {
	return succeeded(), a.cfg.Store.SignOutBrowser(ctx, callerOf(ctx).Member, in.ID.value)
}
