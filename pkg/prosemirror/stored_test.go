package prosemirror_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// stored lists the content of a fragment, one child a line: elements with attributes, texts
// with their deltas.
func stored(f *yjs.XMLFragment) string {
	var b strings.Builder
	object := func(o yjs.Object) {
		o = slices.Clone(o)
		slices.SortFunc(o, func(x, y yjs.Member) int { return strings.Compare(x.Key, y.Key) })
		for _, m := range o {
			fmt.Fprintf(&b, " %s=%s", m.Key, yjs.AppendJSON(nil, m.Value))
		}
	}
	var walk func(f *yjs.XMLFragment, indent string)
	walk = func(f *yjs.XMLFragment, indent string) {
		f.Each(func(child any) bool {
			b.WriteString(indent)
			switch c := child.(type) {
			case *yjs.XMLElement:
				b.WriteString(c.Name())
				object(c.Attributes())
				b.WriteByte('\n')
				walk(c.Fragment(), indent+"  ")
			case *yjs.XMLText:
				for i, op := range c.Text().Delta() {
					b.WriteString([]string{"", " | "}[min(i, 1)])
					b.Write(yjs.AppendJSON(nil, op.Insert))
					object(op.Attributes)
				}
				b.WriteByte('\n')
			default:
				fmt.Fprintf(&b, "%T %v\n", child, yjs.ToJSON(child))
			}
			return true
		})
	}
	walk(f, "")
	return b.String()
}

func all(t *testing.T) *pm.Node {
	t.Helper()
	md, err := os.ReadFile("testdata/all.md")
	if err != nil {
		t.Fatal(err)
	}
	cell := func(typ string, columns int, block *pm.Node) *pm.Node {
		return pm.Elem(typ, pm.Attrs{"colspan": columns, "rowspan": 1, "colwidth": []any{100, 200}[:columns]}, block)
	}
	p := pm.Elem("paragraph", nil, pm.Text("hi "), pm.Elem("mention", pm.Attrs{"id": "m1", "label": "Ann", "mentionSuggestionChar": "@"}))
	doc := parse(t, pm.TipTap(), string(md))
	doc = pm.Elem("doc", nil, append(slices.Clip(doc.Content), p,
		pm.Elem("image", pm.Attrs{"src": "i.png", "width": 20, "height": 0.5}),
		pm.Elem("table", nil,
			pm.Elem("tableRow", nil, cell("tableHeader", 2, pm.Elem("heading", pm.Attrs{"level": 3}, pm.Text("a")))),
			pm.Elem("tableRow", nil, cell("tableCell", 1, p), pm.Elem("tableCell", nil, p))))...)
	return pm.TipTap().Fit(doc)
}

// TestStored compares what a seed stores with testdata/stored.txt.
func TestStored(t *testing.T) {
	t.Parallel()
	got := stored(seeded(t, pm.TipTap(), 1, all(t)).f)
	const golden = "testdata/stored.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("what is stored is not %s (-update rewrites it):\n%s", golden, got)
	}
	for _, n := range pm.TipTapSpec().Nodes {
		if n.Name != "doc" && n.Name != pm.TextType && !strings.Contains(got, n.Name) {
			t.Errorf("no %s is stored", n.Name)
		}
	}
	for _, m := range pm.TipTapSpec().Marks {
		if !strings.Contains(got, m.Name+"={") {
			t.Errorf("no %s is stored", m.Name)
		}
	}
}

// TestEditorStoresTheSame writes a document into an empty editor, which stores it like a seed.
func TestEditorStoresTheSame(t *testing.T) {
	t.Parallel()
	s, doc := pm.TipTap(), all(t)
	r := newReplica(t, s, 1)
	e := startEditor(t)
	e.open(r, map[string]any{"autolink": false})
	v := e.edit([]any{"setContent", doc})
	r.apply(v.Merged)
	if got, want := stored(r.f), stored(seeded(t, s, 1, doc).f); got != want {
		a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d: the editor stores\n%s\nwe\n%s", i+1, a[i], b[i])
			}
		}
		t.Fatalf("the editor stores\n%s\nwe\n%s", got, want)
	}
}

