package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"

	"signalbox.dev/services/gateway/internal/store"
)

// Connection is what the workspace's tools reach at one provider.
type Connection struct {
	Provider    string  `json:"provider" example:"google"`
	Title       string  `json:"title" doc:"The provider's name for people." example:"Google"`
	State       string  `json:"state" enum:"not_configured,not_connected,connected,reauthorize,disabled" doc:"not_configured: the operator has not set it up. reauthorize: somebody must connect it again. disabled: an owner keeps tools from it."`
	Reason      *string `json:"reason" doc:"For people: why it is not connected, or what went wrong last."`
	Origin      *string `json:"origin" enum:"member,account,shared" doc:"A member connected it; or an owner added an account, among which it is changed; or the operator shares it with all workspaces. Null where there is none."`
	Subject     *string `json:"subject" doc:"Whom the provider says that it belongs to. Null where it does not say, and where no member connected it." example:"ada@example.org"`
	ConnectedBy *string `json:"connected_by" format:"uuid" doc:"The member who connected it."`
	ConnectedAt *string `json:"connected_at" format:"date-time"`
}

var connectionStates = map[credentialv1.ConnectionState]string{
	credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONFIGURED: "not_configured",
	credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED:  "not_connected",
	credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED:      "connected",
	credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE:    "reauthorize",
	credentialv1.ConnectionState_CONNECTION_STATE_DISABLED:       "disabled",
}

var connectionOrigins = map[credentialv1.ConnectionOrigin]string{
	credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_MEMBER:  "member",
	credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_ACCOUNT: "account",
	credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_SHARED:  "shared",
}

func viewConnection(c *credentialv1.Connection) Connection {
	return Connection{
		Provider: c.GetProvider(), Title: c.GetTitle(), State: connectionStates[c.GetState()], Reason: orNull(c.GetReason()),
		Origin: orNull(connectionOrigins[c.GetOrigin()]), Subject: orNull(c.GetSubject()),
		ConnectedBy: orNull(c.GetMemberId()), ConnectedAt: stampOrNull(c.GetConnectedAt()),
	}
}

// callsOut bounds operations for which the broker asks a provider.
const callsOut = 80 * time.Second

func (a *API) connections() {
	tags := []string{"Connections"}
	handle(a, huma.Operation{
		OperationID: "list-connections", Method: http.MethodGet, Path: "/api/connections",
		Tags: tags, Summary: "List what tools can be connected to, and how it stands",
	}, access{role: identity.Viewer}, a.listConnections)
	handle(a, huma.Operation{
		OperationID: "start-connection", Method: http.MethodPost, Path: "/api/connections", DefaultStatus: http.StatusCreated,
		Tags: tags, Summary: "Begin to connect tools to a provider, or to connect it again",
		Description: "The browser goes on to `url`, where the person consents; the provider sends it back to the page that the operator has registered. " +
			"Where that is this server's /api/connections/callback, the connection is completed there, and only in the browser that made this call: the answer sets a cookie. " +
			"A console of another origin gets no cookie from this server, so that it needs a page of its own; that one completes the connection with POST /api/connections/{provider}/complete. " +
			"It has to be completed within `expires_at`, by the member who began it; who has many open waits until one expires (429). A connection that is in use can be replaced by the member who made it, and by owners.",
	}, access{role: identity.Editor, people: true}, a.startConnection)
	handle(a, huma.Operation{
		OperationID: "complete-connection", Method: http.MethodPost, Path: "/api/connections/{provider}/complete",
		Tags: tags, Summary: "Complete a connection with what the provider sent the browser back with",
		Description: "For front ends with a page of their own for that; /api/connections/callback needs no such call. A repeat is answered as the first call was; after 503 it tries again.",
	}, access{role: identity.Editor, people: true}, a.completeConnection)
	handle(a, huma.Operation{
		OperationID: "delete-connection", Method: http.MethodDelete, Path: "/api/connections/{provider}",
		Tags: tags, Summary: "Disconnect, here and at the provider",
		Description: "Tools are refused from then on, whatever the provider says. The member who connected it may do this, and owners.",
	}, access{role: identity.Editor, people: true}, a.deleteConnection)
	a.describeCallback()
}

type connectionsOutput struct {
	Body struct {
		Connections []Connection `json:"connections" nullable:"false"`
		NextCursor  *string      `json:"next_cursor" doc:"Always null: the list comes whole."`
	}
}

func (a *API) listConnections(ctx context.Context, _ *struct{}) (*connectionsOutput, error) {
	res, err := a.cfg.Connections.ListConnections(ctx, &credentialv1.ListConnectionsRequest{})
	if err != nil {
		return nil, err
	}
	out := &connectionsOutput{}
	out.Body.Connections = make([]Connection, len(res.GetConnections()))
	for i, c := range res.GetConnections() {
		out.Body.Connections[i] = viewConnection(c)
	}
	return out, nil
}

