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

// TestOpenAIChatProgram chats through the gateway with a program that people use, the agent pi, over
// both of OpenAI's protocols. The second question goes on with the conversation that pi keeps.
func TestOpenAIChatProgram(t *testing.T) {
	t.Parallel()
	needNode(t)
	p := standalone.up(t).person(t)
	providers := map[string]any{}
	for _, protocol := range []string{"completions", "responses"} {
		providers[protocol] = map[string]any{"baseUrl": p.url + "/v1", "api": "openai-" + protocol, "apiKey": p.apiKey(), "models": []any{map[string]any{"id": "workspace"}}}
	}
	models, err := json.Marshal(map[string]any{"providers": providers})
	if err != nil {
		t.Fatal(err)
	}
	for protocol := range providers {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "models.json"), models, 0o600); err != nil {
				t.Fatal(err)
			}
			pi, err := filepath.Abs("node/node_modules/.bin/pi")
			if err != nil {
				t.Fatal(err)
			}
			for _, ask := range []struct{ options, question, want string }{
				{"", "what time is it?", "It is "},
				{"--continue", `call the tool ls with {"path":"."}`, "models.json"}, // which pi runs
			} {
				args := append(strings.Fields("-p --provider "+protocol+" --model workspace --tools ls,read "+ask.options), ask.question)
				cmd := exec.CommandContext(t.Context(), pi, args...)
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "PI_CODING_AGENT_DIR="+dir, "PI_OFFLINE=1", "HOME="+dir)
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), ask.want) {
					t.Errorf("pi %q = %v %s, want %q", args, err, out, ask.want)
				}
			}
		})
	}
}
