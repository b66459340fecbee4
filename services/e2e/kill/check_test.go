package kill

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// clean returns the transcript of a session without problems: two texts, the second of which
// waited for the first, and a document.
func clean() *transcript {
	b := &builder{transcript: newTranscript("s"), now: time.Unix(1000, 0)}
	for _, name := range []string{"staying", "reconnecting"} {
		b.witness(name)
	}
	one, two := &ask{id: "a", kind: text, n: 3}, &ask{id: "b", kind: text, n: 2}
	written := &ask{id: "d", kind: doc}
	b.submit(one, 1)
	b.submit(two, 2)
	b.run(one, one.answer())
	b.run(two, two.answer())
	b.submit(written, 3)
	b.run(written, written.answer(), "doc_create", "doc_append")
	b.document(written, "d-a. d-b. d-c.")
	approved, deleted := &ask{id: "p", kind: asked}, &ask{id: "q", kind: asked}
	b.submit(approved, 4)
	b.answer(approved, "test_asked_unsafe", "approved", true)
	b.run(approved, approved.answer())
	b.call(approved, "test_asked_unsafe", "unknown", "approved")
	b.call(approved, "test_unsafe", "unknown", "")
	b.submit(deleted, 5)
	b.answer(deleted, "doc_delete", "approved", false)
	b.run(deleted, deleted.answer())
	b.call(deleted, "doc_delete", "ok", "approved")
	b.call(deleted, "test_keyed", "ok", "")
	b.call(deleted, "test_asked_unsafe", "ok", "rule")
	return b.transcript
}

type builder struct {
	*transcript
	now time.Time
}

func (b *builder) tick() time.Time {
	b.now = b.now.Add(time.Second)
	return b.now
}

func (b *builder) submit(a *ask, ordinal int64) {
	a.from, a.to = b.tick(), b.tick()
	a.key, a.run, a.ordinal = a.id, fmt.Sprintf("run-%d", ordinal), ordinal
	b.asks = append(b.asks, a)
}

func (b *builder) say(run, number int64, kind string, fields map[string]any) {
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	for _, s := range b.views {
		b.note(s, kind, place{run, number}.String(), data, "")
	}
	b.events[place{run, number}].at = b.tick()
}

func (b *builder) run(a *ask, answer string, tools ...string) {
	started := b.tick()
	b.say(a.ordinal, 0, "user-message", nil)
	b.say(a.ordinal, 1, "run-start", nil)
	b.say(a.ordinal, 2, "text-delta", map[string]any{"delta": "void"})
	b.say(a.ordinal, 3, "step-retry", map[string]any{"stepIndex": 0})
	half := len(answer) / 2
	b.say(a.ordinal, 4, "text-delta", map[string]any{"delta": answer[:half]})
	b.say(a.ordinal, 5, "text-delta", map[string]any{"delta": answer[half:]})
	b.say(a.ordinal, 6, "step-complete", map[string]any{"stepIndex": 0})
	ended := b.tick()
	b.say(a.ordinal, 7, "done", map[string]any{"finishReason": "stop", "text": "Before. " + answer, "final_text": answer})
	reason := "stop"
	r := world.Run{ID: a.run, Ordinal: a.ordinal, State: "done", Text: answer, FinishReason: &reason, StartedAt: &started, EndedAt: &ended}
	ok := "ok"
	for _, tool := range tools {
		args := fmt.Sprintf(`{"name":%q}`, a.document())
		if tool == "doc_append" {
			args = fmt.Sprintf(`{"content":%q}`, strings.Join(a.markers(), " "))
		}
		r.ToolCalls = append(r.ToolCalls, world.ToolCall{Tool: tool, Args: json.RawMessage(args), State: &ok})
	}
	b.runs[a.run] = r
	step := 0
	content, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	asked, err := json.Marshal(a.content())
	if err != nil {
		panic(err)
	}
	b.messages = append(b.messages, world.Message{Role: "user", Content: asked, RunID: &a.run},
		world.Message{Role: "assistant", Content: content, RunID: &a.run, StepIndex: &step})
}

