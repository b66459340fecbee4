package prosemirror_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// child returns the child at a path.
func (r *replica) child(path ...int) any {
	r.t.Helper()
	var at any = r.f
	for _, i := range path {
		f, ok := at.(*yjs.XMLFragment)
		if e, isElement := at.(*yjs.XMLElement); isElement {
			f, ok = e.Fragment(), true
		}
		if ok {
			at, ok = f.Get(i)
		}
		if !ok {
			r.t.Fatalf("nothing at %v of %s", path, r.f)
		}
	}
	return at
}

func (r *replica) text(path ...int) *yjs.Text       { return r.child(path...).(*yjs.XMLText).Text() }
func (r *replica) elem(path ...int) *yjs.XMLElement { return r.child(path...).(*yjs.XMLElement) }

func newElem(name string, children ...any) *yjs.XMLElement {
	e := yjs.NewXMLElement(name)
	_ = e.Push(children...)
	return e
}

func linkTo(href string) yjs.Object {
	return yjs.Object{{Key: "link", Value: yjs.Object{
		{Key: "href", Value: href}, {Key: "target", Value: "_blank"}, {Key: "rel", Value: "noopener noreferrer nofollow"}, {Key: "class"}, {Key: "title"},
	}}}
}

// smallEdits are edits with the smallest update that an expert would make.
var smallEdits = []struct {
	name, from, to string
	best           func(r *replica)
}{
	{"a word", "the quick brown fox jumps", "the slow brown fox jumps", func(r *replica) {
		r.text(0, 0).Insert(4, "slow")
		r.text(0, 0).Delete(8, 5)
	}},
	{"a word goes", "the quick brown fox jumps", "the brown fox jumps", func(r *replica) { r.text(0, 0).Delete(4, 6) }},
	{"a sentence", "One thing. Another thing.", "One thing. In between. Another thing.", func(r *replica) { r.text(0, 0).Insert(11, "In between. ") }},
	{"a letter", "the quick brown fox jumsp", "the quick brown fox jumps", func(r *replica) {
		r.text(0, 0).Insert(23, "ps")
		r.text(0, 0).Delete(25, 2)
	}},
	{"three words", "alpha beta gamma delta epsilon zeta eta theta", "alpha BETA gamma delta EPSILON zeta eta THETA", func(r *replica) {
		for _, w := range []struct {
			at  int
			new string
		}{{6, "BETA"}, {23, "EPSILON"}, {40, "THETA"}} {
			r.text(0, 0).Insert(w.at, w.new)
			r.text(0, 0).Delete(w.at+len(w.new), len(w.new))
		}
	}},
	{"into bold", "the **quick brown** fox", "the **quick red brown** fox", func(r *replica) { r.text(0, 0).Insert(10, "red ") }},
	{"into a link", "see [this page](https://example.com/a) now", "see [this other page](https://example.com/a) now", func(r *replica) { r.text(0, 0).Insert(9, "other ") }},
	{"bold", "the quick brown fox", "the **quick** brown fox", func(r *replica) { _ = r.text(0, 0).Format(4, 5, yjs.Object{{Key: "bold", Value: yjs.Object{}}}) }},
	{"not bold", "the **quick** brown fox", "the quick brown fox", func(r *replica) { _ = r.text(0, 0).Format(4, 5, yjs.Object{{Key: "bold"}}) }},
	{"a link", "see this page now", "see [this page](https://example.com/a) now", func(r *replica) { _ = r.text(0, 0).Format(4, 9, linkTo("https://example.com/a")) }},
	{"a new bold word", "the quick fox", "the quick **brown** fox", func(r *replica) {
		_ = r.text(0, 0).InsertFormatted(10, "brown", yjs.Object{{Key: "bold", Value: yjs.Object{}}})
		_ = r.text(0, 0).InsertFormatted(15, " ", nil)
	}},
	{"a level", "# Title\n\ntext", "### Title\n\ntext", func(r *replica) { _ = r.elem(0).SetAttribute("level", 3) }},
	{"a task", "- [ ] one\n- [ ] two", "- [ ] one\n- [x] two", func(r *replica) { _ = r.elem(0, 1).SetAttribute("checked", true) }},
	{"a paragraph", "one\n\nthree", "one\n\ntwo words\n\nthree", func(r *replica) { _ = r.f.Insert(1, newElem("paragraph", yjs.NewXMLText("two words"))) }},
	{"a paragraph at the end", "one\n\ntwo", "one\n\ntwo\n\nthree", func(r *replica) { _ = r.f.Push(newElem("paragraph", yjs.NewXMLText("three"))) }},
	{"a paragraph goes", "one\n\ntwo\n\nthree", "one\n\nthree", func(r *replica) { _ = r.f.Delete(1, 1) }},
	{"a paragraph moves", "a short one\n\nwhat follows is longer\n\nand stays where it is", "what follows is longer\n\na short one\n\nand stays where it is", func(r *replica) {
		_ = r.f.Insert(2, newElem("paragraph", yjs.NewXMLText("a short one")))
		_ = r.f.Delete(0, 1)
	}},
	{"an item", "- one\n- three", "- one\n- two\n- three", func(r *replica) {
		_ = r.elem(0).Insert(1, newElem("listItem", newElem("paragraph", yjs.NewXMLText("two"))))
	}},
	{"a cell", "| a | b |\n| - | - |\n| 1 | 2 |", "| a | b |\n| - | - |\n| 1 | 2 and more |", func(r *replica) { r.text(0, 1, 1, 0, 0).Insert(1, " and more") }},
	{"a line of code", "```go\na := 1\nb := 2\n```", "```go\na := 1\nb := 3\n```", func(r *replica) {
		r.text(0, 0).Insert(12, "3")
		r.text(0, 0).Delete(13, 1)
	}},
	{"a line break", "one two", "one\\\ntwo", func(r *replica) {
		r.text(0, 0).Delete(3, 4)
		_ = r.elem(0).Push(newElem("hardBreak"), yjs.NewXMLText("two"))
	}},
	{"a split", "one two three\n\nend", "one two\n\nthree\n\nend", func(r *replica) {
		r.text(0, 0).Delete(7, 6)
		_ = r.f.Insert(1, newElem("paragraph", yjs.NewXMLText("three")))
	}},
	{"a join", "one two\n\nthree\n\nend", "one two three\n\nend", func(r *replica) {
		r.text(0, 0).Insert(7, " three")
		_ = r.f.Delete(1, 1)
	}},
	{"all places", "a cat and a cat\n\nno\n\na cat", "a dog and a dog\n\nno\n\na dog", func(r *replica) {
		for _, p := range [][3]int{{2, 0, 2}, {0, 0, 12}, {0, 0, 2}} {
			r.text(p[0], p[1]).Insert(p[2], "dog")
			r.text(p[0], p[1]).Delete(p[2]+3, 3)
		}
	}},
}

