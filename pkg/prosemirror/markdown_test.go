package prosemirror_test

import (
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	pm "signalbox.dev/pkg/prosemirror"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldmarkFile returns a file of goldmark's module, whose examples we do not copy.
func goldmarkFile(t testing.TB, name string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/yuin/goldmark").Output()
	if err != nil {
		t.Fatalf("go list goldmark: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// examples returns the inputs of CommonMark's and goldmark's GFM examples.
func examples(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	var spec []struct {
		Markdown string
		Example  int
		Section  string
	}
	if err := json.Unmarshal(goldmarkFile(t, "_test/spec.json"), &spec); err != nil {
		t.Fatal(err)
	}
	for _, e := range spec {
		out["commonmark "+e.Section+" "+itoa(e.Example)] = e.Markdown
	}
	sep := regexp.MustCompile(`(?m)^//- - - - - - - - -//\n`)
	for _, name := range []string{"table", "strikethrough", "tasklist", "linkify"} {
		parts := sep.Split(string(goldmarkFile(t, "extension/_test/"+name+".txt")), -1)
		for i := 1; i < len(parts); i += 2 {
			out["gfm "+name+" "+itoa(i/2+1)] = parts[i]
		}
	}
	if len(out) < 690 {
		t.Fatalf("only %d examples", len(out))
	}
	return out
}

func itoa(i int) string { b, _ := json.Marshal(i); return string(b) }

func parse(t testing.TB, s *pm.Schema, md string) *pm.Node {
	t.Helper()
	doc, err := s.Parse(md)
	if err != nil {
		t.Fatalf("Parse(%q): %v", md, err)
	}
	if err := s.Check(doc); err != nil {
		t.Fatalf("Parse(%q) is not valid: %v", md, err)
	}
	return doc
}

// stable checks that the document survives a round trip and that its Markdown is stable.
func stable(t testing.TB, s *pm.Schema, md string) {
	t.Helper()
	doc := parse(t, s, md)
	once := s.Render(doc)
	back := parse(t, s, once)
	if !doc.Equal(back) {
		t.Errorf("Parse(%q) renders as\n%s\nwhich reads differently (-first +again):\n%s", md, once, cmp.Diff(doc, back))
		return
	}
	if twice := s.Render(back); twice != once {
		t.Errorf("Render of %q is not stable:\n%s\nthen\n%s", md, once, twice)
	}
}

func schemas(t testing.TB) map[string]*pm.Schema {
	t.Helper()
	inline, err := pm.New(pm.TipTapSpec().WithInlineImages().WithNestedTasks())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]*pm.Schema{"tiptap": pm.TipTap(), "inline images, nested tasks": inline}
}

func TestExamplesAreStable(t *testing.T) {
	t.Parallel()
	all := examples(t)
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, md := range all {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					stable(t, s, md)
				})
			}
		})
	}
}

// shrink returns a smaller document for which fails still holds.
func shrink(doc *pm.Node, fails func(*pm.Node) bool) *pm.Node {
	for again := true; again; {
		again = false
		for _, c := range smaller(doc) {
			if fails(c) {
				doc, again = c, true
				break
			}
		}
	}
	return doc
}

// smaller returns all variants of n with one part removed.
func smaller(n *pm.Node) []*pm.Node {
	var out []*pm.Node
	with := func(children []*pm.Node) {
		out = append(out, &pm.Node{Type: n.Type, Attrs: n.Attrs, Content: children})
	}
	if n.IsText() {
		for i := range n.Text {
			for j := len(n.Text); j > i; j-- {
				if s := n.Text[:i] + n.Text[j:]; s != "" && utf8.ValidString(s) && len(n.Text) < 200 {
					out = append(out, pm.Text(s, n.Marks...))
				}
			}
		}
		for i := range n.Marks {
			out = append(out, pm.Text(n.Text, append(n.Marks[:i:i], n.Marks[i+1:]...)...))
		}
		return out
	}
	for i, c := range n.Content {
		with(append(n.Content[:i:i], n.Content[i+1:]...))
		for _, s := range smaller(c) {
			with(append(append(n.Content[:i:i], s), n.Content[i+1:]...))
		}
		if len(c.Content) > 0 {
			with(append(append(n.Content[:i:i], c.Content...), n.Content[i+1:]...))
		}
	}
	return out
}

