package edit_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/document-sync/internal/edit"
)

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
		{name: "one match", content: "a b c", old: "b", new: "x", want: "a x c", n: 1},
		{name: "deletes", content: "a b c", old: " b", want: "a c", n: 1},
		{name: "over lines", content: "# T\n\none\ntwo\n", old: "one\ntwo", new: "1\n2", want: "# T\n\n1\n2\n", n: 1},
		{name: "new text holds the old", content: "ab", old: "a", new: "aa", want: "aab", n: 1},
		{name: "all", content: "a b a", old: "a", new: "x", all: true, want: "x b x", n: 2},
		{name: "all with one", content: "a b", old: "a", new: "x", all: true, want: "x b", n: 1},
		{name: "unicode", content: "Grüße", old: "ü", new: "ue", want: "Grueße", n: 1},
		{name: "no match", content: "abc", old: "x", code: edit.CodeNotFoundText, says: "0 matches"},
		{name: "no match with all", content: "abc", old: "x", all: true, code: edit.CodeNotFoundText, says: "read the document"},
		{name: "two", content: "x\ny\nx", old: "x", code: edit.CodeAmbiguousText, says: "2 times in the document (lines 1, 3)"},
		{name: "overlapping", content: "aaa", old: "aa", code: edit.CodeAmbiguousText, says: "2 times"},
		{name: "newlines", content: "\n\n\n", old: "\n", code: edit.CodeAmbiguousText, says: "(lines 1, 2, 3)"},
		{name: "many", content: strings.Repeat("x\n", 50), old: "x", code: edit.CodeAmbiguousText, says: "50 times in the document (lines 1, 2, 3, 4, 5, …)"},
		{name: "empty", content: "abc", says: "old_text: is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, n, err := edit.Replace(tt.content, tt.old, tt.new, tt.all)
			if tt.says == "" {
				if err != nil || got != tt.want || n != tt.n {
					t.Fatalf("Replace(%q, %q, %q, %v) = %q, %d, %v, want %q, %d", tt.content, tt.old, tt.new, tt.all, got, n, err, tt.want, tt.n)
				}
				return
			}
			f := fault.From(err)
			if err == nil || f.Code != tt.code || !strings.Contains(f.Message, tt.says) {
				t.Fatalf("Replace(%q, %q, %q, %v) = %q, %v, want %s %q", tt.content, tt.old, tt.new, tt.all, got, err, tt.code, tt.says)
			}
		})
	}
}

func TestReplaceDoesNotGrowPastTheLimit(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("a", 1<<20)
	_, _, err := edit.Replace(content, "a", strings.Repeat("b", 1<<10), true)
	if fault.KindOf(err) != fault.TooLarge {
		t.Fatalf("Replace of a million matches by 1 KiB each = %v, want TooLarge", err)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, content, markdown, want string }{
		{"to an empty document", "", "# A", "# A"},
		{"to a block", "one", "two", "one\n\ntwo"},
		{"to a block with a line end", "one\n", "two\n", "one\n\ntwo\n"},
		{"to many blank lines", "one\n\n \n\n", "\n\n \ntwo", "one\n\ntwo"},
		{"indented code keeps its indent", "one", "\n    code", "one\n\n    code"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, err := edit.Append(tt.content, tt.markdown); err != nil || got != tt.want {
				t.Errorf("Append(%q, %q) = %q, %v, want %q", tt.content, tt.markdown, got, err, tt.want)
			}
		})
	}
	for _, empty := range []string{"", "\n", " \n\t\n"} {
		if _, err := edit.Append("one", empty); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Append(%q) = %v, want Invalid", empty, err)
		}
	}
	if _, err := edit.Append(strings.Repeat("a", edit.MaxContent-2), "b"); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("Append to a full document = %v, want TooLarge", err)
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want, says string }{
		{in: "Plan", want: "Plan"},
		{in: "  Plan B ", want: "Plan B"},
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

func FuzzReplace(f *testing.F) {
	f.Add("a b a", "a", "x", true)
	f.Add("aaaa", "aa", "b", false)
	f.Fuzz(func(t *testing.T, content, old, new string, all bool) {
		got, n, err := edit.Replace(content, old, new, all)
		if err != nil {
			return
		}
		if len(got) != len(content)+n*(len(new)-len(old)) {
			t.Errorf("Replace(%q, %q, %q, %v) = %q with %d places", content, old, new, all, got, n)
		}
		if utf8.ValidString(content) && utf8.ValidString(old) && utf8.ValidString(new) && !utf8.ValidString(got) {
			t.Errorf("Replace(%q, %q, %q, %v) = %q, which is not UTF-8", content, old, new, all, got)
		}
	})
}
