package mcpserver

import "testing"

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
