package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	made := call[map[string]object](t, in, w.owner, "POST", "/api/documents", `{"name":"d"}`, http.StatusCreated)
	document := fmt.Sprint(made["document"]["id"])
	nobody := id.New[id.Session]().String()
	members := "/api/workspaces/" + w.workspace.String() + "/members"
	send := messagesOf(session)
	part := func(p string) string { return `{"content":[` + p + `]}` }
	for _, tt := range []struct {
		name, method, path, body string
		want                     int
		says                     string
	}{
		{"unknown path", "GET", "/api/nothing", "", 404, "no such path"},
		{"method", "PUT", "/api/sessions", "", 405, "use GET, HEAD, POST"},
		{"malformed JSON", "POST", "/api/sessions", `{"title":`, 400, "not valid JSON"},
		{"two values", "POST", "/api/sessions", `{} {}`, 400, "not valid JSON"},
		{"array", "POST", "/api/sessions", `[]`, 400, "must be a JSON object"},
		{"string for object", "POST", "/api/sessions", `"x"`, 400, "must be a JSON object"},
		{"title is a number", "POST", "/api/sessions", `{"title":5}`, 400, "title: want a string"},
		{"tools is a string", "POST", "/api/sessions", `{"tools":"a"}`, 400, "tools: want an array"},
		{"tool is a number", "POST", "/api/sessions", `{"tools":[1]}`, 400, "tools"},
		{"steps is a fraction", "POST", "/api/sessions", `{"max_steps":1.5}`, 400, "max_steps: want a whole number"},
		{"steps out of range", "POST", "/api/sessions", `{"max_steps":51}`, 400, "max_steps"},
		{"steps below", "POST", "/api/sessions", `{"max_steps":0}`, 400, "max_steps"},
		{"title too long", "POST", "/api/sessions", `{"title":"` + strings.Repeat("é", 301) + `"}`, 400, "title: longer"},
		{"title with NUL", "POST", "/api/sessions", `{"title":"a\u0000"}`, 400, "title"},
		{"body too large", "POST", "/api/sessions", `{"title":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "1048576"},
		{"archived is a string", "PATCH", "/api/sessions/" + session, `{"archived":"yes"}`, 400, "archived: want true or false"},
		{"no body", "PATCH", "/api/sessions/" + session, "", 400, "body is required"},
		{"limit zero", "GET", "/api/sessions?limit=0", "", 400, "limit"},
		{"limit 101", "GET", "/api/sessions?limit=101", "", 400, "limit"},
		{"limit not a number", "GET", "/api/sessions?limit=ten", "", 400, "limit"},
		{"archived not a boolean", "GET", "/api/sessions?archived=maybe", "", 400, "archived"},
		{"cursor not a time", "GET", "/api/sessions?cursor=yesterday", "", 400, "cursor"},
		{"format unknown", "GET", "/api/sessions/" + session + "?format=xml", "", 400, "format"},
		{"id not a UUID", "GET", "/api/sessions/7", "", 400, "id"},
		{"id in braces", "GET", "/api/sessions/%7B" + nobody + "%7D", "", 400, "id"},
		{"no such session", "GET", "/api/sessions/" + nobody, "", 404, "no such session"},
		{"change unknown session", "PATCH", "/api/sessions/" + nobody, "{}", 404, "no such session"},
		{"delete unknown session", "DELETE", "/api/sessions/" + nobody, "", 404, "no such session"},
		{"send to unknown session", "POST", messagesOf(nobody), `{"content":"x"}`, 404, "no such session"},
		{"watch unknown session", "GET", eventsOf(nobody), "", 404, "no such session"},
		{"compact unknown session", "POST", "/api/sessions/" + nobody + "/compact", "", 404, "no such session"},
		{"cancel unknown session", "POST", "/api/sessions/" + nobody + "/cancel", "", 404, "no such session"},
		{"no such run", "GET", "/api/runs/" + nobody, "", 404, "no such run"},
		{"trace of unknown run", "GET", "/api/runs/" + nobody + "/trace", "", 404, "no such run"},
		{"runs in an unknown state", "GET", "/api/runs?state=lost", "", 400, "state"},
		{"runs of no session", "GET", "/api/runs?session_id=x", "", 400, "session_id"},
		{"watch unknown run", "GET", "/api/runs/" + nobody + "/events", "", 404, "no such run"},
		{"approve nothing", "POST", "/api/sessions/" + session + "/approvals/none", `{"approved":true}`, 404, "no such call"},
		{"answer nothing", "POST", "/api/sessions/" + session + "/approvals/c1", `{}`, 400, "approved: want either"},
		{"answer twice", "POST", "/api/sessions/" + session + "/approvals/c1", `{"approved":true,"outcome":"happened"}`, 400, "approved: want either"},
		{"unknown outcome", "POST", "/api/sessions/" + session + "/approvals/c1", `{"outcome":"perhaps"}`, 400, "outcome"},
		{"result of nothing", "POST", "/api/sessions/" + session + "/tool-results/none", `{"output":null}`, 404, "no such call"},
		{"no result", "POST", "/api/sessions/" + session + "/tool-results/c1", `{}`, 400, "output: want either"},
		{"two results", "POST", "/api/sessions/" + session + "/tool-results/c1", `{"output":1,"error":"x"}`, 400, "output: want either"},
		{"empty error", "POST", "/api/sessions/" + session + "/tool-results/c1", `{"error":""}`, 400, "output: want either"},
		{"client tools of a steering message", "POST", send, `{"content":"x","mode":"steer","client_tools":[]}`, 400, "client_tools"},
		{"client tools that are names", "POST", send, `{"content":"x","client_tools":["locate"]}`, 400, "client_tools: want an object"},
		{"remember for ever", "POST", "/api/sessions/" + session + "/approvals/c1", `{"approved":true,"remember":"ever"}`, 400, "remember"},
		{"rule without a tool", "POST", "/api/approval-rules", `{"effect":"allow"}`, 400, "tool"},
		{"rule with an unknown effect", "POST", "/api/approval-rules", `{"tool":"x","effect":"perhaps"}`, 400, "effect"},
		{"rule with arguments that are no object", "POST", "/api/approval-rules", `{"tool":"x","effect":"allow","args":[1]}`, 400, "args: want an object"},
		{"approvals of a session that is none", "GET", "/api/approvals?session_id=x", "", 400, "session_id"},
		{"cancel run not a UUID", "POST", "/api/sessions/" + session + "/cancel", `{"run_id":"x"}`, 400, "run_id"},
		{"no content", "POST", send, `{}`, 400, "content is required"},
		{"content null", "POST", send, `{"content":null}`, 400, "content is required"},
		{"content number", "POST", send, `{"content":5}`, 400, "content: want a string or an array"},
		{"content object", "POST", send, `{"content":{"type":"text"}}`, 400, "content"},
		{"content empty", "POST", send, `{"content":" \n"}`, 400, "content: the text is empty"},
		{"content empty array", "POST", send, `{"content":[]}`, 400, "content"},
		{"content NUL", "POST", send, `{"content":"a\u0000b"}`, 400, "content"},
		{"part string", "POST", send, part(`"x"`), 400, "content[0]: want an object"},
		{"part null", "POST", send, part(`null`), 400, "content[0]: want an object"},
		{"part without type", "POST", send, part(`{"text":"x"}`), 400, "content[0].type"},
		{"part unknown", "POST", send, part(`{"type":"video"}`), 400, "video"},
		{"part image", "POST", send, part(`{"type":"text","text":"x"},{"type":"image","image":"x"}`), 400, "content[1]: send images as file parts"},
		{"part text number", "POST", send, part(`{"type":"text","text":1}`), 400, "content[0].text: want a string"},
		{"part without text", "POST", send, part(`{"type":"text"}`), 400, "content[0].text is required"},
		{"parts blank", "POST", send, part(`{"type":"text","text":""},{"type":"text","text":" "}`), 400, "content: the text is empty"},
		{"file without type", "POST", send, part(`{"type":"file","data":"aGk="}`), 400, "content[0].mediaType"},
		{"file without data", "POST", send, part(`{"type":"file","mediaType":"image/png"}`), 400, "content[0].data is required"},
		{"file name number", "POST", send, part(`{"type":"file","mediaType":"image/png","data":"aGk=","filename":1}`), 400, "content[0].filename"},
		{"mode unknown", "POST", send, `{"content":"x","mode":"push"}`, 400, "mode"},
		{"mode in upper case", "POST", send, `{"content":"x","mode":"QUEUE"}`, 400, "mode"},
		{"kind of a sign-in in upper case", "POST", "/api/accounts/logins", `{"provider":"x","kind":"Browser"}`, 400, "kind"},
		{"timezone unknown", "POST", send, `{"content":"x","timezone":"Mars/Base"}`, 400, "timezone"},
		{"format type", "POST", send, `{"content":"x","response_format":{"type":"xml","schema":{}}}`, 400, "response_format"},
		{"format without a schema", "POST", send, `{"content":"x","response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`, 400, "response_format.schema is required"},
		{"format of a steering message", "POST", send, `{"content":"x","mode":"steer","response_format":{"type":"json_schema","schema":{}}}`, 400, "response_format"},
		{"stats a string", "POST", send, `{"content":"x","collect_tool_stats":"yes"}`, 400, "collect_tool_stats: want true or false"},
		{"key too long", "POST", send, `{"content":"x","idempotency_key":"` + strings.Repeat("k", 256) + `"}`, 400, "idempotency_key"},
		{"message too large", "POST", send, `{"content":"` + strings.Repeat("x", 20<<20) + `"}`, 413, "too large"},
		{"misspelt field", "POST", "/api/documents", `{"name":"n","contnet":"x"}`, 400, "contnet: no such field; did you mean content?"},
		{"misspelt field of a change", "PATCH", "/api/documents/" + document, `{"contents":"x"}`, 400, "contents: no such field; did you mean content?"},
		{"misspelt field of an account", "POST", "/api/accounts", `{"provider":"anthropic","secrte":"x"}`, 400, "secrte: no such field; did you mean secret?"},
		{"unknown fields only", "PATCH", "/api/documents/" + document, `{"colour":"x"}`, 400, "colour: no such field; the fields are base, content, name"},
		{"unknown fields only of an optional body", "POST", "/api/sessions", `{"colour":"x"}`, 400, "colour: no such field; the fields are"},
		{"misspelt field of a message", "POST", send, `{"content":"x","collectToolStats":true}`, 400, "did you mean collect_tool_stats?"},
		{"misspelt field of a part", "POST", send, part(`{"type":"text","text":"x","filenmae":"y"}`), 400, "content[0].filenmae: no such field; did you mean filename?"},
		{"misspelt field of a cancel", "POST", "/api/sessions/" + session + "/cancel", `{"runId":"x"}`, 400, "did you mean run_id?"},
		{"half a character in a title", "POST", "/api/sessions", `{"title":"a\ud800"}`, 400, `title: has \ud800, half of a surrogate pair`},
		{"half a character in a document", "POST", "/api/documents", `{"name":"n","content":"\udc00"}`, 400, `content: has \udc00`},
		{"half a character in a message", "POST", send, `{"content":"\ud800x"}`, 400, `content: has \ud800`},
		{"half a character in a part", "POST", send, part(`{"type":"text","text":"\ud83d"}`), 400, `content[0].text: has \ud83d`},
		{"document without name", "POST", "/api/documents", `{"content":"x"}`, 400, "name is required"},
		{"document blank name", "POST", "/api/documents", `{"name":"  "}`, 400, "name is required"},
		{"document long name", "POST", "/api/documents", `{"name":"` + strings.Repeat("n", 201) + `"}`, 400, "name: longer"},
		{"document content number", "POST", "/api/documents", `{"name":"n","content":1}`, 400, "content: want a string"},
		{"document content over 10 MiB", "POST", "/api/documents", `{"name":"n","content":"` + strings.Repeat("x", 10<<20+1) + `"}`, 413, "10 MiB"},
		{"document body too large", "POST", "/api/documents", strings.Repeat(" ", 11<<20), 413, "too large"},
		{"document nothing to change", "PATCH", "/api/documents/" + document, `{"name":null}`, 400, "name or content"},
		{"no such document", "GET", "/api/documents/" + nobody, "", 404, "no such document"},
		{"document versions limit", "GET", "/api/documents/" + document + "/versions?limit=1000", "", 400, "limit"},
		{"undo version 0", "POST", "/api/documents/" + document + "/versions/0/undo", "", 400, "version"},
		{"restore version x", "POST", "/api/documents/" + document + "/versions/x/restore", "", 400, "version"},
		{"key without name", "POST", "/api/keys", `{}`, 400, "name is required"},
		{"usage by", "GET", "/api/usage?by=mood", "", 400, "by"},
		{"usage from", "GET", "/api/usage?from=yesterday", "", 400, "from"},
		{"key role", "POST", "/api/keys", `{"name":"k","role":"god"}`, 400, "role"},
		{"no such key", "DELETE", "/api/keys/" + nobody, "", 404, "no such key"},
		{"keys cursor", "GET", "/api/keys?cursor=x", "", 400, "cursor"},
		{"workspace without name", "POST", "/api/workspaces", `{}`, 400, "name is required"},
		{"member without id", "POST", members, `{"role":"viewer"}`, 400, "member_id is required"},
		{"member id not a UUID", "POST", members, `{"member_id":"bob","role":"viewer"}`, 400, "member_id"},
		{"member without role", "POST", members, `{"member_id":"` + nobody + `"}`, 400, "role is required"},
		{"member role", "POST", members, `{"member_id":"` + nobody + `","role":"admin"}`, 400, "role"},
		{"no such member", "PATCH", members + "/" + nobody, `{"role":"viewer"}`, 404, "no such member"},
		{"remove unknown member", "DELETE", members + "/" + nobody, "", 404, "no such member"},
		{"last owner leaves", "DELETE", members + "/" + w.owner.member.String(), "", 409, "needs an owner"},
		{"last owner steps down", "PATCH", members + "/" + w.owner.member.String(), `{"role":"editor"}`, 409, "needs an owner"},
		{"member id zero", "POST", members, `{"member_id":"00000000-0000-0000-0000-000000000000","role":"owner"}`, 400, "member_id"},
		{"changed tools not an array", "PATCH", "/api/sessions/" + session, `{"tools":"a"}`, 400, "tools: want an array"},
		{"path with NUL", "DELETE", "/api/presets/a%00", "", 400, "the path must be UTF-8"},
		{"path not UTF-8", "DELETE", "/api/presets/a%ff", "", 400, "the path must be UTF-8"},
		{"query not UTF-8", "GET", "/api/sessions?q=%ff", "", 400, "q: not valid UTF-8"},
		{"misspelt parameter of a deletion", "DELETE", "/api/accounts/stats?workspace_id=" + nobody + "&account=" + nobody, "", 400, "account: unknown parameter; nothing was deleted"},
		{"documents query not UTF-8", "GET", "/api/documents?q=%ff", "", 400, "q: not valid UTF-8"},
		{"documents cursor not UTF-8", "GET", "/api/documents?cursor=%ff", "", 400, "cursor: not valid UTF-8"},
		{"documents cursor unknown", "GET", "/api/documents?cursor=x", "", 400, "cursor: unknown; pass the next_cursor"},
		{"content not UTF-8", "POST", send, "{\"content\":\"\xff\"}", 400, "content: not valid UTF-8"},
		{"name not UTF-8", "POST", "/api/documents", "{\"name\":\"a\xff\"}", 400, "name: not valid UTF-8"},
		{"body not UTF-8", "POST", "/api/sessions", "\xff", 400, "UTF-8"},
		{"members of an invalid id", "GET", "/api/workspaces/7/members", "", 400, "id:"},
		{"members of another workspace", "GET", "/api/workspaces/" + nobody + "/members", "", 403, "not a member"},
	} {
		got := in.send(t, in.request(t, w.owner, tt.method, tt.path, tt.body, nil))
		var e map[string]any
		if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: body %q of type %s is no JSON", tt.name, clip(got.body), got.header.Get("Content-Type"))
			continue
		}
		text, _ := e["error"].(string)
		delete(e, "error")
		delete(e, "code")
		if got.status != tt.want || !strings.Contains(text, tt.says) || len(e) != 0 {
			t.Errorf("%s: %s %s = %d %s, want %d with %q", tt.name, tt.method, clip(tt.path), got.status, clip(got.body), tt.want, tt.says)
		}
	}
	both := in.send(t, in.request(t, w.owner, "POST", send, `{"content":"x","idempotency_key":"a"}`, func(r *http.Request) { r.Header.Set("Idempotency-Key", "b") }))
	if both.status != http.StatusBadRequest || !strings.Contains(both.body, "idempotency_key") {
		t.Errorf("two keys = %d %s, want 400", both.status, both.body)
	}
	if n := len(w.runner.sessions[session].runs); n != 0 {
		t.Errorf("bad messages made %d runs", n)
	}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func TestSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	// Unknown fields are ignored, null is the same as absent, and any content type is read as JSON.
	got := call[map[string]object](t, in, w.owner, "POST", "/api/sessions",
		`{"title":"T","model":null,"system_prompt":"be kind","tools":[],"max_steps":7,"unknown":{"a":1}}`, http.StatusCreated,
		func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") })["session"]
	session := fmt.Sprint(got["id"])
	for _, field := range []string{"id", "created_at", "updated_at"} {
		delete(got, field)
	}
	want := object{
		"workspace_id": w.workspace.String(), "created_by": w.owner.member.String(), "title": "T", "model": "claude-sonnet-4-5-20250929",
		"provider": "anthropic", "system_prompt": "be kind", "preset": "workspace", "tools": []any{}, "max_steps": 7.0, "client_tools": []any{}, "archived": false, "forked_from": nil, "state": "idle",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("session differs (-want +got):\n%s", diff)
	}
	patched := call[map[string]object](t, in, w.owner, "PATCH", "/api/sessions/"+session, `{"archived":true,"tools":["doc_read"],"title":null}`, http.StatusOK)["session"]
	if patched["archived"] != true || patched["title"] != "T" || fmt.Sprint(patched["tools"]) != "[doc_read]" {
		t.Errorf("patched session = %v", patched)
	}
	untouched := call[map[string]object](t, in, w.owner, "PATCH", "/api/sessions/"+session, `{"title":"U"}`, http.StatusOK)["session"]
	if fmt.Sprint(untouched["tools"]) != "[doc_read]" {
		t.Errorf("tools after a change of the title = %v", untouched["tools"])
	}
	reset := call[map[string]object](t, in, w.owner, "PATCH", "/api/sessions/"+session, `{"tools":null}`, http.StatusOK)["session"]
	if reset["tools"] != nil {
		t.Errorf("tools after null = %v, want the preset's", reset["tools"])
	}
	key := func(r *http.Request) { r.Header.Set("Idempotency-Key", "once") }
	first := call[map[string]object](t, in, w.owner, "POST", "/api/sessions", `{}`, http.StatusCreated, key)
	second := call[map[string]object](t, in, w.owner, "POST", "/api/sessions", ``, http.StatusCreated, key)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("repetition differs:\n%s", diff)
	}
	call[object](t, in, w.owner, "DELETE", "/api/sessions/"+session, "", http.StatusOK)
	if got := in.send(t, in.request(t, w.owner, "GET", "/api/sessions/"+session, "", nil)); got.status != http.StatusNotFound {
		t.Errorf("deleted session = %d, want 404", got.status)
	}
}

func TestListSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	var want []string
	for range 23 {
		want = append([]string{in.newSession(t, w.owner)}, want...)
	}
	type page struct {
		Sessions []struct {
			ID      string `json:"id"`
			Created string `json:"created_at"`
		} `json:"sessions"`
		Next *string `json:"next_cursor"`
	}
	for _, limit := range []int{1, 7, 20, 100} {
		var got []string
		cursor := ""
		for {
			p := call[page](t, in, w.owner, "GET", fmt.Sprintf("/api/sessions?limit=%d&cursor=%s", limit, url.QueryEscape(cursor)), "", http.StatusOK)
			for _, s := range p.Sessions {
				got = append(got, s.ID)
			}
			if p.Next == nil {
				break
			}
			if cursor = *p.Next; cursor != p.Sessions[len(p.Sessions)-1].Created {
				t.Fatalf("next_cursor = %s, want the last item's created_at %s", cursor, p.Sessions[len(p.Sessions)-1].Created)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d differ (-want +got):\n%s", limit, diff)
		}
	}
	if p := call[page](t, in, w.owner, "GET", "/api/sessions", "", http.StatusOK); len(p.Sessions) != 20 || p.Next == nil {
		t.Errorf("first page without a limit has %d, next %v, want 20 and a cursor", len(p.Sessions), p.Next)
	}
	if p := call[page](t, in, w.owner, "GET", "/api/sessions?archived=true", "", http.StatusOK); len(p.Sessions) != 0 || p.Next != nil {
		t.Errorf("archived = %v, want none", p)
	}
	w.runner.mu.Lock()
	w.runner.sessions[want[3]].State, w.runner.sessions[want[3]].Match = "waiting", "the passage"
	w.runner.mu.Unlock()
	found := call[struct{ Sessions []object }](t, in, w.owner, "GET", "/api/sessions?state=waiting", "", http.StatusOK).Sessions
	if len(found) != 1 || found[0]["id"] != want[3] || found[0]["state"] != "waiting" || found[0]["match"] != "the passage" {
		t.Errorf("waiting sessions = %v, want %s with its match", found, want[3])
	}
	call[object](t, in, w.owner, "GET", "/api/sessions?state=done", "", http.StatusBadRequest)
}

func TestHistoryForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	w.runner.script = func(r *fakeRun) { r.answer(t, "Hello") }
	if err := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi <&>"}`).ended(t); err != nil {
		t.Fatal(err)
	}
	type message struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Run     *string         `json:"run_id"`
		Step    *int            `json:"step_index"`
		By      *string         `json:"created_by"`
	}
	got := call[struct {
		Messages []message `json:"messages"`
		Last     string    `json:"last_event_id"`
		Stopped  []object  `json:"stopped_runs"`
	}](t, in, w.owner, "GET", "/api/sessions/"+session, "", http.StatusOK)
	run := w.runner.latest(t, session, 1).GetId()
	by := w.owner.member.String()
	want := []message{{"user", json.RawMessage(`"hi <&>"`), &run, nil, &by}, {"assistant", json.RawMessage(`[{"text":"Hello","type":"text"}]`), &run, new(0), nil}}
	if diff := cmp.Diff(want, got.Messages); diff != "" || got.Last != "1-4" || len(got.Stopped) != 0 {
		t.Errorf("messages differ, last %s, stopped %v (-want +got):\n%s", got.Last, got.Stopped, diff)
	}
	stored := w.runner.sessions[session].messages
	siblings := []any{id.New[id.Message]().String(), stored[1].GetId()}
	w.runner.mu.Lock()
	stored[1].Siblings = []string{siblings[0].(string), siblings[1].(string)}
	w.runner.mu.Unlock()
	ui := call[struct {
		Messages []struct {
			Role     string   `json:"role"`
			Parts    []object `json:"parts"`
			Metadata object   `json:"metadata"`
		} `json:"messages"`
	}](t, in, w.owner, "GET", "/api/sessions/"+session+"?format=ui", "", http.StatusOK).Messages
	if len(ui) != 2 || ui[1].Role != "assistant" || len(ui[1].Parts) != 2 || ui[1].Parts[1]["text"] != "Hello" {
		t.Fatalf("UIMessages = %v, want a user's and an assistant's", ui)
	}
	if m := ui[1].Metadata; m["messageId"] != siblings[1] || !cmp.Equal(m["siblings"], any(siblings)) || ui[0].Metadata["siblings"] != nil {
		t.Errorf("metadata = %v and %v, want the answer's siblings %v", ui[0].Metadata, m, siblings)
	}
}

