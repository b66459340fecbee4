package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"signalbox.dev/services/simulator/internal/wire"
)

func TestAppendString(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":               `""`,
		"a\"b\\c":        `"a\"b\\c"`,
		"\n\r\t\x00\x1f": `"\n\r\t\u0000\u001f"`,
		"<&>é\u2028😀":    `"<&>é` + "\u2028" + `😀"`,
		"a\xffb\xc3":     `"a\ufffdb\ufffd"`,
	} {
		if got := string(wire.AppendString(nil, in)); got != want {
			t.Errorf("AppendString(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzAppendString checks that what is written reads back as it was, with U+FFFD
// for what was not UTF-8.
func FuzzAppendString(f *testing.F) {
	f.Add("plain")
	f.Add("\x00\"\\é\xff\u2028")
	f.Fuzz(func(t *testing.T, in string) {
		var out string
		if err := json.Unmarshal(wire.AppendString(nil, in), &out); err != nil {
			t.Fatalf("AppendString(%q) is not JSON: %v", in, err)
		}
		var want strings.Builder
		for _, r := range in {
			want.WriteRune(r) // an invalid byte ranges as U+FFFD
		}
		if out != want.String() || !utf8.ValidString(out) {
			t.Errorf("AppendString(%q) reads back as %q, want %q", in, out, want.String())
		}
	})
}

func BenchmarkAppendString(b *testing.B) {
	s := strings.Repeat("some words with \"quotes\" and é ", 4)
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = wire.AppendString(buf[:0], s)
	}
}