// answer is a person's answer about a call of an ask's run.
func (b *builder) answer(a *ask, tool, decision string, remember bool) {
	b.answers = append(b.answers, &answer{
		Approval: world.Approval{RunID: a.run, CallID: tool, Tool: tool, Question: "approval", AskedAt: a.id},
		span:     span{b.tick(), b.tick()}, decision: decision, remember: remember, accepted: true, stored: decision,
	})
}

// call is a call of an ask's run that took effect once.
func (b *builder) call(a *ask, tool, state, decision string) {
	note := a.id + "-" + tool
	x := world.ToolCall{ID: tool, Tool: tool, Args: json.RawMessage(fmt.Sprintf(`{"note":%q}`, note)), State: &state}
	if decision != "" {
		x.Approval = &world.Approval{Question: "approval", AskedAt: a.id, Decision: &decision}
	}
	b.counts[note] = farend.Operation{Effects: 1, First: b.tick()}
	change(b.transcript, a.run, func(r *world.Run) { r.ToolCalls = append(r.ToolCalls, x) })
}

func (b *builder) document(a *ask, content string) {
	b.documents = append(b.documents, document{a.document(), content})
	b.readings = append(b.readings, reading{span{b.tick(), b.tick()}, a.document(), content})
}

// TestCheckFindsFaults checks that each fault inserted into a clean transcript is found, with its
// name.
func TestCheckFindsFaults(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		plant func(*transcript)
		want  []sort
	}{
		"none":                             {func(*transcript) {}, nil},
		"lost event":                       {func(t *transcript) { drop(t.views[0], 4) }, []sort{hole}},
		"event twice":                      {func(t *transcript) { t.views[1].sights = slices.Insert(t.views[1].sights, 4, t.views[1].sights[3]) }, []sort{twice}},
		"late event":                       {func(t *transcript) { swap(t.views[1], 4, 5) }, []sort{hole, twice, differs}},
		"two orders":                       {func(t *transcript) { swapRuns(t.views[1]) }, []sort{differs}},
		"other bytes":                      {func(t *transcript) { t.note(t.views[0], "text-delta", "1-4", []byte(`{"delta":"x"}`), "") }, []sort{twice, differs}},
		"one more member":                  {more, []sort{differs}},
		"one more member in a new version": {func(t *transcript) { t.versions = true; more(t) }, nil},
		"other bytes of a new version": {func(t *transcript) {
			t.versions = true
			t.note(t.views[0], "text-delta", "1-4", []byte(`{"delta":"x"}`), "")
		}, []sort{twice, differs}},
		"snapshot":                        {func(t *transcript) { snapshotAt(t.views[0], place{1, 4}) }, nil},
		"hole behind":                     {func(t *transcript) { snapshotAt(t.views[0], place{1, 3}) }, []sort{hole}},
		"hole in a run after a snapshot":  {func(t *transcript) { snapshotAt(t.views[0], place{1, 4}); drop(t.views[0], 9) }, []sort{hole}},
		"beginning lost after a snapshot": {func(t *transcript) { snapshotAt(t.views[0], place{1, 4}); drop(t.views[0], 7) }, []sort{hole}},
		"first event lost after a snapshot": {func(t *transcript) {
			snapshotAt(t.views[0], place{1, 4})
			t.views[0].sights = slices.Delete(t.views[0].sights, 7, 14)
		}, []sort{hole}},
		"sender":                           {func(t *transcript) { addSender(t, 2) }, nil},
		"sender, and nobody saw the start": {func(t *transcript) { addSender(t, 2); unseen(t) }, nil},
		"event lost for the sender":        {func(t *transcript) { addSender(t, 2); drop(t.views[2], 1) }, []sort{hole}},
		"first event lost for the sender":  {func(t *transcript) { addSender(t, 3) }, []sort{hole}},
		"again behind a snapshot":          {func(t *transcript) { again(t.views[0], place{1, 2}) }, nil},
		"again before a snapshot":          {func(t *transcript) { again(t.views[0], place{1, 3}) }, []sort{twice}},
		"two ends":                         {func(t *transcript) { t.events[place{1, 6}].kind = "error" }, []sort{twoEnds}},
		"no end":                           {func(t *transcript) { delete(t.ends, 1); delete(t.events, place{1, 7}) }, []sort{lost}},
		"end in a snapshot": {func(t *transcript) {
			endless(t)
			t.views[0].sights = slices.Insert(t.views[0].sights, 7, sight{place: place{1, 7}, snapshot: true, cursor: "1-6"})
		}, nil},
		"end after a snapshot": {func(t *transcript) {
			endless(t)
			t.views[0].sights = slices.Insert(t.views[0].sights, 7, sight{place: place{1, 6}, snapshot: true, cursor: "1-6"})
		}, []sort{lost}},
		"still runs":   {func(t *transcript) { change(t, "run-2", func(r *world.Run) { r.State = "running" }) }, []sort{lost}},
		"lost message": {func(t *transcript) { t.messages = slices.Delete(t.messages, 0, 1) }, []sort{lost}},
		"two messages": {func(t *transcript) { t.messages = append(t.messages, t.messages[0]) }, []sort{repeated}},
		"truncated": {func(t *transcript) {
			t.messages[1].Content = json.RawMessage(`"answer a: 1 2"`)
		}, []sort{falseOK, falseOK}},
		"other end":         {func(t *transcript) { change(t, "run-1", func(r *world.Run) { r.State = "failed" }) }, []sort{differs}},
		"append twice":      {func(t *transcript) { edit(t, "d-a. d-b. d-b. d-c.") }, []sort{doubled, unordered}},
		"append lost":       {func(t *transcript) { edit(t, "d-a. d-c.") }, []sort{falseOK, unordered}},
		"two documents":     {func(t *transcript) { t.documents = append(t.documents, t.documents[0]) }, []sort{doubled}},
		"effect twice":      {func(t *transcript) { recount(t, "q-test_keyed", 2) }, []sort{doubled}},
		"unknown twice":     {func(t *transcript) { recount(t, "p-test_unsafe", 2) }, []sort{doubled}},
		"effect that isn't": {func(t *transcript) { recount(t, "q-test_keyed", 0) }, []sort{falseOK}},
		"out of turn":       {overtake, []sort{unordered}},
		"approved twice":    {func(t *transcript) { recount(t, "p-test_asked_unsafe", 2) }, []sort{doubled}},
		"not approved":      {func(t *transcript) { t.answers[0].decision, t.answers[0].stored = "refused", "refused" }, []sort{unapproved, forgotten}},
		"nobody answered":   {func(t *transcript) { t.answers = t.answers[1:] }, []sort{unapproved}},
		"before the answer": {func(t *transcript) { t.answers[0].from = time.Unix(2000, 0) }, []sort{unapproved}},
		"answer too late":   {func(t *transcript) { t.answers[1].accepted, t.answers[1].late = false, true }, []sort{unapproved}},
		"answer changed":    {func(t *transcript) { decide(t, "run-5", 0, "refused") }, []sort{forgotten}},
		"other response":    {func(t *transcript) { t.answers[1].stored = "refused" }, []sort{forgotten}},
		"rule forgotten":    {func(t *transcript) { decide(t, "run-5", 2, "approved") }, []sort{forgotten}},
		"not deleted": {func(t *transcript) {
			t.documents = append(t.documents, document{name: "kill q"})
		}, []sort{falseOK}},
		"asked, and no answer told": {func(t *transcript) { t.events[place{4, 2}].kind = "tool-approval-request" }, []sort{forgotten}},
		"answer without a question": {func(t *transcript) { t.events[place{4, 2}].kind = "tool-approval-response" }, []sort{twice}},
		"read of the past": {func(t *transcript) {
			early := t.readings[0]
			early.content = ""
			early.from, early.to = early.to.Add(time.Second), early.to.Add(2*time.Second)
			t.readings = append(t.readings, early)
		}, []sort{unordered}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := clean()
			tc.plant(tr)
			var got []sort
			all := append(tr.problems, tr.check()...)
			for _, p := range all {
				got = append(got, p.Sort)
			}
			slices.Sort(got)
			slices.Sort(tc.want)
			if diff := cmp.Diff(slices.Compact(tc.want), slices.Compact(got)); diff != "" {
				t.Errorf("check() (-want +got):\n%s\n%v", diff, all)
			}
		})
	}
}

