package sse_test

import (
	"testing"

	"signalbox.dev/pkg/sse"
)

func TestAppendEvent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name            string
		event, data, id string
		want            string
	}{
		{"all fields in the order event, data, id", "text-delta", `{"a":1}`, "7-3", "event: text-delta\ndata: {\"a\":1}\nid: 7-3\n\n"},
		{"no type and no id", "", "x", "", "data: x\n\n"},
		{"no data", "ping", "", "", "event: ping\ndata: \n\n"},
		{"line breaks of every kind", "", "a\nb\r\nc\rd\n", "", "data: a\ndata: b\ndata: c\ndata: d\ndata: \n\n"},
		{"type and id cannot break out", "a\nb", "x", "1\r\n\x002", "event: ab\ndata: x\nid: 12\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := string(sse.AppendEvent([]byte("before|"), tt.event, []byte(tt.data), tt.id))
			if want := "before|" + tt.want; got != want {
				t.Errorf("AppendEvent(%q, %q, %q) = %q, want %q", tt.event, tt.data, tt.id, got, want)
			}
		})
	}
}

func TestAppendLines(t *testing.T) {
	t.Parallel()
	if got, want := string(sse.AppendHeartbeat(nil)), ":\n"; got != want {
		t.Errorf("AppendHeartbeat() = %q, want %q", got, want)
	}
	if got, want := string(sse.AppendRetry(nil, 1000)), "retry: 1000\n"; got != want {
		t.Errorf("AppendRetry(1000) = %q, want %q", got, want)
	}
	if got, want := string(sse.AppendRetry(nil, -1)), "retry: 0\n"; got != want {
		t.Errorf("AppendRetry(-1) = %q, want %q", got, want)
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	data := []byte(`{"type":"text-delta","delta":" and then some words"}`)
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = sse.AppendEvent(buf[:0], "text-delta", data, "12-345")
	}
}
