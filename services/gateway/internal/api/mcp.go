package api

import (
	"cmp"
	"context"
	"slices"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// McpServer is an MCP server that the workspace has added.
type McpServer struct {
	ID          string    `json:"id" format:"uuid"`
	Name        string    `json:"name" example:"linear"`
	URL         string    `json:"url" example:"https://mcp.linear.app/mcp" doc:"Empty if the operator offers it."`
	Credential  bool      `json:"credential" doc:"Requests go through the credential broker, which adds the secret of the account of the provider mcp-<name>."`
	Operator    bool      `json:"operator" doc:"The operator offers it to the workspace: it cannot be deleted here."`
	CreatedBy   *string   `json:"created_by" format:"uuid" doc:"The member who added it; null if the operator offers it."`
	CreatedAt   string    `json:"created_at" format:"date-time"`
	CheckedAt   *string   `json:"checked_at" format:"date-time" doc:"When it was last asked for its tools."`
	Failure     *string   `json:"failure" doc:"Explains why it cannot be used; null if it can."`
	DownSince   *string   `json:"down_since" format:"date-time" doc:"When the first of its failures in a row was noticed; null if it can be used."`
	NeedsSignIn bool      `json:"needs_sign_in" doc:"It uses OAuth, and an owner has to sign in to it: for the first time, because the sign-in has ended, or because it wants more permissions."`
	SignInURL   *string   `json:"sign_in_url" doc:"Where an owner starts to sign in, with POST; null if it needs no sign-in." example:"/api/mcp-servers/0198a000-0000-7000-8000-000000000001/sign-in"`
	Tools       []McpTool `json:"tools" nullable:"false"`
}

// McpTool is a tool of an MCP server.
type McpTool struct {
	Name              string  `json:"name" doc:"The name in the list of tools." example:"mcp__linear__create_issue"`
	OriginalName      string  `json:"original_name" doc:"The server's own name for it."`
	Description       string  `json:"description" doc:"As the server sends it, also before it is approved."`
	Changed           bool    `json:"changed" doc:"The definition is not the approved one; the tool cannot be used until it is approved."`
	Hash              string  `json:"hash" doc:"A digest of the definition, to approve it."`
	UnavailableReason *string `json:"unavailable_reason" doc:"Explains why the tool cannot be used; null if it can."`
}

func viewMcpServer(m *toolv1.McpServer) McpServer {
	var signIn *string
	if m.GetNeedsSignIn() {
		signIn = new("/api/mcp-servers/" + m.GetId() + "/sign-in")
	}
	return McpServer{
		NeedsSignIn: m.GetNeedsSignIn(), SignInURL: signIn,
		ID: m.GetId(), Name: m.GetName(), URL: m.GetUrl(), Credential: m.GetCredential(), Operator: m.GetOperator(), CreatedBy: orNull(m.GetCreatedBy()), CreatedAt: stamp(m.GetCreatedAt()),
		CheckedAt: stampOrNull(m.GetCheckedAt()), Failure: orNull(m.GetFailure()), DownSince: stampOrNull(m.GetFailingSince()),
		Tools: each(m.GetTools(), func(t *toolv1.McpTool) McpTool {
			return McpTool{t.GetName(), t.GetOriginalName(), t.GetDescription(), t.GetChanged(), t.GetHash(), orNull(t.GetUnavailableReason())}
		}),
	}
}

func (a *API) mcpServers() {
	const tag = "MCP servers"
	handle(a, op("list-mcp-servers", "GET /api/mcp-servers", tag, "List the workspace's MCP servers"), viewers, a.listMcpServers)
	handle(a, op("get-mcp-server", "GET /api/mcp-servers/{id}", tag, "Get an MCP server with its tools"), viewers, a.getMcpServer)
	handle(a, op("create-mcp-server", "POST /api/mcp-servers", tag, "Add an MCP server, and approve the tools that it has now", created,
		about("The server is asked for its tools at once. If it does not answer, it is added with a failure, and its tools are approved when it first answers. A server that uses OAuth is added with `needs_sign_in`. For a server that needs a token, first add an account with the provider mcp-<name>, the profile mcp and the URL's origin as base_url.")), owners, a.createMcpServer)
	handle(a, op("delete-mcp-server", "DELETE /api/mcp-servers/{id}", tag, "Remove an MCP server",
		about("Its account, if it has one, is removed separately.")), owners, a.deleteMcpServer)
	handle(a, op("test-mcp-server", "POST /api/mcp-servers/{id}/test", tag, "Ask an MCP server for its tools now"), editors, a.testMcpServer)
	a.mcpSignIns(tag)
	handle(a, op("list-mcp-audit", "GET /api/mcp-servers/audit", tag, "Read who added, removed and signed in to MCP servers, and approved their tools, newest first",
		about("Rows are never changed or deleted, also when their server is.")), owners, a.listMcpAudit)
	handle(a, op("approve-mcp-tools", "POST /api/mcp-servers/{id}/approve", tag, "Approve changed definitions of an MCP server's tools",
		about("If one of the definitions is no longer current, nothing is approved: 409, MCP_TOOL_CHANGED.")), editors, a.approveMcpTools)
}

type mcpServersOutputBody struct {
	McpServers []McpServer `json:"mcp_servers" nullable:"false"`
	NextCursor *string     `json:"next_cursor" doc:"Always null: the list has one page."`
}

type mcpServerOutputBody struct {
	McpServer McpServer `json:"mcp_server"`
}

func mcpServerBody(m *toolv1.McpServer) mcpServerOutputBody {
	return mcpServerOutputBody{viewMcpServer(m)}
}

func (a *API) listMcpServers(ctx context.Context, _ *struct{}) (*mcpServersOutputBody, error) {
	res, err := a.cfg.McpServers.ListServers(ctx, &toolv1.ListServersRequest{})
	return &mcpServersOutputBody{McpServers: each(res.GetServers(), viewMcpServer)}, err
}

// McpServerInput is the path of one MCP server.
type McpServerInput struct {
	ID ID[id.Operation] `path:"id" format:"uuid" doc:"The MCP server's id."`
}

func (a *API) getMcpServer(ctx context.Context, in *McpServerInput) (*mcpServerOutputBody, error) {
	m, err := a.mcpServer(ctx, in.ID.String())
	return answer(m, err, mcpServerBody)
}

// mcpServer returns the server with an id, or a NotFound fault.
func (a *API) mcpServer(ctx context.Context, server string) (*toolv1.McpServer, error) {
	res, err := a.cfg.McpServers.ListServers(ctx, &toolv1.ListServersRequest{})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(res.GetServers(), func(m *toolv1.McpServer) bool { return m.GetId() == server })
	if i < 0 {
		return nil, fault.New(fault.NotFound, "there is no MCP server with this id")
	}
	return res.GetServers()[i], nil
}

// CreateMcpServer is the body of POST /api/mcp-servers.
type CreateMcpServer struct {
	Name       string `json:"name" pattern:"^[a-z][a-z0-9-]{0,27}$" doc:"Part of its tools' names: lower-case letters, digits and dashes." example:"linear"`
	URL        string `json:"url" minLength:"1" maxLength:"2048" doc:"Its endpoint for streamable HTTP." example:"https://mcp.linear.app/mcp"`
	Credential bool   `json:"credential,omitempty" doc:"Requests go through the credential broker, which adds the secret of the account of the provider mcp-<name>."`
}

func (a *API) createMcpServer(ctx context.Context, in *struct {
	Idempotent
	Body CreateMcpServer
},
) (*mcpServerOutputBody, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	server := cmp.Or(in.Key.operationText(principalOf(ctx).Actor, "create-mcp-server"), id.New[id.Operation]().String())
	res, err := a.cfg.McpServers.CreateServer(ctx, &toolv1.CreateServerRequest{Id: server, Name: in.Body.Name, Url: in.Body.URL, Credential: in.Body.Credential})
	return answer(res.GetServer(), err, mcpServerBody)
}

func (a *API) deleteMcpServer(ctx context.Context, in *struct {
	McpServerInput
	Repeatable
},
) (*Success, error) {
	_, err := a.cfg.McpServers.DeleteServer(ctx, &toolv1.DeleteServerRequest{Id: in.ID.String()})
	return succeeded(), err
}

func (a *API) testMcpServer(ctx context.Context, in *struct {
	McpServerInput
	Repeatable
},
) (*mcpServerOutputBody, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	res, err := a.cfg.McpServers.TestServer(ctx, &toolv1.TestServerRequest{Id: in.ID.String()})
	return answer(res.GetServer(), err, mcpServerBody)
}

func (a *API) approveMcpTools(ctx context.Context, in *struct {
	McpServerInput
	Repeatable
	Body struct {
		Hashes []string `json:"hashes" minItems:"1" maxItems:"256" nullable:"false" doc:"The hashes of the tools to approve."`
	}
},
) (*mcpServerOutputBody, error) {
	res, err := a.cfg.McpServers.ApproveTools(ctx, &toolv1.ApproveToolsRequest{Id: in.ID.String(), Hashes: in.Body.Hashes})
	return answer(res.GetServer(), err, mcpServerBody)
}

// McpChange is a row of the audit of MCP servers.
type McpChange struct {
	ID         string  `json:"id" format:"uuid"`
	At         string  `json:"at" format:"date-time"`
	MemberID   string  `json:"member_id" format:"uuid"`
	Action     string  `json:"action" enum:"server-added,server-removed,tools-approved,signed-in"`
	ServerID   string  `json:"server_id" format:"uuid"`
	ServerName string  `json:"server_name"`
	Detail     *string `json:"detail" doc:"The scheme and host of a server that was added, or the names of the tools that were approved."`
}

type mcpAuditOutputBody struct {
	Audit      []McpChange `json:"audit" nullable:"false"`
	NextCursor *string     `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listMcpAudit(ctx context.Context, in *struct {
	ServicePage
	AuditSearch
},
) (*mcpAuditOutputBody, error) {
	named, err := a.membersIn(ctx, in.AuditSearch)
	if err != nil {
		return nil, err
	}
	res, err := a.cfg.McpServers.ListServerAudit(ctx, &toolv1.ListServerAuditRequest{
		PageToken: in.Cursor, Limit: in.Limit, Query: in.Query, QueryMembers: each(named, id.Member.String),
	})
	return answer(res, err, func(res *toolv1.ListServerAuditResponse) mcpAuditOutputBody {
		return mcpAuditOutputBody{each(res.GetChanges(), func(c *toolv1.ServerChange) McpChange {
			return McpChange{c.GetId(), stamp(c.GetAt()), c.GetMemberId(), c.GetAction(), c.GetServerId(), c.GetServerName(), orNull(c.GetDetail())}
		}), orNull(res.GetNextPageToken())}
	})
}
