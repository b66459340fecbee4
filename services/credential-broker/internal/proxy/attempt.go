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
	"time"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/upstream"
	"signalbox.dev/services/credential-broker/internal/usage"
)

// maxErrorBody is how much of an error's body is read to classify it.
const maxErrorBody = 64 << 10

// answer is a provider's answer of which the caller has seen nothing yet, or (relay.opened)
// only what the gate let through when its time was up.
type answer struct {
	x      *exchange
	ctx    context.Context //nolint:containedctx // the upstream request's, which lives as long as the answer
	res    *http.Response  // nil if there is none
	watch  *watch
	url    *url.URL // of the request
	route  profile.Route
	echoes echoes // of the credential that the request was sent with
	reason pool.Reason
	denied bool   // the provider does not let the account do what the request asks for
	told   bool   // the pool knows how it went
	head   []byte // what was read of a body that is not an event stream
	relay  *relay // of an event stream
}

// attempt sends the request once with the exchange's account. It returns an answer that can
// be delivered or discarded, or a refusal; then the answer, if there is one, is closed.
func (x *exchange) attempt() (*answer, *refusal) {
	u, route := x.target()
	x.tally = usage.Tally{}
	if x.r.Method == http.MethodPost { // answers to other methods were counted when they were made
		x.tally = usage.NewTally(x.account.Profile.Usage)
	}
	r := x.edit(route.Messages)
	if name := x.account.Profile.Auth.Param(x.query); name != "" {
		r = refused(http.StatusBadRequest, "bad_query", "the query contains a key or token of your own, in "+name+": leave it out; the credential broker adds the account's", nil)
	}
	if r != nil {
		r.reason, r.unsent = pool.Caller, true
		return nil, r
	}
	a, err := x.send(u, route)
	if err != nil {
		r := a.unanswered(err)
		r.unsent = errors.Is(err, upstream.ErrNotSent)
		a.discard()
		return a, r
	}
	return a.inspect()
}

// send sends the request. It returns an answer even if that fails, without a response.
func (x *exchange) send(u *url.URL, route profile.Route) (*answer, error) {
	x.past.attempts++
	ctx, cancel := context.WithCancelCause(x.ctx)
	a := &answer{x: x, ctx: ctx, url: u, route: route, echoes: newEchoes(x.account.Secret.Reveal())}
	req := (&http.Request{Method: x.r.Method, URL: u, Host: u.Host, Header: x.header.Clone()}).WithContext(ctx)
	x.putBody(req)
	x.account.Profile.Apply(req.Header, x.account.Secret.Reveal())
	transport := x.p.cfg.Open
	if x.account.Own {
		transport = x.p.cfg.Guarded
	}
	if x.past.attempts == 1 {
		added := time.Since(x.began) - x.reading
		x.p.metrics.added.WithLabelValues(x.label).Observe(added.Seconds())
		x.p.cfg.Meter.Added(x.label, x.account.ID, added)
	}
	headers := wait{route.Wait, errHeaders}
	if x.stream {
		headers.limit = route.WaitStream
	}
	if t := x.p.cfg.Timers.Headers; t > 0 {
		headers.limit = t
	}
	a.watch = newWatch(ctx, cancel, &headers)
	var err error
	a.res, err = transport.RoundTrip(req) //nolint:bodyclose // the answer's discard closes it
	return a, err
}

// unanswered is the refusal for an upstream request that failed before anything of its answer
// was shown.
func (a *answer) unanswered(err error) *refusal {
	if a.x.ctx.Err() != nil {
		r := a.x.gone(err)
		r.reason = pool.Cancelled
		return r
	}
	r := &refusal{Error: a.failure(err), outcome: outcomeUnreachable, cause: err, reason: pool.Unreachable, final: errors.Is(err, target.ErrAddress)}
	if r.Status == http.StatusGatewayTimeout {
		r.outcome, r.cause = outcomeTimeout, context.Cause(a.ctx)
	}
	return r
}

