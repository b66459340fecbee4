package yjs_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// edit is a line of the trace: a number of units deleted at a position, then text inserted.
type edit struct {
	at, del int
	ins     string
}

// loadTrace reads the trace named by $SIGNALBOX_B4_TRACE, or generates a similar one.
var loadTrace = sync.OnceValues(func() ([]edit, error) {
	path := os.Getenv("SIGNALBOX_B4_TRACE")
	if path == "" {
		return madeTrace(), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var out []edit
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		at, rest, _ := strings.Cut(sc.Text(), " ")
		del, ins, _ := strings.Cut(rest, " ")
		var e edit
		e.at, _ = strconv.Atoi(at)
		e.del, _ = strconv.Atoi(del)
		if err := json.Unmarshal([]byte(ins), &e.ins); err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		out = append(out, e)
	}
	return out, sc.Err()
})

// madeTrace types like an author: runs of characters, with some backspaces and mostly short
// jumps.
func madeTrace() []edit {
	r := rand.New(rand.NewPCG(4, 4))
	out := make([]edit, 0, 259_778)
	at, length := 0, 0
	for len(out) < cap(out) {
		switch x := r.IntN(1000); {
		case x < 25 && length > 0:
			if r.IntN(4) == 0 {
				at = r.IntN(length + 1)
			} else {
				at = max(0, min(length, at+r.IntN(400)-200))
			}
		case x < 320 && at > 0:
			at--
			length--
			out = append(out, edit{at: at, del: 1})
		default:
			out = append(out, edit{at: at, ins: string(rune('a' + r.IntN(26)))})
			at++
			length++
		}
	}
	return out
}

func trace(tb testing.TB) []edit {
	tb.Helper()
	es, err := loadTrace()
	if err != nil {
		tb.Fatal(err)
	}
	return es
}

func replay(d *yjs.Doc, es []edit) {
	text := d.Text("text")
	for _, e := range es {
		d.Transact(nil, func(*yjs.Txn) {
			if e.del > 0 {
				text.Delete(e.at, e.del)
			}
			if e.ins != "" {
				text.Insert(e.at, e.ins)
			}
		})
	}
}

// record returns the update of every edit of the trace.
func record(es []edit) [][]byte {
	d := yjs.New(yjs.Options{ClientID: 1})
	us := make([][]byte, 0, len(es))
	d.OnUpdate(func(u *yjs.Update) { us = append(us, u.V1()) })
	replay(d, es)
	return us
}

func BenchmarkTraceLocal(b *testing.B) {
	es := trace(b)
	b.ReportAllocs()
	var d *yjs.Doc
	for b.Loop() {
		d = yjs.New(yjs.Options{ClientID: 1})
		replay(d, es)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(es)), "ns/edit")
	b.ReportMetric(float64(len(d.EncodeStateAsUpdate(nil))), "state-bytes")
}

func BenchmarkTraceRemote(b *testing.B) {
	us := record(trace(b))
	b.ReportAllocs()
	for b.Loop() {
		d := yjs.New(yjs.Options{ClientID: 2})
		for _, u := range us {
			if err := d.ApplyUpdate(u, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(us)), "ns/update")
}

func traceState(b *testing.B) (*yjs.Doc, []byte) {
	d := yjs.New(yjs.Options{ClientID: 1})
	replay(d, trace(b))
	return d, d.EncodeStateAsUpdate(nil)
}

func BenchmarkTraceLoad(b *testing.B) {
	_, state := traceState(b)
	b.ReportAllocs()
	for b.Loop() {
		d := yjs.New(yjs.Options{ClientID: 2})
		if err := d.ApplyUpdate(state, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTraceEncode(b *testing.B) {
	d, _ := traceState(b)
	b.ReportAllocs()
	for b.Loop() {
		d.EncodeStateAsUpdate(nil)
	}
}

func BenchmarkTraceEncodeV2(b *testing.B) {
	d, _ := traceState(b)
	b.ReportAllocs()
	for b.Loop() {
		d.EncodeStateAsUpdateV2(nil)
	}
}

func BenchmarkMerge(b *testing.B) {
	all := record(trace(b))
	for _, n := range []int{16_000, len(all)} {
		us := all[:n]
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := yjs.MergeUpdates(us); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkConcurrentStart(b *testing.B) {
	us := concurrentStart(6000)
	b.ReportAllocs()
	for b.Loop() {
		d := yjs.New(yjs.Options{ClientID: 3})
		for _, u := range us {
			if err := d.ApplyUpdate(u, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// concurrentStart returns the updates of two clients that each insert n characters at index 0.
func concurrentStart(n int) [][]byte {
	var us [][]byte
	for id := range uint64(2) {
		d := yjs.New(yjs.Options{ClientID: id + 1})
		t := d.Text("text")
		for range n {
			t.Insert(0, "x")
		}
		us = append(us, d.EncodeStateAsUpdate(nil))
	}
	return us
}
