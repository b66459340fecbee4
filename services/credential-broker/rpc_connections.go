package credentialbroker

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// connectionServer is ConnectionService: what members who own nothing may do with the
// accounts that tools use.
type connectionServer struct {
	accounts *Accounts
	pool     *pool.Set
}

func (s *connectionServer) scope(ctx context.Context, least identity.Role, services ...string) (*Scope, error) {
	actor, err := require(ctx, least, services...)
	if err != nil {
		return nil, err
	}
	return &Scope{accounts: s.accounts, by: actor, workspace: actor.Workspace, pool: s.pool}, nil
}

// ListConnections returns all that can be connected. Tools want to know it too.
func (s *connectionServer) ListConnections(ctx context.Context, _ *credentialv1.ListConnectionsRequest) (*credentialv1.ListConnectionsResponse, error) {
	scope, err := s.scope(ctx, identity.Viewer, subject.Gateway, subject.ToolExecutor)
	if err != nil {
		return nil, err
	}
	all, err := scope.Connections(ctx)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListConnectionsResponse{}
	for i := range all {
		res.Connections = append(res.Connections, connectionMessage(&all[i]))
	}
	return res, nil
}

// StartConnection begins to connect.
func (s *connectionServer) StartConnection(ctx context.Context, req *credentialv1.StartConnectionRequest) (*credentialv1.StartConnectionResponse, error) {
	scope, err := s.scope(ctx, identity.Editor, subject.Gateway)
	if err != nil {
		return nil, err
	}
	l, err := scope.Connect(ctx, req.GetProvider(), req.GetId())
	if err != nil {
		return nil, err
	}
	return &credentialv1.StartConnectionResponse{Url: l.URL, ExpiresAt: timestamppb.New(l.ExpiresAt)}, nil
}

// CompleteConnection ends what StartConnection began.
func (s *connectionServer) CompleteConnection(ctx context.Context, req *credentialv1.CompleteConnectionRequest) (*credentialv1.CompleteConnectionResponse, error) {
	scope, err := s.scope(ctx, identity.Editor, subject.Gateway)
	if err != nil {
		return nil, err
	}
	c, err := scope.CompleteConnection(ctx, req.GetProvider(), LoginAnswer{State: req.GetState(), Code: req.GetCode(), Error: req.GetError()})
	if err != nil {
		return nil, err
	}
	return &credentialv1.CompleteConnectionResponse{Connection: connectionMessage(&c)}, nil
}

// Disconnect takes a connection back.
func (s *connectionServer) Disconnect(ctx context.Context, req *credentialv1.DisconnectRequest) (*credentialv1.DisconnectResponse, error) {
	scope, err := s.scope(ctx, identity.Editor, subject.Gateway)
	if err != nil {
		return nil, err
	}
	r, err := scope.Disconnect(ctx, req.GetProvider())
	if err != nil {
		return nil, err
	}
	return &credentialv1.DisconnectResponse{AtProvider: r.AtProvider, Reason: r.Why}, nil
}

func connectionMessage(c *Connection) *credentialv1.Connection {
	m := &credentialv1.Connection{
		Provider: c.Provider, Title: c.Title, Reason: c.Reason, Subject: c.Subject, ConnectedAt: stamp(c.ConnectedAt),
		State: map[ConnectionState]credentialv1.ConnectionState{
			NotConfigured:      credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONFIGURED,
			NotConnected:       credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED,
			Connected:          credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED,
			ConnectAgain:       credentialv1.ConnectionState_CONNECTION_STATE_REAUTHORIZE,
			ConnectionDisabled: credentialv1.ConnectionState_CONNECTION_STATE_DISABLED,
		}[c.State],
		Origin: map[ConnectionOrigin]credentialv1.ConnectionOrigin{
			ByMember:  credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_MEMBER,
			ByAccount: credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_ACCOUNT,
			ByShared:  credentialv1.ConnectionOrigin_CONNECTION_ORIGIN_SHARED,
		}[c.Origin],
	}
	if !id.IsZero(c.Member) {
		m.MemberId = c.Member.String()
	}
	return m
}
