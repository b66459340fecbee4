package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/scan"
)

// refusal is an error of our own for the caller.
type refusal struct {
	dialect.Error
	outcome string        // for metrics
	final   bool          // the same request would only be refused again
	wait    time.Duration // Retry-After
	cause   error         // for logs
	reason  pool.Reason   // what the pool is told of the account; empty if none was chosen
	unsent  bool          // nothing of the request was sent with the account
}

// Outcomes of requests, as metrics name them.
const (
	outcomeOK          = "ok"
	outcomeRefused     = "refused"       // by us: identity, method, path, size
	outcomeNoAccount   = "no_account"    // nothing to send it with
	outcomeExhausted   = "exhausted"     // no account is ready
	outcomeUnavailable = "unavailable"   // a part of ours is down or full
	outcomeOverShare   = "over_share"    // the workspace has its share of what is open
	outcomeUnreachable = "unreachable"   // the provider did not answer
	outcomeTimeout     = "timeout"       // the provider did not answer in time
	outcomeBroken      = "broken"        // the answer broke off
	outcomeCancelled   = "cancelled"     // by the caller
	outcomeClientError = "client_error"  // the provider's 4xx, handed back
	outcomeServerError = "service_error" // the provider's 5xx or error event, handed back
)

// allowed are the methods that are forwarded.
var allowed = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// split takes the provider and the path behind it out of a request's path. The path
// stays escaped as the caller did it, but for what needs no escape.
func split(u *url.URL) (provider, path string, ok bool) {
	provider, path, _ = strings.Cut(strings.TrimPrefix(u.EscapedPath(), Prefix), "/")
	return provider, "/" + unescape(path), isProvider(provider)
}

// unescape writes the characters of a path plainly that mean the same escaped and not
// (RFC 3986, 2.3), so that a route is known however it is written.
func unescape(path string) string {
	i := strings.IndexByte(path, '%')
	if i < 0 {
		return path
	}
	var b strings.Builder
	for ; i >= 0; i = strings.IndexByte(path, '%') {
		b.WriteString(path[:i])
		c, err := strconv.ParseUint(path[i+1:min(i+3, len(path))], 16, 8)
		if err != nil || !isUnreserved(byte(c)) {
			b.WriteByte('%')
			path = path[i+1:]
			continue
		}
		b.WriteByte(byte(c))
		path = path[i+3:]
	}
	return b.String() + path
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// isASCII reports whether s is visible ASCII throughout.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// isProvider reports whether a name can be a provider's: lower-case letters, digits
// and dashes behind a letter.
func isProvider(name string) bool {
	for i := range len(name) {
		c := name[i]
		if letter := 'a' <= c && c <= 'z'; !letter && (i == 0 || c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return 0 < len(name) && len(name) <= 64
}

// checkPath refuses paths that could mean another place to the provider than to us.
func checkPath(u *url.URL) bool {
	for _, r := range u.Path {
		if r < ' ' || r == 0x7f || r == '\\' {
			return false
		}
	}
	// A slash that is written %2F is a part of a name to most, but some servers read it
	// before they look for dots.
	segments := strings.Split(u.Path, "/")
	if slices.Contains(segments, ".") || slices.Contains(segments, "..") {
		return false
	}
	return !strings.Contains(strings.TrimPrefix(u.EscapedPath(), Prefix), "//")
}

// keyHeaders are where SDKs put a key, but for Authorization.
var keyHeaders = [...]string{identity.Header, "X-Api-Key", "Api-Key", "X-Goog-Api-Key"}

// tokens returns what a caller sent where a signed context may be: wherever SDKs put a key.
func tokens(h http.Header) []string {
	var all []string
	for _, name := range keyHeaders {
		if t := h.Get(name); t != "" {
			all = append(all, t)
		}
	}
	scheme, t, _ := strings.Cut(h.Get("Authorization"), " ")
	if t = strings.TrimSpace(t); t != "" && (strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "token")) {
		all = append(all, t)
	}
	return all
}

// identify finds out who calls: by the first of the tokens that is a signed context. An SDK
// may have put a key of its own beside it. The error is the first one's.
func (x *exchange) identify() (token string, r *refusal) {
	all := tokens(x.r.Header)
	if len(all) == 0 {
		return "", refused(http.StatusUnauthorized, "no_identity", "no workspace token: send one where the API key goes", nil)
	}
	var why error
	for _, t := range all {
		actor, err := x.p.cfg.Verifier.Verify(t)
		if err == nil {
			x.actor = actor
			return t, nil
		}
		why = cmp.Or(why, err)
	}
	return "", refused(http.StatusUnauthorized, "no_identity", "the workspace token was not accepted: it may have expired, or be meant for another service", why)
}

// dropped are headers of a request that end at the proxy: the hop's own
// (RFC 9110, 7.6.1), credentials, and what tells of our inside.
var dropped = [...]string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Http2-Settings",
	"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", identity.Header, "Cookie",
	"Host", "Content-Length", "Accept-Encoding",
	"Referer", "Origin", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Real-Ip", "Via",
	"Traceparent", "Tracestate", "Baggage",
}

// ours is how the headers begin that services of ours send to each other. They tell
// of sessions and members.
const ours = "X-Signalbox-"

// outgoing returns a copy of a caller's headers without those that end here. A
// header that repeats the token ends here too, whatever its name.
func outgoing(h http.Header, token string) http.Header {
	out := make(http.Header, len(h)+2)
	for name, values := range h {
		if slices.Contains(dropped[:], name) || strings.HasPrefix(name, ours) || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, token) }) {
			continue
		}
		out[name] = slices.Clone(values)
	}
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	return out
}

