package api

import (
	"context"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

// pools registers the operations on pools, and on the accounts' statistics and audit log.
func (a *API) pools(tag string) {
	// Earlier releases used the second path. It is hidden, because in OpenAPI it conflicts with
	// /api/accounts/{id}.
	for i, path := range []string{"/api/pools", "/api/accounts/pools"} {
		hidden := func(o *huma.Operation) { o.Hidden = i > 0 }
		handle(a, op("list-pools", "GET "+path, tag, "List the workspace's pools; a pool has the accounts of one provider", hidden), owners, a.listPools)
		handle(a, op("update-pool", "PATCH "+path+"/{provider}", tag, "Change how a pool's accounts are chosen; all changes or none", hidden), owners, a.updatePool)
	}
	handle(a, op("account-stats", "GET /api/accounts/stats", tag, "Read the accounts' statistics since the last reset",
		about("Counts are stored up to a second late, so that a broker that is killed loses those of its last second. Cooldowns are stored at once.")), owners, a.accountStats)
	handle(a, op("reset-account-stats", "DELETE /api/accounts/stats", tag, "Reset the statistics of one account or of all",
		about("As with every DELETE, an unknown query parameter is refused with 400.")), owners, a.resetStats)
	handle(a, op("account-audit", "GET /api/accounts/audit", tag, "Read the audit log of the workspace's credentials, newest first",
		about("Rows are never changed or deleted. They form a chain: each hash covers the row and the previous row's hash.")), owners, a.accountAudit)
}

// PoolSettings are the rules of a pool. In a request, absent fields keep their values.
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
	Stickiness                *float64 `json:"stickiness,omitempty" doc:"Bonus of the current account in hybrid's score."`
	SwitchThreshold           *float64 `json:"switch_threshold,omitempty" doc:"How much better another account must be to replace it."`
	FloorSeconds              *float64 `json:"floor_seconds,omitempty" doc:"Maximum seconds for which the last usable account is parked, unless the provider asks for more."`
}

// Pool is a workspace's accounts of one provider.
type Pool struct {
	Provider string       `json:"provider"`
	Accounts int32        `json:"accounts" doc:"Number of accounts."`
	Settings PoolSettings `json:"settings"`
	Changed  bool         `json:"changed" doc:"Some settings differ from the defaults."`
}

// settings and proto convert the rules of a pool, whose fields have the same names.
func settings(s *credentialv1.PoolSettings) PoolSettings {
	return PoolSettings{
		Strategy: s.Strategy, MaxTokens: s.MaxTokens, RegenerationRatePerMinute: s.RegenerationRatePerMinute, InitialTokens: s.InitialTokens,
		MinUsable: s.MinUsable, HealthSuccess: s.HealthSuccess, HealthRateLimit: s.HealthRateLimit, HealthFailure: s.HealthFailure,
		HealthRecoveryPerHour: s.HealthRecoveryPerHour, Stickiness: s.Stickiness, SwitchThreshold: s.SwitchThreshold, FloorSeconds: s.FloorSeconds,
	}
}

func (s *PoolSettings) proto() *credentialv1.PoolSettings {
	return &credentialv1.PoolSettings{
		Strategy: s.Strategy, MaxTokens: s.MaxTokens, RegenerationRatePerMinute: s.RegenerationRatePerMinute, InitialTokens: s.InitialTokens,
		MinUsable: s.MinUsable, HealthSuccess: s.HealthSuccess, HealthRateLimit: s.HealthRateLimit, HealthFailure: s.HealthFailure,
		HealthRecoveryPerHour: s.HealthRecoveryPerHour, Stickiness: s.Stickiness, SwitchThreshold: s.SwitchThreshold, FloorSeconds: s.FloorSeconds,
	}
}

func viewPool(p *credentialv1.Pool) Pool {
	return Pool{p.GetProvider(), p.GetAccounts(), settings(p.GetSettings()), p.GetChanged()}
}

