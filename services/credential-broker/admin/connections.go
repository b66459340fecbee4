package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
)

// ConnectionState says whether tools can use a connection.
type ConnectionState string

// The states.
const (
	NotConfigured      ConnectionState = "not_configured" // by the operator
	NotConnected       ConnectionState = "not_connected"
	Connected          ConnectionState = "connected"
	ConnectAgain       ConnectionState = "reauthorize" // somebody must
	ConnectionDisabled ConnectionState = "disabled"    // by an owner
)

// ConnectionOrigin says where a connection comes from.
type ConnectionOrigin string

// The origins.
const (
	ByMember  ConnectionOrigin = "member"  // a member connected it
	ByAccount ConnectionOrigin = "account" // an owner added an account, and manages it as such
	ByShared  ConnectionOrigin = "shared"  // the operator shares it with all workspaces
	Simulated ConnectionOrigin = "simulated"
)

// Connection is an account as members see it: what a workspace's tools reach at one
// provider. Every provider that its data marks as one for tools has a connection in each
// workspace, in whatever state.
//
// Connecting is a sign-in with a purpose of its own (oauth.ForConnection): the transaction
// that stores the tokens also writes a row of the table connections, which says who
// connected it. After that the provider is asked whom the account belongs to; if the broker
// dies before, the subject stays unknown until somebody completes the connection again. The
// row is deleted with the account, and when an owner signs in to the account as such: from
// then on owners manage it.
type Connection struct {
	Provider, Title string // the sign-in provider's name, and its name for people
	State           ConnectionState
	Reason          string // why it is not connected, or what last went wrong
	// Origin is empty if it is not connected; what follows is set for ByMember only.
	Origin      ConnectionOrigin
	Subject     string
	Member      id.Member
	ConnectedAt *time.Time

	account id.Account
}

// connectable returns the provider of that name, to which tools can be connected, or a
// fault of the given kind.
func (a *Accounts) connectable(name string, kind fault.Kind) (*oauth.Provider, error) {
	all, err := a.connectables()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return nil, fault.New(kind, "provider: there is no connection called %q: use one of %s", clip(name), strings.Join(names, ", "))
}

// connectables returns the providers to which tools can be connected.
func (a *Accounts) connectables() (all []*oauth.Provider, err error) {
	for _, name := range a.providers.Names() {
		p, err := a.providers.Get(name)
		if err != nil {
			return nil, err
		}
		if p.Title != "" {
			all = append(all, p)
		}
	}
	return all, nil
}

// configured returns a fault if the operator has to do something before anybody can
// connect to a provider.
func (a *Accounts) configured(p *oauth.Provider) error {
	if err := p.Ready(); err != nil {
		return err
	}
	if a.redirect == "" {
		return fault.Coded(fault.Conflict, "OAUTH_REDIRECT_MISSING", "connecting %s is not set up: the operator has to set CREDENTIAL_BROKER_OAUTH_REDIRECT to this server's https://…/api/connections/callback and register it with the provider", p.Title)
	}
	return nil
}

// Connections returns everything that can be connected, by name.
func (s *Scope) Connections(ctx context.Context) ([]Connection, error) {
	providers, err := s.accounts.connectables()
	if err != nil {
		return nil, err
	}
	before, err := s.accounts.Store.Connections(ctx, s.by.Workspace)
	if err != nil {
		return nil, err
	}
	own, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	// Read again: a connection made or removed meanwhile must not look like an owner's account.
	made, err := s.accounts.Store.Connections(ctx, s.by.Workspace)
	if err != nil {
		return nil, err
	}
	members := map[id.Account]bool{}
	for _, m := range []map[string]store.Connection{before, made} {
		for _, c := range m {
			members[c.Account] = true
		}
	}
	_, shared, err := s.rows(ctx)
	if err != nil {
		return nil, err
	}
	var out []Connection
	for _, p := range providers {
		c := Connection{Provider: p.Name, Title: p.Title}
		if !c.byMember(p, made[p.Name], own) && !c.byAccount(p, own, members) && !c.byShared(p, shared) {
			c.State = NotConnected
			err := s.accounts.configured(p)
			switch {
			case s.accounts.simulated && slices.Contains(pool.SimulatedServices, p.Account):
				c.State, c.Origin = Connected, Simulated
			case err != nil:
				c.State, c.Reason = NotConfigured, fault.From(err).Message
			}
		}
		out = append(out, c)
	}
	return out, nil
}

