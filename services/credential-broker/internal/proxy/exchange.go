package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/usage"
)

// callers are the services that reach providers: with models and with tools.
var callers = [...]string{subject.AgentRunner, subject.ToolExecutor}

// exchange is one caller's request from beginning to end. It belongs to the
// handler's goroutine; while a gate is shut, the gate's mutex guards w and what
// writing to it changes.
type exchange struct {
	p    *Proxy
	w    http.ResponseWriter
	rc   *http.ResponseController
	r    *http.Request
	ctx  context.Context //nolint:containedctx // an exchange is one request and lives as long
	end  context.CancelCauseFunc
	stop func() bool // ends the watch over the proxy's end
	span trace.Span

	began    time.Time
	reading  time.Duration // spent waiting for the caller's body
	provider string
	label    string // the provider for metrics: one that exists, or unknown
	path     string // behind the provider, escaped (split)
	mount    string // of path, what stands for the account's base URL
	dialect  profile.Dialect
	actor    identity.Actor
	header   http.Header // to send, before the profile's changes
	query    string
	body     []byte
	reserved int64        // room for the body
	held     int64        // room for an answer that is translated
	slot     bool         // one of Proxy.slots is the request's
	share    *share       // the workspace's, in which the request is counted; nil: in none
	sent     *atomic.Bool // the body was written, or given up, as last sent; nil: there is none
	stream   bool         // the request asks for one
	choices  int          // of a chat, that the request asks for

	edited edited      // for the account's profile
	tally  usage.Tally // of this attempt

	account pool.Account
	model   string // that is asked for; empty where the request does not say
	past    past

	deadline time.Time // of writes, as last set
	status   int       // that the caller was told
	outcome  string
	broken   bool // the connection must not end cleanly
	lost     bool // a write failed: the caller has gone
	slow     bool // the caller took nothing for too long
	cause    error
}

