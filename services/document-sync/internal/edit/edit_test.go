package edit_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/edit"
)

var editor = edit.New(prosemirror.TipTap())

func parse(t testing.TB, markdown string) *prosemirror.Node {
	t.Helper()
	doc, _, err := editor.Import(markdown)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestReplace(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name              string
		content, old, new string
		all               bool
		want              string
		n                 int
		code, says        string
	}{
		{name: "one match", content: "a b c", old: "b", new: "x", want: "a x c\n", n: 1},
		{name: "deletes", content: "a b c", old: " b", want: "a c\n", n: 1},
		{name: "over blocks", content: "# T\n\none\n\ntwo\n", old: "one\n\ntwo", new: "1\n\n2", want: "# T\n\n1\n\n2\n", n: 1},
		{name: "new text holds the old", content: "ab", old: "a", new: "aa", want: "aab\n", n: 1},
		{name: "all", content: "a b a", old: "a", new: "x", all: true, want: "x b x\n", n: 2},
		{name: "all with one", content: "a b", old: "a", new: "x", all: true, want: "x b\n", n: 1},
		{name: "unicode", content: "Grüße", old: "ü", new: "ue", want: "Grueße\n", n: 1},
		{name: "markup", content: "a **b** c", old: "**b**", new: "*b*", want: "a *b* c\n", n: 1},
		{name: "no match", content: "abc", old: "x", code: edit.CodeNotFoundText, says: "0 matches"},
		{name: "no match with all", content: "abc", old: "x", all: true, code: edit.CodeNotFoundText, says: "read the document"},
		{name: "two", content: "x\n\ny\n\nx", old: "x", code: edit.CodeAmbiguousText, says: "2 times in the document (lines 1, 5)"},
		{name: "many", content: strings.Repeat("x\n\n", 50), old: "x", code: edit.CodeAmbiguousText, says: "50 times in the document (lines 1, 3, 5, 7, 9, …)"},
		{name: "empty", content: "abc", says: "old_text: is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			next, n, _, err := editor.Replace(parse(t, tt.content), tt.old, tt.new, tt.all)
			if tt.says == "" {
				if err != nil {
					t.Fatalf("Replace(%q, %q, %q, %v): %v", tt.content, tt.old, tt.new, tt.all, err)
				}
				if got := editor.Markdown(next); got != tt.want || n != tt.n {
					t.Fatalf("Replace(%q, %q, %q, %v) = %q, %d, want %q, %d", tt.content, tt.old, tt.new, tt.all, got, n, tt.want, tt.n)
				}
				return
			}
			f := fault.From(err)
			if err == nil || f.Code != tt.code || !strings.Contains(f.Message, tt.says) {
				t.Fatalf("Replace(%q, %q, %q, %v): %v, want %s %q", tt.content, tt.old, tt.new, tt.all, err, tt.code, tt.says)
			}
		})
	}
}

func TestReplaceDoesNotGrowPastTheLimit(t *testing.T) {
	t.Parallel()
	_, _, _, err := editor.Replace(parse(t, strings.Repeat("a", 1<<18)), "a", strings.Repeat("b", 1<<10), true)
	if fault.KindOf(err) != fault.TooLarge {
		t.Fatalf("Replace of many matches by 1 KiB each = %v, want TooLarge", err)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, content, markdown, want string }{
		{"to an empty document", "", "# A", "# A\n"},
		{"to a block", "one", "two", "one\n\ntwo\n"},
		{"indented code keeps its indent", "one", "\n    code", "one\n\n```\ncode\n```\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			next, err := editor.Append(parse(t, tt.content), tt.markdown)
			if err != nil {
				t.Fatal(err)
			}
			if got := editor.Markdown(next); got != tt.want {
				t.Errorf("Append(%q, %q) = %q, want %q", tt.content, tt.markdown, got, tt.want)
			}
		})
	}
	for _, empty := range []string{"", "\n", " \n\t\n"} {
		if _, err := editor.Append(parse(t, "one"), empty); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Append(%q) = %v, want Invalid", empty, err)
		}
	}
}

