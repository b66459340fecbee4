package yjs_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// TestCut checks that cutting texts before an edit changes neither the update nor the state.
func TestCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		first := yjs.New(yjs.Options{ClientID: 1})
		first.Transact(nil, func(*yjs.Txn) {
			for _, name := range []string{"a", "b", "c"} {
				first.Text(name).Insert(0, strings.Repeat("abc äöü 😀😀 ", 1+r.IntN(20)))
				first.Text(name).Delete(r.IntN(10), 1+r.IntN(3))
			}
		})
		type edit struct {
			text  string
			delta []yjs.Op
		}
		var edits []edit
		ats := map[string][]int{}
		for _, name := range []string{"c", "a"} {
			var delta []yjs.Op
			for at, most := 0, first.Text(name).Len(); ; {
				n := 1 + r.IntN(12)
				if at+n+1 > most {
					break
				}
				at += n
				op := yjs.Op{Delete: 1}
				switch r.IntN(4) {
				case 0:
					op = yjs.Op{Insert: "new"}
				case 1:
					op = yjs.Op{Retain: 1, Attributes: yjs.Object{{Key: "bold", Value: yjs.Object{}}}}
				}
				delta = append(delta, yjs.Op{Retain: n}, op)
				ats[name] = append(ats[name], at, at+op.Delete+op.Retain)
				at += op.Delete + op.Retain
			}
			edits = append(edits, edit{name, delta})
		}
		run := func(cut, write bool) (update, state []byte) {
			d := yjs.New(yjs.Options{ClientID: 2})
			if err := d.ApplyUpdate(first.EncodeStateAsUpdate(nil), nil); err != nil {
				t.Fatal(err)
			}
			d.OnUpdate(func(u *yjs.Update) { update = u.V1() })
			d.Transact(nil, func(txn *yjs.Txn) {
				if cut {
					txn.Cut([]yjs.Cut{{Text: d.Text("c"), At: ats["c"]}, {Text: d.Text("a"), At: ats["a"]}, {Text: d.Text("b"), At: []int{0, 1, 1, 1000}}})
				}
				for _, e := range edits {
					if !write {
						break
					}
					if err := d.Text(e.text).ApplyDelta(e.delta); err != nil {
						t.Fatal(err)
					}
				}
			})
			return update, d.EncodeStateAsUpdateV2(nil)
		}
		update, state := run(false, true)
		cutUpdate, cutState := run(true, true)
		if !bytes.Equal(update, cutUpdate) || !bytes.Equal(state, cutState) {
			t.Fatalf("seed %d: an update of %d bytes and a state of %d, without cuts %d and %d", seed, len(cutUpdate), len(cutState), len(update), len(state))
		}
		_, before := run(false, false)
		if update, after := run(true, false); update != nil || !bytes.Equal(before, after) {
			t.Fatalf("seed %d: a cut alone makes an update of %d bytes, and the state has %d and not %d", seed, len(update), len(after), len(before))
		}
	}
}

// TestFragmentNodes edits children by node and by index.
func TestFragmentNodes(t *testing.T) {
	t.Parallel()
	by := func(f func(d *yjs.Doc, list *yjs.XMLFragment)) ([]byte, string) {
		d := yjs.New(yjs.Options{ClientID: 1})
		list := d.XMLFragment("x")
		d.Transact(nil, func(*yjs.Txn) {
			if err := list.Push(yjs.NewXMLElement("a"), yjs.NewXMLText("b"), "value", yjs.NewXMLElement("c")); err != nil {
				t.Fatal(err)
			}
		})
		d.Transact(nil, func(*yjs.Txn) { f(d, list) })
		return d.EncodeStateAsUpdate(nil), list.String()
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	get := func(f *yjs.XMLFragment, i int) any {
		c, _ := f.Get(i)
		return c
	}
	want, xml := by(func(_ *yjs.Doc, f *yjs.XMLFragment) {
		must(f.Delete(3, 1))
		must(f.Insert(2, yjs.NewXMLElement("d"), yjs.NewXMLElement("e")))
		must(f.Delete(0, 2))
		must(f.Insert(0, yjs.NewXMLElement("f")))
	})
	got, gotXML := by(func(_ *yjs.Doc, f *yjs.XMLFragment) {
		a, b := get(f, 0), get(f, 1)
		must(f.Remove(get(f, 3)))
		must(f.InsertAfter(b, yjs.NewXMLElement("d"), yjs.NewXMLElement("e")))
		if next, ok := f.Next(a); !ok || next != b {
			t.Errorf("Next(a) = %v, %v, want b", next, ok)
		}
		must(f.Remove(a, b, a))
		must(f.InsertAfter(nil, yjs.NewXMLElement("f")))
	})
	if !bytes.Equal(got, want) || gotXML != xml {
		t.Errorf("by node %s, by index %s", gotXML, xml)
	}
	by(func(d *yjs.Doc, f *yjs.XMLFragment) {
		a, other := get(f, 0), yjs.NewXMLElement("other")
		must(d.XMLFragment("y").Push(other))
		must(f.Remove(a))
		for name, err := range map[string]error{
			"InsertAfter what was deleted":         f.InsertAfter(a, yjs.NewXMLElement("x")),
			"InsertAfter another fragment's child": f.InsertAfter(other, yjs.NewXMLElement("x")),
			"InsertAfter what is nowhere":          f.InsertAfter(yjs.NewXMLElement("x"), yjs.NewXMLElement("x")),
			"InsertAfter a root":                   f.InsertAfter(f, yjs.NewXMLElement("x")),
			"InsertAfter a value":                  f.InsertAfter("value", yjs.NewXMLElement("x")),
			"Remove of nil":                        f.Remove(nil),
			"Remove of another's":                  f.Remove(get(f, 0), other),
			"InsertAfter in none":                  yjs.NewXMLFragment().InsertAfter(nil, yjs.NewXMLElement("x")),
		} {
			if err == nil {
				t.Errorf("%s has no error", name)
			}
		}
		if next, ok := f.Next(get(f, 2)); ok {
			t.Errorf("Next of the last = %v", next)
		}
		if next, ok := f.Next(get(f, 0)); !ok || next != "value" {
			t.Errorf("Next = %v, %v, want value", next, ok)
		}
		if f.Len() != 3 {
			t.Errorf("%d children, want 3", f.Len())
		}
	})
}
