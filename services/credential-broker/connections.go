package credentialbroker

import (
	"context"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
)

// ConnectionState says how a connection stands.
type ConnectionState string

// The states.
const (
	NotConfigured      ConnectionState = "not_configured" // by the operator
	NotConnected       ConnectionState = "not_connected"
	Connected          ConnectionState = "connected"
	ConnectAgain       ConnectionState = "reauthorize" // somebody must
	ConnectionDisabled ConnectionState = "disabled"    // an owner keeps tools from it
)

// ConnectionOrigin says where a connection comes from.
type ConnectionOrigin string

// The origins.
const (
	ByMember  ConnectionOrigin = "member"  // a member connected it
	ByAccount ConnectionOrigin = "account" // an owner added an account, which is looked after as such
	ByShared  ConnectionOrigin = "shared"  // the operator shares it with all workspaces
)

// Connection is what tools of a workspace reach at one provider: an account, as members
// see it. A provider of which its data say that it is for tools has one in each
// workspace, whatever its state.
//
// Connecting is a sign-in, as of an account but for this alone (oauth.ForConnection): the
// transaction that stores the tokens writes a row of the table connections, which says who
// did it. After it the provider is asked whom it belongs to. If the broker dies before it
// has, nobody is told that, until the connection is completed once more or made anew. The
// row goes with the account, and when an owner signs in to the account as such: then it is
// theirs to look after.
type Connection struct {
	// Provider is of the sign-in providers, Title is for people.
	Provider, Title string
	State           ConnectionState
	// Reason says why it is not connected, or what went wrong last.
	Reason string
	// Origin is empty where there is none, and what follows where no member connected it.
	Origin      ConnectionOrigin
	Subject     string
	Member      id.Member
	ConnectedAt *time.Time

	account id.Account
}

// connectable returns the provider that tools can be connected to under a name.
// Where there is none, that is a fault of the given kind.
func (a *Accounts) connectable(name string, kind fault.Kind) (*oauth.Provider, error) {
	var all []string
	for _, n := range a.providers.Names() {
		p, err := a.providers.Get(n)
		switch {
		case err != nil || p.Title == "":
		case n == name:
			return p, nil
		default:
			all = append(all, n)
		}
	}
	return nil, fault.New(kind, "provider: there is nothing to connect that is called %q: use one of %s", clip(name), strings.Join(all, ", "))
}

// configured returns a fault where the operator has yet to do something before anybody
// can connect to a provider.
func (a *Accounts) configured(p *oauth.Provider) error {
	if err := p.Ready(); err != nil {
		return err
	}
	if a.redirect == "" {
		return fault.Coded(fault.Conflict, "OAUTH_REDIRECT_MISSING", "connecting %s is not set up: the operator sets CREDENTIAL_BROKER_OAUTH_REDIRECT to this server's https://…/api/connections/callback, and registers it with the provider", p.Title)
	}
	return nil
}

