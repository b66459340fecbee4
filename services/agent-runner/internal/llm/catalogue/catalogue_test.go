package catalogue_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	c, err := catalogue.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		provider, id string
		context, out int
		known        bool
	}{
		{"anthropic", "claude-sonnet-4-5-20250514", 200_000, 16_384, true},
		{"anthropic", "claude-opus-4-1-20990101", 200_000, 16_384, false},
		{"anthropic", "claude-later-9", 200_000, 8_192, false},
		{"openai", "gpt-5", 400_000, 16_384, true},
		{"openai", "gpt-5-2099", 400_000, 16_384, false},
		{"ollama", "llama3.2", 128_000, 8_192, false},
		{"", "", 128_000, 8_192, false},
	}
	for _, tt := range tests {
		m, known := c.Lookup(tt.provider, tt.id)
		if m.Context != tt.context || m.DefaultOutput != tt.out || known != tt.known || m.ID != tt.id || m.Family {
			t.Errorf("Lookup(%q, %q) = %+v, %v, want context %d, output %d, %v", tt.provider, tt.id, m, known, tt.context, tt.out, tt.known)
		}
	}
	if m, _ := c.Lookup("anthropic", "claude-sonnet-4-5-20250514"); !m.HasServerTool("web_search") || !m.Images || !m.Reasoning {
		t.Errorf("Lookup of the default model = %+v, want web search, images and reasoning", m)
	}
	if def, ok := c.ServerTool("anthropic", "web_search"); !ok || !strings.Contains(string(def), "web_search_20250305") {
		t.Errorf("ServerTool(anthropic, web_search) = %s, %v", def, ok)
	}
	if _, ok := c.ServerTool("openai", "web_search"); ok {
		t.Error("ServerTool(openai, web_search) = true, want false")
	}
	all, own := c.Models(""), c.Models("openai")
	if len(own) == 0 || len(all) <= len(own) {
		t.Errorf("Models() = %d, Models(openai) = %d", len(all), len(own))
	}
}

func TestOverride(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "models.json")
	own := `{"models":[{"provider":"openai","id":"gpt-5","context":10,"maxOutput":5},{"provider":"ollama","id":"llama","family":true,"context":8192,"maxOutput":2048}]}`
	if err := os.WriteFile(path, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := catalogue.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if m, known := c.Lookup("openai", "gpt-5"); !known || m.Context != 10 || m.Name != "gpt-5" {
		t.Errorf("Lookup of a replaced model = %+v, %v", m, known)
	}
	if m, _ := c.Lookup("ollama", "llama3.2:3b"); m.Context != 8192 {
		t.Errorf("Lookup of an added family = %+v", m)
	}
	if m, known := c.Lookup("openai", "gpt-4o"); !known || m.Context != 128_000 {
		t.Errorf("Lookup of an untouched model = %+v, %v", m, known)
	}
}

func TestOverrideErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"no JSON", `{`, "operator's"},
		{"typing error", `{"models":[{"provider":"a","id":"b","contxt":1}]}`, "contxt"},
		{"no id", `{"models":[{"provider":"a"}]}`, "models[0]: provider and id"},
		{"no context", `{"models":[{"provider":"a","id":"b"}]}`, "context and maxOutput"},
		{"default too high", `{"models":[{"provider":"a","id":"b","context":9,"maxOutput":5,"defaultOutput":6}]}`, "defaultOutput"},
		{"a price", `{"models":[{"provider":"a","id":"b","context":9,"maxOutput":5,"price":{"input":1}}]}`, "price"},
		{"two objects", `{} {}`, "behind"},
	}
	for _, tt := range tests {
		if _, err := catalogue.New([]byte(tt.in)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%s) = %v, want an error with %q", tt.in, err, tt.want)
		}
	}
	if _, err := catalogue.Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("Load of no file = nil error, want one")
	}
}
