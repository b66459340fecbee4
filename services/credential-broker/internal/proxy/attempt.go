package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/target"
)

// Causes under which the watch cancels an upstream request.
var (
	errHeaders    = errors.New("the provider sent no headers in time")
	errFirstEvent = errors.New("the provider sent no first event in time")
	errIdle       = errors.New("the provider sent nothing for too long")
)

// An error's body is read so far and so long to find out whose error it is.
const (
	maxErrorBody  = 64 << 10
	errorBodyTime = 15 * time.Second
)

// watch cancels an upstream request when its time for the current station is up.
type watch struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	cause  atomic.Pointer[error]
}

func newWatch(cancel context.CancelCauseFunc, d time.Duration, cause *error) *watch {
	w := &watch{cancel: cancel}
	w.cause.Store(cause)
	w.timer = time.AfterFunc(d, func() { w.cancel(*w.cause.Load()) })
	return w
}

// enter begins another station.
func (w *watch) enter(d time.Duration, cause *error) {
	w.cause.Store(cause)
	w.timer.Reset(d)
}

func (w *watch) pause() { w.timer.Stop() }

// answer is a provider's answer of which the caller has seen nothing yet, or
// (relay.opened) only what the gate let through when its time was up.
type answer struct {
	x      *exchange
	ctx    context.Context //nolint:containedctx // the upstream request's, which lives as long as the answer
	res    *http.Response
	watch  *watch
	cancel context.CancelCauseFunc
	route  profile.Route
	reason pool.Reason
	head   []byte // of a body that is not an event stream: what was read of it
	relay  *relay // of an event stream
}

// attempt sends the request with the exchange's account and returns an answer
// that is worth showing, or can still be thrown away. It sends again only what
// was never sent.
func (x *exchange) attempt() (*answer, *refusal) {
	a, sent, err := x.send()
	if err != nil && !sent && a.ctx.Err() == nil && !errors.Is(err, target.ErrAddress) {
		a.close()
		x.retried(pool.Unreachable)
		a, _, err = x.send()
	}
	if err != nil {
		r := x.unreachable(a, err)
		a.close()
		return nil, r
	}
	return a.inspect()
}

