package agentrunner_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// path returns the texts of a session's current branch, each with its number among its siblings.
func (w *world) path(session string) []string {
	w.t.Helper()
	var out []string
	before := ""
	for _, m := range w.look(session).GetMessages() {
		if m.GetParentId() != before {
			w.t.Errorf("message %s follows %q, want %q", m.GetContentJson(), m.GetParentId(), before)
		}
		before = m.GetId()
		text := strings.Trim(m.GetContentJson(), `"`)
		if parts := []struct{ Type, Text string }{}; json.Unmarshal([]byte(m.GetContentJson()), &parts) == nil {
			text = ""
			for _, p := range parts {
				text += p.Type[:4] + " " + p.Text
			}
		}
		if n := len(m.GetSiblings()); n > 0 {
			text += " " + string(rune('1'+slices.Index(m.GetSiblings(), m.GetId()))) + "/" + string(rune('0'+n))
		}
		out = append(out, text)
	}
	return out
}

func (w *world) wantPath(session string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.path(session)); diff != "" {
		w.t.Errorf("the current branch (-want +got):\n%s", diff)
	}
}

// wantOfRun compares the messages of a run, whatever the current branch is.
func (w *world) wantOfRun(session, run string, want ...*agentv1.Message) {
	w.t.Helper()
	res, err := w.conversations.GetSession(w.as(identity.Viewer), &agentv1.GetSessionRequest{Id: session, RunId: run})
	if err != nil {
		w.t.Fatalf("GetSession of a run: %v", err)
	}
	place := func(m *agentv1.Message) string {
		return m.GetId() + " after " + m.GetParentId() + " by " + m.GetRunId()
	}
	list := func(all []*agentv1.Message) (out []string) {
		for _, m := range all {
			out = append(out, place(m))
		}
		return out
	}
	if diff := cmp.Diff(list(want), list(res.GetMessages())); diff != "" || res.GetEarlier() != 0 {
		w.t.Errorf("the messages of run %s, with earlier ones at %d (-want +got):\n%s", run, res.GetEarlier(), diff)
	}
	if res.GetRunId() != run || len(res.GetNextSiblings()) > 0 {
		w.t.Errorf("the messages of run %s are said to be of %q, and followed by %v", run, res.GetRunId(), res.GetNextSiblings())
	}
}

func editOf(message, text string) func(*agentv1.SubmitRequest) {
	return func(req *agentv1.SubmitRequest) {
		content, _ := json.Marshal(text) // a string always marshals
		req.ContentJson = ""
		req.Edit = &agentv1.Edit{ContentJson: string(content), Of: &agentv1.MessageRef{By: &agentv1.MessageRef_MessageId{MessageId: message}}}
	}
}

func again(of *agentv1.MessageRef) func(*agentv1.SubmitRequest) {
	return func(req *agentv1.SubmitRequest) { req.ContentJson, req.Regenerate = "", &agentv1.Regenerate{Of: of} }
}

func (w *world) switchTo(session, message string) error {
	_, err := w.conversations.SwitchBranch(w.as(identity.Editor), &agentv1.SwitchBranchRequest{SessionId: session, MessageId: message})
	return err
}

// isDoc makes a tool change documents as doc_edit does.
var isDoc = &toolv1.Tool{Effect: toolv1.Effect_EFFECT_SAME_TX}

const aDocument = "0198a000-0000-7000-8000-00000000d0c1"

