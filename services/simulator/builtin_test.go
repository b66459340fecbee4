package simulator_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/simulator"
)

func allTools() []string {
	return []string{
		"doc_create", "doc_read", "doc_edit", "doc_append", "doc_list", "doc_delete", "get_current_datetime", "calendar_list_events",
		"tasks_list", "tasks_create", "tasks_complete", "notion_search", "notion_read_page", "read_research",
		"browser_open", "browser_read", "browser_click",
	}
}

// exchange is one message of a person and what must come of it.
type exchange struct {
	say   string
	tools []string // called, in order
	want  string   // pattern of the last answer
	stop  string   // Anthropic's word; "" for end_turn
}

func newAgent(s *server, p provider, tools []string) *agent {
	return &agent{s: s, p: p, tools: tools}
}

// TestBuiltin talks to the built-in script as a newcomer would, in each dialect.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	const now = "get_current_datetime"
	stories := map[string][]exchange{
		"greeting": {{say: "Hello there!", want: "(?s)simulated provider.*create a document.*count to"}, {say: "help", want: "You can try"}},
		"echo":     {{say: "I like turtles", want: "You said: I like turtles(?s).*create a document"}},
		"documents": {
			{say: "list my documents", tools: []string{"doc_list"}, want: "no documents yet"},
			{say: "Please create a document about deep sea fishing.", tools: []string{"doc_create"}, want: `\*\*Deep sea fishing\*\*.*0193a000`},
			{say: "read it", tools: []string{"doc_read"}, want: "Deep sea fishing(?s).*## Summary"},
			{say: "append a closing thought to it", tools: []string{"doc_append"}, want: "added it to the end"},
			{say: "edit: replace Summary with In short in it", tools: []string{"doc_edit"}, want: "1 replaced"},
			{say: "read document 0193a000-0000-7000-8000-000000000001", tools: []string{"doc_read"}, want: "## In short"},
			{say: "write a note on tea", tools: []string{"doc_create"}, want: `\*\*Tea\*\*`},
			{say: "what documents do I have?", tools: []string{"doc_list"}, want: "2 documents(?s).*Deep sea fishing.*Tea"},
			{say: "read the document deep sea fishing", tools: []string{"doc_list", "doc_read"}, want: "## In short"},
			{say: "append more to the document Tea", tools: []string{"doc_list", "doc_append"}, want: "added"},
			{say: `replace "Open questions" with "Questions" in Tea`, tools: []string{"doc_list", "doc_edit"}, want: "1 replaced"},
			{say: "delete document Tea", tools: []string{"doc_list", "doc_delete"}, want: "deleted"},
			{say: "delete document 0193a000-0000-7000-8000-000000000001", tools: []string{"doc_delete"}, want: "deleted"},
			{say: "read document 0193a000-0000-7000-8000-000000000001", tools: []string{"doc_read"}, want: "did not work(?s).*`doc_read` says: there is no document"},
			{say: "read document Tea", tools: []string{"doc_list", "doc_read"}, want: "did not work(?s).*no document Tea"},
		},
		"time": {
			{say: "what time is it?", tools: []string{now}, want: "It is 14:03:00 on Saturday, 2026-11-21, in UTC"},
			{say: "What time is it in Europe/Berlin?", tools: []string{now}, want: "in Europe/Berlin"},
			{say: "what's the time in tokyo", tools: []string{now}, want: "in Asia/Tokyo"},
			{say: "what time is it in Tokyo and New York?", tools: []string{now, now}, want: "in Asia/Tokyo(?s).*in America/New_York"},
			{say: "what time is it in Nowhere", tools: []string{now}, want: "unknown time zone Nowhere"},
			{say: "what day is it", tools: []string{now}, want: "Saturday"},
		},
		"calendar": {{say: "what's on my calendar?", tools: []string{"calendar_list_events"}, want: "Stand-up(?s).*simulated"}, {say: "What is on my calendar this week?", tools: []string{"calendar_list_events"}, want: "Stand-up"}},
		"tasks": {
			{say: "add a task", tools: []string{"tasks_create"}, want: `\*\*Buy tea\*\* is on your list.*simulated`},
			{say: "Please add a task: buy tea", tools: []string{"tasks_create"}, want: "Buy tea"},
			{say: "add a to-do to call the bank", tools: []string{"tasks_create"}, want: "Buy tea"},
			{say: "what are my tasks?", tools: []string{"tasks_list"}, want: "2 tasks(?s).*Buy tea\\*\\*, due 2026-11-30.*Walk"},
			{say: "complete the task buy tea", tools: []string{"tasks_list", "tasks_complete"}, want: "is completed"},
		},
		"services": {
			{say: "search my notion for handbook", tools: []string{"notion_search"}, want: `\[Handbook\]`},
			{say: "read the notion page handbook", tools: []string{"notion_search", "notion_read_page"}, want: "Handbook(?s).*How we work"},
			{say: "what does our research say?", tools: []string{"read_research"}, want: "# Ideas"},
			{say: "read research pricing/tiers.md", tools: []string{"read_research"}, want: "# Ideas"},
		},
		"pages": {
			{say: "read http://127.0.0.1:4711/?q=tea", tools: []string{"browser_open", "browser_read"}, want: "\\*\\*Library\\*\\*(?s).*The Book of Tea"},
			{say: "click @1 on http://127.0.0.1:4711", tools: []string{"browser_click", "browser_read"}, want: "The Book of Tea"},
		},
		"thinking": {{say: "think about habits", want: "thought about habits"}},
		"counting": {{say: "count to 25", want: `^1 2 3 (?s).*\n21 22 23 24 25$`}},
		"story":    {{say: "write a long story", want: "(?s)^# The last lamp.*## Chapter 2"}},
		"failures": {
			{say: "simulate an overload", want: "overloaded twice"},
			{say: "simulate a rate limit", want: "429"},
			{say: "simulate a server error", want: "500 once"},
			{say: "simulate an error inside the stream", want: "second one"},
			{say: "simulate a broken stream", want: "^This sentence was begun, and the connection broke"},
			{say: "simulate a cut stream", want: "second attempt, whole"},
			{say: "simulate a reset", want: "second attempt, whole"},
			{say: "simulate a refusal", want: "cannot help", stop: "refusal"},
			{say: "simulate a token limit", want: "in the middle of a$", stop: "max_tokens"},
			{say: "simulate an overload", want: "overloaded twice"},
		},
	}
	for _, p := range providers() {
		for name, story := range stories {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				a := newAgent(s, p, allTools())
				for _, e := range story {
					got := a.say(t, e.say)
					if !slices.Equal(a.used, e.tools) {
						t.Errorf("%q called %v, want %v", e.say, a.used, e.tools)
					}
					if !regexp.MustCompile(e.want).MatchString(got.text) {
						t.Errorf("%q was answered with %q, want %q", e.say, got.text, e.want)
					}
					if want := stopWord(p, e.stop); got.stop != want {
						t.Errorf("%q stopped because of %q, want %q", e.say, got.stop, want)
					}
				}
			})
		}
	}
}