// send sends the request once. sent says whether a connection was there to send
// it over. The answer is set, without a response, also when it fails.
func (x *exchange) send() (a *answer, sent bool, err error) {
	x.attempts++
	u, route := x.target()
	a = &answer{x: x, route: route}
	a.ctx, a.cancel = context.WithCancelCause(x.ctx)
	var got atomic.Bool
	ctx := httptrace.WithClientTrace(a.ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	req := (&http.Request{Method: x.r.Method, URL: u, Host: u.Host, Header: x.header.Clone(), ContentLength: int64(len(x.body))}).WithContext(ctx)
	if len(x.body) > 0 {
		body := x.body
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	x.account.Profile.Apply(req.Header, x.account.Secret.Reveal())
	transport := x.p.cfg.Open
	if x.account.Own {
		transport = x.p.cfg.Guarded
	}
	if x.attempts == 1 {
		x.p.metrics.observe(x.p.metrics.added, x.label, time.Since(x.began)-x.reading)
	}
	a.watch = newWatch(a.cancel, x.headerTime(route), &errHeaders)
	a.res, err = transport.RoundTrip(req) //nolint:bodyclose // the answer's discard closes it
	if err != nil {
		a.watch.pause()
		return a, got.Load(), err
	}
	return a, true, nil
}

func (x *exchange) headerTime(route profile.Route) time.Duration {
	switch {
	case x.p.cfg.Timers.Headers > 0:
		return x.p.cfg.Timers.Headers
	case x.stream:
		return route.WaitStream
	}
	return route.Wait
}

// unreachable says why there is no answer.
func (x *exchange) unreachable(a *answer, err error) *refusal {
	if x.ctx.Err() != nil {
		x.report(pool.Cancelled, nil)
		return x.gone(err)
	}
	x.report(pool.Unreachable, nil)
	return x.upstreamFailed(a.ctx, err)
}

// upstreamFailed is the refusal for a provider that failed before anything of its
// answer was shown.
func (x *exchange) upstreamFailed(ctx context.Context, err error) *refusal {
	r := &refusal{Error: x.upstreamError(ctx, err), outcome: outcomeUnreachable, cause: err}
	switch cause := context.Cause(ctx); {
	case r.Status == http.StatusGatewayTimeout:
		r.outcome, r.cause = outcomeTimeout, cause
	case errors.Is(err, target.ErrAddress):
		r.final = true
	}
	return r
}

// upstreamError says in one sentence for people what went wrong upstream.
func (x *exchange) upstreamError(ctx context.Context, err error) dialect.Error {
	e := dialect.Error{Status: http.StatusBadGateway, Code: "provider_unreachable"}
	cause := context.Cause(ctx)
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(cause, errHeaders), errors.Is(cause, errFirstEvent), errors.Is(cause, errIdle):
		e.Status, e.Code = http.StatusGatewayTimeout, "provider_timeout"
		e.Message = strings.Replace(cause.Error(), "the provider", "the provider "+x.provider, 1)
	case errors.Is(cause, errEnding):
		e.Status, e.Code, e.Message = http.StatusServiceUnavailable, "shutting_down", "the credential broker is shutting down: try again in a moment"
	case errors.Is(err, target.ErrAddress):
		e.Code = "address_not_allowed"
		e.Message = "the account's base URL leads to an address that the operator has not allowed"
	case isOp && op.Op == "dial":
		e.Message = fmt.Sprintf("could not connect to the provider %s", x.provider)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Code, e.Message = "provider_broke_off", fmt.Sprintf("the provider %s broke the answer off", x.provider)
	default:
		e.Message = fmt.Sprintf("the connection to the provider %s failed", x.provider)
	}
	return e
}

// inspect reads as much of an answer as it takes to decide what to do with it.
func (a *answer) inspect() (*answer, *refusal) {
	res := a.res
	x := a.x
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols || res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified:
		// A caller that followed it would carry its token to a stranger.
		a.discard()
		x.report(pool.Service, res)
		r := refused(http.StatusBadGateway, "provider_redirected", fmt.Sprintf("the provider %s answered with a redirect, which is not followed: check the account's base URL", x.provider), nil)
		r.outcome = outcomeServerError
		return nil, r
	case res.StatusCode >= 400:
		return a.readFailure()
	case x.r.Method != http.MethodHead && isEventStream(res):
		a.relay = newRelay(a)
		if r := a.relay.gate(); r != nil {
			a.discard()
			return nil, r
		}
		return a, nil
	}
	a.reason = pool.OK
	a.watch.enter(x.p.cfg.Timers.Idle, &errIdle)
	return a, nil
}

func isEventStream(res *http.Response) bool {
	if e := res.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return false // nothing was asked for; it passes as it is
	}
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}

// readFailure reads the beginning of an error's body, which says whose it is.
func (a *answer) readFailure() (*answer, *refusal) {
	x := a.x
	a.watch.enter(min(errorBodyTime, x.p.cfg.Timers.Idle), &errIdle)
	head, err := io.ReadAll(io.LimitReader(a.res.Body, maxErrorBody))
	if err != nil && x.ctx.Err() != nil {
		a.discard()
		x.report(pool.Cancelled, a.res)
		return nil, x.gone(err)
	}
	// An error body that breaks off is still the provider's answer: what came of
	// it goes on, and deliver meets the error again.
	a.head = head
	f, _ := dialect.Read(head)
	a.reason = pool.Classify(a.res.StatusCode, f)
	a.hideSecret()
	return a, nil
}

// hideSecret takes the credential out of an answer that repeats it: providers
// quote a wrong key in their error.
func (a *answer) hideSecret() {
	secret := a.x.account.Secret.Reveal()
	if len(secret) < 8 { // too short to be told from other text
		return
	}
	if b := bytes.ReplaceAll(a.head, []byte(secret), []byte(hidden)); len(b) != len(a.head) || !bytes.Equal(b, a.head) {
		a.head = b
		a.res.Header.Del("Content-Length")
	}
}

const hidden = "[redacted]"

// scrub takes credentials out of text for logs.
func (x *exchange) scrub(s string) string {
	for _, secret := range []string{x.account.Secret.Reveal(), token(x.r.Header)} {
		if len(secret) >= 8 {
			s = strings.ReplaceAll(s, secret, hidden)
		}
	}
	return s
}

// discard throws an answer away.
func (a *answer) discard() {
	a.close()
	if a.res != nil {
		_ = a.res.Body.Close() // it was given up
	}
}

// close ends the upstream request and what belongs to it.
func (a *answer) close() {
	a.watch.pause()
	a.cancel(context.Canceled)
	if a.relay != nil {
		a.relay.release()
	}
}