// Answering again and editing make siblings, of which one is current. The model gets the current
// branch alone, and is told what others did. Switching back loses nothing.
func TestBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("write", func(context.Context, *toolv1.Call) string { return `{"id":"` + aDocument + `"}` })
	w.tools.specs["write"] = isDoc
	w.model.then(
		says("Hi."), calls([3]string{"a", "write", `{"id":"` + aDocument + `"}`}), says("Done."),
		says("Again."), says("Good day."), says("More."), says("And on."),
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	hello := w.submit(session, "Hello").GetMessageId()
	v.until(isEnd)
	write := w.submit(session, "Write it")
	v.until(isEnd)
	w.wantPath(session, "Hello", "text Hi.", "Write it", "tool ", "tool ", "text Done.")
	first := w.look(session).GetMessages()

	// An answer by its run, and the same request again.
	key := func(req *agentv1.SubmitRequest) { req.IdempotencyKey = "again" }
	run := again(&agentv1.MessageRef{By: &agentv1.MessageRef_RunId{RunId: write.GetRun().GetId()}})
	second := w.submit(session, "", run, key)
	events := v.until(isEnd)
	if got := lines(events); got[0] != "3 *runv1.Event_BranchSwitched" || got[1] != `4 user "Write it"` || events[0].GetRunId() != "" || events[0].GetBranchSwitched().GetSwitchedBy() == "" {
		t.Errorf("answering again began with %v", events[:2])
	}
	if repeated := w.submit(session, "", run, key); repeated.GetCreated() || repeated.GetRun().GetId() != second.GetRun().GetId() || repeated.GetMessageId() != write.GetMessageId() {
		t.Errorf("the same request again made %v", repeated)
	}
	w.wantPath(session, "Hello", "text Hi.", "Write it", "text Again. 2/2")
	// What was replaced stays that of its run.
	w.wantOfRun(session, write.GetRun().GetId(), first[2:]...)
	w.wantOfRun(session, second.GetRun().GetId(), w.look(session).GetMessages()[2:]...)
	w.wantOfRun(session, first[0].GetRunId(), first[:2]...)
	other := &agentv1.GetSessionRequest{Id: w.session(&agentv1.CreateSessionRequest{}), RunId: write.GetRun().GetId()}
	if _, err := w.conversations.GetSession(w.as(identity.Viewer), other); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the messages of another session's run = %v, want %v", err, fault.NotFound)
	}
	asked := string(w.model.asked()[3])
	if strings.Contains(asked, "Done.") || strings.Contains(asked, "tool_use") {
		t.Errorf("the model got the other branch: %s", asked)
	}
	if want := "you have already done this, and it was not undone: write (document " + aDocument + ")"; !strings.Contains(asked, want) {
		t.Errorf("the model was not told %q: %s", want, asked)
	}

	// The first message has no parent.
	w.submit(session, "", editOf(hello, "Hey"))
	v.until(isEnd)
	w.wantPath(session, "Hey 2/2", "text Good day.")
	if got := w.look(session).GetLastEvent(); got.GetRunOrdinal() != 6 || got.GetNumber() == 0 {
		t.Errorf("the last event is %v, want the run's", got)
	}

	// What useChat sends again after a cut: the first message, of which the current version is the edited one.
	same := func(text string) func(*agentv1.SubmitRequest) {
		return func(req *agentv1.SubmitRequest) {
			editOf(hello, text)(req)
			req.Edit.Of.Current = true
		}
	}
	if repeated := w.submit(session, "", same("Hey")); repeated.GetCreated() || repeated.GetRun().GetOrdinal() != 6 {
		t.Errorf("an edit that changes nothing made %v, want the run that answers it", repeated)
	}

	// A switch goes to the newest message below, and so does one by a message in the middle.
	if err := w.switchTo(session, hello); err != nil {
		t.Fatal(err)
	}
	v.until(func(ev *runv1.Event) bool { return ev.GetBranchSwitched() != nil })
	w.wantPath(session, "Hello 1/2", "text Hi.", "Write it", "text Again. 2/2")
	if got := w.look(session).GetLastEvent(); got.GetRunOrdinal() != 7 || got.GetNumber() != 0 {
		t.Errorf("the last event is %v, want the switch", got)
	}
	if err := w.switchTo(session, first[3].GetId()); err != nil {
		t.Fatal(err)
	}
	w.wantPath(session, "Hello 1/2", "text Hi.", "Write it", "tool  1/2", "tool ", "text Done.")
	w.submit(session, "Go on")
	v.until(isEnd)
	w.wantPath(session, "Hello 1/2", "text Hi.", "Write it", "tool  1/2", "tool ", "text Done.", "Go on", "text More.")
	if asked := string(w.model.asked()[5]); strings.Contains(asked, "not undone") || !strings.Contains(asked, "tool_use") {
		t.Errorf("the model was told of other branches, or not of its own: %s", asked)
	}
	// Without siblings there is nothing to go back to: the branch just goes on.
	w.submit(session, "Once more")
	v.until(isEnd)
	w.wantPath(session, "Hello 1/2", "text Hi.", "Write it", "tool  1/2", "tool ", "text Done.", "Go on", "text More.", "Once more", "text And on.")
}

