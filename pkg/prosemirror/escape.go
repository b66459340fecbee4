package prosemirror

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/util"
)

// escapes says where a text stands and what around it decides what needs an
// escape. At the edges of a run the neighbour is unknown, and the answer is yes.
type escapes struct {
	star, under, tilde, tick bool // there are at least two, marks counted
	links                    bool // the block has links or images
	definition               bool // the block has "]:"
	cell                     bool // a bar ends the cell
	lineStart, lineEnd       bool
	firstLine                bool // nothing stands before it in the block
	last                     bool // nothing stands behind it in the block
	noBlocks                 bool // no block can begin here
	item, heading            bool
	label                    bool // within the brackets of a link, where no bare link begins
	brackets                 bool // perhaps within the brackets of a link
	code                     bool // within backticks, where only a bar means something
}

// escaper writes one run.
type escaper struct {
	escapes
	text string
	out  []byte
	note bool
	run  *run
	part int // the part of the run at hand
	src  []source
}

// escape returns the run's text as Markdown and, with note, where it comes from.
func (e escapes) escape(r *run, note bool) (string, []source) {
	x := &escaper{escapes: e, text: r.text, note: note, run: r}
	x.out = make([]byte, 0, len(r.text)+len(r.text)/8)
	i := 0
	if e.lineStart {
		i = x.start()
	}
	for i < len(x.text) {
		if n := x.plain(i); n > 0 {
			x.add(i, n, plain)
			i += n
			continue
		}
		x.add(i, 1, x.special(i))
		i++
	}
	return string(x.out), x.src
}

// plain returns how many bytes from i on mean nothing to Markdown and are of one part.
func (x *escaper) plain(i int) int {
	end := len(x.text)
	if x.note {
		for _, p := range x.run.parts {
			if p.at > i {
				end = p.at
				break
			}
		}
	}
	j := i
	for j < end && (x.text[j] >= utf8.RuneSelf || isAlnum(x.text[j]) || x.text[j] == ' ' && j > 0 && j+1 < len(x.text)) {
		j++
	}
	return j - i
}

// How a character is written.
const (
	plain = iota
	backslash
	refer // as a reference
)

// add writes n bytes of the text from i on, of one part.
func (x *escaper) add(i, n, how int) {
	start := len(x.out)
	switch how {
	case backslash:
		x.out = append(x.out, '\\')
		x.out = append(x.out, x.text[i:i+n]...)
	case refer:
		r, _ := utf8.DecodeRuneInString(x.text[i:])
		x.out = fmt.Appendf(x.out, "&#%d;", r)
	default:
		x.out = append(x.out, x.text[i:i+n]...)
	}
	if !x.note {
		return
	}
	for x.part+1 < len(x.run.parts) && x.run.parts[x.part+1].at <= i {
		x.part++
	}
	p := x.run.parts[x.part]
	s := source{Range{start, len(x.out)}, p.child, i - p.at, i - p.at + n}
	if k := len(x.src) - 1; k >= 0 && how == plain && x.src[k].child == s.child &&
		x.src[k].End-x.src[k].Start == x.src[k].to-x.src[k].from && x.src[k].to == s.from {
		x.src[k].End, x.src[k].to = s.End, s.to
		return
	}
	x.src = append(x.src, s)
}

// runes returns what is written around the one byte at i; at the
// edges of a line a blank, at the other edges of a run utf8.RuneError.
func (x *escaper) runes(i int) (prev, next rune) {
	prev, next = utf8.RuneError, utf8.RuneError
	if i > 0 {
		var k int
		prev, k = utf8.DecodeLastRuneInString(x.text[:i])
		if x.refers(i - k) {
			prev = ';'
		}
	} else if x.lineStart {
		prev = ' '
	}
	if i++; i < len(x.text) {
		next, _ = utf8.DecodeRuneInString(x.text[i:])
		if x.refers(i) {
			next = '&'
		}
	} else if x.lineEnd {
		next = ' '
	}
	return prev, next
}

// refers tells whether the character at i is written as a reference.
func (x *escaper) refers(i int) bool {
	switch x.text[i] {
	case '\n', '\r':
		return true
	case ' ', '\t':
		return i == 0 && x.lineStart || i == len(x.text)-1 && x.lineEnd
	}
	return false
}

