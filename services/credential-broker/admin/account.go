package admin

import (
	"cmp"
	"context"
	"log/slog"
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

// Account is a stored credential without its secret. At the command line its state is what
// brokers have written, which lags by half a second.
type Account struct {
	ID        id.Account   `json:"id"`
	Workspace id.Workspace `json:"workspace_id,omitzero"` // zero if all workspaces share it
	Shared    bool         `json:"shared"`
	Provider  string       `json:"provider"`
	Profile   string       `json:"profile"`
	Label     string       `json:"label,omitempty"`
	Hint      string       `json:"hint,omitempty"`     // the end of the secret, by which people tell keys apart
	BaseURL   string       `json:"base_url,omitempty"` // empty for the profile's own
	Enabled   bool         `json:"enabled"`
	// FlatRate says that it is paid by the month, and its usage costs nothing.
	FlatRate   bool       `json:"flat_rate,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`

	Status Status `json:"status"`
	// Reason says to people why it is Unusable; otherwise empty.
	Reason string  `json:"reason,omitempty"`
	Health float64 `json:"health"` // from 0 to 100
	// Tokens is what is left in the account's token bucket; nil at the command line, and in
	// answers to a change.
	Tokens    *float64   `json:"tokens,omitempty"`
	Cooldowns []Cooldown `json:"cooldowns,omitempty"`
	Grant     *Grant     `json:"grant,omitempty"` // nil if the account is a key
}

// LogValue logs which account it is and nothing more.
func (a Account) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", a.ID.String()), slog.String("provider", a.Provider))
}

// Status says whether an account can be used now.
type Status string

// The statuses.
const (
	Ready       Status = "ready"
	Cooling     Status = "cooling"     // parked, as a whole or for some models, or passed over
	Unhealthy   Status = "unhealthy"   // used when there is no better one
	Disabled    Status = "disabled"    // by a person
	Reauthorize Status = "reauthorize" // somebody must sign in again
	SignedOut   Status = "signed_out"
	Unusable    Status = "unusable" // its credential cannot be decrypted here
)

// Words returns the status as people read it.
func (s Status) Words() string { return strings.ReplaceAll(string(s), "_", " ") }

// usable reports whether requests can use an account of this status, now or after a
// cooldown.
func (s Status) usable() bool { return s == Ready || s == Cooling || s == Unhealthy }

// Cooldown says why and until when requests do not use an account.
type Cooldown struct {
	Family string `json:"family,omitempty"` // of models; empty for the account as a whole
	// PassedOver says that requests use the account if there is no other.
	PassedOver bool         `json:"passed_over,omitempty"`
	Since      time.Time    `json:"since"`
	Until      time.Time    `json:"until"`
	Reason     store.Reason `json:"reason"`
	// HTTPStatus is that of the provider's answer, and RetryAfter its header, unparsed.
	HTTPStatus int    `json:"http_status,omitempty"`
	RetryAfter string `json:"retry_after,omitempty"`
	// Step counts how often in a row the quota was used up.
	Step int `json:"step,omitempty"`
}

