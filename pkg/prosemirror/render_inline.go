package prosemirror

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/util"
)

// A text block becomes a sequence of tokens: texts, atoms, and the openings and closings of
// marks. Texts are escaped independently of their neighbours. Marks are first written as
// delimiters; where CommonMark would misread a run of delimiters, its marks become HTML,
// until the whole line is read as intended.

// inlineContext describes the context of a text block.
type inlineContext struct {
	heading bool
	cell    bool // in a table with pipes
	item    bool // the first paragraph of a list item
	task    bool // after the box of a task
}

// run is text with the same visible marks, or one atom.
type run struct {
	atom  *Node
	child int // the index of the atom
	text  string
	parts []part
	marks []Mark
}

// part says which child the run's text comes from, starting at at.
type part struct{ at, child int }

// token is a piece of the line.
type token struct {
	kind byte // 't' text, 'a' atom, '[' opening, ']' closing, 'n' line break
	s    string
	m    *markSpan
	src  []source // the sources of s
}

// markSpan is a mark from its opening to its closing.
type markSpan struct {
	mark  Mark
	delim string // "" for HTML and links
	open  string
	close string
}

// source maps a range of a token to a range of a child's text.
type source struct {
	Range
	child, from, to int
}

func (w *writer) inline(block *Node, ctx inlineContext) {
	in := &inliner{w: w, ctx: ctx, runs: w.runs[:0], toks: w.toks[:0]}
	in.collect(block)
	in.count()
	in.tokens()
	in.fixDelimiters()
	for _, t := range in.toks {
		w.token(t)
	}
	w.runs, w.toks = in.runs, in.toks // reuse their capacity
}

func (w *writer) token(t token) {
	s := t.shown()
	if w.out == nil || len(t.src) == 0 {
		w.write(s)
		return
	}
	w.begin(s)
	start := len(w.buf)
	w.write(s)
	for _, o := range t.src {
		w.out.Spans = append(w.out.Spans, Span{
			Range: Range{start + o.Start, start + o.End},
			Path:  append(slices.Clone(w.path), o.child), From: o.from, To: o.to,
		})
	}
}

type inliner struct {
	w    *writer
	ctx  inlineContext
	runs []run
	toks []token
	open []*markSpan
	esc  escapes
}

// collect builds the runs of a text block.
func (in *inliner) collect(block *Node) {
	s := in.w.s
	t := s.types[block.Type]
	runs := in.runs
	for i, n := range block.Content {
		if !n.IsText() {
			if n.Type == "hardBreak" || n.Type == "mention" || n.Type == "image" {
				runs = append(runs, run{atom: n, child: i})
				continue
			}
			n = Text(n.TextContent())
		}
		if n.Text == "" {
			continue
		}
		marks := s.shownMarks(t, n.Marks)
		if k := len(runs) - 1; k >= 0 && runs[k].atom == nil && EqualMarks(runs[k].marks, marks) {
			runs[k].parts = append(runs[k].parts, part{len(runs[k].text), i})
			runs[k].text += n.Text
			continue
		}
		runs = append(runs, run{text: n.Text, parts: []part{{0, i}}, marks: marks})
	}
	in.runs = runs
}

// shownMarks returns the marks that have a form in Markdown.
func (s *Schema) shownMarks(t *nodeType, marks []Mark) []Mark {
	shown := func(m Mark) bool { return s.marks[m.Type] != nil && markTags[m.Type] != "" }
	for _, m := range marks {
		if shown(m) {
			continue
		}
		var out []Mark
		for _, m := range marks {
			if shown(m) {
				out = append(out, m)
			}
		}
		marks = out
		break
	}
	if len(marks) > 1 && t != nil {
		return s.fitMarks(t, marks)
	}
	return marks
}

