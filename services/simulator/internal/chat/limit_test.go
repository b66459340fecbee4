package chat_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/simulator/internal/chat"
)

func text(pieces ...string) chat.Step {
	return chat.Step{Block: &chat.Block{Kind: chat.Text, Pieces: pieces}}
}

func call(pieces ...string) chat.Step {
	return chat.Step{Block: &chat.Block{Kind: chat.Call, Pieces: pieces}}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		steps    []chat.Step
		req      chat.Request
		stop     chat.Stop // as the script has it
		want     [][]string
		wantStop chat.Stop
		sequence string
	}{
		{"free", []chat.Step{text("a", "b")}, chat.Request{}, "", [][]string{{"a", "b"}}, chat.EndTurn, ""},
		{"calls", []chat.Step{text("a"), call("{}")}, chat.Request{}, "", [][]string{{"a"}, {"{}"}}, chat.ToolUse, ""},
		{"scripted", []chat.Step{text("a")}, chat.Request{}, chat.Refusal, [][]string{{"a"}}, chat.Refusal, ""},
		{"length", []chat.Step{text("abc", "def"), text("x")}, chat.Request{MaxTokens: 1}, "", [][]string{{"abc", "d"}}, chat.MaxTokens, ""},
		{"length at a border", []chat.Step{text("abcd"), text("x")}, chat.Request{MaxTokens: 1}, "", [][]string{{"abcd"}}, chat.MaxTokens, ""},
		{"length within a character", []chat.Step{text("abcé")}, chat.Request{MaxTokens: 1}, "", [][]string{{"abc"}}, chat.MaxTokens, ""},
		{"exact length", []chat.Step{text("abcd")}, chat.Request{MaxTokens: 1}, "", [][]string{{"abcd"}}, chat.EndTurn, ""},
		{"stop sequence", []chat.Step{text("ab", "cd", "ef"), text("x")}, chat.Request{Stops: []string{"zz", "de", "c"}}, "", [][]string{{"ab"}}, chat.StopSequence, "c"},
		{"stop sequence over a border", []chat.Step{text("ab", "cd", "ef")}, chat.Request{Stops: []string{"de"}}, "", [][]string{{"ab", "c"}}, chat.StopSequence, "de"},
		{"one call", []chat.Step{call("1"), text("a"), call("2")}, chat.Request{SingleCall: true}, "", [][]string{{"1"}, {"a"}}, chat.ToolUse, ""},
		{"together", []chat.Step{{Together: []*chat.Block{{Kind: chat.Text, Pieces: []string{"abcdef"}}, {Kind: chat.Call, Pieces: []string{"{}"}}}}}, chat.Request{MaxTokens: 1}, "", [][]string{{"abcd"}}, chat.MaxTokens, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := &chat.Answer{Steps: c.steps, Stop: c.stop}
			chat.Limit(a, &c.req)
			var got [][]string
			for _, b := range a.Blocks() {
				got = append(got, b.Pieces)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("pieces (-want +got):\n%s", diff)
			}
			if a.Stop != c.wantStop || a.StopSequence != c.sequence {
				t.Errorf("stop = %q %q, want %q %q", a.Stop, a.StopSequence, c.wantStop, c.sequence)
			}
		})
	}
}

// TestIDs checks that ids are the same for the same request and differ otherwise.
func TestIDs(t *testing.T) {
	t.Parallel()
	a := chat.NewSeed([32]byte{1}, 0)
	if a.ID("x_", 1) != chat.NewSeed([32]byte{1}, 0).ID("x_", 1) {
		t.Error("the same request has another id")
	}
	seen := map[string]bool{}
	for _, s := range []string{a.ID("x_", 1), a.ID("x_", 2), a.ID("y_", 1)[2:], chat.NewSeed([32]byte{1}, 1).ID("x_", 1), chat.NewSeed([32]byte{2}, 0).ID("x_", 1)} {
		if seen[s] {
			t.Errorf("the id %s came twice", s)
		}
		seen[s] = true
	}
	if got := len(a.ID("msg_01", 0)); got != 28 {
		t.Errorf("an id has %d characters, want 28", got)
	}
}
