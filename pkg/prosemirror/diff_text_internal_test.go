package prosemirror

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"words and whitespace", "one  two!", []string{"one", "  ", "two", "!"}},
		{"skin tones", "\U0001F44D\U0001F3FD\U0001F44D", []string{"\U0001F44D\U0001F3FD", "\U0001F44D"}},
		{"flags", "\U0001F1E9\U0001F1EAx", []string{"\U0001F1E9\U0001F1EAx"}},
		{"a flag of tags", "\U0001F3F4\U000E0067\U000E007F.", []string{"\U0001F3F4\U000E0067\U000E007F", "."}},
		{"joined emoji", "\U0001F469\u200d\U0001F467.", []string{"\U0001F469\u200d\U0001F467", "."}},
		{"combining marks", "e\u0301a", []string{"e\u0301a"}},
		{"ideographs", "\u65e5\u672c", []string{"\u65e5", "\u672c"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, words(tc.text)); diff != "" {
				t.Errorf("words(%q) (-want +got):\n%s", tc.text, diff)
			}
		})
	}
}
