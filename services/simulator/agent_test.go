package simulator_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// agent is a small run loop: it asks, runs the tools that are called, and asks
// again until no tool is called any more.
type agent struct {
	s        *server
	p        provider
	tools    []string
	search   bool
	messages []any
	docs     []document
	used     []string
}

type document struct{ ID, Name, Content string }

type toolCall struct {
	ID, Name, Args string
}

// turn is one streamed answer, accumulated.
type turn struct {
	text, thinking string
	calls          []toolCall
	blocks         []map[string]any // Anthropic: to hand back
	events         []string         // types, in order
	stop           string
	cites          int
}

// say sends a message of a person and returns the last turn of the answer.
func (a *agent) say(t *testing.T, content any) turn {
	t.Helper()
	a.used = nil
	a.messages = append(a.messages, map[string]any{"role": "user", "content": content})
	for range 10 {
		answer := a.ask(t)
		a.keep(answer)
		if len(answer.calls) == 0 {
			return answer
		}
		a.run(answer.calls)
	}
	t.Fatal("no end after ten turns")
	return turn{}
}

func (a *agent) ask(t *testing.T) turn {
	t.Helper()
	body, err := json.Marshal(a.body())
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		resp := a.s.post(t.Context(), t, a.p, string(body))
		got, err := read(a.p, resp)
		_ = resp.Body.Close()
		if err == nil {
			return got
		}
		t.Logf("tried again after: %v", err)
	}
	t.Fatal("four failed attempts")
	return turn{}
}

func (a *agent) body() map[string]any {
	b := map[string]any{"model": "any-model", "messages": a.messages, "stream": true}
	var tools []any
	for _, name := range a.tools {
		schema := map[string]any{"type": "object"}
		if a.p.name == "anthropic" {
			tools = append(tools, map[string]any{"name": name, "input_schema": schema})
			continue
		}
		tools = append(tools, map[string]any{"type": "function", "function": map[string]any{"name": name, "parameters": schema}})
	}
	if a.search && a.p.name == "anthropic" {
		tools = append(tools, map[string]any{"type": "web_search_20250305", "name": "web_search"})
	}
	if a.search && a.p.name == "openai" {
		b["web_search_options"] = map[string]any{}
	}
	if a.search && a.p.name == "openrouter" {
		b["plugins"] = []any{map[string]any{"id": "web"}}
	}
	if tools != nil {
		b["tools"] = tools
	}
	if a.p.name == "anthropic" {
		b["max_tokens"] = 20000
	}
	return b
}

// keep adds the answer to the conversation, block for block.
func (a *agent) keep(answer turn) {
	if a.p.name == "anthropic" {
		a.messages = append(a.messages, map[string]any{"role": "assistant", "content": answer.blocks})
		return
	}
	m := map[string]any{"role": "assistant", "content": answer.text}
	var calls []any
	for _, c := range answer.calls {
		calls = append(calls, map[string]any{"id": c.ID, "type": "function", "function": map[string]any{"name": c.Name, "arguments": c.Args}})
	}
	if calls != nil {
		m["tool_calls"] = calls
	}
	a.messages = append(a.messages, m)
}

func (a *agent) run(calls []toolCall) {
	var results []any
	for _, c := range calls {
		a.used = append(a.used, c.Name)
		out := a.tool(c)
		b, err := json.Marshal(out)
		if err != nil {
			b = []byte(`{"error":"not JSON"}`)
		}
		if a.p.name != "anthropic" {
			a.messages = append(a.messages, map[string]any{"role": "tool", "tool_call_id": c.ID, "content": string(b)})
			continue
		}
		results = append(results, map[string]any{"type": "tool_result", "tool_use_id": c.ID, "content": string(b)})
	}
	if results != nil {
		a.messages = append(a.messages, map[string]any{"role": "user", "content": results})
	}
}

// tool does what the real tools do, in memory.
func (a *agent) tool(c toolCall) map[string]any {
	var args struct {
		ID       string `json:"id"`
		Name     string `json:"name"`
		Content  string `json:"content"`
		Old      string `json:"old_text"`
		New      string `json:"new_text"`
		Timezone string `json:"timezone"`
	}
	if err := json.Unmarshal([]byte(c.Args), &args); err != nil {
		return map[string]any{"error": err.Error()}
	}
	if c.Name == "get_current_datetime" {
		if args.Timezone == "Nowhere" {
			return map[string]any{"error": "unknown time zone Nowhere"}
		}
		zone := args.Timezone
		if zone == "" {
			zone = "UTC"
		}
		return map[string]any{
			"iso": "2026-11-21T14:03:00Z", "date": "2026-11-21", "time": "14:03:00", "timezone": zone,
			"utc_offset": "+01:00", "weekday": "Saturday", "unix": 1795269780,
		}
	}
	if c.Name == "calendar_list_events" {
		return map[string]any{"events": []any{map[string]any{"id": "e1", "title": "Stand-up", "start": "09:00", "end": "09:15"}}, "simulated": true}
	}
	if answer, ok := services[c.Name]; ok {
		return answer
	}
	return a.document(c.Name, args.ID, args.Name, args.Content, args.Old, args.New)
}

