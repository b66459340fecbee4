package gateway_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestReference checks that the API reference is served and loads nothing from other servers.
func TestReference(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	get := func(path string) answer {
		t.Helper()
		return in.send(t, in.request(t, person{}, "GET", path, "", nil))
	}
	page := get("/") // by a redirect
	if page.status != http.StatusOK || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
		t.Fatalf("/ = %d %v", page.status, page.header)
	}
	if again := get("/docs/"); again.body != page.body {
		t.Error("/docs/ is another page than /")
	}
	policy := page.header.Get("Content-Security-Policy")
	if strings.Contains(policy, "http") || !strings.Contains(policy, "script-src 'self';") || !strings.Contains(policy, "connect-src 'self';") {
		t.Errorf("the page may load from elsewhere, or not from here: %s", policy)
	}
	used := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page.body, -1)
	if len(used) < 4 {
		t.Fatalf("the page uses %v", used)
	}
	for _, u := range used {
		if u[1] == "data:," {
			continue
		}
		got := get(u[1])
		if !strings.HasPrefix(u[1], "/") || got.status != http.StatusOK || len(got.body) == 0 || strings.Contains(got.header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s = %d %v, %d bytes", u[1], got.status, got.header, len(got.body))
		}
	}
	if got := get("/docs/start.js"); !strings.Contains(got.body, "'/openapi.json'") {
		t.Errorf("the page shows %s", got.body)
	}
	if got := get("/docs/nothing.js"); got.status != http.StatusNotFound {
		t.Errorf("/docs/nothing.js = %d, want 404", got.status)
	}
}
