package prosemirror

import (
	"fmt"
	"slices"
	"strings"
)

// Append returns doc with the blocks of md at its end. They replace an empty last paragraph.
func (s *Schema) Append(doc *Node, md string) (*Node, error) {
	more, err := s.parse(md, nil)
	if err != nil || len(more.Content) == 0 {
		return doc, err
	}
	content := doc.Content
	if n := len(content); n > 0 && emptyBlock(content[n-1]) {
		content = content[:n-1]
	}
	return s.Fit(&Node{Type: doc.Type, Attrs: doc.Attrs, Content: slices.Concat(content, more.Content)}), nil
}

// Replace returns the document that md describes. A block that renders the same in doc is
// taken from there, with everything that Markdown does not show.
func (s *Schema) Replace(doc *Node, md string) (*Node, error) {
	next, err := s.parse(md, nil)
	if err != nil {
		return nil, err
	}
	return s.compose(doc, s.keep(doc.Content, next.Content)), nil
}

// compose returns doc with content. Blocks taken from doc stay as they are, valid or not;
// the others are made valid.
func (s *Schema) compose(doc *Node, content []*Node) *Node {
	old := map[*Node]bool{}
	for _, n := range doc.Content {
		old[n] = true
	}
	var out []*Node
	for i := 0; i < len(content); {
		j := i
		for j < len(content) && !old[content[j]] {
			j++
		}
		if j == i {
			out = append(out, content[i])
			i++
			continue
		}
		f := &fitter{s: s}
		out = append(out, f.place(s.top, f.children(content[i:j], 0), 0)...)
		i = j
	}
	if len(out) == 0 {
		return s.Fit(&Node{Type: doc.Type, Attrs: doc.Attrs})
	}
	next := &Node{Type: doc.Type, Attrs: doc.Attrs, Content: out}
	if t := s.types[s.spec.Trailing]; t != nil && out[len(out)-1].Type != t.spec.Name {
		next.Content = append(out, (&fitter{s: s}).make(t))
	}
	return next
}

// keep returns next with each block that renders the same in old taken from there.
func (s *Schema) keep(old, next []*Node) []*Node {
	byText := map[string][]*Node{}
	for _, n := range old {
		text := s.renderBlock(n)
		byText[text] = append(byText[text], n)
	}
	out := slices.Clone(next)
	for i, n := range next {
		text := s.renderBlock(n)
		if same := byText[text]; len(same) > 0 {
			out[i], byText[text] = same[0], same[1:]
		}
	}
	return out
}

func (s *Schema) renderBlock(n *Node) string {
	w := &writer{s: s}
	w.child([]*Node{n}, 0, false)
	return string(w.buf)
}

// MatchError reports that the text to replace does not occur exactly once.
type MatchError struct {
	// Count is the number of occurrences.
	Count int
	// Lines holds the Markdown lines, from 1, on which the first occurrences begin, and
	// Texts the content of those lines.
	Lines []int
	Texts []string
}

// maxPlaces is the number of occurrences that a MatchError shows.
const maxPlaces = 5

func (e *MatchError) Error() string {
	if e.Count == 0 {
		return "the text to replace is not in the document; read it again and copy the text exactly"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the text to replace occurs %d times; include more of the surrounding text or replace all:", e.Count)
	for i, line := range e.Lines {
		fmt.Fprintf(&b, " line %d: %q", line, e.Texts[i])
	}
	return b.String()
}

// Edit returns doc with the only occurrence of from in its Markdown replaced by to, or with
// all occurrences, and their number. Only the blocks that they touch are parsed again, and
// MaxMarkdown applies to each contiguous group of these. A missing or ambiguous occurrence
// is a *MatchError.
func (s *Schema) Edit(doc *Node, from, to string, all bool) (next *Node, places int, err error) {
	next, places, _, err = s.ImportEdit(doc, from, to, all)
	return next, places, err
}

// ImportEdit is Edit with a list of what the document does not store as written. Lines are
// those of its Markdown.
func (s *Schema) ImportEdit(doc *Node, from, to string, all bool) (next *Node, places int, list []Loss, err error) {
	from, to = clean(from), clean(to)
	m := s.RenderMap(doc)
	found := find(m.Text, from)
	if len(found) == 0 || len(found) > 1 && !all {
		return nil, len(found), nil, matchError(m.Text, found)
	}
	if n := len(from) + (len(to)-len(from))*len(found); n > maxEdited {
		return nil, 0, nil, fmt.Errorf("%w: %d places would take %d bytes, at most %d", ErrTooLarge, len(found), n, maxEdited)
	}
	var content []*Node
	losses := &losses{}
	before, at := 0, 0 // the number of lines before at
	for i := 0; i < len(doc.Content); {
		j := touched(m.Blocks, found, i)
		if j == i {
			content = append(content, doc.Content[i])
			i++
			continue
		}
		text := region(m, found, i, j, len(from), to)
		n := len(losses.all)
		read, err := s.parse(text, losses)
		if err != nil {
			return nil, 0, nil, err
		}
		before, at = before+strings.Count(m.Text[at:m.Blocks[i].Start], "\n"), m.Blocks[i].Start
		for k := range losses.all[n:] {
			losses.all[n+k].Line += before
		}
		content = append(content, s.keep(doc.Content[i:j], read.Content)...)
		i = j
	}
	return s.compose(doc, content), len(found), losses.byLine(), nil
}

// maxEdited bounds the growth of a document in one edit.
const maxEdited = 16 << 20

// find returns the ranges of sub in text.
func find(text, sub string) []Range {
	var out []Range
	for at := 0; sub != ""; {
		i := strings.Index(text[at:], sub)
		if i < 0 {
			break
		}
		at += i + len(sub)
		out = append(out, Range{at - len(sub), at})
	}
	return out
}

func matchError(text string, places []Range) *MatchError {
	e := &MatchError{Count: len(places)}
	for _, p := range places[:min(len(places), maxPlaces)] {
		start := strings.LastIndexByte(text[:p.Start], '\n') + 1
		line, _, _ := strings.Cut(text[start:], "\n")
		if len(line) > 80 {
			line = strings.ToValidUTF8(line[:80], "") + "…"
		}
		e.Lines = append(e.Lines, strings.Count(text[:p.Start], "\n")+1)
		e.Texts = append(e.Texts, line)
	}
	return e
}

// touches reports whether p overlaps r or the blank line on either side, so that the result may
// merge with r.
func (p Range) touches(r Range) bool { return p.Start <= r.End+1 && p.End >= r.Start-1 }

// touching returns the places that touch r. places is sorted.
func touching(places []Range, r Range) []Range {
	from, _ := slices.BinarySearchFunc(places, r.Start-1, func(p Range, at int) int { return p.End - at })
	to := from
	for to < len(places) && places[to].touches(r) {
		to++
	}
	return places[from:to]
}

// touched returns the end of the blocks from i that places touch.
func touched(blocks []Range, places []Range, i int) int {
	for i < len(blocks) && blocks[i].Start < blocks[i].End && len(touching(places, blocks[i])) > 0 {
		i++
	}
	return i
}

// region returns the Markdown of blocks i to j with each place in it replaced.
func region(m *Markdown, places []Range, i, j, size int, to string) string {
	at, end := m.Blocks[i].Start, m.Blocks[j-1].End
	var b strings.Builder
	for _, p := range touching(places, Range{at, end}) {
		b.WriteString(m.Text[at:max(at, p.Start)])
		b.WriteString(to)
		at = p.Start + size
	}
	b.WriteString(m.Text[min(at, end):end])
	return b.String()
}