func newExchange(p *Proxy, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{p: p, w: w, r: r, rc: http.NewResponseController(w), began: time.Now(), dialect: profile.OpenAI, label: "unknown"}
	ctx := r.Context()
	if r.Header["Traceparent"] != nil {
		ctx = otel.GetTextMapPropagator().Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	ctx, x.span = p.tracer.Start(ctx, "egress", trace.WithSpanKind(trace.SpanKindServer))
	x.ctx, x.end = context.WithCancelCause(ctx)
	x.stop = context.AfterFunc(p.ending, func() { x.end(errEnding) }) //nolint:contextcheck // the proxy's end reaches into every request
	return x
}

// close gives back what the exchange holds and tells operators how it went.
func (x *exchange) close() {
	x.stop()
	x.end(nil)
	x.releaseBody()
	x.p.bodies.Release(x.held)
	if x.slot {
		x.p.slots.Release(x.actor.Workspace)
	}
	if x.share != nil {
		x.p.shares.leave(x.actor.Workspace)
	}
	x.p.open.Add(-1)
	x.p.metrics.requests.WithLabelValues(x.label, x.outcome).Inc()
	x.endSpan()
	x.log()
}

// named returns the account's id as text; empty where there was none.
func (x *exchange) named() string {
	if id.IsZero(x.account.ID) {
		return ""
	}
	return x.account.ID.String()
}

func (x *exchange) endSpan() {
	if x.span.IsRecording() {
		x.span.SetAttributes(
			attribute.String("provider", x.provider), attribute.String("account", x.named()), attribute.String("outcome", x.outcome),
			attribute.Int("http.response.status_code", x.status), attribute.Int("attempts", x.past.attempts))
		if x.broken {
			x.span.SetStatus(codes.Error, x.outcome)
		}
	}
	x.span.End()
}

func (x *exchange) log() {
	level := slog.LevelDebug
	switch x.outcome {
	case outcomeBroken, outcomeTimeout, outcomeUnreachable, outcomeUnavailable:
		level = slog.LevelWarn
	}
	if !x.p.cfg.Log.Enabled(x.ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("provider", x.provider), slog.String("account", x.named()), slog.String("outcome", x.outcome),
		slog.Int("status", x.status), slog.Int("attempts", x.past.attempts), slog.Duration("took", time.Since(x.began)),
	}
	if !id.IsZero(x.actor.Workspace) {
		attrs = append(attrs, slog.String("workspace", x.actor.Workspace.String()))
	}
	if x.cause != nil {
		attrs = append(attrs, slog.String("error", x.scrub(x.cause.Error())))
	}
	x.p.cfg.Log.LogAttrs(x.ctx, level, "egress request ended", attrs...)
}

// serve takes the request through its stations.
func (x *exchange) serve() {
	if r := x.admit(); r != nil {
		x.refuse(r)
		return
	}
	var err error
	if x.account, err = x.choose(); err != nil {
		x.refuse(x.noAccount(err))
		return
	}
	for {
		a, r := x.attempt()
		if !x.settle(a, r) {
			return
		}
	}
}

// admit lets a request in or says why not.
func (x *exchange) admit() *refusal {
	n := x.p.open.Add(1)
	provider, path, ok := split(x.r.URL)
	if ok {
		if p, known := x.p.cfg.Profiles.For(provider); known {
			x.dialect, x.label = p.Dialect, provider
		}
	}
	// In the provider's shape from here on.
	secret, r := x.identify()
	if r != nil {
		return r
	}
	actor := x.actor
	if !slices.Contains(callers[:], actor.Service) {
		return refused(http.StatusForbidden, "forbidden", "the service "+actor.Service+" may not use the egress", nil)
	}
	if actor.Role < identity.Editor {
		return refused(http.StatusForbidden, "forbidden", "this needs the role editor; yours is "+actor.Role.String(), nil)
	}
	if !ok {
		return refused(http.StatusNotFound, "unknown_provider", "the path must begin with "+Prefix+" and a provider's name, such as "+Prefix+"anthropic", nil)
	}
	x.provider, x.path = provider, path
	switch {
	case !checkPath(x.r.URL):
		return refused(http.StatusBadRequest, "bad_path", "the path must hold no empty, . or .. segment and no control character", nil)
	case !isASCII(x.r.URL.RawQuery):
		return refused(http.StatusBadRequest, "bad_query", "the query must be printable ASCII: write other characters as %XX", nil)
	case !slices.Contains(allowed, x.r.Method):
		return refused(http.StatusMethodNotAllowed, "bad_method", "the method "+x.r.Method+" is not forwarded", nil)
	case strings.EqualFold(x.r.Header.Get("Upgrade"), "websocket"):
		return refused(http.StatusNotImplemented, "not_supported", "websockets are not forwarded: use the provider's HTTP API", nil)
	case n > 2*x.p.cfg.Limits.Requests:
		return busy(nil)
	case x.p.ending.Err() != nil:
		return x.shutdown()
	}
	if x.share = x.p.shares.enter(actor.Workspace); x.share == nil {
		return x.overShare()
	}
	if r := x.takeSlot(); r != nil {
		return r
	}
	x.header = outgoing(x.r.Header, secret)
	x.query = query(x.r.URL.RawQuery, secret)
	start := time.Now()
	r = x.readBody()
	x.reading = time.Since(start)
	x.readAsked()
	return r
}

func refused(status int, code, message string, cause error) *refusal {
	return &refusal{Error: dialect.Error{Status: status, Code: code, Message: message}, outcome: outcomeRefused, final: true, cause: cause}
}

// takeSlot waits for the workspace's turn among all requests in flight.
func (x *exchange) takeSlot() *refusal {
	ctx, cancel := context.WithTimeout(x.ctx, slotQueue)
	defer cancel()
	err := x.p.slots.Acquire(ctx, x.actor.Workspace)
	switch x.slot = err == nil; {
	case x.slot:
		return nil
	case x.ctx.Err() != nil:
		return x.gone(err)
	}
	return busy(err)
}

// busy is the refusal where the broker has all that it may.
func busy(cause error) *refusal {
	r := refused(http.StatusServiceUnavailable, "busy", "the credential broker serves as many requests as it may: try again in a moment", cause)
	r.outcome, r.final, r.wait = outcomeUnavailable, false, time.Second
	return r
}

func (x *exchange) shutdown() *refusal {
	r := refused(http.StatusServiceUnavailable, "shutting_down", "the credential broker is shutting down: try again in a moment", errEnding)
	r.outcome, r.final, r.wait = outcomeUnavailable, false, time.Second
	return r
}

// maxModel bounds the name of a model that the pool is told.
const maxModel = 128

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
		r.Message = "the credential broker has an internal error: its log says more"
	}
	return r
}

// noCredential says where a credential could come from, and what to look at where there
// should be one.
func (x *exchange) noCredential() string {
	const models = "there is no credential for the provider %[1]s: add one with `signalbox accounts add %[1]s` or POST /api/accounts, or set its key in the credential broker's environment. " +
		"If there should be one, see `signalbox accounts list` or GET /api/accounts: it must have this provider's name, and belong to this workspace or be shared with all"
	const tools = "there is no credential for the provider %[1]s: connect it with POST /api/connections, or sign in with `signalbox accounts login %[1]s`. " +
		"If it should be connected, see GET /api/connections or `signalbox accounts list`"
	if p, ok := x.p.cfg.Profiles.For(x.provider); ok && !p.Dialect.Models() {
		return fmt.Sprintf(tools, x.provider)
	}
	return fmt.Sprintf(models, x.provider)
}

