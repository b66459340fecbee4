package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// apiKey returns a new API key of the person's workspace.
func (p *person) apiKey() string {
	p.t.Helper()
	var made struct{ Secret string }
	p.call(http.MethodPost, "/api/keys", map[string]any{"name": "mcp"}, &made)
	return made.Secret
}

// TestMCPClients uses the gateway as an MCP server with each major version of the official npm
// SDK and an API key alone.
func TestMCPClients(t *testing.T) {
	t.Parallel()
	needNode(t)
	w := standalone.up(t)
	for _, version := range []string{"1", "2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := w.person(t)
			var got struct {
				Tools  []string
				Called struct{ StructuredContent struct{ ID string } }
				Listed []struct{ URI, Name string }
				Read   struct{ Text string }
			}
			out := node(t, nil, "call-mcp.mjs", version, p.url+"/mcp", p.apiKey())
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if !slices.Contains(got.Tools, "start_run") || len(got.Listed) != 1 || got.Listed[0].Name != "Minutes" ||
				got.Listed[0].URI != "signalbox://documents/"+got.Called.StructuredContent.ID || got.Read.Text != "Tea at four.\n" {
				t.Errorf("%s: want the tools and the document", out)
			}
		})
	}
}

// The scenarios of the conformance suite that a server with tools and resources can pass. The
// others call tools, resources and prompts of the suite's example server, or need optional
// features: completion, subscriptions, elicitation, tasks, skills.
var conformanceScenarios = []string{
	"server-initialize", "server-session-lifecycle", "server-stateless", "ping", "tools-list", "resources-list",
	"sep-2164-resource-not-found", "dns-rebinding-protection", "caching", "http-header-validation",
}

// The checks of these scenarios that fail, and why.
var conformanceExceptions = map[string]string{
	"sep-2575-server-rejects-undeclared-capability":          "calls a tool of the example server",
	"sep-2575-missing-capability-http-400":                   "calls a tool of the example server",
	"sep-2575-http-server-no-independent-requests-on-stream": "calls a tool of the example server",
	"sep-2575-server-no-log-without-loglevel":                "calls a tool of the example server",
	"sep-2575-server-declares-prompts-in-discover":           "the SDK answers prompts/list with an empty list instead of an error",
}

// TestMCPConformance runs the official conformance suite against the gateway, through a proxy
// that adds an API key.
func TestMCPConformance(t *testing.T) {
	t.Parallel()
	needNode(t)
	p := standalone.up(t).person(t)
	p.call(http.MethodPost, "/api/documents", map[string]any{"name": "Empty"}, nil) // which the suite reads
	gateway, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	key := p.apiKey()
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(gateway)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}})
	t.Cleanup(proxy.Close)

	results := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "conformance-mcp.mjs", "server", "--url", proxy.URL+"/mcp", "--suite", "all", "--output-dir", results)
	cmd.Dir = "node"
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed { // it fails for what does not apply
		t.Fatal(err)
	}
	t.Logf("%s", out)
	failures := map[string]bool{}
	for _, scenario := range conformanceScenarios {
		found, err := filepath.Glob(filepath.Join(results, "server-"+scenario+"-2*", "checks.json"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s did not run: %v", scenario, err)
		}
		body, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		var checks []struct{ ID, Status, ErrorMessage string }
		if err := json.Unmarshal(body, &checks); err != nil {
			t.Fatal(err)
		}
		if len(checks) == 0 {
			t.Errorf("%s checked nothing", scenario)
		}
		for _, c := range checks {
			if c.Status != "FAILURE" {
				continue
			}
			failures[c.ID] = true
			if conformanceExceptions[c.ID] == "" {
				t.Errorf("%s: %s: %s", scenario, c.ID, c.ErrorMessage)
			}
		}
	}
	for id := range conformanceExceptions {
		if !failures[id] {
			t.Errorf("%s passes now: it is no exception", id)
		}
	}
}