// services are the answers of tools that call other services.
var services = map[string]map[string]any{
	"tasks_create":     {"id": "t1", "title": "Buy tea", "status": "needsAction", "simulated": true},
	"tasks_complete":   {"id": "t1", "title": "Buy tea", "status": "completed"},
	"tasks_list":       {"tasks": []any{map[string]any{"id": "t1", "title": "Buy tea", "status": "needsAction", "due": "2026-11-30"}, map[string]any{"id": "t2", "title": "Walk"}}},
	"notion_search":    {"pages": []any{map[string]any{"id": "p1", "title": "Handbook", "url": "https://notion.example/p1"}}},
	"notion_read_page": {"id": "p1", "title": "Handbook", "content": "# How we work"},
	"browser_open":     {"url": "http://127.0.0.1:4711/", "title": "Library"},
	"browser_click":    {"result": "Clicked: link", "url": "http://127.0.0.1:4711/books/tea", "title": "The Book of Tea"},
	"browser_read":     {"url": "http://127.0.0.1:4711/", "title": "Library", "content": "[The Book of Tea] @1"},
	"read_research":    {"ok": true, "content": "# Ideas", "bytes": 7},
}

func (a *agent) document(tool, id, name, content, old, replacement string) map[string]any {
	if tool == "doc_create" {
		d := document{ID: fmt.Sprintf("0193a000-0000-7000-8000-%012d", len(a.docs)+1), Name: name, Content: content}
		a.docs = append(a.docs, d)
		return map[string]any{"id": d.ID, "name": d.Name}
	}
	if tool == "doc_list" {
		list := []any{}
		for _, d := range a.docs {
			list = append(list, map[string]any{"id": d.ID, "name": d.Name, "updated_at": "2026-11-21T14:03:00Z"})
		}
		return map[string]any{"documents": list}
	}
	for i := range a.docs {
		d := &a.docs[i]
		if d.ID != id {
			continue
		}
		switch tool {
		case "doc_read":
			return map[string]any{"id": d.ID, "name": d.Name, "content": d.Content}
		case "doc_append":
			d.Content += content
			return map[string]any{"id": d.ID}
		case "doc_edit":
			n := strings.Count(d.Content, old)
			d.Content = strings.ReplaceAll(d.Content, old, replacement)
			return map[string]any{"id": d.ID, "replacements": n}
		case "doc_delete":
			a.docs = append(a.docs[:i], a.docs[i+1:]...)
			return map[string]any{"success": true}
		}
	}
	return map[string]any{"error": "there is no document " + id}
}

// read accumulates a stream; an error is a status, an error event or a stream
// without its last event.
func read(p provider, resp *http.Response) (turn, error) {
	if resp.StatusCode != http.StatusOK {
		b, err := io.ReadAll(resp.Body)
		return turn{}, fmt.Errorf("status %d: %s %w", resp.StatusCode, b, err)
	}
	var t turn
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		data, ok := strings.CutPrefix(scan.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return t, nil
		}
		var err error
		if p.name == "anthropic" {
			err = t.anthropic(data)
		} else {
			err = t.openai(data)
		}
		if err != nil {
			return t, err
		}
		if t.events[len(t.events)-1] == "message_stop" {
			return t, nil
		}
	}
	return t, fmt.Errorf("the stream ended without its last event: %w", scan.Err())
}

func (t *turn) anthropic(data string) error {
	var e struct {
		Type  string         `json:"type"`
		Index int            `json:"index"`
		Block map[string]any `json:"content_block"`
		Error map[string]any `json:"error"`
		Delta struct {
			Type, Text, Thinking, Signature string
			Partial                         string         `json:"partial_json"`
			Stop                            string         `json:"stop_reason"`
			Citation                        map[string]any `json:"citation"`
		} `json:"delta"`
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return err
	}
	t.events = append(t.events, e.Type)
	switch e.Type {
	case "error":
		return fmt.Errorf("error event: %v", e.Error)
	case "content_block_start":
		t.blocks = append(t.blocks, e.Block)
		if e.Block["type"] == "tool_use" {
			t.calls = append(t.calls, toolCall{ID: e.Block["id"].(string), Name: e.Block["name"].(string)})
		}
	case "content_block_delta":
		b, d := t.blocks[e.Index], e.Delta
		switch d.Type {
		case "text_delta":
			t.text += d.Text
			b["text"] = b["text"].(string) + d.Text
		case "thinking_delta":
			t.thinking += d.Thinking
			b["thinking"] = b["thinking"].(string) + d.Thinking
		case "signature_delta":
			b["signature"] = d.Signature
		case "citations_delta":
			t.cites++
			b["citations"] = append(b["citations"].([]any), d.Citation)
		case "input_json_delta":
			s, _ := b["input"].(string)
			b["input"] = s + d.Partial
			if b["type"] == "tool_use" {
				t.calls[len(t.calls)-1].Args += d.Partial
			}
		}
	case "content_block_stop":
		if s, ok := t.blocks[e.Index]["input"].(string); ok {
			t.blocks[e.Index]["input"] = json.RawMessage(s)
		}
	case "message_delta":
		t.stop = e.Delta.Stop
	}
	return nil
}

func (t *turn) openai(data string) error {
	var e struct {
		Error   any `json:"error"`
		Choices []struct {
			Finish string `json:"finish_reason"`
			Delta  struct {
				Content, Reasoning string
				ReasoningContent   string `json:"reasoning_content"`
				Annotations        []any
				Calls              []struct {
					Index    int
					ID       string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			} `json:"delta"`
		} `json:"choices"`
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return err
	}
	t.events = append(t.events, "chunk")
	if e.Error != nil {
		return fmt.Errorf("error chunk: %v", e.Error)
	}
	for _, c := range e.Choices {
		t.text += c.Delta.Content
		t.thinking += c.Delta.ReasoningContent + c.Delta.Reasoning
		t.cites += len(c.Delta.Annotations)
		for _, call := range c.Delta.Calls {
			if call.ID != "" {
				t.calls = append(t.calls, toolCall{ID: call.ID, Name: call.Function.Name})
			}
			t.calls[call.Index].Args += call.Function.Arguments
		}
		if c.Finish != "" {
			t.stop = c.Finish
		}
	}
	return nil
}
