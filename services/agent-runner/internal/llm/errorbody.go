package llm

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// StatusError returns the error for an HTTP response that is not 200. The body may come from a
// provider of either dialect or from a proxy, and need not be JSON.
func StatusError(status int, h http.Header, body []byte) *Error {
	f := readFailure(body)
	e := f.error(status)
	if e.RetryAfter = retryAfter(h, time.Now()); e.RetryAfter >= time.Second && !slices.Contains(ours, f.code) {
		e.Message = fmt.Sprintf("%s. It asks to wait %s.", strings.TrimSuffix(e.Message, "."), e.RetryAfter.Round(time.Second))
	}
	for _, name := range []string{"Request-Id", "X-Request-Id"} {
		if id := h.Get(name); id != "" && e.RequestID == "" {
			e.RequestID = cleanDetail(id)
		}
	}
	switch h.Get("X-Should-Retry") {
	case "true":
		e.Retryable = true
	case "false":
		e.Retryable = false
	}
	return e
}

// EventError returns the error for an error event in a stream. data is the event's JSON.
func EventError(data []byte) *Error {
	f := readFailure(data)
	status, _ := strconv.Atoi(f.code) // OpenRouter puts the status into the code
	e := f.error(status)
	e.Status = 0
	return e
}

// failure is a decoded error body.
type failure struct {
	typ, code, message, request string
}

// readFailure decodes {"error":{type,code,message}} with Anthropic's request_id and
// OpenRouter's metadata, {"error":"text"}, {"message":…} and {"detail":…}. Anything else
// counts as plain text.
func readFailure(body []byte) failure {
	body = jscan.ValidUTF8(body)
	if jscan.KindOf(body) != jscan.Object || !jscan.Valid(body) {
		text := strings.TrimSpace(string(body[:min(len(body), 4*maxDetail)]))
		if strings.HasPrefix(text, "<") {
			text = "" // a proxy's HTML page
		}
		return failure{message: text}
	}
	var f failure
	f.request = jscan.MemberString(body, "request_id")
	inner := jscan.Member(body, "error")
	switch jscan.KindOf(inner) {
	case jscan.Object:
		f.fill(inner)
		f.upstream(jscan.Member(inner, "metadata"))
	case jscan.String:
		f.fill(body)
		f.message = jscan.MemberString(body, "error")
	default:
		f.fill(body)
	}
	if f.message == "" {
		f.message = jscan.MemberString(body, "detail")
	}
	return f
}

func (f *failure) fill(object []byte) {
	f.typ = jscan.MemberString(object, "type")
	f.message = jscan.MemberString(object, "message")
	code := jscan.Member(object, "code")
	switch jscan.KindOf(code) {
	case jscan.String:
		f.code = jscan.MemberString(object, "code")
	case jscan.Number:
		f.code = string(code)
	}
}

// upstream replaces OpenRouter's "Provider returned error" by the provider's message.
func (f *failure) upstream(metadata []byte) {
	raw := jscan.MemberString(metadata, "raw")
	if raw == "" {
		return
	}
	inner := readFailure([]byte(raw))
	if inner.message != "" {
		f.message = inner.message
	}
	if f.typ == "" {
		f.typ = inner.typ
	}
}

func (f *failure) error(status int) *Error {
	e := NewError(f.kind(status), nil, "%s", f.message)
	e.Status = status
	e.Type, e.Code, e.RequestID = cleanDetail(f.typ), cleanDetail(f.code), cleanDetail(f.request)
	if slices.Contains(ours, f.code) && e.Detail != "" {
		e.Message = sentence(e.Detail)
	}
	return e
}

// ours are the codes of the credential broker's own errors. Their messages are written for
// people and name the provider.
var ours = []string{"provider_timeout", "provider_unreachable", "provider_broke_off", "shutting_down", "no_credential", "account_unavailable", "accounts_exhausted", "address_not_allowed"}

func sentence(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(s[size:], ".") + "."
}

// kind classifies by code, then type, then status. If the result is only KindServer, the
// status decides. If it is only KindInvalid, phrases in the message decide; other messages
// are not searched, because they can quote the user.
func (f *failure) kind(status int) Kind {
	k, ok := kindOfName(f.code)
	if !ok {
		k, ok = kindOfName(f.typ)
	}
	if !ok {
		k = kindOfStatus(status)
		if status == 0 && f.typ == "invalid_request_error" {
			k = KindInvalid
		}
	}
	switch k {
	case KindInvalid:
		return kindOfPhrase(f.message)
	case KindServer: // OpenAI says server_error with a 503
		if by := kindOfStatus(status); by == KindOverloaded || by == KindTimeout {
			return by
		}
	}
	return k
}

func kindOfName(name string) (Kind, bool) {
	switch name {
	case "overloaded_error", "overloaded", "server_overloaded", "server_is_overloaded", "engine_overloaded", "slow_down", "service_unavailable", "service_unavailable_error":
		return KindOverloaded, true
	case "rate_limit_error", "rate_limit_exceeded", "tokens", "requests", "too_many_requests":
		return KindRateLimited, true
	case "insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded", "payment_required":
		return KindQuota, true
	case "authentication_error", "permission_error", "invalid_api_key", "permission_denied", "account_deactivated", "invalid_authentication":
		return KindAuth, true
	case "not_found_error", "model_not_found", "not_found":
		return KindNotFound, true
	case "request_too_large":
		return KindTooLarge, true
	case "context_length_exceeded", "model_context_window_exceeded":
		return KindContextLength, true
	case "content_filter", "content_policy_violation", "moderation_blocked":
		return KindContentFilter, true
	case "api_error", "server_error", "internal_error", "internal_server_error":
		return KindServer, true
	case "timeout_error", "timeout", "gateway_timeout":
		return KindTimeout, true
	}
	return kindOfOurs(name)
}

// kindOfOurs classifies the codes of the credential broker's own errors.
func kindOfOurs(code string) (Kind, bool) {
	switch code {
	case "provider_timeout":
		return KindTimeout, true
	case "provider_unreachable", "shutting_down":
		return KindNetwork, true
	case "provider_broke_off":
		return KindTruncated, true
	}
	return KindServer, false
}

func kindOfStatus(status int) Kind {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return KindAuth
	case http.StatusPaymentRequired:
		return KindQuota
	case http.StatusNotFound:
		return KindNotFound
	case http.StatusRequestEntityTooLarge:
		return KindTooLarge
	case http.StatusTooManyRequests:
		return KindRateLimited
	case http.StatusRequestTimeout, http.StatusGatewayTimeout, 524:
		return KindTimeout
	case http.StatusServiceUnavailable, 529:
		return KindOverloaded
	case http.StatusConflict, http.StatusTooEarly:
		return KindServer
	}
	if status >= 400 && status < 500 {
		return KindInvalid
	}
	return KindServer
}

func kindOfPhrase(message string) Kind {
	for _, p := range []struct {
		phrase string
		kind   Kind
	}{
		{"prompt is too long", KindContextLength},
		{"exceed context limit", KindContextLength},
		{"maximum context length", KindContextLength},
		{"exceeds the maximum number of tokens", KindContextLength},
		{"credit balance is too low", KindQuota},
	} {
		if strings.Contains(message, p.phrase) {
			return p.kind
		}
	}
	return KindInvalid
}