// Viewers of a run learn which messages it makes, and of which others they are versions.
func TestEventsNameMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("get", func(context.Context, *toolv1.Call) string { return `{}` })
	w.model.then(calls([3]string{"a", "get", `{}`}), says("One."), func(a *answer) {
		a.begin()
		a.text("So far")
		<-a.r.Context().Done()
	})
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	stored := func() (assistant []string, all *agentv1.GetSessionResponse) {
		all = w.look(session)
		for _, m := range all.GetMessages() {
			if m.GetRole() == "assistant" {
				assistant = append(assistant, m.GetId())
			}
		}
		return assistant, all
	}
	w.submit(session, "1")
	var told []string
	for _, ev := range v.until(isEnd) {
		if m := ev.GetStepComplete(); m != nil {
			told = append(told, m.GetMessageId())
		}
		if m := ev.GetDone().GetMessageId(); m != "" {
			t.Errorf("the end of a complete answer names message %s", m)
		}
	}
	first, look := stored()
	if diff := cmp.Diff(first, told); diff != "" || len(look.GetNextSiblings()) > 0 {
		t.Errorf("the events name other messages (-stored +told):\n%s, the next message has the siblings %v", diff, look.GetNextSiblings())
	}
	w.submit(session, "", again(nil))
	v.until(func(ev *runv1.Event) bool { return ev.GetTextDelta() != nil })
	if _, look = stored(); !slices.Equal(look.GetNextSiblings(), first[:1]) {
		t.Errorf("the other answer's first message has the siblings %v, want %v", look.GetNextSiblings(), first[:1])
	}
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	end := v.until(isEnd)
	second, look := stored()
	if got := end[len(end)-1].GetDone().GetMessageId(); len(second) != 1 || got != second[0] || len(look.GetNextSiblings()) > 0 {
		t.Errorf("the end of a stopped answer names message %q, want one of %v; the next message has the siblings %v", got, second, look.GetNextSiblings())
	}
}

// To cancel another answer before it begins leaves the message where it is.
func TestCancelAnswerAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	w.model.then(says("Hi."), func(a *answer) { await(a.r.Context(), release); says("Late.")(a) })
	w.start(func(cfg *agentrunner.Config) { cfg.WorkspaceRuns = 1 })
	session, other := w.session(&agentv1.CreateSessionRequest{}), w.session(&agentv1.CreateSessionRequest{})
	v, vo := w.watch(session), w.watch(other)
	w.submit(session, "Hello")
	v.until(isEnd)
	first := w.look(session).GetMessages()[1].GetId()
	w.submit(other, "Wait")
	vo.until(begins) // in the only slot
	w.submit(session, "", again(nil))
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
	w.wantPath(session, "Hello")
	if err := w.switchTo(session, first); err != nil {
		t.Fatal(err)
	}
	w.wantPath(session, "Hello", "text Hi.")
	close(release)
	vo.until(isEnd)
}

// A run that is active or queued would join another branch, so it has to end first.
func TestNoSwitchDuringRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	w.model.then(says("One."), says("Two."), func(a *answer) {
		await(a.r.Context(), release)
		says("Three.")(a)
	})
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	one := w.submit(session, "1").GetMessageId()
	v.until(isEnd)
	w.submit(session, "", editOf(one, "2"))
	v.until(isEnd)
	w.submit(session, "3")
	v.until(func(ev *runv1.Event) bool { return ev.GetRunStart() != nil })
	answers := w.look(session).GetMessages()[1].GetId()
	refused := func(what string, err error, want fault.Kind, code string) {
		t.Helper()
		if f := fault.From(err); f.Kind != want || f.Code != code {
			t.Errorf("%s = %v, want %v %s", what, err, want, code)
		}
	}
	submit := func(change func(*agentv1.SubmitRequest)) error {
		req := &agentv1.SubmitRequest{SessionId: session}
		change(req)
		_, err := w.conversations.Submit(w.as(identity.Editor), req)
		return err
	}
	refused("a switch", w.switchTo(session, one), fault.Conflict, "RUN_ACTIVE")
	refused("an edit", submit(editOf(one, "x")), fault.Conflict, "RUN_ACTIVE")
	refused("another answer", submit(again(nil)), fault.Conflict, "RUN_ACTIVE")
	close(release)
	v.until(isEnd)
	w.wantPath(session, "2 2/2", "text Two.", "3", "text Three.")

	unknown := id.New[id.Message]().String()
	refused("a switch to a message that is not there", w.switchTo(session, unknown), fault.NotFound, "")
	refused("an edit of it", submit(editOf(unknown, "x")), fault.NotFound, "")
	refused("an edit of an answer", submit(editOf(answers, "x")), fault.Invalid, "")
	other := w.session(&agentv1.CreateSessionRequest{})
	refused("a switch in another session", w.switchTo(other, one), fault.NotFound, "")
	if _, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: other, Regenerate: &agentv1.Regenerate{}}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an answer to nothing = %v, want not found", err)
	}
	if _, err := w.conversations.SwitchBranch(w.as(identity.Viewer), &agentv1.SwitchBranchRequest{SessionId: session, MessageId: one}); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("a viewer's switch = %v, want forbidden", err)
	}
}

