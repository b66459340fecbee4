// Package visible removes characters that are invisible on a screen from text by others: names that
// people tell apart by sight, and text that a model reads and people approve.
package visible

import (
	"strings"
	"unicode"
)

// Text returns s without characters that have no shape of their own, such as zero-width and
// bidirectional ones, and without control characters other than line feeds and tabs. Bytes that
// are not UTF-8 become U+FFFD.
//
// Emoji and some scripts need joiners and variation selectors: one of each is kept after a visible
// character, so that rows of them carry no text.
func Text(s string) string {
	const visible, selector, joiner = 0, 1, 2
	last := joiner
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || unicode.Is(unicode.Prepended_Concatenation_Mark, r): // format characters with a shape
			last = visible
		case (r == '\uFE0E' || r == '\uFE0F') && last == visible:
			last = selector
		case (r == '\u200C' || r == '\u200D') && last != joiner:
			last = joiner
		case unicode.In(r, invisible...):
			return -1
		default:
			last = visible
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// invisible are the characters without a shape of their own.
var invisible = []*unicode.RangeTable{
	unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector,
}
