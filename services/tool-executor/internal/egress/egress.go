// Package egress calls the APIs of services that a workspace has connected (Google, Notion,
// GitHub). Requests go to credential-broker's egress, which adds the workspace's credential;
// this process never holds one.
//
// The errors of Do follow the contract of tool.Tool: a fault.Unavailable means that the request
// may have taken effect, any other fault that it had none. So a refusal with a status of 4xx is
// final, and a status of 5xx, a broken connection or an answer that cannot be read is not.
package egress

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const (
	maxBody  = 4 << 20  // bytes of an answer
	maxError = 16 << 10 // bytes of an error body
	maxSaid  = 300      // runes of a provider's own error message

	// A request that was refused for its rate is sent again if the wait is short.
	longestWait = 3 * time.Second
	attempts    = 3
)

// simulatedHeader marks the answers of the simulator.
const simulatedHeader = "X-Simulated"

// Client calls providers through the broker. It is safe for concurrent use.
type Client struct {
	base        string
	http        *http.Client
	signer      *identity.Signer
	connections *connections
}

// New returns a client of the broker at a base URL.
func New(brokerURL string, h *http.Client, signer *identity.Signer, c credentialv1connect.ConnectionServiceClient) *Client {
	return &Client{base: strings.TrimRight(brokerURL, "/") + "/egress/", http: h, signer: signer, connections: newConnections(c)}
}

// Request is a call of a provider's API, on behalf of the context's actor.
type Request struct {
	Provider string // google, notion or github
	Method   string // GET if empty
	Path     string // as Path returns it
	Query    url.Values
	Header   map[string]string
	Body     any // sent as JSON; nil for none
}

// Reply is what is said about an answer beside its body.
type Reply struct {
	Simulated bool // the simulator answered
}

// Path joins segments to a path, each escaped. Segments come from the model: one that a server
// could take for more than a name is an Invalid fault.
func Path(segments ...string) (string, error) {
	var b strings.Builder
	for _, s := range segments {
		if s == "" || s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '/' || r == '\\' }) {
			return "", fault.New(fault.Invalid, "%q is not an id: pass one that a list has shown", clip(s))
		}
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String(), nil
}

// Do sends a request and decodes the answer's JSON into out, unless that is nil.
func (c *Client) Do(ctx context.Context, r Request, out any) (Reply, error) {
	for attempt := 1; ; attempt++ {
		reply, err := c.once(ctx, r, out)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Code != tool.RateLimited || f.RetryAfter > longestWait || attempt == attempts {
			return reply, err
		}
		select {
		case <-time.After(cmp.Or(f.RetryAfter, time.Second)):
		case <-ctx.Done():
			return reply, err
		}
	}
}

func (c *Client) once(ctx context.Context, r Request, out any) (Reply, error) {
	req, err := c.request(ctx, r)
	if err != nil {
		return Reply{}, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Reply{}, unavailable(err, r.Provider, "does not answer")
	}
	defer res.Body.Close()
	reply := Reply{Simulated: res.Header.Get(simulatedHeader) != ""}
	if res.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(res.Body, maxError)) // the status counts
		return reply, refusal(r.Provider, res, said)
	}
	if out == nil || res.StatusCode == http.StatusNoContent {
		return reply, nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil {
		return reply, unavailable(err, r.Provider, "broke off its answer")
	}
	if len(body) > maxBody {
		return reply, fault.New(cmp.Or(uncertain(req.Method), fault.TooLarge), "%s sent more than %d bytes: ask for less", title(r.Provider), maxBody)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return reply, fault.Wrap(err, cmp.Or(uncertain(req.Method), fault.Conflict), title(r.Provider)+" sent an answer that is not understood: do without it")
	}
	return reply, nil
}

// uncertain is the kind of an error after a successful answer: a request that changes something
// has taken effect. It is zero for one that reads.
func uncertain(method string) fault.Kind {
	if method == http.MethodGet {
		return 0
	}
	return fault.Unavailable
}

func (c *Client) request(ctx context.Context, r Request) (*http.Request, error) {
	actor, err := identity.Require(ctx, identity.Viewer)
	if err != nil {
		return nil, err
	}
	token, err := c.signer.Sign(actor, subject.CredentialBroker)
	if err != nil {
		return nil, fmt.Errorf("sign a request to the credential broker: %w", err)
	}
	var body io.Reader
	if r.Body != nil {
		b, err := json.Marshal(r.Body)
		if err != nil {
			return nil, fmt.Errorf("encode a request to %s: %w", r.Provider, err)
		}
		body = bytes.NewReader(b)
	}
	target := c.base + url.PathEscape(r.Provider) + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.Method, http.MethodGet), target, body)
	if err != nil {
		return nil, fmt.Errorf("make a request to %s: %w", r.Provider, err)
	}
	req.Header.Set(identity.Header, token)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	return req, nil
}

