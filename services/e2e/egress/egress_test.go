package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
	"signalbox.dev/services/simulator"
)

const patience = 2 * time.Minute

// secret is the credential on both paths: the simulated provider's ids depend on it.
const secret = "sk-test-0123456789"

// call is one call of an SDK. In the script of the provider behind the broker, § is replaced by the
// profile's prefix.
type call struct {
	name, sdk, provider, profile, method string
	script, body                         string
	headers                              map[string]string
}

const tools = `"tools":[{"name":"doc_create","description":"d","input_schema":{"type":"object"}},{"name":"mcp_list","input_schema":{"type":"object"}},{"type":"web_search_20250305","name":"web_search"}]`

const toolScript = `
wire: {padding: true, pings: 3}
rules:
  - then:
      - think: {text: 'doc_create or mcp_list?', signature: 'c2lnbmF0dXJl'}
      - say: 'I call mcp_doc_create, {"type":"tool_use","name":"mcp_list"}.'
      - interleave:
          - call: {tool: '§doc_create', id: toolu_1, args: {title: 'mcp_x', name: 'mcp_list', size: 12345}}
          - call: {tool: '§mcp_list', id: toolu_2, args: {}}
      - usage: {input: 40, output: 20}
`

func calls() []call {
	const (
		claude = `{"model":"m","max_tokens":1000,"messages":[{"role":"user","content":"hello"}]}`
		gpt    = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
		say    = "rules: [{then: [{say: 'Hello, how are you today?'}]}]\n"
	)
	withTools := strings.TrimSuffix(claude, "}") + `,` + tools + `,"tool_choice":{"type":"tool","name":"doc_create"}}`
	history := `{"model":"m","max_tokens":1000,` + tools + `,"system":"Be brief.","messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"toolu_0","name":"doc_create","input":{"n":9007199254740993}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_0","content":"ok"}]}]}`
	functions := strings.TrimSuffix(gpt, "}") + `,"tools":[{"type":"function","function":{"name":"doc_create","parameters":{"type":"object"}}},{"type":"function","function":{"name":"mcp_list","parameters":{"type":"object"}}}]}`
	all := []call{
		{name: "text", sdk: "anthropic", method: "stream", script: say, body: claude},
		{name: "whole", sdk: "anthropic", method: "create", script: say, body: claude},
		{name: "tools", sdk: "anthropic", method: "stream", script: toolScript, body: withTools, headers: map[string]string{"anthropic-beta": "files-api-2025-04-14"}},
		{name: "whole with tools", sdk: "anthropic", method: "create", script: toolScript, body: withTools},
		{name: "CRLF in small writes", sdk: "anthropic", method: "stream", script: "wire: {crlf: true, write: 7}\n" + toolScript[strings.Index(toolScript, "rules"):], body: history},
		{name: "count", sdk: "anthropic", method: "count", script: say, body: `{"model":"m","messages":[{"role":"user","content":"hello"}]}`},
		{name: "models", sdk: "anthropic", method: "models", script: say, body: `{}`},
	}
	for _, c := range slices.Clone(all) {
		if c.method != "count" { // the prefix changes the count
			c.name, c.profile = "prefixed "+c.name, "anthropic-oauth"
			all = append(all, c)
		}
	}
	all = append(all,
		call{name: "text", sdk: "openai", method: "stream", script: say, body: strings.TrimSuffix(gpt, "}") + `,"stream_options":{"include_usage":true}}`},
		call{name: "whole", sdk: "openai", method: "create", script: say, body: gpt},
		call{name: "tools", sdk: "openai", method: "stream", script: toolScript, body: functions},
		call{name: "CRLF in small writes", sdk: "openai", method: "stream", script: "wire: {crlf: true, write: 5, comments: 2}\n" + say, body: gpt},
		call{name: "models", sdk: "openai", method: "models", script: say, body: `{}`},
		call{name: "openrouter", sdk: "openai", provider: "openrouter", method: "stream", script: toolScript, body: functions},
	)
	for _, kind := range []string{"rate_limit", "overloaded", "server_error", "invalid", "not_found", "no_credit", "unauthorized"} {
		fail := "rules: [{then: [{fail: {kind: " + kind + ", retry_after: '7', headers: {x-extra: 'a, b'}}}]}]\n"
		all = append(all,
			call{name: kind, sdk: "anthropic", method: "stream", script: fail, body: claude},
			call{name: kind, sdk: "openai", method: "create", script: fail, body: gpt})
	}
	late := "rules: [{then: [{say: 'Hello'}, {fail: overloaded}]}]\n"
	all = append(all,
		call{name: "error in the stream", sdk: "anthropic", method: "stream", script: late, body: claude},
		call{name: "error in the stream", sdk: "openai", method: "stream", script: late, body: gpt},
		call{name: "error first in the stream", sdk: "anthropic", method: "stream", script: "rules: [{then: [{fail: {kind: overloaded, in_stream: true}}]}]\n", body: claude})
	for i := range all {
		if all[i].provider == "" {
			all[i].provider = all[i].sdk
		}
	}
	return all
}

