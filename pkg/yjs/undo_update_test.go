package yjs_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// replica returns a document with deleted content kept, after applying these states.
func replica(t testing.TB, states ...[]byte) *yjs.Doc {
	t.Helper()
	d := yjs.New(yjs.Options{KeepDeleted: true})
	for _, s := range states {
		if err := d.ApplyUpdate(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// did returns the update of f.
func did(d *yjs.Doc, f func()) (update []byte) {
	defer d.OnUpdate(func(u *yjs.Update) { update = u.V1() })()
	d.Transact(nil, func(*yjs.Txn) { f() })
	return update
}

// undo reverts an update in a document, using a replica with the state before.
func undo(t testing.TB, d *yjs.Doc, before, update []byte) (inverse []byte) {
	t.Helper()
	r := replica(t, before, d.EncodeStateAsUpdate(nil))
	stop := r.OnUpdate(func(u *yjs.Update) { inverse = u.V1() })
	defer stop()
	changed, err := r.UndoUpdate(update, nil)
	if err != nil || changed != (inverse != nil) {
		t.Fatalf("UndoUpdate = %v, %v, and an update of %d bytes", changed, err, len(inverse))
	}
	if inverse != nil {
		if err := d.ApplyUpdate(inverse, nil); err != nil {
			t.Fatal(err)
		}
	}
	return inverse
}

// TestUndoUpdate undoes an old edit of a text, with later edits of others around and inside it, and
// then redoes it.
func TestUndoUpdate(t *testing.T) {
	t.Parallel()
	d := fresh()
	text := d.Text("t")
	text.Insert(0, "one two three")
	before := d.EncodeStateAsUpdate(nil)
	update := did(d, func() {
		text.Delete(4, 3)
		text.Insert(4, "2 and more")
		check(text.Format(0, 3, yjs.Object{{Key: "bold", Value: true}}))
	})
	text.Insert(0, "zero ")
	text.Insert(text.Len(), " four")
	text.Insert(12, "...")
	text.Delete(0, 2)

	middle := d.EncodeStateAsUpdate(nil)
	inverse := undo(t, d, before, update)
	if got, want := canon(d), "ro one two... three four"; text.String() != want || strings.Contains(got, "bold") {
		t.Errorf("after undo: %s, want %s without formats", got, want)
	}
	text.Insert(text.Len(), "!")
	undo(t, d, middle, inverse)
	if delta := text.Delta(); text.String() != "ro one 2 a...nd more three four!" || len(delta) != 3 || delta[1].Insert != "one" || len(delta[1].Attributes) != 1 {
		t.Errorf("after redo: %v", delta)
	}
	if _, err := replica(t, d.EncodeStateAsUpdate(nil)).UndoUpdate(update, nil); !errors.Is(err, yjs.ErrGone) {
		t.Errorf("UndoUpdate without the state before = %v, want ErrGone", err)
	}
	if _, err := d.UndoUpdate([]byte{1, 1, 1}, nil); !errors.Is(err, yjs.ErrMalformed) {
		t.Errorf("UndoUpdate of malformed bytes = %v, want ErrMalformed", err)
	}
}

// TestUndoUpdateOfElements undoes the replacement of a paragraph by a list: the text that others
// wrote in the list stays, with the elements around it.
func TestUndoUpdateOfElements(t *testing.T) {
	t.Parallel()
	d := fresh()
	f := d.XMLFragment("f")
	element := func(name string, children ...any) *yjs.XMLElement {
		e := yjs.NewXMLElement(name)
		check(e.Push(children...))
		return e
	}
	p := element("p", yjs.NewXMLText("old"))
	check(f.Push(p, element("p", yjs.NewXMLText("last"))))
	check(p.SetAttribute("align", "left"))
	before := d.EncodeStateAsUpdate(nil)

	theirs := yjs.NewXMLText("two")
	item := element("li", theirs)
	check(item.SetAttribute("value", "2"))
	update := did(d, func() {
		check(f.Delete(0, 1))
		check(f.Insert(0, element("ul", element("li", yjs.NewXMLText("one")), item)))
	})
	theirs.Text().Insert(3, " and mine")
	inner, _ := f.Get(0)
	check(inner.(*yjs.XMLElement).SetAttribute("tight", "yes")) //nolint:forcetypeassert // it is an element
	middle := d.EncodeStateAsUpdate(nil)
	inverse := undo(t, d, before, update)
	if got, want := f.String(), `<ul tight="yes"><li value="2"> and mine</li></ul><p align="left">old</p><p>last</p>`; got != want {
		t.Errorf("after undo: %s, want %s", got, want)
	}
	undo(t, d, middle, inverse)
	if got, want := f.String(), `<ul tight="yes"><li>one</li><li value="2">two and mine</li></ul><p>last</p>`; got != want {
		t.Errorf("after redo: %s, want %s", got, want)
	}
}

// TestUndoUpdateIsUndo compares with an undo manager that observed everything, in random histories
// of two people and an agent.
func TestUndoUpdateIsUndo(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		d, other := yjs.New(yjs.Options{ClientID: 1}), yjs.New(yjs.Options{ClientID: 2})
		edit := func(d *yjs.Doc) {
			x := d.Text("t")
			switch at := rnd.IntN(x.Len() + 1); rnd.IntN(4) {
			case 0, 1:
				x.Insert(at, fmt.Sprint(" ", rnd.IntN(1000)))
			case 2:
				x.Delete(at, rnd.IntN(6))
			case 3:
				check(x.Format(at, rnd.IntN(6), yjs.Object{{Key: "b", Value: rnd.IntN(2) == 0}}))
			}
			check(d.Map("m").Set(fmt.Sprint(rnd.IntN(3)), rnd.IntN(100)))
		}
		edits := func(n int) {
			for range n {
				edit(d)
				check(other.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil))
				edit(other)
				check(d.ApplyUpdate(other.EncodeStateAsUpdate(nil), nil))
			}
		}
		edits(4)
		um, err := yjs.NewUndoManager(d, yjs.UndoOptions{Origins: []any{"agent"}})
		check(err)
		before := d.EncodeStateAsUpdate(nil)
		var update []byte
		stop := d.OnUpdate(func(u *yjs.Update) { update = u.V1() })
		d.Transact("agent", func(*yjs.Txn) {
			for range 3 {
				edit(d)
			}
		})
		stop()
		edits(rnd.IntN(4))

		r := replica(t, before, d.EncodeStateAsUpdate(nil))
		if _, err := r.UndoUpdate(update, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		um.Undo()
		um.Close()
		if got, want := canon(r), canon(d); got != want {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, got, want)
		}
	}
}
