// Package dialect reads and writes errors in the shapes that providers use: our own errors,
// so that an unmodified SDK understands them, and a provider's, so that the broker can tell
// whose fault it was. It is pure functions over bytes.
package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"

	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/scan"
)

// Error is an error of our own. Message is for people and holds no secret.
type Error struct {
	Status  int
	Code    string // machine-readable, lower snake case
	Message string
}

// Body returns the error as the JSON body of an answer. Each shape holds the status in the
// provider's own words, by which its SDK recognises an error and decides whether to retry,
// and our code where the SDK passes it on.
func Body(d profile.Dialect, e Error) []byte {
	code, message, name := scan.Quote(e.Code), scan.Quote(e.Message), nameOf(e.Status)
	switch d {
	case profile.Anthropic:
		return fmt.Appendf(nil, `{"type":"error","error":{"type":"%s","message":"%s","code":"%[3]s","details":{"error_code":"%[3]s"}}}`, name.anthropic, message, code)
	case profile.Google:
		return fmt.Appendf(nil, `{"error":{"code":%d,"message":"%[2]s","status":"%s","errors":[{"message":"%[2]s","domain":"global","reason":"%[4]s"}]}}`, e.Status, message, name.google, code)
	case profile.Notion:
		return fmt.Appendf(nil, `{"object":"error","status":%d,"code":"%s","message":"%s","additional_data":{"code":"%s"}}`, e.Status, name.notion, message, code)
	case profile.GitHub:
		return fmt.Appendf(nil, `{"message":"%s","code":"%s","status":"%d"}`, message, code, e.Status)
	case profile.MCP:
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"%s","data":{"code":"%s"}}}`, message, code)
	}
	return fmt.Appendf(nil, `{"error":{"message":"%s","type":"%s","param":null,"code":"%s"}}`, message, name.openAI, code)
}

// Event returns the error as an event of a stream that fails half way. typed says that the
// stream's events have names.
func Event(d profile.Dialect, typed bool, e Error) []byte {
	body := Body(d, e)
	switch {
	case d == profile.Anthropic:
		return fmt.Appendf(nil, "event: error\ndata: %s\n\n", body)
	case typed:
		// OpenAI's responses have the members on top; some clients look for "error" in every
		// event.
		code, message := scan.Quote(e.Code), scan.Quote(e.Message)
		return fmt.Appendf(nil, "event: error\ndata: "+`{"type":"error","code":"%s","message":"%s","param":null,"sequence_number":0,%s`+"\n\n", code, message, Body(profile.OpenAI, e)[1:])
	}
	return fmt.Appendf(nil, "data: %s\n\n", body)
}

// names are what providers call a status.
type names struct{ anthropic, openAI, google, notion string }

var (
	statuses = map[int]names{
		http.StatusUnauthorized:          {anthropic: "authentication_error", google: "UNAUTHENTICATED", notion: "unauthorized"},
		http.StatusPaymentRequired:       {anthropic: "billing_error"},
		http.StatusForbidden:             {anthropic: "permission_error", google: "PERMISSION_DENIED", notion: "restricted_resource"},
		http.StatusNotFound:              {anthropic: "not_found_error", google: "NOT_FOUND", notion: "object_not_found"},
		http.StatusRequestTimeout:        {anthropic: "timeout_error", google: "DEADLINE_EXCEEDED"},
		http.StatusConflict:              {anthropic: "conflict_error", google: "ABORTED", notion: "conflict_error"},
		http.StatusRequestEntityTooLarge: {anthropic: "request_too_large"},
		http.StatusTooManyRequests:       {anthropic: "rate_limit_error", openAI: "rate_limit_error", google: "RESOURCE_EXHAUSTED", notion: "rate_limited"},
		http.StatusInternalServerError:   {google: "INTERNAL"},
		http.StatusNotImplemented:        {google: "UNIMPLEMENTED"},
		http.StatusServiceUnavailable:    {notion: "service_unavailable"},
		http.StatusGatewayTimeout:        {anthropic: "timeout_error", google: "DEADLINE_EXCEEDED", notion: "gateway_timeout"},
	}
	clientError = names{"invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "validation_error"}
	serverError = names{"api_error", "server_error", "UNAVAILABLE", "internal_server_error"}
)

func nameOf(status int) names {
	n, other := statuses[status], clientError
	if status >= 500 {
		other = serverError
	}
	return names{cmp.Or(n.anthropic, other.anthropic), cmp.Or(n.openAI, other.openAI), cmp.Or(n.google, other.google), cmp.Or(n.notion, other.notion)}
}

// reasons maps Google's reasons to the codes that other providers use.
var reasons = map[string]string{
	"rateLimitExceeded": "rate_limit_exceeded", "userRateLimitExceeded": "rate_limit_exceeded",
	"quotaExceeded": "quota_exceeded", "dailyLimitExceeded": "quota_exceeded",
	"authError": "invalid_authentication",
}

// reason returns the code of the first of Google's errors that has one.
func reason(list []byte) string {
	var all []struct {
		Reason text `json:"reason"`
	}
	_ = json.Unmarshal(list, &all) // what is no list has no reason
	for _, e := range all {
		if code, known := reasons[string(e.Reason)]; known {
			return code
		}
	}
	return ""
}

// Failure is what a provider's error says in members with a defined meaning. The message can
// echo the user's text.
type Failure struct {
	Type, Code, Message string
}

// Read finds the failure in a provider's error body or in the data of an error event. It is
// false if there is none that it understands.
func Read(body []byte) (Failure, bool) {
	var outer struct {
		Type     text            `json:"type"`
		Code     text            `json:"code"`
		Message  text            `json:"message"`
		Error    json.RawMessage `json:"error"`
		Response struct {
			Error json.RawMessage `json:"error"`
		} `json:"response"`
	}
	if json.Unmarshal(body, &outer) != nil {
		return Failure{}, false
	}
	for _, raw := range []json.RawMessage{outer.Error, outer.Response.Error} {
		var inner struct {
			Type    text            `json:"type"`
			Code    text            `json:"code"`
			Message text            `json:"message"`
			Errors  json.RawMessage `json:"errors"`
		}
		var plain string
		switch {
		case len(raw) == 0 || string(raw) == "null":
		case json.Unmarshal(raw, &inner) == nil:
			return Failure{string(inner.Type), cmp.Or(reason(inner.Errors), string(inner.Code)), string(inner.Message)}, true
		case json.Unmarshal(raw, &plain) == nil: // {"error":"model not found"}
			return Failure{Message: plain}, true
		}
	}
	if outer.Type == "error" || outer.Message != "" {
		f := Failure{Code: string(outer.Code), Message: string(outer.Message)}
		if outer.Type != "error" {
			f.Type = string(outer.Type)
		}
		return f, true
	}
	return Failure{}, false
}

// text is a string, or a number, which some providers send as a code; anything else is empty.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	var n json.Number
	switch {
	case json.Unmarshal(b, &s) == nil:
		*t = text(s)
	case json.Unmarshal(b, &n) == nil:
		*t = text(n.String())
	default:
		*t = ""
	}
	return nil
}
