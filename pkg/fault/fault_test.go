package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"signalbox.dev/pkg/fault"
)

// Clients and other services rely on this mapping.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind   fault.Kind
		name   string
		code   connect.Code
		status int
	}{
		{fault.Internal, "internal", connect.CodeInternal, http.StatusInternalServerError},
		{fault.Invalid, "invalid", connect.CodeInvalidArgument, http.StatusBadRequest},
		{fault.Unauthenticated, "unauthenticated", connect.CodeUnauthenticated, http.StatusUnauthorized},
		{fault.Forbidden, "forbidden", connect.CodePermissionDenied, http.StatusForbidden},
		{fault.NotFound, "not_found", connect.CodeNotFound, http.StatusNotFound},
		{fault.Conflict, "conflict", connect.CodeFailedPrecondition, http.StatusConflict},
		{fault.TooLarge, "too_large", connect.CodeOutOfRange, http.StatusRequestEntityTooLarge},
		{fault.Limited, "limited", connect.CodeResourceExhausted, http.StatusTooManyRequests},
		{fault.Unavailable, "unavailable", connect.CodeUnavailable, http.StatusServiceUnavailable},
		{fault.Deadline, "deadline", connect.CodeDeadlineExceeded, http.StatusServiceUnavailable},
		{fault.Cancelled, "cancelled", connect.CodeCanceled, 499},
	} {
		if got := tt.kind.String(); got != tt.name {
			t.Errorf("Kind(%d).String() = %q, want %q", tt.kind, got, tt.name)
		}
		if got := tt.kind.ConnectCode(); got != tt.code {
			t.Errorf("%v.ConnectCode() = %v, want %v", tt.kind, got, tt.code)
		}
		if got := tt.kind.HTTPStatus(); got != tt.status {
			t.Errorf("%v.HTTPStatus() = %d, want %d", tt.kind, got, tt.status)
		}
		if got := fault.KindOfCode(tt.code); got != tt.kind {
			t.Errorf("KindOfCode(%v) = %v, want %v", tt.code, got, tt.kind)
		}
	}
}

func TestKindOfCodeUnused(t *testing.T) {
	t.Parallel()
	for _, code := range []connect.Code{connect.CodeUnknown, connect.CodeAborted, connect.CodeDataLoss, connect.CodeUnimplemented, 0, 99} {
		if got := fault.KindOfCode(code); got != fault.Internal {
			t.Errorf("KindOfCode(%v) = %v, want internal", code, got)
		}
	}
}

func TestFrom(t *testing.T) {
	t.Parallel()
	limited := &fault.Error{Kind: fault.Limited, Code: "TOO_MANY_RUNS", Message: "wait", RetryAfter: time.Second}
	for _, tt := range []struct {
		name    string
		in      error
		kind    fault.Kind
		message string
	}{
		{"a fault", limited, fault.Limited, "wait"},
		{"a wrapped fault", fmt.Errorf("submit: %w", limited), fault.Limited, "wait"},
		{"a joined fault", errors.Join(io.EOF, limited), fault.Limited, "wait"},
		{"the outer of two", fault.Wrap(limited, fault.Conflict, "busy"), fault.Conflict, "busy"},
		{"a fault caused by a cancelled context", fault.Wrap(context.Canceled, fault.Unavailable, "away"), fault.Unavailable, "away"},
		{"a plain error", errors.New("password=hunter2"), fault.Internal, "internal error"},
		{"a cancelled context", fmt.Errorf("query: %w", context.Canceled), fault.Cancelled, "the request was cancelled"},
		{"a deadline", fmt.Errorf("query: %w", context.DeadlineExceeded), fault.Deadline, "the request took too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := fault.From(tt.in)
			if got.Kind != tt.kind || got.Message != tt.message {
				t.Errorf("From(%v) = %v %q, want %v %q", tt.in, got.Kind, got.Message, tt.kind, tt.message)
			}
			if fault.KindOf(tt.in) != tt.kind {
				t.Errorf("KindOf(%v) = %v, want %v", tt.in, fault.KindOf(tt.in), tt.kind)
			}
			if !errors.Is(got, tt.in) && !errors.Is(tt.in, got) {
				t.Errorf("From(%v) lost the cause: %v", tt.in, got)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	e := fault.Coded(fault.Invalid, "BAD_LIMIT", "limit is %d: use 1 to 100", 1000)
	if e.Kind != fault.Invalid || e.Code != "BAD_LIMIT" || e.Message != "limit is 1000: use 1 to 100" || e.Error() != e.Message {
		t.Errorf("Coded = %+v", e)
	}
	cause := errors.New("dial tcp 10.0.0.7:5432")
	e = fault.Wrap(cause, fault.Unavailable, "the database is away")
	if strings.Contains(e.Message, "10.0.0.7") {
		t.Errorf("Message %q shows the cause", e.Message)
	}
	if !strings.Contains(e.Error(), "10.0.0.7") || !errors.Is(e, cause) {
		t.Errorf("Error() = %q, want the cause for the logs", e)
	}
}