// stopWord is a dialect's word for a reason to stop.
func stopWord(p provider, reason string) string {
	words := map[string]string{"": "stop", "refusal": "content_filter", "max_tokens": "length"}
	if p.name != "anthropic" {
		return words[reason]
	}
	if reason == "" {
		return "end_turn"
	}
	return reason
}

// TestBuiltinWithoutTools checks that a tool which is not offered is not called.
func TestBuiltinWithoutTools(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(s, p, nil)
			for say, tool := range map[string]string{
				"create a document about tea": "doc_create", "list my documents": "doc_list", "what time is it?": "get_current_datetime",
				"search for tea": "web_search", "what's on my calendar": "calendar_list_events", "delete document tea": "doc_delete",
			} {
				got := a.say(t, say)
				if !strings.Contains(got.text, "`"+tool+"`") || !strings.Contains(got.text, "not enabled") {
					t.Errorf("%q was answered with %q, want it to say that %s is not enabled", say, got.text, tool)
				}
			}
		})
	}
}

// TestBuiltinSearch checks the search and its citations.
func TestBuiltinSearch(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(s, p, nil)
			a.search = true
			got := a.say(t, "search for lighthouses")
			if got.cites != 3 || !strings.Contains(got.text, "Here is what I found.") {
				t.Errorf("the search gave %d citations and %q, want 3", got.cites, got.text)
			}
			if again := a.say(t, "hello"); !strings.Contains(again.text, "You can try") {
				t.Errorf("after a search, hello was answered with %q", again.text)
			}
			if p.name != "anthropic" {
				return
			}
			var kinds []string
			for _, b := range got.blocks {
				kinds = append(kinds, b["type"].(string))
			}
			want := []string{"text", "server_tool_use", "web_search_tool_result", "text", "text", "text", "text", "text"}
			if diff := cmp.Diff(want, kinds); diff != "" {
				t.Errorf("blocks of a search (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBuiltinThinking checks that reasoning is shown in each dialect, and that
// blocks with signatures are taken back.
func TestBuiltinThinking(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(s, p, allTools())
			if got := a.say(t, "think about tea"); !strings.Contains(got.thinking, "Let me think about tea.") {
				t.Errorf("the thinking is %q", got.thinking)
			}
			a.say(t, "create a document about tea")
			if len(a.docs) != 1 || len(strings.Fields(a.docs[0].Content)) < 200 {
				t.Errorf("documents = %+v, want one of at least 200 words", a.docs)
			}
		})
	}
}

// TestBuiltinFiles checks that file parts are described.
func TestBuiltinFiles(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	const png = "iVBORw0KGgo="
	text := map[string]any{"type": "text", "text": "what do you see?"}
	contents := map[string][]any{
		"anthropic": {text, map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": "image/png", "data": png}}},
		"openai":    {text, map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:image/png;base64," + png}}},
	}
	contents["openrouter"] = contents["openai"]
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			got := newAgent(s, p, nil).say(t, contents[p.name])
			if !strings.Contains(got.text, "1 file part") || !strings.Contains(got.text, "image/png, 8 bytes") {
				t.Errorf("the answer to a file is %q", got.text)
			}
		})
	}
}

// TestBuiltinPlatform checks what the platform itself asks: titles and summaries.
func TestBuiltinPlatform(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	p := providers()[0]
	_, _, body := s.ask(t, p, `{"model":"m","max_tokens":100,"system":"Write a short title for this conversation.","messages":[{"role":"user","content":"create a document about the history of the tea trade in Asia and Europe"}]}`)
	if !strings.Contains(body, `"text":"Create a document about the history of the tea t…"`) {
		t.Errorf("the title is %s", body)
	}
	_, _, body = s.ask(t, p, `{"model":"m","max_tokens":100,"system":"Summarise the conversation so far.","messages":[{"role":"user","content":"hello"}]}`)
	if !strings.Contains(body, "Summary: ") {
		t.Errorf("the summary is %s", body)
	}
	_, _, body = s.ask(t, p, `{"model":"m","max_tokens":1000,"system":"Give documents a short title. Summarise long conversations.",
		"tools":[{"name":"get_current_datetime","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"hello"}]}`)
	if !strings.Contains(body, "You can try") {
		t.Errorf("with a chat's own prompt, hello is answered with %s", body)
	}
}
