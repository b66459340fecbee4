package tools_test

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/tool-executor/internal/tools"
)

// The messages of the rules.
const (
	controls  = "Path must not contain control characters."
	percents  = "Path must not contain percent signs (%)."
	dots      = "Path must not contain '..' or backslashes."
	prefixed  = "Path must not start with 'ideas/': it is relative to that directory."
	slashed   = "Path must not end with '/': name a file."
	doubled   = "Path must not contain '//'."
	malformed = "Path must begin with a letter or digit and contain at most 200 letters, digits, '/', '_', '.' and '-'."
)

// TestResearchPath has a case for each rule, and for each pair of rules that the order decides.
func TestResearchPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want, err string }{
		{"README.md", "ideas/README.md", ""},
		{"  pricing/tiers.md ", "ideas/pricing/tiers.md", ""}, // 1
		{"   ", "", malformed},
		{"a\nb", "", controls}, // 2
		{"a\n", "", controls},
		{"a\x00%", "", controls},
		{"a\x1f..", "", controls},
		{"a%2e", "", percents}, // 3
		{"..%2f", "", percents},
		{"../secrets.txt", "", dots}, // 4
		{"a..b", "", dots},
		{`a\b`, "", dots},
		{"ideas/../x", "", dots},
		{"ideas/README.md", "", prefixed}, // 5
		{"ideas/", "", prefixed},
		{"ideas//a", "", prefixed},
		{"pricing/", "", slashed}, // 6
		{"pricing//", "", slashed},
		{"/", "", slashed},
		{"pricing//tiers.md", "", doubled}, // 7
		{"//etc/passwd", "", doubled},
		{"/etc/passwd", "", malformed}, // 8
		{".hidden", "", malformed},
		{"-rf", "", malformed},
		{"a b", "", malformed},
		{"ä.md", "", malformed},
		{"a\x7f", "", malformed},
		{strings.Repeat("a", 201), "", malformed},
		{strings.Repeat("a", 200), "ideas/" + strings.Repeat("a", 200), ""}, // 9
		{"ideas", "ideas/ideas", ""},
		{"a/./b", "ideas/a/./b", ""}, // refused before the request
	} {
		got, said := tools.ResearchPath(tt.in)
		if got != tt.want || said != tt.err {
			t.Errorf("ResearchPath(%q) = %q, %q, want %q, %q", tt.in, got, said, tt.want, tt.err)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{"README.md", "../x", "a/../../b", "/etc/passwd", "ideas/x", "a//b", "a%2e%2e/b", `..\x`, "a/./b", "a\x00b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, violation := tools.ResearchPath(in)
		if violation != "" {
			return
		}
		if clean := path.Clean(got); !strings.HasPrefix(clean, "ideas/") || strings.ContainsAny(got, "%\\\x00\n") || strings.Contains(got, "..") {
			t.Errorf("ResearchPath(%q) = %q, which leads to %q", in, got, clean)
		}
	})
}

func TestReadResearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	read := func(w *world, p string) map[string]any {
		t.Helper()
		b, _ := json.Marshal(map[string]any{"path": p})
		r, err := w.call(t.Context(), "read_research", string(b))
		if err != nil {
			t.Fatalf("read_research(%q) = %v", p, err)
		}
		var out map[string]any
		if err := json.Unmarshal([]byte(r.JSON()), &out); err != nil || r.IsError() != (out["ok"] == false) || r.IsError() && r.ErrorType() != out["error_type"] {
			t.Fatalf("read_research(%q) = %s, error %v %q", p, r.JSON(), r.IsError(), r.ErrorType())
		}
		return out
	}
	failed := func(errorType, message string) map[string]any {
		return map[string]any{"ok": false, "error_type": errorType, "message": message}
	}
	const tiers = "# Tiers\n\nThree tiers: free, team, company. The free one ends at five members.\n"
	for p, want := range map[string]map[string]any{
		"pricing/tiers.md": {"ok": true, "content": tiers, "bytes": float64(len(tiers))},
		"empty.md":         {"ok": true, "content": "", "bytes": 0.0},
		"limit.md":         {"ok": true, "content": strings.Repeat("x", 51_200), "bytes": 51_200.0},
		"over.md":          failed("file_too_large", "File exceeds 50KB limit. Try a more specific path or request a summary."),
		"huge.bin":         failed("file_too_large", "File exceeds 50KB limit. Try a more specific path or request a summary."),
		"pricing":          failed("api_error", "Path is not a file: pricing"),
		"link.md":          failed("api_error", "Path is not a file: link.md"),
		"vendor":           failed("api_error", "Path is not a file: vendor"),
		"nothing.md":       failed("file_not_found", "File not found: nothing.md"),
		"a/./b":            failed("file_not_found", "File not found: a/./b"),
		"../secrets.txt":   failed("path_validation", dots),
		"/etc/passwd":      failed("path_validation", malformed),
	} {
		if diff := cmp.Diff(want, read(w, p)); diff != "" {
			t.Errorf("read_research(%q) (-want +got):\n%s", p, diff)
		}
	}
	w.apis.Fail(apis.Fault{Provider: "github", Status: 403, Reason: "rateLimitExceeded", RetryAfter: "30"}, apis.Fault{Provider: "github", Status: 502})
	if got := read(w, "README.md"); got["message"] != "Failed to read file: GitHub takes no more requests for now: API rate limit exceeded for user ID 1.; try again in 30s" || got["code"] != "RATE_LIMITED" || got["service"] != "github" {
		t.Errorf("over the rate limit: %v", got)
	}
	if got := read(w, "README.md"); got["error_type"] != "api_error" || !strings.HasPrefix(got["message"].(string), "Failed to read file: GitHub failed with status 502") {
		t.Errorf("GitHub fails: %v", got)
	}
	w.broker.Set("github", credentialv1.ConnectionState_CONNECTION_STATE_NOT_CONNECTED)
	if got := read(w, "README.md"); got["error_type"] != "api_error" || !strings.Contains(got["message"].(string), "GitHub is not connected") {
		t.Errorf("GitHub is not connected: %v", got)
	}
}
