package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

// pools are the rules by which accounts are chosen, what accounts did, and the audit.
func (a *API) pools(tags []string, owners access) {
	// The second path is the one of earlier releases, which a description cannot tell apart
	// from those of one account.
	for i, path := range []string{"/api/pools", "/api/accounts/pools"} {
		handle(a, huma.Operation{
			OperationID: "list-pools", Method: http.MethodGet, Path: path, Hidden: i > 0,
			Tags: tags, Summary: "List the workspace's pools: its accounts of one provider each, and how they are chosen",
		}, owners, a.listPools)
		handle(a, huma.Operation{
			OperationID: "update-pool", Method: http.MethodPatch, Path: path + "/{provider}", Hidden: i > 0,
			Tags: tags, Summary: "Change how a pool's accounts are chosen, all or nothing",
		}, owners, a.updatePool)
	}
	handle(a, huma.Operation{
		OperationID: "account-stats", Method: http.MethodGet, Path: "/api/accounts/stats",
		Tags: tags, Summary: "Read what accounts did since they were counted anew",
		Description: "Counts are written up to a second later: of a broker that is killed, those of its last second are lost. Cooldowns are written at once.",
	}, owners, a.accountStats)
	handle(a, huma.Operation{
		OperationID: "reset-account-stats", Method: http.MethodDelete, Path: "/api/accounts/stats",
		Tags: tags, Summary: "Count anew, for one account or for all",
		Description: "As wherever something is deleted, a query parameter that is not known is refused: 400.",
	}, owners, a.resetStats)
	handle(a, huma.Operation{
		OperationID: "account-audit", Method: http.MethodGet, Path: "/api/accounts/audit",
		Tags: tags, Summary: "Read what happened to the workspace's credentials, newest first",
		Description: "Rows are only ever added, and chained: each hash covers the row and the hash before it.",
	}, owners, a.accountAudit)
}

// PoolSettings are the rules of a pool. In a request what is absent stays as it is.
type PoolSettings struct {
	Strategy                  *string  `json:"strategy,omitempty" enum:"sticky,round-robin,hybrid"`
	MaxTokens                 *float64 `json:"max_tokens,omitempty" doc:"Requests that an account may make at once."`
	RegenerationRatePerMinute *float64 `json:"regeneration_rate_per_minute,omitempty"`
	InitialTokens             *float64 `json:"initial_tokens,omitempty"`
	MinUsable                 *float64 `json:"min_usable,omitempty" doc:"Health below which hybrid skips an account."`
	HealthSuccess             *float64 `json:"health_success,omitempty"`
	HealthRateLimit           *float64 `json:"health_rate_limit,omitempty"`
	HealthFailure             *float64 `json:"health_failure,omitempty"`
	HealthRecoveryPerHour     *float64 `json:"health_recovery_per_hour,omitempty"`
	Stickiness                *float64 `json:"stickiness,omitempty" doc:"What hybrid adds to the score of the current account."`
	SwitchThreshold           *float64 `json:"switch_threshold,omitempty" doc:"By how much another one must be better."`
	FloorSeconds              *float64 `json:"floor_seconds,omitempty" doc:"For how long the last usable account is parked at most, unless the provider says so."`
}

// Pool is a workspace's accounts of one provider.
type Pool struct {
	Provider string       `json:"provider"`
	Accounts int32        `json:"accounts" doc:"How many there are."`
	Settings PoolSettings `json:"settings"`
	Changed  bool         `json:"changed" doc:"Some of the settings are not the defaults."`
}

func viewPool(p *credentialv1.Pool) Pool {
	s := p.GetSettings()
	return Pool{
		Provider: p.GetProvider(), Accounts: p.GetAccounts(), Changed: p.GetChanged(),
		Settings: PoolSettings{
			Strategy: s.Strategy, MaxTokens: s.MaxTokens, RegenerationRatePerMinute: s.RegenerationRatePerMinute, InitialTokens: s.InitialTokens,
			MinUsable: s.MinUsable, HealthSuccess: s.HealthSuccess, HealthRateLimit: s.HealthRateLimit, HealthFailure: s.HealthFailure,
			HealthRecoveryPerHour: s.HealthRecoveryPerHour, Stickiness: s.Stickiness, SwitchThreshold: s.SwitchThreshold, FloorSeconds: s.FloorSeconds,
		},
	}
}

