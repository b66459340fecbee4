package mcpserver

import (
	"testing"

	"signalbox.dev/pkg/fault"
)

// TestOrigins sees which pages may call the server.
func TestOrigins(t *testing.T) {
	t.Parallel()
	listed := []string{"https://app.example.com"}
	for _, c := range []struct {
		origins      []string
		origin, host string
		want         bool
	}{
		{nil, "", "signalbox.example.com", true},
		{nil, "http://127.0.0.1:8080", "127.0.0.1:8080", true},
		{nil, "http://localhost:8080", "localhost:8080", true},
		{nil, "http://[::1]:8080", "[::1]:8080", true},
		{nil, "http://localhost:5173", "localhost:8080", false},
		{nil, "http://rebound.example.com:8080", "rebound.example.com:8080", false},
		{nil, "http://192.0.2.1:8080", "127.0.0.1:8080", false},
		{nil, "null", "127.0.0.1:8080", false},
		{nil, "http://%", "%", false},
		{listed, "https://app.example.com", "signalbox.example.com", true},
		{listed, "https://other.example.com", "signalbox.example.com", false},
		{[]string{"*"}, "https://other.example.com", "signalbox.example.com", true},
	} {
		s := &server{Config{Origins: c.origins}}
		if got := s.allows(c.origin, c.host); got != c.want {
			t.Errorf("a page of %q at %s with %q listed: allowed is %t, want %t", c.origin, c.host, c.origins, got, c.want)
		}
	}
}

// Errors of services name the fields of tools.
func TestErrorNames(t *testing.T) {
	t.Parallel()
	s := &server{}
	for message, want := range map[string]string{
		"page_size: is 101; use 1 to 100": "limit: is 101; use 1 to 100", "operation_key: this key was used": "idempotency_key: this key was used",
		"markdown": "markdown", "no page_size: here": "no page_size: here", ": ": ": ",
	} {
		if got := s.shown(t.Context(), "tool", fault.New(fault.Invalid, "%s", message)).Error(); got != want {
			t.Errorf("the error %q is shown as %q, want %q", message, got, want)
		}
	}
}
