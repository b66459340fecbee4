package edit_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/edit"
)

// blocks are the parts of random documents.
var blocks = []string{
	"# Heading", "Some *words* here.", "A **bold** and a [link](https://example.org).", "- one\n- two\n  - three", "1. first\n2. second",
	"- [ ] open\n- [x] done", "> quoted\n>\n> - in a list", "```go\ncode\n```", "| a | b |\n| --- | --- |\n| c | d |", "---", "Last words.",
}

// compose returns a random document with some of the blocks of old.
func compose(rnd *rand.Rand, old []string) []string {
	var out []string
	for _, b := range old {
		if rnd.IntN(3) > 0 {
			out = append(out, b)
		}
	}
	for range rnd.IntN(4) {
		out = append(out, blocks[rnd.IntN(len(blocks))])
	}
	rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// rewrite replaces the content of a shared document, and returns the update.
func rewrite(t testing.TB, doc *yjs.Doc, markdown string) (update []byte) {
	t.Helper()
	defer doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })()
	if _, err := editor.Write(doc, editor.Keep(editor.Tree(doc), parse(t, markdown))); err != nil {
		t.Fatal(err)
	}
	return update
}

// scribble inserts a word into some of the texts of a document, and returns how many.
func scribble(rnd *rand.Rand, doc *yjs.Doc) (words int) {
	var walk func(f *yjs.XMLFragment)
	walk = func(f *yjs.XMLFragment) {
		f.Each(func(n any) bool {
			switch n := n.(type) {
			case *yjs.XMLElement:
				walk(n.Fragment())
			case *yjs.XMLText:
				if rnd.IntN(4) == 0 {
					words++
					n.Text().Insert(rnd.IntN(n.Text().Len()+1), "xyzzy")
				}
			}
			return true
		})
	}
	walk(doc.XMLFragment(prosemirror.Field))
	return words
}

// undo reverts an update in a document and returns the update that does so.
func undo(t testing.TB, doc *yjs.Doc, before, change []byte) []byte {
	t.Helper()
	u, err := editor.Undo(before, change)
	var inverse []byte
	if err == nil {
		inverse, err = u.Inverse(doc)
	}
	if err == nil && inverse != nil {
		err = doc.ApplyUpdate(inverse, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return inverse
}

// TestUndo rewrites random documents and undoes that. Without other edits the document is as
// before; other edits stay, and the document stays valid.
func TestUndo(t *testing.T) {
	t.Parallel()
	schema := prosemirror.TipTap()
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		begin := compose(rnd, nil)
		doc, err := editor.New("seed", parse(t, strings.Join(begin, "\n\n")))
		if err != nil {
			t.Fatal(err)
		}
		before, was := doc.EncodeStateAsUpdateV2(nil), editor.Tree(doc)
		change := rewrite(t, doc, strings.Join(compose(rnd, begin), "\n\n"))
		if change == nil {
			continue
		}
		middle, with := doc.EncodeStateAsUpdateV2(nil), editor.Tree(doc)
		words := 0
		if seed%2 == 1 {
			words = scribble(rnd, doc)
			middle, with = doc.EncodeStateAsUpdateV2(nil), editor.Tree(doc)
		}
		inverse := undo(t, doc, before, change)
		is := editor.Tree(doc)
		if words == 0 && !is.Equal(was) {
			t.Errorf("seed %d: the content after undo is\n%s\nwant\n%s", seed, editor.Markdown(is), editor.Markdown(was))
		}
		if got := strings.Count(edit.Plain(is), "xyzzy"); got != words {
			t.Errorf("seed %d: after undo the document has %d of %d inserted words:\n%s", seed, got, words, editor.Markdown(is))
		}
		if err := schema.Check(is); err != nil {
			t.Errorf("seed %d: the document after undo is invalid: %v", seed, err)
		}
		if undo(t, doc, middle, inverse); !editor.Tree(doc).Equal(with) {
			t.Errorf("seed %d: the content after redo is\n%s\nwant\n%s", seed, editor.Markdown(editor.Tree(doc)), editor.Markdown(with))
		}
		if t.Failed() {
			return
		}
	}
}

func TestUndoWithoutHistory(t *testing.T) {
	t.Parallel()
	doc, err := editor.New("n", parse(t, "one two"))
	if err != nil {
		t.Fatal(err)
	}
	appended := rewrite(t, doc, "one two\n\nthree")
	replaced := rewrite(t, doc, "one 2\n\nthree")
	for name, tt := range map[string]struct {
		change []byte
		want   fault.Kind
	}{
		"what was deleted is not known": {replaced, fault.Conflict},
		"nothing was deleted":           {appended, 0},
	} {
		u, err := editor.Undo(nil, tt.change)
		if err != nil {
			t.Fatal(err)
		}
		inverse, err := u.Inverse(doc)
		if tt.want != 0 && (fault.KindOf(err) != tt.want || fault.From(err).Code != edit.CodeThinned || inverse != nil) {
			t.Errorf("%s: %v, want %s", name, err, edit.CodeThinned)
		}
		if tt.want == 0 && (err != nil || inverse == nil) {
			t.Errorf("%s: %d bytes, %v, want an update", name, len(inverse), err)
		}
	}
	if _, err := editor.Undo([]byte("nonsense"), appended); err == nil {
		t.Error("Undo with a malformed state succeeded")
	}
}

// BenchmarkUndo undoes one changed word in a document of 1,000 paragraphs.
func BenchmarkUndo(b *testing.B) {
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "Paragraph %d has a few words, and they are not much alike: %d.\n\n", i, i*i)
	}
	doc, err := editor.New("n", parse(b, text.String()))
	if err != nil {
		b.Fatal(err)
	}
	before := doc.EncodeStateAsUpdateV2(nil)
	change := rewrite(b, doc, strings.Replace(text.String(), "Paragraph 500", "Section 500", 1))
	for b.Loop() {
		u, err := editor.Undo(before, change)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := u.Inverse(doc); err != nil {
			b.Fatal(err)
		}
	}
}
