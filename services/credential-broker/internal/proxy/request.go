package proxy

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/scan"
)

var (
	// callers are the services that reach providers: with models and with tools.
	callers = []string{subject.AgentRunner, subject.ToolExecutor}
	// allowed are the methods that are forwarded.
	allowed = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
)

// admit lets a request in, or says why not.
func (x *exchange) admit() *refusal {
	n := x.p.open.Add(1)
	provider, path, ok := splitPath(x.r.URL)
	if ok {
		if p, known := x.p.cfg.Profiles.For(provider); known {
			x.dialect, x.label = p.Dialect, provider // errors have the provider's shape from here on
		}
	}
	token, r := x.authenticate()
	if r != nil {
		return r
	}
	switch {
	case !slices.Contains(callers, x.actor.Service):
		return refused(http.StatusForbidden, "forbidden", "the service "+x.actor.Service+" may not use the egress", nil)
	case x.actor.Role < identity.Editor:
		return refused(http.StatusForbidden, "forbidden", "this needs the role editor; yours is "+x.actor.Role.String(), nil)
	case !ok:
		return refused(http.StatusNotFound, "unknown_provider", "the path must begin with "+Prefix+" and a provider's name, such as "+Prefix+"anthropic", nil)
	}
	x.provider, x.path = provider, path
	switch {
	case !checkPath(x.r.URL):
		return refused(http.StatusBadRequest, "bad_path", "the path must hold no empty, . or .. segment and no control character", nil)
	case strings.ContainsFunc(x.r.URL.RawQuery, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return refused(http.StatusBadRequest, "bad_query", "the query must be printable ASCII: write other characters as %XX", nil)
	case !slices.Contains(allowed, x.r.Method):
		return refused(http.StatusMethodNotAllowed, "bad_method", "the method "+x.r.Method+" is not forwarded", nil)
	case strings.EqualFold(x.r.Header.Get("Upgrade"), "websocket"):
		return refused(http.StatusNotImplemented, "not_supported", "websockets are not forwarded: use the provider's HTTP API", nil)
	case n > 2*x.p.cfg.Limits.Requests:
		return busy(outcomeUnavailable, busyRequests, nil)
	case x.p.ending.Err() != nil:
		return shutdown()
	}
	if r := x.takeSlot(); r != nil {
		return r
	}
	x.header = requestHeader(x.r.Header, token)
	x.query = withoutToken(x.r.URL.RawQuery, token)
	start := time.Now()
	r = x.readBody()
	x.reading = time.Since(start)
	x.parseBody()
	return r
}

var providerForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)

// splitPath splits a request's path into the provider and the path behind it, which stays
// escaped as the caller wrote it, except for unreserved characters.
func splitPath(u *url.URL) (provider, path string, ok bool) {
	provider, path, _ = strings.Cut(strings.TrimPrefix(u.EscapedPath(), Prefix), "/")
	return provider, "/" + unescapeUnreserved(path), providerForm.MatchString(provider)
}

var percentEscape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// unescapeUnreserved decodes the characters of a path whose escaped form means the same
// (RFC 3986, 2.3), so that a route is recognised however it is written.
func unescapeUnreserved(path string) string {
	return percentEscape.ReplaceAllStringFunc(path, func(escape string) string {
		c, _ := strconv.ParseUint(escape[1:], 16, 8) // the expression matches hexadecimal digits
		if b := byte(c); 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || strings.IndexByte("-._~", b) >= 0 {
			return string(rune(b))
		}
		return escape
	})
}

// checkPath refuses paths that the provider could read differently from us.
func checkPath(u *url.URL) bool {
	if strings.ContainsFunc(u.Path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return false
	}
	// An escaped slash is usually part of a name, but some servers decode it before they
	// look for dots.
	segments := strings.Split(u.Path, "/")
	if slices.Contains(segments, ".") || slices.Contains(segments, "..") {
		return false
	}
	return !strings.Contains(strings.TrimPrefix(u.EscapedPath(), Prefix), "//")
}

