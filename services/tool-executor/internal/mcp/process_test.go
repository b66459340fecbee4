package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/tool-executor/internal/mcp"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// behave is the environment variable that makes this program a server on standard input.
const behave = "SIGNALBOX_TEST_SERVER"

// serveStdio is the program as a server that behaves in some way.
func serveStdio(how string) {
	switch how {
	case "good":
		goodStdio()
		return
	case "stubborn": // it does not end with its input
		goodStdio()
	case "executor":
		execute()
	case "garbage":
		fmt.Fprintln(os.Stdout, "Listening on port 3000!")
	case "endless line":
		for {
			fmt.Fprint(os.Stdout, strings.Repeat("a", 1<<16))
		}
	case "endless array":
		fmt.Fprint(os.Stdout, "[")
		for {
			fmt.Fprint(os.Stdout, strings.Repeat("1,", 1<<15))
		}
	case "deep":
		fmt.Fprintln(os.Stdout, strings.Repeat("[", 1<<20))
	case "deep over many lines":
		fmt.Fprintln(os.Stdout, strings.Repeat("[\n", 1<<20))
	case "endless notifications":
		for {
			fmt.Fprintln(os.Stdout, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
		}
	case "endless pings":
		for i := 0; ; i++ {
			fmt.Fprintf(os.Stdout, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"ping\"}\n", i)
		}
	case "endless blank lines":
		for {
			fmt.Fprint(os.Stdout, strings.Repeat("\n", 1<<16))
		}
	case "dies at once":
		os.Exit(3)
	case "never answers":
	case "closes its output":
		_ = os.Stdout.Close()
	case "floods its errors":
		for {
			fmt.Fprintln(os.Stderr, strings.Repeat("e", 1<<16))
		}
	case "forks children":
		for range 20 {
			cmd := exec.Command("/bin/sleep", "3600")
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			_ = cmd.Start()
		}
	case "forks without end":
		for {
			if err := exec.Command("/bin/sleep", "3600").Start(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				break
			}
		}
	case "eats memory":
		for all := []byte{1}; ; {
			all = append(all, all...)
		}
	}
	select {} // without reading
}

// goodStdio serves tools that tell what the process can do.
func goodStdio() {
	s := sdk.NewServer(&sdk.Implementation{Name: "good", Version: "1"}, nil)
	calls := 0
	stalled, cancelled := make(chan struct{}, 1), make(chan struct{}, 1)
	sdk.AddTool(s, &sdk.Tool{Name: "stall", Description: "Stalls."}, func(ctx context.Context, _ *sdk.CallToolRequest, _ textArgs) (*sdk.CallToolResult, any, error) {
		stalled <- struct{}{}
		<-ctx.Done()
		cancelled <- struct{}{}
		return nil, nil, ctx.Err()
	})
	add := func(name string, f func(text string) string) {
		sdk.AddTool(s, &sdk.Tool{Name: name, Description: "Tells " + strings.Join(os.Args[1:], " ") + ".", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
			func(_ context.Context, _ *sdk.CallToolRequest, a textArgs) (*sdk.CallToolResult, any, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: f(a.Text)}}}, nil, nil
			})
	}
	said := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	add("count", func(string) string { calls++; return fmt.Sprint(calls) })
	add("environment", func(string) string { return strings.Join(os.Environ(), " ") })
	add("read", func(path string) string { _, err := os.ReadFile(path); return said(err) })
	add("write", func(path string) string { return said(os.WriteFile(path, []byte("x"), 0o600)) })
	add("dial", func(address string) string {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return said(err)
	})
	add("processes", func(string) string { all, _ := filepath.Glob("/proc/[0-9]*"); return fmt.Sprint(len(all)) })
	add("user", func(string) string { return fmt.Sprint(os.Getuid()) })
	add("complain", func(text string) string { fmt.Fprintln(os.Stderr, text+os.Getenv("API_TOKEN")); return "" })
	add("die", func(string) string { os.Exit(1); return "" })
	add("await stall", func(string) string { <-stalled; return "stalled" })
	add("await cancellation", func(string) string { <-cancelled; return "cancelled" })
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}