// A reload says who wrote a message and why a run stopped, as its events did.
func TestHistoryOfStoppedRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	stop := func(state agentv1.RunState, reason string) {
		w.runner.script = func(r *fakeRun) {
			r.begin(t)
			r.step(t, "So far")
			r.publish(t, r.commitEnd(state, reason))
		}
		if err := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"go"}`).ended(t); err != nil {
			t.Fatal(err)
		}
	}
	stop(agentv1.RunState_RUN_STATE_DONE, "max-steps")
	stop(agentv1.RunState_RUN_STATE_FAILED, "")
	type stopped struct {
		Run    string  `json:"run_id"`
		State  string  `json:"state"`
		Reason string  `json:"finish_reason"`
		Error  *object `json:"error"`
	}
	got := call[struct {
		Stopped []stopped `json:"stopped_runs"`
	}](t, in, w.owner, "GET", "/api/sessions/"+session, "", http.StatusOK).Stopped
	want := []stopped{
		{w.runner.latest(t, session, 1).GetId(), "done", "max-steps", nil},
		{w.runner.latest(t, session, 2).GetId(), "failed", "error", &object{"message": "the model is overloaded", "code": "PROVIDER_OVERLOADED"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stopped runs (-want +got):\n%s", diff)
	}
	type meta struct {
		CreatedBy    string `json:"createdBy"`
		FinishReason string `json:"finishReason"`
		Error        string `json:"error"`
	}
	ui := call[struct {
		Messages []struct {
			Metadata meta `json:"metadata"`
		} `json:"messages"`
	}](t, in, w.owner, "GET", "/api/sessions/"+session+"?format=ui", "", http.StatusOK).Messages
	var metas []meta
	for _, m := range ui {
		metas = append(metas, m.Metadata)
	}
	by := w.owner.member.String()
	if diff := cmp.Diff([]meta{{CreatedBy: by}, {FinishReason: "max-steps"}, {CreatedBy: by}, {FinishReason: "error", Error: "the model is overloaded"}}, metas); diff != "" {
		t.Errorf("metadata of UIMessages (-want +got):\n%s", diff)
	}
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	key := func(k string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Idempotency-Key", k) }
	}
	make := func() string {
		return fmt.Sprint(call[map[string]object](t, in, w.owner, "POST", "/api/documents", `{"name":"Plan","content":"# One"}`, http.StatusCreated, key("a"))["document"]["id"])
	}
	doc := make()
	if again := make(); again != doc {
		t.Errorf("repetition made document %s, want %s", again, doc)
	}
	other := w.join(t, w.workspace, identity.Editor)
	if theirs := call[map[string]object](t, in, other, "POST", "/api/documents", `{"name":"Plan"}`, http.StatusCreated, key("a"))["document"]["id"]; theirs == doc {
		t.Error("somebody else's key gave the first one's document")
	}
	path := "/api/documents/" + doc
	got := call[map[string]object](t, in, w.owner, "GET", path, "", http.StatusOK)["document"]
	if got["content"] != "# One" || got["name"] != "Plan" {
		t.Errorf("document = %v", got)
	}
	delete(got, "content")
	if diff := cmp.Diff(got, call[map[string]object](t, in, w.owner, "GET", path+"?content=false", "", http.StatusOK)["document"]); diff != "" {
		t.Errorf("document without content (-want +got):\n%s", diff)
	}
	call[object](t, in, w.owner, "PATCH", path, `{"name":"Plan C","content":"# Two"}`, http.StatusOK, key("b"))
	call[object](t, in, w.owner, "PATCH", path, `{"content":"# Three"}`, http.StatusOK, key("b")) // the second use of the key changes nothing
	if got := call[map[string]object](t, in, w.owner, "GET", path, "", http.StatusOK)["document"]; got["content"] != "# Two" || got["name"] != "Plan C" {
		t.Errorf("document whose name and content were changed in one call = %v", got)
	}
	call[object](t, in, w.owner, "PATCH", path, `{"name":"Plan B"}`, http.StatusOK)
	got = call[map[string]object](t, in, w.owner, "GET", path, "", http.StatusOK)["document"]
	if got["content"] != "# Two" || got["name"] != "Plan B" {
		t.Errorf("patched document = %v", got)
	}
	versions := call[struct {
		Versions []struct {
			Version   int    `json:"version"`
			Operation string `json:"operation"`
			Member    string `json:"member_id"`
		} `json:"versions"`
	}](t, in, w.owner, "GET", path+"/versions", "", http.StatusOK).Versions
	if len(versions) != 3 || versions[2].Operation != "create" || versions[0].Member != w.owner.member.String() {
		t.Errorf("versions = %v, want three, newest first", versions)
	}
	call[object](t, in, w.owner, "POST", fmt.Sprintf("%s/versions/%d/restore", path, versions[2].Version), "", http.StatusOK)
	if got := call[map[string]object](t, in, w.owner, "GET", path, "", http.StatusOK)["document"]; got["content"] != "# One" {
		t.Errorf("restored document = %v", got)
	}
	for range 2 { // the second time with the same key
		call[object](t, in, w.owner, "POST", path+"/versions/4/undo", "", http.StatusOK, key("c"))
	}
	if got := call[map[string]object](t, in, w.owner, "GET", path, "", http.StatusOK)["document"]; got["content"] != "# Two" || got["sequence"] != 5.0 {
		t.Errorf("document after undo = %v", got)
	}
	if got := in.send(t, in.request(t, w.owner, "POST", path+"/versions/4/undo", "", nil)); got.status != http.StatusConflict || !strings.Contains(got.body, `"code":"ALREADY_UNDONE"`) {
		t.Errorf("a second undo = %d %s, want 409", got.status, got.body)
	}
	history := call[struct {
		Versions []struct {
			Undoes   *int
			UndoneBy *int `json:"undone_by"`
			Undoable bool
		} `json:"versions"`
	}](t, in, w.owner, "GET", path+"/versions", "", http.StatusOK).Versions
	if undo, restore := history[0], history[1]; undo.Undoes == nil || *undo.Undoes != 4 || !undo.Undoable || undo.UndoneBy != nil ||
		restore.UndoneBy == nil || *restore.UndoneBy != 5 || restore.Undoable || restore.Undoes != nil {
		t.Errorf("versions = %+v", history)
	}
	if got := call[object](t, in, w.owner, "GET", path+"/versions/2", "", http.StatusOK); got["content"] != "# Two" || got["before"] != "# One" {
		t.Errorf("version 2 = %v, want its content and that of version 1", got)
	}
	run := id.New[id.Run]().String()
	w.docs.by(doc, 2, run)
	w.docs.by(doc, 3, run) // renamed it
	w.docs.by(doc, 4, run) // undone already
	for _, want := range []object{{"undone": 1.0, "kept": 1.0}, {"undone": 0.0, "kept": 1.0}} {
		if diff := cmp.Diff(want, call[object](t, in, w.owner, "POST", path+"/runs/"+run+"/undo", "", http.StatusOK)); diff != "" {
			t.Errorf("undo of a run (-want +got):\n%s", diff)
		}
	}
	viewer := w.join(t, w.workspace, identity.Viewer)
	call[object](t, in, viewer, "POST", path+"/runs/"+run+"/undo", "", http.StatusForbidden)
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	call[object](t, in, stranger, "POST", path+"/runs/"+run+"/undo", "", http.StatusNotFound)
	call[object](t, in, stranger, "GET", path+"/versions/2", "", http.StatusNotFound)
	list := call[struct {
		Documents []object `json:"documents"`
		Next      *string  `json:"next_cursor"`
	}](t, in, w.owner, "GET", "/api/documents?limit=1", "", http.StatusOK)
	if len(list.Documents) != 1 || list.Next == nil || list.Documents[0]["content"] != nil {
		t.Errorf("list = %v, want one without content and a cursor", list)
	}
	for what, status := range map[string]int{"POST /api/documents": http.StatusCreated, "PATCH " + path: http.StatusOK} {
		method, path, _ := strings.Cut(what, " ")
		got := in.send(t, in.request(t, w.owner, method, path, `{"name":"n","content":"a\n<kbd>"}`, nil))
		if want := `"warnings":[{"line":2,"what":"the HTML <kbd>","kept_as":"text"}]`; got.status != status || !strings.Contains(got.body, want) {
			t.Errorf("%s = %d %s, want %s", what, got.status, got.body, want)
		}
	}
	call[object](t, in, w.owner, "DELETE", path, "", http.StatusOK)
	if got := in.send(t, in.request(t, w.owner, "GET", path, "", nil)); got.status != http.StatusNotFound {
		t.Errorf("deleted document = %d, want 404", got.status)
	}
}

func TestWorkspacesAndMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	founder := person{member: id.New[id.Member]()}
	founder.token = devToken(t, founder.member, time.Hour)
	key := func(r *http.Request) { r.Header.Set("Idempotency-Key", "w") }
	made := call[map[string]object](t, in, founder, "POST", "/api/workspaces", `{"name":" Atelier "}`, http.StatusCreated, key)["workspace"]
	again := call[map[string]object](t, in, founder, "POST", "/api/workspaces", `{"name":"Atelier"}`, http.StatusCreated, key)["workspace"]
	if diff := cmp.Diff(made, again); diff != "" || made["name"] != "Atelier" || made["role"] != "owner" {
		t.Errorf("workspace %v, repeated:\n%s", made, diff)
	}
	call[object](t, in, founder, "POST", "/api/workspaces", `{"name":"Second"}`, http.StatusCreated)
	type list struct {
		Workspaces []struct{ Name string } `json:"workspaces"`
		Next       *string                 `json:"next_cursor"`
	}
	one := call[list](t, in, founder, "GET", "/api/workspaces?limit=1", "", http.StatusOK)
	if len(one.Workspaces) != 1 || one.Next == nil || one.Workspaces[0].Name != "Atelier" {
		t.Fatalf("first page = %v", one)
	}
	two := call[list](t, in, founder, "GET", "/api/workspaces?limit=1&cursor="+url.QueryEscape(*one.Next), "", http.StatusOK)
	if len(two.Workspaces) != 1 || two.Next != nil || two.Workspaces[0].Name != "Second" {
		t.Errorf("second page = %v", two)
	}
	ws := fmt.Sprint(made["id"])
	founder.workspace = id.Must[id.Workspace](ws)
	members := "/api/workspaces/" + ws + "/members"
	principal := person{id.New[id.Member](), "", founder.workspace}
	principal.token = devToken(t, principal.member, time.Hour)
	if got := in.send(t, in.request(t, principal, "GET", "/api/sessions", "", nil)); got.status != http.StatusForbidden {
		t.Errorf("request before the invitation = %d, want 403", got.status)
	}
	add := fmt.Sprintf(`{"member_id":%q,"role":"viewer"}`, principal.member)
	call[object](t, in, founder, "POST", members, add, http.StatusCreated)
	call[object](t, in, founder, "POST", members, add, http.StatusCreated) // a repeated call
	if got := in.send(t, in.request(t, founder, "POST", members, strings.Replace(add, "viewer", "owner", 1), nil)); got.status != http.StatusConflict {
		t.Errorf("adding with another role = %d %s, want 409", got.status, got.body)
	}
	call[object](t, in, principal, "GET", "/api/sessions", "", http.StatusOK)
	if got := in.send(t, in.request(t, principal, "DELETE", members+"/"+founder.member.String(), "", nil)); got.status != http.StatusForbidden {
		t.Errorf("removing the owner as a viewer = %d, want 403", got.status)
	}
	changed := call[map[string]object](t, in, founder, "PATCH", members+"/"+principal.member.String(), `{"role":"owner"}`, http.StatusOK)["member"]
	if changed["role"] != "owner" {
		t.Errorf("member = %v, want an owner", changed)
	}
	all := call[map[string]any](t, in, principal, "GET", members, "", http.StatusOK)["members"]
	if n, _ := all.([]any); len(n) != 2 {
		t.Errorf("members = %v, want two", all)
	}
	call[object](t, in, principal, "DELETE", members+"/"+principal.member.String(), "", http.StatusOK) // leaves
	if got := in.send(t, in.request(t, principal, "GET", "/api/sessions", "", nil)); got.status != http.StatusForbidden {
		t.Errorf("request after leaving = %d, want 403", got.status)
	}
}

func TestAPIKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	once := func(r *http.Request) { r.Header.Set("Idempotency-Key", "k") }
	first := call[map[string]any](t, in, w.owner, "POST", "/api/keys", `{"name":"ci","role":"viewer"}`, http.StatusCreated, once)
	secret := fmt.Sprint(first["secret"])
	if !strings.HasPrefix(secret, "sb_") || len(secret) != 46 {
		t.Errorf("secret = %q, want one of 256 bits", secret)
	}
	again := in.send(t, in.request(t, w.owner, "POST", "/api/keys", `{"name":"ci","role":"viewer"}`, once))
	if again.status != http.StatusConflict || strings.Contains(again.body, "sb_") || !strings.Contains(again.body, "IDEMPOTENCY_KEY_REUSED") {
		t.Errorf("repetition = %d %s, want 409 without a secret", again.status, again.body)
	}
	if list := call[map[string]any](t, in, w.owner, "GET", "/api/keys", "", http.StatusOK); len(list["keys"].([]any)) != 1 || strings.Contains(fmt.Sprint(list), secret) {
		t.Errorf("keys = %v, want one, without its secret", list)
	}
	use := func(secret string, ws id.Workspace) int {
		return in.send(t, in.request(t, person{token: secret, workspace: ws}, "GET", "/api/sessions", "", nil)).status
	}
	if got := use(secret, w.workspace); got != http.StatusOK {
		t.Errorf("key = %d, want 200", got)
	}
	if got := use(secret, id.New[id.Workspace]()); got != http.StatusForbidden {
		t.Errorf("key in another workspace = %d, want 403", got)
	}
	if got := in.send(t, in.request(t, person{token: secret, workspace: w.workspace}, "POST", "/api/sessions", "{}", nil)); got.status != http.StatusForbidden {
		t.Errorf("viewer's key writes = %d, want 403", got.status)
	}
	if got := in.send(t, in.request(t, person{token: secret}, "POST", "/api/workspaces", `{"name":"x"}`, nil)); got.status != http.StatusForbidden {
		t.Errorf("key makes a workspace = %d, want 403", got.status)
	}
	// A key never has a higher role than its creator, and ends with their membership.
	maker := w.join(t, w.workspace, identity.Owner)
	theirs := fmt.Sprint(call[map[string]any](t, in, maker, "POST", "/api/keys", `{"name":"mine","role":"owner"}`, http.StatusCreated)["secret"])
	members := "/api/workspaces/" + w.workspace.String() + "/members/" + maker.member.String()
	call[object](t, in, w.owner, "PATCH", members, `{"role":"viewer"}`, http.StatusOK)
	if got := in.send(t, in.request(t, person{token: theirs, workspace: w.workspace}, "POST", "/api/sessions", "{}", nil)); got.status != http.StatusForbidden {
		t.Errorf("key of one who became a viewer writes = %d, want 403", got.status)
	}
	call[object](t, in, w.owner, "DELETE", members, "", http.StatusOK)
	if got := use(theirs, w.workspace); got != http.StatusUnauthorized {
		t.Errorf("key of a former member = %d, want 401", got)
	}
	made, _ := first["key"].(object)
	call[object](t, in, w.owner, "DELETE", fmt.Sprintf("/api/keys/%s", made["id"]), "", http.StatusOK)
	if got := use(secret, w.workspace); got != http.StatusUnauthorized {
		t.Errorf("revoked key = %d, want 401", got)
	}
	if strings.Contains(in.log.String(), secret) {
		t.Error("the log holds a key")
	}
}

// TestAPIKeysCannotAdminister checks that an API key of any role gives access only to the contents
// of its workspace.
func TestAPIKeysCannotAdminister(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	maker := w.join(t, w.workspace, identity.Owner)
	elsewhere := id.New[id.Workspace]()
	if err := gateway.EnsureMember(t.Context(), w.db, elsewhere, "Elsewhere", maker.member, identity.Owner); err != nil {
		t.Fatal(err)
	}
	spare := w.join(t, w.workspace, identity.Viewer)
	members := "/api/workspaces/" + w.workspace.String() + "/members"
	for _, role := range []string{"viewer", "owner"} {
		made := call[map[string]any](t, in, maker, "POST", "/api/keys", fmt.Sprintf(`{"name":"k","role":%q}`, role), http.StatusCreated)
		key, _ := made["key"].(object)
		holder := person{token: fmt.Sprint(made["secret"]), workspace: w.workspace}
		for _, tt := range []struct{ method, path, body string }{
			{"DELETE", members + "/" + maker.member.String(), ""},
			{"DELETE", members + "/" + spare.member.String(), ""},
			{"PATCH", members + "/" + spare.member.String(), `{"role":"owner"}`},
			{"POST", members, `{"member_id":"` + id.New[id.Member]().String() + `","role":"owner"}`},
			{"GET", "/api/keys", ""},
			{"POST", "/api/keys", `{"name":"more"}`},
			{"DELETE", fmt.Sprintf("/api/keys/%s", key["id"]), ""},
			{"POST", "/api/workspaces", `{"name":"x"}`},
			{"POST", "/api/documents/" + w.workspace.String() + "/shares", `{}`},
		} {
			got := in.send(t, in.request(t, holder, tt.method, tt.path, tt.body, nil))
			if got.status != http.StatusForbidden || !strings.Contains(got.body, "PERSON_NEEDED") {
				t.Errorf("%s %s with a key of the role %s = %d %s, want 403", tt.method, tt.path, role, got.status, got.body)
			}
		}
		list := call[struct{ Workspaces []struct{ ID, Role string } }](t, in, holder, "GET", "/api/workspaces", "", http.StatusOK).Workspaces
		if len(list) != 1 || list[0].ID != w.workspace.String() || list[0].Role != role {
			t.Errorf("workspaces of a key = %v, want its own with the role %s", list, role)
		}
		call[object](t, in, holder, "GET", members, "", http.StatusOK)
	}
	if list := call[struct{ Workspaces []object }](t, in, maker, "GET", "/api/workspaces", "", http.StatusOK).Workspaces; len(list) != 2 {
		t.Errorf("workspaces of the person = %v, want both", list)
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	got := call[map[string]any](t, in, w.owner, "GET", "/api/tools", "", http.StatusOK)
	want := map[string]any{"next_cursor": nil, "tools": []any{
		object{"name": "doc_read", "description": "Reads.", "input_schema": object{"type": "object"}, "available": true, "unavailable_reason": nil, "connect_url": nil, "source": "built-in", "needs_approval": false, "always": false},
		object{"name": "calendar_list_events", "description": "Lists.", "input_schema": object{}, "available": false, "unavailable_reason": "connect Google first", "connect_url": "https://x", "source": "built-in", "needs_approval": true, "always": false},
		object{"name": "web_search", "description": "Searches.", "input_schema": object{}, "available": true, "unavailable_reason": nil, "connect_url": nil, "source": "provider", "needs_approval": false, "always": false},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tools differ (-want +got):\n%s", diff)
	}
	for query, want := range map[string]any{
		"model=claude": nil, "model=unknown": nil, "provider=anthropic&model=simulated": nil,
		"model=simulated": "web_search is run by the model's provider, and there is none for simulated: choose another model",
	} {
		got := call[struct{ Tools []object }](t, in, w.owner, "GET", "/api/tools?"+query, "", http.StatusOK).Tools[2]
		if got["unavailable_reason"] != want || got["available"] != (want == nil) {
			t.Errorf("%s: web_search is %v, want it unavailable because of %v", query, got, want)
		}
	}
}

func TestApprovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	viewer := w.join(t, w.workspace, identity.Viewer)
	list := call[struct{ Approvals []object }](t, in, viewer, "GET", "/api/approvals?session_id="+session, "", http.StatusOK).Approvals
	want := []object{{
		"session_id": session, "session_title": "Title", "run_id": noone, "step_index": 2., "tool_call_id": "c1", "tool_name": "send", "args": object{"to": "x"},
		"question": "approval", "reason": "it sends", "asked_for": noone, "asked_at": "2026-01-02T03:04:05.000000Z", "expires_at": nil,
		"decision": nil, "decision_reason": nil, "decided_by": nil, "decided_at": nil,
	}}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("approvals differ (-want +got):\n%s", diff)
	}
	path := "/api/sessions/" + session + "/approvals/c1"
	call[object](t, in, viewer, "POST", path, `{"approved":true}`, http.StatusForbidden)
	call[object](t, in, w.owner, "POST", path, `{"approved":true,"run_id":"`+noone[:35]+`1"}`, http.StatusConflict)
	call[object](t, in, w.owner, "POST", path, `{"approved":true,"run_id":"x"}`, http.StatusBadRequest)
	decided := call[struct{ Approval object }](t, in, w.owner, "POST", path, `{"approved":false,"reason":"no","remember":"session"}`, http.StatusOK).Approval
	if decided["decision"] != "refused" || decided["decision_reason"] != "no REMEMBER_SESSION" {
		t.Errorf("the refused call is %v", decided)
	}
	rule := call[struct{ Rule object }](t, in, w.owner, "POST", "/api/approval-rules", `{"tool":"send","effect":"ask","args":{"to":"x"}}`, http.StatusCreated).Rule
	if rule["tool"] != "send" || rule["effect"] != "ask" || rule["session_id"] != nil || cmp.Diff(object{"to": "x"}, rule["args"]) != "" {
		t.Errorf("the rule is %v", rule)
	}
	if rules := call[struct{ Rules []object }](t, in, viewer, "GET", "/api/approval-rules", "", http.StatusOK).Rules; len(rules) != 1 || rules[0]["args"] != nil {
		t.Errorf("rules = %v, want one about any arguments", rules)
	}
	call[object](t, in, w.owner, "DELETE", "/api/approval-rules/"+noone, "", http.StatusOK)
	call[object](t, in, viewer, "DELETE", "/api/approval-rules/"+noone, "", http.StatusForbidden)
}

func TestClientTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	const tools = `"client_tools":[{"name":"locate","description":"Where.","input_schema":{"type":"object"}}]`
	session := call[struct{ Session object }](t, in, w.owner, "POST", "/api/sessions", `{`+tools+`}`, http.StatusCreated).Session
	if diff := cmp.Diff([]any{"locate"}, session["client_tools"]); diff != "" {
		t.Errorf("the session's tools (-want +got):\n%s", diff)
	}
	one := "/api/sessions/" + session["id"].(string)
	if changed := call[struct{ Session object }](t, in, w.owner, "PATCH", one, `{"client_tools":[]}`, http.StatusOK).Session; len(changed["client_tools"].([]any)) != 0 {
		t.Errorf("the session's tools are %v, want none", changed["client_tools"])
	}
	viewer := w.join(t, w.workspace, identity.Viewer)
	path := one + "/tool-results/c1"
	call[object](t, in, viewer, "POST", path, `{"output":1}`, http.StatusForbidden)
	for body, want := range map[string]string{
		`{"output": {"lat": 1}}`: `{"lat": 1}`, `{"output":null}`: "null", `{"output":""}`: `""`, `{"error":"no sensor"}`: "!no sensor",
	} {
		res := call[object](t, in, w.owner, "POST", path, body, http.StatusOK)
		if got := res["tool_call"].(object)["result"]; got != want {
			t.Errorf("%s is sent on as %v, want %s", body, got, want)
		}
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	// What people do with members and keys stands between agent-runner's rows.
	path := "/api/workspaces/" + w.workspace.String() + "/members"
	them := id.New[id.Member]()
	for range 2 { // the second changes nothing
		call[object](t, in, w.owner, "POST", path, fmt.Sprintf(`{"member_id":%q,"role":"owner"}`, them), http.StatusCreated)
	}
	theirs := person{member: them, token: devToken(t, them, time.Hour), workspace: w.workspace}
	lost := call[map[string]any](t, in, theirs, "POST", "/api/keys", `{"name":"lost"}`, http.StatusCreated)["key"].(object)["id"]
	for range 2 {
		call[object](t, in, w.owner, "PATCH", path+"/"+them.String(), `{"role":"editor"}`, http.StatusOK)
	}
	cookie := in.signIn(t, fmt.Sprintf(`{"token":%q}`, theirs.token), nil)
	browser := call[map[string][]object](t, in, theirs, "GET", "/api/browser-sessions", "", http.StatusOK, withCookie(cookie))["sessions"][0]["id"]
	call[object](t, in, theirs, "DELETE", fmt.Sprintf("/api/browser-sessions/%s", browser), "", http.StatusOK)
	call[object](t, in, w.owner, "DELETE", path+"/"+them.String(), "", http.StatusOK)
	key := call[map[string]any](t, in, w.owner, "POST", "/api/keys", `{"name":"mine","role":"viewer"}`, http.StatusCreated)["key"].(object)["id"]
	call[object](t, in, w.owner, "DELETE", fmt.Sprintf("/api/keys/%s", key), "", http.StatusOK)

	var rows []any
	for cursor, n := "", 0; n < 10; n++ {
		page := call[object](t, in, w.owner, "GET", "/api/audit?limit=3&cursor="+url.QueryEscape(cursor), "", http.StatusOK)
		rows = append(rows, page["audit"].([]any)...)
		if page["next_cursor"] == nil {
			break
		}
		cursor, _ = page["next_cursor"].(string)
	}
	var told []string
	for _, r := range rows {
		r := r.(object)
		told = append(told, fmt.Sprint(r["member_id"], " ", r["action"], " ", r["subject"], " ", r["detail"]))
	}
	me, person := w.owner.member, them
	want := []string{
		"<nil> call-expired c2 <nil>",
		fmt.Sprintf("%s key-revoked %s mine", me, key), fmt.Sprintf("%s key-created %s mine, viewer", me, key),
		fmt.Sprintf("%s member-removed %s <nil>", me, person), fmt.Sprintf("%s key-revoked %s lost", me, lost),
		fmt.Sprintf("%s browser-signed-out %s <nil>", person, browser),
		fmt.Sprintf("%s role-changed %s owner to editor", me, person),
		fmt.Sprintf("%s key-created %s lost, editor", person, lost),
		fmt.Sprintf("%s member-added %s owner", me, person),
		noone + " call-approved c1 yes",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("the audit differs (-want +got):\n%s", diff)
	}
	oldest := object{
		"id": noone, "at": "1970-01-01T00:00:00.000000Z", "member_id": noone, "action": "call-approved", "subject": "c1", "tool": "send",
		"session_id": nil, "run_id": nil, "detail": "yes",
	}
	if diff := cmp.Diff(any(oldest), rows[len(rows)-1]); diff != "" {
		t.Errorf("a row differs (-want +got):\n%s", diff)
	}
	call[object](t, in, w.owner, "GET", "/api/audit?cursor=x", "", http.StatusBadRequest)
	call[object](t, in, w.owner, "GET", "/api/audit?q="+strings.Repeat("x", 201), "", http.StatusBadRequest)
	// A search is in what is told, and in the names of those who did it.
	err := w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO people (member_id, email, name) VALUES (@me, '', 'Ines Halden')`, pg.Args{"me": me})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string][]string{
		"ROLE-": {"role-changed"}, "lost": {"key-revoked", "key-created"}, "halden": {"key-revoked", "key-created", "member-removed", "key-revoked", "role-changed", "member-added"},
		"approved": {"call-approved"}, "%": nil, // ids have no such letters
	} {
		var found []string
		for _, r := range call[map[string][]object](t, in, w.owner, "GET", "/api/audit?q="+url.QueryEscape(q), "", http.StatusOK)["audit"] {
			found = append(found, fmt.Sprint(r["action"]))
		}
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("the audit of %q differs (-want +got):\n%s", q, diff)
		}
	}
	// The gateway can neither change nor delete a row.
	for _, query := range []string{`UPDATE audit SET member_id = gen_random_uuid()`, `DELETE FROM audit`} {
		err := w.db.InWorkspace(t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, query)
			if err == nil && tag.RowsAffected() > 0 {
				t.Errorf("%s: %d rows, want none", query, tag.RowsAffected())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestMcpAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	got := call[object](t, in, w.owner, "GET", "/api/mcp-servers/audit?cursor=x", "", http.StatusOK)
	want := object{"next_cursor": "x20", "audit": []any{object{
		"id": noone, "at": "1970-01-01T00:00:00.000000Z", "member_id": noone, "action": "tools-approved", "server_id": noone, "server_name": "linear", "detail": "echo",
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit of MCP servers differs (-want +got):\n%s", diff)
	}
	// The services search for the text, and for the members whom it names.
	me := w.owner.member.String()
	err := w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO people (member_id, email, name) VALUES (@me, '', 'Ines Halden')`, pg.Args{"me": me})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/mcp-servers/audit", "/api/accounts/audit"} {
		res := fmt.Sprint(call[object](t, in, w.owner, "GET", path+"?q=halden", "", http.StatusOK))
		if want := "halden" + me; !strings.Contains(res, want) {
			t.Errorf("GET %s?q=halden = %s, want that the service gets %s", path, res, want)
		}
		call[object](t, in, w.owner, "GET", path+"?q="+strings.Repeat("x", 201), "", http.StatusBadRequest)
	}
}

func TestMcpServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	editor, viewer := w.join(t, w.workspace, identity.Editor), w.join(t, w.workspace, identity.Viewer)
	const path = "/api/mcp-servers"
	body := `{"name":"linear","url":"https://mcp.example.org/mcp"}`
	call[object](t, in, editor, "POST", path, body, http.StatusForbidden)
	made := call[struct {
		Server object `json:"mcp_server"`
	}](t, in, w.owner, "POST", path, body, http.StatusCreated).Server
	one := path + "/" + made["id"].(string)
	want := object{
		"id": made["id"], "name": "linear", "url": "https://mcp.example.org/mcp", "credential": false, "created_by": made["created_by"], "created_at": made["created_at"], "checked_at": nil, "down_since": nil, "failure": nil, "operator": false, "needs_sign_in": false, "sign_in_url": nil,
		"tools": []any{object{"name": "mcp__x__t", "original_name": "t", "description": "", "changed": true, "hash": "h", "unavailable_reason": "it has changed"}},
	}
	got := call[object](t, in, viewer, "GET", one, "", http.StatusOK)
	if diff := cmp.Diff(object{"mcp_server": want}, got); diff != "" {
		t.Errorf("the server differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(object{"mcp_servers": []any{want}, "next_cursor": nil}, call[object](t, in, viewer, "GET", path, "", http.StatusOK)); diff != "" {
		t.Errorf("the list differs (-want +got):\n%s", diff)
	}
	call[object](t, in, viewer, "POST", one+"/test", "", http.StatusForbidden)
	call[object](t, in, editor, "POST", one+"/test", "", http.StatusOK)
	call[object](t, in, viewer, "POST", one+"/approve", `{"hashes":["h"]}`, http.StatusForbidden)
	approved := call[struct {
		Server struct{ Tools []object } `json:"mcp_server"`
	}](t, in, editor, "POST", one+"/approve", `{"hashes":["h"]}`, http.StatusOK)
	if tool := approved.Server.Tools[0]; tool["changed"] != false {
		t.Errorf("an approved tool = %v", tool)
	}
	call[object](t, in, editor, "DELETE", one, "", http.StatusForbidden)
	call[object](t, in, w.owner, "DELETE", one, "", http.StatusOK)
	call[object](t, in, viewer, "GET", one, "", http.StatusNotFound)
}

// TestMcpSignIn signs in to a server whose URL says that it uses OAuth.
func TestMcpSignIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.redirect = "http://localhost/api/connections/callback"
	in := w.gateway(t)
	type body struct {
		Server object `json:"mcp_server"`
	}
	made := call[body](t, in, w.owner, "POST", "/api/mcp-servers", `{"name":"locked","url":"https://mcp.example.org/oauth"}`, http.StatusCreated).Server
	one := "/api/mcp-servers/" + made["id"].(string)
	if made["needs_sign_in"] != true || made["sign_in_url"] != one+"/sign-in" {
		t.Errorf("a server that uses OAuth = %v, want its sign-in", made)
	}
	editor := w.join(t, w.workspace, identity.Editor)
	call[object](t, in, editor, "POST", one+"/sign-in", `{}`, http.StatusForbidden)
	call[object](t, in, w.owner, "POST", "/api/mcp-servers/"+noone+"/sign-in", `{}`, http.StatusNotFound)

	got := in.send(t, in.request(t, w.owner, "POST", one+"/sign-in", `{"client_id":"mine"}`, nil))
	cookies := (&http.Response{Header: got.header}).Cookies()
	if got.status != http.StatusCreated || len(cookies) != 1 {
		t.Fatalf("sign-in = %d %s, want a URL and a cookie", got.status, got.body)
	}
	asked := w.broker.asked
	if asked.GetProvider() != "mcp-locked" || asked.GetMcpServer().GetUrl() != "https://mcp.example.org/oauth" || asked.GetMcpServer().GetScope() != "read" || asked.GetMcpServer().GetClientId() != "mine" {
		t.Errorf("the broker was asked for %v", asked)
	}
	req := in.request(t, person{}, "GET", "/api/connections/callback?code=c&iss=https://as.example&state=state-0", "", nil)
	req.AddCookie(&http.Cookie{Name: cookies[0].Name, Value: cookies[0].Value})
	if got := in.send(t, req); got.status != http.StatusOK || w.broker.issuer != "https://as.example" {
		t.Errorf("the callback = %d %s, with the issuer %q", got.status, got.body, w.broker.issuer)
	}
	if after := call[body](t, in, w.owner, "GET", one, "", http.StatusOK).Server; after["needs_sign_in"] != false || after["sign_in_url"] != nil {
		t.Errorf("after the sign-in the server is %v", after)
	}
	doc := call[object](t, in, person{}, "GET", "/api/connections/client.json", "", http.StatusOK)
	if id, _ := doc["client_id"].(string); !strings.HasPrefix(id, "https://") || !strings.HasSuffix(id, "/api/connections/client.json") || doc["token_endpoint_auth_method"] != "none" {
		t.Errorf("the client document = %v", doc)
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	got := call[map[string]any](t, in, w.owner, "GET", "/api/models", "", http.StatusOK)
	want := map[string]any{
		"next_cursor": nil, "problems": []any{object{"provider": "ollama", "reason": "it is away"}},
		"models": []any{
			object{
				"id": "claude", "provider": "anthropic", "name": "Claude", "context": 200_000., "max_output": 64_000., "simulated": false, "default": true,
				"prices":    object{"input": 3., "output": 15., "cache_read": 0.3, "cache_write": 3.75},
				"abilities": object{"tools": true, "images": true, "reasoning": true, "web_search": true},
			},
			object{
				"id": "simulated", "provider": "simulator", "name": "Simulated answers", "context": nil, "max_output": nil, "prices": nil, "simulated": true, "default": false,
				"abilities": object{"tools": true, "images": false, "reasoning": false, "web_search": false},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("models differ (-want +got):\n%s", diff)
	}
}

func TestServiceUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.ToolExecutorURL = "http://127.0.0.1:1" })
	got := in.send(t, in.request(t, w.owner, "GET", "/api/tools", "", nil))
	if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || strings.Contains(got.body, "127.0.0.1") {
		t.Errorf("request for a service that is away = %d %v %s, want 503 without internals", got.status, got.header, got.body)
	}
	if got := in.send(t, in.request(t, person{}, "GET", "/ready", "", nil)); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, `"tool-executor":"not ready"`) {
		t.Errorf("/ready = %d %s, want 503 naming tool-executor", got.status, got.body)
	}
	if got := in.send(t, in.request(t, person{}, "GET", "/health", "", nil)); got.status != http.StatusOK {
		t.Errorf("/health = %d, want 200", got.status)
	}
	if got := in.send(t, in.request(t, person{}, "GET", "/metrics", "", nil)); got.status != http.StatusNotFound {
		t.Errorf("public /metrics = %d, want 404", got.status)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", in.ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := in.send(t, req); got.status != http.StatusOK || !strings.Contains(got.body, `gateway_http_requests_total{route="GET /api/tools",status="503"} 1`) {
		t.Errorf("metrics = %d, without the request: %s", got.status, got.body)
	}
}

func TestCORS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.CORSOrigins = []string{"http://localhost:5173"} })
	origin := func(o string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Origin", o)
			if r.Method == http.MethodOptions {
				r.Header.Set("Access-Control-Request-Method", "POST")
			}
		}
	}
	pre := in.send(t, in.request(t, person{}, "OPTIONS", "/api/sessions", "", origin("http://localhost:5173")))
	if pre.status != http.StatusNoContent || !strings.Contains(pre.header.Get("Access-Control-Allow-Headers"), "Last-Event-ID") {
		t.Errorf("preflight = %d %v, want 204", pre.status, pre.header)
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		if allowed := pre.header.Get("Access-Control-Allow-Methods"); !slices.Contains(strings.Split(allowed, ", "), method) {
			t.Errorf("preflight allows %s, want %s too", allowed, method)
		}
	}
	if got := in.send(t, in.request(t, w.owner, "GET", "/api/sessions", "", origin("http://localhost:5173"))); got.header.Get("Access-Control-Allow-Origin") != "http://localhost:5173" {
		t.Errorf("answer's headers = %v, want the origin allowed", got.header)
	}
	if got := in.send(t, in.request(t, w.owner, "GET", "/api/sessions", "", origin("https://evil.example"))); got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("answer's headers = %v, want no origin allowed", got.header)
	}
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	problems, err := pgtest.CheckCatalogue(t.Context(), w.pg.AdminURL, []string{"gateway.browser_sessions", "gateway.people", "gateway.sign_in_links"}, gateway.Migrations())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue = %q, %v, want none", problems, err)
	}
}
