package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"signalbox.dev/pkg/fault"
)

// Error is the public form of errors.
type Error struct {
	Message string `json:"error" doc:"What was wrong and what to do, for people." example:"title: want a string, got number"`
	Code    string `json:"code,omitempty" doc:"For programs; absent if the status is specific enough." example:"RATE_LIMITED"`

	status     int
	header     http.Header
	likeOpenAI bool // has the form that OpenAI's clients know
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// GetStatus implements huma.StatusError.
func (e *Error) GetStatus() int { return e.status }

// GetHeaders implements huma.HeadersError.
func (e *Error) GetHeaders() http.Header { return e.header }

func (e *Error) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), e.header)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(e) // fails if the client has left
}

// WriteError answers with the public form of err.
func WriteError(w http.ResponseWriter, err error) { publicError(err).write(w) }

// failure returns the public form of err and logs what it hides.
func (a *API) failure(ctx context.Context, operation string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch fault.KindOf(err) {
	case fault.Internal:
		a.cfg.Log.ErrorContext(ctx, "request failed", "operation", operation, "error", err)
	case fault.Unavailable, fault.Deadline:
		a.cfg.Log.WarnContext(ctx, "request refused for now", "operation", operation, "error", err)
		if a.cfg.DiskFull != nil && a.cfg.DiskFull() {
			return publicError(&fault.Error{
				Kind: fault.Unavailable, Code: "DISK_FULL", RetryAfter: 5 * time.Second,
				Message: "the disk of this server is full: make room on the disk that has the data folder; the server then continues by itself",
			})
		}
	}
	return publicError(err)
}

func publicError(err error) *Error {
	f := fault.From(err)
	e := &Error{status: f.Kind.HTTPStatus(), Message: f.Message, Code: f.Code}
	switch f.Kind {
	case fault.Invalid:
		e.Message = publicName(f.Message)
	case fault.Internal:
		e.Message, e.Code = "internal error", ""
	case fault.Conflict:
		if f.Code == fault.CodePrecondition {
			e.status = http.StatusPreconditionFailed
		}
	case fault.Unauthenticated:
		e.header = http.Header{"Www-Authenticate": {"Bearer"}}
	case fault.Limited, fault.Unavailable:
		wait := max(f.RetryAfter, time.Second)
		e.header = http.Header{"Retry-After": {strconv.Itoa(int(math.Ceil(wait.Seconds())))}}
	}
	return e
}

// publicNames are the API's names of services' fields.
var publicNames = map[string]string{
	"page_token": "cursor", "page_size": "limit", "query": "q", "operation_key": "Idempotency-Key", "markdown": "content", "content_json": "content",
}

// publicName replaces the field name at the beginning of a service's message.
func publicName(message string) string {
	i := strings.IndexAny(message, ": ")
	if i < 0 {
		return message
	}
	if name, ok := publicNames[message[:i]]; ok {
		return strings.ReplaceAll(name+message[i:], "next_page_token", "next_cursor")
	}
	return message
}

func invalid(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }

// decodeJSON decodes a body. Its errors are one sentence for the client. Unknown fields are
// ignored unless checkBody refuses them, and null is the same as absent.
func decodeJSON(data []byte, v any) error {
	if !utf8.Valid(data) {
		return invalidUTF8(data)
	}
	err := json.Unmarshal(data, v)
	if err == nil {
		return checkBody(data, reflect.TypeOf(v))
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("the body is not valid JSON: %w (at byte %d)", e, e.Offset)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if e.Field == "" {
			return fmt.Errorf("the body must be a JSON object, not %s", e.Value)
		}
		return fmt.Errorf("%s: want %s, got %s", e.Field, describeType(e.Type), e.Value)
	}
	return errors.New("the body is not valid JSON")
}

// invalidUTF8 returns the error for a body that is not UTF-8, with the field if possible.
func invalidUTF8(data []byte) error {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) == nil {
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if !utf8.Valid(fields[name]) {
				return fmt.Errorf("%s: not valid UTF-8", clip(name))
			}
		}
	}
	return errors.New("the body is not valid UTF-8")
}

func describeType(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "another type"
}

// transformError converts huma's errors about parameters and bodies to ours.
func transformError(ctx huma.Context, status string, v any) (any, error) {
	m, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	e := transformed(ctx, status, m)
	who, _ := ctx.Operation().Metadata[accessKey].(access)
	e.likeOpenAI = who.likeOpenAI
	e.status, _ = strconv.Atoi(status) // for the type of the error
	return e, nil
}

func transformed(ctx huma.Context, status string, m *huma.ErrorModel) *Error {
	if status == "413" && ctx.Operation().OperationID == "chat" {
		return chatTooLarge()
	}
	if status == "413" {
		return &Error{Message: fmt.Sprintf("the body is too large: the limit is %d bytes", ctx.Operation().MaxBodyBytes-1), Code: "TOO_LARGE"}
	}
	if strings.HasPrefix(status, "5") {
		return &Error{Message: "internal error"}
	}
	var all []string
	for _, d := range m.Errors {
		_, field, ok := strings.Cut(d.Location, ".")
		if !ok || field == "" {
			all = append(all, d.Message)
			continue
		}
		all = append(all, field+": "+strings.TrimPrefix(d.Message, "invalid value: "))
	}
	if len(all) == 0 {
		all = append(all, m.Detail)
	}
	return &Error{Message: strings.Join(all, "; ")}
}