// endless makes no witness see the first run's end.
func endless(t *transcript) {
	delete(t.ends, 1)
	delete(t.events, place{1, 7})
	for _, s := range t.views {
		s.sights = slices.Delete(s.sights, 7, 8)
	}
	change(t, "run-1", func(r *world.Run) { r.LastEventID = new("1-7") })
}

// addSender adds the sender of the first run's message as a witness, who sees the run from an event on.
func addSender(t *transcript, from int) {
	t.views = append(t.views, &view{name: "the sender", run: 1, sender: true, sights: slices.Clone(t.views[0].sights[from:8])})
}

// unseen gives both witnesses a snapshot in place of the first run's user-message and run-start.
func unseen(t *transcript) {
	for n := range int64(2) {
		delete(t.events, place{1, n})
	}
	for _, s := range t.views[:2] {
		s.sights = slices.Insert(s.sights[2:], 0, sight{place: place{1, 1}, snapshot: true, cursor: beginning})
	}
}

func drop(s *view, i int)    { s.sights = slices.Delete(s.sights, i, i+1) }
func swap(s *view, i, j int) { s.sights[i], s.sights[j] = s.sights[j], s.sights[i] }

// swapRuns shows a witness the second run before the first.
func swapRuns(s *view) { s.sights = slices.Concat(s.sights[8:16], s.sights[:8], s.sights[16:]) }

