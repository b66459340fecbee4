package simulator_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox.dev/services/simulator"
)

// thousand is a script whose answer has 1,000 deltas.
const thousand = `rules: [{then: [{say: {text: "{{count 1000}}", chunk: word}}]}]`

// BenchmarkStream plays one request of 1,000 deltas into a writer that throws it
// away: the simulator's own cost.
func BenchmarkStream(b *testing.B) {
	for _, p := range providers() {
		b.Run(p.name, func(b *testing.B) {
			s := newBench(b)
			body := request(p, "sim/thousand", "go", true)
			b.ReportAllocs()
			var n int64
			for b.Loop() {
				w := &discard{header: http.Header{}}
				r := httptest.NewRequest(http.MethodPost, p.path, strings.NewReader(body))
				for k, v := range p.header {
					r.Header.Set(k, v)
				}
				s.ServeHTTP(w, r)
				n = w.n
			}
			if n < 50_000 {
				b.Fatalf("an answer has %d bytes", n)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/delta")
		})
	}
}

// BenchmarkSocket is the same over a real connection.
func BenchmarkSocket(b *testing.B) {
	s := start(b, simulator.Config{}, "thousand", thousand)
	p := providers()[0]
	body := request(p, "sim/thousand", "go", true)
	b.ReportAllocs()
	for b.Loop() {
		resp := s.post(b.Context(), b, p, body)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
	}
}

func newBench(b *testing.B) *simulator.Simulator {
	b.Helper()
	s, err := simulator.New(simulator.Config{}, simulator.Deps{})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.PutScript("thousand", thousand); err != nil {
		b.Fatal(err)
	}
	return s
}

// discard is a response writer that counts and forgets.
type discard struct {
	header http.Header
	n      int64
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Flush()              {}
func (d *discard) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return len(p), nil
}
