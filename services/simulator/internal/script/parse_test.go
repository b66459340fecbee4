package script_test

import (
	"strings"
	"testing"

	"signalbox.dev/services/simulator/internal/script"
)

// TestParseErrors checks that an error of a script says where it is.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, in, want string }{
		{"empty", ``, `x.yaml:1: a script is one YAML document`},
		{"not yaml", "rules: [\n", `x.yaml:1:8: `},
		{"two documents", "rules: [{then: [{say: a}]}]\n---\nrules: []\n", `x.yaml:1: a script is one YAML document`},
		{"no rules", "name: a\n", `x.yaml: rules: a script needs at least one rule`},
		{"no actions", "rules:\n  - name: a\n", `x.yaml: rules[0].then: rule "a" does nothing`},
		{"unknown field", "rules:\n  - then: [{say: a}]\n    wann: {}\n", `x.yaml:3:5: rules[0].wann: unknown field "wann"`},
		{"unknown condition", "rules:\n  - when: {users: a}\n    then: [{say: a}]\n", `x.yaml:2:12: rules[0].when.users: unknown field "users"`},
		{"unknown action", "rules:\n  - then:\n      - sya: a\n", `x.yaml:3:9: rules[0].then[0].sya: unknown action "sya": use say, think`},
		{"two actions", "rules:\n  - then:\n      - say: a\n        wait: 1s\n", `x.yaml:4:9: rules[0].then[0].wait: an action has one key`},
		{"unknown field of an action", "rules:\n  - then:\n      - say: {text: a, dely: 1s}\n", `x.yaml:3:24: rules[0].then[0].say.dely: unknown field "dely"`},
		{"pattern", "rules:\n  - when:\n      user: '('\n    then: [{say: a}]\n", `x.yaml:3:13: rules[0].when.user: not a regular expression`},
		{"duration", "rules:\n  - then: [{wait: soon}]\n", `x.yaml:2:19: rules[0].then[0].wait: "soon" is not a duration`},
		{"long duration", "rules:\n  - then: [{wait: 11m}]\n", `x.yaml:2:19: rules[0].then[0].wait: 11m is out of range`},
		{"template", "rules:\n  - then:\n      - say: 'a {{.match.x'\n", `x.yaml:3:14: rules[0].then[0].say: text:1: unclosed action`},
		{"template in arguments", "rules:\n  - then:\n      - call: {tool: a, args: {x: '{{nope}}'}}\n", `x.yaml:3:31: rules[0].then[0].call.args: text:1: function "nope" not defined`},
		{"failure", "rules:\n  - then: [{fail: tired}]\n", `x.yaml:2:19: rules[0].then[0].fail: unknown kind of failure "tired"`},
		{"status", "rules:\n  - then: [{fail: {kind: invalid, status: 200}}]\n", `status 200 is no error`},
		{"for", "rules:\n  - then: [{fail: {kind: reset, for: 1s}}]\n", `for belongs to stall`},
		{"for and torn", "rules:\n  - then: [{fail: {kind: stall, for: 1s, torn: true}}]\n", `leave out for`},
		{"torn error", "rules:\n  - then: [{fail: {kind: overloaded, torn: true}}]\n", `torn belongs to stall`},
		{"late and torn", "rules:\n  - then: [{fail: {kind: cut, late: true, torn: true}}]\n", `not beside late`},
		{"break", "rules:\n  - then: [{call: {tool: t, break: -1}}]\n", `break is not negative`},
		{"scope", "rules:\n  - then: [{fail: {kind: reset, scope: world}}]\n", `unknown scope "world"`},
		{"stop", "rules:\n  - then: [{stop: tired}]\n", `x.yaml:2:19: rules[0].then[0].stop: unknown reason to stop "tired"`},
		{"usage", "rules:\n  - then: [{usage: {inputs: 1}}]\n", `unknown usage field "inputs"`},
		{"chunk", "rules:\n  - then: [{say: {text: a, chunk: sentence}}]\n", `x.yaml:2:35: rules[0].then[0].say.chunk: "sentence" is not known`},
		{"chunk of nothing", "rules:\n  - then: [{say: {text: a, chunk: 0}}]\n", `a chunk has at least one character`},
		{"block", "rules:\n  - then: [{block: {start: '{'}}]\n", `x.yaml:2:28: rules[0].then[0].block.start: not valid JSON`},
		{"interleave", "rules:\n  - then: [{interleave: [{wait: 1s}, {say: a}]}]\n", `interleave takes say, think, call and block only`},
		{"type", "rules:\n  - name: [a]\n    then: [{say: a}]\n", `x.yaml:2:11: rules[0].name: "[" does not fit: a value of type string is wanted`},
		{"number", "rules:\n  - when: {turn: first}\n    then: [{say: a}]\n", `x.yaml:2:18: rules[0].when.turn: "first" does not fit: a value of type int is wanted`},
		{"twice", "rules:\n  - name: a\n    name: b\n", `x.yaml:3:5: `},
		{"alias", "rules:\n  - &a {then: [{say: a}]}\n  - *a\n", `aliases are not supported`},
		{"reasoning", "reasoning: loud\nrules: [{then: [{say: a}]}]\n", `reasoning: "loud" is not known`},
		{"name", "name: A B\nrules: [{then: [{say: a}]}]\n", `name: "A B" is not a script name`},
		{"otherwise", "rules: [{then: [{say: a}], otherwise: [{say: b}]}]\n", `rules[0].otherwise: never done`},
		{"deep flow", "rules: " + strings.Repeat("[", 5000), `x.yaml:1: nested too deeply`},
		{"deep list", "rules:\n" + strings.Repeat("- ", 5000) + "a\n", `x.yaml:2: nested too deeply`},
		{"long", "# " + strings.Repeat("x", script.MaxBytes), `a script may be`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := script.Parse("x.yaml", []byte(c.in))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Parse(%q) = %v, want an error with %q", c.in, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("Parse(%q) gave an error of several lines: %v", c.in, err)
			}
		})
	}
}

