package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"

	"signalbox.dev/services/e2e/world"
)

// The page to which authorization servers send browsers in the cluster, and the document by
// which they know the cluster; nobody fetches either. The suite expects the latter.
const (
	signInPage     = "https://console.example/back"
	clientDocument = "https://conformance-test.local/client-metadata.json"
)

// onThisMachine lets the cluster reach MCP servers and their authorization servers on this
// machine.
func onThisMachine(service string, _ int) []string {
	switch service {
	case subject.ToolExecutor:
		return []string{"TOOL_EXECUTOR_ALLOW_PRIVATE=127.0.0.0/8,::1/128"}
	case subject.CredentialBroker:
		return []string{"CREDENTIAL_BROKER_ALLOW_PRIVATE=true", "CREDENTIAL_BROKER_OAUTH_REDIRECT=" + signInPage, "CREDENTIAL_BROKER_OAUTH_CLIENT_DOCUMENT=" + clientDocument}
	}
	return nil
}

// Scenarios of the suite's part for clients that fail, or whose checks do, and why. The official
// Go SDK's own client fails those marked with *, and no others.
var clientExceptions = map[string]string{
	"auth/client-credentials-basic":         "* an extension that is not offered: nobody signs in",
	"auth/client-credentials-jwt":           "* an extension that is not offered: nobody signs in",
	"auth/enterprise-managed-authorization": "* an extension that is not offered",
	"auth/dpop":                             "* an extension that is not offered",
	"auth/dpop-nonce":                       "* an extension that is not offered",
	"auth/wif-jwt-bearer":                   "* an extension that is not offered",
	"sep-2322-client-request-state":         "no server may ask people anything",
	"elicitation-sep1034-client-defaults":   "no server may ask people anything",
}

// TestMCPClientConformance runs the official conformance suite against the cluster as a client:
// each scenario is a server that a workspace adds, signs in to, and whose tools a model calls.
func TestMCPClientConformance(t *testing.T) {
	t.Parallel()
	needNode(t)
	d := &conformanceDriver{w: cluster.up(t), slots: make(chan struct{}, 6)}
	if err := d.w.PutScript(t.Context(), conformanceScript, `
rules:
  - when: {result: {}}
    then: [{say: 'the end'}]
  - when: {user: '^call (?P<tool>\S+) (?P<args>.*)$'}
    then: [{call: {tool: '{{.match.tool}}', args: '{{.match.args}}'}}]
`); err != nil {
		t.Fatal(err)
	}
	driver := httptest.NewServer(d)
	t.Cleanup(driver.Close)
	results := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*timeout)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "node", "conformance-mcp.mjs", "client", "--command", self, "--suite", "all", "--timeout", "90000", "--output-dir", results)
	cmd.Dir, cmd.Env = "node", append(os.Environ(), driverURL+"="+driver.URL)
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed { // it fails for the exceptions
		t.Fatal(err)
	}
	t.Logf("%s", out)
	if ctx.Err() != nil {
		t.Error("the suite did not end: it waits for servers with which sessions are open")
	}
	ran := clientFailures(t, results)
	for scenario, failures := range ran {
		switch why := clientExceptions[scenario]; {
		case len(failures) > 0 && why == "":
			t.Errorf("%s fails:\n%s", scenario, strings.Join(failures, "\n"))
		case len(failures) == 0 && why != "":
			t.Errorf("%s passes now: it is no exception", scenario)
		}
	}
	for scenario := range clientExceptions {
		if _, ok := ran[scenario]; !ok {
			t.Errorf("%s did not run", scenario)
		}
	}
	if len(ran) < 48 {
		t.Errorf("%d scenarios ran, want 48", len(ran))
	}
}

// driverURL is the environment variable that makes this program a client of the suite: it has
// the test do, at that URL, what a scenario is about.
const driverURL = "CONFORMANCE_DRIVER_URL"

// conformanceClient is what the suite starts for each scenario, with the URL of a server. It is
// this program, because the suite starts all clients at once, and as many Nodes would starve
// the servers, which are in the suite's own process.
func conformanceClient(driver, server string) error {
	given := json.RawMessage("{}")
	if c := os.Getenv("MCP_CONFORMANCE_CONTEXT"); c != "" {
		given = json.RawMessage(c)
	}
	body, err := json.Marshal(map[string]any{"url": server, "scenario": os.Getenv("MCP_CONFORMANCE_SCENARIO"), "context": given})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, driver, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(res.Body) // an error is in the status, too
		return fmt.Errorf("%s: %s", res.Status, said)
	}
	return nil
}

