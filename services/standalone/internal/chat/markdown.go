package chat

import (
	"fmt"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
	"github.com/charmbracelet/x/ansi"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// This is not glamour because glamour, with its highlighter for every programming language,
// adds 11 MB to the program, and 15 ms and 25 MB to every start.

var parser = goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser()

// splitComplete splits incomplete Markdown before its last block, the only one that further text
// can change.
func splitComplete(markdown string) (done, open string) {
	last := parser.Parse(text.NewReader([]byte(markdown))).LastChild()
	if last == nil {
		return "", markdown
	}
	at := strings.LastIndexByte(markdown[:max(last.Pos(), 0)], '\n') + 1
	return markdown[:at], markdown[at:]
}

// Markdown renders text for a terminal; without colours it returns the text.
func (s Style) Markdown(markdown string) string {
	markdown = strings.Trim(clean(markdown), "\n")
	if !s.Colours {
		return markdown
	}
	r := renderer{source: []byte(strings.ReplaceAll(markdown, "\t", "    "))}
	return r.children(parser.Parse(text.NewReader(r.source)), s.width(), "\n\n")
}

type renderer struct{ source []byte }

// An effect has the parameters of the escape sequences that begin and end it. Each ends only
// itself, so that effects nest.
type effect struct{ on, off string }

var (
	bold      = effect{"1", "22"}
	faint     = effect{"2", "22"}
	italic    = effect{"3", "23"}
	underline = effect{"4", "24"}
	struck    = effect{"9", "29"}
	coloured  = effect{"36", "39"}
)

func (e effect) apply(s string) string { return "\x1b[" + e.on + "m" + s + "\x1b[" + e.off + "m" }

// children renders the blocks in a node, with a separator between them.
func (r renderer) children(n ast.Node, width int, separator string) string {
	var out []string
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if s := r.block(c, max(width, 10)); s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, separator)
}

// block renders one block, with lines broken at width columns where possible.
func (r renderer) block(n ast.Node, width int) string {
	switch n := n.(type) {
	case *ast.Heading:
		s := bold.apply(r.inline(n))
		if n.Level == 1 {
			s = underline.apply(s)
		}
		return lipgloss.Wrap(s, width, "")
	case *ast.Blockquote:
		return indent(r.children(n, width-2, "\n\n"), faint.apply("│ "), faint.apply("│ "))
	case *ast.List:
		return r.list(n, width)
	case *ast.FencedCodeBlock, *ast.CodeBlock:
		return indent(coloured.apply(strings.ReplaceAll(strings.TrimRight(r.lines(n), "\n"), "\n", "\x1b[39m\n\x1b[36m")), "  ", "  ")
	case *ast.HTMLBlock:
		return lipgloss.Wrap(faint.apply(strings.TrimRight(r.lines(n), "\n")), width, "")
	case *ast.ThematicBreak:
		return faint.apply(strings.Repeat("─", width))
	case *extast.Table:
		return r.table(n, width)
	}
	return lipgloss.Wrap(r.inline(n), width, "")
}

// lines returns the source of a block.
func (r renderer) lines(n ast.Node) string { return string(n.Lines().Value(r.source)) }

func (r renderer) list(n *ast.List, width int) string {
	var items []string
	number := n.Start
	for item := n.FirstChild(); item != nil; item = item.NextSibling() {
		marker := "• "
		if n.IsOrdered() {
			marker = fmt.Sprintf("%d. ", number)
			number++
		}
		separator := "\n\n"
		if n.IsTight {
			separator = "\n"
		}
		taken := ansi.StringWidth(marker)
		items = append(items, indent(r.children(item, width-taken, separator), marker, strings.Repeat(" ", taken)))
	}
	if n.IsTight {
		return strings.Join(items, "\n")
	}
	return strings.Join(items, "\n\n")
}

func (r renderer) table(n *extast.Table, width int) string {
	t := table.New().Border(lipgloss.NormalBorder()).BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).
		StyleFunc(func(int, int) lipgloss.Style { return lipgloss.NewStyle().Padding(0, 1) })
	for row := n.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []string
		for c := row.FirstChild(); c != nil; c = c.NextSibling() {
			cells = append(cells, r.inline(c))
		}
		if _, ok := row.(*extast.TableHeader); ok {
			for i, c := range cells {
				cells[i] = bold.apply(c)
			}
			t.Headers(cells...)
			continue
		}
		t.Row(cells...)
	}
	out := t.Render()
	if lipgloss.Width(out) > width {
		out = t.Width(width).Render()
	}
	return out
}

// inline renders the contents of a block.
func (r renderer) inline(n ast.Node) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			b.WriteString(unescape(c, r.source))
			switch {
			case c.HardLineBreak():
				b.WriteByte('\n')
			case c.SoftLineBreak():
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.CodeSpan:
			b.WriteString(coloured.apply(r.inline(c)))
		case *ast.Emphasis:
			if c.Level == 1 {
				b.WriteString(italic.apply(r.inline(c)))
			} else {
				b.WriteString(bold.apply(r.inline(c)))
			}
		case *extast.Strikethrough:
			b.WriteString(struck.apply(r.inline(c)))
		case *ast.Link:
			said, to := r.inline(c), string(c.Destination)
			b.WriteString(underline.apply(said))
			if said != to {
				b.WriteString(faint.apply(" (" + to + ")"))
			}
		case *ast.AutoLink:
			b.WriteString(underline.apply(string(c.Label(r.source))))
		case *ast.Image:
			b.WriteString(faint.apply("[image: " + r.inline(c) + "]"))
		case *ast.RawHTML:
			b.WriteString(faint.apply(string(c.Segments.Value(r.source))))
		case *extast.TaskCheckBox:
			b.WriteString(map[bool]string{true: "[x] ", false: "[ ] "}[c.IsChecked])
		default:
			b.WriteString(r.inline(c))
		}
	}
	return b.String()
}

// unescape resolves backslashes and entities.
func unescape(t *ast.Text, source []byte) string {
	v := t.Value(source)
	if !t.IsRaw() {
		v = util.ResolveNumericReferences(util.ResolveEntityNames(util.UnescapePunctuations(v)))
	}
	return clean(string(v))
}

// indent puts first before the first line, and rest before the others.
func indent(s, first, rest string) string {
	return first + strings.ReplaceAll(s, "\n", "\n"+rest)
}
