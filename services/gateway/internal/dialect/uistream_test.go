package dialect_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

var update = flag.Bool("update", false, "rewrite golden files")

// script numbers the events of a run.
func script(ordinal int64, events ...*runv1.Event) []*runv1.Event {
	for i, e := range events {
		e.RunId, e.RunOrdinal, e.Epoch, e.Number = fmt.Sprintf("run-%d", ordinal), ordinal, 1, int64(i)
		e.Time = timestamppb.New(time.Date(2026, 11, 24, 12, 0, 0, i*1e6, time.UTC))
	}
	return events
}

func inStep(n int32, events ...*runv1.Event) []*runv1.Event {
	for _, e := range events {
		e.StepIndex = n
	}
	return events
}

func asked(id, content string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{MessageId: id, ContentJson: content, CreatedBy: "member"}}}
}

func started() *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{Provider: "p", Model: "m", Simulated: true}}}
}

func said(block int32, text string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: text, Block: block}}}
}

func thought(block int32, text string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ReasoningDelta{ReasoningDelta: &runv1.ReasoningDelta{Delta: text, Block: block}}}
}

func callBegun(id, tool string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ToolCallStart{ToolCallStart: &runv1.ToolCallStart{ToolCallId: id, ToolName: tool}}}
}

func callDelta(id, tool, text string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ToolCallDelta{ToolCallDelta: &runv1.ToolCallDelta{ToolCallId: id, ToolName: tool, Delta: text}}}
}

func called(id, tool, args string, byProvider bool) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: id, ToolName: tool, ArgsJson: args, ProviderExecuted: byProvider}}}
}

func returned(id, tool, result string, isError, byProvider bool) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: id, ToolName: tool, ResultJson: result, IsError: isError, ProviderExecuted: byProvider}}}
}

func question(id, tool, args string, outcome bool) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: &runv1.ToolApprovalRequest{
		ToolCallId: id, ToolName: tool, ArgsJson: args, Reason: "it sends mail", OutcomeUnknown: outcome,
		ExpiresAt: &timestamppb.Timestamp{Seconds: 1795600000},
	}}}
}

func answered(id, tool, decision string, outcome bool) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_ToolApprovalResponse{ToolApprovalResponse: &runv1.ToolApprovalResponse{
		ToolCallId: id, ToolName: tool, Decision: decision, Reason: "because", OutcomeUnknown: outcome,
	}}}
}

func waits(forPerson bool) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "limited", ForPerson: forPerson, Until: &timestamppb.Timestamp{Seconds: 1795600000}}}}
}

func stepped(reason string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{TokensIn: 1, TokensOut: 2, FinishReason: reason}}}
}

func retried() *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_StepRetry{StepRetry: &runv1.StepRetry{Reason: "the runner was lost"}}}
}

func done(reason string) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_Done{Done: &runv1.Done{Text: "t", TotalTokensIn: 3, TotalTokensOut: 4, Steps: 2, FinishReason: reason}}}
}

