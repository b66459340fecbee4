package dialect_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

// folds are the dialects whose responses are parts of a run, in all their forms.
var folds = map[string]dialect.Fold{
	"chat": dialect.ChatCompletions{Usage: true}, "chat-final": dialect.ChatCompletions{Final: true}, "chat-whole": dialect.ChatCompletions{Whole: true},
	"responses": dialect.Responses{}, "responses-whole": dialect.Responses{Whole: true},
	"agui": dialect.AGUI{Thread: "t", Run: "r"},
}

// identified gives a run's events an id of the kind that runs have.
func identified(events []*runv1.Event) []*runv1.Event {
	for _, e := range events {
		e.RunId = fmt.Sprintf("01a2b3c4-0000-7000-8000-00000000000%d", e.GetRunOrdinal())
	}
	return events
}

// parts returns how many responses a run takes.
func parts(fold dialect.Fold, events []*runv1.Event) int {
	r := &dialect.Reader{Fold: fold, Resumed: 1 << 40}
	read(r, events, make([][]dialect.Encoding, len(events)))
	return r.State.Pauses() + 1
}

func TestFoldsGolden(t *testing.T) {
	t.Parallel()
	for name, events := range runs() {
		identified(events)
		known := make([][]dialect.Encoding, len(events)) // of all folds, as in the ring
		for form, fold := range folds {
			var got []byte
			for part := range parts(fold, events) {
				one, over := read(&dialect.Reader{Fold: fold, Part: part + 1, Resumed: -1}, events, known)
				if !over {
					t.Errorf("%s of %s: response %d does not end", form, name, part+1)
				}
				checkChunks(t, one, strings.HasSuffix(form, "whole"))
				got = append(append(got, one...), "\n=====\n"...)
			}
			golden := filepath.Join("testdata", name+"."+form+".txt")
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
				t.Errorf("%s of %s differs (-want +got):\n%s", form, name, diff)
			}
		}
	}
}

// checkChunks checks that the data of each event is one line of JSON, and that sequence numbers
// have no gaps.
func checkChunks(t *testing.T, data []byte, whole bool) {
	t.Helper()
	if whole {
		if len(data) > 0 && !json.Valid(data) {
			t.Fatalf("%q is not JSON", data)
		}
		return
	}
	for k, chunk := range chunksOf(data) {
		var v struct {
			Sequence *int `json:"sequence_number"`
		}
		line := chunk[strings.Index(chunk, "data: ")+len("data: "):]
		switch err := json.Unmarshal([]byte(line), &v); {
		case strings.TrimSpace(line) == "[DONE]":
		case err != nil || strings.Count(strings.TrimSpace(line), "\n") != 0:
			t.Fatalf("chunk %q is not one line of JSON: %v", chunk, err)
		case v.Sequence != nil && *v.Sequence != k:
			t.Fatalf("chunk %d has the number %d", k, *v.Sequence)
		}
	}
}

// TestFoldsResume reads every response from each chunk on, and with an encoder that takes over in
// the middle.
func TestFoldsResume(t *testing.T) {
	t.Parallel()
	for name, events := range runs() {
		identified(events)
		for form, fold := range folds {
			for part := 1; part <= parts(fold, events); part++ {
				whole, _ := read(&dialect.Reader{Fold: fold, Part: part, Resumed: -1}, events, make([][]dialect.Encoding, len(events)))
				for i := range events {
					r := &dialect.Reader{Fold: fold, Part: part, Resumed: -1}
					first, over := read(r, events[:i], make([][]dialect.Encoding, len(events)))
					if over {
						break
					}
					rest, _ := read(r, events[i:], make([][]dialect.Encoding, len(events)))
					if got := string(first) + string(rest); got != string(whole) {
						t.Fatalf("%s of %s, encoded again from event %d: %q, want %q", form, name, i, got, whole)
					}
				}
				if strings.HasSuffix(form, "whole") {
					continue
				}
				chunks := chunksOf(whole)
				for k := range chunks {
					got, _ := read(&dialect.Reader{Fold: fold, Part: part, Skip: int64(k), Resumed: -1}, events, make([][]dialect.Encoding, len(events)))
					if want := strings.Join(chunks[k:], "") + "\n\n"; string(got) != want {
						t.Fatalf("%s of %s from chunk %d: %q, want %q", form, name, k, got, want)
					}
				}
			}
		}
	}
}

