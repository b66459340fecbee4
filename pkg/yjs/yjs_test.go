package yjs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/yjs"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	text, m, a := d.Text("t"), d.Map("m"), d.Array("a")
	text.Insert(0, "hello")
	check(m.Set("k", 1))
	var ops, arrayOps []yjs.Op
	var keys []yjs.KeyChange
	var paths [][]any
	text.Observe(func(e *yjs.Event) { ops = e.Delta() })
	a.Observe(func(e *yjs.Event) { arrayOps = e.Delta() })
	m.Observe(func(e *yjs.Event) { keys = e.Keys() })
	stop := m.ObserveDeep(func(es []*yjs.Event) {
		for _, e := range es {
			paths = append(paths, e.Path())
		}
	})
	var roots []string
	d.OnTransaction(func(t *yjs.Txn) { roots = t.ChangedRoots() })

	for i, want := range []int{5, 6} { // the second extends the item of the first
		text.Insert(5+i, "!")
		if diff := cmp.Diff([]yjs.Op{{Retain: want}, {Insert: "!"}}, ops); diff != "" {
			t.Errorf("delta of typing: %s", diff)
		}
	}
	d.Transact(nil, func(*yjs.Txn) {
		text.Delete(1, 2)
		check(text.Format(0, 1, yjs.Object{{Key: "bold", Value: true}}))
		check(a.Insert(0, 1, "x"))
		check(m.Set("k", 2))
		check(m.Set("new", yjs.NewMap()))
	})
	bold := yjs.Object{{Key: "bold", Value: true}}
	if diff := cmp.Diff([]yjs.Op{{Retain: 1, Attributes: bold}, {Delete: 2}}, ops); diff != "" {
		t.Errorf("delta of formatting and deleting: %s", diff)
	}
	if diff := cmp.Diff([]yjs.Op{{Insert: []any{1.0, "x"}}}, arrayOps); diff != "" {
		t.Errorf("delta of an array: %s", diff)
	}
	want := []yjs.KeyChange{{Key: "k", Action: yjs.Updated, Old: 1.0}, {Key: "new", Action: yjs.Added}}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("keys: %s", diff)
	}
	if diff := cmp.Diff([]string{"t", "a", "m"}, roots); diff != "" {
		t.Errorf("changed roots: %s", diff)
	}
	paths = nil
	inner, _ := m.Get("new")
	check(inner.(*yjs.Map).Set("deep", true))
	if diff := cmp.Diff([][]any{{"m", "new"}}, paths); diff != "" {
		t.Errorf("path: %s", diff)
	}
	stop()
	check(inner.(*yjs.Map).Set("deep", false))
	if len(paths) != 1 {
		t.Errorf("an observer was called after it stopped")
	}
}

// TestEventsOfUpdates rebuilds a text from the deltas of remote updates.
func TestEventsOfUpdates(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		_, updates := write(seed+500, 40)
		d := fresh()
		mirror := yjs.New(yjs.Options{ClientID: 3})
		d.Text("t").Observe(func(e *yjs.Event) {
			delta := e.Delta()
			for i, op := range delta {
				if _, ok := op.Insert.(string); op.Insert != nil && !ok {
					delta[i].Insert = 1 // a shared type cannot be in two documents
				}
			}
			check(mirror.Text("t").ApplyDelta(delta))
		})
		for _, u := range updates {
			check(d.ApplyUpdate(u, nil))
		}
		if got, want := mirror.Text("t").String(), d.Text("t").String(); got != want {
			t.Fatalf("seed %d: rebuilt %q, want %q", seed, got, want)
		}
		if got, want := mirror.Text("t").Len(), d.Text("t").Len(); got != want {
			t.Fatalf("seed %d: rebuilt length %d, want %d", seed, got, want)
		}
	}
}

