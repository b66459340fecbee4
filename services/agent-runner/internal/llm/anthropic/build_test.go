package anthropic_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
)

func TestBuildGolden(t *testing.T) {
	t.Parallel()
	for _, c := range llmtest.Conversations() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			body, err := anthropic.Build(&c.Req)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := anthropic.Build(&c.Req)
			if !bytes.Equal(body, again) {
				t.Errorf("Build gives other bytes the second time:\n%s\n%s", body, again)
			}
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, body, "", "  "); err != nil {
				t.Fatalf("Build = %s: %v", body, err)
			}
			pretty.WriteByte('\n')
			llmtest.Golden(t, filepath.Join("testdata/build", c.Name+".json"), pretty.Bytes())
			checkRules(t, body)
		})
	}
}

type wireBlock struct {
	Type         string          `json:"type"`
	ID           string          `json:"id"`
	ToolUseID    string          `json:"tool_use_id"`
	Text         *string         `json:"text"`
	CacheControl json.RawMessage `json:"cache_control"`
}

type wireBody struct {
	System   []wireBlock `json:"system"`
	Tools    []wireBlock `json:"tools"`
	Messages []struct {
		Role    string      `json:"role"`
		Content []wireBlock `json:"content"`
	} `json:"messages"`
}

// checkRules checks what the API demands of every request.
func checkRules(t *testing.T, body []byte) {
	t.Helper()
	var b wireBody
	if err := json.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	breaks := 0
	count := func(blocks []wireBlock) {
		for _, blk := range blocks {
			if blk.CacheControl != nil {
				breaks++
			}
		}
	}
	count(b.System)
	count(b.Tools)
	if len(b.Messages) == 0 || b.Messages[0].Role != "user" {
		t.Fatal("the first message is not the user's")
	}
	ids := map[string]bool{}
	for i, m := range b.Messages {
		count(m.Content)
		if len(m.Content) == 0 {
			t.Errorf("message %d is empty", i)
		}
		if i > 0 && b.Messages[i-1].Role == m.Role {
			t.Errorf("messages %d and %d are both the %s's", i-1, i, m.Role)
		}
		var want, got []string
		for _, blk := range m.Content {
			if blk.Type == "text" && strings.TrimSpace(*blk.Text) == "" {
				t.Errorf("message %d has a blank text", i)
			}
			if blk.Type == "tool_use" {
				if ids[blk.ID] {
					t.Errorf("the id %s is used twice", blk.ID)
				}
				ids[blk.ID] = true
				want = append(want, blk.ID)
			}
		}
		if i+1 < len(b.Messages) {
			for _, blk := range b.Messages[i+1].Content {
				if blk.Type == "tool_result" {
					got = append(got, blk.ToolUseID)
				}
			}
		}
		if strings.Join(want, " ") != strings.Join(got, " ") {
			t.Errorf("message %d calls %q, the next one answers %q", i, want, got)
		}
	}
	if breaks > 4 {
		t.Errorf("%d cache breakpoints, at most 4 are taken", breaks)
	}
}

// What the provider sent goes back to it byte for byte.
func TestBuildRawVerbatim(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		s := llm.NewStream(bytes.NewReader(stream), newDecoder(), llm.Limits{})
		for s.Next() {
		}
		resp := s.Response()
		if resp == nil {
			continue // is no whole answer
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := anthropic.Build(&llm.Request{Model: "m", Continue: resp.Paused, Messages: []llm.Message{
				{Role: llm.User, Content: []byte(`"hi"`)}, {Role: llm.Assistant, Content: resp.Content, Raw: resp.Raw},
			}})
			if err != nil {
				t.Fatal(err)
			}
			want := bytes.Trim(resp.Raw.Blocks, "[]")
			switch name {
			case "text_empty", "result_without_name":
				want = nil // an empty text, or a result whose call is not there, is not taken back
			}
			if !bytes.Contains(body, want) {
				t.Errorf("Build = %s, want %s in it", body, want)
			}
			checkRules(t, body)
		})
	}
}

func TestBuildRefusesFiles(t *testing.T) {
	t.Parallel()
	tests := []struct{ part, want string }{
		{`{"type":"file","mediaType":"audio/wav","data":"AAAA","filename":"a.wav"}`, `The file "a.wav" cannot be sent to this model: it reads images (PNG, JPEG, GIF, WebP), PDF and text, not audio/wav.`},
		{`{"type":"file","mediaType":"text/plain","data":"https://x.test/a"}`, "attached, not linked"},
		{`{"type":"file","mediaType":"text/plain","data":"//79"}`, "not UTF-8"},
	}
	for _, tt := range tests {
		_, err := anthropic.Build(&llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: []byte("[" + tt.part + "]")}}})
		e, ok := errors.AsType[*llm.Error](err)
		if !ok || e.Kind != llm.KindInvalid || e.Retryable || !strings.Contains(e.Message, tt.want) {
			t.Errorf("Build with %s = %v, want %q", tt.part, err, tt.want)
		}
	}
	_, err := anthropic.Build(&llm.Request{Messages: []llm.Message{{Role: llm.User, Content: []byte(`{`)}}})
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Kind != llm.KindInvalid {
		t.Errorf("Build with broken content = %v, want an invalid-request error", err)
	}
}

// Only a schema that the API can enforce is sent, and not with the provider's own search, whose
// citations exclude it.
func TestBuildFormat(t *testing.T) {
	t.Parallel()
	object := func(property string) string {
		return `{"type":"object","properties":{"a":` + property + `},"required":["a"],"additionalProperties":false}`
	}
	search := []llm.ToolDef{{Name: "web_search", Provider: anthropic.Dialect, Definition: json.RawMessage(`{"type":"web_search_20250305","name":"web_search"}`)}}
	union := `{"anyOf":[{"type":"string"},` + strings.Repeat(`{"anyOf":[{"type":"string"}]},`, 16) + `{"type":"null"}]}`
	for _, tt := range []struct {
		schema string
		tools  []llm.ToolDef
		want   bool
	}{
		{object(`{"type":"string"}`), nil, true},
		{object(`{"type":"string"}`), search, false},
		{object(`{"$ref":"#"}`), nil, false},
		{object(union), nil, false},
		{`{"type":"object"}`, nil, false},
		{"", nil, false},
	} {
		req := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: json.RawMessage(`"hi"`)}}, Format: json.RawMessage(tt.schema), Tools: tt.tools}
		body, err := anthropic.Build(&req)
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if tt.want {
			want = `{"format":{"type":"json_schema","schema":` + tt.schema + `}}`
		}
		var got struct {
			Output json.RawMessage `json:"output_config"`
		}
		if err := json.Unmarshal(body, &got); err != nil || string(got.Output) != want {
			t.Errorf("Build with the schema %s and %d tools asks for %s, %v, want %s", tt.schema, len(tt.tools), got.Output, err, want)
		}
	}
}
