package credentialbroker

import (
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/admin"
)

// enum returns the value of a protobuf enum whose name is a prefix and the upper-case
// name; 0, which is UNSPECIFIED, if there is none.
func enum[E ~int32, N ~string](values map[string]int32, prefix string, name N) E {
	return E(values[prefix+strings.ToUpper(string(name))])
}

// each returns a message for each value.
func each[T, M any](all []T, message func(T) M) []M {
	var out []M
	for _, v := range all {
		out = append(out, message(v))
	}
	return out
}

func originEnum(name string) credentialv1.Origin {
	return enum[credentialv1.Origin](credentialv1.Origin_value, "ORIGIN_", name)
}

func accountMessage(a admin.Account) *credentialv1.Account {
	m := &credentialv1.Account{
		Id: a.ID.String(), Provider: a.Provider, Profile: a.Profile, Label: a.Label, Hint: a.Hint, BaseUrl: a.BaseURL,
		Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Enabled: a.Enabled, CreatedAt: timestamppb.New(a.CreatedAt), LastUsedAt: timestamp(a.LastUsedAt),
	}
	if a.Shared {
		m.Origin = credentialv1.Origin_ORIGIN_SHARED
		return m
	}
	m.Status = enum[credentialv1.AccountStatus](credentialv1.AccountStatus_value, "ACCOUNT_STATUS_", a.Status)
	m.Reason, m.Health, m.Tokens, m.FlatRate = a.Reason, new(a.Health), a.Tokens, a.FlatRate
	if g := a.Grant; g != nil {
		m.Grant = &credentialv1.AccountGrant{
			Provider: g.Provider, State: string(g.State), Reason: g.Reason, LastError: g.LastError, Scope: g.Scope,
			IssuedAt: timestamppb.New(g.IssuedAt), ExpiresAt: timestamp(g.ExpiresAt), RefreshAt: timestamp(g.RefreshAt), Renewable: g.Renewable,
		}
	}
	for _, c := range a.Cooldowns {
		m.Cooldowns = append(m.Cooldowns, &credentialv1.AccountCooldown{
			Family: c.Family, Since: timestamppb.New(c.Since), Until: timestamppb.New(c.Until), Reason: string(c.Reason),
			Status: int32(c.HTTPStatus), RetryAfter: c.RetryAfter, Step: int32(c.Step), PassedOver: c.PassedOver,
		})
	}
	return m
}

func connectionMessage(c admin.Connection) *credentialv1.Connection {
	return &credentialv1.Connection{
		Provider: c.Provider, Title: c.Title, Reason: c.Reason, Subject: c.Subject, ConnectedAt: timestamp(c.ConnectedAt), MemberId: text(c.Member),
		State:  enum[credentialv1.ConnectionState](credentialv1.ConnectionState_value, "CONNECTION_STATE_", c.State),
		Origin: enum[credentialv1.ConnectionOrigin](credentialv1.ConnectionOrigin_value, "CONNECTION_ORIGIN_", c.Origin),
	}
}

// text returns an id, and "" for the zero one.
func text[T id.Kind](v T) string {
	if id.IsZero(v) {
		return ""
	}
	return struct{ uuid.UUID }(v).String()
}

func timestamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

// seconds rounds up to whole seconds.
func seconds(d time.Duration) int32 { return int32(min(math.Ceil(d.Seconds()), math.MaxInt32)) }
