package prosemirror_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"

	pm "signalbox.dev/pkg/prosemirror"
)

func TestImportReportsLosses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		md   string
		want []string
	}{
		{"# a\n\n[`b`](u) **`c`** ***`d`***\n\n[![d](e)](f)", nil},
		{"[![d](e)](f)\n\n<a href=\"x\"><img src=\"y\" width=\"3\"></a>\n\n<u>a</u> <sup>b</sup>\n\na<br>b", nil},
		{"a\n\n<div>\nb\n</div>\n", []string{"3: the HTML <div> is kept as a code block"}},
		{"a\n\n<!-- b -->\n", []string{"3: the HTML <!-- b --> is kept as a code block"}},
		{"a\nb <kbd>c</kbd> <!-- d -->", []string{"2: the HTML <kbd> is kept as text", "2: the HTML <!-- d --> is kept as text"}},
		{"a\r\nb <b>c", []string{"2: the HTML <b> is kept as text"}},
		{"> - a\n>   <img src=\"x\" align=\"y\">", []string{"2: the HTML <img src=\"x\" align=\"y\"> is kept as text"}},
		{"<span class=\"x\">a</span> <a id=\"y\"></a>", []string{"1: the HTML <a id=\"y\"> is kept as text", "1: the HTML <span class=\"x\"> is kept as text"}},
		{"<a href=\"y\"></a>", []string{"1: the HTML <a href=\"y\"> is kept as text"}},
		{"a [](u) b", []string{"1: a link without text is kept as its address"}},
		{"a\n\nb ![c](d) e", []string{"3: an image within a paragraph is kept as an image of its own between paragraphs"}},
		{"# ![c](d) e", []string{"1: an image in a heading is kept as an image beside it"}},
		{"[![a](b)](c \"t\")", []string{"1: the title of a link around an image is kept as the link without it"}},
		{"![a [b](c)](d)", []string{"1: a link, an image or HTML in the text of an image is kept as text"}},
		{"1. [x] a", []string{"1: a task in a numbered list is kept as text"}},
		{"- [ ] a\n  - [x] b", []string{"1: tasks within a task is kept as tasks after it, on its level"}},
		{"- [ ] a\n\n  ---\n", []string{"1: a horizontalRule within a task is kept as paragraphs of the task, as far as it is text"}},
		{"- [ ] ![a](b)", []string{"1: an image within a task is kept as a link"}},
		{"a\n\n[b]: c", []string{"3: a link definition that nothing refers to is kept as text"}},
		{"[a]\n\n[a]: b\n[a]: c", []string{"4: a link definition that nothing refers to is kept as text"}},
		{"| a |\n| - |\n| b | c |", []string{"3: a cell after the last column of its table is kept as text in the last column"}},
		{strings.Repeat("<!-- a -->\n\n", 103), append(lines(100, "%d: the HTML <!-- a --> is kept as a code block"), "199: 3 more after this line is kept as those above")},
	} {
		_, losses, err := pm.TipTap().Import(tt.md)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range losses {
			got = append(got, fmt.Sprintf("%d: %s is kept as %s", l.Line, l.What, l.KeptAs))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Import(%.100q) tells (-want +got):\n%s", tt.md, diff)
		}
	}
}

// lines returns n messages, one per second line.
func lines(n int, format string) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(format, 2*i+1))
	}
	return out
}

// TestImportReportsLinesOfLargeMarkdown checks the line of a loss far down.
func TestImportReportsLinesOfLargeMarkdown(t *testing.T) {
	t.Parallel()
	md := strings.Repeat(strings.Repeat("word ", 200)+"\n\n", 2000) + "<div>a</div>\n"
	_, losses, err := pm.TipTap().Import(md)
	if want := []pm.Loss{{Line: 4001, What: "the HTML <div>", KeptAs: "a code block"}}; err != nil || !slices.Equal(losses, want) {
		t.Errorf("Import of %d bytes tells %v, %v, want %v", len(md), losses, err, want)
	}
}

