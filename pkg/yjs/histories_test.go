package yjs_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// author makes random edits through the exported API.
type author struct{ *rand.Rand }

var words = []string{"a", "b ", "hello", " world", "x\ny", "😀", "é", "日本", "👨‍👩‍👧", "e\u0301", "🇩🇪", "ß", "\x00", `"q"`, `\`}

func pick[T any](a author, xs ...T) T { return xs[a.IntN(len(xs))] }

func (a author) text() string {
	s := ""
	for range 1 + a.IntN(3) {
		s += pick(a, words...)
	}
	return s
}

func (a author) value(depth int) any {
	switch a.IntN(13) {
	case 0:
		return nil
	case 1:
		return yjs.Undefined
	case 2:
		return pick[any](a, math.NaN(), math.Copysign(0, -1), 1.5, 0.1, 1e300, 1e21, -1e-7, math.Inf(-1))
	case 3, 4:
		return a.IntN(1<<31) - 1<<30
	case 5:
		return a.IntN(2) == 0
	case 6, 7:
		return a.text()
	case 8:
		return yjs.BigInt(a.Int64())
	case 9:
		return []byte{1, byte(a.IntN(256))}
	case 10:
		if depth < 2 {
			return []any{a.value(depth + 1), a.value(depth + 1)}
		}
		return int64(1) << 40
	default:
		if depth > 1 {
			return ""
		}
		return yjs.Object{{Key: "z", Value: a.value(depth + 1)}, {Key: "10", Value: 1}, {Key: "2", Value: a.value(depth + 1)}}
	}
}

func (a author) attrs() yjs.Object {
	return yjs.Object{{
		Key:   pick(a, "bold", "italic", "link", "bold--YWJjZGVm"),
		Value: pick[any](a, true, nil, yjs.Object{}, yjs.Object{{Key: "href", Value: "u"}}, "red"),
	}}
}

func (a author) node(depth int) any {
	if depth > 2 || a.IntN(3) == 0 {
		return yjs.NewXMLText(a.text())
	}
	if a.IntN(8) == 0 {
		h := yjs.NewXMLHook("hook")
		check(h.Map().Set("k", a.value(1)))
		return h
	}
	e := yjs.NewXMLElement(pick(a, "p", "DIV", "h1"))
	for range a.IntN(3) {
		check(e.SetAttribute(pick(a, "level", "id"), a.value(1)))
	}
	for range a.IntN(3) {
		check(e.Push(a.node(depth + 1)))
	}
	return e
}

func (a author) content() any {
	switch a.IntN(9) {
	case 0:
		m := yjs.NewMap()
		check(m.Set("n", a.value(0)))
		return m
	case 1:
		l := yjs.NewArray()
		check(l.Push(a.value(0), 1, a.value(0)))
		return l
	case 2:
		return yjs.NewText(a.text())
	case 3:
		return a.node(1)
	case 4:
		return yjs.NewSubdoc("guid", yjs.Object{{Key: "meta", Value: 1}, {Key: "autoLoad", Value: a.IntN(2) == 0}})
	default:
		return a.value(0)
	}
}

// check panics on unexpected errors.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// types lists all reachable shared types.
func types(v any, out []any) []any {
	children := func(vs []any) {
		for _, c := range vs {
			out = types(c, out)
		}
	}
	switch v := v.(type) {
	case *yjs.Text:
		out = append(out, v)
		for _, op := range v.Delta() {
			out = types(op.Insert, out)
		}
	case *yjs.Array:
		out = append(out, v)
		children(v.Values())
	case *yjs.Map:
		out = append(out, v)
		v.Each(func(_ string, c any) bool {
			out = types(c, out)
			return true
		})
	case *yjs.XMLFragment:
		out = append(out, v)
		children(v.Children())
	case *yjs.XMLElement:
		out = append(out, v)
		children(v.Children())
	case *yjs.XMLText:
		out = append(out, v.Text())
	case *yjs.XMLHook:
		out = append(out, v.Map())
	}
	return out
}

func (a author) edit(d *yjs.Doc) {
	all := []any{d.Text("t"), d.Map("m"), d.Array("a"), d.XMLFragment("x")}
	if a.IntN(2) == 0 {
		for _, root := range all[:4:4] {
			all = types(root, all)
		}
	}
	span := func(n int) (at, count int) {
		at = a.IntN(n + 1)
		return at, min(n-at, 1+a.IntN(5))
	}
	switch v := pick(a, all...).(type) {
	case *yjs.Text:
		a.editText(v, span)
	case *yjs.Map:
		if a.IntN(5) == 0 {
			v.Delete("k")
		} else {
			check(v.Set(pick(a, "k", "l", "7"), a.content()))
		}
	case *yjs.Array:
		switch at, n := span(v.Len()); a.IntN(3) {
		case 0:
			check(v.Delete(at, n))
		case 1:
			check(v.Push(a.content(), a.content()))
		default:
			check(v.Insert(at, a.content()))
		}
	case *yjs.XMLFragment:
		if at, n := span(v.Len()); a.IntN(3) == 0 {
			check(v.Delete(at, n))
		} else {
			check(v.Insert(at, a.node(0)))
		}
	case *yjs.XMLElement:
		switch at, n := span(v.Len()); a.IntN(4) {
		case 0:
			check(v.Delete(at, n))
		case 1:
			v.RemoveAttribute("id")
		case 2:
			check(v.SetAttribute("id", a.value(0)))
		default:
			check(v.Insert(at, a.node(1)))
		}
	}
}

func (a author) editText(t *yjs.Text, span func(int) (int, int)) {
	at, n := span(t.Len())
	switch a.IntN(8) {
	case 0, 1, 2:
		t.Insert(at, a.text())
	case 3:
		check(t.InsertFormatted(at, a.text(), a.attrs()))
	case 4, 5:
		t.Delete(at, n)
	case 6:
		check(t.Format(at, n, a.attrs()))
	default:
		check(t.InsertEmbed(at, pick[any](a, yjs.Object{{Key: "image", Value: 1}}, 7, yjs.NewMap()), nil))
	}
}

// write has replicas edit and exchange updates until they converge, and returns the updates.
func write(seed uint64, steps int) (replicas []*yjs.Doc, updates [][]byte) {
	a := author{rand.New(rand.NewPCG(seed, 1))}
	n := 2 + a.IntN(4)
	inbox := make([][][]byte, n)
	for i := range n {
		id := uint64(a.Uint32())
		if a.IntN(4) == 0 {
			id = 1<<52 + uint64(i)
		}
		d := yjs.New(yjs.Options{ClientID: id + 1, KeepDeleted: a.IntN(6) == 0})
		open(d)
		d.OnUpdate(func(u *yjs.Update) {
			if !u.Local {
				return
			}
			updates = append(updates, u.V1())
			for j := range inbox {
				if j != i {
					inbox[j] = append(inbox[j], u.V1())
				}
			}
		})
		replicas = append(replicas, d)
	}
	deliver := func(i, count int) {
		us := inbox[i][:count]
		inbox[i] = inbox[i][count:]
		for _, u := range us {
			check(replicas[i].ApplyUpdate(u, "remote"))
		}
	}
	for range steps {
		i := a.IntN(n)
		if a.IntN(3) == 0 {
			deliver(i, a.IntN(len(inbox[i])+1))
			continue
		}
		replicas[i].Transact(nil, func(*yjs.Txn) {
			for range 1 + a.IntN(2) {
				a.edit(replicas[i])
			}
		})
	}
	for i := range inbox {
		deliver(i, len(inbox[i]))
	}
	return replicas, updates
}

// TestHistoriesOfGo has npm yjs read updates of our replicas.
func TestHistoriesOfGo(t *testing.T) {
	t.Parallel()
	o := startOracle(t)
	n := seeds(t) / 2
	for seed := 1; seed <= n; seed++ {
		replicas, updates := write(uint64(seed), 10+seed%30)
		if len(updates) == 0 {
			continue // no updates
		}
		var want observed
		if err := o.ask(map[string]any{"cmd": "apply", "updates": updates}, &want); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, d := range replicas {
			if got := observe(d); got.Canon != want.Canon || got.XML != want.XML || string(got.SV) != string(want.SV) {
				t.Errorf("seed %d: replica %d\n got %s\nwant %s", seed, i, got.Canon, want.Canon)
			}
		}
		d := fresh()
		for _, u := range updates {
			if err := d.ApplyUpdate(u, nil); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		compare(t, "in order", observe(d), want)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestConvergence needs no oracle: our replicas converge in whatever order updates arrive.
func TestConvergence(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		replicas, updates := write(seed+1_000_000, 40)
		want := canon(replicas[0])
		for i, d := range replicas[1:] {
			if got := canon(d); got != want {
				t.Fatalf("seed %d: replica %d\n got %s\nwant %s", seed, i+1, got, want)
			}
		}
		r := rand.New(rand.NewPCG(seed, 2))
		d := fresh()
		for _, i := range r.Perm(len(updates)) {
			if err := d.ApplyUpdate(updates[i], nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := canon(d); got != want || d.Pending() {
			t.Fatalf("seed %d: mixed\n got %s\nwant %s", seed, got, want)
		}
		for _, v2 := range []bool{false, true} {
			e := fresh()
			if v2 {
				check(e.ApplyUpdateV2(d.EncodeStateAsUpdateV2(nil), nil))
			} else {
				check(e.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil))
			}
			if got := canon(e); got != want {
				t.Fatalf("seed %d: loaded, v2 %v\n got %s\nwant %s", seed, v2, got, want)
			}
		}
	}
}