// special returns how the character at i is written within a line.
func (x *escaper) special(i int) int {
	c := x.text[i]
	if x.code {
		if c == '|' && x.cell {
			return backslash
		}
		return plain
	}
	if x.refers(i) {
		return refer
	}
	esc := false
	switch c {
	case '\\':
		_, next := x.runes(i)
		esc = next == utf8.RuneError || next < utf8.RuneSelf && util.IsPunct(byte(next)) || i == len(x.text)-1
	case '*':
		esc = x.star && x.leans(i)
	case '_':
		esc = x.under && x.leansUnder(i)
	case '~':
		esc = x.tilde && x.leans(i)
	case '`':
		esc = x.tick
	case '[':
		esc = x.label || x.brackets || x.links
	case ']':
		esc = x.label || x.brackets || x.follows(i, "(") || i == len(x.text)-1 && !x.last
	case '!':
		esc = i == len(x.text)-1 && !x.last
	case '<':
		_, next := x.runes(i)
		esc = next == utf8.RuneError || next < utf8.RuneSelf && (isAlnum(byte(next)) || next == '/' || next == '!' || next == '?')
	case '&':
		esc = reference(x.text[i:]) > 0
	case '|':
		esc = x.cell
	case ':':
		esc = x.bareURL(i)
	case '.':
		esc = x.bareWWW(i)
	case '@':
		esc = x.bareMail(i)
	case '#':
		esc = x.heading && x.closesHeading(i)
	}
	if esc {
		return backslash
	}
	return plain
}

func (x *escaper) follows(i int, s string) bool { return strings.HasPrefix(x.text[i+1:], s) }

// leans tells whether a delimiter at i could open or close anything: blanks on
// both sides make it plain.
func (x *escaper) leans(i int) bool {
	prev, next := x.runes(i)
	return !util.IsSpaceRune(prev) || !util.IsSpaceRune(next)
}

// leansUnder is leans for underscores, which do nothing within a word.
func (x *escaper) leansUnder(i int) bool {
	from, to := i, i+1
	for from > 0 && x.text[from-1] == '_' {
		from--
	}
	for to < len(x.text) && x.text[to] == '_' {
		to++
	}
	prev, _ := x.runes(from)
	_, next := x.runes(to - 1)
	if prev == utf8.RuneError || next == utf8.RuneError {
		return true
	}
	word := func(r rune) bool { return !util.IsSpaceRune(r) && !util.IsPunctRune(r) }
	return (!word(prev) || !word(next)) && (!util.IsSpaceRune(prev) || !util.IsSpaceRune(next))
}

// bareWWW tells whether the dot at i belongs to a www. that would become a link.
func (x *escaper) bareWWW(i int) bool {
	before, ok := strings.CutSuffix(x.text[:i], "www")
	return ok && !x.label && i+1 < len(x.text) && x.text[i+1] > ' ' && (before == "" || !isAlnum(before[len(before)-1]))
}

// bareURL tells whether the colon at i belongs to an address that would become a link.
func (x *escaper) bareURL(i int) bool {
	before := x.text[:i]
	return !x.label && x.follows(i, "//") &&
		(strings.HasSuffix(before, "http") || strings.HasSuffix(before, "https") || strings.HasSuffix(before, "ftp"))
}

// bareMail tells whether the @ at i belongs to an address that would become a link.
func (x *escaper) bareMail(i int) bool {
	if x.label || i == len(x.text)-1 || !isAlnum(x.text[i+1]) || i == 0 && x.lineStart || i > 0 && x.text[i-1] <= ' ' {
		return false
	}
	word, _, _ := strings.Cut(x.text[i+1:], " ")
	return strings.Contains(word, ".")
}

// closesHeading tells whether the # at i begins a row that would close the heading.
func (x *escaper) closesHeading(i int) bool {
	return x.lineEnd && strings.Trim(x.text[i:], "#") == "" && (i == 0 || x.text[i-1] == ' ' || x.text[i-1] == '\t')
}

var (
	thematicRE = regexp.MustCompile(`^(?:[-\t ]+|[*\t ]+|[_\t ]+)$`)
	headingRE  = regexp.MustCompile(`^#{1,6}(?:[ \t]|$)`)
	bulletRE   = regexp.MustCompile(`^[-+*](?:[ \t]|$)`)
	orderedRE  = regexp.MustCompile(`^[0-9]{1,9}[.)](?:[ \t]|$)`)
	boxRE      = regexp.MustCompile(`^\[[ \txX\n\r]\]`)
)