// TestNothingVanishes imports READMEs full of content that a document cannot hold: every
// address and every word of theirs is in the document.
func TestNothingVanishes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/readme/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no READMEs", err)
	}
	for _, file := range files {
		md, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range missing(t, string(md)) {
			t.Errorf("%s: %s", file, problem)
		}
	}
}

// missing returns what is in a Markdown but neither in its document nor in its losses. It
// reads the Markdown with goldmark alone.
func missing(t testing.TB, md string) (problems []string) {
	t.Helper()
	s := pm.TipTap()
	doc, losses, err := s.Import(md)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(doc); err != nil {
		return []string{err.Error()}
	}
	rendered := s.Render(doc)
	if again := parse(t, s, rendered); !again.Equal(doc) {
		problems = append(problems, "it is another document when it is read back")
	}
	links := map[string]bool{}
	var said strings.Builder
	var collect func(n *pm.Node)
	collect = func(n *pm.Node) {
		said.WriteString(n.Text)
		for _, name := range []string{"src", "href", "alt", "title", "language"} {
			if v, ok := n.Attrs[name].(string); ok {
				links[v] = true
				said.WriteString("\n" + v + "\n")
			}
		}
		for _, m := range n.Marks {
			if v, ok := m.Attrs["href"].(string); ok {
				links[v] = true
			}
		}
		for _, c := range n.Content {
			collect(c)
		}
	}
	collect(doc)
	all := said.String()
	isReported := func(what string) bool {
		return slices.ContainsFunc(losses, func(l pm.Loss) bool { return strings.Contains(l.What, what) })
	}
	src := []byte(strings.ReplaceAll(md, "\r\n", "\n"))
	root := goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough, extension.TaskList, extension.Linkify)).Parser().Parse(text.NewReader(src))
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Link:
			if d := string(n.Destination); !links[d] && !isReported("in the text of an image") && !strings.ContainsAny(d, `\&`) {
				problems = append(problems, "the link to "+d+" is gone")
			}
		case *ast.Image:
			if d := string(n.Destination); !links[d] && !isReported("an image within a task") && !strings.ContainsAny(d, `\&`) {
				problems = append(problems, "the image "+d+" is gone")
			}
		case *ast.Text:
			for w := range strings.FieldsSeq(string(n.Segment.Value(src))) {
				if !strings.Contains(all, w) && !strings.ContainsAny(w, `\&`) {
					problems = append(problems, "the word "+w+" is gone")
				}
			}
		case *ast.RawHTML:
			raw := string(n.Segments.Value(src))
			if !strings.Contains(all, strings.ReplaceAll(raw, "\n", " ")) && !strings.Contains(rendered, raw) && !taken(raw, rendered) {
				problems = append(problems, "the HTML "+raw+" is gone")
			}
		case *ast.HTMLBlock:
			if raw := strings.TrimSpace(string(n.Lines().Value(src))); !strings.Contains(all, raw) && !taken(raw, rendered) {
				problems = append(problems, "the HTML "+raw+" is gone")
			}
		}
		return ast.WalkContinue, nil
	})
	return problems
}

// taken reports whether a document can hold the HTML, so that it may be written differently.
func taken(raw, rendered string) bool {
	for _, tag := range []string{"strong", "b", "em", "i", "s", "del", "strike", "code", "u", "mark", "sup", "sub", "a", "br", "img", "span", "table", "tr", "td", "th", "thead", "tbody", "ol"} {
		for _, begin := range []string{"<" + tag, "</" + tag} {
			if rest, ok := strings.CutPrefix(strings.ToLower(raw), begin); ok && (rest == "" || strings.ContainsAny(rest[:1], " />\n\t")) {
				if _, href, ok := strings.Cut(raw, `href="`); ok {
					href, _, _ = strings.Cut(href, `"`)
					return strings.Contains(rendered, href)
				}
				return true
			}
		}
	}
	return false
}
