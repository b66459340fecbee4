package loop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/runlog"
)

// What a claim says first follows from the rows and the log alone: every number up
// to the last commit's is in the log afterwards, and none is used twice.
func TestOpening(t *testing.T) {
	t.Parallel()
	message := id.New[id.Message]()
	complete := &run.OpenStep{Index: 0, Message: &message, State: "complete", FinishReason: "tool-calls"}
	answered := &run.OpenStep{Index: 0, State: "answered", Calls: []run.Call{
		{ID: "a", Name: "t", Args: json.RawMessage("{}")}, {ID: "b", Name: "t", Args: json.RawMessage("{}")},
	}}
	for _, tc := range []struct {
		name   string
		first  bool
		steps  int
		last   *run.OpenStep
		commit int64 // runs.last_event
		log    int64 // the last number in the log, -1 for none
		from   int64
		want   []string
	}{
		{"first claim", true, 0, nil, 1, -1, 0, []string{"user", "start"}},
		{"died before it said anything", false, 0, nil, 1, -1, 0, []string{"user", "start", "start"}},
		{"died after its first event", false, 0, nil, 1, 0, 1, []string{"start", "start"}},
		{"died before the first token", false, 0, nil, 1, 1, 2, []string{"start"}},
		{"died while the model spoke", false, 0, nil, 1, 5, 6, []string{"start", "retry 0"}},
		{"answer committed, calls not said", false, 0, answered, 6, 4, 5, []string{"call a", "call b", "start"}},
		{"answer committed, one call said", false, 0, answered, 6, 5, 6, []string{"call b", "start"}},
		{"answer committed, all calls said", false, 0, answered, 6, 6, 7, []string{"start"}},
		{"a result was said", false, 0, answered, 6, 7, 8, []string{"start"}},
		{"results committed, step not said", false, 1, complete, 9, 8, 9, []string{"step 0 " + message.String(), "start"}},
		{"step said", false, 1, complete, 9, 9, 10, []string{"start"}},
		{"died in the second step", false, 1, complete, 9, 12, 13, []string{"start", "retry 1"}},
		{"the log is lost", false, 1, complete, 9, -1, 10, []string{"start"}},
		{"the log is lost with the answer committed", false, 0, answered, 6, -1, 7, []string{"start"}},
	} {
		c := &run.Claim{First: tc.first, Run: run.Run{LastEvent: tc.commit, Steps: tc.steps}}
		got := opening(c, &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{}}, nil, tc.last, runlog.Tail{Number: tc.log})
		if diff := cmp.Diff(tc.want, names(got.Events)); diff != "" || got.From != tc.from {
			t.Errorf("%s: opening begins at %d, want %d; events:\n%s", tc.name, got.From, tc.from, diff)
		}
	}
}

// A steering message that joined but was not emitted by its runner is emitted by the next one.
func TestOpeningEmitsJoinedMessages(t *testing.T) {
	t.Parallel()
	message := func(id string) *runv1.Event {
		return &runv1.Event{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{MessageId: id}}}
	}
	c := &run.Claim{Run: run.Run{LastEvent: 9, Steps: 1}}
	tail := runlog.Tail{Number: 11, Events: []*runv1.Event{message("told"), {Body: &runv1.Event_TextDelta{}}}}
	joined := []*runv1.Event{message("told"), message("untold")}
	got := opening(c, &runv1.Event_UserMessage{}, joined, &run.OpenStep{Index: 0, State: "complete"}, tail)
	if diff := cmp.Diff([]string{"start", "retry 1", "user"}, names(got.Events)); diff != "" {
		t.Fatal(diff)
	}
	if id := got.Events[2].GetUserMessage().GetMessageId(); id != "untold" {
		t.Errorf("the opening tells of message %s, want the untold one", id)
	}
}

// A step is not void after a runner that shut down before it.
func TestOpeningAfterAShutdown(t *testing.T) {
	t.Parallel()
	numbered := func(n int64, ev *runv1.Event) *runv1.Event {
		ev.Number = n
		return ev
	}
	complete := numbered(9, &runv1.Event{Body: &runv1.Event_StepComplete{}})
	left, begun := numbered(10, parkedByShutdown(1)), numbered(11, runStart(&run.Run{}))
	for name, tc := range map[string]struct {
		events []*runv1.Event
		want   []string
	}{
		"left":                        {[]*runv1.Event{complete, left}, []string{"start"}},
		"left twice":                  {[]*runv1.Event{complete, left, begun, numbered(12, parkedByShutdown(1))}, []string{"start"}},
		"left, and the next one died": {[]*runv1.Event{complete, left, begun}, []string{"start", "retry 1"}},
	} {
		c := &run.Claim{Run: run.Run{LastEvent: 9, Steps: 1}}
		tail := runlog.Tail{Number: tc.events[len(tc.events)-1].GetNumber(), Events: tc.events}
		got := opening(c, &runv1.Event_UserMessage{}, nil, &run.OpenStep{Index: 0, State: "complete"}, tail)
		if diff := cmp.Diff(tc.want, names(got.Events)); diff != "" || got.From != tail.Number+1 {
			t.Errorf("%s: opening begins at %d; events:\n%s", name, got.From, diff)
		}
	}
}

func names(events []*runv1.Event) []string {
	var out []string
	for _, ev := range events {
		switch b := ev.GetBody().(type) {
		case *runv1.Event_UserMessage:
			out = append(out, "user")
		case *runv1.Event_RunStart:
			out = append(out, "start")
		case *runv1.Event_StepRetry:
			out = append(out, fmt.Sprint("retry ", ev.GetStepIndex()))
		case *runv1.Event_ToolCallComplete:
			out = append(out, "call "+b.ToolCallComplete.GetToolCallId())
		case *runv1.Event_StepComplete:
			out = append(out, strings.TrimSpace(fmt.Sprint("step ", ev.GetStepIndex(), " ", b.StepComplete.GetMessageId())))
		default:
			out = append(out, fmt.Sprintf("%T", b))
		}
	}
	return out
}
