package toolexecutor

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/mcp"
)

// servers implements McpService.
type servers struct{ mcp *mcp.Servers }

// ListServers implements McpService.
func (s *servers) ListServers(ctx context.Context, _ *toolv1.ListServersRequest) (*toolv1.ListServersResponse, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	all, err := s.mcp.List(ctx, actor.Workspace)
	res := &toolv1.ListServersResponse{}
	for _, n := range all {
		res.Servers = append(res.Servers, serverMessage(n))
	}
	return res, err
}

// CreateServer implements McpService.
func (s *servers) CreateServer(ctx context.Context, req *toolv1.CreateServerRequest) (*toolv1.CreateServerResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	server, err := serverID(req.GetId())
	if err != nil {
		return nil, err
	}
	n, err := s.mcp.Create(ctx, mcp.Server{
		Workspace: actor.Workspace, ID: server, Name: req.GetName(), URL: req.GetUrl(), Credential: req.GetCredential(), CreatedBy: actor.Member,
	})
	return &toolv1.CreateServerResponse{Server: serverMessage(n)}, err
}

// DeleteServer implements McpService.
func (s *servers) DeleteServer(ctx context.Context, req *toolv1.DeleteServerRequest) (*toolv1.DeleteServerResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	server, err := serverID(req.GetId())
	if err != nil {
		return nil, err
	}
	return &toolv1.DeleteServerResponse{}, s.mcp.Remove(ctx, actor.Workspace, server)
}

// TestServer implements McpService.
func (s *servers) TestServer(ctx context.Context, req *toolv1.TestServerRequest) (*toolv1.TestServerResponse, error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	server, err := serverID(req.GetId())
	if err != nil {
		return nil, err
	}
	n, err := s.mcp.Test(ctx, actor.Workspace, server)
	return &toolv1.TestServerResponse{Server: serverMessage(n)}, err
}

// SignedIn implements McpService.
func (s *servers) SignedIn(ctx context.Context, req *toolv1.SignedInRequest) (*toolv1.SignedInResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	n, err := s.mcp.SignedIn(ctx, actor.Workspace, req.GetName())
	return &toolv1.SignedInResponse{Server: serverMessage(n)}, err
}

// ApproveTools implements McpService.
func (s *servers) ApproveTools(ctx context.Context, req *toolv1.ApproveToolsRequest) (*toolv1.ApproveToolsResponse, error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, err
	}
	server, err := serverID(req.GetId())
	if err != nil {
		return nil, err
	}
	n, err := s.mcp.Approve(ctx, actor.Workspace, server, req.GetHashes())
	return &toolv1.ApproveToolsResponse{Server: serverMessage(n)}, err
}

// ListServerAudit implements McpService.
func (s *servers) ListServerAudit(ctx context.Context, req *toolv1.ListServerAuditRequest) (*toolv1.ListServerAuditResponse, error) {
	actor, err := identity.Require(ctx, identity.Owner)
	if err != nil {
		return nil, err
	}
	search, err := hashchain.NewSearch(req.GetQuery(), req.GetQueryMembers())
	if err != nil {
		return nil, err
	}
	page, next, err := s.mcp.Audit(ctx, actor.Workspace, mcp.ChangesQuery{Token: req.GetPageToken(), Limit: int(req.GetLimit()), Search: search})
	res := &toolv1.ListServerAuditResponse{NextPageToken: next}
	for i := range page {
		c := &page[i]
		res.Changes = append(res.Changes, &toolv1.ServerChange{
			Id: c.ID.String(), At: timestamppb.New(c.At), MemberId: c.Member.String(), Action: c.Action,
			ServerId: c.Server.String(), ServerName: c.ServerName, Detail: c.Detail,
		})
	}
	return res, err
}

func serverID(text string) (mcp.ServerID, error) {
	op, err := id.Parse[id.Operation](text)
	if err != nil {
		return mcp.ServerID{}, fault.New(fault.Invalid, "id: %v", err)
	}
	return mcp.ServerID{Operation: op}, nil
}

func serverMessage(n mcp.Server) *toolv1.McpServer {
	m := &toolv1.McpServer{
		Id: n.ID.String(), Name: n.Name, Url: n.URL, Credential: n.Credential, CreatedBy: n.CreatedBy.String(), CreatedAt: timestamppb.New(n.CreatedAt), Failure: n.Failure,
		NeedsSignIn: n.SignIn != "", ResourceMetadata: n.ResourceMetadata, Scope: n.Scope,
	}
	if n.Operator {
		m.Operator, m.Url, m.CreatedBy = true, "", ""
	}
	if n.CheckedAt != nil {
		m.CheckedAt = timestamppb.New(*n.CheckedAt)
	}
	if n.FailingSince != nil {
		m.FailingSince = timestamppb.New(*n.FailingSince)
	}
	for _, t := range n.Listed() {
		m.Tools = append(m.Tools, &toolv1.McpTool{
			Name: t.Name, OriginalName: t.Definition.Name, Description: t.Definition.Description, Changed: t.Changed, Hash: t.Definition.Hash(), UnavailableReason: t.Unavailable,
		})
	}
	return m
}