func TestObserverThatEdits(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	text, m := d.Text("t"), d.Map("m")
	var updates [][]byte
	d.OnUpdate(func(u *yjs.Update) { updates = append(updates, u.V1()) })
	text.Observe(func(*yjs.Event) { check(m.Set("len", text.Len())) })
	text.Insert(0, "abc")
	text.Insert(3, "d")
	e := yjs.New(yjs.Options{ClientID: 2})
	for _, u := range updates {
		check(e.ApplyUpdate(u, nil))
	}
	if got, _ := e.Map("m").Get("len"); got != 4.0 || len(updates) != 4 {
		t.Errorf("len = %v after %d updates, want 4 after 4", got, len(updates))
	}
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1, KeepDeleted: true})
	text := d.Text("t")
	text.Insert(0, "hello world")
	s := d.Snapshot()
	before := d.EncodeStateAsUpdate(nil)
	text.Delete(0, 6)
	text.Insert(5, "!")
	if got := text.DeltaAt(s); len(got) != 1 || got[0].Insert != "hello world" {
		t.Errorf("DeltaAt = %v, want hello world", got)
	}
	old, err := d.Restore(s, yjs.Options{ClientID: 2})
	if err != nil || old.Text("t").String() != "hello world" {
		t.Errorf("Restore = %q, %v", old.Text("t"), err)
	}
	if ok, err := s.Contains(before); !ok || err != nil {
		t.Errorf("Contains(previous state) = %v, %v", ok, err)
	}
	if ok, _ := s.Contains(d.EncodeStateAsUpdate(nil)); ok {
		t.Errorf("Contains(later state) = true")
	}
	if text.String() != "world!" {
		t.Errorf("text = %q, want world!", text)
	}
	if _, err := yjs.New(yjs.Options{}).Restore(s, yjs.Options{}); !errors.Is(err, yjs.ErrGone) {
		t.Errorf("Restore of a collected document: %v, want ErrGone", err)
	}
}

func TestRelativePositions(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	text := d.Text("t")
	text.Insert(0, "hello world")
	for _, assoc := range []int{0, -1} {
		for index := 0; index <= text.Len(); index++ {
			p, err := d.RelativePosition(text, index, assoc)
			if err != nil {
				t.Fatal(err)
			}
			again, err := yjs.DecodeRelativePosition(p.Encode())
			if err != nil {
				t.Fatal(err)
			}
			if _, got, ok := d.AbsolutePosition(again); !ok || got != index {
				t.Errorf("position %d, assoc %d: got %d, %v", index, assoc, got, ok)
			}
			j, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			var q yjs.RelativePosition
			if err := json.Unmarshal(j, &q); err != nil {
				t.Fatal(err)
			}
			if _, got, ok := d.AbsolutePosition(q); !ok || got != index {
				t.Errorf("position %d by JSON %s: got %d, %v", index, j, got, ok)
			}
		}
	}
	p, err := d.RelativePosition(text, 6, 0)
	if err != nil {
		t.Fatal(err)
	}
	text.Insert(0, "oh, ")
	if _, got, _ := d.AbsolutePosition(p); got != 10 {
		t.Errorf("position after an insertion before it = %d, want 10", got)
	}
	want := `{"type":null,"tname":"t","item":{"client":1,"clock":6},"assoc":0}`
	if j, _ := json.Marshal(p); string(j) != want {
		t.Errorf("JSON = %s, want %s", j, want)
	}
}

