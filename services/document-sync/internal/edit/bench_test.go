package edit_test

import (
	"fmt"
	"strings"
	"testing"

	"signalbox.dev/pkg/yjs"
)

// BenchmarkRewrite replaces the content of a 4 MiB document in thousands of places. Meanwhile
// nobody else can write to it.
func BenchmarkRewrite(b *testing.B) {
	const size = 4 << 20
	short := func(i int) string { return fmt.Sprintf("Paragraph %d says what %d words of it say.", i, i%1000) }
	lines := func(form func(i int) string, end string) []string {
		var out []string
		for n := 0; n < size; {
			out = append(out, form(len(out))+end)
			n += len(out[len(out)-1])
		}
		return out
	}
	each := func(parts []string, nth int, f func(i int, s string) string) string {
		out := make([]string, len(parts))
		for i, p := range parts {
			if out[i] = p; i%nth == 0 {
				out[i] = f(i, p)
			}
		}
		return strings.Join(out, "")
	}
	word := func(_ int, s string) string { return strings.Replace(s, "says", "said", 1) }
	paragraphs := lines(short, "\n\n")
	items := lines(func(i int) string { return "- " + short(i) }, "\n")
	// Texts of half a megabyte.
	long := lines(func(i int) string {
		if i%12_000 == 0 {
			return "\n\n" + short(i)
		}
		return short(i)
	}, " ")
	formats := lines(func(i int) string {
		if i%12_000 == 0 {
			return "\n\n**says** " + short(i)
		}
		return "**" + short(i) + "**"
	}, " ")
	wide := lines(func(i int) string {
		if i%12_000 == 0 {
			return "\n\nÜber " + short(i)
		}
		return "Über " + short(i)
	}, " ")
	for _, bb := range []struct {
		name  string
		parts []string
		next  string
	}{
		{"words", paragraphs, each(paragraphs, 5, word)},
		{"blocks", paragraphs, each(paragraphs, 5, func(i int, s string) string {
			if i%10 == 0 {
				return ""
			}
			return s + fmt.Sprintf("Another one, %d.\n\n", i)
		})},
		{"items", items, each(items, 5, func(i int, s string) string {
			if i%10 == 0 {
				return ""
			}
			return s + fmt.Sprintf("- Another one, %d.\n", i)
		})},
		{"long", long, each(long, 5, word)},
		{"formats", formats, each(formats, 5, word)},
		{"wide", wide, each(wide, 5, word)},
		{"others", paragraphs, each(paragraphs, 1, func(i int, _ string) string { return fmt.Sprintf("Nothing of %d is left.\n\n", i) })},
	} {
		b.Run(bb.name, func(b *testing.B) {
			tree, _, err := editor.Import(strings.Join(bb.parts, ""))
			if err != nil {
				b.Fatal(err)
			}
			first, err := editor.New("large", tree)
			if err != nil {
				b.Fatal(err)
			}
			state := first.EncodeStateAsUpdateV2(nil)
			for b.Loop() {
				b.StopTimer()
				doc := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
				if err := doc.ApplyUpdateV2(state, nil); err != nil {
					b.Fatal(err)
				}
				var update []byte
				doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })
				next, _, err := editor.Import(bb.next)
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := editor.Write(doc, next); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(len(update)), "update-B")
			}
		})
	}
}
