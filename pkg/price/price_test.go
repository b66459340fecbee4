package price_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/pkg/price"
)

func load(t *testing.T, text string) (*price.List, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "own.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return price.Load(path)
}

func TestShipped(t *testing.T) {
	t.Parallel()
	l, err := price.Load("")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		provider, model string
		input           float64
		known           bool
	}{
		{"anthropic", "claude-sonnet-4-5-20250929", 3, true},
		{"anthropic", "claude-sonnet-4-5-20250514", 3, true}, // the default of former versions
		{"anthropic", "claude-opus-4-5-20251101", 5, true},
		{"anthropic", "claude-opus-4-1-20250805", 15, true},
		{"anthropic", "claude-later-9", 0, false},
		{"openai", "gpt-5", 1.25, true},
		{"openai", "gpt-5-2025-08-07", 1.25, true},
		{"openai", "gpt-5-pro", 0, false},
		{"openrouter", "openai/gpt-5", 1.25, true},
		{"nobody", "gpt-5", 0, false},
		{"", "", 0, false},
	} {
		if p, known := l.Of(tt.provider, tt.model); p.Input != tt.input || known != tt.known {
			t.Errorf("Of(%s, %s) = %+v, %v, want an input of %g, %v", tt.provider, tt.model, p, known, tt.input, tt.known)
		}
	}
	if _, known := new(price.List).Of("openai", "gpt-5"); known {
		t.Error("the zero List knows a price")
	}
}

// The operator's prices precede the shipped ones, even if they are less exact.
func TestOwn(t *testing.T) {
	t.Parallel()
	l, err := load(t, `{"prices": [
		{"provider": "openai", "model": "*", "input": 7, "output": 8},
		{"provider": "openai", "model": "gpt-5*", "input": 6, "output": 8, "cache_write": 9},
		{"provider": "openai", "model": "gpt-5", "input": 0, "output": 0}
	]}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		provider, model string
		want            price.Price
	}{
		{"openai", "gpt-5", price.Price{}},
		{"openai", "gpt-5-mini", price.Price{Input: 6, Output: 8, CacheRead: 6, CacheWrite: 9}},
		{"openai", "gpt-4o", price.Price{Input: 7, Output: 8, CacheRead: 7, CacheWrite: 7}},
		{"anthropic", "claude-haiku-4-5", price.Price{Input: 1, Output: 5, CacheRead: 0.1, CacheWrite: 1.25}},
	} {
		if p, known := l.Of(tt.provider, tt.model); p != tt.want || !known {
			t.Errorf("Of(%s, %s) = %+v, %v, want %+v", tt.provider, tt.model, p, known, tt.want)
		}
	}
}

func TestCost(t *testing.T) {
	t.Parallel()
	p := price.Price{Input: 3, Output: 15, CacheRead: 0.3, CacheWrite: 3.75}
	for _, tt := range []struct {
		tokens price.Tokens
		want   int64
	}{
		{price.Tokens{}, 0},
		{price.Tokens{Input: 1_300, CacheRead: 1_000, CacheWrite: 200, Output: 10}, 100*3 + 300 + 750 + 150},
		{price.Tokens{Input: 10, CacheRead: 20}, 6}, // more from the cache than in total
		{price.Tokens{Input: 1_000_000_000, Output: 1_000_000_000}, 18_000_000_000},
	} {
		if got := p.Cost(tt.tokens); got != tt.want {
			t.Errorf("Cost(%+v) = %d, want %d", tt.tokens, got, tt.want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	const good = `"provider": "openai", "model": "m", "input": 1, "output": 1`
	for _, tt := range []struct{ name, text, want string }{
		{"no JSON", "{\n", "own.json:2: unexpected end"},
		{"nothing", "", "own.json:1: unexpected end"},
		{"broken off", "{\"prices\": [\n{\"model\": x}]}", "own.json:2: invalid character"},
		{"two", "{}\n{}", "own.json:2: invalid character"},
		{"no object", "[]", "own.json:1: array is not valid here: use {"},
		{"another field", "{\n\"models\": []}", "own.json:2: models: unknown field"},
		{"no list", "{\n\"prices\": {}}", "own.json:2: prices: object is not"},
		{"no entry", "{\"prices\": [\n7]}", "own.json:2: prices[0]: number is not"},
		{"typing error", "{\"prices\": [{" + good + "},\n{\"provider\": \"openai\",\n\"modl\": \"n\"}]}", "own.json:3: prices[1].modl: unknown field: use provider"},
		{"wrong kind", "{\"prices\": [{\"provider\": \"openai\",\n\"model\": \"n\", \"input\": \"1\"}]}", "own.json:2: prices[0].input: string is not valid here: use a number of dollars"},
		{"no provider", "{\"prices\": [{\"model\": \"n\", \"input\": 1, \"output\": 1}]}", `own.json:1: prices[0].provider: "" is not a provider's name`},
		{"no model", "{\"prices\": [{\"provider\": \"openai\", \"input\": 1, \"output\": 1}]}", "prices[0].model: "},
		{"a * inside", "{\"prices\": [{\"provider\": \"openai\", \"model\": \"a*b\", \"input\": 1, \"output\": 1}]}", "it may end in *"},
		{"no input", "{\"prices\": [{\"provider\": \"openai\", \"model\": \"n\", \"output\": 1}]}", "prices[0].input: missing"},
		{"negative", "{\"prices\": [{" + good + "}, {\"provider\": \"openai\", \"model\": \"n\",\n\"input\": 1,\n\"output\": -1}]}", "own.json:3: prices[1].output: -1 is not a price"},
		{"dear", "{\"prices\": [{\"provider\": \"openai\", \"model\": \"n\", \"input\": 1, \"output\": 1, \"cache_read\": 1e9}]}", "prices[0].cache_read: 1e+09 is not a price"},
		{"twice", "{\"prices\": [{" + good + "},\n{" + good + "}]}", "own.json:2: prices[1].model: m of openai has a price already"},
	} {
		if _, err := load(t, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Load = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
	_, err := load(t, "{\"prices\": [{\"provider\": \"openai\"},\n{\"model\": \"n\", \"input\": 1, \"output\": 1}]}")
	if err == nil || len(strings.Split(err.Error(), "\n")) != 4 {
		t.Errorf("Load = %v, want all that is wrong in a line each", err)
	}
	if _, err := price.Load(filepath.Join(t.TempDir(), "none.json")); err == nil {
		t.Error("Load of no file = nil error, want one")
	}
	if _, err := load(t, `{"prices": [`+strings.Repeat(" ", 1<<20)+`]}`); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("Load of a huge file = %v, want an error", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(`{"prices": [{"provider": "openai", "model": "*", "input": 7, "output": 8}]}`)
	f.Add("{\"prices\": [null, {}, 7, \"\"]}")
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := load(t, text); err == nil {
			l.Of("openai", "gpt-5")
		}
	})
}
