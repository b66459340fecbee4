package api

import (
	"context"
	"slices"
	"time"

	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"

	"signalbox.dev/services/gateway/internal/store"
)

// Connection is the workspace's access to a provider for tools.
type Connection struct {
	Provider    string  `json:"provider" example:"google"`
	Title       string  `json:"title" doc:"The provider's display name." example:"Google"`
	State       string  `json:"state" enum:"not_configured,not_connected,connected,reauthorize,disabled" doc:"not_configured: the operator has not set it up. reauthorize: a member must connect it again. disabled: an owner has disabled it for tools."`
	Reason      *string `json:"reason" doc:"Explains why it is not connected, or the last failure."`
	Origin      *string `json:"origin" enum:"member,account,shared,simulated" doc:"member: a member connected it. account: an owner added an account, which is managed under /api/accounts. shared: the operator shares it with all workspaces. simulated: nothing is connected, and the simulator stands in. Null if there is no connection."`
	Subject     *string `json:"subject" doc:"The identity that the provider reports. Null if it reports none, or if no member connected it." example:"ada@example.org"`
	ConnectedBy *string `json:"connected_by" format:"uuid" doc:"The member who connected it."`
	ConnectedAt *string `json:"connected_at" format:"date-time"`
}

func viewConnection(c *credentialv1.Connection) Connection {
	return Connection{
		Provider: c.GetProvider(), Title: c.GetTitle(), State: enumName(c.GetState()), Reason: orNull(c.GetReason()),
		Origin: orNull(enumName(c.GetOrigin())), Subject: orNull(c.GetSubject()),
		ConnectedBy: orNull(c.GetMemberId()), ConnectedAt: stampOrNull(c.GetConnectedAt()),
	}
}

// providerTimeout bounds operations in which the credential broker calls a provider.
const providerTimeout = 80 * time.Second

func (a *API) connections() {
	const tag = "Connections"
	who := editors.inPerson()
	handle(a, op("list-connections", "GET /api/connections", tag, "List the providers that tools can be connected to, with their state"), viewers, a.listConnections)
	register(a, op("start-connection", "POST /api/connections", tag, "Start to connect tools to a provider, or to reconnect them", created,
		about("Send the browser to `url`, where the person gives consent. The provider then redirects it to the page that the operator has registered. "+
			"If that is this server's /api/connections/callback, the connection is completed there, and only in the browser that made this call: the answer sets a cookie. "+
			"Browsers do not store this cookie for a console of another origin, so such a console needs a page of its own, which completes the connection with POST /api/connections/{provider}/complete. "+
			"The member who started the connection must complete it before `expires_at`. With too many open sign-ins the answer is 429 until one expires. An existing connection can be replaced by the member who made it, and by owners.")), who, a.startConnection)
	handle(a, op("complete-connection", "POST /api/connections/{provider}/complete", tag, "Complete a connection with the parameters of the provider's redirect",
		about("For front ends with a redirect page of their own; /api/connections/callback completes connections by itself. A repeated call returns the first call's answer; after a 503 it tries again.")), who, a.completeConnection)
	handle(a, op("delete-connection", "DELETE /api/connections/{provider}", tag, "Disconnect, here and at the provider",
		about("From then on tools are refused, even if the provider could not be reached. Allowed for the member who connected it and for owners.")), who, a.deleteConnection)
	a.describeCallback()
}

type connectionsOutputBody struct {
	Connections []Connection `json:"connections" nullable:"false"`
	NextCursor  *string      `json:"next_cursor" doc:"Always null: the list has one page."`
}

func (a *API) listConnections(ctx context.Context, _ *struct{}) (*connectionsOutputBody, error) {
	res, err := a.cfg.Connections.ListConnections(ctx, &credentialv1.ListConnectionsRequest{})
	return &connectionsOutputBody{Connections: each(res.GetConnections(), viewConnection)}, err
}

// CreateConnection is the body of POST /api/connections.
type CreateConnection struct {
	Provider string `json:"provider" minLength:"1" maxLength:"64" example:"google"`
	ReturnTo string `json:"return_to,omitempty" maxLength:"500" doc:"Where /api/connections/callback redirects the browser: one of the paths that the operator allows. The default is the first of them or, if there is none, a page that reports the result."`
}

// startOutput is an answer that starts a sign-in in a browser.
type startOutput[T any] struct {
	Cookie string `header:"Set-Cookie" doc:"Binds the sign-in to this browser, if /api/connections/callback is to complete it."`
	Body   T
}

