package prosemirror_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pm "signalbox.dev/pkg/prosemirror"
)

// TestTipTap compares the schema with testdata/tiptap.json, the description of TipTap 3.31.3's
// own schema.
func TestTipTap(t *testing.T) {
	t.Parallel()
	type nodeType struct {
		Content, Group     string
		Inline, Leaf, Code bool
		Marks              []string
		Attrs              map[string]any
	}
	type markType struct {
		Name     string
		Excludes []string
		Attrs    map[string]any
	}
	type schema struct {
		Top   string
		Nodes map[string]nodeType
		Marks []markType
	}
	data, err := os.ReadFile("testdata/tiptap.json")
	if err != nil {
		t.Fatal(err)
	}
	var want schema
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	spec := pm.TipTapSpec()
	var marks []string
	for _, m := range spec.Marks {
		marks = append(marks, m.Name)
	}
	// Via JSON, so that numbers compare.
	attrs := func(specs []pm.AttrSpec) map[string]any {
		out := map[string]any{}
		for _, a := range specs {
			out[a.Name] = a.Default
		}
		b, _ := json.Marshal(out)
		out = nil
		_ = json.Unmarshal(b, &out)
		return out
	}
	got := schema{Top: spec.Top, Nodes: map[string]nodeType{}}
	for _, n := range spec.Nodes {
		nt := nodeType{
			Content: n.Content, Group: n.Group, Inline: n.Inline || n.Name == pm.TextType, Leaf: n.Content == "",
			Code: n.Code, Marks: []string{}, Attrs: attrs(n.Attrs),
		}
		if n.Marks != "-" && strings.Contains(n.Content, "inline") {
			nt.Marks = marks
		}
		got.Nodes[n.Name] = nt
	}
	for _, m := range spec.Marks {
		ex := []string{m.Name}
		if m.Excludes == "_" {
			ex = marks
		}
		got.Marks = append(got.Marks, markType{m.Name, ex, attrs(m.Attrs)})
	}
	// A node without inline content allows any marks.
	for name, n := range want.Nodes {
		if !strings.Contains(n.Content, "inline") {
			n.Marks = []string{}
			want.Nodes[name] = n
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the schema (-TipTap +ours):\n%s", diff)
	}
	if _, err := pm.New(spec); err != nil {
		t.Errorf("New(TipTapSpec()): %v", err)
	}
}

func TestContentExpressions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		expr     string
		yes, not string // contents, with commas between; letters are nodes
	}{
		{"a", "a", ",b,aa"},
		{"a b*", "a,ab,abb", ",b,aab,ba"},
		{"a+", "a,aa", ",b"},
		{"a?", ",a", "aa,b"},
		{"(a | b)*", ",a,b,abba", "c,abc"},
		{"(a | b) c", "ac,bc", "a,abc,c"},
		{"a{2}", "aa", "a,aaa,"},
		{"a{2,}", "aa,aaaa", "a"},
		{"a{1,3}", "a,aa,aaa", ",aaaa"},
		{"(a b){2}", "abab", "ab,aabb"},
		{"group+", "a,b,ab", ",c,ac"},
		{"a* b a?", "b,ab,aaba", "a,abab"},
		{"(a? b)* c", "c,abc,babbc", "ac,aac"},
	} {
		spec := pm.Spec{Top: "doc", Nodes: []pm.NodeSpec{
			{Name: "doc", Content: tc.expr},
			{Name: "a", Group: "group"},
			{Name: "b", Group: "other group"},
			{Name: "c"},
			{Name: "text"},
		}}
		s, err := pm.New(spec)
		if err != nil {
			t.Errorf("New with %q: %v", tc.expr, err)
			continue
		}
		check := func(contents string, want bool) {
			for content := range strings.SplitSeq(contents, ",") {
				doc := pm.Elem("doc", nil)
				for _, c := range content {
					doc.Content = append(doc.Content, pm.Elem(string(c), nil))
				}
				if err := s.Check(doc); (err == nil) != want {
					t.Errorf("%q with %q: %v, want valid: %v", tc.expr, content, err, want)
				}
				if fit := s.Fit(doc); s.Check(fit) != nil {
					t.Errorf("%q: Fit(%q) = %s: %v", tc.expr, content, show(fit), s.Check(fit))
				}
			}
		}
		check(tc.yes, true)
		check(tc.not, false)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	base := []pm.NodeSpec{{Name: "doc", Content: "p+"}, {Name: "p", Content: "text*"}, {Name: "text"}}
	for _, tc := range []struct {
		name, want string
		spec       pm.Spec
	}{
		{"no top", "top node", pm.Spec{Top: "x", Nodes: base}},
		{"no text", `"text" is not defined`, pm.Spec{Top: "doc", Nodes: base[:1]}},
		{"an unknown name", "no node or group", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "q"})}},
		{"an open bracket", "missing )", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "(p | doc"})}},
		{"a stray star", "named \"*\"", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "* p"})}},
		{"too many", "up to 100", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "p{1000000}"})}},
		{"a bomb", "too large", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "((p{99}){99}){99}"})}},
		{"mixed", "mixes", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "p | text"})}},
		{"twice", "twice", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "p"})}},
		{"itself without end", "is infinite", pm.Spec{Top: "doc", Nodes: append(slices.Clip(base), pm.NodeSpec{Name: "a", Content: "a+"})}},
		{"an unknown mark", "no mark", pm.Spec{Top: "doc", Nodes: base, Marks: []pm.MarkSpec{{Name: "m", Excludes: "n"}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if _, err := pm.New(tc.spec); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	bold, code := pm.Mark{Type: "bold"}, pm.Mark{Type: "code"}
	link := pm.Mark{Type: "link", Attrs: pm.Attrs{"href": "x", "target": nil, "rel": ""}}
	p := func(nodes ...*pm.Node) *pm.Node { return pm.Elem("paragraph", nil, nodes...) }
	doc := func(nodes ...*pm.Node) *pm.Node { return pm.Elem("doc", nil, nodes...) }
	deep := p()
	for range 200 {
		deep = pm.Elem("blockquote", nil, deep)
	}
	for _, tc := range []struct {
		name string
		doc  *pm.Node
		want string
	}{
		{"valid", doc(p(pm.Text("a", link), pm.Text("b", bold), pm.Elem("hardBreak", nil))), ""},
		{"empty", doc(), `doc: its content ends too early, it holds "block+"`},
		{"another root", p(), "paragraph: the root must be a doc"},
		{"unknown node", doc(pm.Elem("video", nil)), "doc > video[0]: no such node in the schema"},
		{"wrong place", doc(p(), pm.Elem("listItem", nil, p())), `doc > listItem[1]: does not fit here in doc, which holds "block+"`},
		{"bare text", doc(pm.Text("a")), `doc > text[0]: does not fit here`},
		{"item without paragraph", doc(pm.Elem("bulletList", nil, pm.Elem("listItem", nil, pm.Elem("horizontalRule", nil)))), `doc > bulletList[0] > listItem[0] > horizontalRule[0]: does not fit`},
		{"attribute type", doc(pm.Elem("heading", pm.Attrs{"level": "1"})), `doc > heading[0]: attribute level is string, want int`},
		{"attribute range", doc(pm.Elem("heading", pm.Attrs{"level": 7})), `attribute level is 7, want 1 to 6`},
		{"attribute missing", doc(pm.Elem("heading", nil)), `attribute level is missing`},
		{"attribute unknown", doc(pm.Elem("paragraph", pm.Attrs{"x": 1})), `no attribute x`},
		{"mark unknown", doc(p(pm.Text("a", pm.Mark{Type: "comment--12345678"}))), `no mark comment--12345678`},
		{"mark in code", doc(pm.Elem("codeBlock", nil, pm.Text("a", bold))), `codeBlock does not allow the mark bold`},
		{"marks exclude", doc(p(pm.Text("a", code, code))), `the marks code and code exclude each other`},
		{"marks out of order", doc(p(pm.Text("a", bold, link))), `the mark link is out of order`},
		{"text twice", doc(p(pm.Text("a"), pm.Text("b"))), `has the marks of the text before`},
		{"empty text", doc(p(pm.Text(""))), `a text holds text`},
		{"too deep", doc(deep), `more than 100 levels`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := pm.TipTap()
			err := s.Check(tc.doc)
			if tc.want == "" {
				if err != nil {
					t.Errorf("Check: %v", err)
				}
				return
			}
			var invalid *pm.InvalidError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Check: %v, want %q", err, tc.want)
			}
			fit := s.Fit(tc.doc)
			if err := s.Check(fit); err != nil {
				t.Errorf("Fit made %s: %v", show(fit), err)
			}
			if got, want := fit.TextContent(), tc.doc.TextContent(); got != want {
				t.Errorf("Fit made the text %q of %q", got, want)
			}
		})
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	nested, err := pm.New(pm.TipTapSpec().WithNestedTasks())
	if err != nil {
		t.Fatal(err)
	}
	spec := pm.TipTapSpec()
	for i, m := range spec.Marks {
		if m.Name == "code" {
			spec.Marks[i].Excludes = "_"
		}
	}
	exclusive, err := pm.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, in, want string
		s              *pm.Schema
	}{{
		name: "text in the document",
		in:   `{"type":"doc","content":[{"type":"text","text":"a"},{"type":"hardBreak"},{"type":"text","text":"b"}]}`,
		want: `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","text":"a"},{"type":"hardBreak"},{"type":"text","text":"b"}]}]}`,
	}, {
		name: "items without a list",
		in:   `{"type":"doc","content":[{"type":"listItem","content":[{"type":"paragraph"}]},{"type":"listItem","content":[{"type":"heading","content":[{"type":"text","text":"h"}]}]},{"type":"paragraph"}]}`,
		want: `{"type":"doc","content":[{"type":"bulletList","content":[{"type":"listItem","content":[{"type":"paragraph"}]},{"type":"listItem","content":[{"type":"paragraph"},{"type":"heading","attrs":{"level":1},"content":[{"type":"text","text":"h"}]}]}]},{"type":"paragraph"}]}`,
	}, {
		name: "all kinds of blocks in a task",
		in: `{"type":"taskList","content":[{"type":"taskItem","attrs":{"checked":"true"},"content":[{"type":"heading","content":[{"type":"text","text":"h"}]},` +
			`{"type":"codeBlock","content":[{"type":"text","text":"x\ny"}]},{"type":"image","attrs":{"src":"i.png"}},{"type":"blockquote","content":[{"type":"paragraph","content":[{"type":"text","text":"q"}]}]}]}]}`,
		want: `{"type":"doc","content":[{"type":"taskList","content":[{"type":"taskItem","attrs":{"checked":true},"content":[{"type":"paragraph","content":[{"type":"text","text":"h"}]},` +
			`{"type":"paragraph","content":[{"type":"text","marks":[{"type":"code"}],"text":"x"}]},{"type":"paragraph","content":[{"type":"text","marks":[{"type":"code"}],"text":"y"}]},` +
			`{"type":"paragraph","content":[{"type":"text","marks":[{"type":"link","attrs":{"href":"i.png","rel":"noopener noreferrer nofollow","target":"_blank"}}],"text":"i.png"}]},` +
			`{"type":"paragraph","content":[{"type":"text","text":"q"}]}]}]},{"type":"paragraph"}]}`,
	}, {
		name: "the same where tasks hold blocks",
		s:    nested,
		in:   `{"type":"taskList","content":[{"type":"taskItem","content":[{"type":"heading","content":[{"type":"text","text":"h"}]}]}]}`,
		want: `{"type":"doc","content":[{"type":"taskList","content":[{"type":"taskItem","attrs":{"checked":false},"content":[{"type":"paragraph"},{"type":"heading","attrs":{"level":1},"content":[{"type":"text","text":"h"}]}]}]},{"type":"paragraph"}]}`,
	}, {
		name: "an image within text",
		in:   `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","text":"a "},{"type":"image","attrs":{"src":"i.png"}},{"type":"text","text":" b"}]}]}`,
		want: `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","text":"a"}]},{"type":"image","attrs":{"src":"i.png"}},{"type":"paragraph","content":[{"type":"text","text":"b"}]}]}`,
	}, {
		name: "a short row",
		in:   `{"type":"doc","content":[{"type":"table","content":[{"type":"tableRow","content":[{"type":"tableHeader","attrs":{"colspan":2},"content":[{"type":"paragraph"}]}]},{"type":"tableRow","content":[{"type":"tableCell"}]}]},{"type":"paragraph"}]}`,
		want: `{"type":"doc","content":[{"type":"table","content":[{"type":"tableRow","content":[{"type":"tableHeader","attrs":{"colspan":2,"rowspan":1},"content":[{"type":"paragraph"}]}]},` +
			`{"type":"tableRow","content":[{"type":"tableCell","attrs":{"colspan":1,"rowspan":1},"content":[{"type":"paragraph"}]},{"type":"tableCell","attrs":{"colspan":1,"rowspan":1},"content":[{"type":"paragraph"}]}]}]},{"type":"paragraph"}]}`,
	}, {
		name: "unknown nodes and marks",
		in:   `{"type":"doc","content":[{"type":"details","content":[{"type":"summary","content":[{"type":"text","marks":[{"type":"comment--abcdefgh"},{"type":"italic"},{"type":"bold"}],"text":"a"}]}]},{"type":"paragraph","content":[{"type":"emoji","attrs":{"name":"x"}}]}]}`,
		want: `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","marks":[{"type":"bold"},{"type":"italic"}],"text":"a"}]},{"type":"paragraph"}]}`,
	}, {
		name: "a link, bold and code lie on one text",
		in:   `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","marks":[{"type":"code"},{"type":"bold"},{"type":"link","attrs":{"href":"u"}}],"text":"a"},{"type":"text","marks":[{"type":"bold"},{"type":"code"}],"text":"b"}]}]}`,
		want: `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","marks":[{"type":"link","attrs":{"href":"u","rel":"noopener noreferrer nofollow","target":"_blank"}},{"type":"bold"},{"type":"code"}],"text":"a"},{"type":"text","marks":[{"type":"bold"},{"type":"code"}],"text":"b"}]}]}`,
	}, {
		name: "a link keeps its address, not the code, where code excludes others",
		s:    exclusive,
		in:   `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","marks":[{"type":"code"},{"type":"bold"},{"type":"link","attrs":{"href":"u"}}],"text":"a"},{"type":"text","marks":[{"type":"bold"},{"type":"code"}],"text":"b"}]}]}`,
		want: `{"type":"doc","content":[{"type":"paragraph","content":[{"type":"text","marks":[{"type":"link","attrs":{"href":"u","rel":"noopener noreferrer nofollow","target":"_blank"}},{"type":"bold"}],"text":"a"},{"type":"text","marks":[{"type":"code"}],"text":"b"}]}]}`,
	}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := tc.s
			if s == nil {
				s = pm.TipTap()
			}
			var in pm.Node
			if err := json.Unmarshal([]byte(tc.in), &in); err != nil {
				t.Fatal(err)
			}
			got := s.Fit(&in)
			if err := s.Check(got); err != nil {
				t.Errorf("Fit is not valid: %v", err)
			}
			if s.Fit(got) != got {
				t.Errorf("Fit changes what it made")
			}
			if got := show(got); got != tc.want {
				t.Errorf("Fit:\ngot  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestFitAnything fits random trees: the result is valid and keeps all text.
func TestFitAnything(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(300)) {
				g := newGenerator(s, seed)
				doc := g.anything(0)
				fit := s.Fit(doc)
				if err := s.Check(fit); err != nil {
					t.Fatalf("seed %d: Fit(%s) = %s: %v", seed, show(doc), show(fit), err)
				}
				squeeze := func(s string) string { return strings.Join(strings.Fields(s), "") }
				if got, want := squeeze(fit.TextContent()), squeeze(doc.TextContent()); len(got) < len(want) {
					t.Fatalf("seed %d: Fit(%s) = %s lost text", seed, show(doc), show(fit))
				}
			}
		})
	}
}

