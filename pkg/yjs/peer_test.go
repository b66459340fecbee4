package yjs_test

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/yjs"
)

// BenchmarkPeer is one side of bench/yjs/bench.mjs, which names a folder: it writes the inputs for
// npm yjs and its own results, as go.json, there.
func BenchmarkPeer(b *testing.B) {
	dir := os.Getenv("SIGNALBOX_YJS_PEER")
	if dir == "" {
		b.Skip("runs under bench/yjs/bench.mjs only")
	}
	es := trace(b)
	updates := record(es)
	conc := concurrentStart(6000)
	var doc *yjs.Doc
	figures := map[string]float64{}
	apply := func(us ...[]byte) *yjs.Doc {
		d := yjs.New(yjs.Options{ClientID: 2})
		for _, u := range us {
			if err := d.ApplyUpdate(u, nil); err != nil {
				b.Fatal(err)
			}
		}
		return d
	}
	merge := func(us [][]byte) {
		if _, err := yjs.MergeUpdates(us); err != nil {
			b.Fatal(err)
		}
	}
	figures["local_ms"] = cpu(3, func() {
		doc = yjs.New(yjs.Options{ClientID: 1})
		replay(doc, es)
	})
	state := doc.EncodeStateAsUpdate(nil)
	state2 := doc.EncodeStateAsUpdateV2(nil)
	figures["remote_ms"] = cpu(3, func() { apply(updates...) })
	figures["load_ms"] = cpu(20, func() { apply(state) })
	figures["encode_ms"] = cpu(50, func() { doc.EncodeStateAsUpdate(nil) })
	figures["encode_v2_ms"] = cpu(50, func() { doc.EncodeStateAsUpdateV2(nil) })
	figures["load_v2_ms"] = cpu(20, func() {
		if err := yjs.New(yjs.Options{}).ApplyUpdateV2(state2, nil); err != nil {
			b.Fatal(err)
		}
	})
	figures["merge_16000_ms"] = cpu(5, func() { merge(updates[:16_000]) })
	figures["merge_all_ms"] = cpu(2, func() { merge(updates) })
	figures["concurrent_ms"] = cpu(3, func() { apply(conc...) })
	figures["updates"] = float64(len(updates))
	figures["state_bytes"] = float64(len(state))
	figures["heap_trace_kb"] = heap(func() *yjs.Doc { return apply(state) })
	paragraphs := paragraphState()
	figures["heap_paragraphs_kb"] = heap(func() *yjs.Doc { return apply(paragraphs) })

	write := func(name string, p []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), p, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	lines := make([][3]any, len(es))
	for i, e := range es {
		lines[i] = [3]any{e.at, e.del, e.ins}
	}
	text, _ := json.Marshal(lines)
	write("trace.json", text)
	write("updates.bin", pack(updates))
	write("concurrent.bin", pack(conc))
	write("state.bin", state)
	write("state2.bin", state2)
	write("text.txt", []byte(doc.Text("text").String()))
	out, _ := json.Marshal(figures)
	write("go.json", out)
}

// pack writes byte strings with length prefixes.
func pack(ps [][]byte) (out []byte) {
	for _, p := range ps {
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(p))), p...)
	}
	return out
}

// cpu returns the minimum CPU time of several runs of f, in milliseconds.
func cpu(goes int, f func()) float64 {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	best := time.Duration(1 << 62)
	for range goes {
		runtime.GC()
		before := used()
		f()
		best = min(best, used()-before)
	}
	return float64(best.Microseconds()) / 1000
}

// heap returns the memory that a document occupies.
func heap(load func() *yjs.Doc) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&before)
	d := load()
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(d)
	return float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / 1000
}

// paragraphState is a document of 50 paragraphs of 120 characters.
func paragraphState() []byte {
	d := yjs.New(yjs.Options{ClientID: 1})
	for range 50 {
		p := yjs.NewXMLElement("paragraph")
		check(p.Push(yjs.NewXMLText(strings.Repeat("some words ", 11)[:120])))
		check(d.XMLFragment("default").Push(p))
	}
	return d.EncodeStateAsUpdate(nil)
}
