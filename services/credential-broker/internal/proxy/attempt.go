package proxy

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/upstream"
	"signalbox.dev/services/credential-broker/internal/usage"
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
// Within a station nothing is set or stopped: a read only notes when it began, and
// the timer, when it fires, finds out how much time is left. All but fire is called
// by the exchange's goroutine.
type watch struct {
	cancel context.CancelCauseFunc
	zero   time.Time
	began  atomic.Int64 // since zero; paused while nothing is waited for

	mu      sync.Mutex // guards what follows against fire
	timer   *time.Timer
	limit   time.Duration
	cause   *error
	stopped bool
}

const paused = -1

func newWatch(cancel context.CancelCauseFunc, d time.Duration, cause *error) *watch {
	w := &watch{cancel: cancel, zero: time.Now(), limit: d, cause: cause}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(d, w.fire)
	return w
}

// enter begins a station: another, or the same anew.
func (w *watch) enter(d time.Duration, cause *error) {
	w.began.Store(int64(time.Since(w.zero)))
	if d == w.limit && cause == w.cause {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit, w.cause = d, cause
	if !w.stopped {
		w.timer.Reset(d)
	}
}

// pause stops the clock until enter.
func (w *watch) pause() { w.began.Store(paused) }

// stop ends the watch. It may have fired.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.timer.Stop()
}

// fire runs on the timer's goroutine.
func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	left := w.limit
	if began := w.began.Load(); began != paused {
		left = time.Duration(began) + w.limit - time.Since(w.zero)
	}
	if left > 0 {
		w.timer.Reset(left)
		return
	}
	w.stopped = true
	w.cancel(*w.cause)
}

// answer is a provider's answer of which the caller has seen nothing yet, or
// (relay.opened) only what the gate let through when its time was up.
type answer struct {
	x      *exchange
	ctx    context.Context //nolint:containedctx // the upstream request's, which lives as long as the answer
	res    *http.Response
	watch  *watch
	cancel context.CancelCauseFunc
	url    *url.URL // that was asked
	route  profile.Route
	echoes echoes // of the credential that the request was sent with
	reason pool.Reason
	denied bool   // the provider does not let the account do what the request asks for
	told   bool   // the pool knows how it went
	head   []byte // of a body that is not an event stream: what was read of it
	relay  *relay // of an event stream
}

// attempt sends the request once with the exchange's account. It returns an answer that
// can be shown or thrown away, or a refusal; the answer, if there is one, is closed then.
func (x *exchange) attempt() (*answer, *refusal) {
	u, route := x.target()
	x.tally = usage.Tally{}
	if x.r.Method == http.MethodPost { // an answer that is read once more was counted
		x.tally = usage.NewTally(x.account.Profile.Usage)
	}
	r := x.keyInQuery()
	if r == nil {
		r = x.edit(route.Messages)
	}
	if r != nil {
		r.reason, r.unsent = pool.Caller, true
		return nil, r
	}
	a, err := x.send(u, route)
	if err != nil {
		r := x.upstreamFailed(a.ctx, err)
		r.unsent = errors.Is(err, upstream.ErrNotSent)
		a.close()
		return a, r
	}
	return a.inspect()
}

// keyInQuery refuses a request with a key of the caller's beside the account's.
func (x *exchange) keyInQuery() *refusal {
	name := x.account.Profile.Auth.Param(x.query)
	if name == "" {
		return nil
	}
	return refused(http.StatusBadRequest, "bad_query", "the query holds a key or a token of your own, in "+name+": leave it out, the credential broker adds the account's", nil)
}

