package agentrunner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// window is the context of the model small, in tokens.
const window = 4_000

// small adds the model small.
func small(t *testing.T) func(*agentrunner.Config) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "models.json")
	models := fmt.Sprintf(`{"models":[{"provider":"anthropic","id":"small","context":%d,"maxOutput":400}]}`, window)
	if err := os.WriteFile(file, []byte(models), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(cfg *agentrunner.Config) { cfg.ModelCatalogue = file }
}

// tokensOf is the size of a request in tokens.
func tokensOf(request json.RawMessage) int { return len(request) / 4 }

// counted answers with text, and with the tokens of the request.
func (a *answer) counted(text string) {
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.event("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":%d,"output_tokens":1}}}`, tokensOf(a.request))
	a.text(text)
	a.end()
}

// isSummary reports whether a request asks for a summary.
func isSummary(request json.RawMessage) bool {
	return strings.Contains(string(request), "You summarize the earlier part of a conversation")
}

func isCompaction(ev *runv1.Event) bool { return ev.GetCompaction() != nil }

// A conversation of 200 turns never exceeds the model's window. It goes on after its summaries,
// and every message stays readable.
func TestLongConversation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const turns = 200
	var mu sync.Mutex
	summaries, largest := 0, 0
	answers := func(a *answer) {
		mu.Lock()
		defer mu.Unlock()
		if largest = max(largest, tokensOf(a.request)); largest > window {
			t.Errorf("a request has %d tokens, more than the window: %s", tokensOf(a.request), a.request)
		}
		if isSummary(a.request) {
			if summaries > 0 && !strings.Contains(string(a.request), fmt.Sprintf("SUMMARY %d", summaries)) {
				t.Errorf("the request for a summary lacks the one before: %s", a.request)
			}
			summaries++
			a.counted(fmt.Sprintf("SUMMARY %d", summaries))
			return
		}
		if summaries > 0 && !strings.Contains(string(a.request), fmt.Sprintf("SUMMARY %d", summaries)) {
			t.Errorf("a request lacks summary %d: %s", summaries, a.request)
		}
		a.counted("Answer. " + strings.Repeat("word ", 30))
	}
	for range 2 * turns {
		w.model.then(answers)
	}
	w.start(small(t))
	session := w.session(&agentv1.CreateSessionRequest{Provider: "anthropic", Model: "small"})
	v := w.watch(session)
	var all []*runv1.Event
	for i := range turns {
		w.submit(session, fmt.Sprintf("Question %d. %s", i, strings.Repeat("why ", 30)))
		events := v.until(isEnd)
		if end := events[len(events)-1].GetDone(); !strings.HasPrefix(end.GetText(), "Answer.") || strings.Contains(end.GetText(), "SUMMARY") {
			t.Fatalf("run %d ended with %v", i, events[len(events)-1])
		}
		all = append(all, events...)
	}
	checkDense(t, all)
	got := w.look(session)
	if len(got.GetMessages()) != 2*turns || !strings.Contains(got.GetMessages()[0].GetContentJson(), "Question 0.") {
		t.Errorf("%d messages are readable, want all %d", len(got.GetMessages()), 2*turns)
	}
	if want := fmt.Sprintf("SUMMARY %d", summaries); !strings.HasPrefix(got.GetSummary().GetText(), want) || got.GetSummary().GetMessages() < turns {
		t.Errorf("the session's summary is %v, want %s", got.GetSummary(), want)
	}
	if summaries < 3 || summaries > turns/4 || largest < window/2 {
		t.Errorf("%d summaries were made of prompts of up to %d tokens", summaries, largest)
	}
	// The usage of every call is counted.
	rows := w.count(`SELECT count(*) FROM usage WHERE NOT wasted`)
	if rows != turns+summaries {
		t.Errorf("the usage of %d calls was counted, want %d", rows, turns+summaries)
	}
}

func (w *world) count(query string) (n int) {
	w.t.Helper()
	err := w.db.Open(w.t, agentrunner.Migrations()).InWorkspace(w.t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, query).Scan(&n)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

const tooLong = `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9000 tokens > 8000 maximum"}}`

