package api

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"

	"signalbox.dev/pkg/fault"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"

	"signalbox.dev/services/gateway/internal/store"
)

// mcpProvider begins the provider of every account for an MCP server; its name follows.
const mcpProvider = "mcp-"

// mcpSignIns are sign-ins to MCP servers: logins for the servers' accounts.
func (a *API) mcpSignIns(tag string) {
	register(a, op("start-mcp-sign-in", "POST /api/mcp-servers/{id}/sign-in", tag, "Start to sign in to an MCP server that uses OAuth", created,
		about("The credential broker finds the server's authorization server, and registers a client there. It can be repeated when the server asks for more permissions, or the sign-in has ended. "+
			"Send the browser to `url`. If the provider redirects it to this server's /api/connections/callback or /api/connections/callback/document, the sign-in is completed there, and only in the browser that made this call, from a page of this server's own origin. "+
			"With `redirect`, and for a redirect page of your own, complete it with POST /api/accounts/logins/{id}/complete. The server is then asked for its tools. "+
			"409 OAUTH_DISCOVERY says what is wrong with what the server publishes.")), owners.inPerson(), a.startMcpSignIn)
	a.mux.HandleFunc("GET "+clientPath, a.clientDocument) // not for the API's clients: not in the OpenAPI document
}

// CreateMcpSignIn is the body of POST /api/mcp-servers/{id}/sign-in.
type CreateMcpSignIn struct {
	ClientID     string `json:"client_id,omitempty" maxLength:"2048" doc:"A client that you have registered with the authorization server by hand. Absent: the broker's client metadata document or dynamic registration is used, where the server supports it."`
	ClientSecret string `json:"client_secret,omitempty" maxLength:"4096" doc:"Its secret, if it has one. It is sealed, and never shown."`
	Redirect     string `json:"redirect,omitempty" maxLength:"64" doc:"For command lines: http://127.0.0.1:<port>/callback, where one waits for the browser. Absent: the page that the operator has registered." example:"http://127.0.0.1:49152/callback"`
	ReturnTo     string `json:"return_to,omitempty" maxLength:"500" doc:"As in POST /api/connections."`
}

func (a *API) startMcpSignIn(ctx context.Context, in *struct {
	McpServerInput
	SignInKey
	Body CreateMcpSignIn
},
) (*startOutput[StartedLogin], error) {
	actor := principalOf(ctx).Actor
	returnTo, err := a.returnPath(in.Body.ReturnTo)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name, text string
		limit      int
	}{{"client_id", in.Body.ClientID, 2048}, {"client_secret", in.Body.ClientSecret, 4096}, {"redirect", in.Body.Redirect, 64}} {
		if err := checkText(f.name, f.text, f.limit); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	server, err := a.mcpServer(ctx, in.ID.String())
	if err != nil {
		return nil, err
	}
	if server.GetOperator() {
		return nil, fault.New(fault.Conflict, "the operator offers this MCP server: it needs no sign-in")
	}
	provider := mcpProvider + server.GetName()
	res, err := a.cfg.Accounts.StartLogin(ctx, &credentialv1.StartLoginRequest{
		Provider: provider, Kind: credentialv1.LoginKind_LOGIN_KIND_BROWSER, Id: in.Key.operationText(actor, "start-mcp-sign-in"),
		McpServer: &credentialv1.McpServer{
			Url: server.GetUrl(), ResourceMetadata: server.GetResourceMetadata(), Scope: server.GetScope(),
			ClientId: in.Body.ClientID, ClientSecret: in.Body.ClientSecret, Redirect: in.Body.Redirect,
		},
	})
	if err != nil {
		return nil, err
	}
	out := &startOutput[StartedLogin]{Body: StartedLogin{Login{ID: res.GetId(), Kind: "browser", URL: res.GetUrl(), ExpiresAt: stamp(res.GetExpiresAt())}}}
	out.Cookie, err = a.bindBrowser(ctx, res.GetUrl(), res.GetExpiresAt().AsTime(), store.SignIn{
		Workspace: actor.Workspace, Member: actor.Member, Kind: store.ForAccount, Provider: provider, ReturnTo: returnTo,
	})
	return out, err
}

// signedIn tells the tools of a new sign-in, if it is one to an MCP server. It is not an error
// of the sign-in if that fails: the tools find out by themselves, a few minutes later.
func (a *API) signedIn(ctx context.Context, account *credentialv1.Account) {
	name, ok := strings.CutPrefix(account.GetProvider(), mcpProvider)
	if !ok {
		return
	}
	_, err := a.cfg.McpServers.SignedIn(ctx, &toolv1.SignedInRequest{Name: name})
	if err != nil && fault.KindOf(err) != fault.NotFound {
		a.cfg.Log.WarnContext(ctx, "tools not told of a sign-in to an MCP server", "server", name, "error", err)
	}
}

// clientPath is where authorization servers read about the client that the credential broker is:
// its client id metadata document. The broker names it where CallbackPath is on an https server.
const clientPath = "/api/connections/client.json"

var hostForm = regexp.MustCompile(`^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$`)

// clientDocument publishes the client id metadata document.
func (a *API) clientDocument(w http.ResponseWriter, r *http.Request) {
	if !hostForm.MatchString(r.Host) {
		(&Error{status: http.StatusBadRequest, Message: "the Host header is not a host's name"}).write(w)
		return
	}
	origin := "https://" + r.Host
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=3600")
	_ = json.NewEncoder(w).Encode(map[string]any{ // fails if the reader has left
		"client_id": origin + clientPath, "client_name": "Signalbox", "client_uri": origin,
		// No other login ends at these pages. Any port of a loopback address is meant (RFC 8252, section 7.3).
		"redirect_uris": []string{origin + DocumentCallbackPath, "http://127.0.0.1/callback/document", "http://[::1]/callback/document"},
		"grant_types":   []string{"authorization_code", "refresh_token"}, "response_types": []string{"code"}, "token_endpoint_auth_method": "none",
	})
}
