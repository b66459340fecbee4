package prosemirror_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	pm "signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
)

// editor is a Node process that runs a TipTap editor; see bench/tiptap/oracle.mjs.
type editor struct {
	t   testing.TB
	in  *bufio.Writer
	out *bufio.Reader
}

const editorDir = "../../bench/tiptap"

// idle holds the editors that no test uses: starting one takes longer than most tests. They
// end when the pipe from this process closes.
var idle = make(chan *editor, 100)

func startEditor(t testing.TB) *editor {
	t.Helper()
	var e *editor
	select {
	case e = <-idle:
		e.t = t
	default:
		e = newEditor(t)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			idle <- e
		}
	})
	return e
}

func newEditor(t testing.TB) *editor {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed: what TipTap makes of our documents is not checked")
	}
	if _, err := os.Stat(filepath.Join(editorDir, "node_modules", "@tiptap", "core")); err != nil {
		t.Skip("bench/tiptap/node_modules is missing: run npm ci in bench/tiptap to check what TipTap makes of our documents")
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), node, "oracle.mjs")
	cmd.Dir = editorDir
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &editor{t: t, in: bufio.NewWriter(in), out: bufio.NewReaderSize(out, 1<<20)}
}

// view is what the editor shows, and the updates it wrote in response.
type view struct {
	JSON     any
	XML      string
	State    []byte
	Wrote    [][]byte
	Merged   []byte
	Problems []string
}

func (e *editor) ask(q map[string]any, into any) {
	e.t.Helper()
	if err := json.NewEncoder(e.in).Encode(q); err != nil {
		e.t.Fatal(err)
	}
	if err := e.in.Flush(); err != nil {
		e.t.Fatal(err)
	}
	line, err := e.out.ReadBytes('\n')
	if err != nil {
		e.t.Fatal(err)
	}
	var failed struct{ Error string }
	if err := json.Unmarshal(line, &failed); err == nil && failed.Error != "" {
		e.t.Fatalf("editor: %v: %s", q["cmd"], failed.Error)
	}
	if err := json.Unmarshal(line, into); err != nil {
		e.t.Fatal(err)
	}
}

func (e *editor) open(r *replica, options map[string]any) (v view) {
	e.t.Helper()
	e.ask(map[string]any{"cmd": "open", "state": r.d.EncodeStateAsUpdate(nil), "options": options}, &v)
	return v
}

func (e *editor) apply(update []byte) (v view) {
	e.t.Helper()
	e.ask(map[string]any{"cmd": "apply", "update": update}, &v)
	return v
}

func (e *editor) edit(steps ...[]any) (v view) {
	e.t.Helper()
	e.ask(map[string]any{"cmd": "edit", "steps": steps}, &v)
	return v
}

// same checks that the editor shows r's document and had nothing to correct.
func (v view) same(r *replica) {
	r.t.Helper()
	if len(v.Wrote) > 0 {
		r.t.Errorf("the editor wrote back %d updates; now it has\n%s\nours is\n%s", len(v.Wrote), v.XML, r.f)
	}
	if len(v.Problems) > 0 {
		r.t.Errorf("the editor has problems: %s", v.Problems)
	}
	v.shows(r)
}

// shows checks that the editor shows r's document.
func (v view) shows(r *replica) {
	r.t.Helper()
	data, err := r.s.JSON(r.read())
	if err != nil {
		r.t.Fatal(err)
	}
	var ours any
	if err := json.Unmarshal(data, &ours); err != nil {
		r.t.Fatal(err)
	}
	if diff := firstDiff("", v.JSON, ours); diff != "" {
		r.t.Errorf("the editor's document and ours differ: %s", diff)
	}
}

