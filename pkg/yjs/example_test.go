package yjs_test

import (
	"fmt"

	"signalbox.dev/pkg/yjs"
)

// Two replicas edit at once, exchange what the other lacks, and converge.
func Example() {
	a := yjs.New(yjs.Options{ClientID: 1})
	b := yjs.New(yjs.Options{ClientID: 2})
	a.Text("title").Insert(0, "Hello")
	b.Text("title").Insert(0, "World")

	toB := a.EncodeStateAsUpdate(b.StateVector())
	toA := b.EncodeStateAsUpdate(a.StateVector())
	if err := a.ApplyUpdate(toA, "network"); err != nil {
		fmt.Println(err)
	}
	if err := b.ApplyUpdate(toB, "network"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(a.Text("title"), b.Text("title"))
	// Output: HelloWorld HelloWorld
}

// A server broadcasts the update of every transaction.
func ExampleDoc_OnUpdate() {
	server := yjs.New(yjs.Options{ClientID: 1})
	reader := yjs.New(yjs.Options{ClientID: 2})
	stop := server.OnUpdate(func(u *yjs.Update) {
		if err := reader.ApplyUpdate(u.V1(), u.Origin); err != nil {
			fmt.Println(err)
		}
	})
	defer stop()
	server.Transact("rest", func(*yjs.Txn) {
		p := yjs.NewXMLElement("paragraph")
		_ = p.Push(yjs.NewXMLText("one"))
		_ = server.XMLFragment("default").Push(p)
	})
	fmt.Println(reader.XMLFragment("default"))
	// Output: <paragraph>one</paragraph>
}

func ExampleText_Format() {
	d := yjs.New(yjs.Options{ClientID: 1})
	t := d.Text("t")
	t.Insert(0, "plain bold")
	_ = t.Format(6, 4, yjs.Object{{Key: "bold", Value: true}})
	for _, op := range t.Delta() {
		fmt.Printf("%q %v\n", op.Insert, op.Attributes)
	}
	// Output:
	// "plain " []
	// "bold" [{bold true}]
}

func ExampleText_Observe() {
	d := yjs.New(yjs.Options{ClientID: 1})
	t := d.Text("t")
	t.Insert(0, "Hello World")
	t.Observe(func(e *yjs.Event) {
		for _, op := range e.Delta() {
			fmt.Printf("retain %d, delete %d, insert %v\n", op.Retain, op.Delete, op.Insert)
		}
	})
	d.Transact(nil, func(*yjs.Txn) {
		t.Delete(6, 5)
		t.Insert(6, "Go")
	})
	// Output:
	// retain 6, delete 0, insert <nil>
	// retain 0, delete 5, insert <nil>
	// retain 0, delete 0, insert Go
}

// Updates can be merged and reduced without a document.
func ExampleMergeUpdates() {
	d := yjs.New(yjs.Options{ClientID: 1})
	var updates [][]byte
	d.OnUpdate(func(u *yjs.Update) { updates = append(updates, u.V1()) })
	_ = d.Map("m").Set("a", 1)
	_ = d.Map("m").Set("b", "two")

	merged, err := yjs.MergeUpdates(updates)
	if err != nil {
		fmt.Println(err)
	}
	sv, err := yjs.StateVectorFromUpdate(merged)
	fmt.Println(sv, err)
	e := yjs.New(yjs.Options{ClientID: 2})
	if err := e.ApplyUpdate(merged, nil); err != nil {
		fmt.Println(err)
	}
	fmt.Println(yjs.ToJSON(e.Map("m")))
	// Output:
	// map[1:2] <nil>
	// [{a 1} {b two}]
}

// A caret stays with its neighbour.
func ExampleDoc_RelativePosition() {
	d := yjs.New(yjs.Options{ClientID: 1})
	t := d.Text("t")
	t.Insert(0, "Hello World")
	caret, err := d.RelativePosition(t, 6, 0)
	if err != nil {
		fmt.Println(err)
	}
	t.Insert(0, "Oh! ")
	_, index, _ := d.AbsolutePosition(caret)
	fmt.Println(index)
	// Output: 10
}

// An agent's edits are undone as a unit; those of others stay.
func ExampleUndoManager() {
	d := yjs.New(yjs.Options{ClientID: 1})
	t := d.Text("t")
	undo, err := yjs.NewUndoManager(d, yjs.UndoOptions{Origins: []any{"agent"}})
	if err != nil {
		fmt.Println(err)
	}
	defer undo.Close()
	t.Insert(0, "mine ")
	d.Transact("agent", func(*yjs.Txn) {
		t.Insert(5, "theirs")
		t.Delete(0, 1)
	})
	undo.Undo()
	fmt.Printf("%q\n", t)
	// Output: "mine "
}

func ExampleDoc_Snapshot() {
	d := yjs.New(yjs.Options{ClientID: 1, KeepDeleted: true})
	d.Text("t").Insert(0, "first version")
	snapshot := d.Snapshot()
	d.Text("t").Delete(0, 6)
	old, err := d.Restore(snapshot, yjs.Options{})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(d.Text("t"), "/", old.Text("t"))
	// Output: version / first version
}
