package proxy

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/sse"
)

type seen struct{ Name, Data string }

// drive reads r as the copy loop does and returns the events with data, all bytes of whole
// events, and the rest.
func drive(t testing.TB, r io.Reader, size int) (events []seen, whole, rest []byte) {
	t.Helper()
	f := frames{buf: make([]byte, size)}
	for {
		for {
			ev, ok := f.next()
			if !ok {
				break
			}
			if ev.hasData {
				events = append(events, seen{string(ev.name), string(ev.data)})
			}
		}
		whole = append(whole, f.buf[:f.done]...)
		if !f.room(f.done) {
			ev := f.giveUp()
			events = append(events, seen{"overlong " + string(ev.name), ""})
			continue
		}
		n, err := r.Read(f.buf[f.end:])
		f.end += n
		if err == nil {
			continue
		}
		for {
			ev, ok := f.next()
			if !ok {
				break
			}
			if ev.hasData {
				events = append(events, seen{string(ev.name), string(ev.data)})
			}
		}
		whole = append(whole, f.buf[:f.done]...)
		return events, whole, bytes.Clone(f.buf[f.done:f.end])
	}
}

var framings = []struct {
	name, in string
	want     []seen
	rest     string
}{
	{"empty", "", nil, ""},
	{"LF", "event: a\ndata: 1\n\ndata: 2\n\n", []seen{{"a", "1"}, {"", "2"}}, ""},
	{"CRLF", "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n", []seen{{"a", "1"}, {"", "2"}}, ""},
	{"CR", "event: a\rdata: 1\r\rdata: 2\r\r", []seen{{"a", "1"}, {"", "2"}}, ""},
	{"mixed", "data: 1\r\n\ndata: 2\n\rdata: 3\r\r\ndata: 4\n\n", []seen{{"", "1"}, {"", "2"}, {"", "3"}, {"", "4"}}, ""},
	{"no space", "event:a\ndata:1\n\n", []seen{{"a", "1"}}, ""},
	{"comments and ids", ": ping\n\nid: 7\ndata: 1\nretry: 5\n\n:\n", []seen{{"", "1"}}, ":\n"},
	{"several data lines", "data: 1\ndata: 2\r\ndata\ndata: 4\n\n", []seen{{"", "1\n2\n\n4"}}, ""},
	{"empty data", "data\n\ndata:\n\n", []seen{{"", ""}, {"", ""}}, ""},
	{"names are exact", "dataset: 1\nevents: x\n\ndata : 1\n\n", nil, ""},
	{"BOM", "\ufeffdata: 1\n\n", []seen{{"", "1"}}, ""},
	{"blank lines", "\n\n\r\n\r\rdata: 1\n\n\n", []seen{{"", "1"}}, ""},
	{"cut in data", "data: 1\n\ndata: 2\n", []seen{{"", "1"}}, "data: 2\n"},
	{"cut in a line", "data: 1\r\n\r\ndat", []seen{{"", "1"}}, "dat"},
	{"last name counts", "event: a\nevent: b\ndata: 1\n\n", []seen{{"b", "1"}}, ""},
}

// Every stream, split into two reads at every position and into single bytes, gives the same
// events and the same bytes.
func TestFramesSplits(t *testing.T) {
	t.Parallel()
	for _, tt := range framings {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			readers := map[string]func() io.Reader{"single bytes": func() io.Reader { return iotest.OneByteReader(strings.NewReader(tt.in)) }}
			for i := range len(tt.in) + 1 {
				readers[tt.in[:i]] = func() io.Reader {
					return io.MultiReader(strings.NewReader(tt.in[:i]), strings.NewReader(tt.in[i:]))
				}
			}
			for cut, open := range readers {
				events, whole, rest := drive(t, open(), 8)
				if diff := cmp.Diff(tt.want, events); diff != "" {
					t.Errorf("events of %q cut behind %q (-want +got):\n%s", tt.in, cut, diff)
				}
				// The \n of a \r\n may be left behind the last event.
				if string(whole)+string(rest) != tt.in || strings.TrimPrefix(string(rest), "\n") != tt.rest {
					t.Errorf("%q cut behind %q comes out as %q and %q", tt.in, cut, whole, rest)
				}
			}
		})
	}
}

func TestFramesOverlong(t *testing.T) {
	t.Parallel()
	long := "event: big\ndata: " + strings.Repeat("x", 3*maxFrame) + "\ndata: y\n"
	for _, end := range []string{"\n", "\r\n", "\r"} {
		in := "data: 1\n\n" + strings.ReplaceAll(long+"\n", "\n", end) + "data: 2" + end + end
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(in), "bits": iotest.HalfReader(strings.NewReader(in)), "sevens": &stepper{[]byte(in), 7}} {
			events, whole, rest := drive(t, r, 64)
			if diff := cmp.Diff([]seen{{"", "1"}, {"overlong big", ""}, {"", "2"}}, events); diff != "" {
				t.Errorf("%s with %q: events (-want +got):\n%s", name, end, diff)
			}
			if string(whole)+string(rest) != in {
				t.Errorf("%s with %q: %d bytes come out, want the %d that went in", name, end, len(whole)+len(rest), len(in))
			}
		}
	}
}

// Compared with package sse, an independent reader of the format: the same events from any
// bytes in any pieces, and no byte lost.
func FuzzFrames(f *testing.F) {
	for _, tt := range framings {
		f.Add([]byte(tt.in), uint8(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		events, whole, rest := drive(t, &stepper{in, int(step%16) + 1}, 8)
		if got := string(whole) + string(rest); got != string(in) {
			t.Fatalf("%q comes out as %q", in, got)
		}
		var want []seen
		r := sse.NewReader(bytes.NewReader(in), len(in)+1)
		for {
			ev, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				break
			}
			want = append(want, seen{ev.Type, string(ev.Data)})
		}
		if diff := cmp.Diff(want, events); diff != "" {
			t.Fatalf("events of %q (-want +got):\n%s", in, diff)
		}
	})
}

// stepper reads n bytes at a time.
type stepper struct {
	rest []byte
	n    int
}

func (s *stepper) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.n)], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Wherever reads split an overlong event, and whatever its line endings, the same members are
// kept.
func TestFramesOverlongSplits(t *testing.T) {
	t.Parallel()
	head := "event: big\ndata: {\"x\":\"" + strings.Repeat("x", maxFrame) + "\",\ndata: \"a\":\"\\\"type\\\":\\\"no\\\"\",\n"
	for _, end := range []string{"\n", "\r\n", "\r"} {
		tail := strings.ReplaceAll(": c\ndata\ndata:\"type\"\ndata: :\"t\"\nid: data: }\ndata:}\n\n", "\n", end)
		for i := range len(tail) {
			r := io.MultiReader(strings.NewReader(strings.ReplaceAll(head, "\n", end)), strings.NewReader(tail[:i]), strings.NewReader(tail[i:]))
			f := frames{buf: make([]byte, maxFrame)}
			var got []seen
			for {
				over := f.over
				f.next()
				if over && !f.over {
					if ev, ok := f.ending(); ok {
						got = append(got, seen{string(ev.name), string(ev.data)})
					}
				}
				if !f.room(f.done) {
					f.giveUp([]string{"type"})
				}
				n, err := r.Read(f.buf[f.end:])
				f.end += n
				if err != nil {
					break
				}
			}
			if diff := cmp.Diff([]seen{{"big", `{"":0, "":0, "type" :"t" }`}}, got); diff != "" {
				t.Fatalf("with %q, split behind %q (-want +got):\n%s", end, tail[:i], diff)
			}
		}
	}
}
