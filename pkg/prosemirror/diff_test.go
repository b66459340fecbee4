package prosemirror_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pm "signalbox.dev/pkg/prosemirror"
)

// checkDiff checks that the changes turn old into next.
func checkDiff(t *testing.T, s *pm.Schema, old, next *pm.Node) []pm.Op {
	t.Helper()
	ops := s.Diff(old, next)
	got, err := pm.Apply(old, ops)
	if err != nil {
		t.Fatalf("Apply: %v\nold  %s\nnext %s\nops  %s", err, show(old), show(next), showOps(ops))
	}
	// The order of marks is the schema's.
	if got = s.Fit(got); !got.Equal(next) {
		t.Fatalf("the changes give another document: %s\nold  %s\nnext %s\nops  %s", cmp.Diff(next, got), show(old), show(next), showOps(ops))
	}
	return ops
}

func showOps(ops []pm.Op) string {
	var b strings.Builder
	for _, op := range ops {
		j, _ := json.Marshal(op)
		b.WriteString("\n  ")
		b.Write(j)
	}
	return b.String()
}

// size is the approximate cost of changes in bytes of an update: their text, and ten bytes
// per change.
func size(ops []pm.Op) int {
	n := 0
	for _, op := range ops {
		switch op := op.(type) {
		case pm.InsertNodes:
			for _, node := range op.Nodes {
				n += nodeSize(node)
			}
		case pm.DeleteNodes:
			n += 3
		case pm.SetAttr:
			n += 10
		case pm.EditText:
			for _, s := range op.Delta {
				if s.Insert != "" {
					n += 10 + len(s.Insert)
				} else {
					n += 20 * (len(s.Format) + len(s.Unformat))
				}
				if s.Delete > 0 {
					n += 3
				}
			}
		}
	}
	return n
}

func nodeSize(n *pm.Node) int {
	size := 10 + len(n.Text) + 10*len(n.Attrs) + 20*len(n.Marks)
	for _, c := range n.Content {
		size += nodeSize(c)
	}
	return size
}

func TestDiffOfRandomDocuments(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(200)) {
				g := newGenerator(s, seed)
				old := g.doc()
				if ops := s.Diff(old, clone(old)); len(ops) > 0 {
					t.Fatalf("seed %d: a document differs from itself: %s", seed, showOps(ops))
				}
				checkDiff(t, s, old, g.doc())
				next := old
				for range 1 + g.IntN(5) {
					next = s.Fit(g.mutate(next))
				}
				checkDiff(t, s, old, next)
			}
		})
	}
}

func clone(n *pm.Node) *pm.Node {
	c := *n
	c.Content = nil
	for _, k := range n.Content {
		c.Content = append(c.Content, clone(k))
	}
	return &c
}

// mutate returns n with one random change.
func (g *generator) mutate(n *pm.Node) *pm.Node {
	if n.IsText() {
		i := g.IntN(len(n.Text) + 1)
		for i < len(n.Text) && n.Text[i]&0xc0 == 0x80 {
			i++
		}
		if g.IntN(3) == 0 {
			return pm.Text(n.Text, g.marks()...)
		}
		return pm.Text(n.Text[:i]+g.text(2)+n.Text[i:], n.Marks...)
	}
	children := slices.Clone(n.Content)
	if len(children) == 0 || g.IntN(4) == 0 {
		switch {
		case len(children) > 1 && g.IntN(2) == 0: // move
			i, j := g.IntN(len(children)), g.IntN(len(children))
			k := children[i]
			children = slices.Insert(slices.Delete(children, i, i+1), min(j, len(children)-1), k)
		case len(children) > 0 && g.IntN(2) == 0:
			i := g.IntN(len(children))
			children = slices.Delete(children, i, i+1)
		case n.Type == "paragraph" || n.Type == "heading":
			children = g.inlines()
		default:
			children = slices.Insert(children, g.IntN(len(children)+1), g.block(3))
		}
	} else {
		i := g.IntN(len(children))
		children[i] = g.mutate(children[i])
	}
	return &pm.Node{Type: n.Type, Attrs: n.Attrs, Content: children}
}

