package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

func TestBuildGolden(t *testing.T) {
	t.Parallel()
	for _, flavor := range []openai.Flavor{openai.OpenAI, openai.OpenRouter, openai.Compatible} {
		for _, c := range llmtest.Conversations() {
			name := c.Name + "." + flavor.Dialect()
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				body, err := openai.Build(&c.Req, flavor)
				if c.Name == "files" && flavor == openai.Compatible {
					if err == nil {
						t.Fatal("Build with a PDF = nil error, want a refusal")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				again, _ := openai.Build(&c.Req, flavor)
				if !bytes.Equal(body, again) {
					t.Errorf("Build gives other bytes the second time:\n%s\n%s", body, again)
				}
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, body, "", "  "); err != nil {
					t.Fatalf("Build = %s: %v", body, err)
				}
				pretty.WriteByte('\n')
				llmtest.Golden(t, filepath.Join("testdata/build", name+".json"), pretty.Bytes())
				checkRules(t, body)
			})
		}
	}
}

// checkRules checks what the API demands of every request.
func checkRules(t *testing.T, body []byte) {
	t.Helper()
	var b struct {
		Messages []struct {
			Role       string          `json:"role"`
			Content    json.RawMessage `json:"content"`
			ToolCallID string          `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string `json:"id"`
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	var open []string
	asked := false
	for i, m := range b.Messages {
		if m.Role == "tool" {
			if len(open) == 0 || open[0] != m.ToolCallID {
				t.Fatalf("message %d answers %q, the open calls are %q", i, m.ToolCallID, open)
			}
			open = open[1:]
			continue
		}
		if len(open) > 0 {
			t.Fatalf("message %d comes before the results of %q", i, open)
		}
		asked = asked || m.Role == "user"
		if m.Role == "assistant" && !asked {
			t.Errorf("message %d is an answer before any question", i)
		}
		for _, c := range m.ToolCalls {
			open = append(open, c.ID)
			if !json.Valid([]byte(c.Function.Arguments)) || len(c.ID) > 40 {
				t.Errorf("the call %+v cannot be sent", c)
			}
		}
	}
	if last := len(b.Messages) - 1; last < 0 || b.Messages[last].Role == "assistant" || len(open) > 0 {
		t.Errorf("the conversation does not end with a question")
	}
}

// What the provider sent goes back to it byte for byte, as far as it takes it back.
func TestBuildRawVerbatim(t *testing.T) {
	t.Parallel()
	for name, stream := range llmtest.Streams(t, streamsDir) {
		s := llm.NewStream(bytes.NewReader(stream), openai.NewDecoder(openai.OpenRouter, "", llm.Limits{}), llm.Limits{})
		for s.Next() {
		}
		resp := s.Response()
		if resp == nil {
			continue // is no whole answer
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := openai.Build(&llm.Request{Model: "m", Messages: []llm.Message{
				{Role: llm.User, Content: []byte(`"hi"`)}, {Role: llm.Assistant, Content: resp.Content, Raw: resp.Raw},
			}}, openai.OpenRouter)
			if err != nil {
				t.Fatal(err)
			}
			if want := resp.Raw.Blocks[1 : len(resp.Raw.Blocks)-1]; !bytes.Contains(body, want) {
				t.Errorf("Build = %s, want %s in it", body, want)
			}
			checkRules(t, body)
		})
	}
}

func TestBuildRefusesFiles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		flavor     openai.Flavor
		part, want string
	}{
		{openai.OpenAI, `{"type":"file","mediaType":"video/mp4","data":"AAAA","filename":"a.mp4"}`, `The file "a.mp4" cannot be sent to this model: it reads images, PDF, text and audio (WAV, MP3), not video/mp4.`},
		{openai.OpenAI, `{"type":"file","mediaType":"application/pdf","data":"https://x.test/a"}`, "attached, not linked"},
		{openai.OpenAI, `{"type":"file","mediaType":"image/svg+xml","data":"AAAA"}`, "SVG"},
		{openai.Compatible, `{"type":"file","mediaType":"application/pdf","data":"AAAA"}`, "it reads images and text, not application/pdf"},
		{openai.Compatible, `{"type":"file","mediaType":"text/plain","data":"//79"}`, "not UTF-8"},
	}
	for _, tt := range tests {
		_, err := openai.Build(&llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: []byte("[" + tt.part + "]")}}}, tt.flavor)
		e, ok := errors.AsType[*llm.Error](err)
		if !ok || e.Kind != llm.KindInvalid || e.Retryable || !strings.Contains(e.Message, tt.want) {
			t.Errorf("Build with %s = %v, want %q", tt.part, err, tt.want)
		}
	}
	ok := `{"type":"file","mediaType":"audio/wav","data":"AAAA"}`
	body, err := openai.Build(&llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: []byte("[" + ok + "]")}}}, openai.OpenAI)
	if err != nil || !bytes.Contains(body, []byte(`"input_audio":{"data":"AAAA","format":"wav"}`)) {
		t.Errorf("Build with %s = %s, %v, want input_audio", ok, body, err)
	}
}

// A strict schema is enforced by every server, another one is a hint that only OpenAI takes, and
// OpenAI takes objects only.
func TestBuildFormat(t *testing.T) {
	t.Parallel()
	const (
		strict = `{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}`
		loose  = `{"type":"object","properties":{"a":{"type":"string"}}}`
		list   = `{"type":"array","items":{"type":"string"}}`
	)
	enforced := `{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":` + strings.ReplaceAll(strict, " ", "") + `}}`
	hint := `{"type":"json_schema","json_schema":{"name":"answer","strict":false,"schema":` + loose + `}}`
	for _, tt := range []struct {
		flavor openai.Flavor
		schema string
		want   string
	}{
		{openai.OpenAI, strict, enforced},
		{openai.OpenRouter, strict, enforced},
		{openai.Compatible, strict, enforced},
		{openai.OpenAI, loose, hint},
		{openai.OpenRouter, loose, ""},
		{openai.Compatible, loose, ""},
		{openai.OpenAI, list, ""},
		{openai.OpenAI, "", ""},
	} {
		req := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: json.RawMessage(`"hi"`)}}, Format: json.RawMessage(tt.schema)}
		body, err := openai.Build(&req, tt.flavor)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Format json.RawMessage `json:"response_format"`
		}
		if err := json.Unmarshal(body, &got); err != nil || string(got.Format) != tt.want {
			t.Errorf("Build for %s with the schema %s asks for %s, %v, want %s", tt.flavor.Dialect(), tt.schema, got.Format, err, tt.want)
		}
	}
}