// send sends the request. The answer is set, without a response, also when that fails.
func (x *exchange) send(u *url.URL, route profile.Route) (*answer, error) {
	x.past.attempts++
	a := &answer{x: x, url: u, route: route, echoes: newEchoes(x.account.Secret.Reveal())}
	a.ctx, a.cancel = context.WithCancelCause(x.ctx)
	req := (&http.Request{Method: x.r.Method, URL: u, Host: u.Host, Header: x.header.Clone()}).WithContext(a.ctx)
	x.putBody(req)
	x.account.Profile.Apply(req.Header, x.account.Secret.Reveal())
	transport := x.p.cfg.Open
	if x.account.Own {
		transport = x.p.cfg.Guarded
	}
	if x.past.attempts == 1 {
		added := time.Since(x.began) - x.reading
		x.p.metrics.of(x.label).added.Observe(added.Seconds())
		x.p.cfg.Meter.Added(x.label, x.account.ID, added)
	}
	a.watch = newWatch(a.cancel, x.headerTime(route), &errHeaders)
	var err error
	a.res, err = transport.RoundTrip(req) //nolint:bodyclose // the answer's discard closes it
	return a, err
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

// upstreamFailed is the refusal for an upstream request that failed before anything of
// its answer was shown.
func (x *exchange) upstreamFailed(ctx context.Context, err error) *refusal {
	if x.ctx.Err() != nil {
		r := x.gone(err)
		r.reason = pool.Cancelled
		return r
	}
	r := &refusal{Error: x.upstreamError(ctx, err), outcome: outcomeUnreachable, cause: err, reason: pool.Unreachable}
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
		e.Message = fmt.Sprintf("could not connect to the provider %s%s", x.provider, where(&x.account))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Code, e.Message = "provider_broke_off", fmt.Sprintf("the provider %s broke the answer off", x.provider)
	default:
		e.Message = fmt.Sprintf("the connection to the provider %s%s failed", x.provider, where(&x.account))
	}
	if why := WhyUnreachable(err); why != "" && e.Code == "provider_unreachable" {
		e.Message += ": " + why
	}
	return e
}

// inspect reads as much of an answer as it takes to decide what to do with it.
func (a *answer) inspect() (*answer, *refusal) {
	res := a.res
	x := a.x
	if r := a.redirected(); r != nil {
		return a.fail(r, pool.Service)
	}
	switch {
	case res.StatusCode >= 400:
		return a.readFailure()
	case a.streams() && isEncoded(res):
		// Nobody here could see whether it is whole.
		return a.fail(x.unusable("compressed, which was not asked for"), pool.Service)
	case a.streams():
		a.relay = newRelay(a)
		if r := a.relay.gate(); r != nil {
			return a.fail(r, r.reason)
		}
		return a, nil
	}
	a.reason = pool.OK
	a.watch.enter(x.p.cfg.Timers.Idle, &errIdle)
	if x.edited.answers != nil && x.r.Method != http.MethodHead {
		return a.translate()
	}
	if len(a.route.URLs) > 0 && isJSON(res) && !isEncoded(res) && x.r.Method != http.MethodHead {
		return a.relink()
	}
	return a, nil
}

// streams reports whether an answer is an event stream: it says so, or a stream was asked
// for where its events are known, and it does not say that it is JSON. What is compressed
// is one only there: elsewhere it passes as it is.
func (a *answer) streams() bool {
	switch {
	case a.x.r.Method == http.MethodHead:
		return false
	case isEvents(a.res):
		return a.route.Stream != nil || !isEncoded(a.res)
	case a.route.Stream == nil || isJSON(a.res) || a.res.StatusCode != http.StatusOK:
		return false
	}
	return a.x.stream
}

func isEvents(res *http.Response) bool { return strings.EqualFold(mediaType(res), "text/event-stream") }

// mediaType returns the first type that an answer says it is of, whatever it says more.
func mediaType(res *http.Response) string {
	kind := res.Header.Get("Content-Type")
	if i := strings.IndexAny(kind, ";,"); i >= 0 {
		kind = kind[:i]
	}
	return strings.TrimSpace(kind)
}

