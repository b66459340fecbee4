package credentialbroker

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/admin"
)

// ListConnections returns everything that can be connected. tool-executor reads it too.
func (s *server) ListConnections(ctx context.Context, _ *credentialv1.ListConnectionsRequest) (*credentialv1.ListConnectionsResponse, error) {
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
func (s *server) StartConnection(ctx context.Context, req *credentialv1.StartConnectionRequest) (*credentialv1.StartConnectionResponse, error) {
	scope, err := s.scope(ctx, identity.Editor, subject.Gateway)
	if err != nil {
		return nil, err
	}
	login, err := loginID(req.GetId())
	if err != nil {
		return nil, err
	}
	l, err := scope.Connect(ctx, req.GetProvider(), login)
	if err != nil {
		return nil, err
	}
	return &credentialv1.StartConnectionResponse{Url: l.URL, ExpiresAt: timestamppb.New(l.ExpiresAt)}, nil
}

// CompleteConnection ends what StartConnection began.
func (s *server) CompleteConnection(ctx context.Context, req *credentialv1.CompleteConnectionRequest) (*credentialv1.CompleteConnectionResponse, error) {
	scope, err := s.scope(ctx, identity.Editor, subject.Gateway)
	if err != nil {
		return nil, err
	}
	c, err := scope.CompleteConnection(ctx, req.GetProvider(), admin.LoginAnswer{State: req.GetState(), Code: req.GetCode(), Error: req.GetError()})
	if err != nil {
		return nil, err
	}
	return &credentialv1.CompleteConnectionResponse{Connection: connectionMessage(&c)}, nil
}

// Disconnect revokes and removes a connection.
func (s *server) Disconnect(ctx context.Context, req *credentialv1.DisconnectRequest) (*credentialv1.DisconnectResponse, error) {
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