// TestUpdatesAreSmall makes the edits: an update has at most 1.2 times the bytes of the
// smallest one.
func TestUpdatesAreSmall(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for _, tc := range smallEdits {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, s, 3_000_000_000, parse(t, s, tc.from))
			b := r.copy(3_000_000_000)
			next := parse(t, s, tc.to)
			best := b.transact(func(*yjs.Txn) { tc.best(b) })
			if got := b.read(); !got.Equal(next) {
				t.Fatalf("the best edit is wrong: %s", treeDiff(next, got))
			}
			update, _ := r.write(next)
			if got := r.read(); !got.Equal(next) {
				t.Fatalf("the document after Write: %s", treeDiff(next, got))
			}
			if float64(len(update)) > 1.2*float64(len(best)) {
				t.Errorf("Write made %d bytes, %d are enough", len(update), len(best))
			}
		})
	}
}

// editWords makes one change of a word, in whole words or in letters.
func editWords(r *rand.Rand, words []string) []string {
	k := r.IntN(len(words))
	switch r.IntN(3) {
	case 0:
		return slices.Insert(slices.Clone(words), k, sentence(r, 2))
	case 1:
		if len(words) > 4 {
			return slices.Delete(slices.Clone(words), k, k+1)
		}
	}
	words = slices.Clone(words)
	words[k] = sentence(r, 1)
	return words
}

