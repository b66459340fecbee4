package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/id"
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