func TestRandomDocumentsReadBack(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			differs := func(doc *pm.Node) bool {
				if s.Check(doc) != nil || s.Fit(doc) != doc {
					return false
				}
				back, err := s.Parse(s.Render(doc))
				return err != nil || !doc.Equal(back)
			}
			for seed := range uint64(rounds(150)) {
				doc := newGenerator(s, seed).doc()
				if err := s.Check(doc); err != nil {
					t.Fatalf("seed %d: the generator made %v", seed, err)
				}
				if s.Fit(doc) != doc {
					t.Fatalf("seed %d: Fit changes a valid document: %s", seed, cmp.Diff(doc, s.Fit(doc)))
				}
				if differs(doc) {
					doc = shrink(doc, differs)
					back, err := s.Parse(s.Render(doc))
					t.Fatalf("seed %d: %v\n%s\nis rendered as\n%q\n%s\nwhich reads as\n%s", seed, err, show(doc), s.Render(doc), s.Render(doc), show(back))
				}
			}
		})
	}
}

// TestRenderMap checks that each span names its source, that spans are in order, and that they
// cover all plain text.
func TestRenderMap(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(100)) {
				doc := newGenerator(s, seed).doc()
				m := s.RenderMap(doc)
				if diff := cmp.Diff(s.Render(doc), m.Text); diff != "" {
					t.Fatalf("seed %d: RenderMap has another text (-Render +RenderMap):\n%s", seed, diff)
				}
				if len(m.Blocks) != len(doc.Content) {
					t.Fatalf("seed %d: %d blocks, want %d", seed, len(m.Blocks), len(doc.Content))
				}
				checkSpans(t, doc, m)
			}
		})
	}
}

func checkSpans(t *testing.T, doc *pm.Node, m *pm.Markdown) {
	t.Helper()
	end, shown := 0, 0
	for _, sp := range m.Spans {
		n := doc
		for _, i := range sp.Path {
			n = n.Content[i]
		}
		if sp.Start < end || sp.End > len(m.Text) || sp.Start >= sp.End {
			t.Fatalf("span %v comes after %d in %d bytes\n%s", sp, end, len(m.Text), m.Text)
		}
		end = sp.End
		b := m.Blocks[sp.Path[0]]
		if sp.Start < b.Start || sp.End > b.End {
			t.Fatalf("span %v is not in its block %v\n%s", sp, b, m.Text)
		}
		if !n.IsText() {
			continue
		}
		shown += sp.To - sp.From
		if got, want := m.Text[sp.Start:sp.End], n.Text[sp.From:sp.To]; len(got) == len(want) && got != want {
			t.Fatalf("span %v is %q, want %q\n%s", sp, got, want, m.Text)
		}
	}
	if want := len(textOf(doc)); shown != want {
		t.Fatalf("the spans show %d bytes of text, want %d\n%s", shown, want, m.Text)
	}
}

func textOf(doc *pm.Node) string { return doc.TextContent() }

// TestMarkdown compares documents with testdata/*.md, which -update rewrites, and with the
// trees next to them.
func TestMarkdown(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".out.md") {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			stable(t, pm.TipTap(), string(in))
			doc := parse(t, pm.TipTap(), string(in))
			tree, err := json.MarshalIndent(doc, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(file, ".md")+".json", string(tree)+"\n")
			golden(t, strings.TrimSuffix(file, ".md")+".out.md", pm.TipTap().Render(doc))
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestRenderOutsideTheSchema(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for _, tc := range []struct{ name, in, want string }{
		{"a block around blocks", `{"type":"details","content":[{"type":"summary","content":[{"type":"text","text":"a"}]},{"type":"paragraph","content":[{"type":"text","text":"b"}]}]}`, "x\n\na\n\nb\n\ny\n"},
		{"a leaf", `{"type":"video","attrs":{"src":"v"}}`, "x\n\ny\n"},
		{"a mark", `{"type":"paragraph","content":[{"type":"text","text":"a "},{"type":"text","marks":[{"type":"comment--abcdefgh"},{"type":"bold"}],"text":"b"},{"type":"text","marks":[{"type":"bold"}],"text":" c"}]}`, "x\n\na **b c**\n\ny\n"},
		{"an atom", `{"type":"paragraph","content":[{"type":"text","text":"a "},{"type":"emoji","content":[{"type":"text","text":"*"}]}]}`, "x\n\na *\n\ny\n"},
		{"bare text", `{"type":"text","text":"# a"}`, "x\n\n\\# a\n\ny\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var n pm.Node
			if err := json.Unmarshal([]byte(tc.in), &n); err != nil {
				t.Fatal(err)
			}
			para := func(s string) *pm.Node { return pm.Elem("paragraph", nil, pm.Text(s)) }
			if got := s.Render(pm.Elem("doc", nil, para("x"), &n, para("y"))); got != tc.want {
				t.Errorf("Render = %q, want %q", got, tc.want)
			}
		})
	}
}