// Grant is a sign-in at a provider.
type Grant struct {
	Provider string      `json:"provider"`
	State    oauth.State `json:"state"`
	// Reason says why it is not active, LastError what last went wrong while it is.
	Reason    string     `json:"reason,omitempty"`
	LastError string     `json:"last_error,omitempty"`
	Scope     string     `json:"scope,omitempty"`
	IssuedAt  time.Time  `json:"issued_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RefreshAt *time.Time `json:"refresh_at,omitempty"`
	Renewable bool       `json:"renewable"` // there is a refresh token
}

const fullHealth = 100

func account(r *store.Account) Account {
	return Account{
		ID: r.ID, Workspace: r.WorkspaceID, Shared: r.Shared(), Provider: r.Provider, Profile: r.Profile, Label: r.Label, Hint: r.Hint,
		BaseURL: r.BaseURL, Enabled: r.Enabled, FlatRate: r.FlatRate, CreatedAt: r.CreatedAt, LastUsedAt: r.LastUsedAt, Health: fullHealth,
	}
}

// describe returns the scope's accounts with their state: the live state if there is one,
// else what is stored.
func (s *Scope) describe(ctx context.Context, rows []store.Account, live map[id.Account]pool.State, look *vault.Look) ([]Account, error) {
	grants, err := s.accounts.Store.Grants(ctx, s.by.Workspace)
	if err != nil {
		return nil, err
	}
	known, err := s.accounts.Store.Known(ctx, s.by.Workspace)
	if err != nil {
		return nil, err
	}
	pools, err := s.Pools(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]Account, len(rows))
	for i := range rows {
		r := &rows[i]
		a := account(r)
		rules := find(pools, r.Provider).Settings
		if h, ok := known.Health[r.ID]; ok {
			a.Health = min(fullHealth, h.Health+max(0, now.Sub(h.At).Hours())*rules.RecoveryPerHour)
		}
		if x, ok := live[r.ID]; ok {
			a.Health, a.Tokens = x.Health, &x.Tokens
			for _, l := range x.Limits {
				a.cool(now, l)
			}
		} else {
			for _, l := range known.Limits[r.ID] {
				a.cool(now, l)
			}
		}
		slices.SortFunc(a.Cooldowns, func(a, b Cooldown) int { return cmp.Compare(a.Family, b.Family) })
		g, granted := grants[r.ID]
		if granted {
			a.Grant = &Grant{g.Provider, g.State, g.Reason, g.LastError, g.Scope, g.IssuedAt, g.ExpiresAt, g.RefreshAt, g.Refresh != nil}
		}
		if r.Enabled && (!granted || g.State == oauth.Active) {
			a.Reason = s.unusable(ctx, look, r, &g)
		}
		a.Health = math.Round(a.Health*100) / 100
		a.Status = a.status(rules)
		out[i] = a
	}
	return out, nil
}

// unusable says why the credential of an account cannot be decrypted; it is empty if it
// can be, or if nobody can tell now.
func (s *Scope) unusable(ctx context.Context, look *vault.Look, r *store.Account, g *store.Grant) string {
	err := oauth.LostTokens(ctx, look, s.ref(r.ID), g)
	if len(r.Bytes) > 0 {
		err = look.Lost(ctx, r.Place(), r.Sealed)
	}
	if err == nil {
		return ""
	}
	return vault.Why(err)
}

// cool adds a limit that has not ended.
func (a *Account) cool(now time.Time, l store.Limit) {
	if l.Until.After(now) {
		family, passed := strings.CutPrefix(l.Family, pool.PassedOver)
		a.Cooldowns = append(a.Cooldowns, Cooldown{family, passed, l.At, l.Until, l.Reason, l.Status, l.Raw, l.Step})
	}
}

func (a *Account) status(rules pool.Settings) Status {
	switch {
	case !a.Enabled:
		return Disabled
	case a.Grant != nil && a.Grant.State == oauth.Reauthorize:
		return Reauthorize
	case a.Grant != nil && a.Grant.State != oauth.Active:
		return SignedOut
	case a.Reason != "":
		return Unusable
	case slices.ContainsFunc(a.Cooldowns, func(c Cooldown) bool { return !c.PassedOver || c.Family == "" }):
		return Cooling
	case rules.Strategy.Rule().Health && a.Health < rules.MinUsable:
		return Unhealthy
	}
	return Ready
}

// live returns what the running broker knows of the accounts.
func (s *Scope) live(ctx context.Context, rows []store.Account) (map[id.Account]pool.State, error) {
	all := map[id.Account]pool.State{}
	if s.pool == nil || s.shared() {
		return all, nil
	}
	asked := map[string]bool{}
	for i := range rows {
		if asked[rows[i].Provider] {
			continue
		}
		asked[rows[i].Provider] = true
		states, err := s.pool.States(ctx, s.by.Workspace, rows[i].Provider)
		if err != nil && fault.KindOf(err) != fault.Conflict { // Conflict: none of them can be used
			return nil, err
		}
		for _, x := range states {
			all[x.Account] = x
		}
	}
	return all, nil
}