func (c *Connection) byMember(p *oauth.Provider, made store.Connection, own []Account) bool {
	i := slices.IndexFunc(own, func(a Account) bool { return a.ID == made.Account })
	if made.Provider == "" || i < 0 {
		return false
	}
	c.Origin, c.Subject, c.Member, c.ConnectedAt, c.account = ByMember, made.Subject, made.Member, &made.ConnectedAt, made.Account
	c.judge(p, &own[i])
	return true
}

// byAccount looks for an account that an owner added, preferably a usable one.
func (c *Connection) byAccount(p *oauth.Provider, own []Account, members map[id.Account]bool) bool {
	var found *Account
	for i := range own {
		a := &own[i]
		if a.Provider == p.Account && !members[a.ID] && (found == nil || a.Status.usable() && !found.Status.usable()) {
			found = a
		}
	}
	if found == nil {
		return false
	}
	c.Origin = ByAccount
	c.judge(p, found)
	return true
}

func (c *Connection) byShared(p *oauth.Provider, shared []store.Account) bool {
	if !slices.ContainsFunc(shared, func(a store.Account) bool { return a.Enabled && a.Provider == p.Account }) {
		return false
	}
	c.Origin, c.State = ByShared, Connected
	return true
}

// judge derives the state of a connection from its account.
func (c *Connection) judge(p *oauth.Provider, a *Account) {
	switch a.Status {
	case Disabled:
		c.State, c.Reason = ConnectionDisabled, "an owner has disabled the account behind it"
	case Reauthorize, SignedOut:
		c.State, c.Reason = ConnectAgain, a.Grant.Reason
	case Unusable:
		c.State, c.Reason = ConnectAgain, "the stored credential cannot be decrypted: "+a.Reason
	case Ready, Cooling, Unhealthy:
		c.State = Connected
		if a.Grant == nil {
			return
		}
		c.Reason = a.Grant.LastError
		if missing := missingScopes(p, a.Grant.Scope); len(missing) > 0 {
			c.Reason = "some permissions were declined, so some tools will not work: connect again, and allow " + strings.Join(missing, " and ")
		}
	}
}

// missingScopes returns the scopes that somebody declined, at a provider that lets people
// choose and says what they chose. It considers only scopes that are URLs: providers have
// several names for the others.
func missingScopes(p *oauth.Provider, allowed string) (missing []string) {
	for _, scope := range p.Scopes {
		if allowed != "" && strings.Contains(scope, "://") && !slices.Contains(strings.Fields(allowed), scope) {
			missing = append(missing, scope)
		}
	}
	return missing
}

func (s *Scope) connection(ctx context.Context, provider string) (Connection, error) {
	all, err := s.Connections(ctx)
	if err != nil {
		return Connection{}, err
	}
	i := slices.IndexFunc(all, func(c Connection) bool { return c.Provider == provider })
	if i < 0 {
		return Connection{}, fault.New(fault.NotFound, "provider: there is no connection called %q", clip(provider))
	}
	return all[i], nil
}

// mayChange refuses changes to a connection that another member made, or that owners manage
// as an account.
func (s *Scope) mayChange(c *Connection) error {
	switch {
	case c.Origin == ByAccount:
		return fault.Coded(fault.Conflict, "CONNECTED_AS_ACCOUNT", "%s is connected through an account that an owner added: only an owner can change or remove that account", c.Title)
	case c.Origin == ByMember && c.Member != s.by.Member && s.by.Role < identity.Owner:
		return fault.Coded(fault.Forbidden, "CONNECTED_BY_ANOTHER", "%s was connected by another member: only they or an owner can change that", c.Title)
	}
	return nil
}

// mayConnect refuses to replace a connection that works and may not be changed, and one
// that is disabled. Anybody may replace a connection that no longer works.
func (s *Scope) mayConnect(c *Connection) error {
	switch {
	case c.State == ConnectionDisabled:
		return fault.Coded(fault.Conflict, "CONNECTION_DISABLED", "an owner has disabled the account behind %s: only an owner can enable or remove it", c.Title)
	case c.State == Connected || c.Origin == ByAccount:
		return s.mayChange(c)
	}
	return nil
}

