package archive

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// message is an event as it is read from the stream.
func message(t *testing.T, subj string, seq uint64, e *runv1.Event) *bus.Stored {
	t.Helper()
	data, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	m := &bus.Stored{Seq: seq}
	m.Subject, m.Data = subj, data
	m.Header = map[string][]string{bus.SchemaHeader: {"signalbox.run.v1.Event"}}
	return m
}

// A chunk is the message that it says it is, also behind another one.
func TestChunkIsAMessage(t *testing.T) {
	t.Parallel()
	subj := subject.Events(0, id.New[id.Workspace](), id.New[id.Session]())
	b := newBatch()
	want := &agentv1.ListEventsResponse{}
	for i := range int64(3 * maxChunk / 2) {
		e := &runv1.Event{RunId: "r", RunOrdinal: 1, Epoch: 2, Number: i, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "é"}}}
		seq := uint64(i) << 33
		if err := b.add(message(t, subj, seq, e)); err != nil {
			t.Fatal(err)
		}
		want.Events = append(want.Events, &agentv1.LoggedEvent{Event: e, Sequence: seq})
	}
	if len(b.chunks) != 2 || b.chunks[0].last != maxChunk-1 || b.chunks[1].first != maxChunk {
		t.Fatalf("%d chunks: %+v", len(b.chunks), b.chunks)
	}
	got := &agentv1.ListEventsResponse{}
	if err := proto.Unmarshal(append(b.chunks[0].events, b.chunks[1].events...), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("chunks (-want +got)\n%s", diff)
	}
}

// A chunk ends where the session, the run, the epoch or the row of numbers does.
func TestChunkBorders(t *testing.T) {
	t.Parallel()
	ws := id.New[id.Workspace]()
	one, two := subject.Events(0, ws, id.New[id.Session]()), subject.Events(0, ws, id.New[id.Session]())
	b := newBatch()
	large := make([]byte, maxChunkBytes)
	for i, m := range []struct {
		subj               string
		run, epoch, number int64
		body               []byte
	}{
		{one, 1, 1, 0, nil},
		{two, 1, 1, 0, nil},
		{one, 1, 1, 1, nil}, // 0-1
		{one, 1, 2, 2, nil}, // another epoch
		{one, 2, 2, 3, nil}, // another run
		{one, 2, 2, 5, nil}, // a hole
		{one, 2, 2, 5, nil}, // again
		{one, 2, 2, 6, nil}, // 5-6
		{one, 2, 2, 7, large},
		{one, 2, 2, 8, nil},
	} {
		e := &runv1.Event{RunOrdinal: m.run, Epoch: m.epoch, Number: m.number, RunId: string(m.body)}
		if err := b.add(message(t, m.subj, uint64(i+1), e)); err != nil {
			t.Fatal(err)
		}
	}
	type border struct{ Run, Epoch, First, Last int64 }
	var got []border
	for _, c := range b.chunks {
		got = append(got, border{c.run, c.epoch, c.first, c.last})
	}
	want := []border{{1, 1, 0, 1}, {1, 1, 0, 0}, {1, 2, 2, 2}, {2, 2, 3, 3}, {2, 2, 5, 5}, {2, 2, 5, 6}, {2, 2, 7, 7}, {2, 2, 8, 8}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chunks (-want +got)\n%s", diff)
	}
}

// What the code writes by hand is what the schema says.
func TestFieldNumbers(t *testing.T) {
	t.Parallel()
	res, event := (&agentv1.ListEventsResponse{}).ProtoReflect().Descriptor().Fields(), (&agentv1.LoggedEvent{}).ProtoReflect().Descriptor().Fields()
	for _, tc := range []struct{ name, want string }{
		{string(res.ByNumber(eventsField).Name()), "events"},
		{string(event.ByNumber(eventField).Name()), "event"},
		{string(event.ByNumber(sequenceField).Name()), "sequence"},
	} {
		if tc.name != tc.want {
			t.Errorf("field %s, want %s", tc.name, tc.want)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add("1.2.3.4")
	f.Add(cursor{row: 1 << 62, run: 7, progress: progress{epoch: 3, number: -1}}.token())
	f.Add("1.2.3")
	f.Add("+1.2.3.04")
	f.Fuzz(func(t *testing.T, s string) {
		c, ok := parseToken(s)
		if ok && c.token() != s {
			t.Errorf("parseToken(%q).token() = %q, want the same", s, c.token())
		}
		if ok && (c.row < 0 || c.run < 0 || c.epoch < 0 || c.number < -1) {
			t.Errorf("parseToken(%q) = %+v, want no negative numbers", s, c)
		}
	})
}
