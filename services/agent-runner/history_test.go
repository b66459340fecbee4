package agentrunner_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
)

// A session that is created with a history goes on from there.
func TestCreateWithHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(says("You said tea."))
	w.connect(w.start())
	earlier := []*agentv1.EarlierMessage{
		{Role: "user", ContentJson: `"I like tea, where is it?"`},
		{Role: "assistant", ContentJson: `[{"type":"text","text":"I look."},{"type":"tool-call","toolCallId":"c1","toolName":"find","input":{}}]`},
		{Role: "tool", ContentJson: `[{"type":"tool-result","toolCallId":"c1","toolName":"find","output":{"type":"text","value":"in the kitchen"}}]`},
		{Role: "assistant", ContentJson: `[{"type":"text","text":"In the kitchen."}]`},
	}
	session := w.session(&agentv1.CreateSessionRequest{History: earlier, Archived: true})
	v := w.watch(session)
	w.submit(session, "what did I say?")
	v.until(isEnd)
	asked := string(w.model.asked()[0])
	at := 0
	for _, text := range []string{"I like tea", "I look.", "in the kitchen", "In the kitchen.", "what did I say?"} {
		i := strings.Index(asked[at:], text)
		if i < 0 {
			t.Fatalf("the model is asked %s, want %q at its place", asked, text)
		}
		at += i
	}
	got := w.look(session)
	if n := len(got.GetMessages()); n != 6 || got.GetMessages()[0].GetRunId() != "" || got.GetMessages()[4].GetRunId() == "" || !got.GetSession().GetArchived() {
		t.Errorf("the session is %v, want the history without runs, then the question and its answer", got)
	}
	for name, history := range map[string][]*agentv1.EarlierMessage{
		"no result":      earlier[:2],
		"late result":    {earlier[1], earlier[0], earlier[2]},
		"no call":        {earlier[2]},
		"another role":   {{Role: "system", ContentJson: `"x"`}},
		"no content":     {{Role: "user"}},
		"no JSON":        {{Role: "assistant", ContentJson: `[{"type":"text","text":"a"}`}},
		"a forged part":  {{Role: "assistant", ContentJson: `[{"type":"reasoning","text":"x"}]`}},
		"1,001 messages": repeated(earlier[0], 1001),
	} {
		_, err := w.conversations.CreateSession(w.as(identity.Editor), &agentv1.CreateSessionRequest{History: history})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(fault.From(err).Message, "history") {
			t.Errorf("CreateSession with %s = %v, want Invalid", name, err)
		}
	}
}

func repeated[T any](v T, n int) (out []T) {
	for range n {
		out = append(out, v)
	}
	return out
}
