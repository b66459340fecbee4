package credentialbroker

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// ListPools returns the workspace's pools.
func (s *accountServer) ListPools(ctx context.Context, _ *credentialv1.ListPoolsRequest) (*credentialv1.ListPoolsResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	all, err := scope.Pools(ctx)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListPoolsResponse{}
	for _, p := range all {
		res.Pools = append(res.Pools, poolMessage(p))
	}
	return res, nil
}

// SetPool changes settings of one of the workspace's pools.
func (s *accountServer) SetPool(ctx context.Context, req *credentialv1.SetPoolRequest) (*credentialv1.SetPoolResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	p, err := scope.SetPool(ctx, req.GetProvider(), settingValues(req.GetSettings()), req.GetReset_())
	if err != nil {
		return nil, err
	}
	return &credentialv1.SetPoolResponse{Pool: poolMessage(p)}, nil
}

func poolMessage(p Pool) *credentialv1.Pool {
	return &credentialv1.Pool{
		Provider: p.Provider, Accounts: int32(p.Accounts), Changed: len(p.Changed) > 0, Settings: settingsMessage(p.Settings),
	}
}

// GetStats returns what the workspace's accounts did.
func (s *accountServer) GetStats(ctx context.Context, _ *credentialv1.GetStatsRequest) (*credentialv1.GetStatsResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	all, err := scope.Stats(ctx)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.GetStatsResponse{}
	for _, x := range all {
		res.Stats = append(res.Stats, &credentialv1.AccountStat{
			AccountId: x.Account, Provider: x.Provider, Reason: x.Reason, Requests: x.Requests,
			TokensIn: x.TokensIn, TokensOut: x.TokensOut, CostMicros: x.CostMicros,
		})
	}
	return res, nil
}

// ResetStats begins to count anew.
func (s *accountServer) ResetStats(ctx context.Context, req *credentialv1.ResetStatsRequest) (*credentialv1.ResetStatsResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	var account id.Account
	if req.GetId() != "" {
		if account, err = accountID(req.GetId()); err != nil {
			return nil, err
		}
	}
	return &credentialv1.ResetStatsResponse{}, scope.ResetStats(ctx, account)
}

// ListAudit returns what happened to the workspace's credentials.
func (s *accountServer) ListAudit(ctx context.Context, req *credentialv1.ListAuditRequest) (*credentialv1.ListAuditResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	rows, next, err := scope.Audit(ctx, req.GetBefore(), int(req.GetLimit()))
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListAuditResponse{NextBefore: next}
	for _, r := range rows {
		res.Rows = append(res.Rows, &credentialv1.AuditRow{
			Sequence: r.Sequence, At: timestamppb.New(r.At), Action: r.Action, AccountId: r.Account, Provider: r.Provider,
			Origin: origin(pool.Origin(r.Origin)), MemberId: r.Member, Service: r.Service, Address: r.Address,
			SessionId: r.Session, Detail: r.Detail, Hash: r.Hash,
		})
	}
	return res, nil
}