// program returns a copy of this program that every user can reach.
var program = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	path := filepath.Join(publicDir, "server")
	return path, os.WriteFile(path, text, 0o755)
})

// publicDir is a folder that every user can enter. TestMain removes it.
var publicDir string

// servers returns an operator's file with this program as its only server, called own. mark is
// in the environment of all its processes.
func servers(t *testing.T, how string, more map[string]any) (file mcp.Operator, mark string) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	mark = id.New[id.Operation]().String()
	server := map[string]any{"command": path, "env": map[string]string{behave: how, "MARK": mark}, "read": []string{path}}
	maps.Copy(server, more)
	return load(t, map[string]any{"mcpServers": map[string]any{"own": server}}), mark
}

func load(t *testing.T, file any) mcp.Operator {
	t.Helper()
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := mcp.LoadOperator(path)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// needSandbox ends the test where there is no sandbox.
func needSandbox(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("sandboxes need Linux")
	}
	if out, err := exec.CommandContext(t.Context(), "bwrap", "--unshare-all", "--ro-bind", "/", "/", "true").CombinedOutput(); err != nil {
		t.Skipf("bubblewrap cannot make sandboxes here: %v: %s", err, out)
	}
}

// left returns the processes with a mark in their environment.
func left(mark string) (all []string) {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range found {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), mark) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return all
}