// runs are runs with every kind of event.
func runs() map[string][]*runv1.Event {
	all := func(lists ...[]*runv1.Event) (out []*runv1.Event) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	return map[string][]*runv1.Event{
		"tools": script(1, all(
			[]*runv1.Event{asked("u1", `"hi"`), started(), waits(false)},
			inStep(0, thought(0, "hm"), thought(0, "\n"), said(1, "Looking"), said(1, " up."),
				called("w", "web_search", `{"q":"x"}`, true), returned("w", "web_search", `[{"url":"https://a"}]`, false, true), said(4, "So"),
				&runv1.Event{Body: &runv1.Event_Source{Source: &runv1.Source{Url: "https://a", Title: "A"}}}, said(4, ":"),
				&runv1.Event{Body: &runv1.Event_Citation{Citation: &runv1.Citation{Url: "https://a", Text: "Quoted."}}}, said(4, "!"),
				callBegun("c1", "doc_read"), callDelta("c1", "doc_read", `{"id":`), callDelta("c1", "doc_read", `"d"}`), callBegun("c2", "doc_list"),
				called("c1", "doc_read", `{"id":"d"}`, false), called("c2", "doc_list", `{}`, false), called("c2", "doc_list", `{}`, false),
				returned("c2", "doc_list", `{"error":"no documents"}`, true, false), returned("c1", "doc_read", "{\"id\":\"d\",\n\"content\":\"é\"}", false, false), stepped("tool-calls")),
			[]*runv1.Event{asked("u2", `[{"type":"text","text":"shorter"},{"type":"file","mediaType":"image/png","data":"aGk="}]`)},
			inStep(1, said(0, "Done."), stepped("stop")),
			[]*runv1.Event{done("stop")})...),
		"retry": script(2, all(
			[]*runv1.Event{asked("u1", `"hi"`), started()},
			inStep(0, said(0, "one"), callBegun("c1", "doc_read")),
			[]*runv1.Event{started()},
			inStep(0, retried(), said(0, "two"), stepped("stop"), retried()),
			inStep(1, &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "a deploy", ForRunner: true}}}),
			[]*runv1.Event{started()},
			inStep(1, retried(), callBegun("c2", "doc_list"), retried(), said(0, "three")),
			[]*runv1.Event{done("cancelled")})...),
		"approval": script(3, all(
			[]*runv1.Event{asked("u1", `"send it"`), started()},
			inStep(0, called("c1", "mail", `{"to":"a"}`, false), called("c2", "mail", `{"to":"b"}`, false),
				question("c1", "mail", `{"to":"a"}`, false), question("c2", "mail", `{"to":"b"}`, false), waits(true)),
			[]*runv1.Event{started()},
			inStep(0, answered("c1", "mail", "approved", false), answered("c2", "mail", "refused", false), returned("c2", "mail", `{"error":"refused: because"}`, true, false),
				question("c1", "mail", `{"to":"a"}`, true), waits(true)),
			[]*runv1.Event{started()},
			inStep(0, answered("c1", "mail", "repeat", true), returned("c1", "mail", `{"id":"m"}`, false, false), stepped("tool-calls")),
			inStep(1, said(0, "Sent."), stepped("stop")),
			[]*runv1.Event{done("max-steps")})...),
		"client": script(6, all(
			[]*runv1.Event{asked("u1", `"where am I?"`), started()},
			inStep(0, called("c1", "get_location", `{}`, false), &runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{
				ToolCallId: "c1", ToolName: "get_location", ArgsJson: `{}`, Reason: "a rule",
			}}}, &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForClient: true}}}),
			[]*runv1.Event{started()},
			inStep(0, returned("c1", "get_location", `{"output":{"city":"Paris"}}`, false, false), stepped("tool-calls")),
			inStep(1, said(0, "Paris."), stepped("stop")),
			[]*runv1.Event{done("stop")})...),
		"error": script(4, asked("u1", `"hi"`), started(), said(0, "x"),
			&runv1.Event{Body: &runv1.Event_SessionTitle{SessionTitle: &runv1.SessionTitle{Title: "Hi"}}}, said(0, "y"),
			&runv1.Event{Body: &runv1.Event_Compaction{Compaction: &runv1.Compaction{Messages: 4, Summary: "s"}}}, &runv1.Event{Body: &runv1.Event_Error{Error: &runv1.Error{Message: "no model", Code: "X"}}}),
		"cancelled": script(5, asked("u1", `"hi"`), done("cancelled")),
	}
}

// read returns what a reader sends of a run.
func read(r *dialect.Reader, events []*runv1.Event, known [][]dialect.Encoding) (out []byte, over bool) {
	for i, e := range events {
		if out, over = r.Next(out, e, &known[i]); over {
			return out, true
		}
	}
	return out, false
}

func chunksOf(data []byte) []string {
	return strings.SplitAfter(strings.TrimSuffix(string(data), "\n\n"), "\n\n")
}

func TestUIStreamGolden(t *testing.T) {
	t.Parallel()
	for name, events := range runs() {
		known := make([][]dialect.Encoding, len(events)) // of all versions, as in the ring
		for _, version := range dialect.UIVersions {
			r := &dialect.Reader{Fold: dialect.UIStream{Version: version}, Resumed: 1 << 40}
			got, over := read(r, events, known)
			if !over {
				t.Errorf("%s: the response does not end", name)
			}
			for _, chunk := range chunksOf(got) {
				if data := strings.TrimPrefix(strings.TrimSpace(chunk), "data: "); data != "[DONE]" && !json.Valid([]byte(data)) {
					t.Errorf("%s, version %d: chunk %q is not JSON", name, version, chunk)
				}
			}
			golden := filepath.Join("testdata", fmt.Sprintf("%s.v%d.txt", name, version))
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
				t.Errorf("%s, version %d, differs (-want +got):\n%s", name, version, diff)
			}
		}
	}
}