// isEncoded reports whether an answer is compressed: some servers name an encoding that is
// none, or that of their text.
func isEncoded(res *http.Response) bool {
	for name := range strings.SplitSeq(strings.Join(res.Header["Content-Encoding"], ","), ",") {
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "", "identity", "none", "utf-8":
		default:
			return true
		}
	}
	return false
}

// readFailure reads the beginning of an error's body, which says whose it is.
func (a *answer) readFailure() (*answer, *refusal) {
	x := a.x
	a.watch.enter(min(errorBodyTime, x.p.cfg.Timers.Idle), &errIdle)
	head, err := io.ReadAll(io.LimitReader(a.res.Body, maxErrorBody))
	if err != nil && x.ctx.Err() != nil {
		return a.fail(x.gone(err), pool.Cancelled)
	}
	// An error body that breaks off is still the provider's answer: what came of
	// it goes on, and deliver meets the error again.
	a.head = head
	if isEncoded(a.res) && x.r.Method != http.MethodHead {
		a.decode()
	}
	f, _ := dialect.Read(a.head)
	a.reason = pool.Classify(a.res.StatusCode, f)
	if a.reason == pool.Caller && a.res.StatusCode == http.StatusForbidden && x.account.Profile.Exhausted(a.res.Header) {
		a.reason = pool.RateLimited // it is not said in the body everywhere
	}
	a.denied = a.reason == pool.QuotaExhausted && pool.Denied(f)
	a.echoes.inText = true // all of it is an error
	return a, nil
}

// sayWhen adds to a refusal for too many requests when to come again, if the provider does
// not say so.
func (a *answer) sayWhen(t time.Time) {
	if h := a.res.Header; a.res.StatusCode == http.StatusTooManyRequests && h.Get("Retry-After") == "" && h.Get("Retry-After-Ms") == "" {
		h.Set("Retry-After", strconv.Itoa(int(waitFor(t)/time.Second)))
	}
}

// decode puts an error in the place of its compressed form, in which nobody would find
// what it says, or a credential. One that is too large, broken or packed otherwise becomes
// an error of ours with its status.
func (a *answer) decode() {
	plain, ok := unpack(a.head, a.res.Header["Content-Encoding"])
	h := a.res.Header
	if !ok {
		plain = dialect.Body(a.x.dialect, dialect.Error{Status: a.res.StatusCode, Code: "provider_answer_unusable", Message: fmt.Sprintf("the provider %s answered with status %d, and compressed, which was not asked for", a.x.provider, a.res.StatusCode)})
		h.Set("Content-Type", "application/json")
	}
	_ = a.res.Body.Close() // nothing more is wanted of it
	a.head, a.res.Body = plain, http.NoBody
	h.Del("Content-Encoding")
	if h.Get("Content-Length") != "" {
		h.Set("Content-Length", strconv.Itoa(len(plain)))
	}
}

// unpack returns what was packed as a whole, up to the limit of errors' bodies. Packed by
// deflate is what zlib writes.
func unpack(packed []byte, encodings []string) ([]byte, bool) {
	if len(packed) == 0 {
		return packed, true
	}
	var r io.Reader
	var err error
	switch from := bytes.NewReader(packed); strings.ToLower(strings.Join(encodings, ",")) {
	case "gzip", "x-gzip":
		r, err = gzip.NewReader(from)
	case "deflate":
		r, err = zlib.NewReader(from)
	default:
		return nil, false
	}
	if err != nil {
		return nil, false
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxErrorBody+1))
	return plain, err == nil && len(plain) <= maxErrorBody
}

// scrub takes credentials out of text for logs, also as errors quote what is no HTTP.
func (x *exchange) scrub(s string) string {
	for _, secret := range append(tokens(x.r.Header), x.account.Secret.Reveal()) {
		for _, form := range newEchoes(secret).forms {
			s = strings.ReplaceAll(s, string(form.text), hidden)
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
	a.watch.stop()
	a.cancel(context.Canceled)
	if a.relay != nil {
		a.relay.release()
	}
}