// snapshotAt gives a witness a snapshot in place of 1-3 and 1-4.
func snapshotAt(s *view, at place) {
	s.sights = slices.Concat(s.sights[:3], []sight{{place: at, snapshot: true, cursor: "1-2"}}, s.sights[5:])
}

// again gives a witness a snapshot after 1-4, and then the events from 1-3 on.
func again(s *view, at place) {
	s.sights = slices.Concat(s.sights[:5], []sight{{place: at, snapshot: true, cursor: "1-4"}}, s.sights[3:])
}

func change(t *transcript, run string, f func(*world.Run)) {
	r := t.runs[run]
	f(&r)
	t.runs[run] = r
}

// more lets a view see an event with a member more than the other.
func more(t *transcript) {
	known := t.events[place{1, 4}]
	first := t.views[0]
	t.note(first, known.kind, "1-4", append([]byte(`{"at":1,`), known.data[1:]...), "")
	first.sights = first.sights[:len(first.sights)-1]
}

func recount(t *transcript, note string, effects int) {
	o := t.counts[note]
	o.Effects = effects
	t.counts[note] = o
}

func decide(t *transcript, run string, call int, decision string) {
	change(t, run, func(r *world.Run) { r.ToolCalls[call].Approval.Decision = &decision })
}

func edit(t *transcript, content string) {
	t.documents[0].content, t.readings[0].content = content, content
}

// overtake makes the second run begin before the first has ended.
func overtake(t *transcript) {
	first, second := t.runs["run-1"], t.runs["run-2"]
	before := first.EndedAt.Add(-2 * time.Second)
	second.StartedAt = &before
	t.runs["run-2"] = second
	t.events[place{2, 0}].at = before.Add(time.Second)
}