// TestReaderSkips reads every run from each chunk on, beside a reader of the whole that has encoded
// the events already, and alone.
func TestReaderSkips(t *testing.T) {
	t.Parallel()
	for name, events := range runs() {
		fold := dialect.UIStream{Version: 7}
		shared := make([][]dialect.Encoding, len(events))
		whole, _ := read(&dialect.Reader{Fold: fold, Resumed: 1 << 40}, events, shared)
		for i := range events { // a reader whose next frames were evicted, and are read and encoded again
			r := &dialect.Reader{Fold: fold, Resumed: 1 << 40}
			first, _ := read(r, events[:i], shared)
			rest, _ := read(r, events[i:], make([][]dialect.Encoding, len(events)))
			if got := string(first) + string(rest); got != string(whole) {
				t.Fatalf("%s, encoded again from event %d: %q, want %q", name, i, got, whole)
			}
		}
		chunks := chunksOf(whole)
		for k := range chunks { // the last is [DONE], which does not count
			for who, known := range map[string][][]dialect.Encoding{"shared": shared, "alone": make([][]dialect.Encoding, len(events))} {
				r := &dialect.Reader{Fold: fold, Skip: int64(k), Resumed: 1 << 40}
				got, _ := read(r, events, known)
				if want := strings.Join(chunks[k:], "") + "\n\n"; string(got) != want {
					t.Fatalf("%s from chunk %d, %s: %q, want %q", name, k, who, got, want)
				}
				if r.Count() != int64(len(chunks)-1) {
					t.Fatalf("%s: count is %d, want %d", name, r.Count(), len(chunks)-1)
				}
			}
		}
	}
}

// TestReaderPauses reads a run with two approvals as a client does: response by response.
func TestReaderPauses(t *testing.T) {
	t.Parallel()
	events := runs()["approval"]
	known := make([][]dialect.Encoding, len(events))
	fold := dialect.UIStream{Version: 7}
	whole, _ := read(&dialect.Reader{Fold: fold, Resumed: 1 << 40}, events, known)
	var joined []byte
	for _, call := range []struct {
		after   string
		resumed int64
	}{{"", -1}, {"c1", 6}, {"c1", 12}} {
		r := &dialect.Reader{Fold: fold, AfterCall: call.after, Resumed: call.resumed}
		if call.resumed == 12 {
			r.AfterCall = "" // a viewer that comes late gets everything
		}
		got, over := read(r, events, known)
		if !over || !bytes.HasSuffix(got, []byte("data: [DONE]\n\n")) || !bytes.HasPrefix(got, []byte(`data: {"type":"start","messageId":"run-3"`)) {
			t.Fatalf("response after %q is not complete:\n%s", call.after, got)
		}
		if call.resumed == 12 {
			if !bytes.Equal(got, whole) {
				t.Errorf("a late viewer gets\n%s\nwant\n%s", got, whole)
			}
			break
		}
		if !bytes.Contains(got, []byte(`"finishReason":"tool-calls"}`)) {
			t.Errorf("response after %q does not end at the pause:\n%s", call.after, got)
		}
		joined = append(joined, bytes.TrimSuffix(got, []byte("data: [DONE]\n\n"))...)
	}
	if !bytes.HasPrefix(whole, joined) {
		t.Errorf("the responses are not the run:\n%s\nwant the beginning of\n%s", joined, whole)
	}
	// The result of a client's tool.
	events = runs()["client"]
	for version, want := range map[int]string{5: "Paris.", 7: "Paris."} {
		known := make([][]dialect.Encoding, len(events))
		first, over := read(&dialect.Reader{Fold: dialect.UIStream{Version: version}, Resumed: -1}, events, known)
		if !over || bytes.Contains(first, []byte(want)) {
			t.Errorf("version %d gets\n%s\nwant a response that ends at the call", version, first)
		}
		second, over := read(&dialect.Reader{Fold: dialect.UIStream{Version: version}, Resumed: -1, AfterCall: "c1"}, events, known)
		if !over || !bytes.Contains(second, []byte(want)) || bytes.Contains(second, []byte("tool-input")) {
			t.Errorf("version %d then gets\n%s\nwant the rest", version, second)
		}
	}
	events = runs()["approval"]
	known = make([][]dialect.Encoding, len(events))
	// Version 5 knows no approvals: one response has everything.
	if got, over := read(&dialect.Reader{Fold: dialect.UIStream{Version: 5}, Resumed: -1}, events, known); !over || !bytes.Contains(got, []byte("max-steps")) {
		t.Errorf("version 5 gets\n%s\nwant the whole run", got)
	}
}

// The question whether a call took effect names its choices. If nobody answers, the call was not
// denied: it ran.
func TestUIStreamOutcome(t *testing.T) {
	t.Parallel()
	events := script(1, asked("u1", `"hi"`), started(), called("c1", "mail", `{}`, false), question("c1", "mail", `{}`, true), waits(true),
		answered("c1", "mail", "expired", true), returned("c1", "mail", `{"error":"unknown"}`, true, false), done("stop"))
	got, _ := read(&dialect.Reader{Fold: dialect.UIStream{Version: 7}, Resumed: 1 << 40}, events, make([][]dialect.Encoding, len(events)))
	if bytes.Contains(got, []byte("tool-output-denied")) || !bytes.Contains(got, []byte(`"tool-output-error","toolCallId":"c1","errorText":"unknown"`)) {
		t.Errorf("the stream is\n%s\nwant the call's error", got)
	}
	stored := dialect.UIMessage{Parts: []dialect.UIPart{{ToolCallID: "c1", State: "input-available"}}}
	stored.Ask("c1", "", nil, true)
	if p := stored.Parts[0].Approval; string(p.Descriptor) != `{"question":"outcome","choices":["happened","repeat"]}` {
		t.Errorf("a page that is loaded asks %+v, want the choices", p)
	}
}