// count determines which special characters occur often enough to have an effect.
func (in *inliner) count() {
	e := &in.esc
	var stars, unders, tildes, ticks int
	for _, r := range in.runs {
		for _, m := range r.marks {
			switch m.Type {
			case "bold", "italic":
				stars = 2
			case "strike":
				tildes = 2
			case "code":
				ticks = 2
			case "link":
				e.links = true
			}
		}
		stars += strings.Count(r.text, "*")
		unders += strings.Count(r.text, "_")
		tildes += strings.Count(r.text, "~")
		ticks += strings.Count(r.text, "`")
		e.definition = e.definition || strings.Contains(r.text, "]:")
		if r.atom != nil {
			e.links = e.links || r.atom.Type == "image"
			ticks += strings.Count(mentionText(r.atom), "`")
		}
	}
	e.star, e.under, e.tilde, e.tick = stars > 1, unders > 1, tildes > 1, ticks > 1
	e.cell = in.ctx.cell
}

// tokens converts the runs to tokens.
func (in *inliner) tokens() {
	lineStart := true
	for i := range in.runs {
		r := &in.runs[i]
		if r.atom != nil {
			if len(in.open) > 0 {
				in.closeExcept(in.marksAfter(i))
			}
			if r.atom.Type == "image" { // a link around it would become the image's
				in.closeExcept(slices.DeleteFunc(slices.Clone(in.marksAfter(i)), func(m Mark) bool { return m.Type == "link" }))
			}
			lineStart = in.atom(i)
			continue
		}
		in.closeExcept(r.marks)
		opened := in.openMarks(i)
		in.text(i, lineStart && !opened)
		lineStart = false
	}
	in.closeExcept(nil)
}

// marksAfter returns the marks of the next text after i, which continue over atoms.
func (in *inliner) marksAfter(i int) []Mark {
	for _, r := range in.runs[i:] {
		if r.atom == nil {
			return r.marks
		}
	}
	return nil
}

// closeExcept closes all marks that are not in keep, and those opened inside them.
func (in *inliner) closeExcept(keep []Mark) {
	k := slices.IndexFunc(in.open, func(m *markSpan) bool { return !hasMark(keep, m.mark) })
	if k < 0 {
		return
	}
	for _, m := range slices.Backward(in.open[k:]) {
		in.toks = append(in.toks, token{kind: ']', m: m})
	}
	in.open = in.open[:k]
}

func hasMark(marks []Mark, m Mark) bool { return slices.ContainsFunc(marks, m.Equal) }

// openMarks opens the missing marks of run i, the longest-lasting first, and reports whether
// there were any.
func (in *inliner) openMarks(i int) bool {
	r := &in.runs[i]
	var missing []Mark
	for _, m := range r.marks {
		if m.Type == "code" && !in.htmlCode(r.text) {
			continue // written with the text
		}
		if !slices.ContainsFunc(in.open, func(o *markSpan) bool { return o.mark.Equal(m) }) {
			missing = append(missing, m)
		}
	}
	if len(missing) > 1 {
		slices.SortStableFunc(missing, func(a, b Mark) int { return cmp.Compare(in.lasts(i, b), in.lasts(i, a)) })
	}
	for _, m := range missing {
		span := in.form(m)
		in.open = append(in.open, span)
		in.toks = append(in.toks, token{kind: '[', m: span})
	}
	return len(missing) > 0
}

// lasts returns the index of the last run of text that m covers without a break.
func (in *inliner) lasts(i int, m Mark) int {
	end := i
	for j, r := range in.runs[i:] {
		if r.atom == nil {
			if !hasMark(r.marks, m) {
				break
			}
			end = i + j
		}
	}
	return end
}

// form returns the initial form of a mark.
func (in *inliner) form(m Mark) *markSpan {
	s := in.w.s
	span := &markSpan{mark: m}
	switch m.Type {
	case "bold":
		span.delim = "**"
	case "italic":
		span.delim = "*"
	case "strike":
		span.delim = "~~"
	case "link":
		if s.plainLink(m) {
			span.open, span.close = "[", "]("+in.linkTarget(m)+")"
		}
	}
	if m.Type != "link" && len(m.Attrs) > 0 {
		span.delim = ""
	}
	if span.delim == "" && span.open == "" {
		s.useTags(span)
	}
	return span
}

