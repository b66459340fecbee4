package script_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/script"
	"signalbox.dev/services/simulator/internal/tally"
)

func counts() *tally.Tally {
	return tally.New(1000, time.Minute, func() time.Time { return time.Unix(0, 0) })
}

func parse(t *testing.T, source string) *script.Script {
	t.Helper()
	s, err := script.Parse("x.yaml", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func user(text string) chat.Message {
	return chat.Message{Role: chat.User, Parts: []chat.Part{{Kind: chat.TextPart, Text: text}}}
}

func calls(ids ...string) chat.Message {
	m := chat.Message{Role: chat.Assistant}
	for _, id := range ids {
		tool, _, _ := strings.Cut(id, "-")
		m.Parts = append(m.Parts, chat.Part{Kind: chat.CallPart, ID: id, Name: tool, Args: json.RawMessage(`{"n":1}`)})
	}
	return m
}

func result(id, text string) chat.Message {
	return chat.Message{Role: chat.Tool, Parts: []chat.Part{{Kind: chat.ResultPart, ID: id, Text: text}}}
}

// TestRules checks each condition: which rule answers which request.
func TestRules(t *testing.T) {
	t.Parallel()
	s := parse(t, `
rules:
  - {name: system, when: {system: secret}, then: [{say: x}]}
  - {name: model, when: {model: '^big'}, then: [{say: x}]}
  - {name: key, when: {key: '^vip'}, then: [{say: x}]}
  - {name: file, when: {file: '^image/'}, then: [{say: x}]}
  - {name: router, when: {dialect: openrouter}, then: [{say: x}]}
  - {name: both tools, when: {tool: [a, b]}, then: [{say: x}]}
  - {name: no tool, when: {user: tool, missing: a}, then: [{say: x}]}
  - {name: thinking, when: {thinking: true}, then: [{say: x}]}
  - {name: streaming, when: {stream: true}, then: [{say: x}]}
  - {name: continued, when: {continued: true}, then: [{say: x}]}
  - {name: failed, when: {result: {tool: r, error: true}}, then: [{say: x}]}
  - {name: matched, when: {result: {match: '"id":"(?P<id>\w+)"'}}, then: [{say: x}]}
  - {name: result, when: {result: {tool: r}}, then: [{say: x}]}
  - {name: third, when: {turn: 3}, then: [{say: x}]}
  - {name: known, when: {known: r}, then: [{say: x}]}
  - {name: user, when: {user: '(?i)^hello (?P<who>\w+)'}, then: [{say: x}]}
  - {name: otherwise, then: [{say: x}]}
`)
	cases := []struct {
		want string
		req  chat.Request
	}{
		{"otherwise", chat.Request{Messages: []chat.Message{user("hi")}}},
		{"user", chat.Request{Messages: []chat.Message{user("Hello you")}}},
		{"system", chat.Request{System: "a secret", Messages: []chat.Message{user("hi")}}},
		{"model", chat.Request{Model: "big-1", Messages: []chat.Message{user("hi")}}},
		{"key", chat.Request{Key: "vip-1", Messages: []chat.Message{user("hi")}}},
		{"file", chat.Request{Messages: []chat.Message{{Role: chat.User, Parts: []chat.Part{{Kind: chat.FilePart, Media: "image/png"}}}}}},
		{"router", chat.Request{Dialect: chat.OpenRouter, Messages: []chat.Message{user("hi")}}},
		{"both tools", chat.Request{Tools: []chat.ToolSpec{{Name: "a"}, {Name: "b"}}, Messages: []chat.Message{user("hi")}}},
		{"no tool", chat.Request{Tools: []chat.ToolSpec{{Name: "b"}}, Messages: []chat.Message{user("tool")}}},
		{"thinking", chat.Request{Thinking: true, Messages: []chat.Message{user("hi")}}},
		{"streaming", chat.Request{Stream: true, Messages: []chat.Message{user("hi")}}},
		{"continued", chat.Request{Messages: []chat.Message{user("hi"), calls()}}},
		{"failed", chat.Request{Messages: []chat.Message{user("hi"), calls("r-1"), result("r-1", `{"error":"no"}`)}}},
		{"matched", chat.Request{Messages: []chat.Message{user("hi"), calls("r-1"), result("r-1", `{"id":"d1"}`)}}},
		{"result", chat.Request{Messages: []chat.Message{user("hi"), calls("r-1"), result("r-1", `text`)}}},
		{"third", chat.Request{Messages: []chat.Message{user("hi"), calls("r-1"), result("r-1", "x"), calls("q-1"), result("q-1", "x")}}},
		{"known", chat.Request{Messages: []chat.Message{user("hi"), calls("r-1"), result("r-1", "x"), user("and?")}}},
	}
	for _, c := range cases {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			a, err := s.Answer(&c.req, counts())
			if err != nil {
				t.Fatal(err)
			}
			if a.Rule != c.want {
				t.Errorf("rule = %q, want %q", a.Rule, c.want)
			}
		})
	}
}

