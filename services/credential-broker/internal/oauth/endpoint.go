package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	maxAnswer   = 256 << 10
	maxToken    = 16 << 10
	dialTimeout = 10 * time.Second
	maxWait     = 15 * time.Minute // that an authorisation server may ask for

	minLife     = 10 * time.Second // of an access token: a shorter one is not believed
	unclearLife = 10 * time.Minute // after which a token of unknown life is renewed
)

// parameters of a request. Some are secret: they are never printed.
type parameters map[string]string

// issued are the tokens of an answer.
type issued struct {
	Access, Refresh vault.Secret
	// Life and RefreshLife are 0 if the server did not say: for ever.
	Life, RefreshLife time.Duration
	// Unclear says that the server's answer about Life makes no sense.
	Unclear bool
	Scope   string
}

// failure is a request to an authorisation server that failed. Of the answer it holds the
// error code alone: descriptions quote tokens.
type failure struct {
	// Sent says that the server may have seen the request, Answered that it decided.
	Sent, Answered bool
	Status         int
	Code           string
	After          time.Duration // what Retry-After asked for
	err            error         // sanitized
}

// Error says what happened, without quoting the body.
func (f *failure) Error() string {
	switch {
	case f.Code != "":
		return fmt.Sprintf("the authorization server answered %d %s", f.Status, f.Code)
	case f.Status != 0 && f.err != nil:
		return fmt.Sprintf("the authorization server's answer (status %d) cannot be used: %v", f.Status, f.err)
	case f.Status != 0:
		return fmt.Sprintf("the authorization server answered %d", f.Status)
	case f.Sent:
		return fmt.Sprintf("the authorization server did not answer: %v", f.err)
	}
	return fmt.Sprintf("nothing was sent to the authorization server: %v", f.err)
}

func (f *failure) Unwrap() error { return f.err }

// failureOf returns the failure in an error's chain, or one for which nothing was sent.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	return &failure{err: err}
}

// newClient returns a client that sends a request once: it follows no redirect and keeps no
// cookies and no connections. A request on a kept connection can be lost without anybody
// knowing whether it arrived.
//
// control, if any, is called with every address before it is dialled.
func newClient(control func(network, address string, c syscall.RawConn) error) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy, t.DisableKeepAlives, t.ForceAttemptHTTP2 = nil, true, false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	if control != nil {
		t.DialContext = (&net.Dialer{Timeout: dialTimeout, Control: control}).DialContext
	}
	t.TLSHandshakeTimeout, t.MaxResponseHeaderBytes = 10*time.Second, 64<<10
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post sends parameters to an endpoint of a provider, once, and returns the answer's
// JSON object. Its errors are failures.
func (k *Keeper) post(ctx context.Context, p *Provider, endpoint string, params parameters) (map[string]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.PostTimeout)
	defer cancel()
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	req, err := newRequest(ctx, p, endpoint, params)
	if err != nil {
		return nil, &failure{err: err}
	}
	req.Header.Set("User-Agent", k.cfg.UserAgent)
	client := k.client
	if p.server != nil {
		client = k.guarded
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, &failure{Sent: sent.Load(), err: sanitize(err)}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	err = sanitize(err) // net/http quotes malformed trailers, too
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("it is longer than %d bytes", maxAnswer)
	}
	f := &failure{Sent: true, Status: res.StatusCode, After: retryAfter(res.Header.Get("Retry-After")), err: err}
	if err != nil {
		return nil, f
	}
	object, code, ok := decode(res.Header, body)
	f.Code = code
	// Behind a gateway's error the server may have acted all the same.
	f.Answered = res.StatusCode < http.StatusInternalServerError && (ok || res.StatusCode >= http.StatusBadRequest)
	if code != "" || res.StatusCode/100 != 2 {
		return nil, f
	}
	if !ok && len(bytes.TrimSpace(body)) > 0 {
		f.err = errors.New("it is not a JSON object")
		return nil, f
	}
	return object, nil
}

