package pool

import (
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Origin says where a credential came from.
type Origin string

// The origins. A workspace's own accounts come first, then the operator's shared ones, then
// the environment's.
const (
	Workspace   Origin = "workspace"
	Shared      Origin = "shared"
	Environment Origin = "environment"
	Simulator   Origin = "simulator"
)

// SimulatorName is the simulated provider's name. The simulator never answers for another
// provider of models.
const SimulatorName = "simulator"

// simulators has the names under which the simulator answers, and whose protocol it speaks
// then.
var simulators = map[string]string{
	SimulatorName: "anthropic", SimulatorName + "-openai": "openai", SimulatorName + "-openrouter": "openrouter",
}

// SimulatedServices are the providers of tools that the simulator can stand in for. Unlike a
// model provider it does so under their own names, where nothing is connected.
var SimulatedServices = []string{"github", "google", "notion"}

// IsSimulator reports whether a provider's name is reserved for the simulator: no account
// can have it.
func IsSimulator(provider string) bool {
	return provider == SimulatorName || strings.HasPrefix(provider, SimulatorName+"-")
}

// Account is an account that can be used.
type Account struct {
	ID       id.Account
	Provider string
	Origin   Origin
	Profile  *profile.Profile
	// Base is where its requests go.
	Base *url.URL
	// Own says that the workspace, not the operator, chose Base: such requests must not
	// reach the operator's network.
	Own bool
	// FlatRate says that its requests cost nothing each.
	FlatRate bool
	// Secret is a key, or the access token of the Grant.
	Secret vault.Secret
	// Grant is zero if the Secret is a key.
	Grant oauth.Ref

	tokens  Tokens // nil if the Secret is a key
	version int64  // of the access token
	pool    *Pool  // nil for the simulator's
	owner   owner
	ticket  *Ticket
	use     *use // to be recorded; nil if there is nothing to record
}

// Request is what an account is selected for.
type Request struct {
	Actor    identity.Actor
	Provider string
	// Server is where the account's requests must go, as Account.Server names it; empty for
	// anywhere.
	Server string
	// Address is the caller's, for the audit.
	Address string
	// Model is the model that the request names, if it does: some providers limit each
	// model separately.
	Model string
	// Tried are the accounts that this request failed with.
	Tried []id.Account
	// Denied are those of Tried that the provider does not let do what the request asks for.
	Denied []id.Account
	// Away are servers that could not be reached, as Account.Server names them. Accounts
	// there are not chosen.
	Away []string
}

// Elsewhere reports whether the account's pool has others at other servers.
func (a *Account) Elsewhere() bool { return a.ticket != nil && a.ticket.elsewhere }

// Server names the server that an account's requests go to.
func (a *Account) Server() string {
	if a.Base == nil {
		return ""
	}
	return a.Base.Scheme + "://" + a.Base.Host
}

// isAt reports whether an account's requests go to a server; to the empty one they all do.
func (a *Account) isAt(server string) bool {
	return server == "" || strings.EqualFold(withoutPort(a.Server()), withoutPort(server))
}

// withoutPort returns a server without a port that is its scheme's.
func withoutPort(server string) string {
	if strings.HasPrefix(server, "https:") {
		return strings.TrimSuffix(server, ":443")
	}
	return strings.TrimSuffix(server, ":80")
}

// Outcome is how a request went with one account.
type Outcome struct {
	Reason Reason
	Status int
	// RetryAfter is how long the provider asked to wait; 0 if it did not.
	RetryAfter time.Duration
	// Raw is the header that said so, for operators.
	Raw string
	// Ends is how long until the quota ends that the answer was counted against; 0 if the
	// provider did not say.
	Ends time.Duration
	// Unsent says that nothing of the request was sent. With the Reason Unreachable it means
	// that the account's server cannot be reached.
	Unsent bool
	// Denied says that the provider does not let the account do what the request asked for.
	Denied bool
	// Later is for how long the account is passed over because it has no token, or with the
	// Reason Unreachable all accounts at its server; 0 if not. Nothing else is learned from
	// such an outcome.
	Later time.Duration
	// Model is the one that the request asked for, Tokens what the answer counted; empty if
	// unknown.
	Model  string
	Tokens price.Tokens
}

// derived returns the id of an account that is not stored, the same in all instances.
func derived(origin Origin, provider string) id.Account {
	return id.Account{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://signalbox.dev/accounts/"+string(origin)+"/"+provider))}
}
