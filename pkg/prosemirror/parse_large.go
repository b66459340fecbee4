package prosemirror

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// MaxLarge is the maximum size in bytes of Markdown for ParseLarge.
const MaxLarge = 16 << 20

// sectionSize is the approximate size of ParseLarge's sections.
const sectionSize = MaxMarkdown / 2

// ParseLarge is Parse for trusted Markdown up to MaxLarge. It parses sections that end
// between blocks, or between two items of a very long list, so that the time stays
// proportional to the size. Only a block larger than a section may be split.
func (s *Schema) ParseLarge(md string) (*Node, error) {
	if len(md) <= MaxMarkdown {
		return s.Parse(md)
	}
	if len(md) > MaxLarge {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(md), MaxLarge)
	}
	return s.Fit(s.parseSections(cutMarkdown(clean(md), sectionSize), nil)), nil
}

// parseSections parses sections as one document: they share their link definitions.
func (s *Schema) parseSections(sections []section, losses *losses) *Node {
	roots := make([]ast.Node, len(sections))
	var definitions []parser.Reference
	parse := func(i int) parser.Context {
		pc := parser.NewContext()
		for _, d := range definitions {
			pc.AddReference(d)
		}
		roots[i] = markdown().Parse(text.NewReader([]byte(sections[i].text)), parser.WithContext(pc))
		return pc
	}
	var found []parser.Reference
	for i := range sections {
		found = append(found, parse(i).References()...)
	}
	if definitions = found; len(found) > 0 {
		for i := range sections {
			parse(i)
		}
	}
	used, defined, line := map[string]bool{}, map[string]bool{}, 1
	for i := range roots {
		(&reader{used: used}).findUsed(roots[i])
	}
	doc := Elem(s.spec.Top, nil)
	for i, p := range sections {
		blocks := (&reader{s: s, src: []byte(p.text), used: used, defined: defined, line: line, losses: losses}).blocks(roots[i], 0)
		line += strings.Count(p.text, "\n")
		if last := len(doc.Content) - 1; p.item && last >= 0 && len(blocks) > 0 && blocks[0].Type == doc.Content[last].Type {
			list := doc.Content[last] // not shared yet
			list.Content = append(list.Content, blocks[0].Content...)
			blocks = blocks[1:]
		}
		doc.Content = append(doc.Content, blocks...)
	}
	return doc
}

// section is a part of a Markdown document.
type section struct {
	text string
	item bool // it begins with an item of the list that ends the previous section
}

// cutMarkdown splits md into sections of about size, at most twice that.
func cutMarkdown(md string, size int) []section {
	var out []section
	start, item := 0, false
	// Where the current section may end, in order of preference: between blocks, list items
	// or lines.
	var blockCut, itemCut, lineCut int
	cut := func(at int, nextItem bool) {
		out = append(out, section{text: md[start:at], item: item})
		start, item = at, nextItem
		blockCut, itemCut, lineCut = at, at, at
	}
	var c lineState
	blank := true
	for at := 0; at < len(md); {
		line := md[at:]
		if i := strings.IndexByte(line, '\n'); i >= 0 {
			line = line[:i+1]
		}
		if !c.within() {
			switch _, marker := cutMarker(line); {
			case marker && line[0] != ' ':
				itemCut = at
			case blank && strings.TrimSpace(line) != "" && line[0] != ' ' && line[0] != '\t':
				blockCut = at
			}
		}
		lineCut = at
	shorten:
		for at+len(line)-start > size {
			switch {
			case blockCut > start:
				cut(blockCut, false)
			case at+len(line)-start <= 2*size:
				break shorten // a better place may follow
			case itemCut > start:
				cut(itemCut, true)
			case lineCut > start:
				cut(lineCut, false)
				c = lineState{}
			default:
				end := start + size
				for !utf8.RuneStart(md[end]) {
					end--
				}
				cut(end, false)
			}
		}
		c.line(line)
		blank = strings.TrimSpace(line) == ""
		at += len(line)
	}
	if start < len(md) {
		cut(len(md), false)
	}
	return out
}

// cutMarker returns what follows the list marker at the start of a line.
func cutMarker(line string) (rest string, ok bool) {
	s := strings.TrimLeft(line, " ")
	i := 0
	for i < len(s) && i < 9 && isDigit(s[i]) {
		i++
	}
	switch {
	case i == len(s):
		return line, false
	case i > 0 && (s[i] == '.' || s[i] == ')'), i == 0 && strings.IndexByte("-*+", s[0]) >= 0:
		if rest = s[i+1:]; rest == "" || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\n' {
			return rest, true
		}
	}
	return line, false
}

// lineState is the multi-line construct that a line is in and that must not be split.
type lineState struct {
	fence    string // the opening fence of a code block
	inside   bool   // the fence is in an item or quote and ends with it
	end      string // the end of an HTML block that may contain blank lines
	elements int    // open HTML tables and lists
}

func (c *lineState) within() bool { return c.fence != "" || c.end != "" || c.elements > 0 }

// htmlBlocks holds the starts and ends of HTML blocks that may contain blank lines.
var htmlBlocks = [][2]string{
	{"<!--", "-->"},
	{"<script", "</script>"},
	{"<pre", "</pre>"},
	{"<style", "</style>"},
	{"<textarea", "</textarea>"},
	{"<?", "?>"},
	{"<![CDATA[", "]]>"},
}

// line advances past a line.
func (c *lineState) line(line string) {
	body := strings.TrimRight(line, " \t\n")
	plain := strings.TrimLeft(body, " ")
	indent := len(body) - len(plain)
	if c.fence != "" && c.inside && body != "" && indent == 0 && body[0] != '>' && body[0] != '\t' {
		c.fence = "" // the item has ended
	}
	switch {
	case c.fence != "":
		rest := strings.TrimLeft(body, " \t>")
		if strings.HasPrefix(rest, c.fence) && strings.Trim(rest, c.fence[:1]) == "" {
			c.fence = ""
		}
		return
	case c.end != "":
		if strings.Contains(line, c.end) {
			c.end = ""
		}
		return
	}
	if c.open(body, indent); c.fence != "" || indent > 3 {
		return
	}
	for _, b := range htmlBlocks {
		if hasPrefixFold(plain, b[0]) && !strings.Contains(plain[len(b[0]):], b[1]) {
			c.end = b[1]
			return
		}
	}
	if strings.HasPrefix(plain, "<") {
		for _, tag := range []string{"table", "ol"} {
			c.elements += strings.Count(plain, "<"+tag+">") + strings.Count(plain, "<"+tag+" ") - strings.Count(plain, "</"+tag+">")
		}
		c.elements = max(0, c.elements)
	}
}

// open records a code block that begins on the line, also inside items and quotes.
func (c *lineState) open(body string, indent int) {
	inside := indent > 3
	for more := true; more; {
		trimmed := strings.TrimLeft(body, " \t>")
		inside = inside || strings.Contains(body[:len(body)-len(trimmed)], ">")
		if body, more = cutMarker(trimmed); more {
			inside = true
		}
	}
	if len(body) < 3 || body[0] != '`' && body[0] != '~' {
		return
	}
	n := len(body) - len(strings.TrimLeft(body, body[:1]))
	if n >= 3 && (body[0] == '~' || !strings.Contains(body[n:], "`")) {
		c.fence, c.inside = body[:n], inside
	}
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