var timeOfRun = regexp.MustCompile(`-\d{4}-\d\d-\d\dT[^/]*$`)

// clientFailures reads what the suite has found: the checks that failed, by scenario.
func clientFailures(t *testing.T, results string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	err := filepath.WalkDir(results, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "checks.json" {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(results, filepath.Dir(path))
		if err != nil {
			return err
		}
		scenario := timeOfRun.ReplaceAllString(filepath.ToSlash(dir), "")
		all[scenario] = []string{}
		var checks []struct{ ID, Status, Description, ErrorMessage string }
		if err := json.Unmarshal(body, &checks); err != nil {
			return fmt.Errorf("%s: %w", scenario, err)
		}
		for _, c := range checks {
			if c.Status == "FAILURE" || c.Status == "WARNING" {
				all[scenario] = append(all[scenario], fmt.Sprintf("%s %s: %s %s", c.Status, c.ID, c.Description, c.ErrorMessage))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// conformanceScript is the model that calls the tool that its user names.
const conformanceScript = "calls-what-it-is-told"

// conformanceDriver does what the suite's clients are to do.
type conformanceDriver struct {
	w     *sharedWorld
	slots chan struct{} // the suite begins all scenarios at once
}

// scenario is what the suite tells its client.
type scenario struct {
	URL, Scenario string
	Context       struct {
		ClientID     string `json:"client_id"`
		ClientSecret string `json:"client_secret"`
		ToolCalls    []struct {
			Name      string
			Arguments json.RawMessage
		}
	}

	client world.Client
	server mcpServer
}

// mcpServer is an MCP server as the API shows it.
type mcpServer struct {
	ID          string
	Failure     *string
	NeedsSignIn bool `json:"needs_sign_in"`
	Tools       []struct {
		Name         string
		OriginalName string  `json:"original_name"`
		Unavailable  *string `json:"unavailable_reason"`
	}
}

// ServeHTTP implements http.Handler.
func (d *conformanceDriver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	s := &scenario{}
	err := json.NewDecoder(r.Body).Decode(s)
	if err == nil {
		err = d.play(r.Context(), s)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// play adds the server in a new workspace, and calls its tools. If the server wants a sign-in,
// at the beginning or later, it signs in and goes on.
func (d *conformanceDriver) play(ctx context.Context, s *scenario) error {
	who, err := d.w.newMember("", "owner")
	if err != nil {
		return err
	}
	s.client = d.w.Client(0, who)
	if err := s.do(ctx, http.MethodPost, "", map[string]any{"name": "suite", "url": s.URL}); err != nil {
		return err
	}
	defer d.remove(ctx, who, s.server.ID)
	const signIns = 4
	for range signIns {
		if s.server.NeedsSignIn {
			if err := s.signIn(ctx); err != nil {
				return err
			}
		}
		if s.server.NeedsSignIn {
			continue
		}
		if s.server.Failure != nil {
			return errors.New(*s.server.Failure)
		}
		if err := s.callTools(ctx); err != nil {
			return err
		}
		if err := s.do(ctx, http.MethodGet, "/"+s.server.ID, nil); err != nil || !s.server.NeedsSignIn {
			return err
		}
	}
	return errors.New("the server wants to be signed in to again and again")
}

// remove removes a server. Each executor closes its own sessions with it, for which the suite
// waits, when it is asked to; each gateway asks another one.
func (d *conformanceDriver) remove(ctx context.Context, who world.Member, server string) {
	for gateway := range d.w.Gateways {
		_ = d.w.Client(gateway, who).Call(ctx, world.Request{Method: http.MethodDelete, Path: "/api/mcp-servers/" + server}, nil) // the second does not find it
	}
}

// do calls the API of the server, and reads the server.
func (s *scenario) do(ctx context.Context, method, path string, body any) error {
	var out struct {
		Server mcpServer `json:"mcp_server"`
	}
	err := s.client.Call(ctx, world.Request{Method: method, Path: "/api/mcp-servers" + path, Body: body}, &out)
	s.server = out.Server
	return err
}

// signIn does what the person does: at the suite's authorization servers everybody is signed in
// already.
func (s *scenario) signIn(ctx context.Context) error {
	var begun struct{ Login struct{ ID, URL string } }
	body := map[string]string{}
	if s.Context.ClientID != "" {
		body["client_id"], body["client_secret"] = s.Context.ClientID, s.Context.ClientSecret
	}
	if err := s.client.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/mcp-servers/" + s.server.ID + "/sign-in", Body: body}, &begun); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, begun.Login.URL, nil)
	if err != nil {
		return err
	}
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := browser.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	back, err := url.Parse(res.Header.Get("Location"))
	if err != nil {
		return err
	}
	// A server that knows us by the client document sends browsers to a page of its own.
	if got := back.Scheme + "://" + back.Host + back.Path; got != signInPage && got != signInPage+"/document" {
		return fmt.Errorf("%s: the browser was sent to %s", res.Status, got)
	}
	answer := map[string]string{"redirect": back.Path}
	for _, name := range []string{"state", "code", "error", "iss"} {
		if back.Query().Has(name) {
			answer[name] = back.Query().Get(name)
		}
	}
	if err := s.client.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/accounts/logins/" + begun.Login.ID + "/complete", Body: answer}, nil); err != nil {
		return err
	}
	return s.do(ctx, http.MethodGet, "/"+s.server.ID, nil)
}

// callTools calls the tools that the scenario is about.
func (s *scenario) callTools(ctx context.Context) error {
	if s.Scenario == "initialize" || s.Scenario == "request-metadata" || s.Scenario == "json-schema-ref-no-deref" {
		return nil // asking for the tools is all
	}
	for _, c := range s.Context.ToolCalls {
		if err := s.call(ctx, c.Name, string(c.Arguments)); err != nil {
			return err
		}
	}
	if len(s.Context.ToolCalls) > 0 {
		return nil
	}
	for _, tool := range s.server.Tools {
		args := "{}"
		switch {
		case tool.Unavailable != nil:
			continue
		case tool.OriginalName == "add_numbers":
			args = `{"a": 5, "b": 3}`
		case s.Scenario == "http-invalid-tool-headers":
			args = `{"region": "us-west1"}`
		case tool.OriginalName == "json_schema_echo":
			schema, err := s.schema(ctx, "json_schema_2020_12_tool")
			if err != nil {
				return err
			}
			args = `{"schema": ` + schema + `}`
		}
		if err := s.call(ctx, tool.OriginalName, args); err != nil {
			return err
		}
	}
	return nil
}

// schema returns the input schema of a tool in the catalogue.
func (s *scenario) schema(ctx context.Context, tool string) (string, error) {
	var list struct {
		Tools []struct {
			Name        string
			InputSchema json.RawMessage `json:"input_schema"`
		}
	}
	err := s.client.Call(ctx, world.Request{Method: http.MethodGet, Path: "/api/tools"}, &list)
	for _, t := range list.Tools {
		if strings.HasSuffix(t.Name, "__"+tool) {
			return string(t.InputSchema), err
		}
	}
	return "", errors.Join(err, fmt.Errorf("there is no tool %s", tool))
}

// call has a model call a tool, approves that, and waits for the run's end.
func (s *scenario) call(ctx context.Context, tool, args string) error {
	name := ""
	for _, t := range s.server.Tools {
		if t.OriginalName == tool {
			name = t.Name
		}
	}
	if name == "" {
		return fmt.Errorf("there is no tool %s", tool)
	}
	var made struct{ Session struct{ ID string } }
	if err := s.client.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions", Body: map[string]any{"model": "sim/" + conformanceScript, "tools": []string{name}}}, &made); err != nil {
		return err
	}
	session := made.Session.ID
	run, err := s.client.Submit(ctx, session, world.Sending{Content: "call " + name + " " + args})
	if err != nil {
		return err
	}
	for {
		if run, err = s.client.Run(ctx, run.ID); err != nil || run.Ended() {
			return err
		}
		if run.State == "waiting" {
			if err := s.approve(ctx, session); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// approve approves all calls of a session that wait for a person. Of one whose outcome is
// unknown it says that it happened.
func (s *scenario) approve(ctx context.Context, session string) error {
	var list struct {
		Approvals []struct {
			ToolCallID string `json:"tool_call_id"`
			Question   string
		}
	}
	if err := s.client.Call(ctx, world.Request{Method: http.MethodGet, Path: "/api/approvals?session_id=" + session}, &list); err != nil {
		return err
	}
	for _, a := range list.Approvals {
		body := map[string]any{"approved": true}
		if a.Question == "outcome" {
			body = map[string]any{"outcome": "happened"}
		}
		if err := s.client.Call(ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions/" + session + "/approvals/" + a.ToolCallID, Body: body}, nil); err != nil {
			return err
		}
	}
	return nil
}