// query returns a raw query without the parameters that hold the caller's token, the
// others as they came: whatever they mean, the caller asks for it.
func query(raw, token string) string {
	if raw == "" {
		return ""
	}
	var keep []string
	for pair := range strings.SplitSeq(raw, "&") {
		// As it came too: the provider may read what does not unescape here.
		if plain, err := url.QueryUnescape(pair); strings.Contains(pair, token) || err == nil && strings.Contains(plain, token) {
			continue
		}
		keep = append(keep, pair)
	}
	return strings.Join(keep, "&")
}

// readAsked reads the members of the body that the proxy itself acts on.
func (x *exchange) readAsked() {
	var n, prompt []byte
	s := scan.New(x.body)
	for name := range s.Members() {
		switch string(s.Bytes(name)) {
		case "model":
			if p, ok := s.String(); ok && p.To-p.From <= maxModel {
				x.model = string(s.Bytes(p))
			}
		case "stream":
			x.stream = string(s.Value()) == "true"
		case "n":
			n = s.Value()
		case "prompt":
			prompt = s.Value()
		}
	}
	x.choices = wantedChoices(n, prompt)
}

const (
	bodyQueue = 10 * time.Second // waiting for room among the bodies in flight
	slotQueue = 10 * time.Second // waiting for a turn among the requests in flight
	discard   = 2                // times the limit of a body that is read only to be refused
)

// readBody reads the whole request before anything is sent: it may be needed
// again, and net/http cuts answers short while a request's body is unread
// (golang/go#40747).
func (x *exchange) readBody() *refusal {
	limit := x.p.cfg.Limits.Body
	size := x.r.ContentLength
	if size == 0 {
		return nil
	}
	in := &arriving{x: x, last: time.Now().Add(wholeBody * x.p.cfg.Timers.Body)}
	in.extend()
	// Gone before the answer begins: net/http watches for the caller's end with
	// the same deadline.
	defer func() { _ = x.rc.SetReadDeadline(time.Time{}) }()
	if size > limit {
		return x.tooLarge(size)
	}
	weight := size
	if size < 0 {
		weight = limit
	}
	if r := x.reserve(weight); r != nil {
		return r
	}
	var err error
	if size > 0 {
		x.body = make([]byte, size)
		if _, err = io.ReadFull(in, x.body); err == nil {
			// Up to the end, which is when net/http begins to watch for the caller's.
			_, err = in.Read(make([]byte, 1))
			if errors.Is(err, io.EOF) {
				err = nil
			}
		}
	} else {
		var b bytes.Buffer
		_, err = b.ReadFrom(io.LimitReader(in, limit+1))
		x.body = b.Bytes()
	}
	if err != nil {
		return x.unread(err)
	}
	if int64(len(x.body)) > limit {
		return x.tooLarge(-1)
	}
	x.shrink(int64(len(x.body)))
	return nil
}

