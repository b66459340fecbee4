package visible_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/visible"
)

// Nothing that people cannot see reaches the model, and what they need remains.
func TestText(t *testing.T) {
	t.Parallel()
	for _, same := range []string{
		"Reads a file.\n\t- quickly", "日本語, été, नमस्ते", "👩\u200d❤\ufe0f\u200d👨 and 👨\u200d👩\u200d👧, ☎\ufe0e or ☎\ufe0f", "می\u200cخواهم", "क्\u200dष", "\u0600123",
	} {
		if got := visible.Text(same); got != same {
			t.Errorf("Text(%+q) = %+q, want it unchanged", same, got)
		}
	}
	for hidden, want := range map[string]string{
		"a\u200bb\u2060c\ufeffd\u00ade": "abcde", "pay\u202efdp": "payfdp", "\u2066x\u2069\u200e": "x",
		"x\U000E0041\U000E0042": "x", "x\U000E0101\U000E0102": "x", "x\u3164\u115f\uffa0y": "xy", "a\u2028b\u2029": "ab", "\x1b[31mred\x00": "[31mred", "a\xff": "a\uFFFD",
		"x" + strings.Repeat("\u200d\u200c", 40): "x\u200d", "x" + strings.Repeat("\ufe0f\ufe0e", 40): "x\ufe0f", "\u200d\ufe0f": "",
	} {
		if got := visible.Text(hidden); got != want {
			t.Errorf("Text(%+q) = %+q, want %+q", hidden, got, want)
		}
	}
}