// failure says in one sentence what went wrong upstream.
func (a *answer) failure(err error) dialect.Error {
	provider := "the provider " + a.x.provider
	where := reachable(&a.x.account)
	e := dialect.Error{Status: http.StatusBadGateway, Code: "provider_unreachable", Message: "the connection to " + provider + where + " failed"}
	op, isOp := errors.AsType[*net.OpError](err)
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errHeaders), errors.Is(cause, errFirstEvent), errors.Is(cause, errIdle):
		e.Status, e.Code = http.StatusGatewayTimeout, "provider_timeout"
		e.Message = strings.Replace(cause.Error(), "the provider", provider, 1)
	case errors.Is(cause, errEnding):
		return shuttingDown
	case errors.Is(err, target.ErrAddress):
		e.Code = "address_not_allowed"
		e.Message = "the account's base URL resolves to an address that the operator has not allowed"
	case isOp && op.Op == "dial":
		e.Message = "could not connect to " + provider + where
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Code, e.Message = "provider_broke_off", provider+" closed the connection before the answer ended"
	}
	if why := WhyUnreachable(err); why != "" && e.Code == "provider_unreachable" {
		e.Message += ": " + why
	}
	return e
}

// inspect reads as much of an answer as it takes to decide what to do with it.
func (a *answer) inspect() (*answer, *refusal) {
	x, res := a.x, a.res
	if r := a.redirected(); r != nil {
		return a.fail(r, pool.Service)
	}
	streams, encoded := a.streams(), isEncoded(res)
	switch {
	case res.StatusCode >= 400:
		return a.readError()
	case streams && encoded:
		return a.fail(x.unusable("with a compressed body, which was not requested"), pool.Service) // its end cannot be seen
	case streams:
		a.relay = newRelay(a)
		if r := a.relay.gate(); r != nil {
			return a.fail(r, r.reason)
		}
		return a, nil
	}
	a.reason = pool.OK
	a.watch.start(&x.p.waits.idle)
	switch {
	case x.r.Method == http.MethodHead:
	case x.edited.answers != nil:
		return a.translate()
	case len(a.route.URLs) > 0 && isJSON(res) && !encoded:
		return a.relink()
	}
	return a, nil
}

// streams reports whether an answer is treated as an event stream: it says that it is one, or
// a stream was asked for on a route with known events and it does not say that it is JSON. A
// compressed answer is one only on such a route; elsewhere it passes as it is.
func (a *answer) streams() bool {
	known := a.route.Stream != nil
	switch {
	case a.x.r.Method == http.MethodHead:
		return false
	case isEvents(a.res):
		return known || !isEncoded(a.res)
	}
	return known && a.x.stream && a.res.StatusCode == http.StatusOK && !isJSON(a.res)
}

func isEvents(res *http.Response) bool { return mediaType(res) == "text/event-stream" }

