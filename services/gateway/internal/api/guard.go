package api

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/auth"
)

type (
	principalKey struct{}
	callerKey    struct{}
	addressKey   struct{}
	tokenKey     struct{}
)

// HideToken moves a token from the URL to the context, before anything can log or trace the URL.
// It does the same with the parameters of a provider's redirect, and removes the secret of a share
// link, which the page reads from the browser's address.
func HideToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, SharePath) {
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath, r.RequestURI = SharePath, "", SharePath
		}
		if r.URL.RawQuery == "" {
			next.ServeHTTP(w, r)
			return
		}
		q := r.URL.Query()
		if r.URL.Path == CallbackPath || r.URL.Path == DocumentCallbackPath || r.URL.Path == OIDCCallbackPath {
			next.ServeHTTP(w, hideRedirect(r, q))
			return
		}
		if !q.Has("token") {
			next.ServeHTTP(w, r)
			return
		}
		token := q.Get("token")
		q.Del("token")
		r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, token))
		u := *r.URL
		u.RawQuery = q.Encode()
		r.URL, r.RequestURI = &u, u.RequestURI()
		next.ServeHTTP(w, r)
	})
}

// workspaceParam is the workspace's parameter for clients that cannot set headers.
const workspaceParam = "workspace_id"

// guard authenticates and authorizes the caller of an operation.
func (a *API) guard(hc huma.Context, next func(huma.Context)) {
	who, ok := hc.Operation().Metadata[accessKey].(access)
	if !ok {
		a.refuse(hc, fault.New(fault.Forbidden, "the operation does not declare who may use it"))
		return
	}
	ctx, err := a.authorize(hc, who)
	if err != nil {
		a.refuse(hc, err)
		return
	}
	next(huma.WithContext(hc, ctx))
}

func (a *API) authorize(hc huma.Context, who access) (context.Context, error) {
	ctx := hc.Context()
	if err := checkQuery(hc); err != nil {
		return nil, err
	}
	r, _ := humago.Unwrap(hc)
	if !utf8.ValidString(r.URL.Path) || strings.ContainsRune(r.URL.Path, 0) {
		return nil, invalid("the path must be UTF-8, and not have the character U+0000")
	}
	if who.open {
		return context.WithValue(ctx, addressKey{}, a.cfg.Authenticator.Address(r)), nil
	}
	if who.share {
		return a.authorizeShare(ctx, r, bearer(hc, who))
	}
	caller, err := a.cfg.Authenticator.Authenticate(ctx, a.cfg.Authenticator.Address(r), bearer(hc, who))
	if err != nil {
		return nil, err
	}
	if who.people && caller.IsKey() {
		return nil, fault.Coded(fault.Forbidden, "PERSON_NEEDED", "an API key cannot administer workspaces, members or keys, decide about tool calls, share documents, sign in to providers or connect them: use a person's token")
	}
	ctx = context.WithValue(ctx, callerKey{}, caller)
	if who.workspace == fromNowhere {
		return ctx, nil
	}
	workspace := hc.Param("id")
	if who.workspace == fromHeader {
		if workspace = hc.Header("X-Workspace-Id"); workspace == "" {
			workspace = hc.Query(workspaceParam)
		}
	} else if _, err := parseID[id.Workspace]("id", workspace); err != nil {
		return nil, err
	}
	principal, err := a.cfg.Authenticator.Authorize(ctx, caller, workspace)
	if err != nil {
		return nil, err
	}
	principal.Actor.Address = a.address(r)
	ctx = identity.With(context.WithValue(ctx, principalKey{}, principal), principal.Actor)
	_, err = identity.Require(ctx, who.role)
	return ctx, err
}

// address returns the client's address for the audit, or "" if it is unknown.
func (a *API) address(r *http.Request) string {
	if at := a.cfg.Authenticator.Address(r); at.IsValid() {
		return at.String()
	}
	return ""
}

// checkQuery refuses a query that is not valid UTF-8, which no service accepts. For DELETE it
// also refuses unknown parameters: a misspelt one could delete more than intended.
func checkQuery(hc huma.Context) error {
	r, _ := humago.Unwrap(hc)
	for name, values := range r.URL.Query() {
		if !utf8.ValidString(name) {
			return invalid("the query has a parameter whose name is not valid UTF-8")
		}
		if r.Method == http.MethodDelete && !hasQuery(hc.Operation(), name) {
			return invalid("%s: unknown parameter; nothing was deleted", clip(name))
		}
		for _, v := range values {
			if !utf8.ValidString(v) {
				return invalid("%s: not valid UTF-8", clip(name))
			}
		}
	}
	return nil
}

// hasQuery reports whether an operation has a query parameter.
func hasQuery(op *huma.Operation, name string) bool {
	return name == workspaceParam || slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.In == "query" && p.Name == name })
}

// bearer returns the request's token. A header takes precedence over the URL.
func bearer(hc huma.Context, who access) string {
	r, _ := humago.Unwrap(hc)
	if token, ok := headerToken(r); ok || !who.urlToken {
		return token
	}
	return urlToken(r)
}

func headerToken(r *http.Request) (token string, ok bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// urlToken returns the token that HideToken has removed.
func urlToken(r *http.Request) string {
	token, _ := r.Context().Value(tokenKey{}).(string)
	return token
}

func (a *API) refuse(hc huma.Context, err error) {
	e := a.failure(hc.Context(), hc.Operation().OperationID, err)
	who, _ := hc.Operation().Metadata[accessKey].(access)
	e.likeOpenAI = who.likeOpenAI
	for k, v := range e.header {
		hc.SetHeader(k, v[0])
	}
	hc.SetHeader("Content-Type", "application/json")
	hc.SetStatus(e.status)
	_ = encodeJSON(hc.BodyWriter(), e) // fails if the client has left
}

// addressOf returns the client's address for an operation that needs no token.
func addressOf(ctx context.Context) netip.Addr {
	at, _ := ctx.Value(addressKey{}).(netip.Addr) // set by guard
	return at
}

func principalOf(ctx context.Context) auth.Principal {
	p, _ := ctx.Value(principalKey{}).(auth.Principal) // set by guard
	return p
}

func callerOf(ctx context.Context) auth.Caller {
	c, _ := ctx.Value(callerKey{}).(auth.Caller) // set by guard
	return c
}
