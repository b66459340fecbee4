package credentialbroker

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Status says what can be done with an account now.
type Status string

// The statuses.
const (
	Ready       Status = "ready"
	Cooling     Status = "cooling"     // parked, whole or for some models, or passed over
	Unhealthy   Status = "unhealthy"   // used when there is no better one
	Disabled    Status = "disabled"    // by somebody
	Reauthorize Status = "reauthorize" // somebody must sign in again
	SignedOut   Status = "signed_out"
	Unusable    Status = "unusable" // its credential does not open here
)

// Words returns the status as people read it.
func (s Status) Words() string { return strings.ReplaceAll(string(s), "_", " ") }

// State is what is known of an account. Without a broker around it is what brokers have
// written down, half a second ago.
type State struct {
	Status Status `json:"status"`
	// Reason says to people why it is unusable; empty where it is not.
	Reason string `json:"reason,omitempty"`
	// Health is from 0 to 100.
	Health float64 `json:"health"`
	// Tokens is what is left of the account's requests, as this broker counts; nil
	// without one, and in answers to a change.
	Tokens    *float64   `json:"tokens,omitempty"`
	Cooldowns []Cooldown `json:"cooldowns,omitempty"`
	// Grant is nil where the account is a key.
	Grant *Grant `json:"grant,omitempty"`
}

// Cooldown is why and until when requests do not go to an account.
type Cooldown struct {
	// Family is of models; empty for the account as a whole.
	Family string `json:"family,omitempty"`
	// PassedOver says that requests go to the account where there is no other.
	PassedOver bool      `json:"passed_over,omitempty"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until"`
	Reason     string    `json:"reason"`
	// HTTPStatus is that of the provider's answer, and RetryAfter the header as it was.
	HTTPStatus int    `json:"http_status,omitempty"`
	RetryAfter string `json:"retry_after,omitempty"`
	// Step is how often in a row the quota was used up.
	Step int `json:"step,omitempty"`
}

// Grant is a sign-in at a provider.
type Grant struct {
	Provider string `json:"provider"`
	State    string `json:"state"`
	// Reason says why it is not active, LastError what went wrong last while it is.
	Reason    string     `json:"reason,omitempty"`
	LastError string     `json:"last_error,omitempty"`
	Scope     string     `json:"scope,omitempty"`
	IssuedAt  time.Time  `json:"issued_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RefreshAt *time.Time `json:"refresh_at,omitempty"`
	// Renewable says that there is a refresh token.
	Renewable bool `json:"renewable"`
}

const fullHealth = 100

// describe tells what is known of accounts of the scope: what is stored, in its place what
// is live, and whether they open.
func (s *Scope) describe(ctx context.Context, rows []store.Account, live map[id.Account]pool.State, look *vault.Look) ([]Account, error) {
	grants, err := s.accounts.keeper.Statuses(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	known, err := s.accounts.store.Known(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	settings, err := s.settings(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]Account, len(rows))
	for i := range rows {
		r := &rows[i]
		out[i] = describe(r)
		rules := settings(r.Provider)
		st := State{Health: fullHealth}
		if h, ok := known.Health[r.ID]; ok {
			st.Health = min(fullHealth, h.Health+max(0, now.Sub(h.At).Hours())*rules.RecoveryPerHour)
		}
		for _, l := range known.Limits[r.ID] {
			st.Cooldowns = appendCooldown(st.Cooldowns, now, l)
		}
		if x, ok := live[r.ID]; ok {
			st.Health, st.Tokens, st.Cooldowns = x.Health, &x.Tokens, nil
			for _, l := range x.Limits {
				st.Cooldowns = appendCooldown(st.Cooldowns, now, l)
			}
		}
		g, granted := grants[r.ID]
		if granted {
			st.Grant = grantOf(g)
		}
		if r.Enabled && (!granted || g.State == oauth.Active) {
			st.Reason = s.unusable(ctx, look, r, &g)
		}
		st.Health = math.Round(st.Health*100) / 100
		slices.SortFunc(st.Cooldowns, func(a, b Cooldown) int { return cmp.Compare(a.Family, b.Family) })
		st.Status = st.status(r.Enabled, rules)
		out[i].State = st
	}
	return out, nil
}

// unusable says why the credential of an account does not open; empty where it does, or
// where nobody can tell now.
func (s *Scope) unusable(ctx context.Context, look *vault.Look, r *store.Account, g *oauth.Status) string {
	err := g.Lost(ctx, look, s.ref(r.ID))
	if len(r.Sealed) > 0 {
		err = look.Lost(ctx, r.Place(), vault.Sealed{KeyVersion: r.KeyVersion, Bytes: r.Sealed})
	}
	if err == nil {
		return ""
	}
	return vault.Why(err)
}

func appendCooldown(all []Cooldown, now time.Time, l store.Limit) []Cooldown {
	if !l.Until.After(now) {
		return all
	}
	family, passed := strings.CutPrefix(l.Family, pool.PassedOver)
	return append(all, Cooldown{
		Family: family, PassedOver: passed, Since: l.At, Until: l.Until, Reason: string(l.Reason), HTTPStatus: l.Status, RetryAfter: l.Raw, Step: l.Step,
	})
}

func grantOf(g oauth.Status) *Grant {
	return &Grant{
		Provider: g.Provider, State: string(g.State), Reason: g.Reason, LastError: g.LastError, Scope: g.Scope,
		IssuedAt: g.IssuedAt, ExpiresAt: g.ExpiresAt, RefreshAt: g.RefreshAt, Renewable: g.Renewable,
	}
}

func (st *State) status(enabled bool, rules pool.Settings) Status {
	switch {
	case !enabled:
		return Disabled
	case st.Grant != nil && st.Grant.State == string(oauth.Reauthorize):
		return Reauthorize
	case st.Grant != nil && st.Grant.State != string(oauth.Active):
		return SignedOut
	case st.Reason != "":
		return Unusable
	case slices.ContainsFunc(st.Cooldowns, func(c Cooldown) bool { return !c.PassedOver || c.Family == "" }):
		return Cooling
	case rules.Strategy.Rule().Health && st.Health < rules.MinUsable:
		return Unhealthy
	}
	return Ready
}

// live asks the broker that this is in, if it is in one, what it knows of the accounts.
func (s *Scope) live(ctx context.Context, rows []store.Account) (map[id.Account]pool.State, error) {
	all := map[id.Account]pool.State{}
	if s.pool == nil || id.IsZero(s.workspace) {
		return all, nil
	}
	asked := map[string]bool{}
	for i := range rows {
		if asked[rows[i].Provider] {
			continue
		}
		asked[rows[i].Provider] = true
		states, err := s.pool.States(ctx, s.workspace, rows[i].Provider)
		if err != nil && fault.KindOf(err) != fault.Conflict { // none of them can be used
			return nil, err
		}
		for _, x := range states {
			all[x.Account] = x
		}
	}
	return all, nil
}
