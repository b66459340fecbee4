package store_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/document-sync/internal/store"
)

// BenchmarkAppend appends updates of 60 bytes to many documents at once, each after the previous
// one is committed: on the test server, which does not sync, and on one that does.
func BenchmarkAppend(b *testing.B) {
	for _, disk := range []string{"nosync", "sync"} {
		for _, documents := range []int{1, 8, 64, 500} {
			b.Run(fmt.Sprintf("%s/%d", disk, documents), func(b *testing.B) {
				w := newWorldOn(b, disks[disk](b), store.Limits{})
				refs := make([]store.Ref, documents)
				for i := range refs {
					refs[i] = w.create()
				}
				update := make([]byte, 60)
				took := make([][]time.Duration, documents)
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ResetTimer()
				var wg sync.WaitGroup
				for i, ref := range refs {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							begun := time.Now()
							if _, err := w.store.Append(b.Context(), ref, w.author, update); err != nil {
								b.Error(err)
								return
							}
							took[i] = append(took[i], time.Since(begun))
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				all := slices.Concat(took...)
				slices.Sort(all)
				transactions, updates := w.commits(w.admin()), len(all)
				b.ReportMetric(float64(updates)/b.Elapsed().Seconds(), "updates/s")
				b.ReportMetric(float64(transactions)/b.Elapsed().Seconds(), "commits/s")
				b.ReportMetric(float64(updates)/float64(transactions), "updates/commit")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
}

var disks = map[string]func(testing.TB) *pgtest.Database{
	"nosync": func(t testing.TB) *pgtest.Database { t.Helper(); return pgtest.New(t, schema()) },
	"sync":   func(t testing.TB) *pgtest.Database { t.Helper(); return newServer(t, pgd.Config{}) },
}

// BenchmarkLoad loads a document with a snapshot of 100 KB and 500 updates after it.
func BenchmarkLoad(b *testing.B) {
	w := newWorld(b, store.Limits{})
	ref := w.create()
	snap := snapshot(ref, w.append(ref, "u"))
	snap.State = make([]byte, 100<<10)
	w.save(snap)
	for range 500 {
		w.append(ref, "an update of about as many bytes as a key that somebody pressed")
	}
	b.ReportAllocs()
	for b.Loop() {
		if st := w.load(ref); len(st.Updates) != 500 {
			b.Fatalf("Load = %d updates, want 500", len(st.Updates))
		}
	}
}

// BenchmarkSave saves a document with a state of 100 KB, as much Markdown and one update after
// the snapshot, as a version of live editing.
func BenchmarkSave(b *testing.B) {
	w := newWorld(b, store.Limits{})
	ref := w.create()
	state, markdown := make([]byte, 100<<10), ""
	for i := range state {
		state[i] = byte(i * i >> 3)
	}
	for len(markdown) < 100<<10 {
		markdown += "Some words of a paragraph that goes on and on. "
	}
	for b.Loop() {
		snap := snapshot(ref, w.append(ref, "u"))
		snap.State, snap.Markdown = state, markdown
		w.save(snap)
	}
}