// tokens returns what a caller sent in the places where SDKs put a key, and so where a signed
// context may be.
func tokens(h http.Header) []string {
	var all []string
	for _, name := range [...]string{identity.Header, "X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
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

// authenticate finds the caller by the first token that is a signed context. An SDK may have
// sent a key of its own as well. The error is the first token's.
func (x *exchange) authenticate() (token string, r *refusal) {
	all := tokens(x.r.Header)
	if len(all) == 0 {
		return "", refused(http.StatusUnauthorized, "no_identity", "no workspace token: send one where the API key goes", nil)
	}
	var first error
	for _, t := range all {
		actor, err := x.p.cfg.Verifier.Verify(t)
		if err == nil {
			x.actor = actor
			return t, nil
		}
		first = cmp.Or(first, err)
	}
	return "", refused(http.StatusUnauthorized, "no_identity", "the workspace token was not accepted: it may have expired, or be meant for another service", first)
}

// hopByHop are headers that belong to one connection (RFC 9110, 7.6.1).
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// notSent are headers of a request that are not forwarded: credentials, and what describes the
// caller's connection or our own network.
var notSent = []string{
	"Expect", "Http2-Settings",
	"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", identity.Header, "Cookie",
	"Host", "Content-Length", "Accept-Encoding",
	"Referer", "Origin", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Real-Ip", "Via",
	"Traceparent", "Tracestate", "Baggage",
}

// internalPrefix begins the names of headers that our services send to each other. They tell
// of sessions and members.
const internalPrefix = "X-Signalbox-"

// Headers between the tools and this proxy.
const (
	// serverHeader of a request says which server (scheme and host) it is for. An account for
	// another one is not used.
	serverHeader = internalPrefix + "Server"
	// errorHeader of an answer has the code of an error of our own.
	errorHeader = internalPrefix + "Error"
)

// requestHeader returns the headers to forward. Any header that repeats the token is dropped,
// whatever its name.
func requestHeader(h http.Header, token string) http.Header {
	out := forwardable(h, notSent, func(v string) bool { return strings.Contains(v, token) })
	for name := range out {
		if strings.HasPrefix(name, internalPrefix) {
			delete(out, name)
		}
	}
	return out
}

// forwardable returns the headers without those that belong to the connection, those named,
// and those with a secret value.
func forwardable(h http.Header, drop []string, secret func(value string) bool) http.Header {
	out := make(http.Header, len(h)+2)
	for name, values := range h {
		if !slices.Contains(hopByHop, name) && !slices.Contains(drop, name) && !slices.ContainsFunc(values, secret) {
			out[name] = values
		}
	}
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	return out
}

// withoutToken returns a raw query without the parameters that hold the caller's token. The
// others stay as they are.
func withoutToken(raw, token string) string {
	pairs := strings.Split(raw, "&")
	return strings.Join(slices.DeleteFunc(pairs, func(pair string) bool {
		// The raw form too: the provider may decode what url does not.
		plain, err := url.QueryUnescape(pair)
		return strings.Contains(pair, token) || err == nil && strings.Contains(plain, token)
	}), "&")
}

// maxModel bounds the name of a model that the pool is told.
const maxModel = 128

// parseBody reads the members of the body that the proxy itself acts on.
func (x *exchange) parseBody() {
	var n float64
	var prompt []byte
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
			n, _ = strconv.ParseFloat(string(s.Value()), 64) // 0 if it is not a number
		case "prompt":
			prompt = s.Value()
		}
	}
	x.several = n > 1 || severalPrompts(prompt)
}

// severalPrompts reports whether a completion's prompt is a list of several. A list of numbers is a
// single prompt of tokens.
func severalPrompts(prompt []byte) bool {
	s := scan.New(prompt)
	for i := range s.Elements() {
		if k := s.Kind(); k != '"' && k != '[' {
			return false
		}
		if i == 1 {
			return true
		}
	}
	return false
}

// slotQueue limits the wait for a slot among the requests in flight.
const slotQueue = 10 * time.Second

// takeSlot counts the request in its workspace's share and waits for the workspace's turn.
func (x *exchange) takeSlot() *refusal {
	x.share = x.p.shares.enter(x.actor.Workspace)
	if x.share == nil {
		return busy(outcomeOverShare, busyShare, nil)
	}
	ctx, cancel := context.WithTimeout(x.ctx, slotQueue)
	defer cancel()
	err := x.p.slots.Acquire(ctx, x.actor.Workspace)
	x.slot = err == nil
	return x.queued(err, outcomeUnavailable, busyRequests)
}

// queued is the result of waiting for room: nil, or the refusal if the wait failed.
func (x *exchange) queued(err error, outcome, message string) *refusal {
	switch {
	case err == nil:
		return nil
	case x.ctx.Err() != nil:
		return x.gone(err)
	}
	return busy(outcome, message, err)
}