// result is an SDK's result, as printed by its program.
type result struct {
	Events []json.RawMessage
	Value  json.RawMessage
	Error  *struct {
		Status     int
		Message    string
		RequestID  string `json:"requestId"`
		RetryAfter string `json:"retryAfter"`
	}
	Wire struct {
		Status  int
		Headers map[string]string
		Body    []byte
	}
}

func TestSDKs(t *testing.T) {
	t.Parallel()
	h := start(t)
	for name, program := range h.sdks(t) {
		for _, c := range calls() {
			t.Run(strings.Join([]string{name, c.sdk, c.name}, "/"), func(t *testing.T) {
				t.Parallel()
				near, far := h.provider(t, c, ""), h.provider(t, c, prefixOf(c))
				straight := program.call(t, c, near.base(), secret)
				through := program.call(t, c, h.broker+"/egress/"+mount(c), h.account(t, c, far.base()))
				compare(t, c, straight, through, far)
			})
		}
	}
}

func prefixOf(c call) string {
	if c.profile == "anthropic-oauth" {
		return "mcp_"
	}
	return ""
}

// mount is the path of a provider in an SDK's base URL.
func mount(c call) string {
	switch c.provider {
	case "openai":
		return "openai/v1"
	case "openrouter":
		return "openrouter/api/v1"
	}
	return c.provider
}

// Ids and padding depend on the request, and therefore on its changes.
var (
	ids     = regexp.MustCompile(`(msg|req)_[A-Za-z0-9_]+`)
	padding = regexp.MustCompile(` +}(\r?\n)`)
)

// toolName matches the name of a tool at the beginning of a block.
var toolName = regexp.MustCompile(`("type":"tool_use","id":"[^"]*","name":")mcp_`)

func compare(t *testing.T, c call, straight, through *result, far *provider) {
	t.Helper()
	sent := far.body()
	if prefixOf(c) != "" {
		if c.script == toolScript && !toolName.Match(sent) {
			t.Errorf("the request to the provider has no prefixed names: %.500s", sent)
		}
		sent = toolName.ReplaceAll(sent, []byte("$1"))
	}
	if diff := cmp.Diff(string(sent), string(through.Wire.Body)); diff != "" {
		t.Errorf("sent by the provider and received (-want +got):\n%s", diff)
	}
	plain := func(s *result) string {
		body := s.Wire.Body
		if prefixOf(c) != "" {
			body = padding.ReplaceAll(body, []byte("}$1"))
		}
		all, err := json.MarshalIndent(struct {
			Events, Value, Error any
			Status               int
			Headers              map[string]string
			Body                 string
		}{s.Events, s.Value, s.Error, s.Wire.Status, s.headers(), string(body)}, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if prefixOf(c) != "" {
			all = ids.ReplaceAll(all, []byte("${1}_x"))
		}
		return string(all)
	}
	if diff := cmp.Diff(plain(straight), plain(through)); diff != "" {
		t.Errorf("direct and through the broker (-direct +through):\n%s", diff)
	}
	switch failed := straight.Error != nil; {
	case failed != strings.Contains(c.script, "fail"):
		t.Errorf("the direct call ended with %+v", straight.Error)
	case c.method == "stream" && !failed && len(straight.Events) < 3:
		t.Errorf("only %d events", len(straight.Events))
	}
}

// headers are the headers of the response that do not concern the connection.
func (s *result) headers() map[string]string {
	h := maps.Clone(s.Wire.Headers)
	for _, name := range []string{"date", "connection", "keep-alive", "transfer-encoding", "content-length"} {
		delete(h, name)
	}
	return h
}

// provider is a simulated provider that records its last response.
type provider struct {
	*httptest.Server
	mount string

	mu   sync.Mutex // guards last
	last bytes.Buffer
}

func (p *provider) base() string { return p.URL + "/" + p.mount }

// body returns the body of the last response. All bytes are recorded before the caller has them,
// but perhaps not the end.
func (p *provider) body() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Clone(p.last.Bytes())
}