// caused is fault.Coded with the code of a cause, which it carries. The error type of the result is
// the code in lower case.
func caused(k fault.Kind, cause *tool.Cause, format string, args ...any) *fault.Error {
	f := fault.Coded(k, cause.Code, format, args...)
	f.Err = cause
	return f
}

// refusal returns the fault for an answer that is no success.
func refusal(provider string, res *http.Response, body []byte) error {
	name, e := title(provider), readError(body)
	reason := clip(e.message)
	said := ""
	if reason != "" {
		said = ": " + reason
	}
	wait := retryAfter(res.Header.Get("Retry-After"))
	switch {
	case e.is("no_credential"):
		return caused(fault.Conflict, &tool.Cause{Code: tool.NotConnected, Service: provider}, "%s is not connected: a person connects it at %s", name, ConnectURL)
	case e.is("accounts_exhausted", "busy", "shutting_down", "rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "dailyLimitExceeded"),
		res.StatusCode == http.StatusTooManyRequests, res.Header.Get("X-RateLimit-Remaining") == "0":
		cause := &tool.Cause{Code: tool.RateLimited, Service: provider, Reason: reason}
		f := caused(fault.Conflict, cause, "%s takes no more requests for now%s", name, said)
		if f.RetryAfter = wait; wait > 0 {
			again := fmt.Sprintf("try again in %s", wait)
			f.Message += "; " + again
			cause.Reason = strings.TrimPrefix(reason+"; "+again, "; ")
		}
		return f
	case res.StatusCode == http.StatusUnauthorized, e.is("account_unavailable") && res.StatusCode == http.StatusConflict:
		return caused(fault.Forbidden, &tool.Cause{Code: tool.ConnectionRefused, Service: provider, Reason: reason},
			"%s no longer accepts the connection%s; a person connects it again at %s", name, said, ConnectURL)
	case res.StatusCode == http.StatusForbidden:
		return fault.New(fault.Forbidden, "%s does not allow this%s", name, said)
	case res.StatusCode == http.StatusNotFound:
		return fault.New(fault.NotFound, "%s has nothing with that id, or does not share it%s", name, said)
	case res.StatusCode == http.StatusGone:
		return fault.Coded(fault.NotFound, CodeGone, "%s has deleted it already", name)
	case res.StatusCode == http.StatusConflict:
		return fault.Coded(fault.Conflict, CodeConflict, "%s says that this conflicts with what is there%s", name, said)
	case res.StatusCode == http.StatusPreconditionFailed:
		return fault.Coded(fault.Conflict, CodeChanged, "it was changed in the meantime: read it again, then decide")
	case res.StatusCode/100 == 4:
		return fault.New(fault.Invalid, "%s refused the request%s", name, said)
	}
	f := unavailable(nil, provider, fmt.Sprintf("failed with status %d%s", res.StatusCode, said))
	f.RetryAfter = wait
	return f
}

// Codes of faults that callers act on.
const (
	CodeGone     = "GONE"     // it is deleted
	CodeConflict = "CONFLICT" // the id is taken
	CodeChanged  = "CHANGED"  // a condition of the request does not hold
)

// HasCode reports whether err is a fault with a code.
func HasCode(err error, code string) bool {
	f, ok := errors.AsType[*fault.Error](err)
	return ok && f.Code == code
}

func unavailable(err error, provider, what string) *fault.Error {
	return fault.Wrap(err, fault.Unavailable, title(provider)+" "+what)
}

// retryAfter reads a Retry-After header; dates are not used by these providers.
func retryAfter(text string) time.Duration {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, 24*60*60)) * time.Second
}

// providerError is what an error body says: of Google, Notion or GitHub, or of the broker in
// their formats.
type providerError struct {
	message string
	codes   []string
}

func (e providerError) is(codes ...string) bool {
	return slices.ContainsFunc(e.codes, func(have string) bool { return slices.Contains(codes, have) })
}

func readError(body []byte) (e providerError) {
	var outer struct {
		Message    string          `json:"message"`
		Code       json.RawMessage `json:"code"`
		Additional struct {
			Code string `json:"code"`
		} `json:"additional_data"`
		Error json.RawMessage `json:"error"`
	}
	var google struct {
		Message string `json:"message"`
		Errors  []struct {
			Reason string `json:"reason"`
		} `json:"errors"`
	}
	if json.Unmarshal(body, &outer) != nil {
		return e
	}
	_ = json.Unmarshal(outer.Error, &google) // Google's alone
	var code string
	_ = json.Unmarshal(outer.Code, &code) // a number is not looked at
	e.message, e.codes = cmp.Or(google.Message, outer.Message), []string{code, outer.Additional.Code}
	for _, x := range google.Errors {
		e.codes = append(e.codes, x.Reason)
	}
	return e
}

// clip makes a provider's own text one short line.
func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > maxSaid {
		return string(r[:maxSaid]) + "…"
	}
	return s
}