// prose returns a document of ordinary paragraphs.
func prose(r *rand.Rand, paragraphs int) *pm.Node {
	doc := pm.Elem("doc", nil)
	for range paragraphs {
		doc.Content = append(doc.Content, pm.Elem("paragraph", nil, pm.Text(sentence(r, 20))))
	}
	return doc
}

func sentence(r *rand.Rand, n int) string {
	words := make([]string, n)
	for i := range words {
		b := make([]byte, 2+r.IntN(8))
		for j := range b {
			b[j] = byte('a' + r.IntN(26))
		}
		words[i] = string(b)
	}
	return strings.Join(words, " ")
}

// TestDiffIsSmall makes known edits: the diff costs at most 1.2 times as much.
func TestDiffIsSmall(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for seed := range uint64(rounds(100)) {
		r := rand.New(rand.NewPCG(seed, 1))
		old := prose(r, 30)
		next, best := &pm.Node{Type: "doc", Content: slices.Clone(old.Content)}, 0
		for range 1 + r.IntN(4) {
			i := r.IntN(len(next.Content))
			text := next.Content[i].Content[0].Text
			words := strings.Split(text, " ")
			k := r.IntN(len(words))
			switch r.IntN(5) {
			case 0:
				add := sentence(r, 3)
				words = slices.Insert(words, k, add)
				best += 10 + len(add) + 1
			case 1:
				words = slices.Delete(words, k, min(len(words), k+3))
				if len(words) == 0 {
					continue
				}
				best += 3
			case 2:
				add := sentence(r, 2)
				words[k] = add
				best += 13 + len(add)
			case 3:
				p := pm.Elem("paragraph", nil, pm.Text(sentence(r, 15)))
				next.Content = slices.Insert(next.Content, i, p)
				best += nodeSize(p)
				continue
			case 4:
				j := r.IntN(len(next.Content))
				p := next.Content[i]
				next.Content = slices.Insert(slices.Delete(next.Content, i, i+1), j, p)
				best += 3 + nodeSize(p)
				continue
			}
			next.Content[i] = pm.Elem("paragraph", nil, pm.Text(strings.Join(words, " ")))
		}
		ops := checkDiff(t, s, old, next)
		if got := size(ops); float64(got) > 1.2*float64(best) {
			t.Errorf("seed %d: the changes cost %d, the edits %d: %s\n%s\n%s", seed, got, best, showOps(ops), show(old.Content[2]), show(next.Content[2]))
		}
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	bold, comment := pm.Mark{Type: "bold"}, pm.Mark{Type: "comment--abcdefgh"}
	p := func(nodes ...*pm.Node) *pm.Node { return pm.Elem("paragraph", nil, nodes...) }
	doc := func(nodes ...*pm.Node) *pm.Node { return pm.Elem("doc", nil, nodes...) }
	for _, tc := range []struct {
		name      string
		old, next *pm.Node
		want      []pm.Op
	}{{
		name: "a word in the middle",
		old:  doc(p(pm.Text("the quick brown fox"))),
		next: doc(p(pm.Text("the slow brown fox"))),
		want: []pm.Op{pm.EditText{Path: []int{0, 0}, Delta: []pm.Splice{{Retain: 4}, {Insert: "slow"}, {Delete: 5}}}},
	}, {
		name: "inserted into bold",
		old:  doc(p(pm.Text("a "), pm.Text("b c", bold))),
		next: doc(p(pm.Text("a "), pm.Text("b new c", bold))),
		want: []pm.Op{pm.EditText{Path: []int{0, 0}, Delta: []pm.Splice{{Retain: 4}, {Insert: "new ", Format: []pm.Mark{bold}}}}},
	}, {
		name: "only the format",
		old:  doc(p(pm.Text("a b c"))),
		next: doc(p(pm.Text("a "), pm.Text("b", bold), pm.Text(" c"))),
		want: []pm.Op{pm.EditText{Path: []int{0, 0}, Delta: []pm.Splice{{Retain: 2}, {Retain: 1, Format: []pm.Mark{bold}}}}},
	}, {
		name: "only an attribute",
		old:  doc(pm.Elem("heading", pm.Attrs{"level": 1}, pm.Text("a")), p()),
		next: doc(pm.Elem("heading", pm.Attrs{"level": 2}, pm.Text("a")), p()),
		want: []pm.Op{pm.SetAttr{Path: []int{0}, Name: "level", Value: 2}},
	}, {
		name: "a block in the middle",
		old:  doc(p(pm.Text("a")), p(pm.Text("b"))),
		next: doc(p(pm.Text("a")), p(pm.Text("new")), p(pm.Text("b"))),
		want: []pm.Op{pm.InsertNodes{Index: 1, Nodes: []*pm.Node{p(pm.Text("new"))}}},
	}, {
		name: "two blocks move past a longer one",
		old:  doc(p(pm.Text("a")), p(pm.Text("b")), p(pm.Text("a long paragraph that stays"))),
		next: doc(p(pm.Text("a long paragraph that stays")), p(pm.Text("a")), p(pm.Text("b"))),
		want: []pm.Op{
			pm.InsertNodes{Index: 3, Nodes: []*pm.Node{p(pm.Text("a")), p(pm.Text("b"))}},
			pm.DeleteNodes{Index: 0, Count: 2},
		},
	}, {
		name: "an atom between two runs goes",
		old:  doc(p(pm.Text("some text"), pm.Elem("hardBreak", nil), pm.Text("more"))),
		next: doc(p(pm.Text("some text more"))),
		want: []pm.Op{
			pm.DeleteNodes{Path: []int{0}, Index: 1, Count: 2},
			pm.EditText{Path: []int{0, 0}, Delta: []pm.Splice{{Retain: 9}, {Insert: " more"}}},
		},
	}, {
		name: "a mark that Markdown does not know stays, and spreads",
		old:  doc(p(pm.Text("one two", comment))),
		next: doc(p(pm.Text("one and two"))),
		want: []pm.Op{pm.EditText{Path: []int{0, 0}, Delta: []pm.Splice{{Retain: 4}, {Insert: "and ", Format: []pm.Mark{comment}}}}},
	}, {
		name: "UTF-16, and no character is cut",
		old:  doc(p(pm.Text("😀 👩‍👩‍👧 x"))),
		next: doc(p(pm.Text("😀 👩‍👩‍👦 x"))),
		want: []pm.Op{pm.EditText{Path: []int{0, 0}, Delta: []pm.Splice{{Retain: 3}, {Insert: "👩‍👩‍👦"}, {Delete: 8}}}},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, pm.TipTap().Diff(tc.old, tc.next)); diff != "" {
				t.Errorf("Diff (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDiffOfManyForeignNodes puts many marked texts in place of many nodes outside the schema.
// Comparing all pairs would take many minutes.
func TestDiffOfManyForeignNodes(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	var old, next []*pm.Node
	for i := range 300_000 {
		old = append(old, pm.Text("x"), pm.Elem("chip", pm.Attrs{"id": i}))
		next = append(next, pm.Text("y "), pm.Text("z ", pm.Mark{Type: "bold"}))
	}
	before := pm.Elem("doc", nil, pm.Elem("paragraph", nil, old...))
	after := pm.Elem("doc", nil, pm.Elem("paragraph", nil, next...))
	if applied, err := pm.Apply(before, s.Diff(before, after)); err != nil || !applied.Equal(after) {
		t.Errorf("Diff does not lead to the texts: %v", err)
	}
}
