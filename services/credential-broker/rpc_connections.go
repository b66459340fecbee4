package credentialbroker

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/admin"
)

// ListConnections returns everything that can be connected. tool-executor reads it too.
func (s *server) ListConnections(ctx context.Context, _ *credentialv1.ListConnectionsRequest) (*credentialv1.ListConnectionsResponse, error) {
	all, err := scope(ctx).Connections(ctx)
	return &credentialv1.ListConnectionsResponse{Connections: each(all, connectionMessage)}, err
}

// StartConnection begins to connect.
func (s *server) StartConnection(ctx context.Context, req *credentialv1.StartConnectionRequest) (*credentialv1.StartConnectionResponse, error) {
	login, err := loginID(req.GetId())
	if err != nil {
		return nil, err
	}
	l, err := scope(ctx).Connect(ctx, req.GetProvider(), login)
	return &credentialv1.StartConnectionResponse{Url: l.URL, ExpiresAt: timestamppb.New(l.ExpiresAt)}, err
}

// CompleteConnection ends what StartConnection began.
func (s *server) CompleteConnection(ctx context.Context, req *credentialv1.CompleteConnectionRequest) (*credentialv1.CompleteConnectionResponse, error) {
	c, err := scope(ctx).CompleteConnection(ctx, req.GetProvider(), admin.LoginAnswer{State: req.GetState(), Code: req.GetCode(), Error: req.GetError(), Redirect: req.GetRedirect()})
	return &credentialv1.CompleteConnectionResponse{Connection: connectionMessage(c)}, err
}

// Disconnect revokes and removes a connection.
func (s *server) Disconnect(ctx context.Context, req *credentialv1.DisconnectRequest) (*credentialv1.DisconnectResponse, error) {
	r, err := scope(ctx).Disconnect(ctx, req.GetProvider())
	return &credentialv1.DisconnectResponse{AtProvider: r.AtProvider, Reason: r.Why}, err
}
