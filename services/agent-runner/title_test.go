package agentrunner_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

func titled(model string) func(*agentrunner.Config) {
	return func(cfg *agentrunner.Config) { cfg.TitleModel = model }
}

// titleOr answers requests for a title in one way and all others in another.
func titleOr(title, other func(*answer)) func(*answer) {
	return func(a *answer) {
		if strings.Contains(string(a.request), "Write a title for a conversation") {
			title(a)
		} else {
			other(a)
		}
	}
}

func isTitle(ev *runv1.Event) bool { return ev.GetSessionTitle() != nil }

// A model names a session while its first run goes on. Viewers are told, and the usage is counted.
func TestModelTitle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	told := make(chan struct{})
	both := titleOr(func(a *answer) {
		if !strings.Contains(string(a.request), `"model":"claude-haiku-4-5-20251001"`) {
			t.Errorf("the title is asked of another model: %s", a.request)
		}
		says("\"Tea in Japan.\"\n")(a)
	}, func(a *answer) {
		a.begin()
		a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
		for done := false; !done; { // the answer takes until the title is there
			a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"."}}`)
			select {
			case <-told:
				done = true
			default:
			}
		}
		a.event("content_block_stop", `{"type":"content_block_stop","index":0}`)
		a.end()
	})
	w.model.then(both, both, says("Next."))
	w.start(titled("openai/gpt-5-nano,anthropic/claude-haiku-4-5-20251001"))
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "What tea do they drink in Japan?")
	events := v.until(isTitle)
	if got := events[len(events)-1].GetSessionTitle().GetTitle(); got != "Tea in Japan" {
		t.Errorf("viewers are told the title %q", got)
	}
	if got := w.look(session).GetSession().GetTitle(); got != "Tea in Japan" {
		t.Errorf("the title is %q", got)
	}
	close(told)
	checkDense(t, append(events, v.until(isEnd)...))
	// Three millionths of a dollar for each token of the one model, one for the other.
	if got := w.count(`SELECT cost_micros FROM usage WHERE step_index = -1 AND model = 'claude-haiku-4-5-20251001'`); got != 10*1+5*5 {
		t.Errorf("the title cost %d millionths of a dollar", got)
	}
	if r := w.run(sub.GetRun().GetId()); r.GetRun().GetUsage().GetInputTokens() != 10 || len(r.GetSteps()) != 1 {
		t.Errorf("the run is %v, with the title's tokens", r)
	}
	w.submit(session, "And now?") // asks for no title
	v.until(isEnd)
}

// The run does not wait for the title, which is set when it comes.
func TestTitleDelaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ended := make(chan struct{})
	both := titleOr(func(a *answer) { await(a.r.Context(), ended); says("Tea")(a) }, says("Hello."))
	w.model.then(both, both)
	w.start(titled("same"))
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "Hi")
	v.until(isEnd)
	if got := w.look(session).GetSession().GetTitle(); got != "Hi" {
		t.Errorf("the title is %q before a model has named the session", got)
	}
	close(ended)
	w.eventually("the title Tea", func() bool { return w.look(session).GetSession().GetTitle() == "Tea" })
}

// eventually waits until ok returns true.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !ok(); <-tick.C {
		if time.Since(begun) > patient {
			w.t.Fatalf("%s did not come", what)
		}
	}
}

// A title that a person gives stays, and a call that fails changes nothing.
func TestTitleKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	renamed, asked := make(chan struct{}), make(chan struct{})
	late := titleOr(func(a *answer) { close(asked); await(a.r.Context(), renamed); says("A model's")(a) }, says("Hello."))
	failing := titleOr(fails(500, `{"type":"error","error":{"type":"api_error","message":"oh"}}`), says("Hello."))
	w.model.then(says("Hello."), late, late, failing, failing)
	first := w.start(titled("same"))
	title := func(session string) string { return w.look(session).GetSession().GetTitle() }

	given := w.session(&agentv1.CreateSessionRequest{Title: "Mine"})
	v := w.watch(given)
	w.submit(given, "Hi")
	v.until(isEnd)

	changed := w.session(&agentv1.CreateSessionRequest{})
	v = w.watch(changed)
	w.submit(changed, "Hi")
	v.until(isEnd)
	<-asked
	if _, err := w.conversations.UpdateSession(w.as(identity.Editor), &agentv1.UpdateSessionRequest{Id: changed, Title: new("Mine too")}); err != nil {
		t.Fatal(err)
	}
	close(renamed)

	failed := w.session(&agentv1.CreateSessionRequest{})
	v = w.watch(failed)
	w.submit(failed, "Hi there")
	v.until(isEnd)

	w.eventually("the fifth call", func() bool { return len(w.model.asked()) == 5 })
	got := []string{title(given), title(changed), title(failed)}
	first.stop() // waits for the calls
	first.ended <- <-first.ended
	w.connect(w.start())
	got = append(got, title(given), title(changed), title(failed))
	if diff := cmp.Diff([]string{"Mine", "Mine too", "Hi there", "Mine", "Mine too", "Hi there"}, got); diff != "" {
		t.Error(diff)
	}
}
