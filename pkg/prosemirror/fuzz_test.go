package prosemirror_test

import (
	"encoding/json"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
)

// FuzzParse parses any Markdown: the document is valid, and its Markdown is stable.
func FuzzParse(f *testing.F) {
	for _, s := range bombs {
		f.Add(s + s)
	}
	for _, md := range examples(f) {
		f.Add(md)
	}
	all := schemas(f)
	f.Fuzz(func(t *testing.T, md string) {
		if len(md) > 2000 {
			return
		}
		for _, s := range all {
			stable(t, s, md)
		}
	})
}

// FuzzFit makes any tree valid, and checks that it survives a round trip.
func FuzzFit(f *testing.F) {
	for seed := range uint64(20) {
		g := newGenerator(pm.TipTap(), seed)
		f.Add(show(g.doc()))
		f.Add(show(g.anything(0)))
	}
	f.Fuzz(func(t *testing.T, data string) {
		var n pm.Node
		if len(data) > 5000 || json.Unmarshal([]byte(data), &n) != nil {
			return
		}
		s := pm.TipTap()
		s.Render(&n)
		doc := s.Fit(&n)
		if err := s.Check(doc); err != nil {
			t.Fatalf("Fit(%s) = %s: %v", data, show(doc), err)
		}
		if s.Fit(doc) != doc {
			t.Fatalf("Fit(%s) is not Fit of itself", data)
		}
		parse(t, s, s.RenderMap(doc).Text)
		checkDiff(t, s, doc, s.Fit(pm.Elem("doc", nil, pm.Elem("paragraph", nil, pm.Text("x")), doc.Content[0])))
	})
}