// TestTemplates checks what templates see and can do.
func TestTemplates(t *testing.T) {
	t.Parallel()
	req := &chat.Request{
		Dialect: chat.Anthropic, Model: "m", System: "s",
		Messages: []chat.Message{
			user("old"), calls("old-1"), result("old-1", `{"id":"o1"}`),
			user("find The Plan"), calls("list-1", "time-1"),
			result("list-1", `{"documents":[{"id":"a","name":"A plan"},{"id":"b","name":"The Plan B"}],"n":9007199254740993}`), result("time-1", "noon"),
		},
	}
	cases := []struct{ text, want string }{
		{`{{.match.what}}`, "The Plan"},
		{`{{.user}} {{.model}} {{.turn}}`, "find The Plan m 2"},
		{`{{.result.list.n}}`, "9007199254740993"},
		{`{{.result.time}}`, "noon"},
		{`{{.last.old.id}}`, "o1"},
		{`{{get .result "missing" "id" | default "none"}}`, "none"},
		{`{{with find .result.list.documents "name" .match.what}}{{.id}}{{end}}`, "b"},
		{`{{range .latest}}{{.tool}}={{json .args}};{{end}}`, `list={"n":1};time={"n":1};`},
		{`{{json .result.list.documents}}`, `[{"id":"a","name":"A plan"},{"id":"b","name":"The Plan B"}]`},
		{`{{range first 1 .result.list.documents}}{{.name}}{{end}}`, "A plan"},
		{`{{count 12}}`, "1 2 3 4 5 6 7 8 9 10\n11 12"},
		{`{{title "éa"}} {{upper "a"}} {{lower "A"}} {{trim " a "}} {{truncate 3 "abcdef"}}`, "Éa A a a abc…"},
		{`{{zone "New York"}} {{zone "Mars"}} {{zone "Asia/Tokyo"}}`, "America/New_York Mars Asia/Tokyo"},
	}
	for _, c := range cases {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			s := parse(t, "rules:\n  - when: {user: 'find (?P<what>.*)'}\n    then:\n      - say: {text: '"+c.text+"', chunk: all}\n")
			a, err := s.Answer(req, counts())
			if err != nil {
				t.Fatal(err)
			}
			if got := a.Blocks()[0].Pieces[0]; got != c.want {
				t.Errorf("%s = %q, want %q", c.text, got, c.want)
			}
		})
	}
}

// TestTemplateErrors checks that a template which does not fit its data is an
// error that names script, rule and action, not an empty text.
func TestTemplateErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{{.result.doc_create.id}}`: `rule r: then[0]`,
		`{{count .user}}`:           `not a whole number`,
		`{{range .results}}{{end}}{{story 10000}}{{story 10000}}{{story 10000}}{{story 10000}}{{story 10000}}{{story 10000}}`: `more than 262144 bytes`,
	} {
		s := parse(t, "rules:\n  - name: r\n    then:\n      - say: '"+text+"'\n")
		if _, err := s.Answer(&chat.Request{Messages: []chat.Message{user("hi")}}, counts()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s = %v, want an error with %q", text, err, want)
		}
	}
}

// TestChunks checks how texts are cut, and that nothing is lost.
func TestChunks(t *testing.T) {
	t.Parallel()
	cases := []struct {
		chunk string
		want  []string
	}{
		{"word", []string{"Ünë", " 2", "\n\n3", " "}},
		{"all", []string{"Ünë 2\n\n3 "}},
		{"line", []string{"Ünë 2\n", "\n", "3 "}},
		{"4", []string{"Ünë ", "2\n\n3", " "}},
		{"[1, 3]", []string{"Ü", "në ", "2", "\n\n3", " "}},
	}
	for _, c := range cases {
		t.Run(c.chunk, func(t *testing.T) {
			t.Parallel()
			s := parse(t, "rules:\n  - then:\n      - say: {text: \"Ünë 2\\n\\n3 \", chunk: "+c.chunk+"}\n")
			a, err := s.Answer(&chat.Request{Messages: []chat.Message{user("hi")}}, counts())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, a.Blocks()[0].Pieces); diff != "" {
				t.Errorf("chunk %s (-want +got):\n%s", c.chunk, diff)
			}
		})
	}
}

// TestNeeds checks what is said when a tool is not offered.
func TestNeeds(t *testing.T) {
	t.Parallel()
	s := parse(t, `