// Connect begins to connect a provider, for the first time or again. With the id of a
// login that Connect has begun it returns that login; with the zero id, a new one.
func (s *Scope) Connect(ctx context.Context, provider string, login uuid.UUID) (Login, error) {
	p, err := s.accounts.connectable(provider, fault.Invalid)
	if err != nil {
		return Login{}, err
	}
	if err := s.accounts.configured(p); err != nil {
		return Login{}, err
	}
	c, err := s.connection(ctx, p.Name)
	if err != nil {
		return Login{}, err
	}
	if err := s.mayConnect(&c); err != nil {
		return Login{}, err
	}
	return s.StartLogin(ctx, LoginRequest{ID: login, Purpose: oauth.ForConnection, Provider: p.Name, Kind: LoginBrowser, Account: c.account})
}

// mayComplete is mayConnect when the person comes back from the provider, for the account
// that they began with.
func (s *Scope) mayComplete(ctx context.Context, p *oauth.Provider, account id.Account) error {
	c, err := s.connection(ctx, p.Name)
	switch {
	case err != nil:
		return err
	case c.Origin == ByMember && c.account != account:
		return oauth.ConnectedMeanwhile(p, c.Member == s.by.Member)
	}
	return s.mayConnect(&c)
}

// completionTimeout bounds the steps after a sign-in.
const completionTimeout = 30 * time.Second

// CompleteConnection ends what Connect began, and returns the connection. A repeat returns
// the same.
func (s *Scope) CompleteConnection(ctx context.Context, provider string, answer LoginAnswer) (Connection, error) {
	p, err := s.accounts.connectable(provider, fault.NotFound)
	if err != nil {
		return Connection{}, err
	}
	answer.Provider, answer.Purpose = p.Name, oauth.ForConnection
	answer.May = func(ctx context.Context, account id.Account) error { return s.mayComplete(ctx, p, account) }
	ref, err := s.accounts.Keeper.Complete(ctx, s.by, answer)
	if err != nil {
		return Connection{}, err
	}
	s.invalidate()
	// It is connected: the rest is done even if the caller leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), completionTimeout)
	defer cancel()
	c, err := s.connection(ctx, p.Name)
	if err != nil || c.account != ref.Account || c.Subject != "" {
		return c, err
	}
	c.Subject, err = s.accounts.Keeper.Whoami(ctx, ref, p)
	if err == nil && c.Subject != "" {
		err = s.accounts.Store.NameConnection(ctx, s.by.Workspace, store.Connection{Provider: p.Name, Account: ref.Account, Member: c.Member, Subject: c.Subject})
	}
	if err != nil {
		s.accounts.log.WarnContext(ctx, "cannot look up a connection's owner", "account", ref.Account, "provider", p.Name, "error", err)
	}
	return c, nil
}

// Disconnect revokes a connection, here and at the provider, and removes its account.
func (s *Scope) Disconnect(ctx context.Context, provider string) (Revocation, error) {
	p, err := s.accounts.connectable(provider, fault.NotFound)
	if err != nil {
		return Revocation{}, err
	}
	c, err := s.connection(ctx, p.Name)
	if err != nil {
		return Revocation{}, err
	}
	if err := s.mayChange(&c); err != nil {
		return Revocation{}, err
	}
	if c.State == ConnectionDisabled && s.by.Role < identity.Owner {
		return Revocation{}, fault.Coded(fault.Forbidden, "CONNECTION_DISABLED", "an owner has disabled the account behind %s: only an owner can enable or remove it", p.Title)
	}
	switch c.Origin {
	case ByMember:
		return s.Remove(ctx, c.account)
	case ByShared:
		return Revocation{}, fault.Coded(fault.Conflict, "CONNECTED_BY_OPERATOR", "the operator shares %s with all workspaces: connect an account of your own, which takes precedence", p.Title)
	}
	return Revocation{}, fault.New(fault.NotFound, "%s is not connected", p.Title)
}