// A branch is tainted by what it has read itself. What another one has read may come back through
// a document, which taints whoever reads it.
func TestTaintOfBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, spec := range map[string]*toolv1.Tool{
		"web": {ReadsUntrusted: true, ReadsPrivate: true}, "write": isDoc, "read": {ReadsUntrusted: true, ReadsPrivate: true},
		"post": {ActsOutside: true, Effect: toolv1.Effect_EFFECT_UNSAFE},
	} {
		w.tools.add(name, func(context.Context, *toolv1.Call) string { return `{"result":"text"}` })
		w.tools.specs[name] = spec
	}
	post := calls([3]string{"p", "post", "{}"})
	w.model.then(
		calls([3]string{"a", "web", "{}"}), calls([3]string{"b", "write", "{}"}), says("Read."),
		post, says("Posted."), calls([3]string{"c", "read", "{}"}), post,
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	asked := w.submit(session, "Read the web").GetMessageId()
	v.until(isEnd)
	w.submit(session, "", editOf(asked, "Post it"))
	if got := lines(v.until(func(ev *runv1.Event) bool { return isEnd(ev) || parked(ev) })); !strings.Contains(got[len(got)-1], "done stop") {
		t.Errorf("a branch without taint ended with %s", got[len(got)-1])
	}
	w.submit(session, "Read the document and post it")
	if got := lines(v.until(func(ev *runv1.Event) bool { return isEnd(ev) || parked(ev) })); !strings.Contains(got[len(got)-1], "waiting") {
		t.Errorf("a branch that read what another one wrote ended with %s", got[len(got)-1])
	}
}

