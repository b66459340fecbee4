package prosemirror

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// blocksOf are Markdown blocks that must not be split.
var blocksOf = []string{
	"# A heading\n", "A paragraph\nof two lines.\n", "Setext\n===\n", "```go\nfunc main() {\n\n\n# no heading\n}\n```\n",
	"~~~~\n~~~\n\ntext\n~~~~\n", "> a quote\n>\n> > deeper\n>\n> ```\n> code\n>\n> ```\n", "| a | b |\n| - | - |\n| 1 | 2 |\n",
	"- one\n\n  more of one\n\n  ```\n  code\n\n  - no item\n  ```\n\n- two\n  1. three\n\n     four\n", "1. one\n2. two\n\n   - [ ] x\n",
	"<table>\n<tr>\n<td>\n\n- a\n\n</td>\n<td>\n\nb\n\n</td>\n</tr>\n</table>\n", "<!-- a comment\n\nof two parts -->\n", "<pre>\n\ntext\n\n</pre>\n",
	"    indented\n\n    code\n", "see [this][ref] and [that][never]\n", "[ref]: https://example.com/ref\n", "---\n", "*a* `b` ~~c~~ [d](e)\n", "Zürich 😀 日本\n",
}

// TestSectionsAreTheSame cuts documents into very small sections, which parse like the whole.
func TestSectionsAreTheSame(t *testing.T) {
	t.Parallel()
	s := TipTap()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		var b strings.Builder
		for range 1 + r.IntN(30) {
			b.WriteString(blocksOf[r.IntN(len(blocksOf))])
			b.WriteString(strings.Repeat("\n", 1+r.IntN(2)))
		}
		md := b.String()
		want, err := s.Parse(md)
		if err != nil {
			t.Fatal(err)
		}
		sections := cutMarkdown(clean(md), 200)
		if len(sections) < 2 && len(md) > 800 {
			t.Fatalf("seed %d: %d bytes are not cut", seed, len(md))
		}
		if got := s.Fit(s.parseSections(sections, nil)); !got.Equal(want) {
			t.Fatalf("seed %d: in %d sections\n%s\nwant\n%s\nof\n%s", seed, len(sections), s.Render(got), s.Render(want), md)
		}
	}
}

func TestSectionsOfLongBlocks(t *testing.T) {
	t.Parallel()
	s := TipTap()
	var list, code strings.Builder
	for i := range 300 {
		fmt.Fprintf(&list, "- item %d\n\n  more of it\n", i)
		fmt.Fprintf(&code, "line %d\n\n", i)
	}
	for _, tc := range []struct {
		name, md string
		exact    bool
	}{
		{"a list", list.String(), true},
		{"code", "```\n" + code.String() + "```\n\nend\n", false},
		{"code without an end", "```\n" + code.String(), false},
		{"a line", strings.Repeat("wörd ", 1000), false},
		{"a comment without an end", "<!--\n" + code.String(), false},
		{"tables without an end", strings.Repeat("<table>\n\ntext\n\n", 200), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			sections := cutMarkdown(tc.md, 500)
			var all strings.Builder
			for _, p := range sections {
				if len(p.text) > 1000 || p.text == "" {
					t.Errorf("a section has %d bytes", len(p.text))
				}
				all.WriteString(p.text)
			}
			if all.String() != tc.md || len(sections) < 2 {
				t.Fatalf("%d sections are not the document", len(sections))
			}
			doc := s.Fit(s.parseSections(sections, nil))
			if err := s.Check(doc); err != nil {
				t.Fatal(err)
			}
			if want, _ := s.Parse(tc.md); tc.exact && !doc.Equal(want) {
				t.Errorf("in sections it is\n%s", s.Render(doc))
			}
		})
	}
}

func TestParseLarge(t *testing.T) {
	t.Parallel()
	s := TipTap()
	md := strings.Repeat(strings.Join(blocksOf, "\n")+"\n", 3<<19/len(strings.Join(blocksOf, "\n")))
	if _, err := s.Parse(md); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("Parse: %v, want ErrTooLarge", err)
	}
	doc, err := s.ParseLarge(md)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(doc); err != nil {
		t.Fatal(err)
	}
	again, err := s.ParseLarge(s.Render(doc))
	if err != nil || !again.Equal(doc) {
		t.Errorf("ParseLarge of what Render wrote is another document: %v", err)
	}
	if _, err := s.ParseLarge(strings.Repeat("a", MaxLarge+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("ParseLarge over MaxLarge: %v", err)
	}
}
