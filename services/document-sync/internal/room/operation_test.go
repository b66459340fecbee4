package room_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// operation returns an operation that commits like the service.
func operation(m *memory, ref store.Ref, edit func(*yjs.Doc) error) room.Operation {
	return room.Operation{
		Origin: "agent",
		Edit:   edit,
		Commit: func(ctx context.Context, e room.Edited) (int64, bool, error) {
			if e.Update == nil {
				return 0, false, nil
			}
			seq, err := m.Append(ctx, ref, store.Author{}, e.Update)
			return seq, false, err
		},
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		w.losing(1) // an operation catches up by itself
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		a, b := join(t, h1, ref), join(t, h2, ref)
		a.write(0, "one")
		settle(a)
		var seen string
		err := h2.Do(t.Context(), ref, operation(m, ref, func(d *yjs.Doc) error {
			seen = d.Text("t").String()
			d.Text("t").Insert(d.Text("t").Len(), " two")
			return nil
		}))
		if err != nil || seen != "one" {
			t.Fatalf("Do() = %v and saw %q, want %q", err, seen, "one")
		}
		equal(t, "b", b.text(), "one two")
		if err := h1.Read(t.Context(), ref, func(d *yjs.Doc, _ int64) error { seen = d.Text("t").String(); return nil }); err != nil || seen != "one two" {
			t.Errorf("Read() = %v and saw %q, want %q", err, seen, "one two")
		}
		settle(a)
		equal(t, "a", a.text(), "one two")
	})
}

func TestOperationNotCommitted(t *testing.T) {
	t.Parallel()
	refused := fault.New(fault.Invalid, "no")
	commit := func(done bool, err error) func(context.Context, room.Edited) (int64, bool, error) {
		return func(context.Context, room.Edited) (int64, bool, error) { return 0, done, err }
	}
	write := func(d *yjs.Doc) error { return d.Array("bad").Push("BAD") }
	for _, tt := range []struct {
		name  string
		op    room.Operation
		want  error
		loads int
	}{
		{"commit fails", room.Operation{Edit: write, Commit: commit(false, errDown)}, errDown, 2},
		{"was done before", room.Operation{Edit: write, Commit: commit(true, nil)}, nil, 2},
		{"edit fails", room.Operation{Edit: func(d *yjs.Doc) error { return errors.Join(write(d), refused) }, Commit: commit(false, nil)}, refused, 2},
		{"edit fails before", room.Operation{Edit: func(*yjs.Doc) error { return refused }, Commit: commit(false, nil)}, refused, 1},
		{"nothing to change", room.Operation{Edit: func(*yjs.Doc) error { return nil }, Commit: commit(false, errDown)}, errDown, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				h, stop := open(t, room.Config{Store: m})
				defer stop()
				a, b := join(t, h, ref), join(t, h, ref)
				a.write(0, "good")
				settle(a, b)
				if err := h.Do(t.Context(), ref, tt.op); !errors.Is(err, tt.want) {
					t.Errorf("Do() = %v, want %v", err, tt.want)
				}
				b.write(4, "!")
				settle(a, b)
				equal(t, "a", a.text(), "good!")
				equal(t, "late", join(t, h, ref).text(), "good!")
				equal(t, "loads", m.count("Load"), tt.loads)
			})
		})
	}
}

// TestOperationRefused checks that an operation that cannot be computed, or does not fit, is
// passed to Refused: it may have been committed before.
func TestOperationRefused(t *testing.T) {
	t.Parallel()
	broken := errors.New("cannot be computed")
	for name, tt := range map[string]struct {
		edit func(*yjs.Doc) error
		why  fault.Kind
	}{
		"the document is full": {func(d *yjs.Doc) error { d.Text("t").Insert(0, big(50)); return nil }, fault.TooLarge},
		"edit fails":           {func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return broken }, fault.Internal},
		"edit fails before":    {func(*yjs.Doc) error { return broken }, fault.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				h, stop := open(t, room.Config{Store: m, DocumentBytes: 40 << 10})
				defer stop()
				a := join(t, h, ref)
				a.write(0, "good")
				settle(a)
				for _, want := range []error{nil, broken} {
					var why error
					op := operation(m, ref, tt.edit)
					op.Refused = func(_ context.Context, err error) error { why = err; return want }
					if err := h.Do(t.Context(), ref, op); !errors.Is(err, want) {
						t.Errorf("Do() = %v, want %v", err, want)
					}
					equal(t, "why", fault.KindOf(why), tt.why)
				}
				a.write(4, "!")
				settle(a)
				equal(t, "late", join(t, h, ref).text(), "good!")
				equal(t, "stored", m.text(t, ref), "good!")
			})
		})
	}
}

// TestOperationEditPanics checks that a panicking operation has no effect, wherever the panic is
// recovered.
func TestOperationEditPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		for _, op := range []room.Operation{
			{Edit: func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); panic("edit") }},
			{
				Edit:   func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return nil },
				Commit: func(context.Context, room.Edited) (int64, bool, error) { panic("commit") },
			},
		} {
			func() {
				defer func() { _ = recover() }()
				_ = h.Do(t.Context(), ref, op)
			}()
			a.write(0, "x")
			settle(a)
		}
		equal(t, "late", join(t, h, ref).text(), "xx")
		equal(t, "stored", m.text(t, ref), "xx")
	})
}

// TestUpdateLostDuringPostgresOutage checks that nothing is lost while a discarded doc cannot be reloaded.
func TestUpdateLostDuringPostgresOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h, stop := open(t, room.Config{Store: m, Bus: w})
		defer stop()
		other, stopOther := open(t, room.Config{Store: m, Bus: w})
		defer stopOther()
		a, b, c := join(t, h, ref), join(t, h, ref), join(t, other, ref)
		a.write(0, "1")
		settle(a, b, c)
		m.failing("Load", errDown)
		err := h.Do(t.Context(), ref, room.Operation{
			Edit:   func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return nil },
			Commit: func(context.Context, room.Edited) (int64, bool, error) { return 0, false, errDown },
		})
		if !errors.Is(err, errDown) {
			t.Fatalf("Do() = %v", err)
		}
		w.losing(1)
		a.write(1, "2")
		c.write(1, "3")
		pass(5 * time.Second)
		settle(a, b, c)
		equal(t, "b", b.text(), "1")
		m.failing("Load", nil)
		pass(20 * time.Second)
		settle(a, b, c)
		if s := m.text(t, ref); len(s) != 3 || a.text() != s || b.text() != s || c.text() != s {
			t.Errorf("texts = %q, %q, %q, want %q", a.text(), b.text(), c.text(), s)
		}
		// After a while the peers are closed.
		m.failing("Load", errDown)
		_ = h.Do(t.Context(), ref, room.Operation{
			Edit:   func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return nil },
			Commit: func(context.Context, room.Edited) (int64, bool, error) { return 0, false, errDown },
		})
		pass(2 * time.Minute)
		equal(t, "code", a.closed(), room.CloseBusy)
	})
}
