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
	// The oldest session changes between two pages.
	first := call[page](t, in, w.owner, "GET", "/api/sessions?order=updated&limit=20", "", http.StatusOK)
	w.runner.mu.Lock()
	w.runner.sessions[want[22]].UpdatedAt = w.runner.now()
	w.runner.mu.Unlock()
	rest := call[page](t, in, w.owner, "GET", "/api/sessions?order=updated&cursor="+*first.Next, "", http.StatusOK)
	again := call[page](t, in, w.owner, "GET", "/api/sessions?order=updated&limit=1", "", http.StatusOK)
	if len(rest.Sessions) != 2 || rest.Sessions[0].ID != want[20] || rest.Next != nil || again.Sessions[0].ID != want[22] {
		t.Errorf("by their last change: %v, then %v, and %v; want the changed session on the first page alone", first, rest, again)
	}
	if p := call[page](t, in, w.owner, "GET", "/api/sessions", "", http.StatusOK); len(p.Sessions) != 20 || p.Next == nil {
		t.Errorf("first page without a limit has %d, next %v, want 20 and a cursor", len(p.Sessions), p.Next)
	}
	if p := call[page](t, in, w.owner, "GET", "/api/sessions?archived=true", "", http.StatusOK); len(p.Sessions) != 0 || p.Next != nil {
		t.Errorf("archived = %v, want none", p)
	}
	w.runner.mu.Lock()
	w.runner.sessions[want[3]].State, w.runner.sessions[want[3]].Match = "waiting", "the passage"
	w.runner.sessions[want[3]].LastRun = &agentv1.SessionRun{Id: noone, State: agentv1.RunState_RUN_STATE_WAITING, Steps: 4}
	w.runner.mu.Unlock()
	found := call[struct{ Sessions []object }](t, in, w.owner, "GET", "/api/sessions?state=waiting", "", http.StatusOK).Sessions
	if len(found) != 1 || found[0]["id"] != want[3] || found[0]["state"] != "waiting" || found[0]["match"] != "the passage" {
		t.Errorf("waiting sessions = %v, want %s with its match", found, want[3])
	}
	if diff := cmp.Diff(object{"id": noone, "state": "waiting", "steps": 4.}, found[0]["last_run"]); diff != "" {
		t.Errorf("last_run differs (-want +got):\n%s", diff)
	}
	call[object](t, in, w.owner, "GET", "/api/sessions?state=done", "", http.StatusBadRequest)
}

// TestOlderRunner checks that no session is missing from a list, and no message of another run is among
// those of one, while replicas of agent-runner are of a version that lacks these requests.
func TestOlderRunner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	var want []string
	for range 5 {
		want = append(want, in.newSession(t, w.owner))
	}
	older := func(is bool) {
		w.runner.mu.Lock()
		defer w.runner.mu.Unlock()
		w.runner.older = is
	}
	type page struct {
		Sessions []struct {
			ID string `json:"id"`
		} `json:"sessions"`
		Next *string `json:"next_cursor"`
	}
	for name, is := range map[string]func(page int) bool{
		"all pages":      func(int) bool { return true },
		"the first page": func(page int) bool { return page == 0 },
		"the other ones": func(page int) bool { return page > 0 },
	} {
		var got []string
		cursor := ""
		for i := range 5 {
			older(is(i))
			p := call[page](t, in, w.owner, "GET", "/api/sessions?order=updated&limit=2&cursor="+url.QueryEscape(cursor), "", http.StatusOK)
			for _, s := range p.Sessions {
				got = append(got, s.ID)
			}
			if p.Next == nil {
				break
			}
			cursor = *p.Next
		}
		for _, s := range want {
			if !slices.Contains(got, s) {
				t.Errorf("%s from an older version: %v, want all of %v", name, got, want)
				break
			}
		}
	}
	older(true)
	messages := "/api/sessions/" + want[0] + "/messages"
	call[object](t, in, w.owner, "GET", messages, "", http.StatusOK)
	call[object](t, in, w.owner, "GET", messages+"?run_id="+id.New[id.Run]().String(), "", http.StatusServiceUnavailable)
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
		Steps  int     `json:"steps"`
	}
	got := call[struct {
		Stopped []stopped `json:"stopped_runs"`
	}](t, in, w.owner, "GET", "/api/sessions/"+session, "", http.StatusOK).Stopped
	want := []stopped{
		{w.runner.latest(t, session, 1).GetId(), "done", "max-steps", nil, 1},
		{w.runner.latest(t, session, 2).GetId(), "failed", "error", &object{"message": "the model is overloaded", "code": "PROVIDER_OVERLOADED"}, 1},
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
		object{"name": "doc_read", "description": "Reads.", "input_schema": object{"type": "object"}, "available": true, "unavailable_reason": nil, "connect_url": nil, "source": "built-in", "needs_approval": false, "always": false, "acts_outside": false, "effect": "pure"},
		object{"name": "calendar_list_events", "description": "Lists.", "input_schema": object{}, "available": false, "unavailable_reason": "connect Google first", "connect_url": "https://x", "source": "built-in", "needs_approval": true, "always": false, "acts_outside": true, "effect": "same_tx"},
		object{"name": "web_search", "description": "Searches.", "input_schema": object{}, "available": true, "unavailable_reason": nil, "connect_url": nil, "source": "provider", "needs_approval": false, "always": false, "acts_outside": false, "effect": "unsafe"},
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
	// The openai package in a page asks for its own headers too.
	pre = in.send(t, in.request(t, person{}, "OPTIONS", "/v1/responses", "", func(r *http.Request) {
		origin("http://localhost:5173")(r)
		r.Header.Set("Access-Control-Request-Headers", "authorization,content-type,user-agent,x-other,x-stainless-lang,x-stainless-retry-count")
	}))
	allowed := strings.Split(strings.ToLower(pre.header.Get("Access-Control-Allow-Headers")), ", ")
	for name, want := range map[string]bool{"authorization": true, "user-agent": true, "x-stainless-lang": true, "x-stainless-retry-count": true, "x-other": false} {
		if slices.Contains(allowed, name) != want {
			t.Errorf("preflight allows %q, want %s: %t", allowed, name, want)
		}
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