// start writes the first characters of a line so that no block begins there, and
// returns how many bytes of the text that were.
func (x *escaper) start() int {
	if x.item && boxRE.MatchString(x.text) {
		x.add(0, 1, backslash)
		return 1
	}
	if x.noBlocks {
		return 0
	}
	line, _, _ := strings.Cut(x.text, "\n")
	esc := false
	switch c := line + " "; c[0] {
	case '#':
		esc = headingRE.MatchString(line)
	case '>':
		esc = true
	case '-', '+', '*', '_':
		esc = bulletRE.MatchString(line) || thematicRE.MatchString(line) || c[0] == '-' && !x.firstLine
	case '=', '|', ':':
		esc = !x.firstLine
	case '~', '`':
		esc = strings.HasPrefix(line, "~~~") || strings.HasPrefix(line, "```")
	case '[':
		esc = x.definition
	case '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		if m := orderedRE.FindString(line); m != "" {
			n := len(strings.TrimRight(m, " \t")) - 1
			x.add(0, n, plain)
			x.add(n, 1, backslash)
			return n + 1
		}
	}
	if !esc {
		return 0
	}
	x.add(0, 1, backslash)
	return 1
}

// target returns the address and the title of a link or image.
func target(href, title string, cell bool) string {
	var b strings.Builder
	switch {
	case href == "" && title == "":
	case plainHref(href):
		appendEscaped(&b, href, `<>`, cell)
	default:
		b.WriteByte('<')
		appendEscaped(&b, href, `<>`, cell)
		b.WriteByte('>')
	}
	if title != "" {
		b.WriteString(` "`)
		appendEscaped(&b, title, `"`, cell)
		b.WriteByte('"')
	}
	return b.String()
}

// plainHref tells whether an address needs no angle brackets.
func plainHref(s string) bool {
	depth := 0
	for _, c := range []byte(s) {
		switch {
		case c <= ' ' || c == 0x7f:
			return false
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				return false
			}
		}
	}
	return depth == 0 && s != ""
}

// appendEscaped writes s where Markdown resolves escapes and references only.
func appendEscaped(b *strings.Builder, s, special string, cell bool) {
	for i, c := range []byte(s) {
		switch {
		case c < ' ' || c == '`':
			fmt.Fprintf(b, "&#%d;", c)
		case c == '\\' && (i+1 == len(s) || util.IsPunct(s[i+1]) || s[i+1] < ' '), c == '&' && reference(s[i:]) > 0,
			c == '|' && cell, strings.IndexByte(special, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
}

// imageText returns an image in Markdown, or in HTML if it has attributes beyond.
func (s *Schema) imageText(n *Node, cell bool) string {
	src, ok := n.Attrs["src"].(string)
	alt, _ := n.Attrs["alt"].(string)
	title, _ := n.Attrs["title"].(string)
	href, linked := n.Attrs["href"].(string)
	for name, v := range n.Attrs {
		ok = ok && (v == nil || v != "" && (name == "src" || name == "alt" || name == "title") || name == "src" || name == "href")
	}
	if !ok {
		return s.imageTag(n)
	}
	var b strings.Builder
	if linked {
		b.WriteByte('[')
	}
	b.WriteString("![")
	for i, c := range []byte(alt) {
		switch {
		case c < ' ' || c == '`' || c == '|':
			fmt.Fprintf(&b, "&#%d;", c)
		case c == '\\' && (i+1 == len(alt) || util.IsPunct(alt[i+1]) || alt[i+1] < ' '), strings.IndexByte("[]*_~<>!", c) >= 0,
			c == '&' && reference(alt[i:]) > 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteString("](" + target(src, title, cell) + ")")
	if linked {
		b.WriteString("](" + target(href, "", cell) + ")")
	}
	return b.String()
}

// imageTag returns an image in HTML, in a link if it is one.
func (s *Schema) imageTag(n *Node) string {
	href, linked := n.Attrs["href"].(string)
	if !linked {
		return s.nodeTag("img", n)
	}
	attrs := maps.Clone(n.Attrs)
	delete(attrs, "href")
	var b strings.Builder
	b.WriteString("<a")
	appendAttr(&b, "href", href)
	return b.String() + ">" + s.nodeTag("img", Elem(n.Type, attrs)) + "</a>"
}

// mentionTag returns a mention as TipTap writes it.
func (s *Schema) mentionTag(n *Node) string {
	var b strings.Builder
	b.WriteString(`<span data-type="mention"`)
	for _, a := range s.attrSpecs("mention", false) {
		if v := n.Attrs[a.Name]; v != nil && !equalValue(v, a.Default) {
			appendAttr(&b, "data-"+kebab(a.Name), v)
		}
	}
	b.WriteByte('>')
	e := escapes{star: true, under: true, tilde: true, tick: true, brackets: true, cell: true}
	text, _ := e.escape(&run{text: mentionText(n)}, false)
	b.WriteString(text + "</span>")
	return b.String()
}
