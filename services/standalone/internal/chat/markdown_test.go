package chat

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
)

const sample = "# A *title*\n\nText with **bold**, `co\\*de`, a [link](https://example.org), ~~not~~ &amp; 5 \\* 3.\n\n" +
	"- one\n  - two that is so long that it does not fit\n- [x] three\n\n3. first\n\n   more\n4. second\n\n> said\n\n" +
	"```go\nfunc main() {\n\tx()\n}\n```\n\n| a | b |\n|---|---|\n| 茶茶 | a cell that is too wide for it |\n\n---\n\n\x1b]0;evil\x07<b>raw</b>\n"

// Text without effects, in 30 columns.
const rendered = `A title

Text with bold, co\*de, a link
(https://example.org), not & 5
* 3.

• one
  • two that is so long that
    it does not fit
• [x] three

3. first

   more

4. second

│ said

  func main() {
      x()
  }

 a    │ b
──────┼───────────────────────
 茶茶 │ a cell that is too
      │ wide for it

──────────────────────────────

]0;evil<b>raw</b>`

func TestMarkdown(t *testing.T) {
	t.Parallel()
	got := Style{Width: 30, Colours: true}.Markdown(sample)
	if strings.Contains(got, "\x1b]") || strings.Contains(got, "\x07") {
		t.Errorf("an escape sequence of the text came through: %q", got)
	}
	lines := strings.Split(ansi.Strip(got), "\n")
	for i := range lines {
		if ansi.StringWidth(lines[i]) > 30 {
			t.Errorf("wider than the terminal: %q", lines[i])
		}
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	if diff := cmp.Diff(rendered, strings.Join(lines, "\n")); diff != "" {
		t.Error(diff)
	}
	if got := (Style{}).Markdown("# *plain*\n"); got != "# *plain*" {
		t.Errorf("without colours Markdown becomes %q", got)
	}
}

// Text that arrives in pieces and is printed block by block looks like the whole.
func TestSettled(t *testing.T) {
	t.Parallel()
	for size := range 40 {
		var printed, open string
		for rest := sample; rest != ""; {
			n := min(size+1, len(rest))
			open += rest[:n]
			rest = rest[n:]
			var done string
			done, open = splitComplete(open)
			printed += done
		}
		if printed+open != sample {
			t.Fatalf("in pieces of %d bytes: %q", size+1, printed+open)
		}
		if !strings.HasSuffix(printed, "---\n\n") {
			t.Errorf("in pieces of %d bytes only this was complete: %q", size+1, printed)
		}
	}
	for _, open := range []string{"", "text", "```\ncode\n\nmore", "- a\n\n  b\n\n", "| a |\n|---|\n", "    code\n"} {
		if done, _ := splitComplete(open); done != "" {
			t.Errorf("splitComplete(%q) gives %q, and more text may change it", open, done)
		}
	}
}

func TestToolLines(t *testing.T) {
	t.Parallel()
	s := Style{Width: 50}
	for _, tt := range []struct{ got, want string }{
		{s.toolCall("t", json.RawMessage(`{"name":"Tea","n":1,"deep":{"a":[1]}}`)), `→ t  name: Tea · n: 1 · deep: {"a":[1]}`},
		{s.toolCall("t", json.RawMessage(`{"content":"# Tea\n\nis a drink that is made of leaves \u001b[2Jand water"}`)), `→ t  content: # Tea is a drink that is made of le…`},
		{s.toolCall("t", nil), "→ t  "},
		{s.toolResult("t", "It is\nlate", false), "✓ t  It is late"},
		{s.toolResult("t", `{"error":"no"}`, true), "✗ t  error: no"},
		{s.toolResult("t", `{"cut":`, false), `✓ t  {"cut":`},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
}

func TestTranscript(t *testing.T) {
	t.Parallel()
	messages := []Message{
		{Role: "user", Content: json.RawMessage(`"hello\nthere"`)},
		{Role: "assistant", Content: json.RawMessage(`[{"type":"reasoning","text":"hm"},{"type":"text","text":"I look."},{"type":"tool-call","toolName":"t","input":{"a":1}}]`)},
		{Role: "tool", Content: json.RawMessage(`[{"type":"tool-result","toolName":"t","output":{"type":"text","value":"found"}}]`)},
		{Role: "user", Content: json.RawMessage(`[{"type":"file","filename":"a.png","mediaType":"image/png"},{"type":"text","text":"and this?"}]`)},
		{Role: "assistant", Content: json.RawMessage(`{"a":"form of later"}`)},
	}
	want := "> hello\n  there\n\nI look.\n\n→ t  a: 1\n✓ t  found\n\n> [a.png image/png]\n\n> and this?"
	if diff := cmp.Diff(want, Style{}.Transcript(messages)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"hello\nthere", "and this?"}, userTexts(messages)); diff != "" {
		t.Error(diff)
	}
}
