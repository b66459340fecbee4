package sse_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/sse"
)

type event struct{ Type, Data, ID string }

// readAll returns every event of r and the error that ended it.
func readAll(r *sse.Reader) ([]event, error) {
	var got []event
	for {
		ev, err := r.Next()
		if err != nil {
			return got, err
		}
		got = append(got, event{ev.Type, string(ev.Data), string(ev.ID)})
	}
}

var streams = []struct {
	name string
	in   string
	want []event
	err  error
}{
	{"empty", "", nil, io.EOF},
	{"one", "data: a\n\n", []event{{"", "a", ""}}, io.EOF},
	{"type, data, id", "event: e\ndata: a\nid: 1\n\n", []event{{"e", "a", "1"}}, io.EOF},
	{"type does not carry over, id does", "event: e\nid: 1\ndata: a\n\ndata: b\n\n", []event{{"e", "a", "1"}, {"", "b", "1"}}, io.EOF},
	{"only the first space goes", "data:a\ndata: b\ndata:  c\n\n", []event{{"", "a\nb\n c", ""}}, io.EOF},
	{"empty data is data", "data\n\ndata:\n\n", []event{{"", "", ""}, {"", "", ""}}, io.EOF},
	{"two empty data lines", "data\ndata\n\n", []event{{"", "\n", ""}}, io.EOF},
	{"no data, no event", "event: e\nid: 5\n\ndata: x\n\n", []event{{"", "x", "5"}}, io.EOF},
	{"CRLF", "event: e\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []event{{"e", "a", ""}, {"", "b", ""}}, io.EOF},
	{"CR", "data: a\r\rdata: b\rdata: c\r\r", []event{{"", "a", ""}, {"", "b\nc", ""}}, io.EOF},
	{"mixed ends", "data: a\r\n\ndata: b\n\rdata: c\r\r\n", []event{{"", "a", ""}, {"", "b", ""}, {"", "c", ""}}, io.EOF},
	{"byte order mark once", "\ufeffdata: a\n\n\ufeffdata: b\n\n", []event{{"", "a", ""}}, io.EOF},
	{"comments", ": hello\n:\ndata: a\n: between\n\n:\n", []event{{"", "a", ""}}, io.EOF},
	{"comment cut short is a clean end", "data: a\n\n: he", []event{{"", "a", ""}}, io.EOF},
	{"unknown fields", "foo: 1\nbar\ndata: a\n\n", []event{{"", "a", ""}}, io.EOF},
	{"names are exact", "Data: a\n data: b\ndata : c\n\n", nil, io.EOF},
	{"id with NUL is ignored", "id: 1\ndata: a\n\nid: 2\x003\ndata: b\n\n", []event{{"", "a", "1"}, {"", "b", "1"}}, io.EOF},
	{"empty id clears", "id: 1\ndata: a\n\nid\ndata: b\n\n", []event{{"", "a", "1"}, {"", "b", ""}}, io.EOF},
	{"value with colons", "data: a: b:c\n\n", []event{{"", "a: b:c", ""}}, io.EOF},
	{"not UTF-8 stays", "data: \xff\xfe\n\n", []event{{"", "\xff\xfe", ""}}, io.EOF},
	{"cut after data", "data: a\n\ndata: b\n", []event{{"", "a", ""}}, io.ErrUnexpectedEOF},
	{"cut in a line", "data: a\n\ndat", []event{{"", "a", ""}}, io.ErrUnexpectedEOF},
	{"cut after type", "event: e\n", nil, io.ErrUnexpectedEOF},
	{"cut in the blank line of CRLF is an end", "data: a\r\n\r", []event{{"", "a", ""}}, io.EOF},
	{"retry pending is clean", "retry: 10\n", nil, io.EOF},
}

func TestReader(t *testing.T) {
	t.Parallel()
	for _, tt := range streams {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := readAll(sse.NewReader(strings.NewReader(tt.in), 0))
			if !errors.Is(err, tt.err) {
				t.Errorf("Next over %q ended with %v, want %v", tt.in, err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Next over %q (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

// Every stream gives the same events when it is split in two at any position, or into single
// bytes.
func TestReaderSplits(t *testing.T) {
	t.Parallel()
	for _, tt := range streams {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for i := range len(tt.in) + 1 {
				in := io.MultiReader(strings.NewReader(tt.in[:i]), strings.NewReader(tt.in[i:]))
				got, err := readAll(sse.NewReader(in, 0))
				if !errors.Is(err, tt.err) || !cmp.Equal(tt.want, got) {
					t.Errorf("Next over %q + %q = %q, %v, want %q, %v", tt.in[:i], tt.in[i:], got, err, tt.want, tt.err)
				}
			}
			got, err := readAll(sse.NewReader(iotest.OneByteReader(strings.NewReader(tt.in)), 0))
			if !errors.Is(err, tt.err) || !cmp.Equal(tt.want, got) {
				t.Errorf("Next over single bytes of %q = %q, %v, want %q, %v", tt.in, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestReaderLimit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   string
		err  error
	}{
		{"at the limit", "data: " + strings.Repeat("x", 100) + "\n\n", io.EOF},
		{"one line over", "data: " + strings.Repeat("x", 101) + "\n\n", sse.ErrTooLong},
		{"many lines over", strings.Repeat("data: 123456789\n", 11) + "\n", sse.ErrTooLong},
		{"a line that never ends", "data: " + strings.Repeat("x", 10_000), sse.ErrTooLong},
		{"a comment that never ends", ": " + strings.Repeat("x", 10_000), sse.ErrTooLong},
		{"many events", strings.Repeat("data: 123456789\n\n", 100), io.EOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := sse.NewReader(strings.NewReader(tt.in), 100)
			_, err := readAll(r)
			if !errors.Is(err, tt.err) {
				t.Errorf("Next ended with %v, want %v", err, tt.err)
			}
			if _, again := r.Next(); !errors.Is(again, tt.err) {
				t.Errorf("Next after the end = %v, want %v again", again, tt.err)
			}
		})
	}
}

// An event is returned when its blank line has come, before more of the stream.
func TestReaderDoesNotWait(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"data: a\n\n", "data: a\r\r", "data: a\r\n\r"} {
		pr, pw := io.Pipe()
		r := sse.NewReader(pr, 0)
		got := make(chan string, 1)
		go func() {
			ev, _ := r.Next()
			got <- string(ev.Data)
		}()
		if _, err := io.WriteString(pw, in); err != nil {
			t.Fatal(err)
		}
		select {
		case data := <-got:
			if data != "a" {
				t.Errorf("Next over %q = %q, want %q", in, data, "a")
			}
		case <-time.After(5 * time.Second):
			t.Errorf("Next over %q waits for more", in)
		}
		_ = pw.Close()
	}
}

func TestReaderErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	in := io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken))
	got, err := readAll(sse.NewReader(in, 0))
	if !errors.Is(err, broken) {
		t.Errorf("Next ended with %v, want %v", err, broken)
	}
	if diff := cmp.Diff([]event{{"", "a", ""}}, got); diff != "" {
		t.Errorf("Next (-want +got):\n%s", diff)
	}
}

func TestReaderRetryAndReset(t *testing.T) {
	t.Parallel()
	r := sse.NewReader(strings.NewReader("retry: 1500\nretry: x\nretry: 99999999999\ndata: a\nid: 4\n\ndata: cut"), 0)
	_, _ = readAll(r)
	if got, want := r.Retry(), 1500*time.Millisecond; got != want {
		t.Errorf("Retry() = %v, want %v", got, want)
	}
	r.Reset(strings.NewReader("data: b\n\n"))
	got, err := readAll(r)
	if !errors.Is(err, io.EOF) {
		t.Errorf("Next after Reset ended with %v, want EOF", err)
	}
	if diff := cmp.Diff([]event{{"", "b", ""}}, got); diff != "" {
		t.Errorf("Next after Reset (-want +got):\n%s", diff)
	}
}

// Reader reads what AppendEvent writes, wherever it is split. Any bytes give the same events in
// one read and in single bytes.
func FuzzReader(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s.in), "e", "id")
	}
	f.Fuzz(func(t *testing.T, in []byte, typ, id string) {
		whole, errWhole := readAll(sse.NewReader(bytes.NewReader(in), 1<<10))
		bytewise, errBytes := readAll(sse.NewReader(iotest.OneByteReader(bytes.NewReader(in)), 1<<10))
		if !errors.Is(errBytes, errWhole) || !cmp.Equal(whole, bytewise) {
			t.Fatalf("Next over %q = %q, %v in one read and %q, %v in single bytes", in, whole, errWhole, bytewise, errBytes)
		}
		frame := sse.AppendEvent(nil, typ, in, id)
		got, err := readAll(sse.NewReader(bytes.NewReader(frame), 1<<20))
		if !errors.Is(err, io.EOF) || len(got) != 1 {
			t.Fatalf("Next over %q = %q, %v, want one event", frame, got, err)
		}
		lines := bytes.ReplaceAll(bytes.ReplaceAll(in, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
		if got[0].Data != string(lines) {
			t.Fatalf("Next over %q gives data %q, want %q", frame, got[0].Data, lines)
		}
	})
}

// BenchmarkReader reads frames as a provider sends them; an operation is an event.
func BenchmarkReader(b *testing.B) {
	frame := "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" some words\"}}\n\n"
	r := sse.NewReader(&endless{chunk: []byte(strings.Repeat(frame, 64))}, 0)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Next(); err != nil {
			b.Fatal(err)
		}
	}
}

// endless repeats its chunk forever.
type endless struct {
	chunk []byte
	at    int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.chunk[e.at:])
	e.at = (e.at + n) % len(e.chunk)
	return n, nil
}