// An event keeps the encodings that other readers may share, and not more than a few.
func TestEncodingsAreBounded(t *testing.T) {
	t.Parallel()
	events := runs()["tools"]
	known := make([][]dialect.Encoding, len(events))
	for i := range 100 {
		for _, fold := range []dialect.Fold{dialect.Private(dialect.UIStream{Version: 7}), dialect.AGUI{Thread: "t", Run: strconv.Itoa(i)}} {
			if _, over := read(&dialect.Reader{Fold: fold, Resumed: -1}, events, known); !over {
				t.Fatalf("%v: the response does not end", fold)
			}
		}
		if n := len(known[0]); i == 0 && n != 1 || n > 16 {
			t.Fatalf("after %d readers, an event keeps %d encodings", 2*i+2, n)
		}
	}
}

// TestReaderOfSession reads several runs, one of them from its middle.
func TestReaderOfSession(t *testing.T) {
	t.Parallel()
	all := runs()
	queued := all["cancelled"]
	for _, e := range queued {
		e.Epoch = 0
	}
	first, second := all["tools"], all["retry"]
	var events []*runv1.Event
	events = append(events, first[5:]...)  // joined in the middle
	events = append(events, second[:3]...) // then a whole run
	events = append(events, queued...)     // in which another is cancelled
	events = append(events, second[3:]...) //
	want, _ := read(&dialect.Reader{Fold: dialect.UIStream{Version: 7}}, second, make([][]dialect.Encoding, len(second)))
	got, over := read(&dialect.Reader{Fold: dialect.UIStream{Version: 7}, Session: true}, events, make([][]dialect.Encoding, len(events)))
	if over || string(got)+"data: [DONE]\n\n" != string(want) {
		t.Errorf("the session's chunks are\n%s\nwant\n%s", got, want)
	}
}

// FuzzUIStream feeds any text to every field: each chunk is one line of JSON, and what is read from
// the middle is a part of the whole.
func FuzzUIStream(f *testing.F) {
	f.Add("a\nb", `{"a":1}`, uint8(3))
	f.Add("\xff\x00\u2028", "{\"a\":\n\n1}", uint8(7))
	f.Fuzz(func(t *testing.T, text, value string, skip uint8) {
		events := script(1, asked(text, value), started(), said(0, text), callBegun(text, text), callDelta(text, text, value), called(text, text, value, false),
			question(text, text, value, false), waits(true), answered(text, text, text, false), returned(text, text, value, len(text)%2 == 0, false), asked(text, value), retried(), done(text))
		for _, version := range dialect.UIVersions {
			known := make([][]dialect.Encoding, len(events))
			whole, over := read(&dialect.Reader{Fold: dialect.UIStream{Version: version}, Resumed: 1 << 40}, events, known)
			if !over {
				t.Fatal("the run does not end")
			}
			for _, chunk := range chunksOf(whole) {
				data := strings.TrimPrefix(strings.TrimSuffix(chunk, "\n\n"), "data: ")
				if strings.ContainsAny(data, "\r\n") || data != "[DONE]" && !json.Valid([]byte(data)) {
					t.Fatalf("chunk %q is not one line of JSON", chunk)
				}
			}
			part, _ := read(&dialect.Reader{Fold: dialect.UIStream{Version: version}, Skip: int64(skip), Resumed: 1 << 40}, events, known)
			if !bytes.HasSuffix(whole, part) {
				t.Fatalf("from chunk %d: %q is no part of %q", skip, part, whole)
			}
		}
	})
}

// BenchmarkUIStream measures an event for its first viewer and for each further one.
func BenchmarkUIStream(b *testing.B) {
	events := script(1, asked("u", `"hi"`), started(), said(0, "a"), said(0, "a few words of an answer, as a model sends them"))
	for name, share := range map[string]bool{"first": false, "further": true} {
		b.Run(name, func(b *testing.B) {
			known := make([][]dialect.Encoding, len(events))
			r := &dialect.Reader{Fold: dialect.UIStream{Version: 7}, Resumed: -1}
			read(r, events, known)
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if !share {
					known[3] = nil
				}
				buf, _ = r.Next(buf[:0], events[3], &known[3])
			}
		})
	}
}
