package pool

import (
	"errors"
	"net/url"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
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
	Own    bool
	Secret vault.Secret
}

// Request is what an account is wanted for.
type Request struct {
	Actor    identity.Actor
	Provider string
	// Address is the caller's, for the audit.
	Address string
	// Tried are the accounts that this request failed with.
	Tried []id.Account
}

// ErrNone is returned by Select when the workspace has no account for the
// provider, wherever one could come from.
var ErrNone = errors.New("no account for this provider")

// ErrExhausted is returned by Select when every account was tried.
var ErrExhausted = errors.New("all accounts were tried")

// Reason says how a request went, in the words that operators see.
type Reason string

// The reasons. The first three are the account's own condition: another account
// may do better.
const (
	RateLimited    Reason = "RATE_LIMIT_EXCEEDED"
	AuthFailed     Reason = "AUTH_FAILED"
	QuotaExhausted Reason = "QUOTA_EXHAUSTED"
	// Overloaded is an overload reported inside a stream that had begun well.
	Overloaded Reason = "OVERLOADED"
	// Service is a failure of the whole provider.
	Service Reason = "SERVICE"
	// Caller is an error of the request itself.
	Caller Reason = "CALLER"
	// Unreachable is a provider that could not be asked, or did not answer in time.
	Unreachable Reason = "UNREACHABLE"
	// Cancelled is a request that the caller gave up.
	Cancelled Reason = "CANCELLED"
	OK        Reason = "OK"
)

// Switch reports whether another account may do better.
func (r Reason) Switch() bool {
	return r == RateLimited || r == AuthFailed || r == QuotaExhausted || r == Overloaded
}

// Outcome is how a request went with one account.
type Outcome struct {
	Reason Reason
	Status int
	// RetryAfter is what the provider asked for; 0 when it did not.
	RetryAfter time.Duration
}

// derived returns the id of an account that is not stored: the same everywhere.
func derived(origin Origin, provider string) id.Account {
	return id.Account{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://signalbox.dev/accounts/"+string(origin)+"/"+provider))}
}