// anything returns a tree outside any schema.
func (g *generator) anything(depth int) *pm.Node {
	if g.IntN(3) == 0 || depth > 5 {
		return pm.Text(g.text(2), g.marks()...)
	}
	spec := g.s.Spec()
	n := &pm.Node{Type: spec.Nodes[g.IntN(len(spec.Nodes))].Name}
	if g.IntN(8) == 0 {
		n.Type = "unknown"
	}
	if n.Type == pm.TextType {
		n.Text = g.text(2)
		return n
	}
	for g.IntN(4) > 0 && len(n.Content) < 6 {
		n.Content = append(n.Content, g.anything(depth+1))
	}
	return n
}

// TestJSON compares with testdata/all.getjson, which TipTap wrote for testdata/all.json.
func TestJSON(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	want, err := os.ReadFile("testdata/all.getjson")
	if err != nil {
		t.Fatal(err)
	}
	var doc pm.Node
	if err := json.Unmarshal(want, &doc); err != nil {
		t.Fatal(err)
	}
	got, err := s.JSON(&doc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("JSON (-TipTap +ours):\n%s", diff)
	}
	md, err := os.ReadFile("testdata/all.md")
	if err != nil {
		t.Fatal(err)
	}
	if doc := s.Fit(&doc); !doc.Equal(parse(t, s, string(md))) {
		t.Errorf("TipTap's JSON is another document than the Markdown")
	}
	for _, bad := range []string{`{}`, `{"type":1}`, `{"type":"doc","content":[null]}`, `{"type":"doc","attrs":[]}`, `[]`} {
		if err := json.Unmarshal([]byte(bad), &doc); err == nil {
			t.Errorf("Unmarshal(%s) gives no error", bad)
		}
	}
}
