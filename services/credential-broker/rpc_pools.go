package credentialbroker

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/hashchain"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/admin"
)

// ListPools returns the workspace's pools.
func (s *server) ListPools(ctx context.Context, _ *credentialv1.ListPoolsRequest) (*credentialv1.ListPoolsResponse, error) {
	all, err := scope(ctx).Pools(ctx)
	return &credentialv1.ListPoolsResponse{Pools: each(all, poolMessage)}, err
}

// SetPool changes settings of one of the workspace's pools.
func (s *server) SetPool(ctx context.Context, req *credentialv1.SetPoolRequest) (*credentialv1.SetPoolResponse, error) {
	p, err := scope(ctx).SetPool(ctx, req.GetProvider(), settingValues(req.GetSettings()), req.GetReset_())
	if err != nil {
		return nil, err
	}
	return &credentialv1.SetPoolResponse{Pool: poolMessage(p)}, nil
}

func poolMessage(p admin.Pool) *credentialv1.Pool {
	return &credentialv1.Pool{
		Provider: p.Provider, Accounts: int32(p.Accounts), Changed: len(p.Changed) > 0, Settings: settingsMessage(p.Settings),
	}
}

// settingsMessage returns settings as a message. Their JSON names are the message's field
// names, and also the names of stored settings and of those that operators set.
func settingsMessage(s admin.Settings) *credentialv1.PoolSettings {
	m := &credentialv1.PoolSettings{}
	text, err := json.Marshal(s)
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	if err != nil {
		panic(fmt.Sprintf("settings as a message: %v", err)) // a setting without a field, which a test rules out
	}
	return m
}

// settingValues returns the settings that are set in a message, by their names.
func settingValues(m *credentialv1.PoolSettings) map[string]any {
	values := map[string]any{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		values[string(f.Name())] = v.Interface()
		return true
	})
	return values
}

// GetStats returns what the workspace's accounts have been used for.
func (s *server) GetStats(ctx context.Context, _ *credentialv1.GetStatsRequest) (*credentialv1.GetStatsResponse, error) {
	all, err := scope(ctx).Stats(ctx)
	return &credentialv1.GetStatsResponse{Stats: each(all, func(x admin.Stat) *credentialv1.AccountStat {
		return &credentialv1.AccountStat{
			AccountId: x.Account.String(), Provider: x.Provider, Reason: string(x.Reason), Requests: x.Requests,
			TokensIn: x.TokensIn, TokensOut: x.TokensOut, CostMicros: x.CostMicros,
		}
	})}, err
}

// ResetStats resets the counters of one account, or of all.
func (s *server) ResetStats(ctx context.Context, req *credentialv1.ResetStatsRequest) (*credentialv1.ResetStatsResponse, error) {
	account, err := optionalID(req.GetId())
	if err != nil {
		return nil, err
	}
	return &credentialv1.ResetStatsResponse{}, scope(ctx).ResetStats(ctx, account)
}

// ListAudit returns a page of the audit of the workspace's credentials.
func (s *server) ListAudit(ctx context.Context, req *credentialv1.ListAuditRequest) (*credentialv1.ListAuditResponse, error) {
	search, err := hashchain.NewSearch(req.GetQuery(), req.GetQueryMembers())
	if err != nil {
		return nil, err
	}
	rows, next, err := scope(ctx).Audit(ctx, admin.AuditQuery{Before: req.GetBefore(), Limit: int(req.GetLimit()), Search: search})
	return &credentialv1.ListAuditResponse{NextBefore: next, Rows: each(rows, func(r admin.AuditRow) *credentialv1.AuditRow {
		return &credentialv1.AuditRow{
			Sequence: r.Sequence, At: timestamppb.New(r.At), Action: r.Action, AccountId: text(r.Account), Provider: r.Provider,
			Origin: originEnum(r.Origin), MemberId: text(r.Member), Service: r.Service, Address: r.Address,
			SessionId: text(r.Session), Detail: r.Detail, Hash: r.Hash,
		}
	})}, err
}