type poolsOutput struct {
	Body struct {
		Pools      []Pool  `json:"pools" nullable:"false"`
		NextCursor *string `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) listPools(ctx context.Context, in *WindowInput) (*poolsOutput, error) {
	res, err := a.cfg.Accounts.ListPools(ctx, &credentialv1.ListPoolsRequest{})
	if err != nil {
		return nil, err
	}
	out := &poolsOutput{}
	found, next := window(*in, res.GetPools(), (*credentialv1.Pool).GetProvider)
	out.Body.Pools, out.Body.NextCursor = make([]Pool, len(found)), next
	for i, p := range found {
		out.Body.Pools[i] = viewPool(p)
	}
	return out, nil
}

// UpdatePool is the body of PATCH /api/pools/{provider}.
type UpdatePool struct {
	Settings PoolSettings `json:"settings"`
	Reset    bool         `json:"reset,omitempty" doc:"Begin with the defaults, instead of with what is set now."`
}

type poolOutput struct {
	Body struct {
		Pool Pool `json:"pool"`
	}
}

func (a *API) updatePool(ctx context.Context, in *struct {
	Provider string `path:"provider" maxLength:"32"`
	Repeatable
	Body UpdatePool
},
) (*poolOutput, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	s := &in.Body.Settings
	res, err := a.cfg.Accounts.SetPool(ctx, &credentialv1.SetPoolRequest{Provider: in.Provider, Reset_: in.Body.Reset, Settings: &credentialv1.PoolSettings{
		Strategy: s.Strategy, MaxTokens: s.MaxTokens, RegenerationRatePerMinute: s.RegenerationRatePerMinute, InitialTokens: s.InitialTokens,
		MinUsable: s.MinUsable, HealthSuccess: s.HealthSuccess, HealthRateLimit: s.HealthRateLimit, HealthFailure: s.HealthFailure,
		HealthRecoveryPerHour: s.HealthRecoveryPerHour, Stickiness: s.Stickiness, SwitchThreshold: s.SwitchThreshold, FloorSeconds: s.FloorSeconds,
	}})
	if err != nil {
		return nil, err
	}
	out := &poolOutput{}
	out.Body.Pool = viewPool(res.GetPool())
	return out, nil
}

// AccountStat is what an account did that went one way.
type AccountStat struct {
	AccountID  string `json:"account_id" format:"uuid"`
	Provider   string `json:"provider"`
	Reason     string `json:"reason" doc:"OK, or why not." example:"RATE_LIMIT_EXCEEDED"`
	Requests   int64  `json:"requests"`
	TokensIn   int64  `json:"tokens_in"`
	TokensOut  int64  `json:"tokens_out"`
	CostMicros int64  `json:"cost_micros" doc:"In millionths of a dollar."`
}

type statsOutput struct {
	Body struct {
		Stats      []AccountStat `json:"stats" nullable:"false"`
		NextCursor *string       `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) accountStats(ctx context.Context, in *WindowInput) (*statsOutput, error) {
	res, err := a.cfg.Accounts.GetStats(ctx, &credentialv1.GetStatsRequest{})
	if err != nil {
		return nil, err
	}
	out := &statsOutput{}
	found, next := window(*in, res.GetStats(), func(s *credentialv1.AccountStat) string { return s.GetAccountId() + "~" + s.GetReason() })
	out.Body.Stats, out.Body.NextCursor = make([]AccountStat, len(found)), next
	for i, s := range found {
		out.Body.Stats[i] = AccountStat{
			AccountID: s.GetAccountId(), Provider: s.GetProvider(), Reason: s.GetReason(), Requests: s.GetRequests(),
			TokensIn: s.GetTokensIn(), TokensOut: s.GetTokensOut(), CostMicros: s.GetCostMicros(),
		}
	}
	return out, nil
}

func (a *API) resetStats(ctx context.Context, in *struct {
	Account string `query:"account_id" format:"uuid" doc:"One account; all of the workspace when absent."`
	Repeatable
},
) (*done, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	if in.Account != "" {
		if _, err := parseID[id.Account]("account_id", in.Account); err != nil {
			return nil, err
		}
	}
	if _, err := a.cfg.Accounts.ResetStats(ctx, &credentialv1.ResetStatsRequest{Id: in.Account}); err != nil {
		return nil, err
	}
	return succeeded(), nil
}

// AuditRow is a row of the audit.
type AuditRow struct {
	Sequence  int64   `json:"sequence"`
	At        string  `json:"at" format:"date-time"`
	Action    string  `json:"action" enum:"created,changed,refreshed,removed,used" doc:"used: for the first time in a session."`
	AccountID *string `json:"account_id" doc:"Null where all of a pool are meant."`
	Provider  *string `json:"provider"`
	Origin    *string `json:"origin" enum:"workspace,shared,environment,simulator"`
	MemberID  *string `json:"member_id" doc:"Null for the operator, and for the broker itself."`
	Service   string  `json:"service"`
	Address   *string `json:"address"`
	SessionID *string `json:"session_id"`
	Detail    *string `json:"detail"`
	Hash      string  `json:"hash" doc:"In hexadecimal digits."`
}

var origins = map[credentialv1.Origin]string{
	credentialv1.Origin_ORIGIN_WORKSPACE:   "workspace",
	credentialv1.Origin_ORIGIN_SHARED:      "shared",
	credentialv1.Origin_ORIGIN_ENVIRONMENT: "environment",
	credentialv1.Origin_ORIGIN_SIMULATOR:   "simulator",
}

type auditOutput struct {
	Body struct {
		Rows       []AuditRow `json:"rows" nullable:"false"`
		NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
	}
}

func (a *API) accountAudit(ctx context.Context, in *struct {
	Cursor string `query:"cursor" maxLength:"20" doc:"next_cursor of the page before."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
},
) (*auditOutput, error) {
	req := &credentialv1.ListAuditRequest{Limit: in.Limit}
	if in.Cursor != "" {
		before, err := strconv.ParseInt(in.Cursor, 10, 64)
		if err != nil || before < 1 {
			return nil, invalid("cursor: not one of ours: send the next_cursor of the page before")
		}
		req.Before = before
	}
	res, err := a.cfg.Accounts.ListAudit(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &auditOutput{}
	out.Body.Rows = make([]AuditRow, len(res.GetRows()))
	for i, r := range res.GetRows() {
		out.Body.Rows[i] = AuditRow{
			Sequence: r.GetSequence(), At: stamp(r.GetAt()), Action: r.GetAction(), AccountID: orNull(r.GetAccountId()), Provider: orNull(r.GetProvider()),
			Origin: orNull(origins[r.GetOrigin()]), MemberID: orNull(r.GetMemberId()), Service: r.GetService(), Address: orNull(r.GetAddress()),
			SessionID: orNull(r.GetSessionId()), Detail: orNull(r.GetDetail()), Hash: r.GetHash(),
		}
	}
	if n := res.GetNextBefore(); n > 0 {
		out.Body.NextCursor = new(strconv.FormatInt(n, 10))
	}
	return out, nil
}