// A prompt that the provider refuses as too long is compacted once and sent again, in the middle
// of a run, with calls and results together. The step limit does not count the summary.
func TestPromptTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("read", func(context.Context, *toolv1.Call) string { return `{"result":"` + strings.Repeat("text ", 200) + `"}` })
	summarizes := func(a *answer) {
		if !isSummary(a.request) || !strings.Contains(string(a.request), "[result of read]") {
			t.Errorf("not a request for a summary of the results: %s", a.request)
		}
		says("They read a, b.")(a)
	}
	w.model.then(
		calls([3]string{"a", "read", "{}"}), calls([3]string{"b", "read", "{}"}), calls([3]string{"c", "read", "{}"}),
		fails(400, tooLong), summarizes, says("Done."), says("Next."),
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{MaxSteps: 4})
	v := w.watch(session)
	sub := w.submit(session, "Read a, b and c")
	events := v.until(isEnd)
	checkDense(t, events)
	got := lines(events)
	want := []string{"1 waiting 3 earlier messages are being summarized", "1 compaction 3 5 messages", "1 step 3 other 10/5", "1 text Done.", "1 step 4 stop 10/5", `1 done stop "Done." 5`}
	if tail := got[len(got)-len(want):]; strings.Join(tail, "\n") != strings.Join(want, "\n") {
		t.Errorf("the run ends with\n%s\nwant\n%s", strings.Join(tail, "\n"), strings.Join(want, "\n"))
	}
	last := string(w.model.asked()[5])
	for _, want := range []string{"They read a, b.", "The user's last request, verbatim:\\nRead a, b and c", `"tool_use_id":"c"`} {
		if !strings.Contains(last, want) {
			t.Errorf("the request after the summary lacks %s: %s", want, last)
		}
	}
	if strings.Contains(last, `"tool_use_id":"b"`) {
		t.Errorf("the request after the summary has what the summary stands for: %s", last)
	}
	w.submit(session, "And now?")
	v.until(isEnd)
	// The next prompt begins in the same way, for the provider's cache.
	prefix := func(request json.RawMessage) string {
		s := strings.ReplaceAll(string(request), `,"cache_control":{"type":"ephemeral"}`, "")
		return s[:strings.LastIndex(s, `"tool_use_id":"c"`)]
	}
	if before, after := prefix(w.model.asked()[5]), prefix(w.model.asked()[6]); before != after {
		t.Errorf("the prompt begins with\n%s\nthen with\n%s", before, after)
	}
	if u := w.run(sub.GetRun().GetId()).GetRun().GetUsage(); u.GetInputTokens() != 50 {
		t.Errorf("the run used %v, want the summary included", u)
	}
}

// Without a summary the conversation is sent as it is, and the failure says why.
func TestNoSummary(t *testing.T) {
	t.Parallel()
	for name, summary := range map[string]func(*answer){
		"refused": fails(400, `{"type":"error","error":{"type":"invalid_request_error","message":"no"}}`),
		"empty":   says(" "),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.model.then(says("Hello."), fails(400, tooLong), summary)
			w.start()
			session := w.session(&agentv1.CreateSessionRequest{})
			v := w.watch(session)
			w.submit(session, "Hi")
			v.until(isEnd)
			w.submit(session, "Hi again")
			events := v.until(isEnd)
			end := events[len(events)-1].GetError()
			if end.GetCode() != "MODEL_CONTEXT_LENGTH" || !strings.Contains(end.GetMessage(), "too long for this model") || !strings.Contains(end.GetMessage(), "could not be summarized") {
				t.Errorf("the run ended with %v", end)
			}
			if got := w.look(session); got.GetSummary() != nil || len(got.GetMessages()) != 3 {
				t.Errorf("the session has %d messages and the summary %v", len(got.GetMessages()), got.GetSummary())
			}
		})
	}
}

