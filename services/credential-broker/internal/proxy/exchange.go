package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/usage"
)

// exchange is one caller's request from beginning to end. It belongs to the handler's
// goroutine; while a gate is shut, the gate's mutex guards w and what writing to it changes.
type exchange struct {
	p     *Proxy
	w     http.ResponseWriter
	rc    *http.ResponseController
	r     *http.Request
	ctx   context.Context //nolint:containedctx // an exchange is one request and lives as long
	end   context.CancelCauseFunc
	stop  func() bool // stops watching for the proxy's end
	span  trace.Span
	began time.Time

	provider string
	label    string // the provider in metrics
	dialect  profile.Dialect
	actor    identity.Actor
	request
	room

	// Of the current attempt:
	account pool.Account
	mount   string       // the part of path that stands for the account's base URL
	edited  edited       // the body for the account's profile
	sent    *atomic.Bool // the body was written or given up; nil if there is none
	tally   usage.Tally
	past    past

	writes  deadline
	status  int // shown to the caller
	outcome string
	cause   error
	broken  bool // the connection must not end cleanly
	lost    bool // a write failed: the caller has gone
	slow    bool // the caller did not read for too long
}

// request is what the caller sent, as it is forwarded.
type request struct {
	path    string // behind the provider, escaped
	header  http.Header
	query   string
	body    []byte
	reading time.Duration // spent waiting for the body
	model   string        // empty if the request does not name one
	stream  bool          // it asks for an event stream
	several bool          // it asks for several choices of a chat completion
}

func newExchange(p *Proxy, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{p: p, w: w, r: r, rc: http.NewResponseController(w), began: time.Now(), dialect: profile.OpenAI, label: "unknown"}
	x.writes.set = x.rc.SetWriteDeadline
	ctx := r.Context()
	if r.Header["Traceparent"] != nil {
		ctx = otel.GetTextMapPropagator().Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	ctx, x.span = p.tracer.Start(ctx, "egress", trace.WithSpanKind(trace.SpanKindServer))
	x.ctx, x.end = context.WithCancelCause(ctx)
	x.stop = context.AfterFunc(p.ending, func() { x.end(errEnding) }) //nolint:contextcheck // the proxy's end reaches every request
	return x
}

// close releases what the exchange holds and reports how it went.
func (x *exchange) close() {
	x.stop()
	x.end(nil)
	x.releaseRoom()
	x.p.open.Add(-1)
	x.p.metrics.requests.WithLabelValues(x.label, x.outcome).Inc()
	account := ""
	if !id.IsZero(x.account.ID) {
		account = x.account.ID.String()
	}
	x.endSpan(account)
	x.log(account)
}

func (x *exchange) endSpan(account string) {
	if x.span.IsRecording() {
		x.span.SetAttributes(
			attribute.String("provider", x.provider), attribute.String("account", account), attribute.String("outcome", x.outcome),
			attribute.Int("http.response.status_code", x.status), attribute.Int("attempts", x.past.attempts))
		if x.broken {
			x.span.SetStatus(codes.Error, x.outcome)
		}
	}
	x.span.End()
}

func (x *exchange) log(account string) {
	level := slog.LevelDebug
	switch x.outcome {
	case outcomeBroken, outcomeTimeout, outcomeUnreachable, outcomeUnavailable:
		level = slog.LevelWarn
	}
	if !x.p.cfg.Log.Enabled(x.ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("provider", x.provider), slog.String("account", account), slog.String("outcome", x.outcome),
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

// serve runs the stages of a request.
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

// maxRetryAfter is the longest that a client is asked to wait for. An SDK sleeps as long as it
// is told and would come back with an expired token; our own services, which send
// identity.Header, sign anew and know how long to wait.
const maxRetryAfter = time.Minute

// refuse answers with an error of our own.
func (x *exchange) refuse(r *refusal) {
	x.outcome, x.cause, x.status = r.outcome, r.cause, r.Status
	if r.outcome == outcomeCancelled {
		x.broken = true // nobody is listening
		return
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set(errorHeader, r.Code)
	if r.final || r.wait > maxRetryAfter && x.r.Header.Get(identity.Header) == "" {
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
	x.writes.extend(x.p.cfg.Timers.Write)
	x.w.WriteHeader(r.Status)
	_, _ = x.w.Write(body) // a caller that has gone needs no answer
}

// write sends bytes to the caller at once.
func (x *exchange) write(b []byte) error {
	x.writes.extend(x.p.cfg.Timers.Write)
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

// deadline is a read or write deadline of the caller's connection. It is moved at most once a
// second, because each move takes locks in the runtime.
type deadline struct {
	set  func(time.Time) error
	at   time.Time
	last time.Time // it is not moved beyond this, unless zero
}

// extend moves the deadline that far from now.
func (d *deadline) extend(by time.Duration) {
	want := time.Now().Add(by)
	if !d.last.IsZero() && want.After(d.last) {
		want = d.last
	}
	if want.Sub(d.at) > min(time.Second, by/2) {
		d.at = want
		_ = d.set(want) // only the writers of tests have no deadlines
	}
}

// target returns the URL of the request with its account.
func (x *exchange) target() (*url.URL, profile.Route) {
	base := x.account.Base
	path, route := x.account.Profile.Below(base, x.path)
	x.mount = strings.TrimSuffix(x.path, path)
	escaped := base.EscapedPath() + path
	u := &url.URL{Scheme: base.Scheme, Host: base.Host, RawPath: escaped, RawQuery: route.AddQuery(x.query)}
	u.Path, _ = url.PathUnescape(escaped) // net/http has parsed it already
	return u, route
}