// StartedConnection is a connection that was started.
type StartedConnection struct {
	Provider  string `json:"provider"`
	URL       string `json:"url" format:"uri" doc:"Where to send the browser. It is for this person only."`
	ExpiresAt string `json:"expires_at" format:"date-time"`
}

func (a *API) startConnection(ctx context.Context, in *struct {
	SignInKey
	Body CreateConnection
},
) (*startOutput[StartedConnection], error) {
	actor := principalOf(ctx).Actor
	if in.Body.Provider == "" {
		return nil, invalid("provider is required")
	}
	returnTo, err := a.returnPath(in.Body.ReturnTo)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Connections.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: in.Body.Provider, Id: in.Key.operationText(actor, "start-connection")})
	if err != nil {
		return nil, err
	}
	out := &startOutput[StartedConnection]{Body: StartedConnection{in.Body.Provider, res.GetUrl(), stamp(res.GetExpiresAt())}}
	out.Cookie, err = a.bindBrowser(ctx, res.GetUrl(), res.GetExpiresAt().AsTime(), store.SignIn{
		Workspace: actor.Workspace, Member: actor.Member, Kind: store.ForConnection, Provider: in.Body.Provider, ReturnTo: returnTo,
	})
	return out, err
}

// ConnectionPath is the path of one connection.
type ConnectionPath struct {
	Provider string `path:"provider" maxLength:"64" doc:"The provider's name, as in the list."`
}

// SignInAnswer has the parameters with which a provider redirected a browser.
type SignInAnswer struct {
	State string `json:"state,omitempty" maxLength:"500" doc:"The state parameter."`
	Code  string `json:"code,omitempty" maxLength:"4000" doc:"The code parameter; for accounts also the pasted text."`
	Error string `json:"error,omitempty" maxLength:"200" doc:"The error parameter."`
	Iss   string `json:"iss,omitempty" maxLength:"2048" doc:"The iss parameter, for accounts: the authorization server's issuer."`

	Redirect string `json:"redirect,omitempty" maxLength:"2048" example:"/callback" doc:"The path of the page to which the browser was redirected. An answer that came to another page than the one the sign-in began with is refused. Required for MCP servers where the broker has a client id metadata document."`
}

func (s *SignInAnswer) check() error {
	for _, f := range []struct {
		name, text string
		limit      int
	}{{"state", s.State, maxState}, {"code", s.Code, maxCode}, {"error", s.Error, maxErrorCode}, {"iss", s.Iss, maxIssuer}, {"redirect", s.Redirect, maxRedirect}} {
		if err := checkText(f.name, f.text, f.limit); err != nil {
			return err
		}
	}
	if s.Code == "" && s.Error == "" {
		return invalid("code is required or, if the provider sent one, error")
	}
	return nil
}

type connectionOutputBody struct {
	Connection Connection `json:"connection"`
}

func (a *API) completeConnection(ctx context.Context, in *struct {
	ConnectionPath
	Repeatable
	Body SignInAnswer
},
) (*connectionOutputBody, error) {
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	if in.Body.State == "" {
		return nil, invalid("state is required")
	}
	c, err := a.finishConnection(ctx, in.Provider, in.Body)
	return &connectionOutputBody{viewConnection(c)}, err
}

func (a *API) finishConnection(ctx context.Context, provider string, answer SignInAnswer) (*credentialv1.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Connections.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{
		Provider: provider, State: answer.State, Code: answer.Code, Error: answer.Error, Redirect: answer.Redirect,
	})
	return res.GetConnection(), err
}

// Taken reports whether an authorization was revoked at the provider too.
type Taken struct {
	Success    bool    `json:"success"`
	AtProvider bool    `json:"at_provider" doc:"The provider revoked it too."`
	Reason     *string `json:"reason" doc:"Explains why the provider did not revoke it. The access may have to be removed in the provider's settings."`
}

func (a *API) deleteConnection(ctx context.Context, in *struct {
	ConnectionPath
	Repeatable
},
) (*Taken, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.Connections.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: in.Provider})
	return &Taken{true, res.GetAtProvider(), orNull(res.GetReason())}, err
}

// returnPath checks where a browser is to be redirected. It accepts only the operator's
// paths, so that no link to this server redirects elsewhere.
func (a *API) returnPath(requested string) (string, error) {
	switch {
	case requested == "" && len(a.cfg.ReturnPaths) == 0:
		return "", nil
	case requested == "":
		return a.cfg.ReturnPaths[0], nil
	case slices.Contains(a.cfg.ReturnPaths, requested):
		return requested, nil
	}
	return "", invalid("return_to: %q is not a path that the operator allows (GATEWAY_RETURN_PATHS)", clip(requested))
}
