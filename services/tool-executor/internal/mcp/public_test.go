package mcp_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/tool-executor/internal/mcp"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// TestPublicServers uses servers that many people use, from npm, in the sandbox.
func TestPublicServers(t *testing.T) {
	t.Parallel()
	packages, err := filepath.Abs("../../../e2e/node/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(packages, ".installed")); err != nil {
		t.Skip("the npm packages are not installed: run `make clients`")
	}
	sandbox := runtime.GOOS == "linux" && everybodyEnters(packages)
	if sandbox {
		needSandbox(t)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	if node, err = filepath.EvalSymlinks(node); err != nil {
		t.Fatal(err)
	}
	read := []string{packages}
	if _, err := os.Stat("/etc/chromium.d"); err == nil {
		read = append(read, "/etc/chromium.d") // Debian's settings of Chromium
	}
	type step struct {
		tool, args string
		want       string // in the result
	}
	for _, tt := range []struct {
		name  string
		path  string
		args  []string
		steps []step
	}{
		{"everything", "@modelcontextprotocol/server-everything/dist/index.js", nil, []step{
			{"echo", `{"message":"hello"}`, "Echo: hello"},
			{"get-sum", `{"a":19,"b":23}`, "42"},
			{"get-structured-content", `{"location":"Chicago"}`, `"temperature":`},
			{"get-tiny-image", `{}`, "image/png"},
			{"trigger-long-running-operation", `{"duration":1,"steps":2}`, "Long running operation completed"},
			{"read_resource", `{}`, `"uri":"demo://`},
			{"get_prompt", `{}`, `"name":"simple-prompt"`},
			{"get_prompt", `{"name":"simple-prompt"}`, `"role":"user"`},
		}},
		{"filesystem", "@modelcontextprotocol/server-filesystem/dist/index.js", []string{"DATA"}, []step{
			{"write_file", `{"path":"DATA/a.txt","content":"tea at four"}`, "Successfully wrote"},
			{"read_text_file", `{"path":"DATA/a.txt"}`, "tea at four"},
			{"list_directory", `{"path":"DATA"}`, "a.txt"},
			{"read_text_file", `{"path":"/etc/passwd"}`, "Access denied"},
		}},
		{"memory", "@modelcontextprotocol/server-memory/dist/index.js", nil, []step{
			{"create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["drinks tea"]}]}`, "Ada"},
			{"search_nodes", `{"query":"tea"}`, "Ada"},
			{"read_graph", `{}`, "drinks tea"},
		}},
		{"sequential-thinking", "@modelcontextprotocol/server-sequential-thinking/dist/index.js", nil, []step{
			{"sequentialthinking", `{"thought":"one","nextThoughtNeeded":true,"thoughtNumber":1,"totalThoughts":2}`, `"thoughtHistoryLength":1`},
			{"sequentialthinking", `{"thought":"two","nextThoughtNeeded":false,"thoughtNumber":2,"totalThoughts":2}`, `"thoughtHistoryLength":2`},
		}},
		{"playwright", "@playwright/mcp/cli.js", []string{"--headless", "--no-sandbox", "--isolated", "--executable-path", "/usr/bin/chromium"}, []step{
			{"browser_navigate", `{"url":"data:text/html,<title>Tea</title><h1>At four</h1><button>Pour</button>"}`, "Tea"},
			{"browser_snapshot", `{}`, "Pour"},
			{"browser_take_screenshot", `{"type":"png","scale":"css"}`, "image/png"},
			{"browser_close", `{}`, ""},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat("/usr/bin/chromium"); err != nil && tt.name == "playwright" {
				t.Skip("Chromium is not installed")
			}
			ws, mark := id.New[id.Workspace](), id.New[id.Operation]().String()
			data := filepath.Join(publicDir, "public-"+tt.name, ws.String())
			filled := strings.NewReplacer("DATA", data)
			args := []string{filepath.Join(packages, tt.path)}
			for _, a := range tt.args {
				args = append(args, filled.Replace(a))
			}
			if err := os.Mkdir(filepath.Dir(data), 0o755); err != nil {
				t.Fatal(err)
			}
			if !sandbox {
				if err := os.Mkdir(data, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			file := load(t, map[string]any{"mcpServers": map[string]any{tt.name: map[string]any{
				"command": node, "args": args, "sandbox": sandbox, "read": slices.Concat(read, []string{node}), "write": []string{data},
				"env": map[string]string{"MARK": mark, "MEMORY_FILE_PATH": data + "/memory.jsonl"},
			}}})
			c := newClient(t)
			own := mcp.OperatorServer(file, ws)
			if own.Tools, err = c.List(t.Context(), own); err != nil {
				t.Fatalf("list: %v (%s)", err, mcp.Why(err))
			}
			entries := map[string]tool.Entry{}
			for _, e := range mcp.Entries(c, own) {
				entries[e.Spec.Name] = e
			}
			for _, s := range tt.steps {
				e, ok := entries["mcp__"+tt.name+"__"+s.tool]
				if !ok || !e.Tool.Available(t.Context()).Available {
					t.Errorf("it has no tool %s", s.tool)
					continue
				}
				var reports atomic.Int64
				got := callWith(t.Context(), t, e, filled.Replace(s.args), func(tool.Progress) { reports.Add(1) })
				if n := reports.Load(); (n > 0) != (s.tool == "trigger-long-running-operation") {
					t.Errorf("%s reports progress %d times", s.tool, n)
				}
				if plain := strings.ReplaceAll(tool.OutputText(got), `": `, `":`); !json.Valid([]byte(got)) || !strings.Contains(plain, s.want) {
					t.Errorf("%s(%s) = %.500s, want %q in it", s.tool, s.args, got, s.want)
				}
			}
			c.Close()
			noneLeft(t, mark)
		})
	}
}

// everybodyEnters reports whether all users may enter a folder.
func everybodyEnters(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&1 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}
