package credentialbroker

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
)

func message(a Account) *credentialv1.Account {
	m := &credentialv1.Account{
		Id: a.ID, Provider: a.Provider, Profile: a.Profile, Label: a.Label, Hint: a.Hint, BaseUrl: a.BaseURL,
		Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Enabled: a.Enabled, CreatedAt: timestamppb.New(a.CreatedAt), LastUsedAt: stamp(a.LastUsedAt),
	}
	if a.Shared {
		m.Origin = credentialv1.Origin_ORIGIN_SHARED
		return m
	}
	m.Status, m.Reason, m.Health, m.Tokens, m.Grant, m.FlatRate = status(a.Status), a.Reason, new(a.Health), a.Tokens, grantMessage(a.Grant), a.FlatRate
	for _, c := range a.Cooldowns {
		m.Cooldowns = append(m.Cooldowns, &credentialv1.AccountCooldown{
			Family: c.Family, Since: timestamppb.New(c.Since), Until: timestamppb.New(c.Until), Reason: c.Reason,
			Status: int32(c.HTTPStatus), RetryAfter: c.RetryAfter, Step: int32(c.Step), PassedOver: c.PassedOver,
		})
	}
	return m
}

func grantMessage(g *Grant) *credentialv1.AccountGrant {
	if g == nil {
		return nil
	}
	return &credentialv1.AccountGrant{
		Provider: g.Provider, State: g.State, Reason: g.Reason, LastError: g.LastError, Scope: g.Scope,
		IssuedAt: timestamppb.New(g.IssuedAt), ExpiresAt: stamp(g.ExpiresAt), RefreshAt: stamp(g.RefreshAt), Renewable: g.Renewable,
	}
}

func stamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

func status(s Status) credentialv1.AccountStatus {
	switch s {
	case Ready:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_READY
	case Cooling:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_COOLING
	case Unhealthy:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_UNHEALTHY
	case Disabled:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_DISABLED
	case Reauthorize:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_REAUTHORIZE
	case SignedOut:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_SIGNED_OUT
	case Unusable:
		return credentialv1.AccountStatus_ACCOUNT_STATUS_UNUSABLE
	}
	return credentialv1.AccountStatus_ACCOUNT_STATUS_UNSPECIFIED
}