// TestHistoryUndecided checks that a history that cannot be checked in time is not considered
// correct.
func TestHistoryUndecided(t *testing.T) {
	t.Parallel()
	var ops []porcupine.Operation
	for i := range 24 { // concurrent, with too many possible orders
		ops = append(ops, porcupine.Operation{Input: listOp{fmt.Sprint("m", i)}, Call: 0, Return: 100})
	}
	ops = append(ops, porcupine.Operation{Input: listOp{}, Output: "something else", Call: 200, Return: 300})
	c := &checker{transcript: newTranscript("s")}
	c.history(listModel, ops, 20*time.Millisecond, func() string { return "…" })
	if len(c.found) != 1 || c.found[0].Sort != undecided {
		t.Errorf("history() found %v, want it undecided", c.found)
	}
}

func TestScriptAnswers(t *testing.T) {
	t.Parallel()
	for _, a := range []*ask{{id: "x", kind: text, n: 12}, {id: "x", kind: clock}, {id: "x", kind: doc}, {id: "x", kind: far}, {id: "x", kind: wait}, {id: "x", kind: asked}, {id: "x", kind: work}, {id: "x", kind: turn}, {id: "x", kind: long}} {
		if !strings.HasSuffix(a.answer(), "end x") || !strings.Contains(string(script), string(a.kind)+" (?P<id>") {
			t.Errorf("the script has no answer %q to %q", a.answer(), a.content())
		}
	}
	if got, want := count(12), "1 2 3 4 5 6 7 8 9 10\n11 12"; got != want {
		t.Errorf("count(12) = %q, want %q", got, want)
	}
}

func TestSnapshotsAreClassified(t *testing.T) {
	t.Parallel()
	tr := clean()
	snapshotAt(tr.views[0], place{1, 4})
	if got := tr.snapshots(); len(got) != 1 || !got[0].spared {
		t.Errorf("snapshots() = %v, want one of events that another witness saw", got)
	}
	maps.DeleteFunc(tr.events, func(p place, _ *event) bool { return p == place{1, 3} })
	if got := tr.snapshots(); len(got) != 1 || got[0].spared {
		t.Errorf("snapshots() = %v, want one of an event that no witness saw", got)
	}
}

func TestPauses(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	after := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := newPauses()
	d := &death{part: "agent-runner-1", at: after(1000)}
	p.died(d)
	p.owned(d, []string{"r"})
	p.died(&death{part: "nats", at: after(1500)})
	p.died(&death{part: "gateway", at: after(20000), lasting: true})
	for _, gap := range []struct {
		from, to int
		run      string
		want     time.Duration
	}{
		{0, 900, "r", 0},                           // before
		{950, 1020, "r", 0},                        // in transit
		{1020, 3000, "r", 2 * time.Second},         // from the kill, although an event followed it
		{1400, 1600, "x", 0},                       // too short to notice
		{1600, 2600, "x", 1100 * time.Millisecond}, // nats, just before
		{2600, 9000, "x", 0},                       // no kill
		{19000, 20300, "x", 0},                     // too short from the kill on
		{19000, 20900, "x", 900 * time.Millisecond},
		{29000, 29300, "x", 0},               // too short, while it is broken
		{30000, 32000, "x", 2 * time.Second}, // while it is broken
	} {
		if got := p.add(Pause{Run: gap.run, From: after(gap.from), To: after(gap.to)}); got != gap.want {
			t.Errorf("add(%d to %d) = %s, want %s", gap.from, gap.to, got, gap.want)
		}
	}
	want := map[string][]time.Duration{"agent-runner": {2 * time.Second}, "nats": {1100 * time.Millisecond}, "gateway": {900 * time.Millisecond, 2 * time.Second}}
	if diff := cmp.Diff(want, p.by); diff != "" {
		t.Errorf("by part (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Duration{2 * time.Second}, p.exact); diff != "" {
		t.Errorf("of the killed runner (-want +got):\n%s", diff)
	}
	if got, want := quantilesOf([]time.Duration{3, 1, 2}), (quantiles{3, 2, 3, 3}); got != want {
		t.Errorf("quantilesOf(3, 1, 2) = %v, want %v", got, want)
	}
}
