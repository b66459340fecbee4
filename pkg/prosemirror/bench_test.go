package prosemirror_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// fifty is a document of 50 blocks, mostly paragraphs with a format and a link.
func fifty() *pm.Node {
	r := rand.New(rand.NewPCG(1, 2))
	link := pm.Mark{Type: "link", Attrs: pm.Attrs{"href": "https://example.com/a", "target": "_blank", "rel": "noopener noreferrer nofollow"}}
	doc := pm.Elem("doc", nil)
	p := func() *pm.Node {
		return pm.Elem("paragraph", nil, pm.Text(sentence(r, 8)+" "), pm.Text(sentence(r, 2), pm.Mark{Type: "bold"}),
			pm.Text(" "+sentence(r, 4)+" "), pm.Text(sentence(r, 2), link), pm.Text(" "+sentence(r, 6)+"."))
	}
	for i := range 50 {
		switch i % 10 {
		case 0:
			doc.Content = append(doc.Content, pm.Elem("heading", pm.Attrs{"level": 2}, pm.Text(sentence(r, 4))))
		case 5:
			doc.Content = append(doc.Content, pm.Elem("bulletList", nil, pm.Elem("listItem", nil, p()), pm.Elem("listItem", nil, p())))
		default:
			doc.Content = append(doc.Content, p())
		}
	}
	return doc
}

func BenchmarkParse(b *testing.B) {
	s := pm.TipTap()
	md := s.Render(fifty())
	b.SetBytes(int64(len(md)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Parse(md); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRender(b *testing.B) {
	s, doc := pm.TipTap(), fifty()
	b.SetBytes(int64(len(s.Render(doc))))
	b.ReportAllocs()
	for b.Loop() {
		s.Render(doc)
	}
}

func BenchmarkRenderMap(b *testing.B) {
	s, doc := pm.TipTap(), fifty()
	b.ReportAllocs()
	for b.Loop() {
		s.RenderMap(doc)
	}
}

func BenchmarkCheck(b *testing.B) {
	s, doc := pm.TipTap(), fifty()
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Check(doc); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDiff compares a document with a copy in which one word differs.
func BenchmarkDiff(b *testing.B) {
	s, old := pm.TipTap(), fifty()
	next := clone(old)
	next.Content[20+1].Content[0] = pm.Text("another beginning " + next.Content[21].Content[0].Text)
	b.ReportAllocs()
	for b.Loop() {
		if len(s.Diff(old, next)) != 1 {
			b.Fatal("want one change")
		}
	}
}

// BenchmarkEdit replaces one word in the Markdown and diffs.
func BenchmarkEdit(b *testing.B) {
	s, old := pm.TipTap(), fifty()
	word := old.Content[21].Content[1].Text
	b.ReportAllocs()
	for b.Loop() {
		next, _, err := s.Edit(old, word, "another", false)
		if err != nil || len(s.Diff(old, next)) != 1 {
			b.Fatal("want one change", err)
		}
	}
}

// BenchmarkRead reads the shared document of 50 blocks.
func BenchmarkRead(b *testing.B) {
	s := pm.TipTap()
	r := seeded(b, s, 1, fifty())
	b.ReportAllocs()
	for b.Loop() {
		if len(s.Read(r.f).Content) != 50 {
			b.Fatal("want 50 blocks")
		}
	}
}

// BenchmarkWrite replaces one word of the shared document of 50 blocks, back and forth.
func BenchmarkWrite(b *testing.B) {
	s, old := pm.TipTap(), pm.TipTap().Fit(fifty())
	r := seeded(b, s, 1, old)
	next, _, err := s.Edit(old, old.Content[21].Content[1].Text, "another", false)
	if err != nil {
		b.Fatal(err)
	}
	size := 0
	defer r.d.OnUpdate(func(u *yjs.Update) { size += len(u.V1()) })()
	b.ReportAllocs()
	for b.Loop() {
		r.d.Transact(nil, func(txn *yjs.Txn) {
			w, err := s.Write(txn, r.f, next)
			if err != nil || !w.Changed {
				b.Fatal("want a change", err)
			}
		})
		old, next = next, old
	}
	b.ReportMetric(float64(size)/float64(b.N), "update-B/op")
}

// BenchmarkSeed encodes a document of 50 blocks.
func BenchmarkSeed(b *testing.B) {
	s, doc := pm.TipTap(), fifty()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Seed("d", pm.Field, doc); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWriteLarge replaces one word in a document of 10,000 blocks.
func BenchmarkWriteLarge(b *testing.B) {
	s := pm.TipTap()
	rnd := rand.New(rand.NewPCG(1, 2))
	old := prose(rnd, 10_000)
	r := seeded(b, s, 1, old)
	next := &pm.Node{Type: "doc", Content: slices.Clone(old.Content)}
	next.Content[5000] = pm.Elem("paragraph", nil, pm.Text("another "+old.Content[5000].Content[0].Text))
	b.ReportAllocs()
	for b.Loop() {
		r.d.Transact(nil, func(txn *yjs.Txn) {
			if w, err := s.Write(txn, r.f, next); err != nil || !w.Changed {
				b.Fatal("want a change", err)
			}
		})
		old, next = next, old
	}
}
