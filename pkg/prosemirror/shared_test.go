package prosemirror_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// replica is a shared document with the view of a test.
type replica struct {
	t testing.TB
	s *pm.Schema
	d *yjs.Doc
	f *yjs.XMLFragment
}

func newReplica(t testing.TB, s *pm.Schema, client uint64) *replica {
	d := yjs.New(yjs.Options{ClientID: client, GUID: "d"})
	return &replica{t: t, s: s, d: d, f: d.XMLFragment(pm.Field)}
}

// seeded returns a replica of doc.
func seeded(t testing.TB, s *pm.Schema, client uint64, doc *pm.Node) *replica {
	t.Helper()
	seed, err := s.Seed("seed", pm.Field, doc)
	if err != nil {
		t.Fatalf("Seed: %v", err)
	}
	r := newReplica(t, s, client)
	r.apply(seed)
	return r
}

func (r *replica) apply(update []byte) {
	r.t.Helper()
	if len(update) == 0 {
		return
	}
	if err := r.d.ApplyUpdate(update, "other"); err != nil {
		r.t.Fatalf("ApplyUpdate: %v", err)
	}
}

func (r *replica) read() *pm.Node { return r.s.Read(r.f) }

// transact returns the update that f produces, nil if none.
func (r *replica) transact(f func(*yjs.Txn)) (update []byte) {
	stop := r.d.OnUpdate(func(u *yjs.Update) { update = u.V1() })
	defer stop()
	r.d.Transact("test", f)
	return update
}

// write makes the document equal next and returns the update.
func (r *replica) write(next *pm.Node) (update []byte, w pm.Written) {
	r.t.Helper()
	update = r.transact(func(txn *yjs.Txn) {
		var err error
		if w, err = r.s.Write(txn, r.f, next); err != nil {
			r.t.Fatalf("Write: %v\nnext %s", err, show(next))
		}
	})
	if w.Changed != (update != nil) {
		r.t.Fatalf("Write says changed: %v, and made an update of %d bytes", w.Changed, len(update))
	}
	return update, w
}

// copy returns another replica with the same content.
func (r *replica) copy(client uint64) *replica {
	r.t.Helper()
	c := newReplica(r.t, r.s, client)
	c.apply(r.d.EncodeStateAsUpdate(nil))
	return c
}

// oneText checks that no element has adjacent texts. Empty ones do not count: editors leave
// them behind, and remove them with their next change.
func (r *replica) oneText(f *yjs.XMLFragment) {
	r.t.Helper()
	before := false
	f.Each(func(child any) bool {
		x, text := child.(*yjs.XMLText)
		if text && x.Text().Len() == 0 {
			return true
		}
		if text && before {
			r.t.Fatalf("two texts next to each other in %s", f)
		}
		before = text
		if e, ok := child.(*yjs.XMLElement); ok {
			r.oneText(e.Fragment())
		}
		return true
	})
}

// TestWriteOfRandomDocuments turns one random document into others.
func TestWriteOfRandomDocuments(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(200)) {
				g := newGenerator(s, seed)
				doc := g.doc()
				r := seeded(t, s, 1, doc)
				if got := r.read(); !got.Equal(doc) {
					t.Fatalf("seed %d: a seeded document: %s\n%s", seed, treeDiff(doc, got), show(doc))
				}
				for step := range 6 {
					next := s.Fit(g.mutate(doc))
					if step == 3 {
						next = g.doc()
					}
					update, _ := r.write(next)
					if got := r.read(); !got.Equal(next) {
						t.Fatalf("seed %d, step %d: the document after Write: %s\nwas  %s\nnext %s", seed, step, treeDiff(next, got), show(doc), show(next))
					}
					if (update == nil) != doc.Equal(next) {
						t.Fatalf("seed %d: an update of %d bytes, the documents are equal: %v", seed, len(update), doc.Equal(next))
					}
					if update, _ := r.write(next); update != nil {
						t.Fatalf("seed %d: writing the same again makes an update", seed)
					}
					r.oneText(r.f)
					doc = next
				}
			}
		})
	}
}

func TestSeedIsDeterministic(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for seed := range uint64(rounds(20)) {
		doc := newGenerator(s, seed).doc()
		var updates [][]byte
		for range 3 {
			u, err := s.Seed("doc_1", pm.Field, clone(doc))
			if err != nil {
				t.Fatal(err)
			}
			updates = append(updates, u)
		}
		if !bytes.Equal(updates[0], updates[1]) || !bytes.Equal(updates[1], updates[2]) {
			t.Fatalf("seed %d: the same document gives other updates", seed)
		}
		r := newReplica(t, s, 1)
		r.apply(updates[0])
		state := r.d.EncodeStateAsUpdate(nil)
		r.apply(updates[1])
		if !bytes.Equal(state, r.d.EncodeStateAsUpdate(nil)) {
			t.Fatalf("seed %d: seeding twice changes the document", seed)
		}
		if got := r.read(); !got.Equal(doc) {
			t.Fatalf("seed %d: %s", seed, treeDiff(doc, got))
		}
		for _, other := range []func() ([]byte, error){
			func() ([]byte, error) { return s.Seed("doc_2", pm.Field, doc) },
			func() ([]byte, error) {
				return s.Seed("doc_1", pm.Field, pm.Elem("doc", nil, append(slices.Clip(doc.Content), pm.Elem("paragraph", nil))...))
			},
		} {
			u, err := other()
			if err != nil {
				t.Fatal(err)
			}
			r := newReplica(t, s, 1)
			r.apply(updates[0])
			r.apply(u)
			if clients := len(r.d.StateVector()); clients != 2 {
				t.Fatalf("seed %d: another seed has the same client", seed)
			}
		}
	}
}

// treeDiff returns the first difference between two trees.
func treeDiff(want, got *pm.Node) string {
	var a, b any
	_ = json.Unmarshal([]byte(show(want)), &a)
	_ = json.Unmarshal([]byte(show(got)), &b)
	return firstDiff("", a, b)
}