// TestTemplatesEndSoon checks that templates which could run for long are refused
// when the script is loaded.
func TestTemplatesEndSoon(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{{range 1000000000}}{{end}}`,
		`{{$n := 1000000000}}{{range $n}}{{end}}`,
		`{{range (len .user)}}{{end}}`,
		`{{range .a}}{{range .b}}{{range .c}}{{end}}{{end}}{{end}}`,
		`{{define "x"}}{{template "x"}}{{end}}`,
		`{{template "text" .}}`,
		`{{block "x" .}}{{end}}`,
		`{{printf "%99999999d" 1}}`,
		`{{call .user}}`,
		`{{html .user}}`,
		`{{if (printf "%9d" 1)}}{{end}}`,
		`{{(printf "%9d" 1).x}}`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if _, err := script.Parse("x.yaml", []byte("rules:\n  - then:\n      - say: '"+text+"'\n")); err == nil {
				t.Errorf("Parse accepted the template %s", text)
			}
		})
	}
}

// FuzzParse checks that no text makes Parse fail in any way but an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte("rules:\n  - when: {user: '(?P<a>.*)', turn: 1}\n    then: [{say: '{{.match.a}}'}, {call: {tool: t, args: {a: [1, '{{.user}}']}}}]\n"))
	f.Add([]byte("rules: [{then: [{fail: {kind: stall, for: 1s, times: 2}}, {interleave: [{say: a}, {think: b}]}]}]"))
	f.Add([]byte("rules:\n  - then:\n      - search: {query: a, results: [{url: b, title: c, text: d}]}\n      - block: {start: '{}'}\n"))
	f.Fuzz(func(t *testing.T, source []byte) {
		s, err := script.Parse("fuzz.yaml", source)
		if (s == nil) == (err == nil) {
			t.Fatalf("Parse(%q) = %v, %v", source, s, err)
		}
	})
}
