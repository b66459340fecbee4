package prosemirror_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
)

func TestMerge(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for _, tt := range []struct{ name, base, next, now, want string }{
		{"nobody wrote meanwhile", "one\n\ntwo\n", "one\n\n2\n", "one\n\ntwo\n", "one\n\n2\n"},
		{"nothing is asked for", "one\n", "one\n", "one\n\ntwo\n", "one\n\ntwo\n"},
		{"both did the same", "one\n", "one\n\ntwo\n", "one\n\ntwo\n", "one\n\ntwo\n"},
		{"other blocks", "one\n\ntwo\n\nthree\n", "1\n\ntwo\n\nthree\n", "one\n\ntwo\n\n3\n", "1\n\ntwo\n\n3\n"},
		{"other words of a paragraph", "the quick fox\n", "the slow fox\n", "the quick brown fox jumps\n", "the slow brown fox jumps\n"},
		{"a word, and one before it", "the quick fox\n", "the quick cat\n", "the quick brown fox\n", "the quick brown cat\n"},
		{"the same word", "the quick fox\n", "the slow fox\n", "the lazy fox\n", "the slow lazy fox\n"},
		{"the same word in the same way", "the quick fox\n", "the slow fox\n", "the slow fox runs\n", "the slow fox runs\n"},
		{"the same word in the same way, and words after it", "Last.\n", "End.\n", "End. Typed before.\n", "End. Typed before.\n"},
		{"the same word in the same way, after words after it", "Last.\n", "End. Typed before.\n", "End.\n", "End. Typed before.\n"},
		{"at the same end", "one\n", "one\n\nthey\n", "one\n\nwe\n", "one\n\nthey\n\nwe\n"},
		{"in an empty document", "", "Hello\n", "World\n", "Hello World\n"},
		{"a mark, and words in it", "make this bold now\n", "make **this bold** now\n", "make this very bold now\n", "make **this** very<strong> bold</strong> now\n"},
		{"marks on both sides", "a b c\n", "**a** b c\n", "a b *c*\n", "**a** b *c*\n"},
		{"the same word in two marks", "a b c\n", "a **b** c\n", "a *b* c\n", "a ***b*** c\n"},
		{"a deleted block", "one\n\ntwo\n\nthree\n", "one\n\nthree\n", "zero\n\none\n\ntwo\n\nthree\n", "zero\n\none\n\nthree\n"},
		{"a deleted block that changed", "one\n\ntwo\n\nthree\n", "one\n\nthree\n", "one\n\ntwo and more\n\nthree\n", "one\n\ntwo and more\n\nthree\n"},
		{"a changed block that is deleted", "one\n\ntwo\n\nthree\n", "one\n\ntwo and more\n\nthree\n", "one\n\nthree\n", "one\n\ntwo and more\n\nthree\n"},
		{"another type, and words in it", "one\n\ntwo\n", "# one\n\ntwo\n", "one more\n\ntwo\n", "# one\n\none more\n\ntwo\n"},
		{"items of a list", "- a\n- b\n- c\n", "- a\n- c\n- d\n", "- a\n- b\n- c and more\n", "- a\n- c and more\n- d\n"},
		{"a task", "- [ ] a\n- [ ] b\n", "- [x] a\n- [ ] b\n", "- [ ] a\n- [ ] b and c\n", "- [x] a\n- [ ] b and c\n"},
		{"cells", "| a | b |\n| --- | --- |\n| c | d |\n", "| a | b |\n| --- | --- |\n| 1 | d |\n", "| a | b |\n| --- | --- |\n| c | 2 |\n", "| a   | b   |\n| --- | --- |\n| 1   | 2   |\n"},
		{"a level", "# one two\n", "## one two\n", "# one two three\n", "## one two three\n"},
		{"pairs of surrogates", "a 😀 b 😀 c\n", "a 😀 B 😀 c\n", "a 😀 b 😀 c 😀\n", "a 😀 B 😀 c 😀\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := s.Merge(parse(t, s, tt.now), parse(t, s, tt.base), parse(t, s, tt.next))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Check(got); err != nil {
				t.Errorf("Merge gives an invalid document: %v", err)
			}
			if md := s.Render(got); strings.Join(strings.Fields(md), " ") != strings.Join(strings.Fields(tt.want), " ") {
				t.Errorf("Merge gives\n%s\nwant\n%s", md, tt.want)
			}
		})
	}
}