// wholeBody is how many times as long a request may take to arrive as it may pause.
const wholeBody = 10

// arriving is the caller's body. Each piece gives the next one its time, up to last.
type arriving struct {
	x              *exchange
	deadline, last time.Time
}

// Read implements io.Reader.
func (r *arriving) Read(p []byte) (int, error) {
	n, err := r.x.r.Body.Read(p)
	if n > 0 && err == nil {
		r.extend()
	}
	return n, err
}

// extend moves the deadline, at most once a second, as for writes (extendDeadline).
func (r *arriving) extend() {
	pause := r.x.p.cfg.Timers.Body
	want := time.Now().Add(pause)
	if want.After(r.last) {
		want = r.last
	}
	if want.Sub(r.deadline) > min(time.Second, pause/2) {
		r.deadline = want
		_ = r.x.rc.SetReadDeadline(want)
	}
}

// reserve takes room for the body: of the workspace's share, and among all that is in
// memory. It waits for it, up to bodyQueue.
func (x *exchange) reserve(n int64) *refusal {
	ctx, cancel := context.WithTimeout(x.ctx, bodyQueue)
	defer cancel()
	if err := x.share.bodies.Acquire(ctx, n); err != nil {
		if x.ctx.Err() != nil {
			return x.gone(err)
		}
		return x.overShare()
	}
	if r := x.takeRoom(ctx, n); r != nil {
		x.share.bodies.Release(n)
		return r
	}
	x.reserved = n
	return nil
}

// takeRoom takes room among all bodies that are in memory. It waits for it as long as ctx
// allows.
func (x *exchange) takeRoom(ctx context.Context, n int64) *refusal {
	err := x.p.bodies.Acquire(ctx, n)
	switch {
	case err == nil:
		return nil
	case x.ctx.Err() != nil:
		return x.gone(err)
	}
	return &refusal{
		Error:   dialect.Error{Status: http.StatusServiceUnavailable, Code: "busy", Message: "the credential broker holds as many requests as it may: try again in a moment"},
		outcome: outcomeUnavailable, wait: time.Second, cause: err,
	}
}

// overShare is the refusal where the workspace has its share.
func (x *exchange) overShare() *refusal {
	r := refused(http.StatusServiceUnavailable, "busy", "the workspace has as many requests open as it may: try again in a moment", nil)
	r.outcome, r.final, r.wait = outcomeOverShare, false, time.Second
	return r
}

// shrink gives back what was reserved beyond n.
func (x *exchange) shrink(n int64) {
	if less := x.reserved - n; less > 0 {
		x.p.bodies.Release(less)
		x.share.bodies.Release(less)
		x.reserved = n
	}
}

// bodySent forgets the body once the answer is being delivered: nothing is sent again
// from then on. A provider may answer before it has read the request; then the body is
// there until it was written, which is looked for as the answer goes on.
func (x *exchange) bodySent() {
	if x.body != nil && (x.sent == nil || x.sent.Load()) {
		x.releaseBody()
	}
}

func (x *exchange) releaseBody() {
	x.body = nil
	x.shrink(0)
}

// tooLarge reads on for a while, so that a caller that sends before it listens
// gets the answer and not a broken connection.
func (x *exchange) tooLarge(size int64) *refusal {
	limit := x.p.cfg.Limits.Body
	if size <= discard*limit && x.r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, x.r.Body, discard*limit) // best effort
	}
	x.w.Header().Set("Connection", "close")
	return &refusal{
		Error:   dialect.Error{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: fmt.Sprintf("the request is over the limit of %d MiB", limit>>20)},
		outcome: outcomeRefused, final: true,
	}
}

func (x *exchange) unread(err error) *refusal {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		x.w.Header().Set("Connection", "close")
		return &refusal{
			Error:   dialect.Error{Status: http.StatusRequestTimeout, Code: "request_timeout", Message: "the request did not arrive in time"},
			outcome: outcomeRefused, cause: err,
		}
	}
	return &refusal{
		Error:   dialect.Error{Status: http.StatusBadRequest, Code: "request_incomplete", Message: "the request did not arrive whole"},
		outcome: outcomeCancelled, cause: err,
	}
}
