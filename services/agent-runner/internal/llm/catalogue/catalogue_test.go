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
		{"anthropic", "claude-sonnet-4-5-20250929", 200_000, 16_384, true},
		{"anthropic", "claude-sonnet-4-5-20250514", 200_000, 16_384, false}, // the default of former versions
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
	if m, _ := c.Lookup("anthropic", "claude-sonnet-4-5-20250929"); !m.HasServerTool("web_search") || !m.Images || !m.Reasoning {
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
	const good = `{"provider": "openai", "id": "gpt-6", "context": 9, "maxOutput": 5}`
	tests := []struct{ name, in, want string }{
		{"no JSON", "{\n", "read the operator's model catalogue: line 2: unexpected end"},
		{"two objects", "{}\n{}", "line 2: invalid character"},
		{"no object", `[]`, "line 1: array does not belong here"},
		{"another field", "{\n\"prices\": []}", "line 2: prices: there is no such field"},
		{"typing error", "{\"models\": [\n" + good + ",\n{\"provider\": \"a\", \"id\": \"b\", \"contxt\": 1}]}", "line 3: models[1].contxt: there is no such field"},
		{"wrong kind", "{\"models\": [\n{\"provider\": \"a\",\n\"id\": 7}]}", "line 3: models[0].id: number does not belong here"},
		{"no id", `{"models":[{"provider":"a"}]}`, "line 1: models[0]: provider and id are needed"},
		{"no context", `{"models":[{"provider":"a","id":"b"}]}`, "models[0].context: 0 is too few tokens"},
		{"no output", `{"models":[{"provider":"a","id":"b","context":9}]}`, "models[0].maxOutput: 0 is too few tokens"},
		{"default too high", "{\"models\":[{\"provider\":\"a\",\"id\":\"b\",\"context\":9,\"maxOutput\":5,\n\"defaultOutput\":6}]}", "line 2: models[0].defaultOutput: 6 is out of range"},
		{"a price", "{\"models\": [\n" + good + ",\n{\"provider\": \"a\", \"id\": \"b\", \"context\": 9,\n\"price\": {\"input\": 1}}]}", "line 4: models[1].price: prices moved to MODEL_PRICES: "},
	}
	for _, tt := range tests {
		if _, err := catalogue.New([]byte(tt.in)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%s) = %v, want an error with %q", tt.in, err, tt.want)
		}
	}
	_, err := catalogue.New([]byte(`{"models": [{"price": {}},` + good + `, {"price": {}}]}`))
	if err == nil || strings.Count(err.Error(), "prices moved to MODEL_PRICES") != 2 {
		t.Errorf("New = %v, want both problems", err)
	}
	if _, err := catalogue.Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("Load of no file = nil error, want one")
	}
	path := filepath.Join(t.TempDir(), "own.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := catalogue.Load(path); err == nil || !strings.Contains(err.Error(), path+": ") {
		t.Errorf("Load = %v, want an error that names the file", err)
	}
}