type poolsOutputBody struct {
	Pools      []Pool  `json:"pools" nullable:"false"`
	NextCursor *string `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) listPools(ctx context.Context, in *SlicePage) (*poolsOutputBody, error) {
	res, err := a.cfg.Accounts.ListPools(ctx, &credentialv1.ListPoolsRequest{})
	if err != nil {
		return nil, err
	}
	found, next := pageOf(*in, res.GetPools(), (*credentialv1.Pool).GetProvider)
	return &poolsOutputBody{each(found, viewPool), next}, nil
}

// UpdatePool is the body of PATCH /api/pools/{provider}.
type UpdatePool struct {
	Settings PoolSettings `json:"settings"`
	Reset    bool         `json:"reset,omitempty" doc:"Set all other settings to their defaults instead of keeping them."`
}

type poolOutputBody struct {
	Pool Pool `json:"pool"`
}

func (a *API) updatePool(ctx context.Context, in *struct {
	Provider string `path:"provider" maxLength:"32"`
	Repeatable
	Body UpdatePool
},
) (*poolOutputBody, error) {
	res, err := a.cfg.Accounts.SetPool(ctx, &credentialv1.SetPoolRequest{Provider: in.Provider, Reset_: in.Body.Reset, Settings: in.Body.Settings.proto()})
	return answer(res.GetPool(), err, func(p *credentialv1.Pool) poolOutputBody { return poolOutputBody{viewPool(p)} })
}

// AccountStat counts an account's requests with one outcome.
type AccountStat struct {
	AccountID  string `json:"account_id" format:"uuid"`
	Provider   string `json:"provider"`
	Reason     string `json:"reason" doc:"OK, or the reason for the failure." example:"RATE_LIMIT_EXCEEDED"`
	Requests   int64  `json:"requests"`
	TokensIn   int64  `json:"tokens_in"`
	TokensOut  int64  `json:"tokens_out"`
	CostMicros int64  `json:"cost_micros" doc:"In millionths of a dollar."`
}

func viewStat(s *credentialv1.AccountStat) AccountStat {
	return AccountStat{s.GetAccountId(), s.GetProvider(), s.GetReason(), s.GetRequests(), s.GetTokensIn(), s.GetTokensOut(), s.GetCostMicros()}
}

type statsOutputBody struct {
	Stats      []AccountStat `json:"stats" nullable:"false"`
	NextCursor *string       `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) accountStats(ctx context.Context, in *SlicePage) (*statsOutputBody, error) {
	res, err := a.cfg.Accounts.GetStats(ctx, &credentialv1.GetStatsRequest{})
	found, next := pageOf(*in, res.GetStats(), func(s *credentialv1.AccountStat) string { return s.GetAccountId() + "~" + s.GetReason() })
	return &statsOutputBody{each(found, viewStat), next}, err
}

func (a *API) resetStats(ctx context.Context, in *struct {
	Account ID[id.Account] `query:"account_id" format:"uuid" doc:"Absent: all accounts of the workspace."`
	Repeatable
},
) (*Success, error) {
	req := &credentialv1.ResetStatsRequest{}
	if !id.IsZero(in.Account.value) {
		req.Id = in.Account.String()
	}
	_, err := a.cfg.Accounts.ResetStats(ctx, req)
	return succeeded(), err
}

// AuditRow is a row of the audit log.
type AuditRow struct {
	Sequence  int64   `json:"sequence"`
	At        string  `json:"at" format:"date-time"`
	Action    string  `json:"action" enum:"created,changed,refreshed,removed,used" doc:"used: for the first time in a session."`
	AccountID *string `json:"account_id" doc:"Null if the row concerns all accounts of a pool."`
	Provider  *string `json:"provider"`
	Origin    *string `json:"origin" enum:"workspace,shared,environment,simulator"`
	MemberID  *string `json:"member_id" doc:"Null for the operator and for the broker itself."`
	Service   string  `json:"service"`
	Address   *string `json:"address"`
	SessionID *string `json:"session_id"`
	Detail    *string `json:"detail"`
	Hash      string  `json:"hash" doc:"In hexadecimal."`
}

func viewAuditRow(r *credentialv1.AuditRow) AuditRow {
	return AuditRow{
		Sequence: r.GetSequence(), At: stamp(r.GetAt()), Action: r.GetAction(), AccountID: orNull(r.GetAccountId()), Provider: orNull(r.GetProvider()),
		Origin: orNull(enumName(r.GetOrigin())), MemberID: orNull(r.GetMemberId()), Service: r.GetService(), Address: orNull(r.GetAddress()),
		SessionID: orNull(r.GetSessionId()), Detail: orNull(r.GetDetail()), Hash: r.GetHash(),
	}
}

type auditOutputBody struct {
	Rows       []AuditRow `json:"rows" nullable:"false"`
	NextCursor *string    `json:"next_cursor" doc:"Null at the end."`
}

func (a *API) accountAudit(ctx context.Context, in *struct {
	Cursor string `query:"cursor" maxLength:"20" doc:"next_cursor of the previous page."`
	Limit  int32  `query:"limit" minimum:"1" maximum:"100" default:"20"`
	AuditSearch
},
) (*auditOutputBody, error) {
	named, err := a.membersIn(ctx, in.AuditSearch)
	if err != nil {
		return nil, err
	}
	req := &credentialv1.ListAuditRequest{Limit: in.Limit, Query: in.Query, QueryMembers: each(named, id.Member.String)}
	if in.Cursor != "" {
		before, err := strconv.ParseInt(in.Cursor, 10, 64)
		if err != nil || before < 1 {
			return nil, invalid("cursor: " + wantCursor)
		}
		req.Before = before
	}
	res, err := a.cfg.Accounts.ListAudit(ctx, req)
	out := &auditOutputBody{Rows: each(res.GetRows(), viewAuditRow)}
	if n := res.GetNextBefore(); n > 0 {
		out.NextCursor = new(strconv.FormatInt(n, 10))
	}
	return out, err
}