func TestOpenAIIDs(t *testing.T) {
	t.Parallel()
	const run = "01a2b3c4-0000-7000-8000-000000000001"
	for part, want := range map[int]string{1: "resp_01a2b3c4000070008000000000000001", 2: "resp_01a2b3c4000070008000000000000001_2"} {
		got := dialect.ResponseID(run, part)
		r, p, ok := dialect.ParseResponseID(got)
		if got != want || r != run || p != part || !ok {
			t.Errorf("ResponseID = %q, read as %q, %d, %v", got, r, p, ok)
		}
	}
	ref := dialect.CallRef{Run: run, Part: 2, Call: "toolu_1"}
	for step, want := range map[int32]string{-1: "_2_toolu_1", 0: "_2-0_toolu_1", 12: "_2-12_toolu_1"} {
		ref.Step = step
		if got, ok := dialect.ParseCallRef(ref.String()); !ok || got != ref || !strings.HasSuffix(ref.String(), want) {
			t.Errorf("ParseCallRef(%q) = %v, %v", ref, got, ok)
		}
	}
	for _, bad := range []string{"_2-_x", "_2--1_x", "_2-01_x", "_2-99999999999_x", "_-1_x"} {
		if got, ok := dialect.ParseCallRef("call_01a2b3c4000070008000000000000001" + bad); ok {
			t.Errorf("ParseCallRef(…%q) = %v", bad, got)
		}
	}
	for _, bad := range []string{"", "resp_", "resp_1", "resp_01a2b3c4000070008000000000000001_1", "resp_01a2b3c4000070008000000000000001_02", "resp_01a2b3c4000070008000000000000001_", "resp_01A2b3c4000070008000000000000001"} {
		if _, _, ok := dialect.ParseResponseID(bad); ok {
			t.Errorf("ParseResponseID(%q) is ok", bad)
		}
		if _, ok := dialect.ParseCallRef(strings.Replace(bad, "resp", "call", 1)); ok {
			t.Errorf("ParseCallRef of %q is ok", bad)
		}
	}
}

func TestAGUIStep(t *testing.T) {
	t.Parallel()
	const run = "01a2b3c4-0000-7000-8000-000000000001"
	events := script(1, inStep(3, called("c", "locate", "{}", false))...)
	events[0].RunId = run
	got, _ := read(&dialect.Reader{Fold: dialect.AGUI{Thread: "t", Run: "r"}, Resumed: -1}, events, make([][]dialect.Encoding, 1))
	_, rest, _ := strings.Cut(string(got), `"parentMessageId":"`)
	message, _, _ := strings.Cut(rest, `"`)
	if of, step, ok := dialect.AGUIStep(message); of != run || step != 3 || !ok {
		t.Errorf("AGUIStep(%q) = %q, %d, %v, want step 3 of the run", message, of, step, ok)
	}
	for _, other := range []string{"", "m1", run, run + "-1", run + "-", run + "--1-2", run + "-x-1", run + "x1-1"} {
		if _, _, ok := dialect.AGUIStep(other); ok {
			t.Errorf("AGUIStep(%q) is ok", other)
		}
	}
}

// FuzzFolds feeds any text to every field.
func FuzzFolds(f *testing.F) {
	f.Add("a\nb", `{"a":1}`)
	f.Add("\xff\x00\u2028", "{\"a\":\n\n1}")
	f.Fuzz(func(t *testing.T, text, value string) {
		events := identified(script(1, asked(text, value), started(), said(0, text), thought(0, text), callBegun(text, text), callDelta(text, text, value), called(text, text, value, false),
			question(text, text, value, false), waits(true), answered(text, text, text, false), returned(text, text, value, len(text)%2 == 0, false), asked(text, value), retried(), done(text)))
		for form, fold := range folds {
			got, over := read(&dialect.Reader{Fold: fold, Part: 1, Resumed: -1}, events, make([][]dialect.Encoding, len(events)))
			if !over {
				t.Fatal("the run does not end")
			}
			checkChunks(t, got, strings.HasSuffix(form, "whole"))
			if bytes.Contains(got, []byte("\r")) {
				t.Fatalf("%q has a line end in a line", got)
			}
		}
	})
}

// BenchmarkFolds measures an event for its first viewer and for each further one, for whom only its
// write is left.
func BenchmarkFolds(b *testing.B) {
	events := identified(script(1, asked("u", `"hi"`), started(), said(0, "a"), said(0, "a few words of an answer, as a model sends them")))
	for _, form := range []string{"chat", "responses", "agui"} {
		for name, share := range map[string]bool{"first": false, "further": true} {
			b.Run(form+"/"+name, func(b *testing.B) {
				known := make([][]dialect.Encoding, len(events))
				read(&dialect.Reader{Fold: folds[form], Part: 1, Resumed: -1}, events, known)
				r := &dialect.Reader{Fold: folds[form], Part: 1, Resumed: -1}
				read(r, events[:3], known)
				start := r.State
				var buf []byte
				b.ReportAllocs()
				for b.Loop() {
					if !share {
						known[3] = nil
					}
					r.State = start
					buf, _ = r.Next(buf[:0], events[3], &known[3])
				}
			})
		}
	}
}
