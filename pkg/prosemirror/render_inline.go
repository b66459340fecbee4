package prosemirror

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark/util"
)

// A text block becomes a row of tokens: texts, atoms, and the openings and
// closings of marks. Texts are escaped on their own, whatever stands next to
// them. Marks are delimiters at first; where CommonMark would not read a row of
// delimiters as meant, the marks in it become HTML, until all is well.

// inlineContext says where a text block stands.
type inlineContext struct {
	heading bool
	cell    bool // of a table with pipes
	item    bool // first paragraph of a list item
	task    bool // behind the box of a task
}

// run is text whose marks, as far as Markdown shows them, are the same, or one atom.
type run struct {
	atom  *Node
	child int // of the atom
	text  string
	parts []part
	marks []Mark
}

// part says which child the run's text from at on is.
type part struct{ at, child int }

// token is a piece of the line.
type token struct {
	kind byte // 't' text, 'a' atom, '[' opening, ']' closing, 'n' line break
	s    string
	m    *markSpan
	src  []source // where s comes from
}

// markSpan is a mark from where it opens to where it closes.
type markSpan struct {
	mark  Mark
	delim string // "" if HTML
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
	in.settle()
	for _, t := range in.toks {
		w.token(t)
	}
	w.runs, w.toks = in.runs, in.toks // their room is for the next block
}

func (w *writer) token(t token) {
	s := t.s
	switch {
	case t.kind == '[' && t.m.delim != "", t.kind == ']' && t.m.delim != "":
		s = t.m.delim
	case t.kind == '[':
		s = t.m.open
	case t.kind == ']':
		s = t.m.close
	}
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

// collect makes the runs of a text block.
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

// count notes which special characters there are enough of to mean something.
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

// tokens turns the runs into tokens.
func (in *inliner) tokens() {
	lineStart := true
	for i := range in.runs {
		r := &in.runs[i]
		if r.atom != nil {
			if len(in.open) > 0 {
				in.closeExcept(in.marksBehind(i))
			}
			if r.atom.Type == "image" { // a link would become the image's
				in.closeExcept(slices.DeleteFunc(slices.Clone(in.marksBehind(i)), func(m Mark) bool { return m.Type == "link" }))
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

// marksBehind returns the marks of the text behind the atoms at i, for marks that go on.
func (in *inliner) marksBehind(i int) []Mark {
	for _, r := range in.runs[i:] {
		if r.atom == nil {
			return r.marks
		}
	}
	return nil
}

// closeExcept closes all marks that are not in keep, and those within them.
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

// openMarks opens the marks of run i that are not open, the one that lasts
// longest first, and tells whether there were any.
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

// lasts returns the index behind the last text that m is on without a break.
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

// form returns the way a mark is written at first.
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

// useTags writes a mark as HTML.
func (s *Schema) useTags(m *markSpan) {
	m.delim, m.open, m.close = "", s.openTag(m.mark), "</"+markTags[m.mark.Type]+">"
}

// plainLink tells whether a link has the default in all attributes but the
// address and the title.
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

// htmlCode tells whether code cannot be within backticks: a line end would become
// a blank.
func (in *inliner) htmlCode(text string) bool { return strings.ContainsAny(text, "\n\r") }

// codeSpan appends text within backticks, more of them than stand together in it.
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

// partSources maps a run that is written as it is.
func partSources(r *run) []source {
	var src []source
	for k, p := range r.parts {
		end := len(r.text)
		if k+1 < len(r.parts) {
			end = r.parts[k+1].at
		}
		src = append(src, source{Range{p.at, end}, p.child, 0, end - p.at})
	}
	return src
}

// autoLink writes a link that shows its own address as <address>.
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
		in.toks = append(in.toks, token{kind: 'a', s: r.text, src: partSources(r)})
		return true
	}
	return false
}

// atom appends the token of an atom, and tells whether a new line begins behind it.
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

// breakLine tells whether a break can be a backslash at the end of a line.
func (in *inliner) breakLine(i int) bool {
	if in.ctx.heading || in.ctx.cell || i == 0 || i == len(in.runs)-1 {
		return false
	}
	last := in.toks[len(in.toks)-1]
	return last.kind != 'n' && (last.kind != 't' || !strings.HasSuffix(last.s, `\`))
}

// settle gives HTML tags to the marks whose delimiters would not be read as meant.
func (in *inliner) settle() {
	for again := true; again; {
		again = false
		var depth [128]int // how many marks of a delimiter are open
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
			if c == '~' && before == '~' { // goldmark takes an escaped one for a delimiter
				left, right = false, false
			}
			// One that could also close would close what is open around it.
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

// flanking tells which sides of a row of delimiters text leans on, by the runes
// around it, as CommonMark does.
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