// A transcript that is itself too long for the provider is shortened.
func TestTranscriptTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(func(a *answer) { a.counted("Hello.") }, fails(400, tooLong), fails(400, tooLong), says("Short."), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, strings.Repeat("word ", 4000))
	v.until(isEnd)
	w.submit(session, "Hi again")
	events := v.until(isEnd)
	if end := events[len(events)-1].GetDone(); end.GetText() != "Done." {
		t.Errorf("the run ended with %v", events[len(events)-1])
	}
	asked := w.model.asked()
	if first, second := len(asked[2]), len(asked[3]); second > first*2/3 {
		t.Errorf("the second request for a summary has %d bytes after %d", second, first)
	}
}

// A stop while a summary is being made ends the run without it.
func TestStopDuringSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := make(chan struct{})
	w.model.then(says("Hello."), fails(400, tooLong), func(a *answer) {
		a.begin()
		a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"half a summary"}}`)
		close(asked)
		<-a.r.Context().Done()
	})
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "Hi")
	v.until(isEnd)
	w.submit(session, "Hi again")
	<-asked
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	events := v.until(isEnd)
	if got := lines(events); got[len(got)-1] != `2 done cancelled "" 0` {
		t.Errorf("events:\n%s", strings.Join(got, "\n"))
	}
	if got := w.look(session); len(got.GetMessages()) != 3 || got.GetSummary() != nil {
		t.Errorf("the session has the messages %v and the summary %v", got.GetMessages(), got.GetSummary())
	}
}

// What a conversation has read is remembered, whatever its summary says.
func TestTaintSurvivesSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("page", func(context.Context, *toolv1.Call) string {
		return `{"result":"` + strings.Repeat("a stranger's text ", 300) + `"}`
	})
	w.tools.specs["page"] = &toolv1.Tool{ReadsUntrusted: true, ReadsPrivate: true}
	w.tools.add("post", func(context.Context, *toolv1.Call) string { return `{"result":"sent"}` })
	w.tools.specs["post"] = &toolv1.Tool{Effect: toolv1.Effect_EFFECT_UNSAFE, ActsOutside: true}
	w.model.then(calls([3]string{"a", "page", "{}"}), says("Read."), fails(400, tooLong), says("Nothing happened."), calls([3]string{"b", "post", "{}"}))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "Read the page")
	v.until(isEnd)
	w.submit(session, "Post it")
	v.until(isCompaction)
	v.until(parked)
	if n := w.tools.timesRan("b"); n != 0 {
		t.Errorf("call b ran %d times without an approval", n)
	}
}

// A person may ask for a summary, which the next run makes once.
func TestCompactOnRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(says("Hello."), says("They greeted."), says("Go on."), says("More."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "Hi. "+strings.Repeat("word ", 1000))
	v.until(isEnd)
	ask := func(role identity.Role, id string) error {
		_, err := w.conversations.CompactSession(w.as(role), &agentv1.CompactSessionRequest{Id: id})
		return err
	}
	if err := ask(identity.Viewer, session); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("CompactSession by a viewer = %v", err)
	}
	if err := ask(identity.Editor, id.New[id.Session]().String()); fault.KindOf(err) != fault.NotFound {
		t.Errorf("CompactSession of no session = %v", err)
	}
	if err := ask(identity.Editor, session); err != nil {
		t.Fatal(err)
	}
	w.submit(session, "And?")
	events := v.until(isEnd)
	if got := lines(events); got[len(got)-1] != `2 done stop "Go on." 2` {
		t.Errorf("events:\n%s", strings.Join(got, "\n"))
	}
	if got := w.look(session).GetSummary(); got.GetText() != "They greeted." || got.GetMessages() != 1 {
		t.Errorf("the summary is %v", got)
	}
	w.submit(session, "And then?")
	if got := lines(v.until(isEnd)); got[len(got)-1] != `3 done stop "More." 1` {
		t.Errorf("events:\n%s", strings.Join(got, "\n"))
	}
}