rules:
  - {name: own, when: {user: own}, needs: a, then: [{call: a}], otherwise: [{say: own words}]}
  - {name: given, needs: [a, b], then: [{call: a}]}
`)
	for text, want := range map[string]string{"own": "own words", "given": "I would use `b` for this, but it is not enabled in this session. Enable it and ask me again."} {
		req := &chat.Request{Messages: []chat.Message{user(text)}}
		if text == "given" {
			req.Tools = []chat.ToolSpec{{Name: "a"}}
		}
		a, err := s.Answer(req, counts())
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(a.Blocks()[0].Pieces, ""); got != want {
			t.Errorf("%s: said %q, want %q", text, got, want)
		}
	}
}

// TestLibrary checks how scripts are found, loaded, replaced and removed.
func TestLibrary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one.yaml", "description: first\nrules: [{then: [{say: a}]}]\n")
	write("two.yaml", "name: other\nmodels: [gpt-sim]\nrules: [{then: [{say: a}]}]\n")
	write("ignored.txt", "not a script")
	l, err := script.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := func(model string) string {
		if s := l.Find(model); s != nil {
			return s.Name
		}
		return ""
	}
	want := map[string]string{
		"claude": "builtin", "sim/builtin": "builtin", "sim/default": "builtin", "sim/one": "one", "sim/one/claude": "one",
		"sim/none": "", "sim/other": "", "sim/": "",
	}
	for model, name := range want {
		if got := found(model); got != name {
			t.Errorf("Find(%q) = %q, want %q", model, got, name)
		}
	}
	if _, err := l.Put("one", []byte("rules: [{then: [{say: b}]}, {then: [{say: c}]}]")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Put("builtin", []byte("rules: [{then: [{say: b}]}]")); err == nil {
		t.Error("Put replaced the built-in script")
	}
	if _, err := l.Put("Bad Name", []byte("rules: [{then: [{say: b}]}]")); err == nil {
		t.Error("Put took a bad name")
	}
	if got := len(l.Find("sim/one").Rules); got != 2 {
		t.Errorf("after Put the script has %d rules, want 2", got)
	}
	if !l.Remove("one") || len(l.Find("sim/one").Rules) != 1 {
		t.Error("Remove did not go back to the script of the file")
	}
	if l.Remove("none") {
		t.Error("Remove(none) = true, want false")
	}
	if _, err := l.Put("new", []byte("rules: [{then: [{say: b}]}]")); err != nil || found("sim/new") != "new" {
		t.Errorf("Put(new) = %v, Find gives %q", err, found("sim/new"))
	}
	l.Reset()
	if found("sim/new") != "" {
		t.Error("Reset kept a script that was put")
	}
	single, err := script.Open(filepath.Join(dir, "one.yaml"))
	if err != nil || single.Find("claude").Name != "one" {
		t.Errorf("Open(file) = %v, want it as the default script", err)
	}
}

// TestReference checks that the example of the reference is a script.
func TestReference(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("README.md has no example")
	}
	parse(t, example)
}

// TestOpenErrors checks that a script which cannot be loaded is named.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("rules:\n  - then: [{sing: a}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		bad:                          bad + ":2:13: rules[0].then[0].sing: unknown action",
		dir:                          bad + ":2:13:",
		t.TempDir():                  "no *.yaml file",
		filepath.Join(dir, "a.yaml"): "no such file",
	} {
		if _, err := script.Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, want an error with %q", path, err, want)
		}
	}
}