// TestMergeKeepsWhatMarkdownDoesNotShow merges into a document with an application's own node.
func TestMergeKeepsWhatMarkdownDoesNotShow(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	callout := pm.Elem("callout", pm.Attrs{"kind": "note"}, pm.Elem("paragraph", nil, pm.Text("inside")))
	doc := pm.Elem("doc", nil, pm.Elem("paragraph", nil, pm.Text("one")), callout, pm.Elem("paragraph", nil, pm.Text("two and more")))
	got, err := s.Merge(doc, parse(t, s, "one\n\ninside\n\ntwo\n"), parse(t, s, "1\n\ninside\n\ntwo\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := pm.Elem("doc", nil, pm.Elem("paragraph", nil, pm.Text("1")), callout, pm.Elem("paragraph", nil, pm.Text("two and more")))
	if !got.Equal(want) {
		t.Errorf("Merge gives\n%s\nwant the callout kept", s.Render(got))
	}
}

// TestMergeOfRandomDocuments merges cases with a known result.
func TestMergeOfRandomDocuments(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for seed := range uint64(200) {
		g := newGenerator(s, seed)
		base, other := g.doc(), g.doc()
		for _, tt := range []struct {
			name                  string
			now, base, next, want *pm.Node
		}{
			{"only the caller changed it", base, base, other, other},
			{"only others changed it", other, base, base, other},
			{"both made the same of it", other, base, other, other},
		} {
			if got, err := s.Merge(tt.now, tt.base, tt.next); err != nil || !got.Equal(tt.want) {
				t.Errorf("%d: %s: Merge gives\n%s (%v), want\n%s", seed, tt.name, s.Render(got), err, s.Render(tt.want))
			}
		}
		// Whatever both did, the result is valid.
		got, err := s.Merge(g.doc(), base, other)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(got); err != nil {
			t.Errorf("%d: Merge gives an invalid document: %v", seed, err)
		}
	}
}

// TestMergeLosesNoWord deletes and inserts words of a list on both sides: each insertion
// appears once, no deleted word remains, and the rest is in order.
func TestMergeLosesNoWord(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		var base [][]string // words by item
		for i := range 4 {
			var item []string
			for j := range 6 {
				item = append(item, fmt.Sprintf("w%d%d", i, j))
			}
			base = append(base, item)
		}
		gone, added := map[string]bool{}, map[string]bool{}
		change := func(side string) [][]string {
			var out [][]string
			for i, item := range base {
				var words []string
				for j, w := range item {
					if r.IntN(6) == 0 {
						add := fmt.Sprintf("%s%d%d", side, i, j)
						words, added[add] = append(words, add), true
					}
					if j > 0 && r.IntN(8) == 0 { // keep the first, so that items have something in common
						gone[w] = true
						continue
					}
					words = append(words, w)
				}
				out = append(out, words)
			}
			return out
		}
		md := func(items [][]string) string {
			var b strings.Builder
			for _, words := range items {
				b.WriteString("- " + strings.Join(words, " ") + "\n")
			}
			return b.String()
		}
		next, now := md(change("n")), md(change("c"))
		got, err := s.Merge(parse(t, s, now), parse(t, s, md(base)), parse(t, s, next))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(strings.ReplaceAll(s.Render(got), "- ", ""))
		var old, want []string
		for _, w := range words {
			if !added[w] {
				old = append(old, w)
			}
			delete(added, w)
		}
		for _, w := range slices.Concat(base...) {
			if !gone[w] {
				want = append(want, w)
			}
		}
		if len(added) > 0 || !slices.Equal(old, want) {
			t.Fatalf("%d: Merge of\n%s\nnow\n%s\ninto\n%s\ngives\n%s\nwithout %v, and of the old words %v, want %v", seed, next, now, md(base), s.Render(got), added, old, want)
		}
	}
}

// TestMergeOfManyBlocks inserts on both sides the most blocks that fit into 1 MiB of Markdown.
// Comparing all pairs would exceed the test's time limit.
func TestMergeOfManyBlocks(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	const n = pm.MaxMarkdown / len("a\n\n")
	doc := func(words ...string) *pm.Node {
		content := make([]*pm.Node, n)
		for i := range content {
			content[i] = pm.Elem("paragraph", nil, pm.Text(words[i%len(words)]))
		}
		return pm.Elem("doc", nil, content...)
	}
	got, err := s.Merge(doc("a", "b"), pm.Elem("doc", nil, pm.Elem("paragraph", nil)), doc("a"))
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, block := range got.Content {
		count[block.TextContent()]++
	}
	if count["a"] != n || count["b"] != n/2 || len(got.Content) != n+n/2 {
		t.Errorf("Merge gives %d blocks, %v, want %d a and %d b", len(got.Content), count, n, n/2)
	}
}
