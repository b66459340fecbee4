package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/e2e/world"
)

// These tests run the unmodified npm clients that front ends are built with, in both worlds.

// person is a user of one gateway.
type person struct {
	t   *testing.T
	url string
	world.Member
}

func (w *sharedWorld) person(t *testing.T) *person {
	t.Helper()
	m, err := w.newMember("", "owner")
	if err != nil {
		t.Fatal(err)
	}
	return &person{t, w.Gateways[0], m}
}

func (p *person) call(method, path string, in, out any) {
	p.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		p.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	maps.Copy(req.Header, p.header())
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		var b bytes.Buffer
		_, _ = b.ReadFrom(res.Body) // for the message only
		p.t.Fatalf("%s %s: %s %s", method, path, res.Status, &b)
	}
	if out == nil {
		return
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		p.t.Fatal(err)
	}
}

func (p *person) header() http.Header {
	return http.Header{"Authorization": {"Bearer " + p.Token}, "X-Workspace-Id": {p.Workspace}}
}

func (p *person) session() string {
	p.t.Helper()
	var made struct{ Session struct{ ID string } }
	p.call(http.MethodPost, "/api/sessions", map[string]any{}, &made)
	return made.Session.ID
}

// node runs one of the programs in node/ and returns what it printed.
func node(t *testing.T, stdin []byte, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Dir = "node"
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node %s: %v\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return out
}

func needNode(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("node/node_modules/.installed"); err != nil {
		t.Fatal("the npm clients are not installed: run `make clients`")
	}
}

type clientEvent struct{ Event, ID, Data string }

func eventsOf(t *testing.T, out []byte, withIDs bool) []clientEvent {
	t.Helper()
	var events []clientEvent
	for line := range bytes.Lines(out) {
		var ev clientEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if !withIDs {
			ev.ID = ""
		}
		events = append(events, ev)
	}
	return events
}

// TestClients checks that every client sees the same events of a finished run and of a running one.
func TestClients(t *testing.T) {
	t.Parallel()
	needNode(t)
	for _, w := range []*sharedWorld{standalone, cluster} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			p := w.up(t).person(t)
			session := p.session()
			var queued struct{ Run struct{ ID string } }
			p.call(http.MethodPost, "/api/sessions/"+session+"/messages", map[string]any{"content": "what time is it in Tokyo and New York"}, nil)
			var got struct {
				Messages []struct {
					RunID string `json:"run_id"`
				}
			}
			p.call(http.MethodGet, "/api/sessions/"+session, nil, &got)
			queued.Run.ID = got.Messages[0].RunID
			url := p.url + "/api/runs/" + queued.Run.ID + "/events"
			flags := []string{url, "--token", p.Token, "--header", "X-Workspace-Id: " + p.Workspace}
			inURL := []string{url, "--query", "token=" + p.Token, "--query", "workspace_id=" + p.Workspace}
			want := eventsOf(t, node(t, nil, append([]string{"watch-parser.mjs"}, flags...)...), true)
			if len(want) < 6 || want[len(want)-1].Event != "done" {
				t.Fatalf("eventsource-parser saw %v", want)
			}
			for name, tc := range map[string]struct {
				args []string
				ids  bool
			}{
				"eventsource 4":                   {append([]string{"watch-eventsource.mjs"}, flags...), true},
				"eventsource 5, token in the URL": {append([]string{"watch-eventsource.mjs", "--client", "5"}, inURL...), true},
				"eventsource-parser 4":            {append([]string{"watch-parser.mjs", "--client", "4"}, flags...), true},
				"fetch-event-source":              {append([]string{"watch-fetch-event-source.mjs"}, flags...), true},
				"the plain client":                {append([]string{"watch-lines.mjs"}, flags...), false},
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					expected := eventsOf(t, encode(t, want), tc.ids)
					if diff := cmp.Diff(expected, eventsOf(t, node(t, nil, tc.args...), tc.ids)); diff != "" {
						t.Error(diff)
					}
				})
			}
			for _, program := range []string{"watch-parser.mjs", "watch-fetch-event-source.mjs", "watch-lines.mjs"} {
				t.Run("POST with "+program, func(t *testing.T) {
					t.Parallel()
					out := node(t, nil, program, p.url+"/api/sessions/"+p.session()+"/messages", "--token", p.Token,
						"--header", "X-Workspace-Id: "+p.Workspace, "--post", `{"content":"count to 10"}`)
					var text strings.Builder
					for _, ev := range eventsOf(t, out, false) {
						var d struct{ Type, Delta string }
						if err := json.Unmarshal([]byte(ev.Data), &d); err != nil {
							t.Fatal(err)
						}
						if d.Type == "text-delta" {
							text.WriteString(d.Delta)
						}
					}
					if !strings.Contains(text.String(), "10") {
						t.Errorf("the answer is %q", &text)
					}
				})
			}
		})
	}
}

func encode(t *testing.T, events []clientEvent) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, ev := range events {
		if err := json.NewEncoder(&b).Encode(ev); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestModelMessages checks that stored messages match the AI SDK's schemas unchanged: text,
// parallel tool calls, errors, reasoning, files, a provider's own tools, a truncated answer.
func TestModelMessages(t *testing.T) {
	t.Parallel()
	needNode(t)
	p := standalone.up(t).person(t)
	pixel := "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	type said struct {
		provider, preset string
		content          any
	}
	var models, uis []json.RawMessage
	for _, s := range []said{
		{"simulator", "workspace", "hello"},
		{"simulator", "workspace", "create a document about validation"},
		{"simulator", "workspace", "what time is it in Tokyo and New York"},
		{"simulator", "workspace", "read document 00000000-0000-0000-0000-000000000000"},
		{"simulator", "workspace", "think about rivers"},
		{"simulator", "explorer", "search for tidal power"},
		{"simulator", "workspace", []any{map[string]any{"type": "text", "text": "what is this?"}, map[string]any{"type": "file", "mediaType": "image/png", "data": pixel, "filename": "pixel.png"}}},
		{"simulator-openai", "workspace", "what time is it in Tokyo and New York"},
		{"simulator-openai", "workspace", "think about rivers"},
		{"simulator-openrouter", "workspace", "create a document about routers"},
	} {
		var made struct{ Session struct{ ID string } }
		p.call(http.MethodPost, "/api/sessions", map[string]any{"provider": s.provider, "preset": s.preset}, &made)
		path := "/api/sessions/" + made.Session.ID
		p.call(http.MethodPost, path+"/messages", map[string]any{"content": s.content}, nil)
		var history struct{ Messages []json.RawMessage }
		p.call(http.MethodGet, path, nil, &history)
		if len(history.Messages) < 2 {
			t.Errorf("%v: only %d messages", s.content, len(history.Messages))
		}
		for _, m := range history.Messages {
			models = append(models, onlyModelMessage(t, m))
		}
		p.call(http.MethodGet, path+"?format=ui", nil, &history)
		uis = append(uis, history.Messages...)
	}
	input, err := json.Marshal(map[string]any{"messages": models, "uiMessages": uis})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"ai5", "ai6", "ai7"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			out := node(t, input, "validate-messages.mjs", version)
			if n := bytes.Count(out, []byte(`"ok":true`)); n != len(models)+len(uis) {
				t.Errorf("%s accepts %d of %d messages:\n%s", version, n, len(models)+len(uis), out)
			}
		})
	}
}

// onlyModelMessage returns a message with its role and content only, the fields of the SDK's type.
func onlyModelMessage(t *testing.T, m json.RawMessage) json.RawMessage {
	t.Helper()
	var d struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(m, &d); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", m, err))
	}
	return b
}