// TestApplySeed applies changes that were made to an older text.
func TestApplySeed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, before, after, now, want string }{
		{"the beginning", "", "# T\n\none\n", "", "# T\n\none\n"},
		{"nobody wrote meanwhile", "one\n\ntwo\n", "one\n\n2\n", "one\n\ntwo\n", "one\n\n2\n"},
		{"somebody wrote elsewhere", "one\n\ntwo\n\nthree\n", "one\n\n2\n\nthree\n", "one\n\ntwo\n\nthree and more\n", "one\n\n2\n\nthree and more\n"},
		{"both wrote at the end", "one\n", "one\n\nthey\n", "one\n\nwe\n", "one\n\nthey\n\nwe\n"},
		{"both changed a block", "one\n\ntwo\n", "one\n\n2\n", "one\n\ntwo!\n", "one\n\n2!\n"},
		{"a block is gone", "one\n\ntwo\n\nthree\n", "one\n\nthree\n", "zero\n\none\n\ntwo\n\nthree\n", "zero\n\none\n\nthree\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			doc := yjs.New(yjs.Options{})
			if tt.now != "" {
				if _, err := editor.Write(doc, parse(t, tt.now)); err != nil {
					t.Fatal(err)
				}
			}
			if err := editor.ApplySeed(doc, tt.before, tt.after); err != nil {
				t.Fatal(err)
			}
			if got, _, err := editor.Render(doc); err != nil || got != tt.want {
				t.Errorf("content = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want, says string }{
		{in: "Plan", want: "Plan"},
		{in: "  Plan B ", want: "Plan B"},
		{in: "\u202ePlan\u200b C\ufeff \u2069", want: "Plan C"},
		{in: "\u200b\u200d", says: "is empty"},
		{in: strings.Repeat("ü", edit.MaxName), want: strings.Repeat("ü", edit.MaxName)},
		{in: "", says: "is empty"},
		{in: " \n ", says: "is empty"},
		{in: strings.Repeat("ü", edit.MaxName+1), says: "201 characters"},
		{in: "a\nb", says: "U+000A"},
		{in: "a\x00b", says: "U+0000"},
		{in: "a\u2028b", says: "U+2028"},
		{in: "a\xff", says: "UTF-8"},
	} {
		got, err := edit.Name(tt.in)
		if tt.says == "" && (err != nil || got != tt.want) {
			t.Errorf("Name(%q) = %q, %v, want %q", tt.in, got, err, tt.want)
		}
		if tt.says != "" && (fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("Name(%q) = %q, %v, want Invalid %q", tt.in, got, err, tt.says)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, want string
		kind     fault.Kind
		says     string
	}{
		{in: "", want: ""},
		{in: "a\r\nb\rc\n", want: "a\nb\nc\n"},
		{in: "a\x00", kind: fault.Invalid, says: "content: holds a NUL character at byte 1"},
		{in: "\xed\xa0\x80", kind: fault.Invalid, says: "content: is not valid UTF-8"},
		{in: strings.Repeat("a", edit.MaxContent), want: strings.Repeat("a", edit.MaxContent)},
		{in: strings.Repeat("a", edit.MaxContent+1), kind: fault.TooLarge, says: "10 MiB"},
	} {
		got, err := edit.Text("content", tt.in)
		if tt.says == "" && (err != nil || got != tt.want) {
			t.Errorf("Text(%q) = %q, %v, want %q", tt.in, got, err, tt.want)
		}
		if tt.says != "" && (fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("Text(%.20q) = %.20q, %v, want %v %q", tt.in, got, err, tt.kind, tt.says)
		}
	}
}

// TestNUL renders NUL characters, which editors let people paste and Postgres rejects.
func TestNUL(t *testing.T) {
	t.Parallel()
	doc := yjs.New(yjs.Options{})
	if _, err := editor.Write(doc, prosemirror.Elem("doc", nil, prosemirror.Elem("paragraph", nil, prosemirror.Text("a\x00b")))); err != nil {
		t.Fatal(err)
	}
	markdown, text, err := editor.Render(doc)
	if want := "a\ufffdb\n"; err != nil || markdown != want || text != want {
		t.Errorf("Render = %q, %q, %v, want %q twice", markdown, text, err, want)
	}
}
