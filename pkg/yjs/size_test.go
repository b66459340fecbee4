package yjs_test

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

func heapInUse() int {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int(s.HeapAlloc)
}

// TestSizeIsNearTheHeap checks that Size is close to the memory that a document occupies.
func TestSizeIsNearTheHeap(t *testing.T) { //nolint:paralleltest // it measures the heap
	for name, fill := range map[string]func(d *yjs.Doc){
		"one text": func(d *yjs.Doc) { d.Text("t").Insert(0, strings.Repeat("x", 4<<20)) },
		"typed here and there": func(d *yjs.Doc) {
			for range 50_000 {
				d.Text("t").Insert(0, "x")
			}
		},
		"values":         func(d *yjs.Doc) { check(d.Array("a").Push(many(200_000, 1.5)...)) },
		"strings":        func(d *yjs.Doc) { check(d.Array("a").Push(many(2, strings.Repeat("y", 1<<20))...)) },
		"objects":        func(d *yjs.Doc) { check(d.Array("a").Push(objects(20_000)...)) },
		"keys of a map":  func(d *yjs.Doc) { setMany(d.Map("m"), 20_000) },
		"nested types":   func(d *yjs.Doc) { check(d.Array("a").Push(maps(20_000)...)) },
		"one key of all": func(d *yjs.Doc) { setMany(d.Map("m"), 1) },
	} {
		before := heapInUse()
		d := yjs.New(yjs.Options{})
		d.Transact(nil, func(*yjs.Txn) { fill(d) })
		takes := heapInUse() - before
		if n := d.Size(); n > 2*takes+8<<10 || 3*n+64<<10 < takes {
			t.Errorf("%s: Size() = %d, the document occupies %d", name, n, takes)
		}
		runtime.KeepAlive(d)
	}
}

func many(n int, v any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = v
		if s, ok := v.(string); ok {
			out[i] = strings.Clone(s)
		}
	}
	return out
}

func objects(n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = yjs.Object{{Key: "href", Value: strings.Repeat("z", 100)}, {Key: "n", Value: float64(i)}}
	}
	return out
}

func maps(n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = yjs.NewMap()
	}
	return out
}

func setMany(m *yjs.Map, n int) {
	for i := range n {
		check(m.Set(strings.Repeat("k", 1+i%7)+string(rune(0x4000+i)), float64(i)))
	}
}

// TestSizeGoesDown checks that repeated splits and merges do not change the size, and that deletions
// release it.
func TestSizeGoesDown(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		a := author{rand.New(rand.NewPCG(seed, 1))}
		d := yjs.New(yjs.Options{ClientID: 1})
		list := d.Array("a")
		empty := d.Size()
		for range 300 {
			n := list.Len()
			switch a.IntN(4) {
			case 0:
				if n > 0 {
					at := a.IntN(n)
					check(list.Delete(at, 1+a.IntN(min(3, n-at))))
				}
			case 1:
				check(list.Push(a.value(0), a.value(0)))
			default:
				check(list.Insert(a.IntN(n+1), a.value(0)))
			}
		}
		full := d.Size()
		again := yjs.New(yjs.Options{})
		check(again.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil))
		if n := again.Size(); n > 2*full || full > 2*n {
			t.Errorf("seed %d: Size() = %d, and %d when loaded", seed, full, n)
		}
		check(list.Delete(0, list.Len()))
		// The array is left, and the remains of deleted items: one wherever their clocks are not
		// consecutive.
		if n := d.Size(); n > empty+300*64+1024 || n < empty {
			t.Errorf("seed %d: Size() = %d after the deletion, %d before and %d at first", seed, n, full, empty)
		}
	}
}

func TestSizeOfPendingStructs(t *testing.T) {
	t.Parallel()
	from := yjs.New(yjs.Options{})
	var updates [][]byte
	from.OnUpdate(func(u *yjs.Update) { updates = append(updates, u.V1()) })
	from.Text("t").Insert(0, "a")
	from.Text("t").Insert(1, strings.Repeat("b", 1<<20))
	to := yjs.New(yjs.Options{})
	check(to.ApplyUpdate(updates[1], nil))
	if n := to.Size(); n < 1<<20 {
		t.Errorf("Size() = %d with 1 MiB pending", n)
	}
}