func newRequest(ctx context.Context, p *Provider, endpoint string, params parameters) (*http.Request, error) {
	all := maps.Clone(params)
	if p.Auth != AuthBasic {
		all["client_id"] = p.Client.ID
	}
	if p.Auth == AuthBody {
		all["client_secret"] = p.Client.Secret.Reveal()
	}
	var body []byte
	kind := "application/x-www-form-urlencoded"
	if p.Encoding == JSON {
		var err error
		if body, err = json.Marshal(all); err != nil {
			return nil, errors.New("encode the parameters")
		}
		kind = "application/json"
	} else {
		form := url.Values{}
		for name, value := range all {
			form.Set(name, value)
		}
		body = []byte(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the endpoint is not a URL")
	}
	req.GetBody = nil // sent once
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Accept", "application/json")
	if p.Auth == AuthBasic { // RFC 6749, 2.3.1: encoded before they are joined
		req.SetBasicAuth(url.QueryEscape(p.Client.ID), url.QueryEscape(p.Client.Secret.Reveal()))
	}
	return req, nil
}

// decode returns an answer's object and error code. Some servers answer errors with 200, some
// in the form encoding, some with an object instead of the code, some with JSON of another
// content type or after a byte order mark.
func decode(h http.Header, body []byte) (object map[string]json.RawMessage, code string, ok bool) {
	body = bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\uFEFF")))
	if kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")); kind == "application/x-www-form-urlencoded" && !bytes.HasPrefix(body, []byte("{")) {
		form, err := url.ParseQuery(string(body))
		object = map[string]json.RawMessage{}
		for name := range form {
			object[name], _ = json.Marshal(form.Get(name)) // a string always encodes
		}
		return object, clean(form.Get("error")), err == nil
	}
	if json.Unmarshal(body, &object) != nil || object == nil {
		return nil, "", false
	}
	var inner struct {
		Type string `json:"type"`
		Code string `json:"code"`
	}
	var access string
	raw, given := object["error"]
	switch {
	case !given || string(raw) == "null" || string(raw) == "false":
	case json.Unmarshal(raw, &code) == nil:
		code = clean(code)
	case json.Unmarshal(raw, &inner) == nil && (inner.Code != "" || inner.Type != ""):
		if code = inner.Code; code == "" {
			code = inner.Type
		}
		code = clean(code)
	case json.Unmarshal(object["access_token"], &access) == nil && access != "":
		// It names no error, and has what was asked for.
	default:
		code = "error"
	}
	return object, code, true
}

// clean returns an error code if it looks like one.
func clean(code string) string {
	if code == "" || codeForm.MatchString(code) {
		return code
	}
	return "error"
}

// tokens reads the answer of a token endpoint. Its errors are failures after which it is
// unknown which tokens are valid.
func tokens(object map[string]json.RawMessage) (issued, error) {
	text := func(name string) string {
		var s string
		_ = json.Unmarshal(object[name], &s) // absent, or not a text: as if absent
		return s
	}
	access, refresh := text("access_token"), text("refresh_token")
	if err := sendable(access); access == "" || err != nil {
		return issued{}, &failure{Sent: true, Status: http.StatusOK, err: errors.New("it contains no valid access token")}
	}
	if err := sendable(refresh); err != nil {
		return issued{}, &failure{Sent: true, Status: http.StatusOK, err: errors.New("its refresh token is invalid")}
	}
	scope := text("scope")
	if len(scope) > 4096 {
		scope = ""
	}
	t := issued{
		Access: vault.NewSecret(access), Refresh: vault.NewSecret(refresh), Scope: printable(scope),
		RefreshLife: seconds(object["refresh_token_expires_in"]),
	}
	t.Life, t.Unclear = life(object["expires_in"])
	return t, nil
}

// life reads how long an access token is good. A life of less than a second is unclear, and a
// short one is taken to be longer, or each use would renew the token.
func life(raw json.RawMessage) (d time.Duration, unclear bool) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, false
	}
	if d = seconds(raw); d < time.Second {
		return 0, true
	}
	return max(d, minLife), false
}

// sendable refuses what cannot be sent in a header.
func sendable(token string) error {
	if len(token) > maxToken {
		return errors.New("too long")
	}
	for _, b := range []byte(token) {
		if b <= ' ' || b > '~' {
			return errors.New("not printable")
		}
	}
	return nil
}

// seconds reads a number of seconds, which some servers send as a string.
func seconds(raw json.RawMessage) time.Duration {
	n, err := strconv.ParseFloat(strings.Trim(string(raw), "\" "), 64)
	if err != nil || !(n > 0) {
		return 0
	}
	return time.Duration(min(n, maxTime.Seconds()) * float64(time.Second))
}

func retryAfter(text string) time.Duration {
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return min(time.Duration(n)*time.Second, maxWait)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), maxWait)
	}
	return 0
}
