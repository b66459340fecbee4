package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Every way but the egress, which its own module tests, brings every chunk and the
// end, one stream after the other and many at once.
func TestWays(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(upstreamHandler())
	defer up.Close()
	h, stop, err := bifrostHandler(t.Context(), up.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	gateway, plain := httptest.NewServer(h), httptest.NewServer(bareHandler(up.URL))
	defer gateway.Close()
	defer plain.Close()
	w := &world{up: os.Getpid()}
	defer w.stop()
	for _, v := range []struct{ name, url string }{
		{straight, up.URL}, {egress, up.URL}, {bifrostFull, gateway.URL}, {bifrostRaw, gateway.URL + "/passthrough"}, {bare, plain.URL},
	} {
		w.add(&way{name: v.name, url: v.url + messagesPath, headers: key, pid: os.Getpid()})
	}
	p := plan{Rounds: 2, Requests: 2, Streams: 4, Chunks: 5, Pace: time.Millisecond, Flood: 50, Body: 1000}
	r, err := measure(t.Context(), p, w)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Ways) != 5 || len(r.Ratios) != 18 {
		t.Errorf("%d ways and %d ratios, want 5 and 18", len(r.Ways), len(r.Ratios))
	}
	var table, text bytes.Buffer
	if err := r.writeTable(&table); err != nil || !strings.Contains(table.String(), "egress/bifrost") {
		t.Errorf("writeTable: %v\n%s", err, &table)
	}
	var back report
	if err := r.writeJSON(&text); err != nil || json.Unmarshal(text.Bytes(), &back) != nil {
		t.Fatalf("writeJSON: %v\n%s", err, &text)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Errorf("what writeJSON wrote (-want +got):\n%s", diff)
	}
}

// A stream that lacks something fails.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	answer(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody), tool, 3, 0)
	whole := rec.Body.String()
	for _, tt := range []struct{ name, body, want string }{
		{"whole", whole, ""},
		{"without its end", strings.TrimSuffix(whole, done), "3 chunks of 3 came, the end: false"},
		{"without a chunk", strings.Replace(whole, mark, "", 1), "2 chunks of 3 came, the end: true"},
		{"without the tool's own name", strings.Replace(whole, tool, prefixed, 1), "3 chunks of 3 came, the end: false"},
		{"empty", "", "0 chunks of 3 came, the end: false"},
	} {
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tt.body) }))
		w := &world{}
		w.add(&way{name: straight, url: up.URL, headers: key})
		err := newCaller(3).stream(t.Context(), w.all[0], newRun, request(model(3, 0), 0), 3)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: stream = %v, want %q", tt.name, err, tt.want)
		}
		w.stop()
		up.Close()
	}
	c := newCaller(3)
	if n, end, err := c.read(iotest.OneByteReader(strings.NewReader(whole)), time.Now()); n != 3 || !end || err != nil {
		t.Errorf("read byte by byte = %d, %v, %v, want 3, true, nil", n, end, err)
	}
	if len(c.delays) != 3 || len(c.firsts) != 1 || c.delays[0] < 0 || c.delays[0] > time.Hour {
		t.Errorf("delays %v, first %v", c.delays, c.firsts)
	}
}

func TestOrders(t *testing.T) {
	t.Parallel()
	if n, pace, err := orders(request(model(7, 3*time.Millisecond), 500)); n != 7 || pace != 3*time.Millisecond || err != nil {
		t.Errorf("orders = %d, %v, %v, want 7, 3ms, nil", n, pace, err)
	}
	if b := request(model(7, 0), 500); !json.Valid(b) {
		t.Errorf("request is no JSON: %s", b)
	}
	for _, bad := range []string{``, `"bench-"`, `"bench-0-0"`, `"bench-1--1"`, `"bench-99999999-0"`} {
		if n, pace, err := orders([]byte(bad)); err == nil {
			t.Errorf("orders(%s) = %d, %v, want an error", bad, n, pace)
		}
	}
}

func TestFigures(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(figure{Median: 2.5, Least: 1, Most: 9}, over([]float64{9, 2, 1, 3})); diff != "" {
		t.Errorf("over (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(figure{Median: 0.5, Least: 0.25, Most: 2}, quotient([]float64{1, 1, 4}, []float64{2, 4, 2})); diff != "" {
		t.Errorf("quotient (-want +got):\n%s", diff)
	}
	if got := quotient([]float64{1, 1}, []float64{0, 2}); got != (figure{Median: 0.5, Least: 0.5, Most: 0.5}) || quotient([]float64{1}, []float64{0}) != (figure{}) {
		t.Errorf("quotient with nothing below the line = %v", got)
	}
	var all []time.Duration
	for i := range 100 {
		all = append(all, time.Duration(100-i)*time.Microsecond)
	}
	if p50, p99 := rank(all, .5), rank(all, .99); p50 != 51 || p99 != 100 {
		t.Errorf("rank = %v, %v, want 51, 100", p50, p99)
	}
	p := plan{Streams: 2, Flood: 10}
	micros := func(n ...time.Duration) []time.Duration {
		for i := range n {
			n[i] *= time.Microsecond
		}
		return n
	}
	got := p.numbers([]round{{first: [calls][]time.Duration{micros(30), micros(25), micros(50)}, busy: micros(50), delays: micros(7), cpu: 4 * time.Millisecond, flood: 5, burn: 40 * time.Microsecond}},
		[]round{{first: [calls][]time.Duration{micros(10), micros(10), micros(10)}, busy: micros(20), delays: micros(3)}})
	want := numbers{[]float64{30}, []float64{20}, []float64{20}, []float64{15}, []float64{40}, []float64{30}, []float64{4}, []float64{4}, []float64{2}, []float64{2}, []float64{5}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(numbers{})); diff != "" {
		t.Errorf("numbers (-want +got):\n%s", diff)
	}
}
