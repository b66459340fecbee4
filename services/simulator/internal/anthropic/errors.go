package anthropic

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/wire"
)

// words returns the API's status, type and message for a kind of fault.
func words(k chat.FaultKind) (status int, kind, message string) {
	switch k {
	case chat.Overloaded:
		return 529, "overloaded_error", "Overloaded"
	case chat.RateLimited:
		return http.StatusTooManyRequests, "rate_limit_error", "This request would exceed the rate limit of your organization. Try again later."
	case chat.Unauthorized:
		return http.StatusUnauthorized, "authentication_error", "invalid x-api-key"
	case chat.Forbidden:
		return http.StatusForbidden, "permission_error", "Your API key does not have permission to use this resource."
	case chat.NotFound:
		return http.StatusNotFound, "not_found_error", "Not found"
	case chat.TooLarge:
		return http.StatusRequestEntityTooLarge, "request_too_large", "The request is larger than allowed."
	case chat.Invalid:
		return http.StatusBadRequest, "invalid_request_error", "The request is not valid."
	case chat.NoCredit:
		return http.StatusBadRequest, "invalid_request_error", "Your credit balance is too low to access the API. Go to Plans & Billing to upgrade or purchase credits."
	case chat.TimedOut:
		return http.StatusGatewayTimeout, "timeout_error", "The request timed out."
	default:
		return http.StatusInternalServerError, "api_error", "Internal server error"
	}
}

// Refuse writes an error response and returns its status and length.
func Refuse(w http.ResponseWriter, f *chat.Fault, requestID string) (status int, n int64) {
	status, _, _ = words(f.Kind)
	if f.Status != 0 {
		status = f.Status
	}
	body := appendError(nil, f, requestID)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Request-Id", requestID)
	h.Set("X-Should-Retry", strconv.FormatBool(status == http.StatusTooManyRequests || status >= 500))
	if f.RetryAfter != "" {
		h.Set("Retry-After", f.RetryAfter)
	}
	for k, v := range f.Headers {
		h.Set(k, v)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	written, _ := w.Write(body) // the client may have left
	return status, int64(written)
}

func appendError(b []byte, f *chat.Fault, requestID string) []byte {
	_, kind, message := words(f.Kind)
	if f.Type != "" {
		kind = f.Type
	}
	if f.Message != "" {
		message = f.Message
	}
	b = wire.AppendString(append(b, `{"type":"error","error":{"type":`...), kind)
	b = wire.AppendString(append(b, `,"message":`...), message)
	b = wire.AppendString(append(b, `},"request_id":`...), requestID)
	return append(b, '}')
}

// Limits sets the rate limit headers.
func Limits(h http.Header, now time.Time) {
	h.Set("Anthropic-Organization-Id", "00000000-0000-4000-8000-000000000001")
	for _, l := range []struct {
		name             string
		limit, remaining int
	}{{"Requests", 4000, 3999}, {"Input-Tokens", 2000000, 1999000}, {"Output-Tokens", 400000, 399000}, {"Tokens", 2400000, 2398000}} {
		prefix := "Anthropic-Ratelimit-" + l.name
		h.Set(prefix+"-Limit", strconv.Itoa(l.limit))
		h.Set(prefix+"-Remaining", strconv.Itoa(l.remaining))
		h.Set(prefix+"-Reset", now.Add(time.Second).UTC().Format(time.RFC3339))
	}
}

// model is one entry of GET /v1/models.
type model struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

const released = "2026-01-01T00:00:00Z"

// Models returns the response to GET /v1/models.
func Models(ids []string) ([]byte, error) {
	list := struct {
		Data    []model `json:"data"`
		HasMore bool    `json:"has_more"`
		FirstID *string `json:"first_id"`
		LastID  *string `json:"last_id"`
	}{Data: []model{}}
	for i := range ids {
		list.Data = append(list.Data, model{Type: "model", ID: ids[i], DisplayName: "Simulated (" + ids[i] + ")", CreatedAt: released})
		if list.FirstID == nil {
			list.FirstID = &ids[i]
		}
		list.LastID = &ids[i]
	}
	return json.Marshal(list)
}

// Model returns the response to GET /v1/models/{id}.
func Model(id string) ([]byte, error) {
	return json.Marshal(model{Type: "model", ID: id, DisplayName: "Simulated (" + id + ")", CreatedAt: released})
}