// TestForeignStays edits a document with unknown nodes, attributes and marks: whatever is not
// edited stays.
func TestForeignStays(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	r := seeded(t, s, 1, parse(t, s, "# one\n\ntwo *three* four\n\nlast"))
	comment := yjs.Object{{Key: "comment--abcdefgh", Value: yjs.Object{{Key: "id", Value: "c"}}}}
	r.transact(func(*yjs.Txn) {
		details := newElem("details", newElem("summary", yjs.NewXMLText("a summary")), yjs.NewXMLHook("hook"))
		_ = details.SetAttribute("open", true)
		_ = r.f.Insert(1, details)
		_ = r.elem(0).SetAttribute("id", "h1")
		_ = r.text(2, 0).Format(4, 10, comment)
		_ = r.text(2, 0).InsertEmbed(1, yjs.Object{{Key: "cursor", Value: 1}}, nil)
	})
	if got, want := s.Render(r.read()), "# one\n\na summary\n\ntwo *three* four\n\nlast\n"; got != want {
		t.Fatalf("Render = %q, want %q", got, want)
	}
	for _, e := range [][2]string{{"# one", "## one more"}, {"four", "or four"}, {"last", "the last\n\n- and more"}} {
		next, _, err := s.Edit(r.read(), e[0], e[1], false)
		if err != nil {
			t.Fatal(err)
		}
		r.write(next)
	}
	want := `heading id="h1" level=2
  "one more"
details open=true
  summary
    "a summary"
  *yjs.XMLHook []
paragraph
  "t" | {"cursor":1} | "wo " | "three" comment--abcdefgh={"id":"c"} italic={} | " or four" comment--abcdefgh={"id":"c"}
paragraph
  "the last"
bulletList
  listItem
    paragraph
      "and more"
paragraph
`
	if got := stored(r.f); got != want {
		t.Errorf("stored:\n%s\nwant\n%s", got, want)
	}
}

// TestForeignInText edits text around unknown nodes.
func TestForeignInText(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for _, tc := range []struct{ from, to, want string }{
		{"one two", "one and two", `"one " | emoji | "and two"`},
		{"one two", "1 two", `"1 " | emoji | "two"`},
		{"one two", "one 2", `"one " | emoji | "2"`},
		{"one two", "**one** two", `"one" bold={} | " " | emoji | "two"`},
		{"one two", "all other words", `"all other words"`},
	} {
		t.Run(tc.to, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, s, 1, parse(t, s, tc.from))
			r.transact(func(*yjs.Txn) {
				r.text(0, 0).Delete(4, 3)
				_ = r.elem(0).Push(newElem("emoji"), yjs.NewXMLText("two"))
			})
			next, err := s.Replace(r.read(), tc.to)
			if err != nil {
				t.Fatal(err)
			}
			r.write(next)
			got := strings.TrimPrefix(strings.Join(strings.Fields(strings.ReplaceAll(stored(r.f), "\n  ", " | ")), " "), "paragraph | ")
			if got != tc.want {
				t.Errorf("stored %s, want %s", got, tc.want)
			}
			if update, _ := r.write(next); update != nil {
				t.Errorf("writing the same again makes an update")
			}
		})
	}
}

// TestForeignIsNotWritten writes unknown nodes, which are made to fit.
func TestForeignIsNotWritten(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	r := seeded(t, s, 1, parse(t, s, "one"))
	mark := pm.Mark{Type: "comment--abcdefgh"}
	r.write(pm.Elem("doc", nil,
		pm.Elem("paragraph", nil, pm.Text("one", mark)),
		pm.Elem("details", pm.Attrs{"open": true}, pm.Elem("summary", nil, pm.Text("a summary"))),
		pm.Elem("heading", pm.Attrs{"level": 9, "id": "x"}, pm.Text("h")),
		pm.Text("bare")))
	want := "paragraph\n  \"one\"\nparagraph\n  \"a summary\"\nheading level=6\n  \"h\"\nparagraph\n  \"bare\"\n"
	if got := stored(r.f); got != want {
		t.Errorf("stored:\n%s\nwant\n%s", got, want)
	}
}

// TestBareText repairs text at the top of a fragment, which crashes editors.
func TestBareText(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	r := newReplica(t, s, 1)
	r.transact(func(*yjs.Txn) { _ = r.f.Insert(0, yjs.NewXMLText("bare")) })
	r.write(r.read())
	if got, want := stored(r.f), "paragraph\n  \"bare\"\n"; got != want {
		t.Errorf("stored:\n%s\nwant\n%s", got, want)
	}
}
