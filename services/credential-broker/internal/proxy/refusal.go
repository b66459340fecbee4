package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// refusal is an error of our own for the caller.
type refusal struct {
	dialect.Error
	outcome string        // for metrics
	final   bool          // repeating the same request is pointless
	wait    time.Duration // Retry-After
	cause   error         // for logs
	reason  pool.Reason   // what the pool is told about the account; empty if none was chosen
	unsent  bool          // nothing of the request was sent with the account
}

// Outcomes of requests in metrics.
const (
	outcomeOK          = "ok"
	outcomeRefused     = "refused"       // by us: identity, method, path, size
	outcomeNoAccount   = "no_account"    // there is no credential
	outcomeExhausted   = "exhausted"     // no account is ready
	outcomeUnavailable = "unavailable"   // a dependency is down, or the broker is full
	outcomeOverShare   = "over_share"    // the workspace has used its share of the broker
	outcomeUnreachable = "unreachable"   // the provider did not answer
	outcomeTimeout     = "timeout"       // the provider did not answer in time
	outcomeBroken      = "broken"        // the answer broke off
	outcomeCancelled   = "cancelled"     // by the caller
	outcomeClientError = "client_error"  // the provider's 4xx, handed back
	outcomeServerError = "service_error" // the provider's 5xx or error event, handed back
)

// refused returns a refusal that a repetition would not change.
func refused(status int, code, message string, cause error) *refusal {
	return &refusal{Error: dialect.Error{Status: status, Code: code, Message: message}, outcome: outcomeRefused, final: true, cause: cause}
}

// busy returns a refusal that asks the caller to try again soon.
func busy(outcome, message string, cause error) *refusal {
	return &refusal{
		Error:   dialect.Error{Status: http.StatusServiceUnavailable, Code: "busy", Message: message + ": try again in a moment"},
		outcome: outcome, wait: time.Second, cause: cause,
	}
}

const (
	busyRequests = "the credential broker has reached its limit of open requests"
	busyBodies   = "the credential broker has reached its limit of request bytes"
	busyShare    = "the workspace has reached its limit of open requests"
)

var shuttingDown = dialect.Error{Status: http.StatusServiceUnavailable, Code: "shutting_down", Message: "the credential broker is shutting down: try again in a moment"}

func shutdown() *refusal {
	return &refusal{Error: shuttingDown, outcome: outcomeUnavailable, wait: time.Second, cause: errEnding}
}

// gone ends a request whose caller left, or that the shutdown ended, before it had an answer.
func (x *exchange) gone(err error) *refusal {
	if x.r.Context().Err() == nil && errors.Is(context.Cause(x.ctx), errEnding) {
		return shutdown()
	}
	return &refusal{
		Error:   dialect.Error{Status: 499, Code: "cancelled", Message: "the request was cancelled"},
		outcome: outcomeCancelled, final: true, cause: err,
	}
}

func (x *exchange) noAccount(err error) *refusal {
	switch {
	case x.ctx.Err() != nil:
		return x.gone(err)
	case errors.Is(err, pool.ErrNone):
		r := refused(http.StatusUnauthorized, "no_credential", x.noCredential(), nil)
		r.outcome = outcomeNoAccount
		return r
	}
	if e, ok := errors.AsType[*pool.Exhausted](err); ok {
		return x.exhausted(e)
	}
	f := fault.From(err)
	r := refused(f.Kind.HTTPStatus(), "account_unavailable", f.Message, err)
	r.outcome = outcomeUnavailable
	switch f.Kind {
	case fault.Unavailable, fault.Deadline:
		r.final, r.wait = false, max(f.RetryAfter, time.Second)
	case fault.Conflict:
		r.outcome = outcomeNoAccount
	case fault.Internal:
		r.Message = "internal error of the credential broker: see its log"
	}
	return r
}

// noCredential says how to add a credential, and what to check if there should be one.
func (x *exchange) noCredential() string {
	const models = "there is no credential for the provider %[1]s: add one with `signalbox accounts add %[1]s` or POST /api/accounts, or set its key in the credential broker's environment. " +
		"If there should be one, see `signalbox accounts list` or GET /api/accounts: it must have this provider's name, and belong to this workspace or be shared with all"
	const tools = "there is no credential for the provider %[1]s: connect it with POST /api/connections, or sign in with `signalbox accounts login %[1]s`. " +
		"If it should be connected, see GET /api/connections or `signalbox accounts list`"
	const servers = "nobody has signed in to the MCP server, or the workspace has no token for it: sign in with `signalbox mcp sign-in`, or POST /api/mcp-servers/{id}/sign-in"
	if strings.HasPrefix(x.provider, "mcp-") {
		return servers
	}
	if p, ok := x.p.cfg.Profiles.For(x.provider); ok && !p.Dialect.Models() {
		return fmt.Sprintf(tools, x.provider)
	}
	return fmt.Sprintf(models, x.provider)
}

// exhausted says when an account is ready again.
func (x *exchange) exhausted(e *pool.Exhausted) *refusal {
	status, why, whyOne := http.StatusServiceUnavailable, "paused after failures", "paused after failures"
	switch e.Reason {
	case pool.RateLimited:
		status, why, whyOne = http.StatusTooManyRequests, "at their rate limit", "at its rate limit"
	case pool.QuotaExhausted:
		status, why, whyOne = http.StatusTooManyRequests, "out of quota", "out of quota"
	case pool.AuthFailed:
		why, whyOne = "paused because the provider refused them", "paused because the provider refused it"
	}
	wait := waitUntil(e.Back)
	message := fmt.Sprintf("all %d accounts for the provider %s are %s: the first will be tried again in %s", e.Members, x.provider, why, wait)
	if e.Members == 1 {
		message = fmt.Sprintf("the account for the provider %s is %s: it will be tried again in %s", x.provider, whyOne, wait)
	}
	r := refused(status, "accounts_exhausted", message, e)
	r.outcome, r.final, r.wait = outcomeExhausted, false, wait
	return r
}

// waitUntil returns the time until t in whole seconds, rounded up: a request that comes
// earlier would only be refused again.
func waitUntil(t time.Time) time.Duration {
	return (max(time.Until(t), time.Second) + time.Second - 1).Truncate(time.Second)
}