// Connections returns all that can be connected, by name.
func (s *Scope) Connections(ctx context.Context) ([]Connection, error) {
	before, err := s.accounts.store.Connections(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	own, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	// Once more: what comes or goes meanwhile is not to look as if an owner had added it.
	made, err := s.accounts.store.Connections(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	members := map[string]bool{}
	for _, m := range []map[string]store.Connection{before, made} {
		for _, c := range m {
			members[c.Account.String()] = true
		}
	}
	all, err := s.accounts.store.List(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	var out []Connection
	for _, name := range s.accounts.providers.Names() {
		p, err := s.accounts.providers.Get(name)
		if err != nil {
			return nil, err
		}
		if p.Title == "" {
			continue
		}
		c := Connection{Provider: p.Name, Title: p.Title}
		if !c.byMember(p, made[name], own) && !c.byAccount(p, own, members) && !c.byShared(p, all) {
			c.State = NotConnected
			if err := s.accounts.configured(p); err != nil {
				c.State, c.Reason = NotConfigured, fault.From(err).Message
			}
		}
		out = append(out, c)
	}
	return out, nil
}

func (c *Connection) byMember(p *oauth.Provider, made store.Connection, own []Account) bool {
	i := slices.IndexFunc(own, func(a Account) bool { return a.ID == made.Account.String() })
	if made.Provider == "" || i < 0 {
		return false
	}
	c.Origin, c.Subject, c.Member, c.ConnectedAt, c.account = ByMember, made.Subject, made.Member, &made.ConnectedAt, made.Account
	c.stands(p, &own[i])
	return true
}

// byAccount looks for an account that an owner added, one that can be used first; others
// are of members.
func (c *Connection) byAccount(p *oauth.Provider, own []Account, members map[string]bool) bool {
	found := -1
	for i := range own {
		if own[i].Provider == p.Account && !members[own[i].ID] && (found < 0 || usable(&own[i]) && !usable(&own[found])) {
			found = i
		}
	}
	if found < 0 {
		return false
	}
	c.Origin = ByAccount
	c.stands(p, &own[found])
	return true
}

func (c *Connection) byShared(p *oauth.Provider, all []store.Account) bool {
	if !slices.ContainsFunc(all, func(a store.Account) bool { return a.Shared() && a.Enabled && a.Provider == p.Account }) {
		return false
	}
	c.Origin, c.State = ByShared, Connected
	return true
}

func usable(a *Account) bool {
	return a.Status != Disabled && a.Status != Reauthorize && a.Status != SignedOut && a.Status != Unusable
}

// stands says how a connection stands by its account.
func (c *Connection) stands(p *oauth.Provider, a *Account) {
	switch a.Status {
	case Disabled:
		c.State, c.Reason = ConnectionDisabled, "an owner has disabled the account behind it"
	case Reauthorize, SignedOut:
		c.State, c.Reason = ConnectAgain, a.Grant.Reason
	case Unusable:
		c.State, c.Reason = ConnectAgain, "the stored credential does not open: "+a.Reason
	case Ready, Cooling, Unhealthy:
		c.State = Connected
		if a.Grant == nil {
			return
		}
		c.Reason = a.Grant.LastError
		if missing := notAllowed(p, a.Grant.Scope); len(missing) > 0 {
			c.Reason = "not all that was asked for was allowed, so that some tools will not work: connect again, and allow " + strings.Join(missing, " and ")
		}
	}
}

// notAllowed returns the scopes that somebody has left out where the provider lets people
// choose, and says what they chose. Only those that are URLs are looked for: of others
// providers have several names.
func notAllowed(p *oauth.Provider, allowed string) (missing []string) {
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
	for _, c := range all {
		if c.Provider == provider {
			return c, nil
		}
	}
	return Connection{}, fault.New(fault.NotFound, "provider: there is nothing to connect that is called %q", clip(provider))
}

// theirs refuses what somebody may not do with a connection that another member made.
func (s *Scope) theirs(c *Connection) error {
	switch {
	case c.Origin == ByAccount:
		return fault.Coded(fault.Conflict, "CONNECTED_AS_ACCOUNT", "%s is connected through an account that an owner added: an owner changes or removes it among the accounts", c.Title)
	case c.Origin == ByMember && c.Member != s.by.Member && s.by.Role < identity.Owner:
		return fault.Coded(fault.Forbidden, "CONNECTED_BY_ANOTHER", "%s was connected by another member: only they or an owner can change that", c.Title)
	}
	return nil
}

// mayConnect refuses to connect what somebody else made and uses, and what owners look
// after. A connection that is of no use any more may be replaced by everybody.
func (s *Scope) mayConnect(c *Connection) error {
	switch {
	case c.State == ConnectionDisabled:
		return fault.Coded(fault.Conflict, "CONNECTION_DISABLED", "an owner has disabled the account behind %s: an owner enables or removes it among the accounts", c.Title)
	case c.State == Connected || c.Origin == ByAccount:
		return s.theirs(c)
	}
	return nil
}

// Connect begins to connect a provider, or to connect it again. With the id of a login that
// Connect has begun it returns the same one; without it is a new one.
func (s *Scope) Connect(ctx context.Context, provider, login string) (Login, error) {
	asked, err := loginID(login)
	if err != nil {
		return Login{}, err
	}
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
	return s.StartLogin(ctx, LoginRequest{ID: asked, Purpose: oauth.ForConnection, Provider: p.Name, Kind: LoginBrowser, Account: c.account})
}

// stillMay is mayConnect as of the moment at which somebody comes back, for the account
// that they have begun with.
func (s *Scope) stillMay(ctx context.Context, p *oauth.Provider, account id.Account) error {
	c, err := s.connection(ctx, p.Name)
	switch {
	case err != nil:
		return err
	case c.Origin == ByMember && c.account != account:
		return oauth.Meanwhile(p, c.Member == s.by.Member)
	}
	return s.mayConnect(&c)
}

// completion is how long the steps after a sign-in may take.
const completion = 30 * time.Second

// CompleteConnection ends what Connect began, and returns the connection. Called again it
// answers the same.
func (s *Scope) CompleteConnection(ctx context.Context, provider string, answer LoginAnswer) (Connection, error) {
	p, err := s.accounts.connectable(provider, fault.NotFound)
	if err != nil {
		return Connection{}, err
	}
	ref, err := s.accounts.keeper.Complete(ctx, s.who(), oauth.Answer{
		State: answer.State, Code: answer.Code, Error: answer.Error, Provider: p.Name, Purpose: oauth.ForConnection,
		May: func(ctx context.Context, account id.Account) error { return s.stillMay(ctx, p, account) },
	})
	if err != nil {
		return Connection{}, err
	}
	s.changed()
	// Whoever asked may leave: it is connected.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), completion)
	defer cancel()
	c, err := s.connection(ctx, p.Name)
	if err != nil || c.account != ref.Account || c.Subject != "" {
		return c, err
	}
	c.Subject, err = s.accounts.keeper.Whoami(ctx, ref, p)
	if err == nil && c.Subject != "" {
		err = s.accounts.store.NameConnection(ctx, s.workspace, store.Connection{Provider: p.Name, Account: ref.Account, Member: c.Member, Subject: c.Subject})
	}
	if err != nil {
		s.accounts.log.WarnContext(ctx, "a connection's owner is not known", "account", ref.Account, "provider", p.Name, "error", err)
	}
	return c, nil
}

// Disconnect takes a connection back, here and at the provider, and removes the account.
func (s *Scope) Disconnect(ctx context.Context, provider string) (Revocation, error) {
	p, err := s.accounts.connectable(provider, fault.NotFound)
	if err != nil {
		return Revocation{}, err
	}
	c, err := s.connection(ctx, p.Name)
	if err != nil {
		return Revocation{}, err
	}
	if err := s.theirs(&c); err != nil {
		return Revocation{}, err
	}
	if c.State == ConnectionDisabled && s.by.Role < identity.Owner {
		return Revocation{}, fault.Coded(fault.Forbidden, "CONNECTION_DISABLED", "an owner has disabled the account behind %s: an owner enables or removes it", p.Title)
	}
	switch c.Origin {
	case ByMember:
		return s.Remove(ctx, c.account)
	case ByShared:
		return Revocation{}, fault.Coded(fault.Conflict, "CONNECTED_BY_OPERATOR", "the operator shares %s with all workspaces: connect an account of your own, which goes before it", p.Title)
	}
	return Revocation{}, fault.New(fault.NotFound, "%s is not connected", p.Title)
}