// useTags switches a mark to HTML.
func (s *Schema) useTags(m *markSpan) {
	m.delim, m.open, m.close = "", s.openTag(m.mark), "</"+markTags[m.mark.Type]+">"
}

// plainLink reports whether all attributes of a link except its URL and title are defaults.
func (s *Schema) plainLink(m Mark) bool {
	if _, ok := m.Attrs["href"].(string); !ok || m.Attrs["title"] == "" {
		return false
	}
	for _, a := range s.attrSpecs("link", true) {
		if v, there := m.Attrs[a.Name]; a.Name != "href" && a.Name != "title" && there && !equalValue(v, a.Default) {
			return false
		}
	}
	return true
}

func (in *inliner) linkTarget(m Mark) string {
	href, _ := m.Attrs["href"].(string)
	title, _ := m.Attrs["title"].(string)
	return target(href, title, in.ctx.cell)
}

// text appends the tokens of the text of run i.
func (in *inliner) text(i int, lineStart bool) {
	r := &in.runs[i]
	if hasType(r.marks, "code") && !in.htmlCode(r.text) {
		in.codeSpan(r)
		return
	}
	if in.autoLink(i) {
		return
	}
	e := in.esc
	e.lineStart, e.firstLine = lineStart, len(in.toks) == 0
	e.item, e.heading = in.ctx.item && e.firstLine, in.ctx.heading
	if in.ctx.heading || in.ctx.cell || in.ctx.task && e.firstLine {
		e.noBlocks = true
	}
	e.label = slices.ContainsFunc(in.open, func(m *markSpan) bool { return m.open == "[" })
	e.last = i == len(in.runs)-1
	e.lineEnd = e.last && len(in.open) == 0
	t := token{kind: 't'}
	t.s, t.src = e.escape(r, in.w.out != nil)
	in.toks = append(in.toks, t)
}

func hasType(marks []Mark, typ string) bool {
	return slices.ContainsFunc(marks, func(m Mark) bool { return m.Type == typ })
}

// htmlCode reports whether code cannot be in backticks: a newline would become a space.
func (in *inliner) htmlCode(text string) bool { return strings.ContainsAny(text, "\n\r") }

// codeSpan appends text in backticks, more of them than occur together in it.
func (in *inliner) codeSpan(r *run) {
	text := r.text
	fence := 1
	for strings.Contains(text, strings.Repeat("`", fence)) {
		fence++
	}
	open := strings.Repeat("`", fence)
	end := open
	blank := strings.Trim(text, " \t") == ""
	if text[0] == '`' || text[len(text)-1] == '`' || !blank && text[0] == ' ' && text[len(text)-1] == ' ' {
		open, end = open+" ", " "+end
	}
	t := token{kind: 'a'}
	text, t.src = escapes{code: true, cell: in.ctx.cell}.escape(r, in.w.out != nil)
	t.s = open + text + end
	for k := range t.src {
		t.src[k].Start += len(open)
		t.src[k].End += len(open)
	}
	in.toks = append(in.toks, t)
}

// autoLink writes a link that shows its own URL as <URL>.
func (in *inliner) autoLink(i int) bool {
	r, k := &in.runs[i], len(in.toks)-1
	if k < 0 || in.toks[k].kind != '[' || in.toks[k].m.open != "[" || len(in.open) == 0 || in.open[len(in.open)-1] != in.toks[k].m {
		return false
	}
	m := in.toks[k].m.mark
	href := m.Attrs["href"].(string)
	if m.Attrs["title"] != nil || in.lasts(i, m) > i || strings.ContainsAny(r.text, "|`\\&") {
		return false
	}
	url, mail := util.FindURLIndex([]byte(r.text)), util.FindEmailIndex([]byte(r.text))
	if href == r.text && url == len(r.text) && mail < 0 || href == "mailto:"+r.text && mail == len(r.text) {
		in.toks[k].m.open, in.toks[k].m.close = "<", ">"
		t := token{kind: 'a'}
		t.s, t.src = escapes{code: true}.escape(r, in.w.out != nil)
		in.toks = append(in.toks, t)
		return true
	}
	return false
}

