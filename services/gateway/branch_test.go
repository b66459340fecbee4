package gateway_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// named describes what a submitted request makes a branch of.
func named(req *agentv1.SubmitRequest) string {
	of, kind := req.GetEdit().GetOf(), "edit "+req.GetEdit().GetContentJson()
	switch {
	case req.GetRegenerate() != nil:
		of, kind = req.GetRegenerate().GetOf(), "regenerate"
	case req.GetEdit() == nil:
		kind = "send " + req.GetContentJson()
	}
	text := kind + " key=" + req.GetIdempotencyKey()
	switch by := of.GetBy().(type) {
	case *agentv1.MessageRef_MessageId:
		text += " message=" + by.MessageId
	case *agentv1.MessageRef_RunId:
		text += " run=" + by.RunId
	case *agentv1.MessageRef_IdempotencyKey:
		text += " client=" + by.IdempotencyKey
	}
	return fmt.Sprintf("%s current=%v", text, of.GetCurrent())
}

// Requests for branches, of the API's own routes and of useChat, name the message that they are
// about. An edited message that never arrived is a new one.
func TestBranchRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	w.runner.script = func(r *fakeRun) { r.answer(t, "a") }
	session, chosen := in.newSession(t, w.owner), id.New[id.Message]().String()
	if err := in.open(t, w.owner, "POST", "/api/chat", userMessage(session, "m0", "x")).ended(t); err != nil {
		t.Fatal(err)
	}
	message := w.runner.latest(t, session, 1).message.GetId()
	path := "/api/sessions/" + session
	chat := func(more, last string) string {
		return fmt.Sprintf(`{"id":%q,"messages":[%s]%s}`, session, last, more)
	}
	user := func(id string) string {
		return fmt.Sprintf(`{"id":%q,"role":"user","parts":[{"type":"text","text":"x"}]}`, id)
	}
	const again = `,"trigger":"regenerate-message"`
	for _, tt := range []struct {
		name, path, body string
		want             []string
	}{
		{"edit", path + "/messages", fmt.Sprintf(`{"content":"x","edit_of":%q,"idempotency_key":"k"}`, message), []string{`edit "x" key=k message=` + message + " current=false"}},
		{"regenerate", path + "/regenerate", fmt.Sprintf(`{"message_id":%q,"idempotency_key":"l"}`, message), []string{"regenerate key=l message=" + message + " current=false"}},
		{"regenerate the last", path + "/regenerate", "", []string{"regenerate key= current=false"}},
		{"useChat sends", "/api/chat", chat("", user("m1")), []string{`send "x" key=chat:m1 current=false`}},
		{"useChat edits", "/api/chat", chat(`,"messageId":"m1"`, user("m1")), []string{`edit "x" key= client=chat:m1 current=true`}},
		{"useChat edits a loaded message", "/api/chat", chat(fmt.Sprintf(`,"messageId":%q`, message), user(message)), []string{`edit "x" key= message=` + message + " current=true"}},
		{"useChat edits one that never arrived", "/api/chat", chat(`,"messageId":"m2"`, user("m2")), []string{`edit "x" key= client=chat:m2 current=true`, `send "x" key=chat:m2 current=false`}},
		{"useChat sends one with a UUID", "/api/chat", chat("", user(chosen)), []string{`send "x" key=chat:` + chosen + " current=false"}},
		{"useChat edits one with a UUID", "/api/chat", chat(fmt.Sprintf(`,"messageId":%q`, chosen), user(chosen)), []string{
			`edit "x" key= message=` + chosen + " current=true", `edit "x" key= client=chat:` + chosen + " current=true",
		}},
		{"useChat regenerates the answer to one with a UUID", "/api/chat", chat(again+fmt.Sprintf(`,"messageId":%q`, chosen), user(chosen)), []string{
			"regenerate key= message=" + chosen + " current=true", "regenerate key= client=chat:" + chosen + " current=true",
		}},
		{"useChat regenerates", "/api/chat", chat(again, user("m1")), []string{"regenerate key= current=false"}},
		{"useChat regenerates an answer", "/api/chat", chat(again+fmt.Sprintf(`,"messageId":%q`, message), user("m1")), []string{"regenerate key= run=" + message + " current=false"}},
		{"useChat regenerates the answer to a message", "/api/chat", chat(again+`,"messageId":"m1"`, user("m1")), []string{"regenerate key= client=chat:m1 current=true"}},
		{"useChat regenerates the answer to a loaded message", "/api/chat", chat(again+fmt.Sprintf(`,"messageId":%q`, message), user(message)), []string{"regenerate key= message=" + message + " current=true"}},
	} {
		w.runner.mu.Lock()
		w.runner.submitted = nil
		w.runner.mu.Unlock()
		if got := in.send(t, in.request(t, w.owner, "POST", tt.path, tt.body, nil)); got.status != http.StatusOK {
			t.Errorf("%s: %d %s", tt.name, got.status, got.body)
		}
		w.runner.mu.Lock()
		var got []string
		for _, req := range w.runner.submitted {
			got = append(got, named(req))
		}
		w.runner.mu.Unlock()
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for name, tt := range map[string]struct {
		method, path, body string
		want               int
	}{
		"edit of no message":       {"POST", path + "/messages", `{"content":"x","edit_of":"m1"}`, http.StatusBadRequest},
		"edit that steers":         {"POST", path + "/messages", fmt.Sprintf(`{"content":"x","edit_of":%q,"mode":"steer"}`, message), http.StatusBadRequest},
		"regenerate no message":    {"POST", path + "/regenerate", `{"message_id":"m1"}`, http.StatusBadRequest},
		"messages of no run":       {"GET", path + "/messages?run_id=x", "", http.StatusBadRequest},
		"a page of a run":          {"GET", path + "/messages?cursor=1&run_id=" + id.New[id.Run]().String(), "", http.StatusBadRequest},
		"messages of another run":  {"GET", path + "/messages?run_id=" + id.New[id.Run]().String(), "", http.StatusNotFound},
		"switch to no message":     {"PUT", path + "/leaf", `{}`, http.StatusBadRequest},
		"switch of no session":     {"PUT", "/api/sessions/" + message + "/leaf", fmt.Sprintf(`{"message_id":%q}`, message), http.StatusNotFound},
		"fork at no message":       {"POST", path + "/fork", `{"message_id":"m1"}`, http.StatusBadRequest},
		"regenerate in no session": {"POST", "/api/chat", `{"id":"new","trigger":"regenerate-message"}`, http.StatusNotFound},
	} {
		if got := in.send(t, in.request(t, w.owner, tt.method, tt.path, tt.body, nil)); got.status != tt.want {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, tt.want)
		}
	}
	ofRun := path + "/messages?limit=1&run_id=" + w.runner.latest(t, session, 1).GetId()
	if all := call[map[string]any](t, in, w.owner, "GET", ofRun, "", http.StatusOK)["messages"].([]any); len(all) != 2 {
		t.Errorf("the messages of a run are %v, want two", all)
	}
	if got := call[object](t, in, w.owner, "PUT", path+"/leaf", fmt.Sprintf(`{"message_id":%q}`, message), http.StatusOK); got["messages"] == nil {
		t.Errorf("a switch answers %v, want the session", got)
	}
	fork := call[map[string]object](t, in, w.owner, "POST", path+"/fork", `{"title":"Copy"}`, http.StatusCreated)["session"]
	if fork["forked_from"] != session || fork["title"] != "Copy" {
		t.Errorf("the fork is %v", fork)
	}
}