// noneLeft waits until no process with a mark is left.
func noneLeft(t *testing.T, mark string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for len(left(mark)) > 0 {
		select {
		case <-deadline:
			t.Fatalf("processes are left: %q", left(mark))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestSandbox asks a server in a sandbox what it can do.
func TestSandbox(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	closed := filepath.Join(publicDir, t.Name())
	if err := os.WriteFile(closed, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	data := filepath.Join(publicDir, "data", "{workspace}")
	if err := os.Mkdir(filepath.Dir(data), 0o777); err != nil {
		t.Fatal(err)
	}
	file, mark := servers(t, "good", map[string]any{"write": []string{data}})
	c, ws := newClient(t), id.New[id.Workspace]()
	own := mcp.OperatorServer(file, ws)
	data = strings.ReplaceAll(data, "{workspace}", ws.String())
	ask := func(name, text string) string {
		t.Helper()
		r, err := c.Call(t.Context(), own, name, map[string]string{"text": text})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return tool.OutputText(r.JSON())
	}
	for _, tt := range []struct{ name, text, want string }{
		{"count", "", "1"},
		{"count", "", "2"}, // of the same process
		{"read", "/usr/bin/env", "ok"},
		{"read", closed, "no such file"},
		{"read", "/etc/shadow", "no such file"},
		{"write", "/tmp/x", "ok"},
		{"write", "/usr/x", "read-only"},
		{"write", data + "/x", "ok"},
		{"dial", l.Addr().String(), "refused"},
		{"dial", "1.1.1.1:443", "unreachable"},
		{"processes", "", "2"}, // its own and the sandbox's
	} {
		if got := ask(tt.name, tt.text); !strings.Contains(got, tt.want) {
			t.Errorf("%s(%s) = %q, want %q", tt.name, tt.text, got, tt.want)
		}
	}
	if got := ask("user", ""); got == "0" {
		t.Error("it runs as root")
	}
	for variable := range strings.FieldsSeq(ask("environment", "")) {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.Contains([]string{"PATH", "HOME", "TMPDIR", "LANG", "PWD", "MARK", behave}, name) {
			t.Errorf("it has the variable %s", name)
		}
	}
	if text, err := os.ReadFile(data + "/x"); err != nil || string(text) != "x" {
		t.Errorf("what it wrote = %q, %v", text, err)
	}
	if n := len(left(mark)); n == 0 {
		t.Error("the test does not find the server's processes")
	}
	c.Close()
	noneLeft(t, mark)
}

// texts receives what is logged.
type texts chan string

// Write implements io.Writer.
func (t texts) Write(b []byte) (int, error) {
	t <- string(b)
	return len(b), nil
}

// A server tells the secrets in its environment: members, models and the log do not learn them.
func TestSecretsOfProcess(t *testing.T) {
	t.Parallel()
	file, mark := servers(t, "good", map[string]any{"sandbox": false, "env": map[string]string{
		behave: "good", "MODE": "production", "API_TOKEN": "first line\nsecond line\nand \"more\"", "KEY": "first line\nsecond",
		"DATABASE_URL": "postgres://user:hunter2hunter2@db/x",
	}})
	c, said := newClient(t), make(texts, 16)
	c.LogTo(slog.New(slog.NewJSONHandler(said, nil)))
	own := mcp.OperatorServer(file, id.New[id.Workspace]())
	r, err := c.Call(t.Context(), own, "environment", map[string]string{"text": ""})
	if err != nil {
		t.Fatal(err)
	}
	const secret = `first|second|more|hunter2`
	if got := r.JSON(); regexp.MustCompile(secret).MatchString(got) || !strings.Contains(got, "API_TOKEN=[redacted]") || !strings.Contains(got, "MODE=production") || !strings.Contains(got, "user:[redacted]@db") {
		t.Errorf("environment = %s, want it without secrets", got)
	}
	for _, text := range []string{"short ", strings.Repeat("x", 1020)} { // the secret crosses the end of what is logged
		if _, err := c.Call(t.Context(), own, "complain", map[string]string{"text": text}); err != nil {
			t.Fatal(err)
		}
		for range 3 { // lines
			if got := <-said; regexp.MustCompile(secret).MatchString(got) || !strings.Contains(got, "[red") {
				t.Errorf("logged %s, want it without secrets", got)
			}
		}
	}
	c.Close()
	noneLeft(t, mark)
}

// TestNetwork lets a server reach the network, because the operator says so.
func TestNetwork(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	file, _ := servers(t, "good", map[string]any{"network": true})
	c := newClient(t)
	t.Cleanup(c.Close)
	r, err := c.Call(t.Context(), mcp.OperatorServer(file, id.New[id.Workspace]()), "dial", map[string]string{"text": l.Addr().String()})
	if err != nil || r.JSON() != `{"result":"ok"}` {
		t.Errorf("dial = %s, %v", r.JSON(), err)
	}
}

// TestStall stops a call of a process: the server is told, and goes on.
func TestStall(t *testing.T) {
	t.Parallel()
	file, mark := servers(t, "good", map[string]any{"sandbox": false})
	c := newClient(t)
	own := mcp.OperatorServer(file, id.New[id.Workspace]())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, own, "stall", map[string]string{"text": ""})
		ended <- err
	}()
	ask := func(name, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := c.Call(ctx, own, name, map[string]string{"text": ""})
		if got := tool.OutputText(r.JSON()); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
	ask("await stall", "stalled")
	begin := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call = %v", err)
	}
	ask("await cancellation", "cancelled")
	t.Logf("the server is told after %v", time.Since(begin))
	ask("count", "1")
	c.Close()
	noneLeft(t, mark)
}

// TestHostileProcesses starts servers that misbehave. Each operation ends on time with an
// explanation, and no process is left.
func TestHostileProcesses(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	for _, how := range []string{
		"garbage", "endless line", "endless array", "deep", "deep over many lines", "endless notifications", "endless pings", "endless blank lines",
		"dies at once", "never answers", "closes its output", "floods its errors", "forks children", "forks without end", "eats memory",
	} {
		for _, sandbox := range []bool{true, false} {
			if !sandbox && !slices.Contains([]string{"dies at once", "never answers", "forks children"}, how) {
				continue // as in the sandbox
			}
			t.Run(fmt.Sprintf("%s, sandbox: %t", how, sandbox), func(t *testing.T) {
				t.Parallel()
				file, mark := servers(t, how, map[string]any{"sandbox": sandbox, "processes": 40, "memory_mib": 300})
				c := newClient(t)
				own := mcp.OperatorServer(file, id.New[id.Workspace]())
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begin := time.Now()
				_, err := c.List(ctx, own)
				if err == nil || mcp.Why(err) == "" || time.Since(begin) > 5*time.Second {
					t.Errorf("the list takes %v and ends with %v (%s)", time.Since(begin), err, mcp.Why(err))
				}
				t.Log(mcp.Why(err))
				if n := len(left(mark)); n > 45 {
					t.Errorf("it has %d processes", n)
				}
				c.Close()
				noneLeft(t, mark)
			})
		}
	}
}

// TestRestartOfProcess calls a server that dies: it is started again, and less and less often.
func TestRestartOfProcess(t *testing.T) {
	t.Parallel()
	file, mark := servers(t, "good", map[string]any{"sandbox": false})
	c := newClient(t)
	own := mcp.OperatorServer(file, id.New[id.Workspace]())
	ask := func(name string) (string, error) {
		r, err := c.Call(t.Context(), own, name, map[string]string{"text": ""})
		return tool.OutputText(r.JSON()), err
	}
	if got, err := ask("count"); got != "1" || err != nil {
		t.Fatalf("count = %s, %v", got, err)
	}
	if _, err := ask("die"); !mcp.WasSent(err) || !strings.Contains(mcp.Why(err), "ended") {
		t.Fatalf("die = %v (%s)", err, mcp.Why(err))
	}
	if got, err := ask("count"); got != "1" || err != nil {
		t.Fatalf("after the first death, count = %s, %v", got, err)
	}
	if _, err := ask("die"); !mcp.WasSent(err) {
		t.Fatalf("die = %v", err)
	}
	if _, err := ask("count"); err == nil || mcp.WasSent(err) || !strings.Contains(mcp.Why(err), "2 times in a row") {
		t.Fatalf("after the second death, count = %v", err)
	}
	c.Close()
	noneLeft(t, mark)
}

// TestIdleProcess expires a process that is idle.
func TestIdleProcess(t *testing.T) {
	t.Parallel()
	file, mark := servers(t, "good", map[string]any{"sandbox": false})
	c := newClient(t)
	if _, err := c.List(t.Context(), mcp.OperatorServer(file, id.New[id.Workspace]())); err != nil {
		t.Fatal(err)
	}
	if len(left(mark)) != 1 || c.Open() != 1 {
		t.Errorf("%d processes and %d sessions, want one of each", len(left(mark)), c.Open())
	}
	c.Expire()
	noneLeft(t, mark)
}

// TestProcessesEndWithUs kills the process that has started servers, which do not end with their
// input.
func TestProcessesEndWithUs(t *testing.T) {
	t.Parallel()
	needSandbox(t)
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	mark := id.New[id.Operation]().String()
	executor := exec.CommandContext(t.Context(), path)
	executor.Env = []string{behave + "=executor", "EXECUTOR=" + mark, "SELF=" + path, "PATH=" + os.Getenv("PATH")}
	out, err := executor.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := executor.Start(); err != nil {
		t.Fatal(err)
	}
	ready, err := bufio.NewReader(out).ReadString('\n')
	if ready != "ready\n" || len(left("MARK="+mark)) < 3 {
		t.Errorf("the executor says %q, %v and has the servers %q", ready, err, left("MARK="+mark))
	}
	_ = executor.Process.Kill()
	_ = executor.Wait() // killed
	noneLeft(t, mark)
}

// execute starts servers as tool-executor does, and waits to be killed.
func execute() {
	for _, sandbox := range []bool{true, false} {
		text := fmt.Sprintf(`{"mcpServers": {"own": {"command": %[1]q, "sandbox": %[2]t, "read": [%[1]q], "env": {%[3]q: "stubborn", "MARK": %[4]q}}}}`,
			os.Getenv("SELF"), sandbox, behave, os.Getenv("EXECUTOR"))
		file, err := mcp.ParseOperator([]byte(text))
		if err == nil {
			_, err = mcp.NewClient(nil).Call(context.Background(), mcp.OperatorServer(file, id.New[id.Workspace]()), "count", map[string]string{"text": ""})
		}
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
		}
	}
	fmt.Fprintln(os.Stdout, "ready")
}

// TestOperator offers a server to one workspace of two.
func TestOperator(t *testing.T) {
	t.Parallel()
	var file mcp.Operator
	w := newWorldWith(t, func(cfg *mcp.Config, ws id.Workspace) {
		file, _ = servers(t, "good", map[string]any{"sandbox": false, "workspaces": []string{ws.String()}})
		cfg.Operator = file
	})
	other := id.New[id.Workspace]()
	if all, err := w.servers.List(t.Context(), other); err != nil || len(all) != 0 {
		t.Errorf("another workspace has %d servers, %v", len(all), err)
	}
	all, err := w.servers.List(t.Context(), w.ws)
	if err != nil || len(all) != 1 || !all[0].Operator || all[0].Name != "own" {
		t.Fatalf("List = %+v, %v", all, err)
	}
	own, err := w.servers.Test(t.Context(), w.ws, all[0].ID)
	if err != nil || own.Failure != "" || len(own.Tools) == 0 {
		t.Fatalf("Test = failure %q, %d tools, %v", own.Failure, len(own.Tools), err)
	}
	if got := call(t, w.tools(t)["mcp__own__count"], `{"text":""}`); got != `{"result":"1"}` {
		t.Errorf("count = %s", got)
	}
	if err := w.servers.Remove(t.Context(), w.ws, own.ID); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("Remove = %v, want forbidden", err)
	}
	if _, err := w.servers.Create(t.Context(), mcp.Server{Workspace: w.ws, ID: mcp.ServerID{Operation: id.New[id.Operation]()}, Name: "own", URL: "http://127.0.0.1"}); fault.From(err).Code != "MCP_NAME_TAKEN" {
		t.Errorf("Create under the operator's name = %v", err)
	}

	// The operator changes the command, and with it the descriptions: they are approved anew.
	file, _ = servers(t, "good", map[string]any{"sandbox": false, "args": []string{"more"}})
	w.restart(t, func(cfg *mcp.Config) { cfg.Operator = file })
	if own, err = w.servers.Test(t.Context(), w.ws, own.ID); err != nil {
		t.Fatal(err)
	}
	for _, l := range own.Listed() {
		if l.Changed != strings.Contains(l.Definition.Description, "more") {
			t.Errorf("%s with the description %q is changed: %t", l.Name, l.Definition.Description, l.Changed)
		}
	}
	if a := w.tools(t)["mcp__own__count"].Tool.Available(t.Context()); a.Available || a.Cause.Code != tool.DefinitionChanged || a.Cause.Server != "own" {
		t.Errorf("a changed tool is available, or does not say why: %+v", a)
	}
	w.restart(t, func(cfg *mcp.Config) { cfg.Operator = nil })
	if all := w.tools(t); len(all) != 0 {
		t.Errorf("without the operator's server there are the tools %v", names(all))
	}
}

func TestOperatorFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{`{"mcpServers": {"a": {"command": "x", "type": "stdio", "args": [], "workspaces": ["0198a000-0000-7000-8000-000000000001"]}}}`, ""},
		{`{}`, ""},
		{`{"mcpServers": {"a": {"url": "https://example.org"}}}`, "owners of workspaces"},
		{`{"mcpServers": {"a": {}}}`, "command is missing"},
		{`{"mcpServers": {"A": {"command": "x"}}}`, "lower-case"},
		{`{"mcpServers": {"a": {"command": "x", "type": "http"}}}`, "use stdio"},
		{`{"mcpServers": {"a": {"command": "x", "read": ["data"]}}}`, "absolute"},
		{`{"mcpServers": {"a": {"command": "x", "write": ["/"]}}}`, "absolute"},
		{`{"mcpServers": {"a": {"command": "x", "env": {"A=B": "x"}}}}`, "env"},
		{`{"mcpServers": {"a": {"command": "x", "workspaces": ["all"]}}}`, "UUID"},
		{`{"servers": {}}`, "mcpServers"},
		{`{`, "mcpServers"},
	} {
		_, err := mcp.ParseOperator([]byte(tt.text))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.text, err, tt.want)
		}
	}
	if _, err := mcp.LoadOperator("/nowhere"); err == nil {
		t.Error("a file that is missing is no error")
	}
}
