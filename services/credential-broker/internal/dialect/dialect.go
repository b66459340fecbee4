// Package dialect knows how providers say that something went wrong: it writes
// our own errors in a provider's shape, so that an unmodified SDK understands
// them, and reads a provider's, so that the broker can tell whose fault it was.
// It is pure functions over bytes.
package dialect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"

	"signalbox.dev/services/credential-broker/internal/profile"
)

// Error is an error of our own. Message is for people and holds no secret.
type Error struct {
	Status  int
	Code    string // machine-readable, lower snake case
	Message string
}

// Body returns the error as the JSON body of an answer.
func Body(d profile.Dialect, e Error) []byte {
	switch d {
	case profile.Anthropic:
		return encode(anthropicError{Type: "error", Error: anthropicDetail{anthropicType(e.Status), e.Message, e.Code, anthropicDetails{e.Code}}})
	case profile.Google:
		return encode(googleError{googleDetail{Code: e.Status, Message: e.Message, Status: googleStatus(e.Status), Errors: []googleReason{{Message: e.Message, Domain: "global", Reason: e.Code}}}})
	case profile.Notion:
		return encode(notionError{Object: "error", Status: e.Status, Code: notionCode(e.Status), Message: e.Message, More: notionMore{e.Code}})
	case profile.GitHub:
		return encode(gitHubError{Message: e.Message, Code: e.Code, Status: strconv.Itoa(e.Status)})
	}
	return encode(openAIError{openAIDetail{Message: e.Message, Type: openAIType(e.Status), Code: e.Code}})
}

// Event returns the error as an event of a stream that fails half way. typed says
// that the stream's events carry names.
func Event(d profile.Dialect, typed bool, e Error) []byte {
	switch {
	case d == profile.Anthropic:
		return frame("error", Body(d, e))
	case typed:
		return frame("error", encode(responsesError{Type: "error", Code: e.Code, Message: e.Message, Error: openAIDetail{Message: e.Message, Type: openAIType(e.Status), Code: e.Code}}))
	}
	return frame("", Body(d, e))
}

type anthropicError struct {
	Type  string          `json:"type"`
	Error anthropicDetail `json:"error"`
}

// anthropicDetail has a code beside Anthropic's own members: the type alone does not
// tell a broken connection from a provider that failed. Details are where its SDK looks
// for one.
type anthropicDetail struct {
	Type    string           `json:"type"`
	Message string           `json:"message"`
	Code    string           `json:"code,omitempty"`
	Details anthropicDetails `json:"details,omitzero"`
}

type anthropicDetails struct {
	ErrorCode string `json:"error_code"`
}

type openAIError struct {
	Error openAIDetail `json:"error"`
}

type openAIDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// responsesError is the error event of OpenAI's responses; the member error is
// for clients that look for it in every event.
type responsesError struct {
	Type           string       `json:"type"`
	Code           string       `json:"code"`
	Message        string       `json:"message"`
	Param          *string      `json:"param"`
	SequenceNumber int          `json:"sequence_number"`
	Error          openAIDetail `json:"error"`
}

func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings and numbers always encode
	return bytes.TrimRight(b.Bytes(), "\n")
}

func frame(name string, data []byte) []byte {
	var b []byte
	if name != "" {
		b = append(b, "event: "+name+"\n"...)
	}
	b = append(b, "data: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusConflict:
		return "conflict_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

func openAIType(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

type googleError struct {
	Error googleDetail `json:"error"`
}

type googleDetail struct {
	Code    int            `json:"code"`
	Message string         `json:"message"`
	Status  string         `json:"status"`
	Errors  []googleReason `json:"errors"`
}

type googleReason struct {
	Message string `json:"message"`
	Domain  string `json:"domain"`
	Reason  string `json:"reason"`
}

// notionError has Notion's own code, by which its SDK knows an error and decides whether to
// send again: one that is not on its list is none to it. Ours stands in what the SDK hands
// on as it is.
type notionError struct {
	Object  string     `json:"object"`
	Status  int        `json:"status"`
	Code    string     `json:"code"`
	Message string     `json:"message"`
	More    notionMore `json:"additional_data"`
}

type notionMore struct {
	Code string `json:"code"`
}

func notionCode(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "unauthorized"
	case http.StatusForbidden:
		return "restricted_resource"
	case http.StatusNotFound:
		return "object_not_found"
	case http.StatusConflict:
		return "conflict_error"
	case http.StatusTooManyRequests:
		return "rate_limited"
	case http.StatusServiceUnavailable:
		return "service_unavailable"
	case http.StatusGatewayTimeout:
		return "gateway_timeout"
	}
	if status >= 500 {
		return "internal_server_error"
	}
	return "validation_error"
}

type gitHubError struct {
	Message string `json:"message"`
	Code    string `json:"code"`
	Status  string `json:"status"`
}

func googleStatus(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "UNAUTHENTICATED"
	case http.StatusForbidden:
		return "PERMISSION_DENIED"
	case http.StatusNotFound:
		return "NOT_FOUND"
	case http.StatusConflict:
		return "ABORTED"
	case http.StatusTooManyRequests:
		return "RESOURCE_EXHAUSTED"
	case http.StatusInternalServerError:
		return "INTERNAL"
	case http.StatusNotImplemented:
		return "UNIMPLEMENTED"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "DEADLINE_EXCEEDED"
	}
	if status >= 500 {
		return "UNAVAILABLE"
	}
	return "INVALID_ARGUMENT"
}

// reasons are Google's words for what the others have codes for.
var reasons = map[string]string{
	"rateLimitExceeded": "rate_limit_exceeded", "userRateLimitExceeded": "rate_limit_exceeded",
	"quotaExceeded": "quota_exceeded", "dailyLimitExceeded": "quota_exceeded",
	"authError": "invalid_authentication",
}

// reason returns the code for the first of Google's errors that has one.
func reason(list []byte) string {
	var all []struct {
		Reason text `json:"reason"`
	}
	if len(list) == 0 || json.Unmarshal(list, &all) != nil {
		return ""
	}
	for _, e := range all {
		if code, known := reasons[string(e.Reason)]; known {
			return code
		}
	}
	return ""
}

// Failure is what a provider's error says, as far as it says so in members that
// have a meaning; the message can echo the user's text.
type Failure struct {
	Type, Code, Message string
}

// Read finds the failure in a provider's error body or in the data of an error
// event. It is false where there is none that it understands.
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
			f := Failure{string(inner.Type), string(inner.Code), string(inner.Message)}
			f.Code = cmp.Or(reason(inner.Errors), f.Code)
			return f, true
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

// text is a string, or a number as providers send codes too; anything else is empty.
type text string

// UnmarshalJSON reads a string or a number and takes anything else for nothing.
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