// TestRenderAnything renders trees that obey no schema.
func TestRenderAnything(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(200)) {
				doc := pm.Elem("doc", nil, newGenerator(s, seed).anything(0))
				parse(t, s, s.RenderMap(doc).Text)
			}
		})
	}
}

// TestParseIsBounded times input that is slow for parsers against prose of the same size in
// the same run. The limit is 1,000 times as long; the guards keep it under 200.
func TestParseIsBounded(t *testing.T) {
	t.Parallel()
	if _, err := pm.TipTap().Parse(strings.Repeat("a", pm.MaxMarkdown+1)); !errors.Is(err, pm.ErrTooLarge) {
		t.Errorf("Parse of too much: %v", err)
	}
	s := pm.TipTap()
	took := func(md string) time.Duration {
		start := time.Now()
		parse(t, s, md)
		return time.Since(start)
	}
	prose := s.Render(prose(rand.New(rand.NewPCG(1, 1)), 800))
	best := min(took(prose), took(prose), took(prose))
	inputs := map[string]string{
		"definitions": strings.Repeat("[a]: b\n", 80_000),
		"wide table":  strings.Repeat("a|", 20_000) + "\n" + strings.Repeat("-|", 20_000) + "\n" + strings.Repeat("|\n", 10_000),
		"emphasis":    strings.Repeat("*a_ ", 100_000),
		"deep list":   strings.Repeat("1. ", 20_000) + "a" + strings.Repeat("\n", 20_000) + "a",
	}
	for _, bomb := range bombs {
		inputs[strconv.Quote(bomb)] = strings.Repeat(bomb, len(prose)/len(bomb))
	}
	for name, md := range inputs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if d, limit := took(md), 1000*best*time.Duration(1+len(md)/len(prose)); d > limit {
				t.Errorf("Parse of %d bytes took %v, and of %d bytes of prose %v", len(md), d, len(prose), best)
			}
			if md := s.Render(parse(t, s, md)); len(md) < pm.MaxMarkdown {
				parse(t, s, md)
			}
		})
	}
}

// bombs are repeated to fill a document.
var bombs = []string{
	">", "> ", "- ", "1. ", "* a\n", "-\n", "- - - -\n\n", "\n", "*", "**a ", "*a_ ", "_a ", "a**b", "~", "~~a ", "`", "` `` ",
	"[", "]", "![", "[a](", "[a](b)", "[[a](b)", "[]:", "[a]: b\n", "<", "<a ", "<a b=\"", "<!--", "<?", "</", "<u>", "<u></u>", "</u>",
	"<table>\n\n", "<table>\n<tr>\n<td>\n\n", "<td>\n\n", "<ol>\n\n1. a\n\n", "|", "|-", "a|b\n-|-\n", "|\n|-|\n|\n", "&", "&#1", "&amp;",
	"http://", "www.a.", "a@b.", "\\", "\\\n", "  \n", "\t", "    a\n", "```\n", "~~~\n", "# ", "#\n", "=\n", "a\n=\n", "a\\\n", "<br>\n", "- [ ] ", "- [x] a\n  ",
	"<span data-type=\"mention\">", "![a](b) ", "\x00", "\xff", "\u00a0", "&nbsp;\n\n",
}

func show(doc *pm.Node) string { b, _ := json.Marshal(doc); return string(b) }

// rounds returns how many random documents a test uses: n times PM_ROUNDS.
func rounds(n int) int {
	if k, err := strconv.Atoi(os.Getenv("PM_ROUNDS")); err == nil {
		return n * k
	}
	return n
}
