package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestOpenAIClient uses the gateway with the npm package openai and an API key alone.
func TestOpenAIClient(t *testing.T) {
	t.Parallel()
	needNode(t)
	p := standalone.up(t).person(t)
	t.Logf("%s", node(t, nil, "use-openai.mjs", p.url, p.apiKey()))
}

// TestOpenAIGoClient does so with the official Go package. Its program is that of the egress tests
// (bench/oracle/call), so that the package stays out of this module.
func TestOpenAIGoClient(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(os.Getenv(world.Built), "call")
	if _, err := os.Stat(bin); os.Getenv(world.Built) == "" || err != nil {
		t.Skip("the official Go SDK's program is not built: make test builds it")
	}
	p := standalone.up(t).person(t)
	key := p.apiKey()
	for _, tt := range []struct{ method, body, want string }{
		{"models", `{}`, `"id":"workspace"`},
		{"create", `{"model":"workspace","messages":[{"role":"user","content":"what time is it?"}]}`, `"content":"It is `},
		{"stream", `{"model":"workspace","messages":[{"role":"user","content":"what time is it?"}]}`, `"finish_reason":"stop"`},
		{"respond", `{"model":"workspace","input":"what time is it?"}`, `"value":"It is `},
		{"create", `{"model":"gpt-9","messages":[{"role":"user","content":"hi"}]}`, `"status":404`},
	} {
		job, err := json.Marshal(map[string]any{"sdk": "openai", "url": p.url + "/v1", "key": key, "method": tt.method, "body": json.RawMessage(tt.body)})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), bin)
		cmd.Stdin = strings.NewReader(string(job))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s %s = %v %s, want %s", tt.method, tt.body, err, out, tt.want)
		}
	}
}
