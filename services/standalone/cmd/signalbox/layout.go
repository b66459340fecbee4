package main

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// columns returns how many of a terminal's columns a text takes: wide characters two,
// marks on the one before none.
func columns(text string) int {
	n := 0
	for _, r := range text {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// cut returns what of a text fits into so many columns, with a mark where something is
// missing.
func cut(text string, limit int) string {
	if columns(text) <= limit {
		return text
	}
	var b strings.Builder
	left := limit - 1
	for _, r := range text {
		if left -= runeColumns(r); left < 0 {
			break
		}
		b.WriteRune(r)
	}
	return b.String() + "…"
}

// gap is between two columns of a table.
const gap = 2

// narrow takes from the widest columns of a table until it fits into a limit, 0 for none.
// None becomes narrower than its header, and ids stay whole, since commands take them. It
// tells whether that is enough.
func narrow(header []string, widths []int, limit int) bool {
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; limit > 0 && total > limit; total-- {
		widest := -1
		for i, w := range widths {
			if header[i] != "ID" && header[i] != "ACCOUNT" && w > columns(header[i]) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	return true
}