// exhausted says when to come again where no account is ready.
func (x *exchange) exhausted(e *pool.Exhausted) *refusal {
	wait := waitFor(e.Back)
	status, why := http.StatusServiceUnavailable, "paused after failures"
	switch e.Reason {
	case pool.RateLimited:
		status, why = http.StatusTooManyRequests, "at their rate limit"
	case pool.QuotaExhausted:
		status, why = http.StatusTooManyRequests, "out of quota"
	case pool.AuthFailed:
		why = "paused because the provider refused them"
	}
	message := fmt.Sprintf("all %d accounts for the provider %s are %s: the first is tried again in %s", e.Members, x.provider, why, wait)
	if e.Members == 1 {
		message = fmt.Sprintf("the account for the provider %s is %s: it is tried again in %s", x.provider, strings.NewReplacer("their", "its", "them", "it").Replace(why), wait)
	}
	r := refused(status, "accounts_exhausted", message, e)
	r.outcome, r.final, r.wait = outcomeExhausted, false, wait
	return r
}

// waitFor is how long it is until then, in whole seconds. Rounded up: who comes earlier is
// only refused again.
func waitFor(t time.Time) time.Duration {
	return (max(time.Until(t), time.Second) + time.Second - 1).Truncate(time.Second)
}

// gone is the end of a request whose caller left, or that the shutdown ended,
// before it had an answer.
func (x *exchange) gone(err error) *refusal {
	if x.r.Context().Err() == nil && errors.Is(context.Cause(x.ctx), errEnding) {
		return x.shutdown()
	}
	return &refusal{
		Error:   dialect.Error{Status: 499, Code: "cancelled", Message: "the request was cancelled"},
		outcome: outcomeCancelled, final: true, cause: err,
	}
}

// patience is how long a client may be made to wait before it sends the same once more. An
// SDK sleeps for as long as it is told, and would come back with a token that has expired;
// services of ours, which have a header for it, sign anew and know how long they wait.
const patience = time.Minute

// refuse answers with an error of our own.
func (x *exchange) refuse(r *refusal) {
	x.outcome, x.cause, x.status = r.outcome, r.cause, r.Status
	if r.outcome == outcomeCancelled {
		x.broken = true // nobody listens
		return
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if r.final || r.wait > patience && x.r.Header.Get(identity.Header) == "" {
		h.Set("X-Should-Retry", "false")
	}
	if r.wait > 0 {
		h.Set("Retry-After", strconv.Itoa(int((r.wait+time.Second-1)/time.Second)))
	}
	if r.Status == http.StatusMethodNotAllowed {
		h.Set("Allow", strings.Join(allowed, ", "))
	}
	body := dialect.Body(x.dialect, r.Error)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.extendDeadline()
	x.w.WriteHeader(r.Status)
	_, _ = x.w.Write(body) // the caller went away: nobody to tell
}

// write sends bytes to the caller, at once.
func (x *exchange) write(b []byte) error {
	x.extendDeadline()
	_, err := x.w.Write(b)
	if err == nil {
		err = x.rc.Flush()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		x.slow = true
	} else if err != nil {
		x.lost = true
	}
	return err
}

// extendDeadline gives the next write its time. The deadline is moved at most
// once a second: it is a system of locks and timers below.
func (x *exchange) extendDeadline() {
	now := time.Now()
	if want := now.Add(x.p.cfg.Timers.Write); want.Sub(x.deadline) > min(time.Second, x.p.cfg.Timers.Write/2) {
		x.deadline = want
		_ = x.rc.SetWriteDeadline(want) // a writer without deadlines is a test's
	}
}

// target returns where the request goes with its account.
func (x *exchange) target() (*url.URL, profile.Route) {
	base := x.account.Base
	path, route := x.account.Profile.Below(base, x.path)
	x.mount = strings.TrimSuffix(x.path, path)
	escaped := base.EscapedPath() + path
	u := &url.URL{Scheme: base.Scheme, Host: base.Host, RawPath: escaped, RawQuery: route.AddQuery(x.query)}
	var err error
	if u.Path, err = url.PathUnescape(escaped); err != nil {
		u.Path, u.RawPath = escaped, "" // cannot happen: net/http parsed it
	}
	return u, route
}
