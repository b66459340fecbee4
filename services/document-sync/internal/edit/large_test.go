package edit_test

import (
	"fmt"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/edit"
)

// novel returns Markdown of at most size bytes, with paragraphs and code blocks.
func novel(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-2000; i++ {
		fmt.Fprintf(&b, "Paragraph %d is *emphatic*.%s\n\n", i, strings.Repeat(" It goes on and on.", 60))
		if i%20 == 0 {
			fmt.Fprintf(&b, "```go\nx := %d\n\ny := []int{x}\n```\n\n", i)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// TestLarge writes a document of the maximum size in one call, and changes it.
func TestLarge(t *testing.T) {
	t.Parallel()
	text := novel(edit.MaxContent)
	tree, _, err := editor.Import(text)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := editor.New("large", tree)
	if err != nil {
		t.Fatal(err)
	}
	if got := editor.Markdown(editor.Tree(doc)); got != text {
		t.Fatalf("a document of %d bytes reads as %d different bytes", len(text), len(got))
	}
	changed := strings.Replace(text, "Paragraph 5000 is", "Paragraph 5000 was", 1)
	next := editor.Keep(editor.Tree(doc), parse(t, changed))
	var update []byte
	doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })
	if _, err := editor.Write(doc, next); err != nil {
		t.Fatal(err)
	}
	if got := editor.Markdown(editor.Tree(doc)); got != changed || len(update) == 0 || len(update) > 200 {
		t.Errorf("changing one word took %d bytes, and the content is right: %t", len(update), got == changed)
	}
}

// TestTooLarge checks that text that cannot fit is refused before it is parsed.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	many := func(s string, size int) string { return strings.Repeat(s, size/len(s)) }
	rest := "\n\n" + novel(edit.MaxText)
	for name, tt := range map[string]struct{ markdown, says string }{
		"a paragraph":      {"one\n\n" + many("x", edit.MaxText+1) + rest, "line 3 has more than"},
		"code":             {"```\n" + many("code\n\n", edit.MaxText) + "```" + rest, "line 1 has more than"},
		"code in tildes":   {"~~~~\n~~~\n" + many("code\n\n", edit.MaxText) + "~~~~" + rest, "line 1 has more than"},
		"many paragraphs":  {many("a\n\n", 4<<20), "1398101 blocks"},
		"much emphasis":    {many(strings.Repeat("*a* ", 100)+"\n\n", 4<<20), "pieces of formatted text"},
		"many cells":       {many("|a|b|\n|-|-|\n|c|d|\n\n", 4<<20), "pieces of formatted text"},
		"a list":           {many("- an item of a list that goes on\n", 2<<20), ""},
		"a numbered list":  {many("1. an item of a list that goes on\n", 2<<20), ""},
		"brackets in code": {many("```\n"+strings.Repeat("[*x*]", 100)+"\n```\n\n", 4<<20), ""},
	} {
		_, _, err := editor.Import(tt.markdown)
		if tt.says == "" && err != nil || tt.says != "" && (fault.KindOf(err) != fault.TooLarge || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want TooLarge %q", name, err, tt.says)
		}
	}
	doc, much := parse(t, "one"), many("x y\n\n", edit.MaxText+10)
	_, _, _, err1 := editor.Replace(doc, much, "x", false)
	_, _, _, err2 := editor.Replace(doc, "one", much, false)
	_, err3 := editor.Append(doc, much)
	for i, err := range []error{err1, err2, err3} {
		if fault.KindOf(err) != fault.TooLarge || !strings.Contains(err.Error(), "1 MiB") {
			t.Errorf("too much for one edit, %d: %v, want TooLarge", i, err)
		}
	}
}
