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

// The origins, in the order in which they are looked at.
const (
	Workspace   Origin = "workspace"
	Shared      Origin = "shared"
	Environment Origin = "environment"
	Simulator   Origin = "simulator"
)

// SimulatorName is the simulated provider's name: its answers are to be taken for nobody
// else's.
const SimulatorName = "simulator"

// simulators are the names under which the simulator answers, and the provider whose
// protocol it speaks then. Of those protocols Anthropic's has the most: searches of its own,
// and thinking. The others are for whoever tries a client of theirs.
var simulators = map[string]string{
	SimulatorName: "anthropic", SimulatorName + "-openai": "openai", SimulatorName + "-openrouter": "openrouter",
}

// IsSimulator reports whether a provider's name is kept for the simulator, so that no
// account can have it.
func IsSimulator(provider string) bool {
	return provider == SimulatorName || strings.HasPrefix(provider, SimulatorName+"-")
}

// Account is one that can be used: its secret is open.
type Account struct {
	ID       id.Account
	Provider string
	Origin   Origin
	Profile  *profile.Profile
	// Base is where its requests go.
	Base *url.URL
	// Own says that the workspace, and not the operator, chose Base: such a
	// request must not reach the operator's network.
	Own bool
	// FlatRate says that its requests cost nothing each.
	FlatRate bool
	Secret   vault.Secret
	// Grant is the grant whose access token is the Secret; zero where that is a key.
	Grant oauth.Ref
	// tokens and version are of the access token; nil where the Secret is a key
	tokens  Tokens
	version int64

	// Where it was chosen; no pool for the simulator's.
	pool   *Pool
	owner  owner
	ticket *Ticket
	use    *use // to be written; nil where it is no first one
}

// Request is what an account is wanted for.
type Request struct {
	Actor    identity.Actor
	Provider string
	// Address is the caller's, for the audit.
	Address string
	// Model is the model that the request asks for, as far as it says so: some
	// providers limit each on its own.
	Model string
	// Tried are the accounts that this request failed with.
	Tried []id.Account
	// Denied are those of them that the provider does not let do what it asks for.
	Denied []id.Account
	// Away are servers that could not be reached, as Account.Server names them: no account
	// there is chosen.
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

// Outcome is how a request went with one account.
type Outcome struct {
	Reason Reason
	Status int
	// RetryAfter is what the provider asked for; 0 when it did not.
	RetryAfter time.Duration
	// Raw is the header that said so, for operators.
	Raw string
	// Ends is how long until the quota lapses that the answer was counted against; 0 where
	// the provider did not say.
	Ends time.Duration
	// Unsent says that nothing of the request was sent; where the Reason is Unreachable, that
	// the account's server cannot be reached.
	Unsent bool
	// Denied says that the provider does not let the account do what the request asked
	// for (Denied).
	Denied bool
	// Later is how long the account cannot be sent to, for want of a token or of a server
	// that can be reached; 0 when it can. Nothing else is made of such an outcome. Where the
	// Reason is Unreachable, it is so of all at that server .
	Later time.Duration
	// Model is the one that the request asked for, and Tokens what the answer counted;
	// empty where they did not say.
	Model  string
	Tokens price.Tokens
}

// derived returns the id of an account that is not stored: the same everywhere.
func derived(origin Origin, provider string) id.Account {
	return id.Account{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://signalbox.dev/accounts/"+string(origin)+"/"+provider))}
}