func (h *setup) provider(t *testing.T, c call, prefix string) *provider {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(c.script, "§", prefix)), 0o600); err != nil {
		t.Fatal(err)
	}
	sim, err := simulator.New(simulator.Config{Script: file}, simulator.Deps{Now: func() time.Time { return h.began }})
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{mount: mount(c)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.last.Reset()
		p.mu.Unlock()
		if key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && c.sdk == "anthropic" {
			// The header of the credential differs between SDK and broker, and must not affect
			// the provider's ids.
			r.Header.Del("Authorization")
			r.Header.Set("X-Api-Key", key)
		}
		sim.ServeHTTP(&keeping{w, p}, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// keeping is a ResponseWriter that records what it writes.
type keeping struct {
	http.ResponseWriter
	p *provider
}

// Write implements http.ResponseWriter.
func (k *keeping) Write(b []byte) (int, error) {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	k.p.last.Write(b)
	return k.ResponseWriter.Write(b)
}

// Unwrap supports http.ResponseController.
func (k *keeping) Unwrap() http.ResponseWriter { return k.ResponseWriter }

// program executes the calls of a language's SDKs.
type program func(t *testing.T, job string) string

func (p program) call(t *testing.T, c call, url, key string) *result {
	t.Helper()
	job, err := json.Marshal(map[string]any{"sdk": c.sdk, "url": url, "key": key, "method": c.method, "body": json.RawMessage(c.body), "headers": c.headers})
	if err != nil {
		t.Fatal(err)
	}
	var s result
	out := p(t, string(job))
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %.500s", err, out)
	}
	return &s
}

// lasting is a program that answers line by line. One process per concurrent job runs until the
// test ends, since the SDKs take longer to load than to call.
func lasting(t *testing.T, dir string, argv ...string) program {
	type process struct {
		*exec.Cmd
		in  io.WriteCloser
		out *bufio.Reader
	}
	idle := make(chan *process, 100)
	start := func() (*process, error) {
		p := &process{Cmd: exec.Command(argv[0], argv[1:]...)}
		p.Dir, p.Stderr = dir, t.Output()
		out, err1 := p.StdoutPipe()
		in, err2 := p.StdinPipe()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		p.in, p.out = in, bufio.NewReader(out)
		return p, p.Start()
	}
	t.Cleanup(func() {
		for close(idle); ; {
			p, more := <-idle
			if !more {
				return
			}
			if err := errors.Join(p.in.Close(), p.Wait()); err != nil {
				t.Errorf("%s: %v", argv, err)
			}
		}
	})
	return func(t *testing.T, job string) string {
		t.Helper()
		var p *process
		select {
		case p = <-idle:
		default:
			var err error
			if p, err = start(); err != nil {
				t.Fatalf("%s: %v", argv, err)
			}
		}
		late := time.AfterFunc(2*patience, func() { _ = p.Process.Kill() }) // it may have ended already
		_, err1 := io.WriteString(p.in, job+"\n")
		line, err2 := p.out.ReadString('\n')
		if err := errors.Join(err1, err2); err != nil || !late.Stop() {
			_ = p.Process.Kill()
			t.Fatalf("%s: %v, %v", argv, err, p.Wait())
		}
		idle <- p
		return line
	}
}

// execute runs a program to its end.
func execute(t *testing.T, dir string, env []string, stdin string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%.2000s%.2000s", argv, err, out, &stderr)
	}
	return string(out)
}