func isJSON(res *http.Response) bool {
	kind := mediaType(res)
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// mediaType returns an answer's type in lower case; the first one if it gives several.
func mediaType(res *http.Response) string {
	kind := res.Header.Get("Content-Type")
	if i := strings.IndexAny(kind, ";,"); i >= 0 {
		kind = kind[:i]
	}
	return strings.ToLower(strings.TrimSpace(kind))
}

// isEncoded reports whether an answer is compressed. Some servers send names that are no
// compression.
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

// readError reads the beginning of an error's body, which says whose error it is.
func (a *answer) readError() (*answer, *refusal) {
	x := a.x
	a.watch.start(&x.p.waits.errorBody)
	head, err := io.ReadAll(io.LimitReader(a.res.Body, maxErrorBody))
	if err != nil && x.ctx.Err() != nil {
		return a.fail(x.gone(err), pool.Cancelled)
	}
	// An error body that breaks off is still the provider's answer: what arrived is
	// forwarded, and deliver meets the error again.
	a.head = head
	if isEncoded(a.res) && x.r.Method != http.MethodHead {
		a.decompress()
	}
	f, _ := dialect.Read(a.head)
	a.reason = pool.Classify(a.res.StatusCode, f)
	if a.reason == pool.Caller && a.res.StatusCode == http.StatusForbidden && x.account.Profile.Exhausted(a.res.Header) {
		a.reason = pool.RateLimited // some providers say so only in headers
	}
	a.denied = a.reason == pool.QuotaExhausted && pool.Denied(f)
	a.echoes.inText = true // all of it is an error
	return a, nil
}

// decompress replaces a compressed error by its text, so that its meaning and any credential
// in it can be found. One that is too large, damaged or compressed otherwise becomes an error
// of ours with the same status.
func (a *answer) decompress() {
	plain, err := decompress(a.head, a.res.Header["Content-Encoding"])
	h := a.res.Header
	if err != nil {
		plain = dialect.Body(a.x.dialect, dialect.Error{Status: a.res.StatusCode, Code: "provider_answer_unusable", Message: fmt.Sprintf("the provider %s answered with status %d and a compressed body, which was not requested", a.x.provider, a.res.StatusCode)})
		h.Set("Content-Type", "application/json")
	}
	_ = a.res.Body.Close() // the rest is not needed
	a.head, a.res.Body = plain, http.NoBody
	h.Del("Content-Encoding")
	a.fitLength()
}

// decompress returns the text of a body, up to the limit of errors' bodies.
func decompress(packed []byte, encodings []string) ([]byte, error) {
	if len(packed) == 0 {
		return packed, nil
	}
	var r io.Reader
	err := errors.ErrUnsupported
	switch from := bytes.NewReader(packed); strings.ToLower(strings.Join(encodings, ",")) {
	case "gzip", "x-gzip":
		r, err = gzip.NewReader(from)
	case "deflate": // is the zlib format in HTTP
		r, err = zlib.NewReader(from)
	}
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxErrorBody+1))
	if len(plain) > maxErrorBody {
		err = io.ErrShortBuffer
	}
	return plain, err
}

// fitLength sets an answer's length, if it gave one, to that of its replaced body.
func (a *answer) fitLength() {
	if h := a.res.Header; h.Get("Content-Length") != "" {
		h.Set("Content-Length", strconv.Itoa(len(a.head)))
	}
}

// addRetryAfter adds to an answer for too many requests when to try again, if the provider
// does not say.
func (a *answer) addRetryAfter(t time.Time) {
	if h := a.res.Header; a.res.StatusCode == http.StatusTooManyRequests && h.Get("Retry-After") == "" && h.Get("Retry-After-Ms") == "" {
		h.Set("Retry-After", strconv.Itoa(int(waitUntil(t)/time.Second)))
	}
}

// scrub removes credentials from text for logs; errors about malformed HTTP quote it.
func (x *exchange) scrub(s string) string {
	for _, secret := range append(tokens(x.r.Header), x.account.Secret.Reveal()) {
		for _, form := range newEchoes(secret).forms {
			s = strings.ReplaceAll(s, string(form.text), hidden)
		}
	}
	return s
}

// fail discards the answer and refuses the request, for a reason that the pool is told.
func (a *answer) fail(r *refusal, reason pool.Reason) (*answer, *refusal) {
	a.discard()
	r.reason = reason
	return a, r
}

// discard ends the upstream request and releases what belongs to it.
func (a *answer) discard() {
	a.watch.stop()
	if a.relay != nil {
		a.relay.release()
	}
	if a.res != nil {
		_ = a.res.Body.Close() // it was given up
	}
}

func (x *exchange) unusable(how string) *refusal {
	r := refused(http.StatusBadGateway, "provider_answer_unusable", fmt.Sprintf("the provider %s answered %s", x.provider, how), nil)
	r.outcome = outcomeServerError
	return r
}