// firstDiff returns the path of the first difference between two JSON values, "" if they are
// equal. It is much faster than cmp.Diff for large, similar trees.
func firstDiff(path string, a, b any) string {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			break
		}
		for _, k := range slices.Sorted(maps.Keys(x)) {
			if d := firstDiff(path+"."+k, x[k], y[k]); d != "" {
				return d
			}
		}
		return ""
	case []any:
		y, ok := b.([]any)
		if !ok {
			break
		}
		for i := range min(len(x), len(y)) {
			if d := firstDiff(fmt.Sprintf("%s[%d]", path, i), x[i], y[i]); d != "" {
				return d
			}
		}
		if len(x) == len(y) {
			return ""
		}
	}
	if reflect.DeepEqual(a, b) {
		return ""
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return fmt.Sprintf("at %s\n%.2000s\n%.2000s", path, x, y)
}

// TestEditorTakesRandomDocuments writes random documents while an editor watches.
func TestEditorTakesRandomDocuments(t *testing.T) {
	t.Parallel()
	for name, s := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEditor(t)
			// After every remote change, the editor looks for a bare URL in the first paragraph
			// and turns it into a link in its view.
			options := map[string]any{"autolink": false}
			if name != "tiptap" {
				options["inlineImages"], options["nestedTasks"] = true, true
			}
			for seed := range uint64(rounds(15)) {
				g := newGenerator(s, seed)
				doc := g.doc()
				r := seeded(t, s, 1, doc)
				e.open(r, options).same(r)
				for range 4 {
					doc = s.Fit(g.mutate(doc))
					if update, _ := r.write(doc); update != nil {
						e.apply(update).same(r)
					}
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// agentEdits are documents as Markdown before and after an agent's edit.
var agentEdits = []struct{ name, from, to string }{
	{"a word", "the quick brown fox", "the slow brown fox"},
	{"a word in bold", "the **quick brown** fox", "the **quick red** fox"},
	{"bold begins", "the quick brown fox", "the **quick** brown fox"},
	{"bold ends", "the **quick** brown fox", "the quick brown fox"},
	{"marks within each other", "a b c d e", "a **b _c_ ~~d~~** e"},
	{"all marks", "b i s c u h p q", "**b** *i* ~~s~~ `c` <u>u</u> <mark>h</mark> <sup>p</sup> <sub>q</sub>"},
	{"marks cross", "**a b** c", "**a *b*** *c*"},
	{"code takes the place of bold", "**a b** c", "`a b` c"},
	{"a link", "see the page now", "see [the page](https://example.com/a) now"},
	{"a word in a link", "see [the page](https://example.com/a) now", "see [the whole page](https://example.com/a) now"},
	{"code in a link and in bold", "see `x` and [y](u) now", "see [`x`](https://example.com/a) and **`y` z** now"},
	{"a link, bold and code go", "see [**`x`**](https://example.com/a) now", "see x now"},
	{"an image leads somewhere", "![a](i.png)\n\nb", "[![a](i.png)](https://example.com/a)\n\nb"},
	{"badges", "b", "[![a](i.png)](https://example.com/a) [![c](j.png \"t\")](https://example.com/c)\n\nb"},
	{"a badge leads elsewhere", "[![a](i.png)](https://example.com/a)\n\nb", "[![a](i.png)](https://example.com/b)\n\nb"},
	{"a link elsewhere", "see [the page](https://example.com/a) now", "see [the page](https://example.com/b \"t\") now"},
	{"a link goes", "see [the page](https://example.com/a) now", "see the page now"},
	{"a hard break", "one two", "one\\\ntwo"},
	{"a hard break goes", "one\\\ntwo", "one two"},
	{"a break moves", "a\\\nb c", "a b\\\nc"},
	{"a heading", "# One\n\ntext", "## One\n\ntext"},
	{"a paragraph becomes a heading", "One\n\ntext", "# One\n\ntext"},
	{"a paragraph is split", "one two three four", "one two\n\nthree four"},
	{"paragraphs are joined", "one two\n\nthree four", "one two three four"},
	{"a paragraph goes", "one\n\ntwo\n\nthree", "one\n\nthree"},
	{"a paragraph is emptied", "one\n\ntwo\n\nthree", "one\n\n&nbsp;\n\nthree"},
	{"a paragraph moves", "one\n\ntwo words\n\nthree", "two words\n\none\n\nthree"},
	{"everything goes", "one\n\n- two\n- three", ""},
	{"a list", "one", "one\n\n- a\n- b\n  1. c\n  2. d"},
	{"an item", "- a\n- b\n- c", "- a\n- new\n- b\n- c"},
	{"items move", "- a long one\n- b\n- c", "- b\n- c\n- a long one"},
	{"a list nests deeper", "- a\n- b", "- a\n  - b"},
	{"a list begins elsewhere", "1. a\n2. b", "3. a\n4. b"},
	{"bullets become numbers", "- a\n- b", "1. a\n2. b"},
	{"tasks", "one", "- [ ] a\n- [x] b"},
	{"a task is done", "- [ ] a\n- [ ] b", "- [ ] a\n- [x] b"},
	{"a quote", "one", "> one\n>\n> two"},
	{"code", "one", "```go\nfunc main() {}\n\n// end\n```"},
	{"code changes", "```go\nfunc main() {}\n```", "```rust\nfn main() {}\n```"},
	{"a rule", "one\n\ntwo", "one\n\n---\n\ntwo"},
	{"an image", "one", "one\n\n![a *b*](i.png \"t\")"},
	{"an image changes", "![a](i.png)\n\none", "![a](j.png)\n\none"},
	{"a mention", "hi you", "hi <span data-type=\"mention\" data-id=\"m1\" data-label=\"Ann\">@Ann</span> you"},
	{"a table", "one", "| a | b |\n| :- | -: |\n| 1 | **2** |"},
	{"a cell", "| a | b |\n| - | - |\n| 1 | 2 |", "| a | b |\n| - | - |\n| 1 | two |"},
	{"a row", "| a | b |\n| - | - |\n| 1 | 2 |", "| a | b |\n| - | - |\n| 0 | 0 |\n| 1 | 2 |"},
	{"a column", "| a | b |\n| - | - |\n| 1 | 2 |", "| a | n | b |\n| - | - | - |\n| 1 | x | 2 |"},
	{"a column is aligned", "| a | b |\n| - | - |\n| 1 | 2 |", "| a | b |\n| - | :-: |\n| 1 | 2 |"},
	{"a table with spans", "one", "<table>\n<tr>\n<th colspan=\"2\">\n\na\n\n</th>\n</tr>\n<tr>\n<td>\n\n- b\n\n</td>\n<td>\n\nc\n\n</td>\n</tr>\n</table>"},
	{"a table goes", "one\n\n| a |\n| - |\n| 1 |\n\ntwo", "one\n\ntwo"},
	{"emoji and accents", "a 👩‍👩‍👧 e\u0301 한국 🇩🇪 z", "a 👩‍👩‍👦 e\u0300 한글 🇫🇷 z"},
}

// TestEditorTakesEdits makes each edit while an editor watches: it has nothing to correct,
// shows the same document, and its next edit comes back.
func TestEditorTakesEdits(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	s := pm.TipTap()
	for _, tc := range agentEdits { //nolint:paralleltest // one editor does one thing at a time
		t.Run(tc.name, func(t *testing.T) {
			from, to := parse(t, s, tc.from+"\n\nthe end"), parse(t, s, tc.to+"\n\nthe end")
			r := seeded(t, s, 1, from)
			e.t = t
			e.open(r, nil).same(r)
			update, w := r.write(to)
			e.apply(update).same(r)
			if got := r.read(); !got.Equal(to) {
				t.Errorf("the document after Write: %s", treeDiff(to, got))
			}
			var at struct {
				Pos    *int
				Before string
			}
			e.ask(map[string]any{"cmd": "position", "at": w.Caret}, &at)
			if at.Pos == nil {
				t.Errorf("the editor does not know where the caret is: %+v", w.Caret)
			}
			v := e.edit([]any{"select", "the end"}, []any{"splitBlock"}, []any{"type", "more"})
			r.apply(v.Merged)
			v.shows(r)
			// And back, with the editor's edit in place.
			if update, _ = r.write(from); update != nil {
				e.apply(update).same(r)
			}
		})
	}
}

// TestEditorsEditsComeBack edits in the editor and reads the result.
func TestEditorsEditsComeBack(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	for _, tc := range []struct { //nolint:paralleltest // as above
		name, md, want string
		steps          [][]any
	}{
		{"typing", "one two", "one more two", [][]any{{"select", "one"}, {"type", " more"}}},
		{"bold", "one two", "one **two**", [][]any{{"select", "one ", "two"}, {"toggleBold"}}},
		{"no bold", "one **two**", "one two", [][]any{{"select", "one ", "two"}, {"toggleBold"}}},
		{"a link", "one two", "one [two](https://example.com)", [][]any{{"select", "one ", "two"}, {"setLink", map[string]any{"href": "https://example.com"}}}},
		{"a split", "one two", "one\n\n&#32;two", [][]any{{"select", "one"}, {"splitBlock"}}},
		{"a join", "one\n\ntwo", "onetwo", [][]any{{"select", "one", "two"}, {"insertContent", "two"}}},
		{"a heading", "one\n\ntwo", "## one\n\ntwo", [][]any{{"select", "one"}, {"setHeading", map[string]any{"level": 2}}}},
		{"a list", "one\n\ntwo", "- one\n\ntwo", [][]any{{"select", "one"}, {"toggleBulletList"}}},
		{"an item", "- one\n\ntwo", "- one\n- new\n\ntwo", [][]any{{"select", "one"}, {"splitListItem", "listItem"}, {"type", "new"}}},
		{"a task", "one\n\ntwo", "- [ ] one\n\ntwo", [][]any{{"select", "one"}, {"toggleTaskList"}}},
		{"a task is done", "- [ ] one\n\ntwo", "- [x] one\n\ntwo", [][]any{{"select", "one"}, {"updateAttributes", "taskItem", map[string]any{"checked": true}}}},
		{"a table", "one\n\ntwo", "one\n\n|  |  |\n| --- | --- |\n|  |  |\n\ntwo", [][]any{{"select", "one"}, {"insertTable", map[string]any{"rows": 2, "cols": 2}}}},
		{"a row", "| a | b |\n| - | - |\n| 1 | 2 |", "| a | b |\n| --- | --- |\n| 1 | 2 |\n|  |  |", [][]any{{"select", "1"}, {"addRowAfter"}}},
		{"code", "one\n\ntwo", "```\none\n```\n\ntwo", [][]any{{"select", "one"}, {"toggleCodeBlock"}}},
		{"a break", "one two", "one\\\n&#32;two", [][]any{{"select", "one"}, {"setHardBreak"}}},
		{"an image", "one\n\ntwo", "one\n\n![](i.png)\n\ntwo", [][]any{{"select", "one"}, {"setImage", map[string]any{"src": "i.png"}}}},
		{"a rule", "one\n\ntwo", "one\n\n---\n\ntwo", [][]any{{"select", "one"}, {"setHorizontalRule"}}},
		{"undone", "one two", "one two", [][]any{{"select", "one"}, {"type", " more"}, {"undo"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := pm.TipTap()
			r := seeded(t, s, 1, parse(t, s, tc.md))
			e.t = t
			e.open(r, nil).same(r)
			v := e.edit(tc.steps...)
			if len(v.Wrote) > 0 {
				r.apply(v.Merged)
			}
			v.shows(r)
			if got := s.Render(r.read()); got != tc.want+"\n" && got != tc.want {
				t.Errorf("Render = %q, want %q", got, tc.want)
			}
			if update, _ := r.write(r.read()); update != nil {
				t.Errorf("writing what is there makes an update of %d bytes", len(update))
			}
		})
	}
}

// TestEditorsComments edits text under overlapping marks that the schema does not know: they
// stay, and extend over inserted text.
func TestEditorsComments(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	s := pm.TipTap()
	r := seeded(t, s, 1, parse(t, s, "one two three four five\n\nthe end"))
	e.open(r, map[string]any{"own": true})
	v := e.edit(
		[]any{"select", "one ", "three"}, []any{"setMark", "comment", map[string]any{"id": "a"}},
		[]any{"select", "two ", "four"}, []any{"setMark", "comment", map[string]any{"id": "b"}},
	)
	r.apply(v.Merged)
	update, _ := r.write(parse(t, s, "one two and three new four five\n\nthe end"))
	v = e.apply(update)
	if len(v.Wrote) > 0 {
		t.Errorf("the editor wrote back %d updates", len(v.Wrote))
	}
	var doc pm.Node
	b, _ := json.Marshal(v.JSON)
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range doc.Content[0].Content {
		text := n.Text
		for _, m := range n.Marks {
			text += fmt.Sprintf(" %v", m.Attrs["id"])
		}
		got = append(got, text)
	}
	want := []string{"one ", "two and  a", "three a b", " new four b", " five"}
	if !slices.Equal(got, want) {
		t.Errorf("the editor shows %q, want %q", got, want)
	}
	if md := s.Render(r.read()); md != "one two and three new four five\n\nthe end\n" {
		t.Errorf("Render = %q", md)
	}
}

// TestEditorsOwnNodes edits around nodes that only the editor's schema knows.
func TestEditorsOwnNodes(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	s := pm.TipTap()
	r := seeded(t, s, 1, parse(t, s, "one two three\n\nthe end"))
	e.open(r, map[string]any{"own": true, "autolink": false})
	r.apply(e.edit(
		[]any{"select", "two"}, []any{"insertContent", map[string]any{"type": "emoji", "attrs": map[string]any{"name": "tada"}}},
		[]any{"select", "the end"}, []any{"insertContent", []any{
			map[string]any{"type": "callout", "attrs": map[string]any{"kind": "tip"}, "content": []any{map[string]any{"type": "paragraph", "content": []any{map[string]any{"type": "text", "text": "told"}}}}},
			map[string]any{"type": "paragraph"},
		}},
	).Merged)
	for _, edit := range [][2]string{{"three", "3 and 4"}, {"one", "**1**"}, {"the end", "the very end"}} {
		next, _, err := s.Edit(r.read(), edit[0], edit[1], false)
		if err != nil {
			t.Fatal(err)
		}
		update, _ := r.write(next)
		e.apply(update).same(r)
	}
	want := `paragraph
  "1" bold={} | " two"
  emoji name="tada"
  " 3 and 4"
paragraph
  "the very end"
callout kind="tip"
  paragraph
    "told"
paragraph
`
	if got := stored(r.f); got != want {
		t.Errorf("stored:\n%s\nwant\n%s", got, want)
	}
}

// TestCarets asks the editor for the caret of the author of an edit, and for the caret of
// another user inside a word that stayed.
func TestCarets(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	s := pm.TipTap()
	for _, tc := range []struct{ name, from, to, want, stays string }{ //nolint:paralleltest // as above
		{"a word", "the quick brown fox", "the slow brown fox", "the slow", "the slow bro"},
		{"two words", "the quick brown fox", "a quick red brown foxes", "a quick red brown foxes", "a quick red bro"},
		{"a word goes", "the quick brown fox", "the brown fox", "the ", "the bro"},
		{"a format", "the quick brown fox", "the **quick** brown fox", "the quick", "the quick bro"},
		{"after emoji", "😀 quick brown", "😀 quick red brown 👩‍👩‍👧", "😀 quick red brown 👩‍👩‍👧", "😀 quick red bro"},
		{"blocks at the end", "brown", "brown\n\nnew\n\n- item", "brown\nnew\nitem", "bro"},
		{"code at the end", "brown", "brown\n\n```\ncode\n```", "brown\ncode", "bro"},
		{"a block in front", "brown", "# Title\n\nbrown", "Title", "Title\nbro"},
		{"a rule", "brown\n\nend", "brown\n\n---\n\nend", "brown\n\ufffc", "bro"},
		{"a block goes", "one\n\nbrown", "brown", "", "bro"},
		{"an empty paragraph", "brown\n\nend", "brown\n\n&nbsp;\n\nend", "brown\n", "bro"},
		{"a level", "# one\n\nbrown", "## one\n\nbrown", "", "one\nbro"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := seeded(t, s, 1, parse(t, s, tc.from))
			e.t = t
			e.open(r, nil)
			var at yjs.RelativePosition
			e.ask(map[string]any{"cmd": "relative", "find": "bro"}, &at)
			update, w := r.write(parse(t, s, tc.to))
			e.apply(update).same(r)
			for _, c := range []struct {
				at   yjs.RelativePosition
				want string
			}{{w.Caret, tc.want}, {at, tc.stays}} {
				var is struct {
					Pos    *int
					Before string
				}
				e.ask(map[string]any{"cmd": "position", "at": c.at}, &is)
				if is.Pos == nil || is.Before != c.want {
					t.Errorf("the caret is after %q, want %q", is.Before, c.want)
				}
			}
		})
	}
}

// TestEditorTypesAtTheSameTime makes each edit while the editor types: both edits survive, and
// both sides converge.
func TestEditorTypesAtTheSameTime(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	s := pm.TipTap()
	for _, tc := range agentEdits { //nolint:paralleltest // one editor does one thing at a time
		t.Run(tc.name, func(t *testing.T) {
			r := seeded(t, s, 1, parse(t, s, tc.from+"\n\nthe end"))
			e.t = t
			e.open(r, nil)
			// In the first paragraph if there is one, and in the last.
			theirs := [][]byte{e.edit([]any{"select", "the end"}, []any{"type", " of it"}).Merged}
			if tc.from[0] >= 'a' && tc.from[0] <= 'z' {
				theirs = append(theirs, e.edit([]any{"select", tc.from[:1]}, []any{"type", "<typed>"}).Merged)
			}
			ours, _ := r.write(parse(t, s, tc.to+"\n\nthe end"))
			for _, u := range theirs {
				r.apply(u)
			}
			e.apply(ours).same(r)
			if got := r.read().TextContent(); !strings.HasSuffix(got, "the end of it") {
				t.Errorf("the text is %q", got)
			}
		})
	}
}

// TestEditorSchema compares the editor's schema with testdata/tiptap.json.
func TestEditorSchema(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	var got, want any
	e.ask(map[string]any{"cmd": "schema", "options": map[string]any{}}, &got)
	data, err := os.ReadFile("testdata/tiptap.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if diff := firstDiff("", got, want); diff != "" {
		t.Errorf("the editor's schema and testdata/tiptap.json differ: %s", diff)
	}
}

// TestEditorWithoutOurExtensions opens content that only our schema has in a plain TipTap
// editor: it deletes nothing, and its edits are added.
func TestEditorWithoutOurExtensions(t *testing.T) {
	t.Parallel()
	e := startEditor(t)
	r := seeded(t, pm.TipTap(), 1, parse(t, pm.TipTap(), "[![a](i.png)](https://example.com/a)\n\nsee [`x`](https://example.com/x) and **`y`** now"))
	before := r.read()
	v := e.open(r, map[string]any{"unextended": true})
	if len(v.Wrote) > 0 {
		t.Errorf("the editor wrote %d updates without being asked", len(v.Wrote))
	}
	r.apply(e.edit([]any{"select", "now"}, []any{"type", "!"}).Merged)
	if got, want := pm.TipTap().Render(r.read()), strings.Replace(pm.TipTap().Render(before), "now", "now!", 1); got != want {
		t.Errorf("after typing the document says\n%s\nwant\n%s", got, want)
	}
}
