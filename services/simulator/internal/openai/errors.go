package openai

import (
	"encoding/json"
	"net/http"
	"strconv"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/wire"
)

// word is the API's form of a fault.
type word struct {
	status              int
	kind, code, message string
}

func words(k chat.FaultKind) word {
	const request = "invalid_request_error"
	switch k {
	case chat.Overloaded:
		return word{http.StatusServiceUnavailable, "server_error", "", "The engine is currently overloaded, please try again later."}
	case chat.RateLimited:
		return word{http.StatusTooManyRequests, "requests", "rate_limit_exceeded", "Rate limit reached for this model in your organization. Try again later."}
	case chat.Unauthorized:
		return word{http.StatusUnauthorized, request, "invalid_api_key", "Incorrect API key provided."}
	case chat.Forbidden:
		return word{http.StatusForbidden, request, "insufficient_permissions", "You have insufficient permissions for this operation."}
	case chat.NotFound:
		return word{http.StatusNotFound, request, "", "Not found."}
	case chat.TooLarge:
		return word{http.StatusRequestEntityTooLarge, request, "", "The request body is larger than allowed."}
	case chat.Invalid:
		return word{http.StatusBadRequest, request, "", "The request is not valid."}
	case chat.NoCredit:
		return word{http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota", "You exceeded your current quota, please check your plan and billing details."}
	case chat.TimedOut:
		return word{http.StatusGatewayTimeout, "server_error", "timeout", "The request timed out."}
	default:
		return word{http.StatusInternalServerError, "server_error", "", "The server had an error while processing your request."}
	}
}

// settled returns the dialect's form of a fault, overridden by the fault's own fields.
func settled(f *chat.Fault) word {
	w := words(f.Kind)
	if f.Status != 0 {
		w.status = f.Status
	}
	if f.Type != "" {
		w.kind = f.Type
	}
	if f.Code != "" {
		w.code = f.Code
	}
	if f.Message != "" {
		w.message = f.Message
	}
	return w
}

// Refuse writes an error response and returns its status and length.
func Refuse(w http.ResponseWriter, f *chat.Fault, dialect chat.Dialect, requestID string) (status int, n int64) {
	s := settled(f)
	var body []byte
	h := w.Header()
	if dialect == chat.OpenRouter {
		s.status = routerStatus(f)
		body = append(appendRouterError([]byte(`{"error":`), f), '}')
	} else {
		body = indentedError(f)
		h.Set("X-Request-Id", requestID)
	}
	h.Set("Content-Type", "application/json")
	if f.RetryAfter != "" {
		h.Set("Retry-After", f.RetryAfter)
	}
	for k, v := range f.Headers {
		h.Set(k, v)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(s.status)
	written, _ := w.Write(body) // the client may have left
	return s.status, int64(written)
}

func appendError(b []byte, f *chat.Fault) []byte {
	s := settled(f)
	b = wire.AppendString(append(b, `{"error":{"message":`...), s.message)
	b = wire.AppendString(append(b, `,"type":`...), s.kind)
	b = appendOrNull(append(b, `,"param":`...), f.Param)
	b = appendOrNull(append(b, `,"code":`...), s.code)
	return append(b, `}}`...)
}

func indentedError(f *chat.Fault) []byte {
	s := settled(f)
	const indent = "\n    "
	b := append([]byte("{"), indent+`"error": {`+indent+`    "message": `...)
	b = wire.AppendString(b, s.message)
	b = wire.AppendString(append(b, ","+indent+`    "type": `...), s.kind)
	b = appendOrNull(append(b, ","+indent+`    "param": `...), f.Param)
	b = appendOrNull(append(b, ","+indent+`    "code": `...), s.code)
	return append(b, indent+"}\n}\n"...)
}

func appendRouterError(b []byte, f *chat.Fault) []byte {
	s := settled(f)
	b = wire.AppendString(append(b, `{"message":`...), s.message)
	b = append(b, `,"code":`...)
	if f.Code != "" {
		b = wire.AppendString(b, f.Code)
	} else {
		b = strconv.AppendInt(b, int64(routerStatus(f)), 10)
	}
	return append(b, '}')
}

// routerStatus returns OpenRouter's status, which differs for missing credit.
func routerStatus(f *chat.Fault) int {
	if f.Kind == chat.NoCredit && f.Status == 0 {
		return http.StatusPaymentRequired
	}
	return settled(f).status
}

func appendOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return wire.AppendString(b, s)
}

// Limits sets the headers with rate limits and about the request's processing.
func Limits(h http.Header) {
	h.Set("Openai-Version", "2020-10-01")
	h.Set("Openai-Organization", "simulated")
	h.Set("Openai-Processing-Ms", "12")
	h.Set("X-Ratelimit-Limit-Requests", "10000")
	h.Set("X-Ratelimit-Limit-Tokens", "2000000")
	h.Set("X-Ratelimit-Remaining-Requests", "9999")
	h.Set("X-Ratelimit-Remaining-Tokens", "1999000")
	h.Set("X-Ratelimit-Reset-Requests", "6ms")
	h.Set("X-Ratelimit-Reset-Tokens", "30ms")
}

const released = 1767225600 // 2026-01-01

type model struct {
	ID      string `json:"id"`
	Object  string `json:"object,omitempty"`
	Name    string `json:"name,omitempty"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by,omitempty"`
	Context int    `json:"context_length,omitempty"`
	Pricing *price `json:"pricing,omitempty"`
}

type price struct {
	Prompt     string `json:"prompt"`
	Completion string `json:"completion"`
}

func describe(id string, dialect chat.Dialect) model {
	if dialect == chat.OpenRouter {
		return model{ID: id, Name: "Simulated (" + id + ")", Created: released, Context: 200000, Pricing: &price{"0", "0"}}
	}
	return model{ID: id, Object: "model", Created: released, OwnedBy: "signalbox"}
}

// Models returns the response to GET /v1/models.
func Models(ids []string, dialect chat.Dialect) ([]byte, error) {
	list := struct {
		Object string  `json:"object,omitempty"`
		Data   []model `json:"data"`
	}{Data: []model{}}
	if dialect == chat.OpenAI {
		list.Object = "list"
	}
	for _, id := range ids {
		list.Data = append(list.Data, describe(id, dialect))
	}
	return json.Marshal(list)
}

// Model returns the response to GET /v1/models/{id}.
func Model(id string, dialect chat.Dialect) ([]byte, error) {
	return json.Marshal(describe(id, dialect))
}