// setup is a credential broker with its callers.
type setup struct {
	programs string // the folder
	env      []string
	broker   string
	signer   *identity.Signer
	began    time.Time
}

// sdks returns the programs of the SDKs.
func (h *setup) sdks(t *testing.T) map[string]program {
	t.Helper()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(root, "services/e2e/node")
	if _, err := os.Stat(filepath.Join(node, "node_modules/.installed")); err != nil {
		t.Fatal("the npm clients are not installed: run `make clients`")
	}
	bin := filepath.Join(os.Getenv(world.Built), "call")
	if _, err := os.Stat(bin); os.Getenv(world.Built) == "" || err != nil {
		// Compiling the SDKs for the first time takes minutes.
		bin = filepath.Join(t.TempDir(), "call")
		execute(t, filepath.Join(root, "bench/oracle"), []string{"GOWORK=off"}, "", "go", "build", "-o", bin, "./call")
	}
	return map[string]program{
		"npm": lasting(t, node, "node", "call-provider.mjs"),
		"go":  func(t *testing.T, job string) string { return execute(t, "", nil, job, bin) },
	}
}

// account stores a credential in a new workspace, so that calls do not affect each other's accounts,
// and returns a token for that workspace.
func (h *setup) account(t *testing.T, c call, base string) string {
	t.Helper()
	ws := id.New[id.Workspace]()
	argv := []string{filepath.Join(h.programs, "signalbox"), "accounts", "add", c.provider, "--workspace", ws.String(), "--base-url", base}
	if c.profile != "" {
		argv = append(argv, "--profile", c.profile)
	}
	execute(t, "", h.env, secret+"\n", argv...)
	token, err := h.signer.Sign(identity.Actor{Workspace: ws, Member: id.New[id.Member](), Role: identity.Editor, Run: id.New[id.Run](), Session: id.New[id.Session]()}, subject.CredentialBroker)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// start runs a credential broker until the test ends.
func start(t *testing.T) *setup {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	h := &setup{programs: filepath.Join(dir, "bin"), began: time.Now()}
	if err := os.Mkdir(h.programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := world.Build(ctx, h.programs); err != nil {
		t.Fatal(err)
	}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	h.signer = identity.NewSigner(subject.AgentRunner, key)
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	h.broker = "http://" + addr
	h.env = []string{
		"DATABASE_URL=" + pgtest.New(t).AdminURL, "CREDENTIAL_BROKER_KEY_FILE=" + filepath.Join(dir, "broker.key"),
		"CREDENTIAL_BROKER_ALLOW_PRIVATE=true", "CREDENTIAL_BROKER_ADDR=" + addr,
		"TRUSTED_KEYS=" + identity.FormatTrusted(map[string]string{subject.AgentRunner: key.Public()}),
	}
	execute(t, "", h.env, "", filepath.Join(h.programs, "signalbox"), "migrate")
	h.run(t, filepath.Join(h.programs, "credential-broker"))
	return h
}

// run starts the broker and waits until it is ready.
func (h *setup) run(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), h.env...)
	var log bytes.Buffer // read when the program has ended
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended already
		select {
		case err := <-ended:
			if err != nil || t.Failed() {
				t.Logf("credential-broker ended: %v\n%.8000s", err, &log)
			}
		case <-time.After(patience):
			t.Error("credential-broker did not end", cmd.Process.Kill())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		if err := ready(ctx, h.broker+"/ready"); err == nil {
			tick.Stop()
			return
		}
		select {
		case err := <-ended:
			ended <- errors.New("at its start")
			t.Fatalf("credential-broker ended: %v\n%.8000s", err, &log)
		case <-ctx.Done():
			t.Fatal("credential-broker did not start")
		case <-tick.C:
		}
	}
}

func ready(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body) // only the status counts
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return nil
}