// A summary that a person has asked for and that fails is not tried again, neither in the next step
// nor in the next run.
func TestCompactOnRequestFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("read", func(context.Context, *toolv1.Call) string { return `{"result":"read"}` })
	w.model.then(says("Hello."), says(" "), calls([3]string{"a", "read", "{}"}), says("Go on."), says("More."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "Hi. "+strings.Repeat("word ", 1000))
	v.until(isEnd)
	if _, err := w.conversations.CompactSession(w.as(identity.Editor), &agentv1.CompactSessionRequest{Id: session}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`2 done stop "Go on." 2`, `3 done stop "More." 1`} {
		w.submit(session, "And?")
		if got := lines(v.until(isEnd)); got[len(got)-1] != want {
			t.Errorf("events:\n%s\nwant %s", strings.Join(got, "\n"), want)
		}
	}
	summaries := 0
	for _, request := range w.model.asked() {
		if isSummary(request) {
			summaries++
		}
	}
	if summaries != 1 {
		t.Errorf("a summary was asked for %d times, want once", summaries)
	}
}

// cutShort answers with text that the limit of output tokens ends.
func cutShort(text string) func(*answer) {
	return func(a *answer) {
		a.stop = "max_tokens"
		a.counted(text)
	}
}

// A summary that is cut short is not used. Later runs try again only when the conversation has
// grown by a tenth of the window.
func TestSummaryCutShort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	counted := func(text string) func(*answer) { return func(a *answer) { a.counted(text) } }
	w.model.then(counted("Hello."), cutShort("HALF A"), counted("One."), counted("Two."), counted("WHOLE"), counted("Three."), counted("Four."))
	w.start(small(t))
	session := w.session(&agentv1.CreateSessionRequest{Provider: "anthropic", Model: "small"})
	v := w.watch(session)
	for i, text := range []string{strings.Repeat("word ", 2_700), "And?", "And?", strings.Repeat("more ", 500), "And?"} {
		w.submit(session, text)
		events := v.until(isEnd)
		if want, got := []string{"Hello.", "One.", "Two.", "Three.", "Four."}[i], events[len(events)-1].GetDone().GetText(); got != want {
			t.Fatalf("run %d ended with %v, want %s", i, events[len(events)-1], want)
		}
	}
	var summaries []int
	for i, request := range w.model.asked() {
		if isSummary(request) {
			summaries = append(summaries, i)
		}
		if strings.Contains(string(request), "HALF A") {
			t.Errorf("request %d has the summary that was cut short", i)
		}
	}
	if got := fmt.Sprint(summaries); got != "[1 4]" {
		t.Errorf("the requests %s ask for a summary, want [1 4]", got)
	}
	if got := w.look(session).GetSummary().GetText(); !strings.HasPrefix(got, "WHOLE") {
		t.Errorf("the summary is %q", got)
	}
}

// What a failed summary took may be the rest of a budget: the answer is another step of it.
func TestFailedSummarySpendsBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(func(a *answer) { a.counted("Hello.") }, cutShort("Half"), says("Not paid for."))
	w.start(small(t))
	session := w.session(&agentv1.CreateSessionRequest{Provider: "anthropic", Model: "small"})
	v := w.watch(session)
	w.submit(session, strings.Repeat("word ", 2_700))
	v.until(isEnd)
	if _, err := w.usage.SetBudget(w.as(identity.Owner), &agentv1.SetBudgetRequest{Scope: "run", Tokens: new(int64(1_000))}); err != nil {
		t.Fatal(err)
	}
	w.submit(session, "And?")
	events := v.until(isEnd)
	if end := events[len(events)-1].GetDone(); end.GetFinishReason() != "budget-tokens" || len(w.model.asked()) != 2 {
		t.Errorf("the run ended with %v after %d requests, want budget-tokens after 2", events[len(events)-1], len(w.model.asked()))
	}
}
