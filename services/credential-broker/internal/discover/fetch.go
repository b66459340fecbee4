package discover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/services/credential-broker/internal/target"
)

const (
	maxDocument  = 256 << 10
	maxRedirects = 3
)

// get requests a document and decodes it. It reports false if the server says that there is
// none, or sends something else than JSON, as some servers do for every path.
func (f *finder) get(ctx context.Context, what, place string, into any) (found bool, err error) {
	for range maxRedirects + 1 {
		u, err := f.parse(what, place)
		if err != nil {
			return false, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return false, refuse("%s is not at a URL", what)
		}
		status, body, err := f.do(req, what)
		var to redirect
		switch {
		case errors.As(err, &to):
			next, err := u.Parse(string(to))
			if err != nil || next.Scheme != u.Scheme || next.Host != u.Host {
				return false, refuse("%s, at %s, redirects to another server", what, clip(place))
			}
			place = next.String()
			continue
		case err != nil:
			return false, err
		case status >= http.StatusInternalServerError, status == http.StatusTooManyRequests:
			return false, unavailable("%s answers %d", what, status)
		case status != http.StatusOK, body == nil:
			return false, nil
		case json.Unmarshal(body, into) != nil:
			return false, refuse("%s, at %s, is not valid", what, clip(place))
		}
		return true, nil
	}
	return false, refuse("%s redirects more than %d times", what, maxRedirects)
}

// redirect is where a server redirects to.
type redirect string

// Error implements error.
func (r redirect) Error() string { return "redirected" }

// do sends a request and reads the answer. The body is nil if it is not JSON.
func (f *finder) do(req *http.Request, what string) (status int, body []byte, err error) {
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", f.cfg.UserAgent)
	res, err := f.cfg.HTTP.Do(req)
	switch {
	case errors.Is(err, netguard.ErrRefused), errors.Is(err, target.ErrAddress):
		return 0, nil, refuse("%s, at %s, is at an address that is not public, which the operator has not allowed (CREDENTIAL_BROKER_ALLOW_PRIVATE)", what, clip(req.URL.Host))
	case req.Context().Err() != nil && err != nil:
		return 0, nil, unavailable("%s, at %s, does not answer in time", what, clip(req.URL.Host))
	case err != nil:
		return 0, nil, unavailable("%s, at %s, cannot be reached", what, clip(req.URL.Host))
	}
	defer res.Body.Close()
	if res.StatusCode/100 == 3 {
		if to := res.Header.Get("Location"); to != "" && req.Method == http.MethodGet {
			return 0, nil, redirect(to)
		}
		return 0, nil, refuse("%s, at %s, redirects", what, clip(req.URL.Host))
	}
	body, err = io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	switch {
	case err != nil:
		return 0, nil, unavailable("%s, at %s, broke off or did not answer in time", what, clip(req.URL.Host))
	case len(body) > maxDocument:
		return 0, nil, refuse("%s, at %s, is larger than %d bytes", what, clip(req.URL.Host), maxDocument)
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "application/json" {
		body = nil
	}
	return res.StatusCode, body, nil
}

func unavailable(format string, args ...any) error {
	return fault.New(fault.Unavailable, "cannot sign in to the MCP server now: "+format+"; try again", args...)
}

var codeForm = regexp.MustCompile(`^[a-z_]{1,64}$`)

// errorCode returns the code of an OAuth error for a message; empty if there is none.
func errorCode(body []byte) string {
	var e struct {
		Code string `json:"error"`
	}
	if json.Unmarshal(body, &e) != nil || !codeForm.MatchString(e.Code) {
		return ""
	}
	return fmt.Sprintf(" (%s)", e.Code)
}
