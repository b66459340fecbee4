package main

import "github.com/charmbracelet/x/ansi"

// columns returns how many of a terminal's columns a text takes.
func columns(text string) int { return ansi.StringWidth(text) }

// cut shortens a text to a number of columns, and marks the cut.
func cut(text string, limit int) string { return ansi.Truncate(text, limit, "…") }

// gap is between two columns of a table.
const gap = 2

// narrow shrinks the widest columns of a table until it fits into a limit; 0 is none. No
// column becomes narrower than its header, and ids stay whole, since commands take them. It
// reports whether the table fits.
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