// CreateConnection is the body of POST /api/connections.
type CreateConnection struct {
	Provider string `json:"provider" minLength:"1" maxLength:"64" example:"google"`
	ReturnTo string `json:"return_to,omitempty" maxLength:"500" doc:"Where /api/connections/callback sends the browser on to: one of the paths that the operator allows, the first of which is the default. Without any it shows a page."`
}

// startOutput is an answer that begins something in a browser.
type startOutput[T any] struct {
	Cookie string `header:"Set-Cookie" doc:"Binds what was begun to this browser, where /api/connections/callback is to complete it."`
	Body   T
}

// StartedConnection is a connection that has begun.
type StartedConnection struct {
	Provider  string `json:"provider"`
	URL       string `json:"url" format:"uri" doc:"Where the browser goes on. It is for this person alone."`
	ExpiresAt string `json:"expires_at" format:"date-time"`
}

func (a *API) startConnection(ctx context.Context, in *struct {
	Begun
	Body CreateConnection
},
) (*startOutput[StartedConnection], error) {
	actor := principalOf(ctx).Actor
	login, err := in.id(actor, "start-connection")
	if err != nil {
		return nil, err
	}
	if in.Body.Provider == "" {
		return nil, invalid("provider is required")
	}
	returnTo, err := a.returnPath(in.Body.ReturnTo)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.Connections.StartConnection(ctx, &credentialv1.StartConnectionRequest{Provider: in.Body.Provider, Id: login})
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
	Provider string `path:"provider" maxLength:"64" doc:"The provider's name, as the list has it."`
}

// SignInAnswer is what a provider has sent a browser back with.
type SignInAnswer struct {
	State string `json:"state,omitempty" maxLength:"500" doc:"The state parameter."`
	Code  string `json:"code,omitempty" maxLength:"4000" doc:"The code parameter; for accounts also all that was pasted."`
	Error string `json:"error,omitempty" maxLength:"200" doc:"The error parameter."`
}

func (s *SignInAnswer) check() error {
	for _, f := range []struct {
		name, text string
		limit      int
	}{{"state", s.State, maxState}, {"code", s.Code, maxCode}, {"error", s.Error, maxErrorCode}} {
		if err := checkText(f.name, f.text, f.limit); err != nil {
			return err
		}
	}
	if s.Code == "" && s.Error == "" {
		return invalid("code is required, or the error that the provider sent in its place")
	}
	return nil
}

type connectionOutput struct {
	Body struct {
		Connection Connection `json:"connection"`
	}
}

func (a *API) completeConnection(ctx context.Context, in *struct {
	ConnectionPath
	Repeatable
	Body SignInAnswer
},
) (*connectionOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	if err := in.Body.check(); err != nil {
		return nil, err
	}
	if in.Body.State == "" {
		return nil, invalid("state is required")
	}
	c, err := a.finishConnection(ctx, in.Provider, in.Body)
	if err != nil {
		return nil, err
	}
	out := &connectionOutput{}
	out.Body.Connection = viewConnection(c)
	return out, nil
}

func (a *API) finishConnection(ctx context.Context, provider string, answer SignInAnswer) (*credentialv1.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Connections.CompleteConnection(ctx, &credentialv1.CompleteConnectionRequest{
		Provider: provider, State: answer.State, Code: answer.Code, Error: answer.Error,
	})
	return res.GetConnection(), err
}

// Taken says how far something was taken back.
type Taken struct {
	Success    bool    `json:"success"`
	AtProvider bool    `json:"at_provider" doc:"The provider took it back too."`
	Reason     *string `json:"reason" doc:"For people: why the provider did not. The access may have to be removed in the settings there."`
}

func (a *API) deleteConnection(ctx context.Context, in *struct {
	ConnectionPath
	Repeatable
},
) (*struct{ Body Taken }, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callsOut)
	defer cancel()
	res, err := a.cfg.Connections.Disconnect(ctx, &credentialv1.DisconnectRequest{Provider: in.Provider})
	if err != nil {
		return nil, err
	}
	return &struct{ Body Taken }{Taken{true, res.GetAtProvider(), orNull(res.GetReason())}}, nil
}

// returnPath checks where a browser is to go on to. Nothing but what the operator has
// named is taken, so that no link of ours leads elsewhere.
func (a *API) returnPath(asked string) (string, error) {
	if asked == "" {
		if len(a.cfg.ReturnPaths) == 0 {
			return "", nil
		}
		return a.cfg.ReturnPaths[0], nil
	}
	if slices.Contains(a.cfg.ReturnPaths, asked) {
		return asked, nil
	}
	return "", fault.New(fault.Invalid, "return_to: %q is not a path that the operator allows (GATEWAY_RETURN_PATHS)", clip(asked))
}