// TestOthersStay edits words while others have carets in words and type: carets in words that
// stay do not move, and nothing is lost.
func TestOthersStay(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	for seed := range uint64(rounds(100)) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		doc := prose(rnd, 6)
		r := seeded(t, s, 1, doc)
		type caret struct {
			word string
			in   int
			at   yjs.RelativePosition
		}
		var carets []caret
		lines := make([][]string, len(doc.Content))
		for i, p := range doc.Content {
			at := 0
			lines[i] = strings.Split(p.Content[0].Text, " ")
			for _, w := range lines[i] {
				in := 1 + rnd.IntN(len(w)-1) // short words may occur twice
				for _, assoc := range []int{-1, 0}[:2*min(1, len(w)/5)] {
					p, err := r.d.RelativePosition(r.text(i, 0), at+in, assoc)
					if err != nil {
						t.Fatal(err)
					}
					carets = append(carets, caret{w, in, p})
				}
				at += len(w) + 1
			}
		}
		other := r.copy(2)
		typed := map[string]bool{}
		theirs := other.transact(func(*yjs.Txn) {
			for i := range lines {
				w := fmt.Sprintf("<typed%d>", i)
				text := other.text(i, 0)
				text.Insert(rnd.IntN(text.Len()+1), w)
				typed[w] = true
			}
		})
		next := &pm.Node{Type: "doc"}
		stay := map[string]bool{}
		for i := range lines {
			words := lines[i]
			for range rnd.IntN(3) {
				words = editWords(rnd, words)
			}
			for _, w := range words {
				stay[w] = true
			}
			next.Content = append(next.Content, pm.Elem("paragraph", nil, pm.Text(strings.Join(words, " "))))
		}
		ours, _ := r.write(next)
		for _, c := range carets {
			typ, index, ok := r.d.AbsolutePosition(c.at)
			text, isText := typ.(*yjs.XMLText)
			if !ok || !isText {
				t.Fatalf("seed %d: the caret in %q is gone", seed, c.word)
			}
			if !stay[c.word] {
				continue
			}
			str := text.Text().String()
			if from := index - c.in; from < 0 || !strings.HasPrefix(str[from:], c.word) {
				t.Fatalf("seed %d: the caret after %q of %q is after %q", seed, c.word[:c.in], c.word, str[:index])
			}
		}
		r.apply(theirs)
		other.apply(ours)
		if a, b := show(r.read()), show(other.read()); a != b {
			t.Fatalf("seed %d: the replicas differ:\n%s\n%s", seed, a, b)
		}
		all := r.read().TextContent()
		for w := range typed {
			if strings.Count(all, w) != 1 {
				t.Fatalf("seed %d: %s occurs %d times in %q", seed, w, strings.Count(all, w), all)
			}
			all = strings.Replace(all, w, "", 1)
		}
		if want := next.TextContent(); all != want {
			t.Fatalf("seed %d: without what was typed the text is\n%q, want\n%q", seed, all, want)
		}
	}
}

// TestOtherBlocksStay moves, inserts and deletes blocks while others type in them.
func TestOtherBlocksStay(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	r := seeded(t, s, 1, parse(t, s, "# Title\n\na paragraph that moves\n\n- one\n- two\n- three\n\nthis is a longer paragraph, and it stays where it is\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\nlast"))
	other := r.copy(2)
	theirs := other.transact(func(*yjs.Txn) {
		other.text(0, 0).Insert(5, " typed")
		other.text(2, 1, 0, 0).Insert(3, " typed")
		other.text(3, 0).Insert(4, " typed")
		other.text(4, 1, 1, 0, 0).Insert(1, " typed")
	})
	ours, _ := r.write(parse(t, s, "# Title\n\n- zero\n- one\n- two\n\nthis is a longer paragraph, and it stays where it is\n\na paragraph that moves\n\n| a | new | b |\n| - | - | - |\n| 1 | x | 2 |\n\nlast"))
	r.apply(theirs)
	other.apply(ours)
	want := "# Title typed\n\n- zero\n- one\n- two typed\n\nthis typed is a longer paragraph, and it stays where it is\n\na paragraph that moves\n\n| a | new | b |\n| --- | --- | --- |\n| 1 | x | 2 typed |\n\nlast\n"
	for i, r := range []*replica{r, other} {
		if got := s.Render(r.read()); got != want {
			t.Errorf("replica %d:\n%s\nwant\n%s", i, got, want)
		}
	}
}

// TestEmptiedText empties a paragraph while somebody types in it and fills it again: the text
// type stays the same.
func TestEmptiedText(t *testing.T) {
	t.Parallel()
	s := pm.TipTap()
	r := seeded(t, s, 1, parse(t, s, "one\n\ntwo\n\nthree"))
	text, other := r.text(1, 0), r.copy(2)
	theirs := other.transact(func(*yjs.Txn) { other.text(1, 0).Insert(1, "typed") })
	ours, _ := r.write(parse(t, s, "one\n\n&nbsp;\n\nthree"))
	if got := r.read().Content[1]; len(got.Content) != 0 {
		t.Fatalf("the emptied paragraph is %s", show(got))
	}
	other.apply(ours)
	if got := other.read().Content[1].TextContent(); got != "typed" && theirs != nil {
		t.Errorf("what was typed in the emptied paragraph is %q", got)
	}
	r.write(parse(t, s, "one\n\nnew *words*\n\nthree"))
	if r.text(1, 0) != text || r.elem(1).Len() != 1 {
		t.Errorf("the filled paragraph has another text: %s", r.f)
	}
}