func TestUndoKeepsOtherAuthorsEdits(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	text := d.Text("t")
	now := time.Unix(1, 0)
	um, err := yjs.NewUndoManager(d, yjs.UndoOptions{
		Scope: []any{text}, Origins: []any{"agent"}, CaptureTimeout: time.Second, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer um.Close()
	text.Insert(0, "theirs ")
	d.Transact("agent", func(*yjs.Txn) { text.Insert(7, "ours") })
	d.Transact("agent", func(*yjs.Txn) { text.Delete(0, 3) })
	text.Insert(8, "!")
	if !um.Undo() || text.String() != "theirs !" {
		t.Errorf("after undo: %q, want %q", text, "theirs !")
	}
	if !um.Redo() || text.String() != "irs ours!" {
		t.Errorf("after redo: %q, want %q", text, "irs ours!")
	}
	if um.CanRedo() || !um.CanUndo() {
		t.Errorf("CanRedo = %v, CanUndo = %v", um.CanRedo(), um.CanUndo())
	}
}

func TestCharactersStayWhole(t *testing.T) {
	t.Parallel()
	const family = "👨‍👩‍👧"
	tests := []struct {
		name, text string
		edit       func(*yjs.Text)
		want       string
	}{
		{"insert in a pair", "a😀b", func(x *yjs.Text) { x.Insert(2, "-") }, "a-😀b"},
		{"delete half a pair", "a😀b", func(x *yjs.Text) { x.Delete(2, 1) }, "ab"},
		{"insert in a joined emoji", family, func(x *yjs.Text) { x.Insert(3, "-") }, "-" + family},
		{"delete a part of a joined emoji", "x" + family, func(x *yjs.Text) { x.Delete(4, 1) }, "x"},
		{"insert before an accent", "e\u0301x", func(x *yjs.Text) { x.Insert(1, "-") }, "-e\u0301x"},
		{"insert in a flag", "🇩🇪🇫🇷", func(x *yjs.Text) { x.Insert(2, "-") }, "-🇩🇪🇫🇷"},
		{"insert between flags", "🇩🇪🇫🇷", func(x *yjs.Text) { x.Insert(4, "-") }, "🇩🇪-🇫🇷"},
		{"insert past the end", "ab", func(x *yjs.Text) { x.Insert(99, "c") }, "abc"},
		{"delete past the end", "abc", func(x *yjs.Text) { x.Delete(1, 99) }, "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := yjs.New(yjs.Options{ClientID: 1})
			d.Text("t").Insert(0, tt.text)
			tt.edit(d.Text("t"))
			if got := d.Text("t").String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	// 300,000 structs of length 1 in 27 bytes.
	bomb := []byte{0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 4, 0x41, 0xde, 0xa7, 0x12, 1, 0xe0, 0xa7, 0x12, 0, 0}
	clients := []byte{0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 2}
	tests := []struct {
		name   string
		limits yjs.Limits
		update []byte
	}{
		{"structs for their size", yjs.Limits{}, bomb},
		{"structs", yjs.Limits{MaxStructs: 100}, bomb},
		{"clients", yjs.Limits{MaxClients: 1}, clients},
		{"values", yjs.Limits{MaxValues: 10}, func() []byte {
			d := yjs.New(yjs.Options{ClientID: 1})
			check(d.Array("a").Push(make([]any, 20)...))
			return d.EncodeStateAsUpdateV2(nil)
		}()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := yjs.New(yjs.Options{Limits: tt.limits})
			if err := d.ApplyUpdateV2(tt.update, nil); !errors.Is(err, yjs.ErrBudget) {
				t.Errorf("ApplyUpdateV2 = %v, want ErrBudget", err)
			}
			if len(d.StateVector()) != 0 {
				t.Errorf("the document is not empty: %v", d.StateVector())
			}
		})
	}
}

// TestScanBudget stops an integration midway: the document stays valid, and accepts the rest when
// the update is sent again.
func TestScanBudget(t *testing.T) {
	t.Parallel()
	var us [][]byte
	for id := range uint64(2) {
		d := yjs.New(yjs.Options{ClientID: id + 1})
		// Every other character is inserted at the start, so no place is like the previous one.
		for i := range 400 {
			d.Text("t").Insert(0, strings.Repeat("x", 1+i%2))
			d.Text("t").Insert(0, "y")
			d.Text("t").Delete(1, 1)
		}
		us = append(us, d.EncodeStateAsUpdate(nil))
	}
	third := yjs.New(yjs.Options{ClientID: 3})
	check(third.ApplyUpdate(us[0], nil))
	third.Text("t").Insert(0, "z")
	us = append(us, third.EncodeStateAsUpdate(nil))
	d := yjs.New(yjs.Options{ClientID: 9, Limits: yjs.Limits{MaxScan: 20}})
	check(d.ApplyUpdate(us[0], nil))
	if err := d.ApplyUpdate(us[1], nil); !errors.Is(err, yjs.ErrBudget) {
		t.Fatalf("ApplyUpdate = %v, want ErrBudget", err)
	}
	e := yjs.New(yjs.Options{ClientID: 9})
	check(e.ApplyUpdate(d.EncodeStateAsUpdate(nil), nil))
	check(e.ApplyUpdate(us[1], nil))
	f := yjs.New(yjs.Options{ClientID: 9})
	check(f.ApplyUpdate(us[0], nil))
	check(f.ApplyUpdate(us[1], nil))
	if e.Text("t").String() != f.Text("t").String() {
		t.Errorf("the replica does not converge after the stop")
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	d.Text("t").Insert(0, "hello")
	whole := d.EncodeStateAsUpdate(nil)
	for n := range len(whole) {
		e := yjs.New(yjs.Options{ClientID: 2})
		if err := e.ApplyUpdate(whole[:n], nil); !errors.Is(err, yjs.ErrMalformed) {
			t.Errorf("ApplyUpdate of the first %d bytes = %v, want ErrMalformed", n, err)
		}
		if len(e.StateVector()) != 0 {
			t.Errorf("the first %d bytes changed the document", n)
		}
	}
}

func TestDetached(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	m := yjs.NewMap()
	check(d.Array("a").Push(m))
	if err := d.Array("a").Push(m); !errors.Is(err, yjs.ErrDetached) {
		t.Errorf("inserting a type twice = %v, want ErrDetached", err)
	}
	check(d.Array("a").Delete(0, 1))
	if err := m.Set("k", 1); !errors.Is(err, yjs.ErrDetached) {
		t.Errorf("editing a deleted type = %v, want ErrDetached", err)
	}
	if err := d.Array("a").Insert(1, 1); !errors.Is(err, yjs.ErrRange) {
		t.Errorf("Insert(1) into an empty type = %v, want ErrRange", err)
	}
	if err := d.Map("m").Set("k", struct{}{}); !errors.Is(err, yjs.ErrValue) {
		t.Errorf("Set of a struct = %v, want ErrValue", err)
	}
}

// TestDeepNesting deletes and collects a document that is nested too deeply for recursion.
func TestDeepNesting(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	at := yjs.NewArray()
	check(d.Array("a").Push(at))
	d.Transact(nil, func(*yjs.Txn) {
		for range 200_000 {
			next := yjs.NewArray()
			check(at.Push(next))
			at = next
		}
	})
	_ = yjs.ToJSON(d.Array("a"))
	check(d.Array("a").Delete(0, 1))
	if got := len(d.EncodeStateAsUpdate(nil)); got > 40 {
		t.Errorf("the state after the deletion has %d bytes", got)
	}
}

func TestUpdateSpan(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 7})
	var updates, updatesV2 [][]byte
	d.OnUpdate(func(u *yjs.Update) {
		updates, updatesV2 = append(updates, slices.Clone(u.V1())), append(updatesV2, slices.Clone(u.V2()))
	})
	text := d.Text("t")
	for _, s := range []string{"abc", "d", "ef"} {
		text.Insert(text.Len(), s)
	}
	text.Delete(0, 1)
	for i, want := range [][2]yjs.StateVector{
		{{7: 0}, {7: 3}}, {{7: 3}, {7: 4}}, {{7: 4}, {7: 6}}, {{}, {}},
	} {
		for version, span := range map[string]func() (yjs.StateVector, yjs.StateVector, error){
			"v1": func() (yjs.StateVector, yjs.StateVector, error) { return yjs.UpdateSpan(updates[i]) },
			"v2": func() (yjs.StateVector, yjs.StateVector, error) { return yjs.UpdateSpanV2(updatesV2[i]) },
		} {
			from, to, err := span()
			if diff := cmp.Diff(want, [2]yjs.StateVector{from, to}); err != nil || diff != "" {
				t.Errorf("span of update %d, %s: %v\n%s", i, version, err, diff)
			}
		}
	}
	if _, _, err := yjs.UpdateSpan([]byte{1, 1}); !errors.Is(err, yjs.ErrMalformed) {
		t.Errorf("UpdateSpan of half an update = %v, want %v", err, yjs.ErrMalformed)
	}
}

// TestDenseStates loads a state with thousands of structs per byte in encoding v2.
func TestDenseStates(t *testing.T) {
	t.Parallel()
	d := yjs.New(yjs.Options{ClientID: 1})
	text := d.Text("t")
	for range 40_000 {
		text.Insert(0, "x")
	}
	text.Delete(0, text.Len())
	state := d.EncodeStateAsUpdateV2(nil)
	if err := yjs.New(yjs.Options{}).ApplyUpdateV2(state, nil); !errors.Is(err, yjs.ErrBudget) {
		t.Errorf("ApplyUpdateV2 of %d untrusted bytes = %v, want %v", len(state), err, yjs.ErrBudget)
	}
	own := yjs.New(yjs.Options{Limits: yjs.Limits{Dense: true}})
	if err := own.ApplyUpdateV2(state, nil); err != nil {
		t.Fatalf("ApplyUpdateV2 of our own state: %v", err)
	}
	if got := own.EncodeStateAsUpdateV2(nil); !bytes.Equal(got, state) {
		t.Errorf("the loaded state has %d bytes, want the same %d", len(got), len(state))
	}
	own.SetLimits(yjs.Limits{})
	if err := own.ApplyUpdateV2(state, nil); !errors.Is(err, yjs.ErrBudget) {
		t.Errorf("after SetLimits, ApplyUpdateV2 = %v, want %v", err, yjs.ErrBudget)
	}
}