// atom appends the token of an atom and reports whether a new line begins after it.
func (in *inliner) atom(i int) bool {
	r := &in.runs[i]
	t := token{kind: 'a'}
	switch r.atom.Type {
	case "hardBreak":
		if in.breakLine(i) {
			in.toks = append(in.toks, token{kind: 'n', s: "\\\n"})
			return true
		}
		t.s = "<br>"
	case "image":
		t.s = in.w.s.imageText(r.atom, in.ctx.cell)
	case "mention":
		t.s = in.w.s.mentionTag(r.atom)
		text := mentionText(r.atom)
		at := strings.LastIndex(t.s, "</") - len(text)
		if in.w.out != nil && at > 0 && t.s[at:at+len(text)] == text {
			t.src = []source{{Range{at, at + len(text)}, r.child, 0, len(text)}}
		}
	}
	in.toks = append(in.toks, t)
	return false
}

// breakLine reports whether a hard break can be a backslash at the end of a line.
func (in *inliner) breakLine(i int) bool {
	if in.ctx.heading || in.ctx.cell || i == 0 || i == len(in.runs)-1 {
		return false
	}
	last := in.toks[len(in.toks)-1]
	return last.kind != 'n' && (last.kind != 't' || !strings.HasSuffix(last.s, `\`))
}

// fixDelimiters switches marks to HTML whose delimiters CommonMark would misread.
func (in *inliner) fixDelimiters() {
	for again := true; again; {
		again = false
		var depth [128]int // open marks by delimiter
		for i := 0; i < len(in.toks); i++ {
			c := in.toks[i].delimChar()
			if c == 0 {
				continue
			}
			j := i
			opens, closes := false, false
			for ; j < len(in.toks) && in.toks[j].delimChar() == c; j++ {
				opens = opens || in.toks[j].kind == '['
				closes = closes || in.toks[j].kind == ']'
			}
			before := in.runeBefore(i)
			left, right := flanking(before, in.runeAfter(j))
			if c == '~' && before == '~' { // goldmark counts an escaped tilde as a delimiter
				left, right = false, false
			}
			// A delimiter run that could also close would close the mark around it.
			if opens && closes || opens && (!left || right && depth[c] > 0) || closes && !right {
				for k := i; k < j; k++ {
					if !closes || !opens || in.toks[k].kind == '[' {
						in.w.s.useTags(in.toks[k].m)
					}
				}
				again = true
			}
			if opens {
				depth[c] += j - i
			} else {
				depth[c] -= j - i
			}
			i = j - 1
		}
	}
}

func (t *token) delimChar() byte {
	if t.m == nil || t.m.delim == "" {
		return 0
	}
	return t.m.delim[0]
}

// flanking reports whether a delimiter run is left- and right-flanking, given the runes around
// it, as defined by CommonMark.
func flanking(before, after rune) (left, right bool) {
	bp, bs := util.IsPunctRune(before), util.IsSpaceRune(before)
	ap, as := util.IsPunctRune(after), util.IsSpaceRune(after)
	return !as && (!ap || bs || bp), !bs && (!bp || as || ap)
}

func (in *inliner) runeBefore(i int) rune {
	if i == 0 {
		return '\n'
	}
	r, _ := utf8.DecodeLastRuneInString(in.toks[i-1].shown())
	return r
}

func (in *inliner) runeAfter(i int) rune {
	if i == len(in.toks) {
		return ' '
	}
	r, _ := utf8.DecodeRuneInString(in.toks[i].shown())
	return r
}

// shown returns what is written for the token.
func (t *token) shown() string {
	switch {
	case t.m == nil:
		return t.s
	case t.m.delim != "":
		return t.m.delim
	case t.kind == '[':
		return t.m.open
	}
	return t.m.close
}