// A summary counts for the branches that contain the last message that it stands for.
func TestSummariesOfBranches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(says("A1."), says("A2."), says("SUMMARY"), says("A3."), says("B1."), says("B3."), says("A4."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	one := w.submit(session, "1").GetMessageId()
	v.until(isEnd)
	w.submit(session, "2")
	v.until(isEnd)
	if _, err := w.conversations.CompactSession(w.as(identity.Editor), &agentv1.CompactSessionRequest{Id: session}); err != nil {
		t.Fatal(err)
	}
	three := w.submit(session, "3").GetMessageId()
	v.until(isEnd)
	if got := w.look(session).GetSummary(); got.GetText() == "" || got.GetMessages() == 0 {
		t.Fatalf("the summary is %v", got)
	}
	w.submit(session, "", editOf(one, "1b"))
	v.until(isEnd)
	if got, asked := w.look(session).GetSummary(), string(w.model.asked()[4]); got != nil || strings.Contains(asked, "SUMMARY") {
		t.Errorf("another branch has the summary %v, and the model got %s", got, asked)
	}
	w.submit(session, "", editOf(three, "3b"))
	v.until(isEnd)
	if asked := string(w.model.asked()[5]); !strings.Contains(asked, "SUMMARY") || strings.Contains(asked, "1b") || strings.Contains(asked, "A3") {
		t.Errorf("a branch after the summary sent %s", asked)
	}
}

// A fork has the messages of one branch and goes on by itself.
func TestFork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("write", func(context.Context, *toolv1.Call) string { return `{"id":"` + aDocument + `"}` })
	w.tools.specs["write"] = isDoc
	w.model.then(calls([3]string{"a", "write", "{}"}), says("Done."), says("Next."), says("Forked."), says("Edited."), says("Again."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{Title: "Plan", SystemPrompt: "Be brief.", MaxSteps: 7})
	v := w.watch(session)
	w.submit(session, "Write it")
	v.until(isEnd)
	next := w.submit(session, "And?").GetMessageId()
	v.until(isEnd)
	// In the middle of an answer: the whole answer is copied.
	req := &agentv1.ForkSessionRequest{SessionId: session, MessageId: w.look(session).GetMessages()[1].GetId(), IdempotencyKey: "k"}
	res, err := w.conversations.ForkSession(w.as(identity.Editor), req)
	if err != nil {
		t.Fatal(err)
	}
	fork := res.GetSession()
	if repeated, err := w.conversations.ForkSession(w.as(identity.Editor), req); err != nil || repeated.GetSession().GetId() != fork.GetId() {
		t.Errorf("the same request again = %v, %v", repeated, err)
	}
	if fork.GetTitle() != "Plan" || fork.GetSystemPrompt() != "Be brief." || fork.GetMaxSteps() != 7 || fork.GetForkedFrom() != session {
		t.Errorf("the fork is %v", fork)
	}
	w.wantPath(fork.GetId(), "Write it", "tool ", "tool ", "text Done.")
	before := w.look(session)
	vf := w.watch(fork.GetId())
	w.submit(fork.GetId(), "Go on")
	vf.until(isEnd)
	w.wantPath(fork.GetId(), "Write it", "tool ", "tool ", "text Done.", "Go on", "text Forked.")
	if diff := cmp.Diff(before.GetLastEvent().String(), w.look(session).GetLastEvent().String()); diff != "" || len(w.look(session).GetMessages()) != len(before.GetMessages()) {
		t.Errorf("the fork's run changed the original: %s", diff)
	}
	// What the original did after the fork's messages, or before an edit, is told.
	w.submit(fork.GetId(), "", editOf(w.look(fork.GetId()).GetMessages()[0].GetId(), "Write that"))
	vf.until(isEnd)
	if asked := string(w.model.asked()[4]); !strings.Contains(asked, "not undone: write (document "+aDocument+")") {
		t.Errorf("the model was not told of the original's call: %s", asked)
	}
	// So is what the first of several forks did.
	again := fork.GetId()
	for range 2 {
		res, err := w.conversations.ForkSession(w.as(identity.Editor), &agentv1.ForkSessionRequest{SessionId: again})
		if err != nil {
			t.Fatal(err)
		}
		again = res.GetSession().GetId()
	}
	vn := w.watch(again)
	w.submit(again, "Once more")
	vn.until(isEnd)
	if asked := string(w.model.asked()[5]); !strings.Contains(asked, "not undone: write (document "+aDocument+")") {
		t.Errorf("the model was not told of the first session's call: %s", asked)
	}
	// The answer of a run, into the archive.
	first := w.look(session).GetMessages()[0].GetRunId()
	res, err = w.conversations.ForkSession(w.as(identity.Editor), &agentv1.ForkSessionRequest{SessionId: session, RunId: first, Archived: true})
	if err != nil {
		t.Fatal(err)
	}
	if !res.GetSession().GetArchived() {
		t.Error("the fork is not in the archive")
	}
	w.wantPath(res.GetSession().GetId(), "Write it", "tool ", "tool ", "text Done.")
	// A message for a session that has gone on.
	_, err = w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: session, ContentJson: `"x"`, LastOrdinal: new(int64(0))})
	if fault.From(err).Code != "NOT_THE_LAST" {
		t.Errorf("a message after the first run of two = %v", err)
	}
	// A message of the user alone, and everything.
	for message, want := range map[string]int{next: 5, "": 6} {
		res, err := w.conversations.ForkSession(w.as(identity.Editor), &agentv1.ForkSessionRequest{SessionId: session, MessageId: message, Title: "T"})
		if err != nil {
			t.Fatal(err)
		}
		if got := w.path(res.GetSession().GetId()); len(got) != want || res.GetSession().GetTitle() != "T" {
			t.Errorf("a fork at %q has %q and the title %q", message, got, res.GetSession().GetTitle())
		}
	}
}
