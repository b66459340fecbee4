package prosemirror_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pm "signalbox.dev/pkg/prosemirror"
)

const plan = "# Plan\n\nWe ship on Monday. Monday it is.\n\n- one\n- two\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\nThe end, *really*.\n"

func TestEdit(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for _, tc := range []struct {
		name, from, to string
		all            bool
		want           string // what changes in plan
		ops            int
	}{
		{"a word", "ship", "sail", false, "We sail on Monday. Monday it is.", 1},
		{"all of them", "Monday", "Friday", true, "We ship on Friday. Friday it is.", 1},
		{"a format", "ship", "**ship**", false, "We **ship** on Monday. Monday it is.", 1},
		{"Markdown as it is shown", "*really*", "really", false, "The end, really.", 1},
		{"an item more", "- two", "- two\n- three", false, "- two\n- three", 1},
		{"a cell", "| 1 |", "| 10 |", false, "| 10 | 2 |", 1},
		{"two blocks become one", "is.\n\n- one", "is. one", false, "We ship on Monday. Monday it is. one\n\n- two", 3},
		{"a block becomes another", "# Plan", "## Plan", false, "## Plan", 1},
		{"a block goes", "# Plan\n\n", "", false, "", 1},
		{"blocks come", "# Plan\n", "# Plan\n\nNew.\n", false, "# Plan\n\nNew.", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			old := parse(t, s, plan)
			next, _, err := s.Edit(old, tc.from, tc.to, tc.all)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := s.Render(next), strings.ReplaceAll(plan, tc.from, tc.to); got != s.Render(parse(t, s, want)) || !strings.Contains(got, tc.want) {
				t.Errorf("Edit(%q, %q) = %s", tc.from, tc.to, got)
			}
			if err := s.Check(next); err != nil {
				t.Error(err)
			}
			if ops := checkDiff(t, s, old, next); len(ops) > tc.ops {
				t.Errorf("Edit(%q, %q) takes %d changes, want at most %d: %s", tc.from, tc.to, len(ops), tc.ops, showOps(ops))
			}
		})
	}
}

func TestEditRefuses(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	doc := parse(t, s, plan)
	_, _, err := s.Edit(doc, "Monday", "x", false)
	var match *pm.MatchError
	if !errors.As(err, &match) {
		t.Fatalf("Edit: %v", err)
	}
	line := "We ship on Monday. Monday it is."
	if diff := cmp.Diff(&pm.MatchError{Count: 2, Lines: []int{3, 3}, Texts: []string{line, line}}, match); diff != "" {
		t.Errorf("MatchError (-want +got):\n%s", diff)
	}
	for _, from := range []string{"", "Tuesday"} {
		if _, _, err := s.Edit(doc, from, "x", true); !errors.As(err, &match) || match.Count != 0 {
			t.Errorf("Edit(%q): %v", from, err)
		}
	}
	if _, _, err := s.Edit(doc, "Monday", strings.Repeat("x", pm.MaxMarkdown), true); !errors.Is(err, pm.ErrTooLarge) {
		t.Errorf("Edit of too much: %v", err)
	}
}

// TestEditKeepsTheRest edits next to content that Markdown does not show.
func TestEditKeepsTheRest(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	comment := pm.Mark{Type: "comment--abcdefgh", Attrs: pm.Attrs{"id": 1}}
	p := func(nodes ...*pm.Node) *pm.Node { return pm.Elem("paragraph", nil, nodes...) }
	video := pm.Elem("video", pm.Attrs{"src": "v"}, p(pm.Text("a film")))
	old := pm.Elem("doc", nil, p(pm.Text("one "), pm.Text("two three", comment)), video, p(pm.Text("four")))
	next, _, err := s.Edit(old, "two", "two and a half", false)
	if err != nil {
		t.Fatal(err)
	}
	ops := s.Diff(old, next)
	got, err := pm.Apply(old, ops)
	if err != nil {
		t.Fatal(err)
	}
	want := pm.Elem("doc", nil, p(pm.Text("one "), pm.Text("two and a half three", comment)), video, p(pm.Text("four")))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after the edit (-want +got):\n%s", diff)
	}
	next, err = s.Replace(old, "one two three\n\na film\n\nfour\n\nfive\n")
	if err != nil {
		t.Fatal(err)
	}
	want = pm.Elem("doc", nil, append(old.Content[:3:3], p(pm.Text("five")))...)
	if diff := cmp.Diff(want, next); diff != "" {
		t.Errorf("after Replace (-want +got):\n%s", diff)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for _, tc := range []struct {
		name, doc, md, want string
		ops                 int
	}{
		{"to an empty document", "", "a", "a\n", 1},
		{"to a paragraph", "a", "b", "a\n\nb\n", 1},
		{"into the empty paragraph at the end", "# a", "b", "# a\n\nb\n", 1},
		{"a heading", "# a", "# b", "# a\n\n# b\n", 1},
		{"a list after a list", "- a", "- b", "- a\n\n* b\n", 1},
		{"nothing", "# a", " \n", "# a\n", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			old := parse(t, s, tc.doc)
			next, err := s.Append(old, tc.md)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Render(next); got != tc.want {
				t.Errorf("Append(%q) = %q, want %q", tc.md, got, tc.want)
			}
			if ops := checkDiff(t, s, old, next); len(ops) != tc.ops {
				t.Errorf("Append(%q) takes %d changes, want %d: %s", tc.md, len(ops), tc.ops, showOps(ops))
			}
		})
	}
}

// TestRandomEdits replaces pieces of the Markdown of random documents and compares the result
// with a parse of the new Markdown.
func TestRandomEdits(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(150)) {
				g := newGenerator(s, seed)
				old := g.doc()
				text := strings.ToValidUTF8(s.Render(old), "")
				if text == "" {
					continue
				}
				i := g.IntN(len(text))
				j := min(len(text), i+1+g.IntN(20))
				from := strings.ToValidUTF8(text[i:j], "")
				next, _, err := s.Edit(old, from, g.text(2), true)
				if from == "" || !strings.Contains(text, from) {
					continue
				}
				if err != nil {
					t.Fatalf("seed %d: Edit(%q): %v", seed, from, err)
				}
				if err := s.Check(next); err != nil {
					t.Fatalf("seed %d: Edit(%q) made %s: %v", seed, from, show(next), err)
				}
				checkDiff(t, s, old, next)
			}
		})
	}
}
