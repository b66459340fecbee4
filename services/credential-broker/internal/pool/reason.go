package pool

import (
	"time"

	"signalbox.dev/services/credential-broker/internal/store"
)

// Reason says how a request went, in the words that operators see.
type Reason = store.Reason

// The reasons. Another account may do better after the first four (Switches).
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
	// PermissionDenied is a provider that does not let the account do what a request asked
	// for, and lets another account.
	PermissionDenied Reason = "PERMISSION_DENIED"
	// NoToken is an account without an access token that could be sent.
	NoToken Reason = "NO_TOKEN"
	OK      Reason = "OK"
)

// backoff is how long an account is parked for a reason.
type backoff struct {
	steps   []time.Duration // by consecutive failures, where the provider does not say
	longest time.Duration   // for which a provider's word is believed
}

// backoffs has the reasons that park an account. An Overloaded account is parked only if
// the provider says for how long. The longest waits are the longest quota windows that are
// worth waiting for without a look in between.
var backoffs = map[Reason]backoff{
	RateLimited:    {[]time.Duration{30 * time.Second}, 6 * time.Hour},
	AuthFailed:     {[]time.Duration{5 * time.Second}, 5 * time.Minute},
	QuotaExhausted: {[]time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour}, 6 * time.Hour},
	Overloaded:     {nil, 5 * time.Minute},
}

// Switches reports whether another account may do better.
func Switches(r Reason) bool { return backoffs[r].longest > 0 }

// Clamp bounds a wait that a provider asks for; it is 0 for reasons that park nothing.
func Clamp(r Reason, d time.Duration) time.Duration {
	longest := backoffs[r].longest
	return min(max(d, time.Second), longest)
}
