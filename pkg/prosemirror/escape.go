package prosemirror

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/util"
)

// escapes describes the surroundings of a text that decide which characters need an escape.
// The neighbour at the edge of a run is unknown and assumed to require one.
type escapes struct {
	star, under, tilde, tick bool // the character occurs at least twice, delimiters included
	links                    bool // the block has links or images
	definition               bool // the block has "]:"
	cell                     bool // a bar ends the cell
	lineStart, lineEnd       bool
	firstLine                bool // the text begins the block
	last                     bool // the text ends the block
	noBlocks                 bool // no block can begin here
	item, heading            bool
	label                    bool // inside the brackets of a link, where bare links are not recognized
	brackets                 bool // possibly inside the brackets of a link
	code                     bool // inside backticks, where only a bar is special
}

// escaper escapes one run.
type escaper struct {
	escapes
	text string
	out  []byte
	note bool
	run  *run
	part int // the index of the current part
	src  []source
}

// escape returns the run's text as Markdown and, with note, its sources.
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

// plain returns the number of bytes from i that need no escape and belong to one part.
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
	asReference // as a numeric character reference
)

// add writes n bytes of the text from i, all of one part.
func (x *escaper) add(i, n, how int) {
	start := len(x.out)
	switch how {
	case backslash:
		x.out = append(x.out, '\\')
		x.out = append(x.out, x.text[i:i+n]...)
	case asReference:
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

// runes returns the runes before and after the one byte at i as they are written: a space at
// the edges of a line, utf8.RuneError at the other edges of a run.
func (x *escaper) runes(i int) (prev, next rune) {
	prev, next = utf8.RuneError, utf8.RuneError
	if i > 0 {
		var k int
		prev, k = utf8.DecodeLastRuneInString(x.text[:i])
		if x.needsReference(i - k) {
			prev = ';'
		}
	} else if x.lineStart {
		prev = ' '
	}
	if i++; i < len(x.text) {
		next, _ = utf8.DecodeRuneInString(x.text[i:])
		if x.needsReference(i) {
			next = '&'
		}
	} else if x.lineEnd {
		next = ' '
	}
	return prev, next
}

// needsReference reports whether the character at i is written as a character reference.
func (x *escaper) needsReference(i int) bool {
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
	if x.needsReference(i) {
		return asReference
	}
	esc := false
	switch c {
	case '\\':
		_, next := x.runes(i)
		esc = next == utf8.RuneError || next < utf8.RuneSelf && util.IsPunct(byte(next)) || i == len(x.text)-1
	case '*':
		esc = x.star && x.mayDelimit(i)
	case '_':
		esc = x.under && x.underscoreMayDelimit(i)
	case '~':
		esc = x.tilde && x.mayDelimit(i)
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

// mayDelimit reports whether a delimiter at i could open or close emphasis: it cannot if there is
// whitespace on both sides.
func (x *escaper) mayDelimit(i int) bool {
	prev, next := x.runes(i)
	return !util.IsSpaceRune(prev) || !util.IsSpaceRune(next)
}

// underscoreMayDelimit is mayDelimit for underscores, which have no effect within a word.
func (x *escaper) underscoreMayDelimit(i int) bool {
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

// bareWWW reports whether the dot at i follows a www that would become a link.
func (x *escaper) bareWWW(i int) bool {
	before, ok := strings.CutSuffix(x.text[:i], "www")
	return ok && !x.label && i+1 < len(x.text) && x.text[i+1] > ' ' && (before == "" || !isAlnum(before[len(before)-1]))
}

// bareURL reports whether the colon at i belongs to a URL that would become a link.
func (x *escaper) bareURL(i int) bool {
	before := x.text[:i]
	return !x.label && x.follows(i, "//") &&
		(strings.HasSuffix(before, "http") || strings.HasSuffix(before, "https") || strings.HasSuffix(before, "ftp"))
}

// bareMail reports whether the @ at i belongs to an address that would become a link.
func (x *escaper) bareMail(i int) bool {
	if x.label || i == len(x.text)-1 || !isAlnum(x.text[i+1]) || i == 0 && x.lineStart || i > 0 && x.text[i-1] <= ' ' {
		return false
	}
	word, _, _ := strings.Cut(x.text[i+1:], " ")
	return strings.Contains(word, ".")
}

// closesHeading reports whether the # at i begins a run that would close the heading.
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

// start writes the first characters of a line so that no block begins there, and returns how
// many bytes of the text it consumed.
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

// target returns the destination and the title of a link or image.
func target(href, title string, cell bool) string {
	var b strings.Builder
	bar := ""
	if cell {
		bar = "|"
	}
	switch {
	case href == "" && title == "":
	case plainHref(href):
		appendEscaped(&b, href, "`", "<>"+bar)
	default:
		b.WriteByte('<')
		appendEscaped(&b, href, "`", "<>"+bar)
		b.WriteByte('>')
	}
	if title != "" {
		b.WriteString(` "`)
		appendEscaped(&b, title, "`", `"`+bar)
		b.WriteByte('"')
	}
	return b.String()
}

// plainHref reports whether a URL needs no angle brackets.
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

// appendEscaped writes s in a context where only escapes and references are special. The
// characters in refs become references, those in special are escaped.
func appendEscaped(b *strings.Builder, s, refs, special string) {
	for i, c := range []byte(s) {
		switch {
		case c < ' ' || strings.IndexByte(refs, c) >= 0:
			fmt.Fprintf(b, "&#%d;", c)
		case c == '\\' && (i+1 == len(s) || util.IsPunct(s[i+1]) || s[i+1] < ' '), c == '&' && reference(s[i:]) > 0,
			strings.IndexByte(special, c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
}

// imageText returns an image as Markdown, or as HTML if Markdown cannot hold its attributes.
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
	appendEscaped(&b, alt, "`|", "[]*_~<>!")
	b.WriteString("](" + target(src, title, cell) + ")")
	if linked {
		b.WriteString("](" + target(href, "", cell) + ")")
	}
	return b.String()
}

// imageTag returns an image as HTML, inside its link if it has one.
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
